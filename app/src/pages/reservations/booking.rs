//! The form that books a time, with its quote beside it.
//!
//! Must not confirm anything but the quote that stands beside the form at that moment.

use berth_types::Page;
use berth_types::ids::OrgId;
use berth_types::jobs::Topology;
use berth_types::offerings::Offering;
use berth_types::problems::Problem;
use berth_types::reservations::{Every, NewReservation, Reservation};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::choice::Choice;
use super::draft::{Draft, every_name, parse_every};
use super::quote::{QuotePanel, Quoting, Wanted};
use crate::api;
use crate::pages::curl;
use crate::pages::launch::draft::{CLOSENESS, parse_closeness};
use crate::pages::parts::{Call, FieldError, leave, origin};
use crate::pages::words::{closeness_text, price_text};
use crate::ui::*;

/// What the fields of the form show themselves.
pub const FIELDS: &[&str] = &[
    "/offering",
    "/nodes",
    "/gpus_per_node",
    "/starts_at",
    "/ends_at",
    "/topology",
    "/repeat/every",
    "/repeat/count",
];

/// Every field of the form.
#[derive(Clone, Copy)]
pub struct Form {
    /// When.
    pub choice: Choice,
    /// What it is called.
    pub name: RwSignal<String>,
    /// What the form means now.
    pub wanted: Memo<Wanted>,
    offering: RwSignal<String>,
    nodes: RwSignal<String>,
    devices: RwSignal<String>,
    closeness: RwSignal<Topology>,
    every: RwSignal<Option<Every>>,
    times: RwSignal<String>,
}

impl Form {
    /// An empty form with an offering chosen: the first whole board that has a price, else the first
    /// offering that has one.
    pub fn new(offerings: &[Offering], choice: Choice) -> Self {
        let priced = || offerings.iter().filter(|offering| offering.price.version > 0);
        let board = priced().find(|offering| offering.mig_profile.is_none());
        let first = board.or_else(|| priced().next()).map(|offering| offering.slug.clone());
        let offering = RwSignal::new(first.unwrap_or_default());
        let (nodes, devices) = (RwSignal::new("1".to_owned()), RwSignal::new("1".to_owned()));
        let closeness = RwSignal::new(Topology::Any);
        let every = RwSignal::new(None::<Every>);
        let times = RwSignal::new("2".to_owned());
        let wanted = Memo::new(move |_| {
            if choice.empty() {
                return None;
            }
            let (begin, end) = choice.instants();
            let draft = Draft {
                offering: offering.get(),
                nodes: nodes.get(),
                devices: devices.get(),
                begin,
                end,
                closeness: closeness.get(),
                every: every.get(),
                times: times.get(),
            };
            Some(draft.request())
        });
        let name = RwSignal::new(String::new());
        Self { choice, name, wanted, offering, nodes, devices, closeness, every, times }
    }

    /// The request for a price as a curl line.
    pub fn curl(self, org: OrgId) -> Signal<String> {
        let origin = origin();
        Signal::derive(move || match self.wanted.get() {
            Some(Ok(ask)) => {
                let body = serde_json::to_string(&ask).unwrap_or_default();
                curl::post(&origin.get(), &format!("/orgs/{org}/quotes"), &body)
            }
            _ => "Complete the form to get the line.".to_owned(),
        })
    }
}

/// The form and its quote.
#[component]
pub fn Booking(
    /// The organization that would pay.
    org: OrgId,
    /// What can be ordered.
    offerings: Vec<Offering>,
    /// The form.
    form: Form,
    /// Hydrated.
    ready: ReadSignal<bool>,
) -> impl IntoView {
    let quoting = Quoting::of(org, form.wanted);
    let call = Call::idle();
    let next = leave();
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let Some(quote) = quoting.take() else { return };
        let name = form.name.get_untracked().trim().to_owned();
        let body = NewReservation { quote: quote.id, name };
        call.run(api::reservations::reserve(org, &body), move |made: Page<Reservation>| {
            if let Some(first) = made.items.first() {
                next.set(Some(format!("/reservations/{}", first.id)));
            }
        });
    };
    // Somebody was faster, or the price is of yesterday: a new quote says what can be had now.
    Effect::new(move || {
        let lost = |problem: &Problem| problem.status == 409 && !problem.code.starts_with("idempotency.");
        if call.problem.with(|problem| problem.as_ref().is_some_and(lost)) {
            quoting.again();
        }
    });
    // What was said of another time is not true of this one.
    Effect::new(move || {
        form.wanted.track();
        call.problem.set(None);
    });
    let wrong = quoting.call;
    view! {
        <section class="section" id="reserve" aria-labelledby="reserve-title">
            <div class="section__head"><h2 id="reserve-title">"Reserve"</h2></div>
            <form class="split" method="post" novalidate=true on:submit=submit>
                <div class="form">
                    <OfferingChoice offerings=offerings form=form wrong=wrong/>
                    <div class="field-row field-row--times">
                        <Field
                            label="Begin"
                            name="begin"
                            kind="datetime-local"
                            value=form.choice.begin
                            error=wrong.field("/starts_at")
                        />
                        <Field
                            label="End"
                            name="end"
                            kind="datetime-local"
                            value=form.choice.end
                            error=wrong.field("/ends_at")
                        />
                    </div>
                    <p class="field__hint">
                        "In the zone of the calendar: " {move || form.choice.zone.get().title()} "."
                    </p>
                    <div class="field-row">
                        <Field
                            label="Devices"
                            name="devices"
                            kind="number"
                            value=form.devices
                            error=wrong.field("/gpus_per_node")
                        />
                        <Field
                            label="Nodes"
                            name="nodes"
                            kind="number"
                            value=form.nodes
                            hint=Some("With as many devices on each.".to_owned())
                            error=wrong.field("/nodes")
                        />
                        <Closeness form=form error=wrong.field("/topology")/>
                    </div>
                    <Repeats form=form wrong=wrong/>
                    <details class="more">
                        <summary>"Copy as curl"</summary>
                        <CopyBlock text=form.curl(org) label="The same price with curl".to_owned()/>
                    </details>
                </div>
                <QuotePanel form=form quoting=quoting call=call ready=ready/>
            </form>
        </section>
    }
}

