//! Inserts the lines of a log into the page, follows the end and searches.
//!
//! Browser only. The lines are plain elements, because views are too slow for thousands of lines a second. The
//! log enters the page as text, never as markup.

mod elements;
mod filter;
mod search;
mod times;

use std::collections::VecDeque;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_types::events::LogChunk;
use berth_types::time::{Timestamp, duration_text};
use gloo_timers::callback::Interval;
use leptos::html::Div;
use leptos::prelude::*;
use wasm_bindgen::JsCast;
use wasm_bindgen::closure::Closure;
use web_sys::{Document, Element, Event, HtmlElement};

use super::find::matches;
use super::levels::{Level, is_shown, level_of};
use super::times::TimeIndex;
use super::{Controls, Shown, grouped};
use crate::live::Feed;
use crate::ui::Zone;
use crate::ui::ansi::{Line, LogDecoder};

/// The maximum number of rows in the page; the raw log has all lines.
const MAX_ROWS: usize = 20_000;
/// The maximum number of rows of one insertion, so that the page stays responsive.
const BATCH: usize = 1_000;
const BATCH_MS: u32 = 50;
/// The length of silence that counts as an interruption.
const SILENCE_MS: f64 = 3_000.0;
/// The data of the end of a complete log; otherwise a sentence.
const COMPLETE: &str = "complete";
/// The maximum number of matches with marks; beyond it only the current line has marks.
const MAX_MARKS: usize = 5_000;
/// The distance from the end that counts as at the end, in pixels.
const NEAR_PX: i32 = 32;

type PaneSlot = StoredValue<Option<Pane>, LocalStorage>;
type Listener = Closure<dyn FnMut(Event)>;

/// Fills `lines` from the stream at `raw`, until the end of the calling component. `several` is for several attempts.
pub(super) fn attach(lines: NodeRef<Div>, raw: String, several: bool, controls: Controls) -> Feed {
    let slot: PaneSlot = StoredValue::new_local(None);
    let address = raw.clone();
    Effect::new(move || {
        let Some(view) = lines.get() else { return };
        let made = slot.try_with_value(|pane| pane.is_some());
        if made == Some(false) {
            let view: HtmlElement = view.unchecked_into();
            slot.set_value(Some(Pane::new(view, (raw.clone(), several), controls, slot)));
            with(slot, |pane| {
                filter::filter(pane, controls.shown.try_get_untracked().unwrap_or_default());
                let timestamps = controls.timestamps.try_get_untracked().unwrap_or_default();
                let zone = controls.zone.try_get_untracked().unwrap_or(Zone::Utc);
                times::show_times(pane, timestamps, zone);
            });
        }
    });
    Effect::new(move || {
        let query = controls.query.get();
        with(slot, |pane| pane.search(query));
    });
    Effect::new(move |before: Option<i64>| {
        let steps = controls.steps.get();
        let by = steps - before.unwrap_or(steps);
        if by != 0 {
            with(slot, |pane| pane.step(by));
        }
        steps
    });
    Effect::new(move || {
        if controls.jumps.get() > 0 {
            with(slot, |pane| pane.show_end());
        }
    });
    Effect::new(move || {
        // Line wrapping changes the position of the end.
        let _ = controls.wrap.get();
        with(slot, |pane| pane.dirty = true);
    });
    Effect::new(move || {
        let shown = controls.shown.get();
        with(slot, |pane| filter::filter(pane, shown));
    });
    Effect::new(move || {
        let (timestamps, zone) = (controls.timestamps.get(), controls.zone.get());
        with(slot, |pane| times::show_times(pane, timestamps, zone));
    });
    Effect::new(move || {
        if let Some(text) = controls.jump.get() {
            with(slot, |pane| times::jump(pane, &text));
        }
    });
    let resume = move || {
        let next = slot.try_with_value(|pane| pane.as_ref().map_or(0, |pane| pane.next)).unwrap_or(0);
        format!("{address}&from={next}")
    };
    crate::live::open(resume, &["log", "beat", "end"], move |name: &str, data: &str, _: &str| {
        with(slot, |pane| pane.on_event(name, data));
    })
}

