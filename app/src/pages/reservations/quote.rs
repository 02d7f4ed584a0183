//! The price of what is on the form, beside it: what it costs, whether there is room, and what holds.
//!
//! Must not compute a price, and must not let a quote be used for anything but the form that it was
//! asked for.

use berth_types::ids::OrgId;
use berth_types::money::money_text;
use berth_types::problems::{FieldError, Problem};
use berth_types::reservations::{Conflict, NewQuote, Quote, Window};
use berth_types::time::duration_text;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::booking::{FIELDS, Form};
use super::choice::Choice;
use super::words::{conflict_text, no_room, remarks, shortage, terms, windows_text};
use super::zone::Zone;
use crate::api;
use crate::pages::parts::{Call, CallProblem, interval, later, now_ms};
use crate::pages::words::price_text;
use crate::ui::*;

/// Milliseconds without a change before the portal is asked.
const SETTLED_MS: u64 = 300;

/// The form as a request, or what keeps it from being one; nothing while no time is chosen.
pub type Wanted = Option<Result<NewQuote, Vec<FieldError>>>;

/// A quote, and what it was asked for.
#[derive(Debug, Clone, PartialEq)]
struct Told {
    ask: NewQuote,
    quote: Quote,
    /// By the browser's clock, which may differ from the portal's: so the time that is left counts from here.
    heard_ms: i64,
}

/// The quote of a form, asked for anew whenever the form changes.
#[derive(Clone, Copy)]
pub struct Quoting {
    /// What is wrong with the form, as the portal or the form itself says.
    pub call: Call,
    told: RwSignal<Option<Told>>,
    /// Of what the form means now.
    fresh: Memo<Option<Quote>>,
    /// Milliseconds for which it still holds.
    left_ms: RwSignal<i64>,
    /// Raised to ask again for the same.
    again: RwSignal<u32>,
    /// It can be confirmed now.
    usable: Memo<bool>,
}

/// How long a quote still holds.
fn left(told: &Told, now_ms: i64) -> i64 {
    let valid_ms = told.quote.policy.quote_valid_s.saturating_mul(1_000);
    valid_ms.saturating_sub(now_ms.saturating_sub(told.heard_ms).max(0)).max(0)
}

impl Quoting {
    /// Follows a form from now on.
    pub fn of(org: OrgId, wanted: Memo<Wanted>) -> Self {
        let told = RwSignal::new(None::<Told>);
        let left_ms = RwSignal::new(0_i64);
        let again = RwSignal::new(0_u32);
        let call = Call::idle();
        let fresh = Memo::new(move |_| {
            let ask = wanted.get()?.ok()?;
            told.with(|told| told.as_ref().filter(|told| told.ask == ask).map(|told| told.quote.clone()))
        });
        let usable = Memo::new(move |_| {
            let held = left_ms.get() > 0;
            fresh.with(|quote| quote.as_ref().is_some_and(|q| q.feasible && q.affordable)) && held
        });
        let asked = StoredValue::new(0_u64);
        Effect::new(move || {
            again.track();
            let wanted = wanted.get();
            // An answer to an older form would show the wrong price.
            let number = asked.get_value().wrapping_add(1);
            asked.set_value(number);
            let ask = match wanted {
                Some(Ok(ask)) => ask,
                Some(Err(errors)) => {
                    told.set(None);
                    call.problem.set(Some(Problem::invalid(errors)));
                    return;
                }
                None => {
                    told.set(None);
                    call.problem.set(None);
                    return;
                }
            };
            later(SETTLED_MS, move || {
                spawn_local(async move {
                    let answer = api::reservations::quote(org, &ask).await;
                    if asked.try_get_value() != Some(number) {
                        return;
                    }
                    match answer {
                        Ok(quote) => {
                            let fresh = Told { ask, quote, heard_ms: now_ms() };
                            call.problem.set(None);
                            left_ms.set(left(&fresh, fresh.heard_ms));
                            told.set(Some(fresh));
                        }
                        Err(problem) => {
                            told.set(None);
                            call.problem.set(Some(problem));
                        }
                    }
                });
            });
        });
        Effect::new(move || {
            if told.with(Option::is_some) {
                interval(1_000, move || {
                    let left =
                        told.with_untracked(|told| told.as_ref().map_or(0, |told| left(told, now_ms())));
                    left_ms.set(left);
                });
            }
        });
        Self { call, told, fresh, left_ms, again, usable }
    }

