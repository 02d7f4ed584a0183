//! Grid of the calendar: models or boards from top to bottom, time from left to right. The pointer (by a drag or by
//! two clicks) or the keyboard selects a time window. The portal selects the boards of a reservation.

use std::sync::Arc;

use berth_types::reservations::Window;
use leptos::html::Div;
use leptos::prelude::*;
use leptos::web_sys;

use super::calendar_state::CalendarState;
use super::choice::{selectable, union};
use super::clock::{Frame, Mark};
use super::drawing::draw;
use super::rows::{Content, Line, Rows};
use crate::pages::limits::replace;

/// The number of past columns and the present column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Passed {
    over: usize,
    now: Option<usize>,
}

/// The state of a selection.
#[derive(Clone, Copy)]
struct Selection {
    rows: Rows,
    state: CalendarState,
    lines: Memo<Vec<Line>>,
    /// The row and column of the keyboard focus.
    focus: RwSignal<(usize, usize)>,
    /// Present during a drag; true after a move to another cell.
    dragging: StoredValue<Option<bool>>,
}

impl Selection {
    fn cell(self, column: usize) -> Option<Window> {
        let frame = self.state.frame.get_untracked()?;
        selectable(frame.column(column)?, untrack(move || self.state.present()))
    }

    /// Sets the start, or the end after a start.
    fn select(self, (row, column): (usize, usize)) {
        let Some(cell) = self.cell(column) else { return };
        match self.state.first.get_untracked() {
            Some(first) => {
                self.state.choice.set(union(first, cell));
                self.state.first.set(None);
            }
            None => {
                self.state.choice.set(cell);
                self.state.first.set(Some(cell));
            }
        }
        if let Some(line) = self.lines.with_untracked(|lines| lines.get(row).cloned()) {
            self.rows.pick(&line);
        }
    }

    /// Extends an incomplete selection to a column.
    fn extend_to(self, column: usize) {
        if let (Some(first), Some(cell)) = (self.state.first.get_untracked(), self.cell(column)) {
            self.state.choice.set(union(first, cell));
        }
    }

    /// Completes the selection after a drag. A click without a move stays a start.
    fn end_drag(self) {
        if self.dragging.get_value() == Some(true) {
            self.state.first.set(None);
        }
        self.dragging.set_value(None);
    }

    fn clear(self) {
        self.state.first.set(None);
        self.dragging.set_value(None);
        self.state.choice.clear();
    }
}

/// Returns the text of a cell: `Sun 22 Nov 09:00, 5 of 8 boards free`. `over` is the number of past columns.
fn cell_text(moment: &str, column: usize, over: usize, content: Option<&Content>) -> String {
    if column < over {
        return format!("{moment}, past");
    }
    let text = content.and_then(|content| content.texts.get(column));
    format!("{moment}, {}", text.map_or("loading", String::as_str))
}

/// Returns row and column of the cell of an event.
fn event_cell(event: &web_sys::Event) -> Option<(usize, usize)> {
    let target = event_target::<web_sys::Element>(event);
    let cell = target.closest("[role=gridcell]").ok()??;
    let row = cell.closest("[data-row]").ok()??;
    let number = |element: &web_sys::Element, name: &str| element.get_attribute(name)?.parse().ok();
    Some((number(&row, "data-row")?, number(&cell, "data-start")?))
}

fn focus_cell(grid: NodeRef<Div>, (row, column): (usize, usize)) {
    #[cfg(feature = "hydrate")]
    {
        use wasm_bindgen::JsCast;
        let path = format!("[data-row=\"{row}\"] [role=gridcell][data-start=\"{column}\"]");
        let found = grid
            .get_untracked()
            .and_then(|grid| grid.query_selector(&path).ok().flatten())
            .and_then(|cell| cell.dyn_into::<web_sys::HtmlElement>().ok());
        if let Some(cell) = found {
            // A failed focus has no effect.
            let _ = cell.focus();
        }
    }
    #[cfg(not(feature = "hydrate"))]
    let _ = (grid, row, column);
}

