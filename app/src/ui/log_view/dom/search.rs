//! The finds of a log view: counting them, going from one to the next, and showing a line.

use leptos::prelude::*;
use web_sys::HtmlElement;

use super::super::find::finds;
use super::{MARKS, NEAR_PX, Pane};

impl Pane {
    pub(super) fn search(&mut self, query: String) {
        self.query = query;
        self.current = None;
        let mut all = 0;
        for kept in &mut self.kept {
            let found = kept.line.as_ref().map_or(0, |line| finds(&line.text(), &self.query).len());
            kept.finds = found;
            all += found;
        }
        self.finds = all;
        for kept in &self.kept {
            let marks = kept.finds > 0 && all <= MARKS;
            if let Some(line) = &kept.line
                && (marks || kept.marked)
            {
                self.fill(&kept.text, line, marks, None);
            }
        }
        for kept in &mut self.kept {
            kept.marked = kept.finds > 0 && all <= MARKS;
        }
        if all == 0 {
            self.tell_found();
            return;
        }
        // The first find from the top of what is seen on, else the last one above.
        let top = self.view.offset_top() + self.view.scroll_top();
        let above = self.kept.partition_point(|kept| kept.element.offset_top() < top);
        let before: usize = self.kept.iter().take(above).map(|kept| kept.finds).sum();
        self.go_to(before.min(all - 1));
    }

    pub(super) fn step(&mut self, by: i64) {
        let Ok(all) = i64::try_from(self.finds) else { return };
        if all == 0 {
            return;
        }
        let place = self.place().map_or(-1, |place| i64::try_from(place).unwrap_or(0));
        self.go_to(usize::try_from((place + by).rem_euclid(all)).unwrap_or(0));
    }

    /// Which of all finds the current one is, counted from 0.
    fn place(&self) -> Option<usize> {
        let (number, find) = self.current?;
        let index = self.index(number)?;
        Some(self.kept.iter().take(index).map(|kept| kept.finds).sum::<usize>() + find)
    }

    fn index(&self, number: u64) -> Option<usize> {
        self.kept.iter().position(|kept| kept.number() == Some(number))
    }

    /// Makes one of all finds the current one, and shows it.
    fn go_to(&mut self, place: usize) {
        if let Some((number, _)) = self.current.take() {
            let all_marked = self.finds <= MARKS;
            self.write_anew(number, all_marked, None);
        }
        let mut left = place;
        let target = self.kept.iter().find_map(|kept| {
            if left < kept.finds {
                return kept.number();
            }
            left -= kept.finds;
            None
        });
        if let Some(number) = target {
            self.current = Some((number, left));
            self.choose(number);
            if let Some(mark) = self.write_anew(number, true, Some(left)) {
                self.bring(&mark);
            }
        }
        self.tell_found();
    }

    fn write_anew(&mut self, number: u64, marked: bool, current: Option<usize>) -> Option<HtmlElement> {
        let index = self.index(number)?;
        let kept = self.kept.get(index)?;
        let mark = kept.line.as_ref().and_then(|line| self.fill(&kept.text, line, marked, current));
        if let Some(kept) = self.kept.get_mut(index) {
            kept.marked = marked;
        }
        mark
    }

    pub(super) fn tell_found(&self) {
        let place = self.place().map_or(0, |place| place + 1);
        let found = (place, self.finds);
        if self.controls.found.try_get_untracked() != Some(found) {
            let _ = self.controls.found.try_set(found);
        }
    }

    /// Marks a line as the one that is meant.
    pub(super) fn choose(&mut self, number: u64) {
        if let Some(old) = self.chosen.replace(number)
            && let Some(kept) = self.index(old).and_then(|index| self.kept.get(index))
        {
            kept.element.set_class_name("log__line");
        }
        if let Some(kept) = self.index(number).and_then(|index| self.kept.get(index)) {
            kept.element.set_class_name("log__line log__line--on");
        }
    }

    pub(super) fn bring_line(&mut self, number: u64) {
        let element = self.index(number).and_then(|index| self.kept.get(index)).map(|k| k.element.clone());
        if let Some(element) = element {
            self.bring(&element);
        }
    }

    /// Scrolls so that an element stands in the middle, without moving the page.
    fn bring(&mut self, target: &HtmlElement) {
        self.following = false;
        let middle = self.view.client_height() / 2;
        self.view.set_scroll_top((target.offset_top() - self.view.offset_top() - middle).max(0));
        let (left, width) = (target.offset_left() - self.view.offset_left(), self.view.client_width());
        self.view.set_scroll_left(if left + NEAR_PX > width { left - width / 2 } else { 0 });
    }
}
