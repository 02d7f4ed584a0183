//! The grid of the calendar: boards from top to bottom, time from left to right. A stretch of time is
//! chosen with the pointer, by dragging or by two presses, or with the keyboard.
//!
//! Must not choose a board: which ones a reservation gets is the portal's to say.

use std::sync::Arc;

use berth_types::reservations::Window;
use leptos::html::Div;
use leptos::prelude::*;
use leptos::web_sys;

use super::Board;
use super::calendar::Shown;
use super::choice::{joined, still_free};
use super::clock::{Frame, Mark};
use super::columns::{Block, Look, column_words};
use super::words::length_text;

/// Columns that are over, and the one that is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Passed {
    over: usize,
    now: Option<usize>,
}

/// How a time is being chosen.
#[derive(Clone, Copy)]
struct Picking {
    shown: Shown,
    /// The cell that the keyboard is on: row and column.
    at: RwSignal<(usize, usize)>,
    /// What was pressed first; the second press is still to come.
    begun: RwSignal<Option<Window>>,
    /// The pointer is down since that press; whether it went to another cell.
    dragging: StoredValue<Option<bool>>,
}

impl Picking {
    fn cell(self, column: usize) -> Option<Window> {
        let frame = self.shown.frame.get_untracked()?;
        still_free(frame.column(column)?, untrack(move || self.shown.present()))
    }

    /// Sets the begin, or the end where there is a begin.
    fn press(self, column: usize) {
        let Some(cell) = self.cell(column) else { return };
        match self.begun.get_untracked() {
            Some(begun) => {
                self.shown.choice.set(joined(begun, cell));
                self.begun.set(None);
            }
            None => {
                self.shown.choice.set(cell);
                self.begun.set(Some(cell));
            }
        }
    }

    /// Shows what would be chosen if the end were here.
    fn reach(self, column: usize) {
        if let (Some(begun), Some(cell)) = (self.begun.get_untracked(), self.cell(column)) {
            self.shown.choice.set(joined(begun, cell));
        }
    }

    /// The button of the mouse went up: what was dragged over is chosen, and a press alone is a begin.
    fn let_go(self) {
        if self.dragging.get_value() == Some(true) {
            self.begun.set(None);
        }
        self.dragging.set_value(None);
    }

    fn clear(self) {
        self.begun.set(None);
        self.dragging.set_value(None);
        self.shown.choice.clear();
    }
}

/// The row and column of the cell that an event is about.
fn cell_under(event: &web_sys::Event) -> Option<(usize, usize)> {
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
            // A cell that cannot be focused is only not focused.
            let _ = cell.focus();
        }
    }
    #[cfg(not(feature = "hydrate"))]
    let _ = (grid, row, column);
}

