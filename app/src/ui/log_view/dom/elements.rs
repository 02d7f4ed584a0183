//! The elements of a log view: lines with their texts and marks, the note about removed lines, and the empty state.

use leptos::prelude::*;
use wasm_bindgen::JsCast;
use web_sys::{Element, HtmlElement};

use super::super::find::{matches, pieces};
use super::super::grouped;
use super::super::levels::{Level, line_class};
use super::Pane;
use crate::ui::ansi::Line;

impl Pane {
    pub(super) fn make(&self, tag: &str, class: &str) -> Option<Element> {
        let element = self.document.create_element(tag).ok()?;
        if !class.is_empty() {
            element.set_class_name(class);
        }
        Some(element)
    }

    /// Creates the element of a line, and in it the element of its text.
    pub(super) fn line_element(&self, number: u64, level: Option<Level>) -> Option<(HtmlElement, Element)> {
        let element = self.make("div", line_class(level, false))?;
        let link = self.make("a", "log__no")?;
        let text = self.make("span", "log__text")?;
        element.set_id(&format!("L{number}"));
        link.set_text_content(Some(&grouped(number)));
        let _ = link.set_attribute("href", &format!("#L{number}"));
        let _ = link.set_attribute("aria-label", &format!("Line {number}"));
        let _ = element.append_child(&link);
        let _ = element.append_child(&text);
        Some((element.unchecked_into(), text))
    }

    /// Writes the text of a line with marks. Returns the mark of the current match.
    pub(super) fn write_line(
        &self,
        into: &Element,
        line: &Line,
        marked: bool,
        current: Option<usize>,
    ) -> Option<HtmlElement> {
        into.set_text_content(None);
        let found = if marked { matches(&line.text(), &self.query) } else { Vec::new() };
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
            let Some(index) = piece.found else {
                let _ = holder.append_with_str_1(&piece.text);
                continue;
            };
            let Some(mark) = self.make("mark", "") else { continue };
            mark.set_text_content(Some(&piece.text));
            let _ = holder.append_child(&mark);
            if current == Some(index) {
                let _ = mark.set_attribute("aria-current", "true");
                if current_mark.is_none() {
                    current_mark = Some(mark.unchecked_into());
                }
            }
        }
        current_mark
    }

    pub(super) fn head_element(&self) -> Option<(Element, Element)> {
        let head = self.make("div", "log__gap")?;
        let text = self.make("span", "")?;
        let link = self.make("a", "")?;
        link.set_text_content(Some("raw log"));
        // Fails only for an invalid attribute name.
        let _ = link.set_attribute("href", &self.raw);
        let _ = link.set_attribute("rel", "external");
        let _ = head.append_child(&text);
        let _ = head.append_child(&link);
        let _ = self.view.insert_before(&head, self.view.first_child().as_ref());
        Some((head, text))
    }

    pub(super) fn update_empty_state(&mut self) {
        let nothing = self.rows.is_empty() && self.open.is_none() && self.pending.is_empty();
        // Before the first event the state is unknown.
        if nothing && !self.begun {
            return;
        }
        if self.controls.empty.try_get_untracked() != Some(nothing) {
            let _ = self.controls.empty.try_set(nothing);
        }
        if let Some(old) = self.empty.take() {
            old.remove();
        }
        if !nothing {
            return;
        }
        let (Some(line), Some(gutter), Some(text)) = (
            self.make("div", "log__line log__line--empty"),
            self.make("span", "log__no"),
            self.make("span", "log__text quiet"),
        ) else {
            return;
        };
        let content = match (self.ended, self.several) {
            (true, false) => "The job never wrote any output.",
            (true, true) => "This attempt never wrote any output. Choose another attempt above.",
            (false, _) => "No output yet. The lines appear here when the job writes them.",
        };
        text.set_text_content(Some(content));
        let _ = line.append_child(&gutter);
        let _ = line.append_child(&text);
        let _ = self.view.append_child(&line);
        self.empty = Some(line);
    }
}
