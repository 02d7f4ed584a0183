//! Quote of the reservation form: price, capacity and terms. A quote can be confirmed only for its own form.

use berth_types::ids::OrgId;
use berth_types::money::{available_text, reserved_text};
use berth_types::problems::Problem;
use berth_types::reservations::{Conflict, NewQuote, Quote, Window};
use berth_types::time::duration_text;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::choice::Choice;
use super::form::{FIELDS, Form, ParsedForm};
use super::text::{conflict_text, remarks, shortage_text, terms_text, unavailable_text, windows_text};
use crate::address::org_link;
use crate::api;
use crate::pages::parts::{Call, CallProblem, interval, later, now_ms};
use crate::pages::text::price_text;
use crate::ui::*;

/// Milliseconds without a change before a request.
const DEBOUNCE_MS: u64 = 300;

/// A quote with its request.
#[derive(Debug, Clone, PartialEq)]
struct ReceivedQuote {
    request: NewQuote,
    quote: Quote,
    /// The browser's time of the answer, because its clock may differ from the portal's.
    received_ms: i64,
}

/// The quote of a form. Each change of the form requests another quote.
#[derive(Clone, Copy)]
pub struct QuoteState {
    /// The errors of the form.
    pub call: Call,
    received: RwSignal<Option<ReceivedQuote>>,
    /// The quote of the present form.
    current: Memo<Option<Quote>>,
    /// The remaining validity in milliseconds.
    left_ms: RwSignal<i64>,
    /// A change repeats the request.
    reloads: RwSignal<u32>,
    /// True for a quote that can be confirmed.
    usable: Memo<bool>,
}

/// Returns the remaining validity of a quote in milliseconds.
fn remaining_ms(received: &ReceivedQuote, now_ms: i64) -> i64 {
    let valid_ms = received.quote.policy.quote_valid_s.saturating_mul(1_000);
    valid_ms.saturating_sub(now_ms.saturating_sub(received.received_ms).max(0)).max(0)
}

impl QuoteState {
    /// Returns the quote of a form and follows its changes.
    pub fn new(org: OrgId, parsed: Memo<ParsedForm>) -> Self {
        let received = RwSignal::new(None::<ReceivedQuote>);
        let left_ms = RwSignal::new(0_i64);
        let reloads = RwSignal::new(0_u32);
        let call = Call::idle();
        let current = Memo::new(move |_| {
            let request = parsed.get()?.ok()?;
            received.with(|received| {
                let matching = received.as_ref().filter(|received| received.request == request);
                matching.map(|received| received.quote.clone())
            })
        });
        let usable = Memo::new(move |_| {
            let valid = left_ms.get() > 0;
            current.with(|quote| quote.as_ref().is_some_and(|q| q.feasible && q.affordable)) && valid
        });
        let last_request = StoredValue::new(0_u64);
        Effect::new(move || {
            reloads.track();
            let parsed = parsed.get();
            // Answers to older forms are ignored.
            let number = last_request.get_value().wrapping_add(1);
            last_request.set_value(number);
            let request = match parsed {
                Some(Ok(request)) => request,
                Some(Err(errors)) => {
                    received.set(None);
                    call.problem.set(Some(Problem::invalid(errors)));
                    return;
                }
                None => {
                    received.set(None);
                    call.problem.set(None);
                    return;
                }
            };
            later(DEBOUNCE_MS, move || {
                spawn_local(async move {
                    let answer = api::reservations::quote(org, &request).await;
                    if last_request.try_get_value() != Some(number) {
                        return;
                    }
                    match answer {
                        Ok(quote) => {
                            let fresh = ReceivedQuote { request, quote, received_ms: now_ms() };
                            call.problem.set(None);
                            left_ms.set(remaining_ms(&fresh, fresh.received_ms));
                            received.set(Some(fresh));
                        }
                        Err(problem) => {
                            received.set(None);
                            call.problem.set(Some(problem));
                        }
                    }
                });
            });
        });
        Effect::new(move || {
            if received.with(Option::is_some) {
                interval(1_000, move || {
                    let left = received.with_untracked(|received| {
                        received.as_ref().map_or(0, |received| remaining_ms(received, now_ms()))
                    });
                    left_ms.set(left);
                });
            }
        });
        Self { call, received, current, left_ms, reloads, usable }
    }

