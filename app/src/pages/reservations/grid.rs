//! Grid of the calendar: boards from top to bottom, time from left to right. The pointer (by a drag or by two
//! clicks) or the keyboard selects a time window. The portal selects the boards of a reservation.

use std::sync::Arc;

use berth_types::reservations::Window;
use leptos::html::Div;
use leptos::prelude::*;
use leptos::web_sys;

use super::Board;
use super::calendar_state::CalendarState;
use super::choice::{selectable, union};
use super::clock::{Frame, Mark};
use super::columns::{Block, BlockKind, column_text};
use super::text::length_text;
use crate::address::org_link;

/// The number of past columns and the present column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Passed {
    over: usize,
    now: Option<usize>,
}

/// The state of a selection.
#[derive(Clone, Copy)]
struct Selection {
    state: CalendarState,
    /// The row and column of the keyboard focus.
    focus: RwSignal<(usize, usize)>,
    /// The first cell of an incomplete selection.
    first: RwSignal<Option<Window>>,
    /// Present during a drag; true after a move to another cell.
    dragging: StoredValue<Option<bool>>,
}

impl Selection {
    fn cell(self, column: usize) -> Option<Window> {
        let frame = self.state.frame.get_untracked()?;
        selectable(frame.column(column)?, untrack(move || self.state.present()))
    }

    /// Sets the start, or the end after a start.
    fn select(self, column: usize) {
        let Some(cell) = self.cell(column) else { return };
        match self.first.get_untracked() {
            Some(first) => {
                self.state.choice.set(union(first, cell));
                self.first.set(None);
            }
            None => {
                self.state.choice.set(cell);
                self.first.set(Some(cell));
            }
        }
    }

    /// Extends an incomplete selection to a column.
    fn extend_to(self, column: usize) {
        if let (Some(first), Some(cell)) = (self.first.get_untracked(), self.cell(column)) {
            self.state.choice.set(union(first, cell));
        }
    }

    /// Completes the selection after a drag. A click without a move stays a start.
    fn end_drag(self) {
        if self.dragging.get_value() == Some(true) {
            self.first.set(None);
        }
        self.dragging.set_value(None);
    }

    fn clear(self) {
        self.first.set(None);
        self.dragging.set_value(None);
        self.state.choice.clear();
    }
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

/// The head of hours or days, the boards, and the selection as text.
#[component]
pub fn Grid(
    /// The signals of the calendar.
    state: CalendarState,
) -> impl IntoView {
    let selection = Selection {
        state,
        focus: RwSignal::new((0, 0)),
        first: RwSignal::new(None),
        dragging: StoredValue::new(None),
    };
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
    let key_down = move |event: leptos::ev::KeyboardEvent| {
        let columns = state.frame.get_untracked().map_or(0, |frame| frame.columns());
        let last = (state.boards.with_untracked(Vec::len).saturating_sub(1), columns.saturating_sub(1));
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
                selection.select(column);
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
            selection.select(column);
            selection.dragging.set_value(selection.first.get_untracked().map(|_| false));
        }
    };
    let over = move |event: leptos::ev::PointerEvent| {
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
            if let Some((_, column)) = event_cell(&event) {
                selection.select(column);
            }
            return;
        }
        selection.end_drag();
    };
    let rows = move || {
        let frame = state.frame.get();
        state.boards.with(|boards| {
            let last = boards.len().saturating_sub(1);
            let row = |(index, board): (usize, &Board)| {
                let first = index == 0 || boards.get(index - 1).is_none_or(|above| above.node != board.node);
                match &frame {
                    Some(frame) => full_row((index, last, first), board, frame, selection, passed, chosen),
                    None => blank_row(board, first),
                }
            };
            boards.iter().enumerate().map(row).collect::<Vec<AnyView>>()
        })
    };
    view! {
        <div class="schedule">
            <div class="schedule__head" aria-hidden="true">
                <span></span>
                {move || marks(state.frame.get().as_deref())}
            </div>
            <div
                class="schedule__grid"
                role="grid"
                aria-label="Boards by time"
                aria-multiselectable="true"
                aria-describedby="schedule-how"
                aria-busy=move || if state.is_loading() { "true" } else { "false" }
                node_ref=grid
                on:keydown=key_down
                on:pointerdown=down
                on:pointerover=over
                on:pointerup=up
            >
                {rows}
            </div>
        </div>
        <div class="schedule__said">
            <p role="status">{move || selection_text(selection)}</p>
            <p class="field__hint" id="schedule-how">
                "Drag over a free time, or click its start and then its end. Keyboard: arrow keys move, Enter sets start and end, Escape clears the selection."
            </p>
        </div>
    }
}

