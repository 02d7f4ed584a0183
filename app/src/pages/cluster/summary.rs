//! Summary of the boards of each model. Pure.

use berth_types::cluster::{BoardModel, BoardState, ClusterMap, MapBoard};

use super::super::text::{counted, free_devices_text, grouped};
use super::text::is_plain;

/// The numbers of boards of one model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelSummary {
    pub model: String,
    pub boards: usize,
    pub full: usize,
    /// Boards that are free as a whole. An unused board in MIG mode until a reset has slices only.
    pub free: usize,
    /// The smallest profile of the model, with the number of its free slices on all boards.
    slices: Option<(u64, String)>,
    pub partly_free: usize,
    /// Quarantined boards, and boards of nodes that take no new work.
    pub unavailable: usize,
    /// The position in the profiles of the model with the largest free slice of a partly free board.
    largest: Option<usize>,
    largest_slice: Option<String>,
}

impl ModelSummary {
    fn add(&mut self, map: &ClusterMap, model: &BoardModel, board: &MapBoard) {
        self.boards += 1;
        if matches!(board.state, BoardState::Free | BoardState::PartlyFree) {
            self.add_slices(map, model, board);
        }
        match board.state {
            BoardState::Free => {
                self.free += usize::from(map.free(board).iter().any(|free| free.profile.is_none()));
            }
            BoardState::Full => self.full += 1,
            BoardState::PartlyFree => {
                self.partly_free += 1;
                let free = map.free(board).iter().filter_map(|free| free.profile.as_deref());
                let at = |profile: &str| model.profiles.iter().position(|known| known == profile);
                let largest = free.filter(|profile| is_plain(profile)).filter_map(at).max();
                if largest > self.largest {
                    self.largest = largest;
                    self.largest_slice = largest.and_then(|at| model.profiles.get(at)).cloned();
                }
            }
            BoardState::Quarantined
            | BoardState::Draining
            | BoardState::Cordoned
            | BoardState::NotConnected => self.unavailable += 1,
        }
    }

    fn add_slices(&mut self, map: &ClusterMap, model: &BoardModel, board: &MapBoard) {
        let Some(smallest) = model.profiles.iter().find(|profile| is_plain(profile)) else { return };
        let free = map.free(board).iter().find(|free| free.profile.as_ref() == Some(smallest));
        let (slices, _) = self.slices.get_or_insert_with(|| (0, smallest.clone()));
        *slices = slices.saturating_add(free.map_or(0, |free| u64::from(free.count)));
    }

    /// Returns the summary after the name of the model: `812 of 1,000 boards in use, 92 partly free; 96 boards
    /// free, or 1,040 slices of 1g.10gb; largest free slice 4g.40gb`.
    pub fn text(&self) -> String {
        let number = |count: usize| grouped(i64::try_from(count).unwrap_or(i64::MAX));
        let mut text = format!(
            "{} of {} in use, {} partly free",
            number(self.full),
            counted(self.boards, "board", "boards"),
            number(self.partly_free)
        );
        if self.unavailable > 0 {
            text.push_str(&format!(", {} not available", number(self.unavailable)));
        }
        let slices = self.slices.as_ref().map(|(slices, profile)| (*slices, profile.as_str()));
        let free = free_devices_text(u64::try_from(self.free).unwrap_or(u64::MAX), slices);
        text.push_str(&format!("; {free}"));
        if let Some(slice) = &self.largest_slice {
            text.push_str(&format!("; largest free slice {slice}"));
        }
        text
    }
}

/// Returns the summary of each model, in the order of the map.
pub fn summaries(map: &ClusterMap) -> Vec<ModelSummary> {
    let named = |model: &BoardModel| ModelSummary { model: model.name.clone(), ..ModelSummary::default() };
    let mut all: Vec<ModelSummary> = map.models.iter().map(named).collect();
    for board in map.nodes.iter().flat_map(|node| &node.boards) {
        let summary = usize::try_from(board.model).ok().and_then(|at| all.get_mut(at));
        if let (Some(summary), Some(model)) = (summary, map.model(board)) {
            summary.add(map, model, board);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::cluster::{FreeDevices, MapNode};

    fn board(model: u32, state: BoardState, free: u32) -> MapBoard {
        MapBoard { uuid: String::new(), index: 0, model, state, cells: "........".to_owned(), free }
    }

    fn map(boards: Vec<MapBoard>) -> ClusterMap {
        let profiles = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let free = |names: &[&str]| {
            let device = |name: &&str| FreeDevices { profile: Some((*name).to_owned()), count: 1 };
            names.iter().map(device).collect::<Vec<_>>()
        };
        let whole = |names: &[&str]| [vec![FreeDevices { profile: None, count: 1 }], free(names)].concat();
        ClusterMap {
            models: vec![
                BoardModel {
                    name: "H100".to_owned(),
                    profiles: profiles(&["1g", "1g+me", "3g", "4g", "7g"]),
                },
                BoardModel { name: "A30".to_owned(), profiles: profiles(&["1g", "2g"]) },
            ],
            free_sets: vec![
                free(&["1g", "1g+me", "3g"]),
                free(&["1g", "4g"]),
                whole(&["1g", "7g"]),
                free(&["1g", "2g"]),
            ],
            nodes: vec![MapNode {
                id: "node_00000000000000000000000001".parse().unwrap(),
                name: "pier-01".to_owned(),
                labels: Default::default(),
                dedicated: false,
                boards,
            }],
        }
    }

    #[test]
    fn boards_are_counted_by_model_and_state() {
        use BoardState::{Draining, Free, Full, NotConnected, PartlyFree, Quarantined};
        let boards = vec![
            board(0, Full, 0),
            board(0, PartlyFree, 1),
            board(0, PartlyFree, 0),
            // The largest slice of a free board is the board, so it does not count.
            board(0, Free, 2),
            board(0, Draining, 2),
            board(0, Quarantined, 2),
            board(1, NotConnected, 0),
            // It is in MIG mode until a reset.
            board(1, Free, 3),
            board(7, Free, 0),
        ];
        let texts: Vec<(String, String)> =
            summaries(&map(boards)).into_iter().map(|one| (one.model.clone(), one.text())).collect();
        let h100 = "1 of 6 boards in use, 2 partly free, 2 not available; 1 board free, or 3 slices of 1g; largest free slice 4g";
        let a30 = "0 of 2 boards in use, 0 partly free, 1 not available; no board free, 1 slice of 1g";
        assert_eq!(texts, [("H100", h100), ("A30", a30)].map(|(a, b)| (a.to_owned(), b.to_owned())));
    }

    #[test]
    fn large_numbers_are_grouped() {
        let boards = (0..1_200).map(|_| board(0, BoardState::Full, 0)).collect();
        let text = summaries(&map(boards)).first().map(ModelSummary::text);
        assert_eq!(text.as_deref(), Some("1,200 of 1,200 boards in use, 0 partly free; no board free"));
    }
}