    /// Repeats the request.
    pub fn reload(self) {
        self.reloads.update(|count| *count = count.wrapping_add(1));
    }

    /// Returns the quote for a confirmation, if it is valid for the present form.
    pub fn usable_quote(self) -> Option<Quote> {
        if self.usable.get_untracked() { self.current.get_untracked() } else { None }
    }

    fn last_quote(self) -> Option<Quote> {
        self.received.with(|received| received.as_ref().map(|received| received.quote.clone()))
    }
}

/// The panel with the quote, the name and the button.
#[component]
pub fn QuotePanel(
    /// The form.
    form: Form,
    /// The quote.
    quotes: QuoteState,
    /// The request of the confirmation.
    call: Call,
    /// False before hydration.
    ready: ReadSignal<bool>,
) -> impl IntoView {
    let choice = form.choice;
    let button = move || {
        if call.pending.get() {
            return "Reserving…".to_owned();
        }
        quotes.current.with(|quote| match quote {
            Some(quote) => format!("Reserve for {}", reserved_text(quote.total_micros, &quote.currency)),
            None => "Reserve".to_owned(),
        })
    };
    view! {
        <aside class="quote" aria-label="Quote">
            <h3 class="quote__title">"Price and availability"</h3>
            {move || figures(quotes.last_quote())}
            <Field
                label="Name"
                name="name"
                kind="text"
                value=form.name
                error=call.field("/name")
            />
            <button
                class="btn btn--primary btn--wide"
                type="submit"
                disabled=move || !ready.get() || call.pending.get() || !quotes.usable.get()
                aria-busy=move || call.pending.get().then_some("true")
            >
                {button}
            </button>
            <Validity quotes=quotes/>
            <CallProblem call=call beside_fields=&["/name"]/>
            <div class="quote__notes">
                {move || form_status(quotes, choice)}
                {move || quotes.last_quote().map(|quote| notes(&quote, choice))}
            </div>
        </aside>
    }
}

fn row(name: &'static str, class: &'static str, value: AnyView) -> AnyView {
    view! { <div class=class><dt>{name}</dt><dd>{value}</dd></div> }.into_any()
}

fn figures(quote: Option<Quote>) -> AnyView {
    // The rows without a quote keep the height.
    let blank = || "–".into_any();
    let (price, hourly, available, duration) = match &quote {
        None => (blank(), blank(), blank(), blank()),
        Some(quote) => {
            let hourly = price_text(quote.per_hour_micros, &quote.currency);
            (
                reserved_text(quote.total_micros, &quote.currency).into_any(),
                view! { {hourly}<span class="unit">"/h"</span> }.into_any(),
                available_text(quote.available_micros, &quote.currency).into_any(),
                windows_text(&quote.windows).into_any(),
            )
        }
    };
    let short = quote.is_some_and(|quote| !quote.affordable);
    let available_class = if short { "summary__row summary__row--short" } else { "summary__row" };
    view! {
        <dl class="summary__rows" aria-live="polite">
            {row("Price", "summary__row summary__row--lead", price)}
            {row("Price per hour", "summary__row", hourly)}
            {row("Duration", "summary__row", duration)}
            {row("Available balance", available_class, available)}
        </dl>
    }
    .into_any()
}

/// The remaining validity of the quote.
#[component]
fn Validity(quotes: QuoteState) -> impl IntoView {
    let expired = Memo::new(move |_| quotes.received.with(Option::is_some) && quotes.left_ms.get() <= 0);
    let text = move || {
        if expired.get() {
            "This price has expired. ".to_owned()
        } else if quotes.current.with(Option::is_some) {
            format!("Price valid for {}.", duration_text(quotes.left_ms.get() / 1_000 * 1_000))
        } else {
            String::new()
        }
    };
    view! {
        <p class="quote__hold">
            {text}
            {move || {
                expired.get()
                    .then(|| {
                        view! {
                            <button class="link-button" type="button" on:click=move |_| quotes.reload()>
                                "Refresh price"
                            </button>
                        }
                    })
            }}
        </p>
    }
}