/// The head of hours or days, and the rows.
#[component]
pub fn Grid(
    /// The source of the rows.
    rows: Rows,
) -> impl IntoView {
    let state = rows.calendar();
    let lines = Memo::new(move |_| rows.lines());
    let selection =
        Selection { rows, state, lines, focus: RwSignal::new((0, 0)), dragging: StoredValue::new(None) };
    let grid = NodeRef::<Div>::new();
    let passed = Memo::new(move |_| {
        let now = state.present();
        state.frame.with(|frame| {
            let over = frame.as_ref().map_or(0, |frame| frame.passed(now));
            Passed { over, now: frame.as_ref().and_then(|frame| frame.column_at(now)) }
        })
    });
    let chosen = Memo::new(move |_| {
        let window = state.choice.window()?;
        state.frame.get()?.touched(window.starts_at, window.ends_at)
    });
    // The keyboard focus starts at the present column.
    Effect::new(move || {
        state.frame.track();
        let first = passed.get_untracked().now.unwrap_or(0);
        selection.focus.update(|focus| focus.1 = first);
    });
    // The cell below the pointer or the keyboard focus; its text follows the answers.
    let pointed = RwSignal::new(None::<(usize, usize)>);
    let content = Memo::new(move |_| {
        let (row, _) = pointed.get()?;
        let (frame, line) = (state.frame.get()?, lines.with(|lines| lines.get(row).cloned())?);
        rows.content(&line, &frame)
    });
    Effect::new(move || {
        if let (Some((_, column)), Some(frame)) = (pointed.get(), state.frame.get()) {
            let (moment, over) = (frame.moment(column), passed.get().over);
            content.with(|content| {
                state.pointed.set(cell_text(&moment, column, over, content.as_ref()));
            });
        }
    });
    let leave = move || {
        pointed.set(None);
        state.pointed.set(String::new());
    };
    let key_down = move |event: leptos::ev::KeyboardEvent| {
        let columns = state.frame.get_untracked().map_or(0, |frame| frame.columns());
        let last = (lines.with_untracked(Vec::len).saturating_sub(1), columns.saturating_sub(1));
        let (row, column) = selection.focus.get_untracked();
        let (row, column) = (row.min(last.0), column.min(last.1));
        let next = match event.key().as_str() {
            "ArrowRight" => (row, (column + 1).min(last.1)),
            "ArrowLeft" => (row, column.saturating_sub(1)),
            "ArrowDown" => ((row + 1).min(last.0), column),
            "ArrowUp" => (row.saturating_sub(1), column),
            "Home" => (row, 0),
            "End" => (row, last.1),
            "Enter" | " " => {
                event.prevent_default();
                selection.select((row, column));
                return;
            }
            "Escape" => {
                selection.clear();
                return;
            }
            _ => return,
        };
        event.prevent_default();
        selection.focus.set(next);
        selection.extend_to(next.1);
        focus_cell(grid, next);
    };
    let down = move |event: leptos::ev::PointerEvent| {
        let Some((row, column)) = event_cell(&event).filter(|_| event.button() == 0) else { return };
        selection.focus.set((row, column));
        // A touch may start a scroll, so it selects at its end.
        if event.pointer_type() == "mouse" {
            selection.select((row, column));
            selection.dragging.set_value(state.first.get_untracked().map(|_| false));
        }
    };
    let over = move |event: leptos::ev::PointerEvent| {
        if let Some(cell) = event_cell(&event) {
            pointed.set(Some(cell));
        }
        if selection.dragging.get_value().is_none() {
            return;
        }
        // The button may be released outside of the grid.
        if event.buttons() & 1 == 0 {
            selection.end_drag();
            return;
        }
        if let Some((_, column)) = event_cell(&event) {
            selection.extend_to(column);
            selection.dragging.set_value(Some(true));
        }
    };
    let up = move |event: leptos::ev::PointerEvent| {
        if event.pointer_type() != "mouse" {
            if let Some(cell) = event_cell(&event) {
                selection.select(cell);
            }
            return;
        }
        selection.end_drag();
    };
    let focus_in = move |event: leptos::ev::FocusEvent| {
        // A screen reader may move the focus without a key.
        if let Some(cell) = event_cell(&event) {
            pointed.set(Some(cell));
            replace(selection.focus, cell);
        }
    };
    let drawn = move || {
        let frame = state.frame.get();
        lines.with(|lines| {
            let last = lines.len().saturating_sub(1);
            let row = |(index, line): (usize, &Line)| {
                let above = index.checked_sub(1).and_then(|above| lines.get(above));
                let first = above.is_none_or(|above| above.group != line.group);
                match &frame {
                    Some(frame) => full_row((index, last, first), line, frame, selection, passed, chosen),
                    None => blank_row(rows, line, first),
                }
            };
            lines.iter().enumerate().map(row).collect::<Vec<AnyView>>()
        })
    };
    view! {
        <div class="schedule">
            <div class="schedule__head" aria-hidden="true">
                <span></span>
                {move || marks(state.frame.get().as_deref())}
            </div>
            <div
                class=rows.class()
                role="grid"
                aria-label=rows.name()
                aria-multiselectable="true"
                aria-describedby="schedule-how"
                aria-busy=move || if rows.is_loading() { "true" } else { "false" }
                node_ref=grid
                on:keydown=key_down
                on:pointerdown=down
                on:pointerover=over
                on:pointerup=up
                on:focusin=focus_in
                on:pointerleave=move |_| leave()
                on:focusout=move |_| leave()
            >
                {drawn}
            </div>
        </div>
    }
}

