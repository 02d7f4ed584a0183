//! The signals of the capacity by model.

use berth_types::capacity::{Capacity, CapacityStep};
use leptos::prelude::*;

use super::calendar_state::{CalendarState, Updates};
use super::capacity::{ModelRow, column_steps, free_now, model_rows, needed_boards, note_text};
use super::clock::Frame;
use crate::pages::limits::replace;

/// The signals of the capacity.
#[derive(Clone, Copy)]
pub struct CapacityState {
    /// The time.
    pub calendar: CalendarState,
    /// The rows.
    pub models: RwSignal<Vec<ModelRow>>,
    /// The input of the needed boards.
    pub needed: RwSignal<String>,
    /// The model of the latest selection.
    pub picked: RwSignal<Option<String>>,
    pub(super) answer: RwSignal<Option<Capacity>>,
    /// The free boards of each model at the last known present time.
    pub(super) free: RwSignal<Vec<(String, u32)>>,
    pub(super) updates: RwSignal<Updates>,
}

impl CapacityState {
    /// Returns the numbers in each column of a model; `None` before an answer for the frame.
    pub fn columns(self, model: &str, frame: &Frame) -> Option<Vec<Option<CapacityStep>>> {
        self.answer.with(|answer| {
            let answer = answer.as_ref().filter(|a| a.from == frame.from() && a.until == frame.until())?;
            let steps = answer.models.iter().find(|one| one.model == model).map(|one| one.steps.as_slice());
            Some(column_steps(steps.unwrap_or_default(), frame))
        })
    }

    /// Returns true if the frame has no answer yet.
    pub fn is_loading(self) -> bool {
        let period = self.calendar.period();
        self.answer.with(|answer| answer.as_ref().map(|answer| (answer.from, answer.until)) != period)
            || period.is_none()
    }

    /// Returns the free boards of a model now as text; empty before an answer.
    pub fn note(self, model: &str) -> String {
        let boards =
            self.models.with(|models| models.iter().find(|row| row.model == model).map(|row| row.boards));
        let free =
            self.free.with(|free| free.iter().find(|(known, _)| known == model).map(|(_, free)| *free));
        boards.zip(free).map_or_else(String::new, |(boards, free)| note_text(free, boards))
    }

    /// Returns the number of needed boards; `None` for invalid input.
    pub fn needed(self) -> Option<u32> {
        self.needed.with(|text| needed_boards(text))
    }

    pub(super) fn set_answer(self, fresh: Capacity) {
        // Unchanged parts keep their elements and the focus.
        replace(self.models, model_rows(&fresh.models));
        replace(self.free, free_now(&fresh.models));
        replace(self.answer, Some(fresh));
    }
}
