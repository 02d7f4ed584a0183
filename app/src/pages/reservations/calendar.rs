//! The calendar: which day or week is shown, what is known of it, and how it is kept fresh.
//!
//! Must not draw what was asked for another day: until the answer is here, nothing is known.

use std::sync::Arc;

use berth_types::ids::OrgId;
use berth_types::reservations::{Calendar, CalendarRow};
use berth_types::time::Timestamp;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::choice::Choice;
use super::clock::{Frame, View};
use super::columns::{Block, blocks};
use super::grid::Grid;
use super::twin::Twin;
use super::zone::{Zone, ZoneSwitch};
use super::{Board, boards_of_rows};
use crate::api;
use crate::pages::parts::every;
use crate::ui::empty;

/// Milliseconds between two looks.
const AGAIN_MS: u64 = 15_000;

/// An answer, and what it was asked for.
#[derive(Debug, Clone, PartialEq)]
struct Known {
    from: Timestamp,
    until: Timestamp,
    rows: Vec<CalendarRow>,
}

/// The signals that the parts of the calendar draw from.
#[derive(Clone, Copy)]
pub struct Shown {
    /// The time that is meant.
    pub choice: Choice,
    /// Milliseconds since the epoch; 0 until the page is alive.
    pub now: RwSignal<i64>,
    /// The columns; absent until the page is alive.
    pub frame: Memo<Option<Arc<Frame>>>,
    /// The rows.
    pub boards: RwSignal<Vec<Board>>,
    view: RwSignal<View>,
    /// A day of what is shown, counted from 1970-01-01.
    day: RwSignal<Option<i64>>,
    known: RwSignal<Option<Known>>,
    /// Looks that failed since the last one that did not.
    missed: RwSignal<u32>,
}

impl Shown {
    /// Now, by the browser's clock.
    pub fn present(self) -> Timestamp {
        Timestamp::from_micros(self.now.get().saturating_mul(1_000))
    }

    /// The tiles of a board; `None` until they are known.
    pub fn blocks(self, board: &Board, frame: &Frame) -> Option<Vec<Block>> {
        let now = self.present();
        self.known.with(|known| {
            let known = known.as_ref().filter(|k| k.from == frame.from() && k.until == frame.until())?;
            let row = known.rows.iter().find(|row| row.gpu_uuid == board.uuid);
            Some(row.map(|row| blocks(row, frame, now)).unwrap_or_default())
        })
    }

    /// What is shown is not known yet.
    pub fn waits(self) -> bool {
        let frame = self.frame.get();
        let wanted = frame.as_ref().map(|frame| (frame.from(), frame.until()));
        self.known.with(|known| known.as_ref().map(|known| (known.from, known.until)) != wanted)
            || wanted.is_none()
    }

    fn today(self) -> i64 {
        let zone = self.choice.zone.get_untracked();
        zone.wall(Timestamp::from_micros(self.now.get_untracked().saturating_mul(1_000))).day()
    }

    fn take(self, fresh: Calendar) {
        let boards = boards_of_rows(&fresh.rows);
        // What did not change is not drawn again: the focus stays where it is.
        self.boards.maybe_update(|known| {
            let moved = *known != boards;
            *known = boards;
            moved
        });
        let fresh = Some(Known { from: fresh.from, until: fresh.until, rows: fresh.rows });
        self.known.maybe_update(|known| {
            let moved = *known != fresh;
            *known = fresh;
            moved
        });
    }
}

