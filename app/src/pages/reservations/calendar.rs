//! Calendar of a day or a week with its switches and updates. An answer appears only in its own frame.

use std::sync::Arc;

use berth_types::ids::OrgId;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::Board;
use super::calendar_state::CalendarState;
use super::choice::Choice;
use super::clock::{Frame, View};
use super::grid::Grid;
use super::table::CalendarTable;
use super::zone::{Zone, ZoneSwitch};
use crate::api;
use crate::pages::parts::every_visible;
use crate::ui::empty;

/// Milliseconds between two requests.
const REFRESH_MS: u64 = 15_000;

/// The calendar with its switches.
#[component]
pub fn Schedule(
    /// The organization.
    org: OrgId,
    /// The rows before the first answer.
    boards: Vec<Board>,
    /// The time choice.
    choice: Choice,
    /// The Unix time in milliseconds; 0 before hydration.
    now: RwSignal<i64>,
    /// False before hydration.
    ready: ReadSignal<bool>,
) -> impl IntoView {
    let view = RwSignal::new(View::Day);
    let day = RwSignal::new(None::<i64>);
    let frame = Memo::new(move |_| {
        let (zone, view) = (choice.zone.get(), view.get());
        day.get().map(|day| Arc::new(zone.frame(view, day)))
    });
    let state = CalendarState {
        choice,
        now,
        frame,
        boards: RwSignal::new(boards),
        view,
        day,
        answer: RwSignal::new(None),
        failures: RwSignal::new(0),
    };
    Effect::new(move || {
        if now.get() > 0 && day.get_untracked().is_none() {
            day.set(Some(state.today()));
        }
    });
    // The frame moves to a chosen time outside of it.
    Effect::new(move || {
        let Some(window) = choice.window() else { return };
        let is_visible = |frame: &Arc<Frame>| frame.touched(window.starts_at, window.ends_at).is_some();
        if frame.get_untracked().is_some_and(|frame| !is_visible(&frame)) {
            day.set(Some(choice.zone.get_untracked().wall(window.starts_at).day()));
        }
    });
    let last_request = StoredValue::new(0_u64);
    let fetch = move || {
        let Some(frame) = frame.get_untracked() else { return };
        let number = last_request.get_value().wrapping_add(1);
        last_request.set_value(number);
        spawn_local(async move {
            let answer = api::reservations::calendar(org, frame.from(), frame.until()).await;
            if last_request.try_get_value() != Some(number) {
                return;
            }
            match answer {
                Ok(fresh) => {
                    state.failures.set(0);
                    state.set_answer(fresh);
                }
                Err(_) => state.failures.update(|failures| *failures = failures.saturating_add(1)),
            }
        });
    };
    Effect::new(move || {
        frame.track();
        fetch();
    });
    every_visible(REFRESH_MS, fetch);
    let none = Memo::new(move |_| state.boards.with(Vec::is_empty));
    view! {
        <section class="section" aria-label="Calendar">
            <Switches state=state ready=ready/>
            {move || {
                if none.get() {
                    empty("No nodes yet. Boards appear here after the operator adds a node.")
                } else {
                    view! { <Grid state=state/> }.into_any()
                }
            }}
            <div class="row">
                <Legend/>
                <span class="row__end">{move || refresh_warning(state)}</span>
            </div>
            <CalendarTable state=state/>
        </section>
    }
}

/// Returns the warning after failed requests.
fn refresh_warning(state: CalendarState) -> AnyView {
    let failures = state.failures.get();
    if failures == 0 {
        return ().into_any();
    }
    let text = if state.is_loading() {
        "calendar unavailable, retrying".to_owned()
    } else {
        let seconds = u64::from(failures).saturating_mul(REFRESH_MS) / 1_000;
        format!("calendar interrupted, retrying; data {seconds} s old")
    };
    view! { <span class="live live--lost" role="status">{text}</span> }.into_any()
}

/// The switches for frame, view and zone, and the title.
#[component]
fn Switches(state: CalendarState, ready: ReadSignal<bool>) -> impl IntoView {
    let CalendarState { choice, view, day, .. } = state;
    let go = move |steps: i64| {
        let days = view.get_untracked().days().saturating_mul(steps);
        day.update(|day| *day = day.map(|day| day.saturating_add(days)));
    };
    let step = move |text: &'static str, steps: i64| {
        view! {
            <button
                class="btn btn--small"
                type="button"
                disabled=move || !ready.get()
                on:click=move |_| {
                    if steps == 0 { day.set(Some(state.today())) } else { go(steps) }
                }
            >
                {text}
            </button>
        }
    };
    let view_option = move |value: View, text: &'static str| {
        view! {
            <label>
                <input
                    type="radio"
                    name="view"
                    checked={value == View::Day}
                    disabled=move || !ready.get()
                    prop:checked=move || { view.get() == value }
                    on:change=move |_| view.set(value)
                />
                {text}
            </label>
        }
    };
    // Without a date before hydration, the line keeps its height.
    let title = move || state.frame.get().map_or_else(|| "\u{a0}".to_owned(), |frame| frame.title());
    let clock_change = move || state.frame.get().and_then(|frame| frame.clock_change());
    view! {
        <div class="schedule__bar">
            <div class="btn-row">{step("Previous", -1)} {step("Today", 0)} {step("Next", 1)}</div>
            <div class="segmented" role="radiogroup" aria-label="Calendar range">
                {view_option(View::Day, "Day")} {view_option(View::Week, "Week")}
            </div>
            <ZoneSwitch zone=choice.zone choose=Callback::new(move |zone: Zone| choice.set_zone(zone)) ready=ready/>
        </div>
        <div class="schedule__title" aria-live="polite">
            <h2>{title}</h2>
            <span class="warn small">{clock_change}</span>
        </div>
    }
}

/// The legend of the tiles.
#[component]
fn Legend() -> impl IntoView {
    let entry = |class: &'static str, hue: Option<&'static str>, text: &'static str| {
        let pattern = hue.map(|_| "plain");
        view! {
            <li>
                <span class="berth-bar berth-bar--inline berth-bar--time" aria-hidden="true" data-cells="1">
                    <span class=class data-start="0" data-size="1" data-hue=hue data-pattern=pattern></span>
                </span>
                " "
                {text}
            </li>
        }
    };
    view! {
        <ul class="legend">
            {entry("tile tile--own", Some("1"), "your active reservation")}
            {entry("tile tile--own tile--reserved", Some("1"), "your upcoming reservation")}
            {entry("tile tile--own tile--job", Some("1"), "your jobs")}
            {entry("tile tile--foreign", None, "taken")}
            {entry("tile tile--maintenance", None, "maintenance")}
            {entry("cell", None, "free")}
        </ul>
    }
}