    /// Asks for the same again.
    pub fn again(self) {
        self.again.update(|times| *times = times.wrapping_add(1));
    }

    /// The quote to confirm, if the form still means it and it still holds.
    pub fn take(self) -> Option<Quote> {
        if self.usable.get_untracked() { self.fresh.get_untracked() } else { None }
    }

    fn shown(self) -> Option<Quote> {
        self.told.with(|told| told.as_ref().map(|told| told.quote.clone()))
    }
}

/// The panel beside the form, with name and button.
#[component]
pub fn QuotePanel(
    /// The form.
    form: Form,
    /// Its quote.
    quoting: Quoting,
    /// The confirmation.
    call: Call,
    /// Hydrated.
    ready: ReadSignal<bool>,
) -> impl IntoView {
    let choice = form.choice;
    let button = move || {
        if call.pending.get() {
            return "Reserving".to_owned();
        }
        quoting.fresh.with(|quote| match quote {
            Some(quote) => format!("Reserve for {}", money_text(quote.total_micros, &quote.currency)),
            None => "Reserve".to_owned(),
        })
    };
    view! {
        <aside class="quote" aria-label="What this reservation costs">
            <h3 class="quote__title">"This reservation"</h3>
            {move || figures(quoting.shown())}
            <Field
                label="Name"
                name="name"
                kind="text"
                value=form.name
                error=call.field("/name")
                autocomplete=Some("off")
            />
            <button
                class="btn btn--primary btn--wide"
                type="submit"
                disabled=move || !ready.get() || call.pending.get() || !quoting.usable.get()
                aria-busy=move || call.pending.get().then_some("true")
            >
                {button}
            </button>
            <Holds quoting=quoting/>
            <CallProblem call=call beside_fields=&["/name"]/>
            <div class="quote__notes">
                {move || faults(quoting, choice)}
                {move || quoting.shown().map(|quote| notes(&quote, choice))}
            </div>
        </aside>
    }
}

fn row(name: &'static str, class: &'static str, value: AnyView) -> AnyView {
    view! { <div class=class><dt>{name}</dt><dd>{value}</dd></div> }.into_any()
}

fn figures(quote: Option<Quote>) -> AnyView {
    // Without a quote the same rows, so that nothing moves when it comes.
    let blank = || "–".into_any();
    let (price, hourly, available, time) = match &quote {
        None => (blank(), blank(), blank(), blank()),
        Some(quote) => {
            let hourly = price_text(quote.per_hour_micros, &quote.currency);
            (
                money_text(quote.total_micros, &quote.currency).into_any(),
                view! { {hourly}<span class="unit">"/h"</span> }.into_any(),
                money_text(quote.available_micros, &quote.currency).into_any(),
                windows_text(&quote.windows).into_any(),
            )
        }
    };
    let short = quote.is_some_and(|quote| !quote.affordable);
    let available_class = if short { "summary__row summary__row--short" } else { "summary__row" };
    view! {
        <dl class="summary__rows" aria-live="polite">
            {row("Price", "summary__row summary__row--lead", price)}
            {row("All devices", "summary__row", hourly)}
            {row("Time", "summary__row", time)}
            {row("Available", available_class, available)}
        </dl>
    }
    .into_any()
}

/// How long the price still holds.
#[component]
fn Holds(quoting: Quoting) -> impl IntoView {
    let over = Memo::new(move |_| quoting.told.with(Option::is_some) && quoting.left_ms.get() <= 0);
    let text = move || {
        if over.get() {
            "This price has expired. ".to_owned()
        } else if quoting.fresh.with(Option::is_some) {
            format!("The price holds for another {}.", duration_text(quoting.left_ms.get() / 1_000 * 1_000))
        } else {
            String::new()
        }
    };
    view! {
        <p class="quote__hold">
            {text}
            {move || {
                over.get()
                    .then(|| {
                        view! {
                            <button class="link-button" type="button" on:click=move |_| quoting.again()>
                                "Ask for the price again"
                            </button>
                        }
                    })
            }}
        </p>
    }
}

