//! The capacity of a board model in the columns of the calendar: numbers, texts and bands.
//!
//! Pure. The portal counts the boards.

use berth_types::capacity::{CapacityStep, ModelCapacitySteps};
use serde::{Deserialize, Serialize};

use super::clock::Frame;
use crate::pages::text::{counted, number};

/// The most boards in the field of the needed boards: the most nodes of a reservation with the most devices each.
const MAX_BOARDS: u32 = 65_536;

/// A board model as a row of the calendar.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelRow {
    /// The name of the board model.
    pub model: String,
    /// The number of boards.
    pub boards: u32,
    /// The largest number of boards on one node.
    pub boards_per_node: u32,
    /// The number of nodes with boards of this model.
    pub nodes: u32,
}

/// Returns the rows of an answer.
pub fn model_rows(models: &[ModelCapacitySteps]) -> Vec<ModelRow> {
    let row = |one: &ModelCapacitySteps| ModelRow {
        model: one.model.clone(),
        boards: one.boards,
        boards_per_node: one.boards_per_node,
        nodes: one.nodes,
    };
    models.iter().map(row).collect()
}

/// Returns the number of free boards now of each model.
pub fn free_now(models: &[ModelCapacitySteps]) -> Vec<(String, u32)> {
    models.iter().map(|one| (one.model.clone(), one.free_now)).collect()
}

/// Returns the free boards of all boards: `6 of 8 boards free now`.
pub fn note_text(free: u32, boards: u32) -> String {
    let all = counted(usize::try_from(boards).unwrap_or(usize::MAX), "board", "boards");
    format!("{} of {all} free now", number(u64::from(free)))
}

/// Returns the numbers with the fewest free boards in each column; `None` for a column before the steps.
pub fn column_steps(steps: &[CapacityStep], frame: &Frame) -> Vec<Option<CapacityStep>> {
    let least = |column: usize| {
        let (from, until) = frame.column(column)?;
        let before = steps.partition_point(|step| step.at <= from).saturating_sub(1);
        let touched = steps.get(before..)?.iter().take_while(|step| step.at < until);
        touched.min_by_key(|step| step.free).copied()
    };
    (0..frame.columns()).map(least).collect()
}

/// Returns the numbers as text: `5 of 8 boards free, 1 yours, 2 taken`.
pub fn step_text(step: &CapacityStep, boards: u32) -> String {
    let all = counted(usize::try_from(boards).unwrap_or(usize::MAX), "board", "boards");
    let mut text = format!("{} of {all} free", number(u64::from(step.free)));
    for (count, word) in [(step.own, "yours"), (step.others, "taken"), (step.unavailable, "unavailable")] {
        if count > 0 {
            text.push_str(&format!(", {} {word}", number(u64::from(count))));
        }
    }
    text
}

/// The bands of a row as paths, one unit for each column and each board, from the bottom to the top.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bands {
    pub columns: usize,
    pub boards: u32,
    pub free: String,
    pub own: String,
    pub others: String,
    pub unavailable: String,
    /// The height of the needed boards from the top; absent for more boards than the model has.
    pub needed: Option<u32>,
}

/// Returns a rectangle for each run of columns with the same place. A place is the bottom and the height.
fn path(places: &[(u32, u32)], boards: u32) -> String {
    let mut out = String::new();
    let mut start = 0_usize;
    for run in places.chunk_by(|a, b| a == b) {
        let size = run.len();
        if let Some((bottom, height)) = run.first().filter(|(_, height)| *height > 0) {
            let top = boards.saturating_sub(bottom.saturating_add(*height));
            out.push_str(&format!("M{start} {top}h{size}v{height}h-{size}z"));
        }
        start = start.saturating_add(size);
    }
    out
}

/// Draws the columns of a row.
pub fn bands(columns: &[Option<CapacityStep>], boards: u32, needed: Option<u32>) -> Bands {
    let place = |below: fn(&CapacityStep) -> u32, height: fn(&CapacityStep) -> u32| {
        let of_column = |step: &Option<CapacityStep>| step.as_ref().map_or((0, 0), |s| (below(s), height(s)));
        path(&columns.iter().map(of_column).collect::<Vec<_>>(), boards)
    };
    Bands {
        columns: columns.len(),
        boards,
        free: place(|_| 0, |step| step.free),
        own: place(|step| step.free, |step| step.own),
        others: place(|step| step.free.saturating_add(step.own), |step| step.others),
        unavailable: place(
            |step| step.free.saturating_add(step.own).saturating_add(step.others),
            |step| step.unavailable,
        ),
        needed: needed.and_then(|needed| boards.checked_sub(needed)),
    }
}

/// Parses the number of needed boards; `None` for other text.
pub fn needed_boards(text: &str) -> Option<u32> {
    text.trim().parse().ok().filter(|boards| (1..=MAX_BOARDS).contains(boards))
}

