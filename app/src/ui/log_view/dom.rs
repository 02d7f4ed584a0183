//! Puts the lines of a log into the page as they come, follows their end and finds text in them.
//!
//! Browser only. The lines are no views: thousands a second would be too many for that. Every text
//! goes in as text, never as markup.

mod search;

use std::collections::VecDeque;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_types::events::LogChunk;
use berth_types::time::duration_text;
use gloo_timers::callback::Interval;
use leptos::html::Div;
use leptos::prelude::*;
use wasm_bindgen::JsCast;
use wasm_bindgen::closure::Closure;
use web_sys::{Document, Element, Event, HtmlElement};

use super::find::{finds, pieces};
use super::{Controls, grouped};
use crate::live::Feed;
use crate::ui::ansi::{Line, LogDecoder};

/// Lines that stay in the page; the raw log has the rest.
const KEPT: usize = 20_000;
/// Lines that are put in at once, so that the page stays responsive.
const BATCH: usize = 1_000;
const BATCH_MS: u32 = 50;
/// Silence after which a person is told that the view was interrupted.
const SILENCE_MS: f64 = 3_000.0;
/// Up to this many finds are marked all at once; of more, only those of the current line.
const MARKS: usize = 5_000;
/// How near to the end still counts as at the end, in pixels.
const NEAR_PX: i32 = 32;

type Held = StoredValue<Option<Pane>, LocalStorage>;
type Listener = Closure<dyn FnMut(Event)>;

/// Fills `lines` from the stream at `raw`, and lives as long as the component that calls it.
pub(super) fn attach(lines: NodeRef<Div>, raw: String, controls: Controls) -> Feed {
    let held: Held = StoredValue::new_local(None);
    let address = raw.clone();
    Effect::new(move || {
        let Some(view) = lines.get() else { return };
        let made = held.try_with_value(|pane| pane.is_some());
        if made == Some(false) {
            let view: HtmlElement = view.unchecked_into();
            held.set_value(Some(Pane::new(view, raw.clone(), controls, held)));
        }
    });
    Effect::new(move || {
        let query = controls.query.get();
        with(held, |pane| pane.search(query));
    });
    Effect::new(move |before: Option<i64>| {
        let steps = controls.steps.get();
        let by = steps - before.unwrap_or(steps);
        if by != 0 {
            with(held, |pane| pane.step(by));
        }
        steps
    });
    Effect::new(move || {
        if controls.jumps.get() > 0 {
            with(held, |pane| pane.show_end());
        }
    });
    Effect::new(move || {
        // Wrapping changes the height, and with it where the end is.
        let _ = controls.wrap.get();
        with(held, |pane| pane.dirty = true);
    });
    let resume = move || {
        let next = held.try_with_value(|pane| pane.as_ref().map_or(0, |pane| pane.next)).unwrap_or(0);
        format!("{address}&from={next}")
    };
    crate::live::open(resume, &["log", "beat", "end"], move |name: &str, data: &str, _: &str| {
        with(held, |pane| pane.hear(name, data));
    })
}

/// Does nothing when the page is gone already.
fn with(held: Held, act: impl FnOnce(&mut Pane)) {
    let _ = held.try_update_value(|pane| {
        if let Some(pane) = pane.as_mut() {
            act(pane);
        }
    });
}

/// What waits to be put in.
enum Row {
    Line(Line),
    /// A remark between two lines.
    Note(String),
}

/// What is in the page. A remark has no line.
struct Kept {
    line: Option<Line>,
    element: HtmlElement,
    /// Where the text of the line is.
    text: Element,
    finds: usize,
    marked: bool,
}

impl Kept {
    fn number(&self) -> Option<u64> {
        self.line.as_ref().map(|line| line.number)
    }
}

struct Pane {
    document: Document,
    view: HtmlElement,
    raw: String,
    controls: Controls,
    decoder: LogDecoder,
    /// The byte that comes next.
    next: u64,
    pending: VecDeque<Row>,
    kept: VecDeque<Kept>,
    /// The line that has no end yet, while it is in the page.
    open: Option<Element>,
    /// Says that earlier lines are not here, and up to which.
    head: Option<(Element, Element)>,
    empty: Option<Element>,
    query: String,
    /// Number of the line of the current find, and which find of it.
    current: Option<(u64, usize)>,
    finds: usize,
    chosen: Option<u64>,
    /// The line that the address asks for, until it comes.
    wanted: Option<u64>,
    following: bool,
    ended: bool,
    /// There is something to bring into the page.
    dirty: bool,
    heard_ms: Option<f64>,
    scrolled: Listener,
    clicked: Listener,
    _timer: Interval,
}

impl Drop for Pane {
    fn drop(&mut self) {
        // The listeners are gone with this; the element must not call them any more. Removing fails
        // only for arguments of the wrong kind.
        let (scrolled, clicked) = (self.scrolled.as_ref(), self.clicked.as_ref());
        let _ = self.view.remove_event_listener_with_callback("scroll", scrolled.unchecked_ref());
        let _ = self.view.remove_event_listener_with_callback("click", clicked.unchecked_ref());
    }
}