/// Returns the selection as text.
fn selection_text(selection: Selection) -> String {
    let zone = selection.state.choice.zone.get();
    match (selection.first.get(), selection.state.choice.window()) {
        (Some(first), _) => format!("Start: {}. Select the end.", zone.wall(first.starts_at).moment()),
        (None, Some(window)) => {
            let length = length_text(window.ends_at.millis_since(window.starts_at) / 1_000);
            format!("Selected: {} ({length}).", zone.window(window.starts_at, window.ends_at))
        }
        (None, None) => "No time selected.".to_owned(),
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

/// Returns an empty row before the first answer, with its final height.
fn blank_row(board: &Board, first: bool) -> AnyView {
    let (label, title) = (board.label.clone(), board.label.clone());
    view! {
        <div class=row_class(first) role="row">
            <span class="schedule__label" role="rowheader" title=title>{label}</span>
            <div class="berth-bar berth-bar--row berth-bar--time" role="presentation"></div>
        </div>
    }
    .into_any()
}

fn full_row(
    (index, last, first): (usize, usize, bool),
    board: &Board,
    frame: &Arc<Frame>,
    selection: Selection,
    passed: Memo<Passed>,
    chosen: Memo<Option<(usize, usize)>>,
) -> AnyView {
    let (label, title) = (board.label.clone(), board.label.clone());
    let slices = board.cells;
    let columns = frame.columns();
    let blocks = {
        let (board, frame) = (board.clone(), frame.clone());
        Memo::new(move |_| selection.state.blocks(&board, &frame))
    };
    let texts = Memo::new(move |_| {
        blocks.with(|blocks| {
            let blocks = blocks.as_deref()?;
            Some((0..columns).map(|column| column_text(blocks, slices, column)).collect::<Vec<String>>())
        })
    });
    // The column of the keyboard focus, if it is in this row.
    let focused = Memo::new(move |_| {
        let (row, column) = selection.focus.get();
        (row.min(last) == index).then_some(column.min(columns.saturating_sub(1)))
    });
    let cell = |column: usize| {
        let start = column.to_string();
        let moment = frame.moment(column);
        let label = move || {
            if column < passed.get().over {
                return format!("{moment}, past");
            }
            texts.with(|texts| {
                let text = texts.as_ref().and_then(|texts| texts.get(column));
                format!("{moment}, {}", text.map_or("loading", String::as_str))
            })
        };
        let class = move || {
            let passed = passed.get();
            if passed.now == Some(column) {
                "cell cell--now"
            } else if column < passed.over {
                "cell cell--over"
            } else {
                "cell"
            }
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
    let tiles = move || {
        let blocks = blocks.get().unwrap_or_default();
        blocks.iter().map(|block| tile(block, slices)).collect::<Vec<AnyView>>()
    };
    let band = move || {
        chosen.get().map(|(start, size)| {
            let (start, size) = (start.to_string(), size.to_string());
            view! { <span class="schedule__chosen" aria-hidden="true" data-start=start data-size=size></span> }
        })
    };
    view! {
        <div class=row_class(first) role="row" data-row=index.to_string()>
            <span class="schedule__label" role="rowheader" title=title>{label}</span>
            <div
                class="berth-bar berth-bar--row berth-bar--time"
                role="presentation"
                data-cells=columns.to_string()
                data-slices=slices.to_string()
            >
                {cells}
                {tiles}
                {band}
            </div>
        </div>
    }
    .into_any()
}

fn tile_class(block: &Block) -> &'static str {
    match (block.kind, block.own) {
        (BlockKind::Maintenance, _) => "tile tile--maintenance",
        (BlockKind::Upcoming, true) => "tile tile--own tile--reserved",
        (BlockKind::Active, true) => "tile tile--own",
        (BlockKind::Job | BlockKind::HeldStart, true) => "tile tile--own tile--job",
        (BlockKind::Upcoming | BlockKind::Active, false) => "tile tile--foreign",
        (BlockKind::Job | BlockKind::HeldStart, false) => "tile tile--foreign tile--job",
    }
}

/// Returns a tile over its cells. It is hidden from screen readers: the cells have the same text, and the table
/// has the links.
fn tile(block: &Block, slices: u32) -> AnyView {
    let class = tile_class(block);
    let (start, size) = (block.start.to_string(), block.size.to_string());
    let (top, high) = (block.top.to_string(), block.high.to_string());
    let hue = block.own.then_some("1");
    let pattern = block.own.then_some("plain");
    // A flat tile has no space for a label.
    let tall = block.high.saturating_mul(4) >= slices.saturating_mul(3);
    let label = (tall && !block.label.is_empty()).then(|| {
        let label = block.label.clone();
        view! { <span class="tile__label">{label}</span> }
    });
    let title = block.text.clone();
    if block.path.is_empty() {
        return view! {
            <span
                class=class
                aria-hidden="true"
                title=title
                data-start=start
                data-size=size
                data-top=top
                data-high=high
                data-hue=hue
                data-pattern=pattern
            >
                {label}
            </span>
        }
        .into_any();
    }
    let path = org_link(&block.path);
    view! {
        <a
            class=class
            href=path
            aria-hidden="true"
            tabindex="-1"
            draggable="false"
            title=title
            data-start=start
            data-size=size
            data-top=top
            data-high=high
            data-hue=hue
            data-pattern=pattern
        >
            {label}
        </a>
    }
    .into_any()
}
