//! Calendar of a day or a week with its switches and updates: the capacity by model, and single boards on request.
//! An answer appears only in its own frame.

use std::sync::Arc;

use berth_types::ids::OrgId;
use leptos::prelude::*;

use super::board_calendar::BoardCalendar;
use super::calendar_state::{CalendarState, Updates, poll, refresh_warning};
use super::capacity::ModelRow;
use super::capacity_state::CapacityState;
use super::clock::{Frame, View};
use super::form::Form;
use super::grid::Grid;
use super::rows::Rows;
use super::text::length_text;
use super::zone::ZoneNote;
use crate::api;
use crate::pages::parts::focus_first;
use crate::ui::*;

/// The calendar with its switches.
#[component]
pub fn Schedule(
    /// The organization.
    org: OrgId,
    /// The rows before the first answer.
    models: Vec<ModelRow>,
    /// The free boards of each model.
    free: Vec<(String, u32)>,
    /// The form of the selected boards and their time.
    form: Form,
    /// The Unix time in milliseconds; 0 before hydration.
    now: RwSignal<i64>,
    /// False before hydration.
    ready: ReadSignal<bool>,
) -> impl IntoView {
    let choice = form.choice;
    let view = RwSignal::new(View::Day);
    let day = RwSignal::new(None::<i64>);
    let frame = Memo::new(move |_| {
        let (zone, view) = (choice.zone.get(), view.get());
        day.get().map(|day| Arc::new(Frame::new(view, day, &|utc| zone.offset(utc))))
    });
    let calendar = CalendarState {
        choice,
        now,
        frame,
        first: RwSignal::new(None),
        pointed: RwSignal::new(String::new()),
        view,
        day,
    };
    let state = CapacityState {
        calendar,
        models: RwSignal::new(models),
        needed: RwSignal::new("1".to_owned()),
        picked: RwSignal::new(None),
        answer: RwSignal::new(None),
        free: RwSignal::new(free),
        updates: RwSignal::new(Updates::default()),
    };
    Effect::new(move || {
        if now.get() > 0 && day.get_untracked().is_none() {
            day.set(Some(calendar.today()));
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
    // A selection in the row of a model fills the form.
    Effect::new(move || {
        let (Some(model), Some(boards)) = (state.picked.get(), state.needed()) else { return };
        let row = state.models.with_untracked(|rows| rows.iter().find(|row| row.model == model).cloned());
        if let Some(row) = row {
            form.choose_boards(&row, boards);
        }
    });
    let period = Memo::new(move |_| calendar.period());
    let request = move |(from, until)| api::reservations::capacity(org, Some((from, until)));
    poll(period, state.updates, request, move |fresh| state.set_answer(fresh));
    let none = Memo::new(move |_| state.models.with(Vec::is_empty));
    view! {
        <section class="section" aria-label="Calendar">
            <Switches calendar=calendar ready=ready/>
            <Needed state=state/>
            {move || {
                if none.get() {
                    empty("No nodes yet. Boards appear here after the operator adds a node.")
                } else {
                    view! { <Grid rows=Rows::Models(state)/> }.into_any()
                }
            }}
            <Selected state=state form=form ready=ready/>
            <div class="row">
                <Legend/>
                <span class="row__end">{move || refresh_warning(state.updates.get(), state.is_loading())}</span>
            </div>
            <Boards org=org state=state ready=ready/>
        </section>
    }
}

/// The number of boards that a time must have free.
#[component]
fn Needed(state: CapacityState) -> impl IntoView {
    let error = Signal::derive(move || {
        state.needed().is_none().then(|| "Enter a whole number of boards, at least 1.".to_owned())
    });
    view! {
        <div class="schedule__needed">
            <Field
                label="Boards needed"
                name="needed"
                kind="number"
                value=state.needed
                hint=Some("Times with at least this number of free boards have a bar below them.".to_owned())
                error=error
            />
        </div>
    }
}

/// The selection as text, with the way to the form.
#[component]
fn Selected(state: CapacityState, form: Form, ready: ReadSignal<bool>) -> impl IntoView {
    let calendar = state.calendar;
    let is_complete =
        Memo::new(move |_| calendar.first.get().is_none() && calendar.choice.window().is_some());
    let pointed = move || {
        let text = calendar.pointed.get();
        if text.is_empty() { "\u{a0}".to_owned() } else { text }
    };
    let wanted = move || {
        let (model, boards) = (state.picked.get()?, state.needed()?);
        let row = state.models.with(|rows| rows.iter().find(|row| row.model == model).cloned())?;
        Some((row, boards))
    };
    let obstacle = Memo::new(move |_| wanted().and_then(|(row, boards)| form.obstacle(&row, boards)));
    let button = move || match wanted() {
        Some((row, boards)) if obstacle.with(Option::is_none) => {
            format!("Continue with {boards} × {}", row.model)
        }
        _ => "Go to the form".to_owned(),
    };
    view! {
        <div class="schedule__said">
            <p class="schedule__pointed" aria-hidden="true">{pointed}</p>
            <div class="row">
                <p role="status">
                    {move || selection_text(calendar)}
                    {move || obstacle.get().map(|text| format!(" {text}"))}
                </p>
                <button
                    class="btn btn--small row__end"
                    type="button"
                    disabled=move || !form.orderable || !ready.get() || !is_complete.get()
                    on:click=move |_| focus_first("#offering")
                >
                    {button}
                </button>
            </div>
            <p class="field__hint" id="schedule-how">
                "Drag over a free time, or click its start and then its end. Keyboard: arrow keys move, Enter sets start and end, Escape clears the selection."
            </p>
        </div>
    }
}

/// Returns the selection as text.
fn selection_text(calendar: CalendarState) -> String {
    let zone = calendar.choice.zone.get();
    match (calendar.first.get(), calendar.choice.window()) {
        (Some(first), _) => format!("Start: {}. Select the end.", zone.wall(first.starts_at).moment()),
        (None, Some(window)) => {
            let length = length_text(window.ends_at.millis_since(window.starts_at) / 1_000);
            format!("Selected: {} ({length}).", zone.window(window.starts_at, window.ends_at))
        }
        (None, None) => "No time selected.".to_owned(),
    }
}

/// The single boards, on request.
#[component]
fn Boards(org: OrgId, state: CapacityState, ready: ReadSignal<bool>) -> impl IntoView {
    let open = RwSignal::new(false);
    view! {
        <div class="row">
            <button
                class="btn btn--small"
                type="button"
                disabled=move || !ready.get()
                aria-expanded=move || if open.get() { "true" } else { "false" }
                on:click=move |_| open.update(|open| *open = !*open)
            >
                {move || if open.get() { "Hide boards" } else { "Show boards" }}
            </button>
        </div>
        {move || open.get().then(|| view! { <BoardCalendar org=org state=state/> })}
    }
}

/// The switches for frame, view and zone, and the title.
#[component]
fn Switches(calendar: CalendarState, ready: ReadSignal<bool>) -> impl IntoView {
    let CalendarState { view, day, .. } = calendar;
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
                    if steps == 0 { day.set(Some(calendar.today())) } else { go(steps) }
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
    let title = move || calendar.frame.get().map_or_else(|| "\u{a0}".to_owned(), |frame| frame.title());
    let clock_change = move || calendar.frame.get().and_then(|frame| frame.clock_change());
    view! {
        <div class="schedule__bar">
            <div class="btn-row">{step("Previous", -1)} {step("Today", 0)} {step("Next", 1)}</div>
            <div class="segmented" role="radiogroup" aria-label="Calendar range">
                {view_option(View::Day, "Day")} {view_option(View::Week, "Week")}
            </div>
            <ZoneNote/>
        </div>
        <div class="schedule__title" aria-live="polite">
            <h2>{title}</h2>
            <span class="warn small">{clock_change}</span>
        </div>
    }
}

/// The legend of the bands.
#[component]
fn Legend() -> impl IntoView {
    let entry = |class: &'static str, text: &'static str| {
        view! { <li><span class=class aria-hidden="true"></span> " " {text}</li> }
    };
    view! {
        <ul class="legend">
            {entry("capacity__key capacity__key--free", "free")}
            {entry("capacity__key capacity__key--own", "yours")}
            {entry("capacity__key capacity__key--others", "taken")}
            {entry("capacity__key capacity__key--unavailable", "maintenance or out of service")}
            {entry("capacity__key capacity__key--needed", "boards needed")}
        </ul>
    }
}