/// Runs `act`, unless the page has ended.
fn with(slot: PaneSlot, act: impl FnOnce(&mut Pane)) {
    let _ = slot.try_update_value(|pane| {
        if let Some(pane) = pane.as_mut() {
            act(pane);
        }
    });
}

/// A row before its insertion.
enum NewRow {
    Line(Line, Option<Timestamp>),
    /// A note between two lines.
    Note(String),
}

/// A row of the page. A note has no line.
struct Row {
    line: Option<Line>,
    /// The time of the line, if the portal has one.
    at: Option<Timestamp>,
    level: Option<Level>,
    element: HtmlElement,
    /// The element of the text.
    text: Element,
    matches: usize,
    marked: bool,
}

impl Row {
    fn number(&self) -> Option<u64> {
        self.line.as_ref().map(|line| line.number)
    }

    /// Returns true for a note, and for a line of a level that is shown.
    fn is_shown(&self, shown: Shown) -> bool {
        self.line.is_none() || is_shown(shown, self.level)
    }
}

struct Pane {
    document: Document,
    view: HtmlElement,
    raw: String,
    /// True for a job with several attempts.
    several: bool,
    controls: Controls,
    decoder: LogDecoder,
    /// The next expected byte of the log.
    next: u64,
    times: TimeIndex,
    timestamps: bool,
    zone: Zone,
    shown: Shown,
    /// The numbers of warnings and of errors in `rows`.
    counts: (u64, u64),
    /// The level of the last line.
    last_level: Option<Level>,
    pending: VecDeque<NewRow>,
    rows: VecDeque<Row>,
    /// The element of the incomplete last line.
    open: Option<Element>,
    /// The note about removed lines, and the element of its text.
    head: Option<(Element, Element)>,
    empty: Option<Element>,
    query: String,
    /// The line number of the current match, and its index in the line.
    current: Option<(u64, usize)>,
    matches: usize,
    selected: Option<u64>,
    /// The line of the address, until its insertion.
    requested: Option<u64>,
    following: bool,
    /// True after the first event.
    begun: bool,
    ended: bool,
    /// True with pending changes.
    dirty: bool,
    last_event_ms: Option<f64>,
    scrolled: Listener,
    clicked: Listener,
    _timer: Interval,
}

impl Drop for Pane {
    fn drop(&mut self) {
        // The element outlives the listeners. The removal fails only for arguments of another type.
        let (scrolled, clicked) = (self.scrolled.as_ref(), self.clicked.as_ref());
        let _ = self.view.remove_event_listener_with_callback("scroll", scrolled.unchecked_ref());
        let _ = self.view.remove_event_listener_with_callback("click", clicked.unchecked_ref());
    }
}

impl Pane {
    fn new(view: HtmlElement, (raw, several): (String, bool), controls: Controls, slot: PaneSlot) -> Self {
        let scrolled: Listener = Closure::new(move |_: Event| with(slot, |pane| pane.on_scroll()));
        let clicked: Listener = Closure::new(move |event: Event| with(slot, |pane| pane.on_click(&event)));
        let _ = view.add_event_listener_with_callback("scroll", scrolled.as_ref().unchecked_ref());
        let _ = view.add_event_listener_with_callback("click", clicked.as_ref().unchecked_ref());
        let requested = window().location().hash().ok().as_deref().and_then(line_number);
        Self {
            document: document(),
            view,
            raw,
            several,
            controls,
            decoder: LogDecoder::new(),
            next: 0,
            times: TimeIndex::default(),
            timestamps: false,
            zone: Zone::Utc,
            shown: Shown::All,
            counts: (0, 0),
            last_level: None,
            pending: VecDeque::new(),
            rows: VecDeque::new(),
            open: None,
            head: None,
            empty: None,
            query: String::new(),
            current: None,
            matches: 0,
            selected: None,
            requested,
            following: requested.is_none(),
            begun: false,
            ended: false,
            dirty: false,
            last_event_ms: None,
            scrolled,
            clicked,
            _timer: Interval::new(BATCH_MS, move || with(slot, |pane| pane.flush())),
        }
    }

