//! Search of a log view: count of matches, steps between them, and scrolling to a line.

use leptos::prelude::*;
use web_sys::HtmlElement;

use super::super::find::matches;
use super::super::levels::line_class;
use super::{MAX_MARKS, NEAR_PX, Pane, Row};

impl Pane {
    pub(super) fn search(&mut self, query: String) {
        self.query = query;
        self.current = None;
        let mut all = 0;
        for row in &mut self.rows {
            let shown = row.line.as_ref().filter(|_| row.is_shown(self.shown));
            let found = shown.map_or(0, |line| matches(&line.text(), &self.query).len());
            row.matches = found;
            all += found;
        }
        self.matches = all;
        for row in &self.rows {
            let marks = row.matches > 0 && all <= MAX_MARKS;
            if let Some(line) = &row.line
                && (marks || row.marked)
            {
                self.write_line(&row.text, line, marks, None);
            }
        }
        for row in &mut self.rows {
            row.marked = row.matches > 0 && all <= MAX_MARKS;
        }
        if all == 0 {
            self.publish_matches();
            return;
        }
        // The first match below the top of the visible part, or else the last one above.
        let top = self.view.offset_top() + self.view.scroll_top();
        let shown: Vec<&Row> = self.rows.iter().filter(|row| row.is_shown(self.shown)).collect();
        let above = shown.partition_point(|row| row.element.offset_top() < top);
        let before: usize = shown.iter().take(above).map(|row| row.matches).sum();
        self.select_match(before.min(all - 1));
    }

    pub(super) fn step(&mut self, by: i64) {
        let Ok(all) = i64::try_from(self.matches) else { return };
        if all == 0 {
            return;
        }
        let index = self.match_index().map_or(-1, |index| i64::try_from(index).unwrap_or(0));
        self.select_match(usize::try_from((index + by).rem_euclid(all)).unwrap_or(0));
    }

    /// Finds the index of the current match.
    fn match_index(&self) -> Option<usize> {
        let (number, in_line) = self.current?;
        let index = self.row_index(number)?;
        Some(self.rows.iter().take(index).map(|row| row.matches).sum::<usize>() + in_line)
    }

    fn row_index(&self, number: u64) -> Option<usize> {
        self.rows.iter().position(|row| row.number() == Some(number))
    }

    /// Selects a match and scrolls to it.
    fn select_match(&mut self, index: usize) {
        if let Some((number, _)) = self.current.take() {
            let all_marked = self.matches <= MAX_MARKS;
            self.redraw(number, all_marked, None);
        }
        let mut left = index;
        let target = self.rows.iter().find_map(|row| {
            if left < row.matches {
                return row.number();
            }
            left -= row.matches;
            None
        });
        if let Some(number) = target {
            self.current = Some((number, left));
            self.select_line(number);
            if let Some(mark) = self.redraw(number, true, Some(left)) {
                self.scroll_to(&mark);
            }
        }
        self.publish_matches();
    }

    fn redraw(&mut self, number: u64, marked: bool, current: Option<usize>) -> Option<HtmlElement> {
        let index = self.row_index(number)?;
        let row = self.rows.get(index)?;
        let mark = row.line.as_ref().and_then(|line| self.write_line(&row.text, line, marked, current));
        if let Some(row) = self.rows.get_mut(index) {
            row.marked = marked;
        }
        mark
    }

    pub(super) fn publish_matches(&self) {
        let number = self.match_index().map_or(0, |index| index + 1);
        let found = (number, self.matches);
        if self.controls.found.try_get_untracked() != Some(found) {
            let _ = self.controls.found.try_set(found);
        }
    }

    /// Marks a line as selected.
    pub(super) fn select_line(&mut self, number: u64) {
        if let Some(old) = self.selected.replace(number)
            && let Some(row) = self.row_index(old).and_then(|index| self.rows.get(index))
        {
            row.element.set_class_name(line_class(row.level, false));
        }
        if let Some(row) = self.row_index(number).and_then(|index| self.rows.get(index)) {
            row.element.set_class_name(line_class(row.level, true));
        }
    }

    pub(super) fn scroll_to_line(&mut self, number: u64) {
        let element =
            self.row_index(number).and_then(|index| self.rows.get(index)).map(|row| row.element.clone());
        if let Some(element) = element {
            self.scroll_to(&element);
        }
    }

    /// Scrolls an element to the middle of the view, without scrolling the page.
    fn scroll_to(&mut self, target: &HtmlElement) {
        self.following = false;
        let middle = self.view.client_height() / 2;
        self.view.set_scroll_top((target.offset_top() - self.view.offset_top() - middle).max(0));
        let (left, width) = (target.offset_left() - self.view.offset_left(), self.view.client_width());
        self.view.set_scroll_left(if left + NEAR_PX > width { left - width / 2 } else { 0 });
    }
}