/// Spreads boards evenly over the fewest nodes: (nodes, boards on each node). `None` if the model has too few nodes
/// for the same number of boards on each.
pub fn spread_boards(boards: u32, row: &ModelRow) -> Option<(u32, u32)> {
    let boards = boards.max(1);
    let each = (1..=row.boards_per_node.min(boards)).rev().find(|each| boards.is_multiple_of(*each))?;
    Some((boards / each, each)).filter(|(nodes, _)| *nodes <= row.nodes)
}

#[cfg(test)]
mod tests {
    use berth_types::time::Timestamp;

    use super::super::clock::View;
    use super::*;

    /// Returns a time of 22 November, such as `09:30`.
    fn at(clock: &str) -> Timestamp {
        format!("2026-11-22T{clock}:00Z").parse().unwrap()
    }

    fn step(clock: &str, [free, own, others, unavailable]: [u32; 4]) -> CapacityStep {
        CapacityStep { at: at(clock), free, own, others, unavailable }
    }

    fn frame() -> Frame {
        Frame::new(View::Day, at("00:00").millis() / 86_400_000, &|_| 0)
    }

    #[test]
    fn a_column_has_its_fewest_free_boards() {
        let steps = [
            step("09:10", [8, 0, 0, 0]),
            step("10:15", [2, 2, 4, 0]),
            step("10:20", [6, 2, 0, 0]),
            step("11:00", [8, 0, 0, 0]),
        ];
        let columns = column_steps(&steps, &frame());
        let free = |column: usize| columns[column].map(|step| step.free);
        assert_eq!(columns.len(), 48);
        // 09:00, 09:30, 10:00, 10:30, 11:00 and 23:30; then 08:30.
        assert_eq!([18, 19, 20, 21, 22, 47].map(free), [8, 8, 2, 6, 8, 8].map(Some));
        assert_eq!(free(17), None);
        assert!(column_steps(&[], &frame()).iter().all(Option::is_none));
    }

    #[test]
    fn numbers_have_texts() {
        assert_eq!(step_text(&step("09:00", [5, 1, 2, 0]), 8), "5 of 8 boards free, 1 yours, 2 taken");
        assert_eq!(step_text(&step("09:00", [0, 0, 0, 1]), 1), "0 of 1 board free, 1 unavailable");
        assert_eq!(note_text(6, 1_200), "6 of 1,200 boards free now");
        assert_eq!(note_text(0, 1), "0 of 1 board free now");
    }

    #[test]
    fn bands_are_stacked_without_gaps() {
        let column = |numbers: [u32; 4]| Some(step("09:00", numbers));
        let columns = [None, column([3, 1, 0, 0]), column([3, 1, 0, 0]), column([0, 1, 2, 1])];
        let drawn = bands(&columns, 4, Some(3));
        assert_eq!((drawn.columns, drawn.needed), (4, Some(1)));
        assert_eq!(drawn.free, "M1 1h2v3h-2z");
        assert_eq!(drawn.own, "M1 0h2v1h-2zM3 3h1v1h-1z");
        assert_eq!(drawn.others, "M3 1h1v2h-1z");
        assert_eq!(drawn.unavailable, "M3 0h1v1h-1z");
        assert_eq!(bands(&columns, 4, Some(5)).needed, None);
    }

    #[test]
    fn boards_are_spread_evenly_over_the_fewest_nodes() {
        let row = |boards_per_node: u32, nodes: u32| ModelRow {
            model: "A30".to_owned(),
            boards: boards_per_node * nodes,
            boards_per_node,
            nodes,
        };
        for boards in 1..100_u32 {
            for per_node in 1..20_u32 {
                let (nodes, each) = spread_boards(boards, &row(per_node, 100)).unwrap();
                assert_eq!(nodes * each, boards);
                assert!(each <= per_node);
                let fewer =
                    (1..nodes).find(|fewer| boards.is_multiple_of(*fewer) && boards / fewer <= per_node);
                assert_eq!(fewer, None, "{boards} boards, {per_node} on a node");
            }
        }
        assert_eq!(spread_boards(8, &row(4, 2)), Some((2, 4)));
        // Two nodes cannot have the same part of seven boards, and no node has ten.
        assert_eq!([spread_boards(7, &row(4, 2)), spread_boards(10, &row(4, 2))], [None, None]);
        assert_eq!(spread_boards(1, &row(0, 0)), None);
        assert_eq!([needed_boards(" 8 "), needed_boards("0"), needed_boards("many")], [Some(8), None, None]);
        assert_eq!(needed_boards("65537"), None);
    }

    #[test]
    fn each_answer_has_the_boards_that_are_free_now() {
        let model = ModelCapacitySteps {
            model: "A30".to_owned(),
            boards: 4,
            boards_per_node: 2,
            nodes: 2,
            free_now: 1,
            coarse: false,
            steps: vec![step("09:00", [3, 1, 0, 0])],
        };
        let models = [model];
        assert_eq!(free_now(&models), [("A30".to_owned(), 1)], "a later period too");
        assert_eq!(model_rows(&models).first().map(|row| row.boards_per_node), Some(2));
    }
}