/// Returns the missing input of the form, or its errors without a field.
fn form_status(quotes: QuoteState, choice: Choice) -> AnyView {
    if choice.empty() {
        return view! { <p>"Choose a start and an end in the calendar or in the form."</p> }.into_any();
    }
    let no_problem = quotes.call.problem.with(Option::is_none);
    if no_problem && quotes.received.with(Option::is_none) {
        return view! { <p>"Loading the price…"</p> }.into_any();
    }
    quotes.call.unshown(FIELDS).map(|problem| view! { <ProblemNotice problem=problem/> }).into_any()
}

/// Returns capacity, conflicts, missing credit and terms.
fn notes(quote: &Quote, choice: Choice) -> AnyView {
    let zone = choice.zone.get();
    let refusal = unavailable_text(quote).map(|text| view! { <p class="bad">{text}</p> });
    let alternatives: Vec<AnyView> =
        quote.alternatives.iter().map(|window| alternative(*window, zone, choice)).collect();
    let alternatives =
        (!alternatives.is_empty()).then(|| view! { <ul class="quote__ways">{alternatives}</ul> });
    let conflicts: Vec<AnyView> = quote.conflicts.iter().map(|c| conflict_line(c, zone)).collect();
    let conflicts = (!conflicts.is_empty()).then(|| {
        view! {
            <p>"Conflicts:"</p>
            <ul class="quote__list">{conflicts}</ul>
        }
    });
    let shortage = shortage_text(quote).map(|text| view! { <p class="field__error">{text}</p> });
    // The portal's time of the quote.
    let now = quote.expires_at.plus_seconds(quote.policy.quote_valid_s.saturating_neg());
    let remarks: Vec<AnyView> = quote
        .windows
        .first()
        .map(|first| terms_text(&quote.policy, first.starts_at, now, zone))
        .unwrap_or_default()
        .into_iter()
        .chain(remarks(quote, zone))
        .map(|text| view! { <li>{text}</li> }.into_any())
        .collect();
    view! {
        {refusal}
        {alternatives}
        {conflicts}
        {shortage}
        <ul class="quote__list">{remarks}</ul>
    }
    .into_any()
}

/// Returns the button that chooses a free window.
fn alternative(window: Window, zone: Zone, choice: Choice) -> AnyView {
    let text = zone.window(window.starts_at, window.ends_at);
    view! {
        <li>
            <button class="btn btn--small btn--wide" type="button" on:click=move |_| choice.set(window)>
                {text}
            </button>
        </li>
    }
    .into_any()
}

fn conflict_line(conflict: &Conflict, zone: Zone) -> AnyView {
    let text = conflict_text(conflict, zone);
    match conflict.reservation {
        Some(id) => view! { <li><a href=org_link(&format!("/reservations/{id}"))>{text}</a></li> }.into_any(),
        None => view! { <li>{text}</li> }.into_any(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_validity_counts_from_the_answer() {
        let quote = serde_json::json!({
            "id": "quote_00000000000000000000000001", "offering": "o", "nodes": 1, "gpus_per_node": 1,
            "topology": "any", "windows": [], "total_micros": 1, "nano_per_second": 1, "per_hour_micros": 1,
            "currency": "USD", "price_version": 1, "available_micros": 1, "affordable": true,
            "expires_at": "2026-11-22T09:15:00Z", "feasible": true, "conflicts": [], "alternatives": [],
            "policy": berth_types::reservations::ReservationPolicy::default(), "needs_approval": false,
        });
        let request = serde_json::json!({
            "offering": "o", "starts_at": "2026-11-22T10:00:00Z", "ends_at": "2026-11-22T11:00:00Z",
        });
        let received = ReceivedQuote {
            request: serde_json::from_value(request).unwrap(),
            quote: serde_json::from_value(quote).unwrap(),
            received_ms: 50_000,
        };
        assert_eq!(remaining_ms(&received, 50_000), 900_000);
        assert_eq!(remaining_ms(&received, 60_000), 890_000);
        // A clock change to the past does not extend the validity.
        assert_eq!(remaining_ms(&received, 1_000), 900_000);
        assert_eq!(remaining_ms(&received, 5_000_000), 0);
    }
}
