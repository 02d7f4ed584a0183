//! Form of a reservation with its quote. Only the shown quote can be confirmed.

use berth_types::Page;
use berth_types::ids::OrgId;
use berth_types::jobs::Topology;
use berth_types::money::money_text;
use berth_types::offerings::Offering;
use berth_types::problems::Problem;
use berth_types::reservations::{Every, NewReservation, Reservation};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::draft::{every_name, parse_every};
use super::form::Form;
use super::quote::{QuotePanel, QuoteState};
use crate::address::use_org_links;
use crate::api;
use crate::pages::curl::CopyAsCurl;
use crate::pages::launch::draft::{TOPOLOGIES, parse_topology};
use crate::pages::parts::{Call, FieldError, now_ms, redirect};
use crate::pages::text::topology_text;
use crate::ui::*;

/// The form with its quote.
#[component]
pub fn Booking(
    /// The organization of the reservation.
    org: OrgId,
    /// The offerings.
    offerings: Vec<Offering>,
    /// The form.
    form: Form,
    /// False before hydration.
    ready: ReadSignal<bool>,
) -> impl IntoView {
    let quotes = QuoteState::new(org, form.parsed);
    let call = Call::idle();
    let (next, links) = (redirect(), use_org_links());
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let Some(quote) = quotes.usable_quote() else { return };
        let name = form.name.get_untracked().trim().to_owned();
        let body = NewReservation { quote: quote.id, name };
        let list = links.path("/reservations");
        call.run(api::reservations::reserve(org, &body), move |created: Page<Reservation>| {
            if let Some(first) = created.items.first() {
                next.set(Some(format!("{list}/{}", first.id)));
            }
        });
    };
    // A conflict means that capacity or price changed: a new quote shows the present state.
    Effect::new(move || {
        let outdated = |problem: &Problem| problem.status == 409 && !problem.code.starts_with("idempotency.");
        if call.problem.with(|problem| problem.as_ref().is_some_and(outdated)) {
            quotes.reload();
        }
    });
    // An error of the previous form does not apply to the changed one.
    Effect::new(move || {
        form.parsed.track();
        call.problem.set(None);
    });
    let errors = quotes.call;
    view! {
        <section class="section" id="reserve" aria-labelledby="reserve-title">
            <div class="section__head"><h2 id="reserve-title">"New reservation"</h2></div>
            <form class="split" method="post" novalidate=true on:submit=submit>
                <div class="form">
                    <OfferingChoice offerings=offerings form=form errors=errors/>
                    <div class="field-row field-row--times">
                        <Field
                            label="Start"
                            name="begin"
                            kind="datetime-local"
                            value=form.choice.begin
                            error=errors.field("/starts_at")
                        />
                        <Field
                            label="End"
                            name="end"
                            kind="datetime-local"
                            value=form.choice.end
                            error=errors.field("/ends_at")
                        />
                    </div>
                    <p class="field__hint">
                        "Time zone: " {move || form.choice.zone.get().title(now_ms())} ". "
                        {move || form.choice.remark()}
                    </p>
                    <div class="field-row">
                        <Field
                            label="Devices"
                            name="devices"
                            kind="number"
                            value=form.devices
                            error=errors.field("/gpus_per_node")
                        />
                        <Field
                            label="Nodes"
                            name="nodes"
                            kind="number"
                            value=form.nodes
                            hint=Some("Devices are counted per node.".to_owned())
                            error=errors.field("/nodes")
                        />
                        <TopologyField form=form error=errors.field("/topology")/>
                    </div>
                    <RepeatFields form=form errors=errors/>
                    <CopyAsCurl line=form.curl(org) label="Quote with curl"/>
                </div>
                <QuotePanel form=form quotes=quotes call=call ready=ready/>
            </form>
        </section>
    }
}

/// Lists the board models in the order of the portal.
fn models(offerings: &[Offering]) -> Vec<String> {
    let mut models: Vec<String> = Vec::new();
    for offering in offerings {
        if !models.contains(&offering.gpu_model) {
            models.push(offering.gpu_model.clone());
        }
    }
    models
}

/// Returns an option: `H100-80GB whole board, $2.99/h`, `H100-80GB 1g.10gb, no price`.
fn offering_text(offering: &Offering) -> String {
    // The closed field shows no group, so the option has the model.
    let size = offering.mig_profile.as_deref().unwrap_or("whole board");
    let size = format!("{} {size}", offering.gpu_model);
    if offering.price.version > 0 {
        format!("{size}, {}/h", money_text(offering.price.per_hour_micros, &offering.price.currency))
    } else {
        format!("{size}, no price")
    }
}

