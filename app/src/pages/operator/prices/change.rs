//! Dialog of a new price: on demand, reserved and preemptible, at once or from a later time, with a preview
//! over the last 30 days.

use berth_types::offerings::{Offering, PricePreview};
use berth_types::problems::Problem;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::super::super::limits::form::NumberField;
use super::super::super::parts::{Call, CallProblem, Modal, Submit};
use super::super::super::time_field::TimeField;
use super::PricesState;
use super::draft::{Draft, preview_text, status_text};
use crate::api;
use crate::ui::use_zone;

const FIELDS: &[&str] =
    &["/per_hour_micros", "/reserved_per_hour_micros", "/preemptible_per_hour_micros", "/effective_from"];

/// The signals of the form.
#[derive(Clone, Copy)]
struct Fields {
    on_demand: RwSignal<String>,
    reserved: RwSignal<String>,
    preemptible: RwSignal<String>,
    from: RwSignal<String>,
}

impl Fields {
    fn new() -> Self {
        let empty = || RwSignal::new(String::new());
        Self { on_demand: empty(), reserved: empty(), preemptible: empty(), from: empty() }
    }

    fn set_draft(self, draft: Draft) {
        self.on_demand.set(draft.on_demand);
        self.reserved.set(draft.reserved);
        self.preemptible.set(draft.preemptible);
        self.from.set(draft.from);
    }

    fn draft(self) -> Draft {
        Draft {
            on_demand: self.on_demand.get(),
            reserved: self.reserved.get(),
            preemptible: self.preemptible.get(),
            from: self.from.get(),
        }
    }
}

/// The form for the chosen offering.
#[component]
pub fn ChangeDialog(
    /// The signals of the page.
    state: PricesState,
    /// The currency of the portal.
    currency: String,
) -> impl IntoView {
    let call = Call::idle();
    let (fields, zone) = (Fields::new(), use_zone());
    let preview = RwSignal::new(None::<PricePreview>);
    let PricesState { chosen, changing: open, .. } = state;
    // The form starts with the current price.
    Effect::new(move || {
        if open.get() {
            call.problem.set(None);
            fields.set_draft(
                chosen.with_untracked(|offering| {
                    offering.as_ref().map(Draft::from_offering).unwrap_or_default()
                }),
            );
        }
    });
    // Changed input invalidates the preview.
    Effect::new(move || {
        let _tracked = fields.draft();
        preview.set(None);
    });
    let title = Signal::derive(move || {
        chosen.with(|offering| match offering {
            Some(offering) => format!("Price of {}", offering.slug),
            None => "Price".to_owned(),
        })
    });
    let parsed = move || {
        let slug = chosen.with_untracked(|offering| offering.as_ref().map(|offering| offering.slug.clone()));
        let draft = untrack(move || fields.draft());
        match draft.request(&slug.unwrap_or_default(), zone.get_untracked()) {
            Ok(price) => Some(price),
            Err(errors) => {
                call.problem.set(Some(Problem::invalid(errors)));
                None
            }
        }
    };
    let load_preview = move |_: leptos::ev::MouseEvent| {
        if let Some(price) = parsed() {
            call.run(api::money::preview_price(&price), move |found: PricePreview| preview.set(Some(found)));
        }
    };
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let Some(price) = parsed() else { return };
        let status = status_text(&price, zone.get_untracked());
        call.run(api::money::set_price(&price), move |fresh: Offering| {
            state.update_price(fresh, status);
            open.set(false);
        });
    };
    let per_hour = format!("{currency}/h");
    view! {
        <Modal id="change-price" title=title open=open>
            <form method="post" novalidate=true on:submit=submit>
                <div class="dialog__body">
                    <p>
                        "The new price applies to later submissions and reservations. Existing jobs and reservations keep their price."
                    </p>
                    <CallProblem call=call beside_fields=FIELDS/>
                    <NumberField
                        label="On demand"
                        id="price-on-demand"
                        unit=per_hour.clone()
                        value=fields.on_demand
                        hint="Per device and hour. 0: free of charge."
                        error=call.field("/per_hour_micros")
                    />
                    <NumberField
                        label="Reserved"
                        id="price-reserved"
                        unit=per_hour.clone()
                        value=fields.reserved
                        hint="Empty: as on demand."
                        error=call.field("/reserved_per_hour_micros")
                    />
                    <NumberField
                        label="Preemptible"
                        id="price-preemptible"
                        unit=per_hour
                        value=fields.preemptible
                        hint="For preemptible jobs. Empty: as on demand."
                        error=call.field("/preemptible_per_hour_micros")
                    />
                    <TimeField
                        label="Effective from"
                        id="price-from"
                        value=fields.from
                        hint="Empty: at once. Past charges do not change."
                        error=call.field("/effective_from")
                    />
                    <p class="preview" role="status">
                        {move || preview.with(|preview| preview.as_ref().map(preview_text))}
                    </p>
                </div>
                <div class="dialog__actions">
                    <button class="btn" type="button" on:click=move |_| open.set(false)>"Cancel"</button>
                    <button
                        class="btn"
                        type="button"
                        disabled=move || call.pending.get()
                        aria-busy=move || call.pending.get().then_some("true")
                        on:click=load_preview
                    >
                        "Preview"
                    </button>
                    <Submit call=call>"Set price"</Submit>
                </div>
            </form>
        </Modal>
    }
}
