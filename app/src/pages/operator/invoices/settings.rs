//! Form of the invoice settings: seller, taxes and payment term. Issued invoices do not change.

use berth_types::invoices::{BillingSettings, TaxRate};
use berth_types::problems::{FieldError as Wrong, Problem};
use leptos::prelude::*;

use super::super::super::card_form::CardForm;
use super::super::super::invoices::text::{parse_rate, typed_rate};
use super::super::super::limits::form::NumberField;
use super::super::super::limits::numbers::{Unit, parse_whole};
use super::super::super::parts::{Call, FieldError, ready};
use crate::api;
use crate::ui::{TextArea, TextField};

const FIELDS: &[&str] = &["/seller", "/seller_tax_id", "/taxes", "/due_days"];

/// The input of a tax: its name and its rate in percent.
type TaxInput = (String, String);

/// Parses the settings.
///
/// # Errors
/// One error for each invalid field.
fn parse(
    (seller, tax_id): (&str, &str),
    due_days: &str,
    taxes: &[TaxInput],
) -> Result<BillingSettings, Vec<Wrong>> {
    let mut errors = Vec::new();
    let mut rates = Vec::new();
    for (index, (name, rate)) in taxes.iter().enumerate() {
        match parse_rate(rate) {
            Some(basis_points) => rates.push(TaxRate { name: name.trim().to_owned(), basis_points }),
            None => {
                let detail = "Enter a percentage, such as 19 or 7.25, with at most two decimals.";
                errors.push(Wrong::new(format!("/taxes/{index}"), detail));
            }
        }
    }
    let days = parse_whole(due_days);
    if days.is_none() {
        errors.push(Wrong::new("/due_days", Unit::Whole.example()));
    }
    match days {
        Some(due_days) if errors.is_empty() => {
            let (seller, seller_tax_id) = (seller.trim().to_owned(), tax_id.trim().to_owned());
            Ok(BillingSettings { seller, seller_tax_id, taxes: rates, due_days })
        }
        _ => Err(errors),
    }
}

/// The row of a tax.
#[derive(Clone, Copy)]
struct TaxRow {
    /// The key of the row.
    id: u32,
    name: RwSignal<String>,
    rate: RwSignal<String>,
}

/// The signals of the form.
#[derive(Clone, Copy)]
struct Fields {
    seller: RwSignal<String>,
    seller_tax_id: RwSignal<String>,
    due_days: RwSignal<String>,
    taxes: RwSignal<Vec<TaxRow>>,
    next: StoredValue<u32>,
}

impl Fields {
    fn new(settings: &BillingSettings) -> Self {
        let fields = Self {
            seller: RwSignal::new(String::new()),
            seller_tax_id: RwSignal::new(String::new()),
            due_days: RwSignal::new(String::new()),
            taxes: RwSignal::new(Vec::new()),
            next: StoredValue::new(0),
        };
        fields.set_settings(settings);
        fields
    }

    fn set_settings(self, settings: &BillingSettings) {
        self.seller.set(settings.seller.clone());
        self.seller_tax_id.set(settings.seller_tax_id.clone());
        self.due_days.set(settings.due_days.to_string());
        let rows = settings.taxes.iter().map(|tax| self.row(tax.name.clone(), typed_rate(tax.basis_points)));
        self.taxes.set(rows.collect());
    }

    fn row(self, name: String, rate: String) -> TaxRow {
        let id = self.next.get_value();
        self.next.set_value(id.saturating_add(1));
        TaxRow { id, name: RwSignal::new(name), rate: RwSignal::new(rate) }
    }

    fn settings(self) -> Result<BillingSettings, Vec<Wrong>> {
        let taxes: Vec<TaxInput> = self.taxes.with_untracked(|rows| {
            rows.iter().map(|row| (row.name.get_untracked(), row.rate.get_untracked())).collect()
        });
        let (seller, tax_id) = (self.seller.get_untracked(), self.seller_tax_id.get_untracked());
        parse((seller.as_str(), tax_id.as_str()), &self.due_days.get_untracked(), &taxes)
    }
}

