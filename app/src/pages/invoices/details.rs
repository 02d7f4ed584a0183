//! Form of the billing details: name, address and tax number of the customer on new invoices.

use berth_types::ids::OrgId;
use berth_types::invoices::BillingDetails;
use leptos::prelude::*;

use super::super::card_form::CardForm;
use super::super::parts::Call;
use crate::api;
use crate::session::use_session;
use crate::ui::{TextArea, TextField};

const FIELDS: &[&str] = &["/name", "/address", "/tax_id"];

/// The billing details: a form for owners and billing members, and a text for all others.
#[component]
pub fn BillingDetailsCard(
    /// The organization of the invoices.
    org: OrgId,
    /// The present details.
    details: BillingDetails,
) -> impl IntoView {
    if use_session().pays_for(org) {
        view! { <DetailsForm org=org details=details/> }.into_any()
    } else {
        read_only(details)
    }
}

/// Returns the details without a form.
fn read_only(details: BillingDetails) -> AnyView {
    let or_none = |text: String, none: &'static str| if text.is_empty() { none.to_owned() } else { text };
    view! {
        <article class="card" aria-labelledby="details-title">
            <h2 class="card__title" id="details-title">"Billing details"</h2>
            <dl class="kv">
                <dt>"Name"</dt>
                <dd>{or_none(details.name, "The name of the organization")}</dd>
                <dt>"Address"</dt>
                <dd class="invoice__lines">{or_none(details.address, "None")}</dd>
                <dt>"Tax ID"</dt>
                <dd>{or_none(details.tax_id, "None")}</dd>
            </dl>
        </article>
    }
    .into_any()
}

#[component]
fn DetailsForm(org: OrgId, details: BillingDetails) -> impl IntoView {
    let call = Call::idle();
    let status = RwSignal::new("");
    let name = RwSignal::new(details.name);
    let address = RwSignal::new(details.address);
    let tax_id = RwSignal::new(details.tax_id);
    let submit = move |()| {
        status.set("");
        let input = BillingDetails {
            name: name.get_untracked(),
            address: address.get_untracked(),
            tax_id: tax_id.get_untracked(),
        };
        call.run(api::invoices::set_details(org, &input), move |fresh: BillingDetails| {
            name.set(fresh.name);
            address.set(fresh.address);
            tax_id.set(fresh.tax_id);
            status.set("Saved for new invoices.");
        });
    };
    view! {
        <CardForm
            title="Billing details"
            lead="The customer on new invoices. Issued invoices do not change."
            call=call
            beside_fields=FIELDS
            verb="Save details"
            quiet=true
            status=status
            submit=Callback::new(submit)
        >
            <TextField
                label="Name"
                id="details-name"
                max_length=100
                value=name
                hint="The legal name. Empty for the name of the organization."
                error=call.field("/name")
            />
            <TextArea
                label="Address"
                id="details-address"
                rows=4
                max_length=500
                value=address
                hint="At most 500 characters, with line breaks."
                error=call.field("/address")
            />
            <TextField
                label="Tax ID"
                id="details-tax-id"
                max_length=50
                value=tax_id
                hint="Such as a VAT number. Empty for none."
                error=call.field("/tax_id")
            />
        </CardForm>
    }
}