fn marks(frame: Option<&Frame>) -> AnyView {
    let columns = frame.map_or(48, Frame::columns).to_string();
    let mark = |mark: Mark| {
        view! { <span data-start=mark.start.to_string() data-size=mark.size.to_string()>{mark.text}</span> }
    };
    let marks = frame.map(Frame::marks).unwrap_or_default().into_iter().map(mark).collect_view();
    view! { <div class="berth-bar schedule__hours" data-cells=columns>{marks}</div> }.into_any()
}

fn row_class(first: bool) -> &'static str {
    if first { "schedule__row schedule__row--first" } else { "schedule__row" }
}

/// Returns the head of a row.
fn head(rows: Rows, line: &Line) -> AnyView {
    let (label, title) = (line.label.clone(), line.label.clone());
    let line = line.clone();
    let note = move || Some(rows.note(&line)).filter(|note| !note.is_empty());
    view! {
        <span class="schedule__label" role="rowheader" title=title>
            {label}
            {move || note().map(|note| view! { <span class="schedule__note">{note}</span> })}
        </span>
    }
    .into_any()
}

/// Returns an empty row before the first answer, with its final height.
fn blank_row(rows: Rows, line: &Line, first: bool) -> AnyView {
    view! {
        <div class=row_class(first) role="row">
            {head(rows, line)}
            <div class="berth-bar berth-bar--row berth-bar--time" role="presentation"></div>
        </div>
    }
    .into_any()
}

/// Returns the class of a cell that is not over.
const fn cell_class(now: bool, fits: bool) -> &'static str {
    match (now, fits) {
        (true, true) => "cell cell--now cell--fits",
        (true, false) => "cell cell--now",
        (false, true) => "cell cell--fits",
        (false, false) => "cell",
    }
}

fn full_row(
    (index, last, first): (usize, usize, bool),
    line: &Line,
    frame: &Arc<Frame>,
    selection: Selection,
    passed: Memo<Passed>,
    chosen: Memo<Option<(usize, usize)>>,
) -> AnyView {
    let slices = line.slices;
    let columns = frame.columns();
    let content = {
        let (line, frame) = (line.clone(), frame.clone());
        Memo::new(move |_| selection.rows.content(&line, &frame))
    };
    // The column of the keyboard focus, if it is in this row.
    let focused = Memo::new(move |_| {
        let (row, column) = selection.focus.get();
        (row.min(last) == index).then_some(column.min(columns.saturating_sub(1)))
    });
    let cell = |column: usize| {
        let start = column.to_string();
        let moment = frame.moment(column);
        let label = move || {
            let over = passed.get().over;
            content.with(|content| cell_text(&moment, column, over, content.as_ref()))
        };
        let class = move || {
            let passed = passed.get();
            if column < passed.over {
                return "cell cell--over";
            }
            let fits = content.with(|content| {
                content.as_ref().and_then(|content| content.fits.get(column).copied()).unwrap_or(false)
            });
            cell_class(passed.now == Some(column), fits)
        };
        let selected = move || chosen.get().is_some_and(|(from, size)| (from..from + size).contains(&column));
        view! {
            <span
                class=class
                role="gridcell"
                data-start=start
                data-size="1"
                tabindex=move || if focused.get() == Some(column) { "0" } else { "-1" }
                aria-selected=move || if selected() { "true" } else { "false" }
                aria-label=label
            ></span>
        }
        .into_any()
    };
    let cells: Vec<AnyView> = (0..columns).map(cell).collect();
    let drawn = move || {
        content
            .with(|content| content.as_ref().map_or_else(Vec::new, |content| draw(&content.drawing, slices)))
    };
    let band = move || {
        chosen.get().map(|(start, size)| {
            let (start, size) = (start.to_string(), size.to_string());
            view! { <span class="schedule__chosen" aria-hidden="true" data-start=start data-size=size></span> }
        })
    };
    view! {
        <div class=row_class(first) role="row" data-row=index.to_string()>
            {head(selection.rows, line)}
            <div
                class="berth-bar berth-bar--row berth-bar--time"
                role="presentation"
                data-cells=columns.to_string()
                data-slices=slices.to_string()
            >
                {cells}
                {drawn}
                {band}
            </div>
        </div>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::super::rows::Drawing;
    use super::*;

    #[test]
    fn a_cell_has_its_time_and_its_numbers() {
        let content = Content {
            texts: vec!["past".to_owned(), "5 of 8 boards free".to_owned()],
            fits: Vec::new(),
            drawing: Drawing::Tiles(Vec::new()),
        };
        let text = |column: usize, content: Option<&Content>| cell_text("09:00", column, 1, content);
        assert_eq!(text(0, Some(&content)), "09:00, past");
        assert_eq!(text(1, Some(&content)), "09:00, 5 of 8 boards free");
        assert_eq!(text(1, None), "09:00, loading");
    }
}