/// What is wrong with the form and stands at no field, or what the form still lacks.
fn faults(quoting: Quoting, choice: Choice) -> AnyView {
    if choice.empty() {
        return view! { <p>"Choose a begin and an end, in the calendar or in the form."</p> }.into_any();
    }
    let idle = quoting.call.problem.with(Option::is_none);
    if idle && quoting.told.with(Option::is_none) {
        return view! { <p>"Asking for the price."</p> }.into_any();
    }
    quoting.call.unshown(FIELDS).map(|problem| view! { <ProblemNotice problem=problem/> }).into_any()
}

/// Room, money and terms in sentences.
fn notes(quote: &Quote, choice: Choice) -> AnyView {
    let zone = choice.zone.get();
    let refusal = no_room(quote).map(|text| view! { <p class="bad">{text}</p> });
    let ways: Vec<AnyView> = quote.alternatives.iter().map(|window| way(*window, zone, choice)).collect();
    let ways = (!ways.is_empty()).then(|| view! { <ul class="quote__ways">{ways}</ul> });
    let conflicts: Vec<AnyView> = quote.conflicts.iter().map(|c| in_the_way(c, zone)).collect();
    let conflicts = (!conflicts.is_empty()).then(|| {
        view! {
            <p>"In the way:"</p>
            <ul class="quote__list">{conflicts}</ul>
        }
    });
    let short = shortage(quote).map(|text| view! { <p class="field__error">{text}</p> });
    // The portal's own time when it answered.
    let now = quote.expires_at.plus_seconds(quote.policy.quote_valid_s.saturating_neg());
    let holds: Vec<AnyView> = quote
        .windows
        .first()
        .map(|first| terms(&quote.policy, first.starts_at, now, zone))
        .unwrap_or_default()
        .into_iter()
        .chain(remarks(quote, zone))
        .map(|text| view! { <li>{text}</li> }.into_any())
        .collect();
    view! {
        {refusal}
        {ways}
        {conflicts}
        {short}
        <ul class="quote__list">{holds}</ul>
    }
    .into_any()
}

/// A free time as a button that puts it into the form.
fn way(window: Window, zone: Zone, choice: Choice) -> AnyView {
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

fn in_the_way(conflict: &Conflict, zone: Zone) -> AnyView {
    let text = conflict_text(conflict, zone);
    match conflict.reservation {
        Some(id) => view! { <li><a href=format!("/reservations/{id}")>{text}</a></li> }.into_any(),
        None => view! { <li>{text}</li> }.into_any(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_holds_by_the_clock_that_heard_it() {
        let quote = serde_json::json!({
            "id": "quote_00000000000000000000000001", "offering": "o", "nodes": 1, "gpus_per_node": 1,
            "topology": "any", "windows": [], "total_micros": 1, "nano_per_second": 1, "per_hour_micros": 1,
            "currency": "USD", "price_version": 1, "available_micros": 1, "affordable": true,
            "expires_at": "2026-11-22T09:15:00Z", "feasible": true, "conflicts": [], "alternatives": [],
            "policy": berth_types::reservations::ReservationPolicy::default(), "needs_approval": false,
        });
        let ask = serde_json::json!({
            "offering": "o", "starts_at": "2026-11-22T10:00:00Z", "ends_at": "2026-11-22T11:00:00Z",
        });
        let told = Told {
            ask: serde_json::from_value(ask).unwrap(),
            quote: serde_json::from_value(quote).unwrap(),
            heard_ms: 50_000,
        };
        assert_eq!(left(&told, 50_000), 900_000);
        assert_eq!(left(&told, 60_000), 890_000);
        // A clock that was set back gives no more.
        assert_eq!(left(&told, 1_000), 900_000);
        assert_eq!(left(&told, 5_000_000), 0);
    }
}