impl Pane {
    fn new(view: HtmlElement, raw: String, controls: Controls, held: Held) -> Self {
        let scrolled: Listener = Closure::new(move |_: Event| with(held, |pane| pane.look()));
        let clicked: Listener = Closure::new(move |event: Event| with(held, |pane| pane.click(&event)));
        let _ = view.add_event_listener_with_callback("scroll", scrolled.as_ref().unchecked_ref());
        let _ = view.add_event_listener_with_callback("click", clicked.as_ref().unchecked_ref());
        let wanted = window().location().hash().ok().as_deref().and_then(line_number);
        Self {
            document: document(),
            view,
            raw,
            controls,
            decoder: LogDecoder::new(),
            next: 0,
            pending: VecDeque::new(),
            kept: VecDeque::new(),
            open: None,
            head: None,
            empty: None,
            query: String::new(),
            current: None,
            finds: 0,
            chosen: None,
            wanted,
            following: wanted.is_none(),
            ended: false,
            dirty: false,
            heard_ms: None,
            scrolled,
            clicked,
            _timer: Interval::new(BATCH_MS, move || with(held, |pane| pane.flush())),
        }
    }

    /// Takes one event of the stream.
    fn hear(&mut self, name: &str, data: &str) {
        let now = js_sys::Date::now();
        let silent_ms = self.heard_ms.replace(now).map_or(0.0, |before| now - before);
        if silent_ms > SILENCE_MS {
            let length = duration_text(silent_ms as i64);
            self.wait(Row::Note(format!("live view interrupted for {length}, nothing was lost")));
        }
        match name {
            "log" => self.take(data),
            "end" => {
                self.ended = true;
                if let Some(line) = self.decoder.finish() {
                    self.wait(Row::Line(line));
                }
                if !data.is_empty() {
                    self.wait(Row::Note(data.to_owned()));
                }
                self.dirty = true;
            }
            // A first beat without a line is worth a word.
            _ => self.dirty |= self.kept.is_empty() && self.empty.is_none(),
        }
    }

