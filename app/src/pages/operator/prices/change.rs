//! Dialog of a new price: on demand, reserved and preemptible, at once or from a later time, with a preview
//! over the last 30 days.

use berth_types::change_requests::Outcome;
use berth_types::offerings::{Offering, PricePreview};
use berth_types::problems::Problem;
use leptos::prelude::*;

use super::super::super::call_button::CallButton;
use super::super::super::dialog_form::DialogForm;
use super::super::super::limits::form::NumberField;
use super::super::super::parts::{Call, CallProblem};
use super::super::super::time_field::TimeField;
use super::super::waiting::EffectTime;
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
    let reset = move |()| {
        let draft =
            chosen.with_untracked(|offering| offering.as_ref().map(Draft::from_offering).unwrap_or_default());
        fields.set_draft(draft);
    };
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
    let load_preview = move |()| {
        if let Some(price) = parsed() {
            call.run(api::money::preview_price(&price), move |found: PricePreview| preview.set(Some(found)));
        }
    };
    let submit = move |()| {
        let Some(price) = parsed() else { return };
        let status = status_text(&price, zone.get_untracked());
        call.run(api::money::set_price(&price), move |outcome: Outcome<Offering>| {
            state.show(outcome, status);
            open.set(false);
        });
    };
    let further = view! {
        <CallButton call=call class="btn" send=Callback::new(load_preview)>"Preview"</CallButton>
    };
    let per_hour = format!("{currency}/h");
    view! {
        <DialogForm
            id="change-price"
            title=title
            open=open
            call=call
            keep="Cancel"
            verb="Set price"
            reset=Callback::new(reset)
            further=further.into_any()
            submit=Callback::new(submit)
        >
            <p>
                "The new price applies to later submissions and reservations. Existing jobs and reservations keep their price."
            </p>
            <EffectTime waits=state.second_operator at_once="Without a time the new price is effective at once."/>
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
                hint="Empty: from the change on. Past charges do not change."
                error=call.field("/effective_from")
            />
            <p class="preview" role="status">
                {move || preview.with(|preview| preview.as_ref().map(preview_text))}
            </p>
        </DialogForm>
    }
}