    /// Processes an event of the stream.
    fn on_event(&mut self, name: &str, data: &str) {
        if name == "resumed" {
            // The silence of a hidden page is no interruption.
            self.last_event_ms = None;
            return;
        }
        self.begun = true;
        let now = js_sys::Date::now();
        let silent_ms = self.last_event_ms.replace(now).map_or(0.0, |before| now - before);
        if silent_ms > SILENCE_MS {
            let length = duration_text(silent_ms as i64);
            self.enqueue(NewRow::Note(format!("live view interrupted for {length}; no lines lost")));
        }
        match name {
            "log" => self.add_chunk(data),
            "end" => {
                self.ended = true;
                if let Some(line) = self.decoder.finish() {
                    let at = self.times.find(line.start);
                    self.enqueue(NewRow::Line(line, at));
                }
                if data != COMPLETE {
                    self.enqueue(NewRow::Note(data.to_owned()));
                }
                self.dirty = true;
            }
            // The first beat without a line shows the empty state.
            _ => self.dirty |= self.rows.is_empty() && self.empty.is_none(),
        }
    }

    fn add_chunk(&mut self, data: &str) {
        let Ok(chunk) = serde_json::from_str::<LogChunk>(data) else { return };
        let bytes = match (chunk.text, chunk.base64) {
            (Some(text), _) => text.into_bytes(),
            (None, Some(code)) => STANDARD.decode(code).unwrap_or_default(),
            (None, None) => return,
        };
        let end = chunk.from.saturating_add(bytes.len() as u64);
        if end <= self.next {
            return;
        }
        let missing = chunk.from.saturating_sub(self.next);
        if missing > 0 {
            self.decoder.skip(missing);
            let missing = grouped(missing);
            self.enqueue(NewRow::Note(format!("{missing} bytes not shown; see the raw log")));
        }
        if let Some(times) = &chunk.times {
            self.times.add(times);
        }
        let skipped = usize::try_from(self.next.saturating_sub(chunk.from)).unwrap_or(0);
        self.next = end;
        for line in self.decoder.push(bytes.get(skipped..).unwrap_or_default()) {
            let at = self.times.find(line.start);
            self.enqueue(NewRow::Line(line, at));
        }
        let _ = self.controls.bytes.try_set(end);
        self.dirty = true;
    }

    fn enqueue(&mut self, row: NewRow) {
        // Rows beyond the maximum would be removed at once.
        if self.pending.len() >= MAX_ROWS {
            self.pending.pop_front();
        }
        self.pending.push_back(row);
        self.dirty = true;
    }

    /// Inserts pending rows.
    fn flush(&mut self) {
        if !self.dirty {
            return;
        }
        if let Some(open) = self.open.take() {
            open.remove();
        }
        let batch = self.pending.len().min(BATCH);
        let rows: Vec<NewRow> = self.pending.drain(..batch).collect();
        let mut added = 0;
        for row in rows {
            added += u64::from(matches!(row, NewRow::Line(..)));
            self.append(row);
        }
        self.dirty = !self.pending.is_empty();
        self.trim();
        if !self.dirty
            && let Some(line) = self.decoder.open_line()
        {
            let (level, at) = (level_of(&line.text(), self.last_level), self.times.find(line.start));
            if let Some((element, text)) = self.line_element(line.number, level) {
                self.write_line(&text, &line, false, None);
                times::write_time(self, &element, &text, at);
                let _ = self.view.append_child(&element);
                self.open = Some(element.unchecked_into());
            }
        }
        self.update_empty_state();
        if self.following {
            self.show_end();
        } else if added > 0 {
            let _ = self.controls.unseen.try_update(|unseen| *unseen += added);
        }
        self.publish_matches();
        filter::publish_counts(self);
    }