/// The calendar with its switches.
#[component]
pub fn Schedule(
    /// The organization that looks.
    org: OrgId,
    /// The rows, known before the calendar is.
    boards: Vec<Board>,
    /// The time that is meant.
    choice: Choice,
    /// Milliseconds since the epoch; 0 until the page is alive.
    now: RwSignal<i64>,
    /// Hydrated.
    ready: ReadSignal<bool>,
) -> impl IntoView {
    let view = RwSignal::new(View::Day);
    let day = RwSignal::new(None::<i64>);
    let frame = Memo::new(move |_| {
        let (zone, view) = (choice.zone.get(), view.get());
        day.get().map(|day| Arc::new(zone.frame(view, day)))
    });
    let shown = Shown {
        choice,
        now,
        frame,
        boards: RwSignal::new(boards),
        view,
        day,
        known: RwSignal::new(None),
        missed: RwSignal::new(0),
    };
    Effect::new(move || {
        if now.get() > 0 && day.get_untracked().is_none() {
            day.set(Some(shown.today()));
        }
    });
    // A time that is typed, or taken from a quote, is brought into sight; one that reaches into what is
    // shown leaves it alone.
    Effect::new(move || {
        let Some(window) = choice.window() else { return };
        let in_sight = |frame: &Arc<Frame>| frame.touched(window.starts_at, window.ends_at).is_some();
        if frame.get_untracked().is_some_and(|frame| !in_sight(&frame)) {
            day.set(Some(choice.zone.get_untracked().wall(window.starts_at).day()));
        }
    });
    let asked = StoredValue::new(0_u64);
    let fetch = move || {
        let Some(frame) = frame.get_untracked() else { return };
        let number = asked.get_value().wrapping_add(1);
        asked.set_value(number);
        spawn_local(async move {
            let answer = api::reservations::calendar(org, frame.from(), frame.until()).await;
            if asked.try_get_value() != Some(number) {
                return;
            }
            match answer {
                Ok(fresh) => {
                    shown.missed.set(0);
                    shown.take(fresh);
                }
                Err(_) => shown.missed.update(|missed| *missed = missed.saturating_add(1)),
            }
        });
    };
    Effect::new(move || {
        frame.track();
        fetch();
    });
    every(AGAIN_MS, fetch);
    let none = Memo::new(move |_| shown.boards.with(Vec::is_empty));
    view! {
        <section class="section" aria-label="Calendar">
            <Switches shown=shown ready=ready/>
            {move || {
                if none.get() {
                    empty("No node has joined this portal yet. Its operator adds one under Nodes; its boards have their rows here then.")
                } else {
                    view! { <Grid shown=shown/> }.into_any()
                }
            }}
            <div class="row">
                <Legend/>
                <span class="row__end">{move || age(shown)}</span>
            </div>
            <Twin shown=shown/>
        </section>
    }
}

fn age(shown: Shown) -> AnyView {
    let missed = shown.missed.get();
    if missed == 0 {
        return ().into_any();
    }
    let text = if shown.waits() {
        "the calendar did not come, retrying".to_owned()
    } else {
        let seconds = u64::from(missed).saturating_mul(AGAIN_MS) / 1_000;
        format!("calendar interrupted, retrying; shown is {seconds} s old")
    };
    view! { <span class="live live--lost" role="status">{text}</span> }.into_any()
}

/// What is shown, and the ways to something else.
#[component]
fn Switches(shown: Shown, ready: ReadSignal<bool>) -> impl IntoView {
    let Shown { choice, view, day, .. } = shown;
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
                    if steps == 0 { day.set(Some(shown.today())) } else { go(steps) }
                }
            >
                {text}
            </button>
        }
    };
    let kind = move |value: View, text: &'static str| {
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
    // Before the page is alive nobody knows what today is; the line keeps its place.
    let title = move || shown.frame.get().map_or_else(|| "\u{a0}".to_owned(), |frame| frame.title());
    let change = move || shown.frame.get().and_then(|frame| frame.change());
    view! {
        <div class="schedule__bar">
            <div class="btn-row">{step("Previous", -1)} {step("Today", 0)} {step("Next", 1)}</div>
            <div class="segmented" role="radiogroup" aria-label="What the calendar shows">
                {kind(View::Day, "Day")} {kind(View::Week, "Week")}
            </div>
            <ZoneSwitch zone=choice.zone choose=Callback::new(move |zone: Zone| choice.switch(zone)) ready=ready/>
        </div>
        <div class="schedule__title" aria-live="polite">
            <h2>{title}</h2>
            <span class="warn small">{change}</span>
        </div>
    }
}

/// What the patterns of the tiles mean.
#[component]
fn Legend() -> impl IntoView {
    let entry = |class: &'static str, hue: Option<&'static str>, words: &'static str| {
        let pattern = hue.map(|_| "plain");
        view! {
            <li>
                <span class="berth-bar berth-bar--inline berth-bar--time" aria-hidden="true" data-cells="1">
                    <span class=class data-start="0" data-size="1" data-hue=hue data-pattern=pattern></span>
                </span>
                " "
                {words}
            </li>
        }
    };
    view! {
        <ul class="legend">
            {entry("tile tile--own", Some("1"), "yours, begun")}
            {entry("tile tile--own tile--reserved", Some("1"), "yours, to come")}
            {entry("tile tile--own tile--job", Some("1"), "your jobs")}
            {entry("tile tile--foreign", None, "taken")}
            {entry("tile tile--maintenance", None, "maintenance")}
            {entry("cell", None, "free")}
        </ul>
    }
}