/// Models in the order in which the portal lists them.
fn models(offerings: &[Offering]) -> Vec<String> {
    let mut models: Vec<String> = Vec::new();
    for offering in offerings {
        if !models.contains(&offering.gpu_model) {
            models.push(offering.gpu_model.clone());
        }
    }
    models
}

/// `whole board, $2.99/h`, `1g.10gb, no price yet`.
fn offering_words(offering: &Offering) -> String {
    let what = offering.mig_profile.clone().unwrap_or_else(|| "whole board".to_owned());
    if offering.price.version > 0 {
        format!("{what}, {}/h", price_text(offering.price.per_hour_micros, &offering.price.currency))
    } else {
        format!("{what}, no price yet")
    }
}

#[component]
fn OfferingChoice(offerings: Vec<Offering>, form: Form, wrong: Call) -> impl IntoView {
    let error = wrong.field("/offering");
    let chosen = form.offering.get_untracked();
    let option = |offering: &Offering| {
        let text = offering_words(offering);
        let picked = offering.slug == chosen;
        let off = offering.price.version <= 0;
        let slug = offering.slug.clone();
        view! { <option value=slug selected=picked disabled=off>{text}</option> }.into_any()
    };
    let groups: Vec<AnyView> = models(&offerings)
        .into_iter()
        .map(|model| {
            let of_model = offerings.iter().filter(|offering| offering.gpu_model == model);
            let simulated = of_model.clone().any(|offering| offering.simulated);
            let options: Vec<AnyView> = of_model.map(option).collect();
            let label = if simulated { format!("{model}, simulated") } else { model.clone() };
            view! { <optgroup label=label>{options}</optgroup> }.into_any()
        })
        .collect();
    view! {
        <div class="field">
            <label class="field__label" for="offering">"Offering"</label>
            <select
                id="offering"
                name="offering"
                aria-describedby="offering-error"
                aria-invalid=move || error.get().map(|_| "true")
                on:change=move |ev| form.offering.set(event_target_value(&ev))
            >
                {groups}
            </select>
            <FieldError id="offering-error" error=error/>
        </div>
    }
}

#[component]
fn Closeness(form: Form, error: Signal<Option<String>>) -> impl IntoView {
    let option = |near: Topology| {
        view! { <option value=near.name() selected={near.is_any()}>{closeness_text(near)}</option> }
    };
    view! {
        <div class="field">
            <label class="field__label" for="closeness">"Closeness"</label>
            <select
                id="closeness"
                name="closeness"
                aria-describedby="closeness-error"
                aria-invalid=move || error.get().map(|_| "true")
                on:change=move |ev| form.closeness.set(parse_closeness(&event_target_value(&ev)))
            >
                {CLOSENESS.into_iter().map(option).collect_view()}
            </select>
            <FieldError id="closeness-error" error=error/>
        </div>
    }
}

/// How often it comes again, and how many times.
#[component]
fn Repeats(form: Form, wrong: Call) -> impl IntoView {
    let (every_error, times_error) = (wrong.field("/repeat/every"), wrong.field("/repeat/count"));
    let once = Memo::new(move |_| form.every.get().is_none());
    let option = |every: Option<Every>| {
        let name = every_name(every);
        view! { <option value=name selected={every.is_none()}>{name}</option> }
    };
    let ways = [None, Some(Every::Day), Some(Every::Week)];
    view! {
        <div class="field-row">
            <div class="field">
                <label class="field__label" for="every">"Repeats"</label>
                <select
                    id="every"
                    name="every"
                    aria-describedby="every-error"
                    aria-invalid=move || every_error.get().map(|_| "true")
                    on:change=move |ev| form.every.set(parse_every(&event_target_value(&ev)))
                >
                    {ways.into_iter().map(option).collect_view()}
                </select>
                <FieldError id="every-error" error=every_error/>
            </div>
            <div class="field">
                <label class="field__label" for="times">"Times in all"</label>
                <input
                    id="times"
                    name="times"
                    type="number"
                    autocomplete="off"
                    value="2"
                    disabled=move || once.get()
                    aria-describedby="times-error"
                    aria-invalid=move || times_error.get().map(|_| "true")
                    prop:value=move || form.times.get()
                    on:input=move |ev| form.times.set(event_target_value(&ev))
                />
                <FieldError id="times-error" error=times_error/>
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
    fn an_offering_says_its_price_or_that_it_has_none() {
        assert_eq!(offering_words(&offering("h100-80gb", None, 1)), "whole board, $2.99/h");
        assert_eq!(
            offering_words(&offering("h100-80gb.1g.10gb", Some("1g.10gb"), 0)),
            "1g.10gb, no price yet"
        );
        let all = [offering("b", None, 1), offering("a", None, 1), offering("b.1g", Some("1g"), 1)];
        assert_eq!(models(&all), ["b", "a"]);
    }
}