/// Hours or days above, boards below, and what is chosen in words.
#[component]
pub fn Grid(
    /// What is shown.
    shown: Shown,
) -> impl IntoView {
    let picking = Picking {
        shown,
        at: RwSignal::new((0, 0)),
        begun: RwSignal::new(None),
        dragging: StoredValue::new(None),
    };
    let grid = NodeRef::<Div>::new();
    let passed = Memo::new(move |_| {
        let now = shown.present();
        shown.frame.with(|frame| {
            let over = frame.as_ref().map_or(0, |frame| frame.passed(now));
            Passed { over, now: frame.as_ref().and_then(|frame| frame.column_of(now)) }
        })
    });
    let chosen = Memo::new(move |_| {
        let window = shown.choice.window()?;
        shown.frame.get()?.touched(window.starts_at, window.ends_at)
    });
    // The keyboard starts where something can be chosen.
    Effect::new(move || {
        shown.frame.track();
        let first = passed.get_untracked().now.unwrap_or(0);
        picking.at.update(|at| at.1 = first);
    });
    let walk = move |event: leptos::ev::KeyboardEvent| {
        let columns = shown.frame.get_untracked().map_or(0, |frame| frame.columns());
        let last = (shown.boards.with_untracked(Vec::len).saturating_sub(1), columns.saturating_sub(1));
        let (row, column) = picking.at.get_untracked();
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
                picking.press(column);
                return;
            }
            "Escape" => {
                picking.clear();
                return;
            }
            _ => return,
        };
        event.prevent_default();
        picking.at.set(next);
        picking.reach(next.1);
        focus_cell(grid, next);
    };
    let down = move |event: leptos::ev::PointerEvent| {
        let Some((row, column)) = cell_under(&event).filter(|_| event.button() == 0) else { return };
        picking.at.set((row, column));
        // A finger that comes down may be about to scroll; it chooses when it goes up.
        if event.pointer_type() == "mouse" {
            picking.press(column);
            picking.dragging.set_value(picking.begun.get_untracked().map(|_| false));
        }
    };
    let over = move |event: leptos::ev::PointerEvent| {
        if picking.dragging.get_value().is_none() {
            return;
        }
        // The button may have gone up outside of the grid.
        if event.buttons() & 1 == 0 {
            picking.let_go();
            return;
        }
        if let Some((_, column)) = cell_under(&event) {
            picking.reach(column);
            picking.dragging.set_value(Some(true));
        }
    };
    let up = move |event: leptos::ev::PointerEvent| {
        if event.pointer_type() != "mouse" {
            if let Some((_, column)) = cell_under(&event) {
                picking.press(column);
            }
            return;
        }
        picking.let_go();
    };
    let rows = move || {
        let frame = shown.frame.get();
        shown.boards.with(|boards| {
            let last = boards.len().saturating_sub(1);
            let row = |(index, board): (usize, &Board)| {
                let first = index == 0 || boards.get(index - 1).is_none_or(|above| above.node != board.node);
                match &frame {
                    Some(frame) => full_row((index, last, first), board, frame, picking, passed, chosen),
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
                {move || marks(shown.frame.get().as_deref())}
            </div>
            <div
                class="schedule__grid"
                role="grid"
                aria-label="Boards by time"
                aria-multiselectable="true"
                aria-describedby="schedule-how"
                aria-busy=move || if shown.waits() { "true" } else { "false" }
                node_ref=grid
                on:keydown=walk
                on:pointerdown=down
                on:pointerover=over
                on:pointerup=up
            >
                {rows}
            </div>
        </div>
        <div class="schedule__said">
            <p role="status">{move || said(picking)}</p>
            <p class="field__hint" id="schedule-how">
                "Drag over a free time, or press its begin and then its end. By keyboard: arrows to move, Enter for begin and for end, Escape for nothing."
            </p>
        </div>
    }
}

/// What is chosen, in words.
fn said(picking: Picking) -> String {
    let zone = picking.shown.choice.zone.get();
    match (picking.begun.get(), picking.shown.choice.window()) {
        (Some(begun), _) => format!("Begins {}. Now its end.", zone.wall(begun.starts_at).moment()),
        (None, Some(window)) => {
            let length = length_text(window.ends_at.millis_since(window.starts_at) / 1_000);
            format!("Chosen: {} ({length}).", zone.window(window.starts_at, window.ends_at))
        }
        (None, None) => "No time is chosen.".to_owned(),
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

/// A row before anything is known: it has its place.
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
    picking: Picking,
    passed: Memo<Passed>,
    chosen: Memo<Option<(usize, usize)>>,
) -> AnyView {
    let (label, title) = (board.label.clone(), board.label.clone());
    let slices = board.cells;
    let columns = frame.columns();
    let blocks = {
        let (board, frame) = (board.clone(), frame.clone());
        Memo::new(move |_| picking.shown.blocks(&board, &frame))
    };
    let words = Memo::new(move |_| {
        blocks.with(|blocks| {
            let blocks = blocks.as_deref()?;
            Some((0..columns).map(|column| column_words(blocks, slices, column)).collect::<Vec<String>>())
        })
    });
    // The one cell of the row that the keyboard comes to, in the one row that has it.
    let here = Memo::new(move |_| {
        let (row, column) = picking.at.get();
        (row.min(last) == index).then_some(column.min(columns.saturating_sub(1)))
    });
    let cell = |column: usize| {
        let start = column.to_string();
        let moment = frame.moment(column);
        let said = move || {
            if column < passed.get().over {
                return format!("{moment}, over");
            }
            words.with(|words| {
                let words = words.as_ref().and_then(|words| words.get(column));
                format!("{moment}, {}", words.map_or("not known yet", String::as_str))
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
                tabindex=move || if here.get() == Some(column) { "0" } else { "-1" }
                aria-selected=move || if selected() { "true" } else { "false" }
                aria-label=said
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
    match (block.look, block.own) {
        (Look::Maintenance, _) => "tile tile--maintenance",
        (Look::Booked, true) => "tile tile--own tile--reserved",
        (Look::Held, true) => "tile tile--own",
        (Look::Job | Look::Start, true) => "tile tile--own tile--job",
        (Look::Booked | Look::Held, false) => "tile tile--foreign",
        (Look::Job | Look::Start, false) => "tile tile--foreign tile--job",
    }
}

/// A tile over its cells. The cells say the same, and the list below has the links, so it is for the eye
/// and the pointer only.
fn tile(block: &Block, slices: u32) -> AnyView {
    let class = tile_class(block);
    let (start, size) = (block.start.to_string(), block.size.to_string());
    let (top, high) = (block.top.to_string(), block.high.to_string());
    let hue = block.own.then_some("1");
    let pattern = block.own.then_some("plain");
    // A flat tile has no room for words.
    let tall = block.high.saturating_mul(4) >= slices.saturating_mul(3);
    let label = (tall && !block.label.is_empty()).then(|| {
        let label = block.label.clone();
        view! { <span class="tile__label">{label}</span> }
    });
    let title = block.words.clone();
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
    let path = block.path.clone();
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
