//! The signals of the calendar, and the answers for its frame.

use std::sync::Arc;

use berth_types::reservations::{Calendar, CalendarRow};
use berth_types::time::Timestamp;
use leptos::prelude::*;

use super::choice::Choice;
use super::clock::{Frame, View};
use super::columns::{Block, blocks};
use super::{Board, row_boards};

/// An answer with its window.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CalendarAnswer {
    from: Timestamp,
    until: Timestamp,
    rows: Vec<CalendarRow>,
}

/// The signals of the calendar.
#[derive(Clone, Copy)]
pub struct CalendarState {
    /// The time choice.
    pub choice: Choice,
    /// The Unix time in milliseconds; 0 before hydration.
    pub now: RwSignal<i64>,
    /// The columns; absent before hydration.
    pub frame: Memo<Option<Arc<Frame>>>,
    /// The rows.
    pub boards: RwSignal<Vec<Board>>,
    pub(super) view: RwSignal<View>,
    /// A day of the frame, counted from 1970-01-01.
    pub(super) day: RwSignal<Option<i64>>,
    pub(super) answer: RwSignal<Option<CalendarAnswer>>,
    /// The number of failed requests since the last answer.
    pub(super) failures: RwSignal<u32>,
}

impl CalendarState {
    /// Returns the browser's time.
    pub fn present(self) -> Timestamp {
        Timestamp::from_micros(self.now.get().saturating_mul(1_000))
    }

    /// Returns the tiles of a board; `None` before an answer for the frame.
    pub fn blocks(self, board: &Board, frame: &Frame) -> Option<Vec<Block>> {
        let now = self.present();
        self.answer.with(|answer| {
            let answer = answer.as_ref().filter(|a| a.from == frame.from() && a.until == frame.until())?;
            let row = answer.rows.iter().find(|row| row.gpu_uuid == board.uuid);
            Some(row.map(|row| blocks(row, frame, now)).unwrap_or_default())
        })
    }

    /// Tells whether the frame has no answer yet.
    pub fn is_loading(self) -> bool {
        let frame = self.frame.get();
        let window = frame.as_ref().map(|frame| (frame.from(), frame.until()));
        self.answer.with(|answer| answer.as_ref().map(|answer| (answer.from, answer.until)) != window)
            || window.is_none()
    }

    pub(super) fn today(self) -> i64 {
        let zone = self.choice.zone.get_untracked();
        zone.wall(Timestamp::from_micros(self.now.get_untracked().saturating_mul(1_000))).day()
    }

    pub(super) fn set_answer(self, fresh: Calendar) {
        let boards = row_boards(&fresh.rows);
        // Unchanged parts keep their elements and the focus.
        self.boards.maybe_update(|known| {
            let changed = *known != boards;
            *known = boards;
            changed
        });
        let fresh = Some(CalendarAnswer { from: fresh.from, until: fresh.until, rows: fresh.rows });
        self.answer.maybe_update(|known| {
            let changed = *known != fresh;
            *known = fresh;
            changed
        });
    }
}
