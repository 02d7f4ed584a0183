//! The signals of the calendar of single boards.

use berth_types::reservations::{Calendar, CalendarRow};
use berth_types::time::Timestamp;
use leptos::prelude::*;

use super::calendar_state::{CalendarState, Updates};
use super::clock::Frame;
use super::columns::{Block, blocks};
use crate::pages::limits::replace;

/// The boards of a page.
pub const PAGE_BOARDS: usize = 32;

/// A board as a row of the calendar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Board {
    pub uuid: String,
    /// `quay-1 · GPU 0 · H100-80GB`.
    pub label: String,
    pub node: String,
    /// The number of memory slices.
    pub cells: u32,
}

fn row_boards(rows: &[CalendarRow]) -> Vec<Board> {
    let board = |row: &CalendarRow| Board {
        uuid: row.gpu_uuid.clone(),
        label: format!("{} · GPU {} · {}", row.node_name, row.gpu_index, row.model),
        node: row.node_name.clone(),
        cells: row.cells.max(1),
    };
    rows.iter().map(board).collect()
}

/// An answer with its window.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CalendarAnswer {
    from: Timestamp,
    until: Timestamp,
    rows: Vec<CalendarRow>,
}

/// The signals of the boards.
#[derive(Clone, Copy)]
pub struct BoardsState {
    /// The time.
    pub calendar: CalendarState,
    /// The boards of the latest answer.
    pub boards: RwSignal<Vec<Board>>,
    /// The model of the shown boards; absent for all boards.
    pub model: RwSignal<Option<String>>,
    /// The number of the page, from 0.
    pub page: RwSignal<usize>,
    pub(super) answer: RwSignal<Option<CalendarAnswer>>,
    pub(super) updates: RwSignal<Updates>,
}

impl BoardsState {
    /// Returns signals without an answer.
    pub fn new(calendar: CalendarState) -> Self {
        Self {
            calendar,
            boards: RwSignal::new(Vec::new()),
            model: RwSignal::new(None),
            page: RwSignal::new(0),
            answer: RwSignal::new(None),
            updates: RwSignal::new(Updates::default()),
        }
    }

    /// Returns the boards of the page.
    pub fn shown(self) -> Vec<Board> {
        let first = self.first();
        self.boards.with(|boards| boards.iter().skip(first).take(PAGE_BOARDS).cloned().collect())
    }

    /// Returns the number of boards before the page. A page after the last one is the last one.
    pub fn first(self) -> usize {
        let last = self.boards.with(Vec::len).saturating_sub(1) / PAGE_BOARDS;
        self.page.get().min(last).saturating_mul(PAGE_BOARDS)
    }

    /// Returns the tiles of a board; `None` before an answer for the frame.
    pub fn blocks(self, uuid: &str, frame: &Frame) -> Option<Vec<Block>> {
        let now = self.calendar.present();
        self.answer.with(|answer| {
            let answer = answer.as_ref().filter(|a| a.from == frame.from() && a.until == frame.until())?;
            let row = answer.rows.iter().find(|row| row.gpu_uuid == uuid);
            Some(row.map(|row| blocks(row, frame, now)).unwrap_or_default())
        })
    }

    /// Returns true if the frame has no answer yet.
    pub fn is_loading(self) -> bool {
        let period = self.calendar.period();
        self.answer.with(|answer| answer.as_ref().map(|answer| (answer.from, answer.until)) != period)
            || period.is_none()
    }

    pub(super) fn set_answer(self, fresh: Calendar) {
        // Unchanged parts keep their elements and the focus.
        replace(self.boards, row_boards(&fresh.rows));
        let fresh = CalendarAnswer { from: fresh.from, until: fresh.until, rows: fresh.rows };
        replace(self.answer, Some(fresh));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boards_have_labels() {
        let row: CalendarRow = serde_json::from_value(serde_json::json!({
            "node": "node_00000000000000000000000001", "node_name": "quay-1", "gpu_uuid": "GPU-1",
            "gpu_index": 1, "model": "A30", "cells": 0, "spans": [],
        }))
        .unwrap();
        let boards = row_boards(&[row]);
        assert_eq!(boards.first().map(|b| (b.label.as_str(), b.cells)), Some(("quay-1 · GPU 1 · A30", 1)));
    }
}