#[component]
fn OfferingChoice(offerings: Vec<Offering>, form: Form, errors: Call) -> impl IntoView {
    let error = errors.field("/offering");
    let chosen = form.offering.get_untracked();
    let option = |offering: &Offering| {
        let text = offering_text(offering);
        let selected = offering.slug == chosen;
        let disabled = offering.price.version <= 0;
        let slug = offering.slug.clone();
        // After a choice by hand the browser ignores the attribute.
        let is_chosen = {
            let slug = slug.clone();
            move || form.offering.with(|chosen| *chosen == slug)
        };
        view! {
            <option value=slug selected=selected prop:selected=is_chosen disabled=disabled>
                {text}
            </option>
        }
        .into_any()
    };
    let groups: Vec<AnyView> = models(&offerings)
        .into_iter()
        .map(|model| {
            let variants = offerings.iter().filter(|offering| offering.gpu_model == model);
            let simulated = variants.clone().any(|offering| offering.simulated);
            let options: Vec<AnyView> = variants.map(option).collect();
            let label = if simulated { format!("{model}, simulated") } else { model.clone() };
            view! { <optgroup label=label>{options}</optgroup> }.into_any()
        })
        .collect();
    view! {
        <SelectField
            label="Offering"
            id="offering"
            error=error
            choose=Callback::new(move |slug: String| form.offering.set(slug))
        >
            {groups}
        </SelectField>
    }
}

#[component]
fn TopologyField(form: Form, error: Signal<Option<String>>) -> impl IntoView {
    let option = |topology: Topology| {
        view! { <option value=topology.name() selected={topology.is_any()}>{topology_text(topology)}</option> }
    };
    view! {
        <SelectField
            label="Topology"
            id="closeness"
            error=error
            choose=Callback::new(move |name: String| form.topology.set(parse_topology(&name)))
        >
            {TOPOLOGIES.into_iter().map(option).collect_view()}
        </SelectField>
    }
}

/// The interval of a series and its number of reservations.
#[component]
fn RepeatFields(form: Form, errors: Call) -> impl IntoView {
    let occurrences_error = errors.field("/repeat/count");
    let once = Memo::new(move |_| form.every.get().is_none());
    let option = |every: Option<Every>| {
        let name = every_name(every);
        view! { <option value=name selected={every.is_none()}>{name}</option> }
    };
    let intervals = [None, Some(Every::Day), Some(Every::Week)];
    view! {
        <div class="field-row">
            <SelectField
                label="Repeat"
                id="every"
                error=errors.field("/repeat/every")
                choose=Callback::new(move |name: String| form.every.set(parse_every(&name)))
            >
                {intervals.into_iter().map(option).collect_view()}
            </SelectField>
            <div class="field">
                <label class="field__label" for="times">"Occurrences"</label>
                <input
                    id="times"
                    name="times"
                    type="number"
                    autocomplete="off"
                    value="2"
                    disabled=move || once.get()
                    aria-describedby="times-error"
                    aria-invalid=move || occurrences_error.get().map(|_| "true")
                    prop:value=move || form.occurrences.get()
                    on:input=move |ev| form.occurrences.set(event_target_value(&ev))
                />
                <FieldError id="times-error" error=occurrences_error/>
            </div>
        </div>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offering(slug: &str, profile: Option<&str>, version: i64) -> Offering {
        serde_json::from_value(serde_json::json!({
            "id": "off_00000000000000000000000001", "slug": slug, "gpu_model": slug.split('.').next(),
            "mig_profile": profile, "memory_mib": 1, "cells": 1, "board_cells": 8, "simulated": true,
            "available": 1, "capacity": 1,
            "price": {"nano_per_second": 1, "per_hour_micros": 2_990_000, "currency": "USD", "version": version},
        }))
        .unwrap()
    }

    #[test]
    fn an_option_has_its_price() {
        assert_eq!(offering_text(&offering("h100-80gb", None, 1)), "h100-80gb whole board, $2.99/h");
        let slice = offering("h100-80gb.1g.10gb", Some("1g.10gb"), 0);
        assert_eq!(offering_text(&slice), "h100-80gb 1g.10gb, no price");
        let all = [offering("b", None, 1), offering("a", None, 1), offering("b.1g", Some("1g"), 1)];
        assert_eq!(models(&all), ["b", "a"]);
    }
}