    fn append(&mut self, row: NewRow) {
        match row {
            NewRow::Note(text) => {
                let Some(note) = self.make("div", "log__gap") else { return };
                note.set_text_content(Some(&text));
                let _ = self.view.append_child(&note);
                let element: HtmlElement = note.clone().unchecked_into();
                let (line, at, level) = (None, None, None);
                self.rows.push_back(Row { line, at, level, element, text: note, matches: 0, marked: false });
            }
            NewRow::Line(line, at) => {
                let (number, content) = (line.number, line.text());
                let level = level_of(&content, self.last_level);
                self.last_level = level;
                let Some((element, text)) = self.line_element(number, level) else { return };
                let is_shown = is_shown(self.shown, level);
                let found = if is_shown { matches(&content, &self.query).len() } else { 0 };
                let marked = found > 0 && self.matches <= MAX_MARKS;
                self.matches += found;
                self.write_line(&text, &line, marked, None);
                times::write_time(self, &element, &text, at);
                let _ = self.view.append_child(&element);
                filter::count(&mut self.counts, level, true);
                let line = Some(line);
                self.rows.push_back(Row { line, at, level, element, text, matches: found, marked });
                if self.requested == Some(number) {
                    self.requested = None;
                    self.select_line(number);
                    self.scroll_to_line(number);
                }
            }
        }
    }

    /// Removes the oldest rows beyond the maximum, with a note above the others.
    fn trim(&mut self) {
        if self.rows.len() <= MAX_ROWS {
            return;
        }
        while self.rows.len() > MAX_ROWS {
            let Some(old) = self.rows.pop_front() else { break };
            old.element.remove();
            self.matches = self.matches.saturating_sub(old.matches);
            filter::count(&mut self.counts, old.level, false);
        }
        if self.head.is_none() {
            self.head = self.head_element();
        }
        let first = self.rows.iter().find_map(Row::number).unwrap_or(1);
        if let Some((_, text)) = &self.head {
            let last = grouped(first.saturating_sub(1));
            text.set_text_content(Some(&format!("lines 1 to {last} not shown; see the")));
        }
    }

    fn show_end(&mut self) {
        self.following = true;
        self.view.set_scroll_top(self.view.scroll_height());
        reset_unseen(self.controls);
    }

    /// Follows new lines only while the end is visible.
    fn on_scroll(&mut self) {
        let below = self.view.scroll_height() - self.view.scroll_top() - self.view.client_height();
        self.following = below <= NEAR_PX;
        if self.following {
            reset_unseen(self.controls);
        }
    }

    /// Selects the line of a clicked number and writes it into the address.
    fn on_click(&mut self, event: &Event) {
        let mouse = event.dyn_ref::<leptos::ev::MouseEvent>();
        if mouse.is_some_and(|mouse| mouse.ctrl_key() || mouse.meta_key() || mouse.shift_key()) {
            return;
        }
        let target = event.target().and_then(|target| target.dyn_into::<Element>().ok());
        let link = target.and_then(|element| element.closest(".log__no").ok().flatten());
        let Some(address) = link.and_then(|link| link.get_attribute("href")) else { return };
        let Some(number) = line_number(&address) else { return };
        event.prevent_default();
        self.select_line(number);
        // The state belongs to the router and stays unchanged.
        if let Ok(history) = window().history()
            && let Ok(state) = history.state()
        {
            let _ = history.replace_state_with_url(&state, "", Some(&address));
        }
    }
}

fn reset_unseen(controls: Controls) {
    if controls.unseen.try_get_untracked() != Some(0) {
        let _ = controls.unseen.try_set(0);
    }
}

/// Parses a fragment such as `#L12`.
fn line_number(hash: &str) -> Option<u64> {
    hash.strip_prefix("#L")?.parse().ok()
}