    fn take(&mut self, data: &str) {
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
            let missing = grouped(missing);
            self.wait(Row::Note(format!("{missing} bytes are missing here; the raw log has them")));
        }
        let known = usize::try_from(self.next.saturating_sub(chunk.from)).unwrap_or(0);
        self.next = end;
        for line in self.decoder.push(bytes.get(known..).unwrap_or_default()) {
            self.wait(Row::Line(line));
        }
        self.dirty = true;
    }

    fn wait(&mut self, row: Row) {
        // More than can stay need not go in.
        if self.pending.len() >= KEPT {
            self.pending.pop_front();
        }
        self.pending.push_back(row);
        self.dirty = true;
    }

    /// Brings the page up to what was heard.
    fn flush(&mut self) {
        if !self.dirty {
            return;
        }
        if let Some(open) = self.open.take() {
            open.remove();
        }
        let batch = self.pending.len().min(BATCH);
        let rows: Vec<Row> = self.pending.drain(..batch).collect();
        let mut added = 0;
        for row in rows {
            added += u64::from(matches!(row, Row::Line(_)));
            self.append(row);
        }
        self.dirty = !self.pending.is_empty();
        self.trim();
        if !self.dirty
            && let Some(line) = self.decoder.open_line()
            && let Some((element, text)) = self.line_element(&line)
        {
            self.fill(&text, &line, false, None);
            let _ = self.view.append_child(&element);
            self.open = Some(element.unchecked_into());
        }
        self.say_empty();
        if self.following {
            self.show_end();
        } else if added > 0 {
            let _ = self.controls.unseen.try_update(|unseen| *unseen += added);
        }
        self.tell_found();
    }

    fn append(&mut self, row: Row) {
        match row {
            Row::Note(words) => {
                let Some(note) = self.make("div", "log__gap") else { return };
                note.set_text_content(Some(&words));
                let _ = self.view.append_child(&note);
                let element: HtmlElement = note.clone().unchecked_into();
                self.kept.push_back(Kept { line: None, element, text: note, finds: 0, marked: false });
            }
            Row::Line(line) => {
                let Some((element, text)) = self.line_element(&line) else { return };
                let found = finds(&line.text(), &self.query).len();
                let marked = found > 0 && self.finds <= MARKS;
                self.finds += found;
                self.fill(&text, &line, marked, None);
                let _ = self.view.append_child(&element);
                let number = line.number;
                self.kept.push_back(Kept { line: Some(line), element, text, finds: found, marked });
                if self.wanted == Some(number) {
                    self.wanted = None;
                    self.choose(number);
                    self.bring_line(number);
                }
            }
        }
    }

    /// Takes out the oldest lines that are too many, and says so above the others.
    fn trim(&mut self) {
        if self.kept.len() <= KEPT {
            return;
        }
        while self.kept.len() > KEPT {
            let Some(old) = self.kept.pop_front() else { break };
            old.element.remove();
            self.finds = self.finds.saturating_sub(old.finds);
        }
        if self.head.is_none() {
            self.head = self.head_element();
        }
        let first = self.kept.iter().find_map(Kept::number).unwrap_or(1);
        if let Some((_, words)) = &self.head {
            let last = grouped(first.saturating_sub(1));
            words.set_text_content(Some(&format!("lines 1 to {last} are not kept here; all are in the")));
        }
    }

    fn head_element(&self) -> Option<(Element, Element)> {
        let head = self.make("div", "log__gap")?;
        let words = self.make("span", "")?;
        let link = self.make("a", "")?;
        link.set_text_content(Some("raw log"));
        // Setting an attribute fails only for a name that is none.
        let _ = link.set_attribute("href", &self.raw);
        let _ = link.set_attribute("rel", "external");
        let _ = head.append_child(&words);
        let _ = head.append_child(&link);
        let _ = self.view.insert_before(&head, self.view.first_child().as_ref());
        Some((head, words))
    }

    fn say_empty(&mut self) {
        let nothing = self.kept.is_empty() && self.open.is_none() && self.pending.is_empty();
        if let Some(old) = self.empty.take() {
            old.remove();
        }
        if !nothing {
            return;
        }
        let (Some(line), Some(gutter), Some(text)) = (
            self.make("div", "log__line"),
            self.make("span", "log__no"),
            self.make("span", "log__text quiet"),
        ) else {
            return;
        };
        let words = if self.ended { "This job wrote no output." } else { "No output yet." };
        text.set_text_content(Some(words));
        let _ = line.append_child(&gutter);
        let _ = line.append_child(&text);
        let _ = self.view.append_child(&line);
        self.empty = Some(line);
    }

    fn make(&self, tag: &str, class: &str) -> Option<Element> {
        let element = self.document.create_element(tag).ok()?;
        if !class.is_empty() {
            element.set_class_name(class);
        }
        Some(element)
    }

    /// The frame of a line, and in it the place of its text.
    fn line_element(&self, line: &Line) -> Option<(HtmlElement, Element)> {
        let element = self.make("div", "log__line")?;
        let link = self.make("a", "log__no")?;
        let text = self.make("span", "log__text")?;
        let number = line.number;
        element.set_id(&format!("L{number}"));
        link.set_text_content(Some(&grouped(number)));
        let _ = link.set_attribute("href", &format!("#L{number}"));
        let _ = link.set_attribute("aria-label", &format!("Line {number}"));
        let _ = element.append_child(&link);
        let _ = element.append_child(&text);
        Some((element.unchecked_into(), text))
    }

    /// Writes a line anew; gives the mark of the current find, when it has one.
    fn fill(&self, into: &Element, line: &Line, marked: bool, current: Option<usize>) -> Option<HtmlElement> {
        into.set_text_content(None);
        let found = if marked { finds(&line.text(), &self.query) } else { Vec::new() };
        let mut current_mark = None;
        for piece in pieces(line, &found) {
            let holder = match piece.class.as_str() {
                "" => into.clone(),
                class => {
                    let Some(span) = self.make("span", class) else { continue };
                    let _ = into.append_child(&span);
                    span
                }
            };
            let Some(find) = piece.find else {
                let _ = holder.append_with_str_1(&piece.text);
                continue;
            };
            let Some(mark) = self.make("mark", "") else { continue };
            mark.set_text_content(Some(&piece.text));
            let _ = holder.append_child(&mark);
            if current == Some(find) {
                let _ = mark.set_attribute("aria-current", "true");
                if current_mark.is_none() {
                    current_mark = Some(mark.unchecked_into());
                }
            }
        }
        current_mark
    }

    fn show_end(&mut self) {
        self.following = true;
        self.view.set_scroll_top(self.view.scroll_height());
        self.none_unseen();
    }

    /// Looks whether the end is in view: only there does the view follow.
    fn look(&mut self) {
        let below = self.view.scroll_height() - self.view.scroll_top() - self.view.client_height();
        self.following = below <= NEAR_PX;
        if self.following {
            self.none_unseen();
        }
    }

    fn none_unseen(&self) {
        if self.controls.unseen.try_get_untracked() != Some(0) {
            let _ = self.controls.unseen.try_set(0);
        }
    }

    /// A click on a line's number means the line, and puts it into the address.
    fn click(&mut self, event: &Event) {
        let mouse = event.dyn_ref::<leptos::ev::MouseEvent>();
        if mouse.is_some_and(|mouse| mouse.ctrl_key() || mouse.meta_key() || mouse.shift_key()) {
            return;
        }
        let target = event.target().and_then(|target| target.dyn_into::<Element>().ok());
        let link = target.and_then(|element| element.closest(".log__no").ok().flatten());
        let Some(address) = link.and_then(|link| link.get_attribute("href")) else { return };
        let Some(number) = line_number(&address) else { return };
        event.prevent_default();
        self.choose(number);
        // The router keeps its own things in the state, so that stays. Without a history there is no
        // address to change either.
        if let Ok(history) = window().history()
            && let Ok(state) = history.state()
        {
            let _ = history.replace_state_with_url(&state, "", Some(&address));
        }
    }
}

/// `#L12` is line 12.
fn line_number(hash: &str) -> Option<u64> {
    hash.strip_prefix("#L")?.parse().ok()
}
