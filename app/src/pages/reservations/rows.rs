//! The rows of a grid: board models with their capacity, or single boards with their spans.

use berth_types::capacity::CapacityStep;
use leptos::prelude::*;

use super::boards_state::{Board, BoardsState};
use super::calendar_state::CalendarState;
use super::capacity::{Bands, ModelRow, bands, step_text};
use super::capacity_state::CapacityState;
use super::clock::Frame;
use super::columns::{Block, column_text};

/// The source of the rows.
#[derive(Clone, Copy)]
pub enum Rows {
    /// One row for each model.
    Models(CapacityState),
    /// One row for each board of a page.
    Boards(BoardsState),
}

/// A row without its columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The model, or the UUID of the board.
    pub key: String,
    /// The head of the row.
    pub label: String,
    /// The node of a board. Rows of a group stand together.
    pub group: String,
    /// The height of the row in memory slices; 1 for a model.
    pub slices: u32,
}

/// The drawing of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Drawing {
    Bands(Bands),
    Tiles(Vec<Block>),
}

/// The columns of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// The text of each column.
    pub texts: Vec<String>,
    /// True for each column with the needed boards.
    pub fits: Vec<bool>,
    pub drawing: Drawing,
}

fn model_line(row: &ModelRow) -> Line {
    Line { key: row.model.clone(), label: row.model.clone(), group: String::new(), slices: 1 }
}

fn board_line(board: &Board) -> Line {
    Line {
        key: board.uuid.clone(),
        label: board.label.clone(),
        group: board.node.clone(),
        slices: board.cells,
    }
}

impl Rows {
    /// Returns the accessible name of the grid.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Models(_) => "Capacity by model",
            Self::Boards(_) => "Boards by time",
        }
    }

    /// Returns the classes of the grid.
    pub const fn class(self) -> &'static str {
        match self {
            Self::Models(_) => "schedule__grid schedule__grid--models",
            Self::Boards(_) => "schedule__grid",
        }
    }

    /// Returns the signals of the time.
    pub const fn calendar(self) -> CalendarState {
        match self {
            Self::Models(state) => state.calendar,
            Self::Boards(state) => state.calendar,
        }
    }

    /// Returns true if the frame has no answer yet.
    pub fn is_loading(self) -> bool {
        match self {
            Self::Models(state) => state.is_loading(),
            Self::Boards(state) => state.is_loading(),
        }
    }

    /// Returns the rows from top to bottom.
    pub fn lines(self) -> Vec<Line> {
        match self {
            Self::Models(state) => state.models.with(|models| models.iter().map(model_line).collect()),
            Self::Boards(state) => state.shown().iter().map(board_line).collect(),
        }
    }

    /// Returns the second line of the head of a row; empty without one.
    pub fn note(self, line: &Line) -> String {
        match self {
            Self::Models(state) => state.note(&line.key),
            Self::Boards(_) => String::new(),
        }
    }

    /// Returns the columns of a row; `None` before an answer for the frame.
    pub fn content(self, line: &Line, frame: &Frame) -> Option<Content> {
        match self {
            Self::Models(state) => {
                let columns = state.columns(&line.key, frame)?;
                let boards = state.models.with(|models| {
                    models.iter().find(|row| row.model == line.key).map_or(0, |row| row.boards)
                });
                let needed = state.needed();
                let text = |step: &Option<CapacityStep>| {
                    step.as_ref().map_or_else(|| "past".to_owned(), |s| step_text(s, boards))
                };
                let fits = |step: &Option<CapacityStep>| {
                    step.as_ref().zip(needed).is_some_and(|(step, needed)| step.free >= needed)
                };
                Some(Content {
                    texts: columns.iter().map(text).collect(),
                    fits: columns.iter().map(fits).collect(),
                    drawing: Drawing::Bands(bands(&columns, boards, needed)),
                })
            }
            Self::Boards(state) => {
                let blocks = state.blocks(&line.key, frame)?;
                let text = |column: usize| column_text(&blocks, line.slices, column);
                let texts = (0..frame.columns()).map(text).collect();
                Some(Content { texts, fits: Vec::new(), drawing: Drawing::Tiles(blocks) })
            }
        }
    }

    /// Tells the page about a selection in a row.
    pub fn pick(self, line: &Line) {
        if let Self::Models(state) = self {
            state.picked.set(Some(line.key.clone()));
        }
    }
}