/// The form of the settings.
#[component]
pub fn SettingsForm(
    /// The present settings.
    settings: BillingSettings,
) -> impl IntoView {
    let ready = ready();
    let call = Call::idle();
    let status = RwSignal::new("");
    let fields = Fields::new(&settings);
    let submit = move |()| {
        status.set("");
        match fields.settings() {
            Err(errors) => call.problem.set(Some(Problem::invalid(errors))),
            Ok(settings) => {
                call.run(api::invoices::set_settings(&settings), move |fresh: BillingSettings| {
                    fields.set_settings(&fresh);
                    status.set("Saved for new invoices.");
                });
            }
        }
    };
    view! {
        <CardForm
            title="Invoice settings"
            lead="The settings apply to new invoices. Issued invoices do not change."
            call=call
            beside_fields=FIELDS
            verb="Save settings"
            quiet=true
            status=status
            submit=Callback::new(submit)
        >
            <TextArea
                label="Seller"
                id="seller"
                rows=4
                max_length=500
                value=fields.seller
                hint="Name, address and legally required numbers, one per line."
                error=call.field("/seller")
            />
            <TextField
                label="Tax ID of the seller"
                id="seller-tax-id"
                max_length=50
                value=fields.seller_tax_id
                hint="Below the seller on each invoice. Empty for none."
                error=call.field("/seller_tax_id")
            />
            <Taxes fields=fields call=call ready=ready/>
            <NumberField
                label="Payment term"
                id="due-days"
                unit="days"
                inputmode="numeric"
                value=fields.due_days
                hint="For organizations with a credit limit, from the date of the invoice."
                error=call.field("/due_days")
            />
        </CardForm>
    }
}

/// The taxes, one row each.
#[component]
fn Taxes(fields: Fields, call: Call, ready: ReadSignal<bool>) -> impl IntoView {
    let row = move |row: TaxRow| {
        let id = row.id;
        let error_id = format!("tax-{id}-error");
        let (name_described, rate_described) = (error_id.clone(), error_id.clone());
        let error = Signal::derive(move || {
            let index = fields.taxes.with(|rows| rows.iter().position(|known| known.id == id))?;
            let pointer = format!("/taxes/{index}");
            call.problem.with(|problem| problem.as_ref()?.field(&pointer).map(str::to_owned))
        });
        let (name, rate) = (row.name.get_untracked(), row.rate.get_untracked());
        let remove = move |_: leptos::ev::MouseEvent| {
            // Errors refer to the index of a row, which changes here.
            call.problem.set(None);
            fields.taxes.update(|rows| rows.retain(|known| known.id != id));
        };
        view! {
            <div class="stack">
                <div class="pairs__row">
                    <input
                        class="input"
                        aria-label="Tax name"
                        autocomplete="off"
                        value=name
                        aria-describedby=name_described
                        aria-invalid=move || error.get().map(|_| "true")
                        prop:value=move || row.name.get()
                        on:input=move |ev| row.name.set(event_target_value(&ev))
                    />
                    <input
                        class="input"
                        aria-label="Tax rate in percent"
                        inputmode="decimal"
                        autocomplete="off"
                        value=rate
                        aria-describedby=rate_described
                        aria-invalid=move || error.get().map(|_| "true")
                        prop:value=move || row.rate.get()
                        on:input=move |ev| row.rate.set(event_target_value(&ev))
                    />
                    <button class="btn btn--quiet" type="button" disabled=move || !ready.get() on:click=remove>
                        "Remove"
                    </button>
                </div>
                <FieldError id=error_id error=error/>
            </div>
        }
    };
    let add = move |_: leptos::ev::MouseEvent| {
        let row = fields.row(String::new(), String::new());
        fields.taxes.update(|rows| rows.push(row));
    };
    view! {
        <div class="field">
            <span class="field__label">"Taxes"</span>
            <p class="field__hint">"Name and rate in percent of the net amount, rounded down. Without taxes, the net amount is the total."</p>
            <div class="pairs">
                <For each=move || fields.taxes.get() key=|row: &TaxRow| row.id children=row/>
            </div>
            <FieldError id="taxes-error" error=call.field("/taxes")/>
            <p>
                <button class="btn btn--small" type="button" disabled=move || !ready.get() on:click=add>
                    "Add tax"
                </button>
            </p>
        </div>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tax(name: &str, rate: &str) -> TaxInput {
        (name.to_owned(), rate.to_owned())
    }

    #[test]
    fn a_form_becomes_settings() {
        let settings =
            parse((" Harbour\nKade 4 ", " NL1 "), "14", &[tax(" VAT ", "19"), tax("Levy", "0.5 %")]).unwrap();
        assert_eq!((settings.seller.as_str(), settings.due_days), ("Harbour\nKade 4", 14));
        assert_eq!(settings.seller_tax_id, "NL1");
        let taxes: Vec<(&str, i64)> =
            settings.taxes.iter().map(|tax| (tax.name.as_str(), tax.basis_points)).collect();
        assert_eq!(taxes, [("VAT", 1_900), ("Levy", 50)]);
    }

    #[test]
    fn each_invalid_field_has_an_error() {
        let errors = parse(("", ""), "two weeks", &[tax("VAT", "19"), tax("Levy", "much")]).unwrap_err();
        let at: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
        assert_eq!(at, ["/taxes/1", "/due_days"]);
    }
}
