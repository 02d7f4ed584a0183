//! Texts and classes of boards. Pure.

use berth_types::cluster::{BoardState, ClusterMap, FreeDevices, MapBoard, MapNode, RACK_LABEL, WHOLE_BOARD};
use berth_types::nodes::Gpu;

/// Returns the name of a state: `partly free`.
pub fn state_text(state: BoardState) -> String {
    state.name().replace('_', " ")
}

/// Returns the name of a device of a filter: `1g.10gb`, or `whole board`.
pub fn device_text(device: &str) -> String {
    if device == WHOLE_BOARD { "whole board".to_owned() } else { device.to_owned() }
}

/// Returns true if a profile has no media or graphics option. The others have the geometry of such a profile.
pub fn is_plain(profile: &str) -> bool {
    !profile.contains('+') && !profile.ends_with("-me")
}

/// Returns the free devices: `3 × 1g.10gb or 1 × 2g.20gb`; empty without a free device.
pub fn free_text(free: &[FreeDevices]) -> String {
    let device = |free: &FreeDevices| match free.profile.as_deref() {
        None => Some("1 whole board".to_owned()),
        Some(profile) => is_plain(profile).then(|| format!("{} × {profile}", free.count)),
    };
    free.iter().filter_map(device).collect::<Vec<_>>().join(" or ")
}

/// Returns the state with the free devices: `partly free: 3 × 1g.10gb or 1 × 2g.20gb`.
pub fn board_text(state: BoardState, free: &[FreeDevices]) -> String {
    let free = free_text(free);
    if free.is_empty() { state_text(state) } else { format!("{}: {free}", state_text(state)) }
}

/// Returns the name of a board: `pier-01, GPU 0`.
pub fn board_name(node: &str, index: u32) -> String {
    format!("{node}, GPU {index}")
}

/// Returns the accessible name of a board in the map: `pier-01, GPU 0: partly free: 3 × 1g.10gb, your jobs`.
pub fn board_title(map: &ClusterMap, node: &MapNode, board: &MapBoard) -> String {
    let name = board_name(&node.name, board.index);
    // The map has many free boards, and their devices are those of the model.
    let state = match board.state {
        BoardState::Free => state_text(board.state),
        state => board_text(state, map.free(board)),
    };
    let own = if board.is_own() { ", your jobs" } else { "" };
    format!("{name}: {state}{own}")
}

/// Returns the name of a node, with its state if it takes no new work: `pier-01 (draining)`.
pub fn node_text(node: &MapNode) -> String {
    match node.boards.first().map(|board| board.state).filter(|state| state.is_of_node()) {
        Some(state) => format!("{} ({})", node.name, state_text(state)),
        None => node.name.clone(),
    }
}

/// Returns the rack of a node; `None` without one.
pub fn rack(node: &MapNode) -> Option<&str> {
    node.labels.get(RACK_LABEL).map(String::as_str)
}

/// Returns the used quarters of a board, 0 to 4, with a begun one. Only an unused board has 0, and only a full one 4.
fn used_quarter(cells: &str) -> usize {
    let all = cells.chars().count().max(1);
    match cells.chars().filter(|cell| matches!(cell, 'o' | 'x' | 'q')).count() {
        0 => 0,
        used if used >= all => 4,
        used => (used * 4).div_ceil(all).clamp(1, 3),
    }
}

/// Returns the classes of a board in the map.
pub fn board_class(board: &MapBoard, by_use: bool, shown: bool) -> String {
    let mut class = String::from(if shown { "board" } else { "board board--out" });
    if by_use {
        class.push_str(&format!(" board--used board--used-{}", used_quarter(&board.cells)));
        return class;
    }
    class.push_str(&format!(" board--{}", board.state.name().replace('_', "-")));
    if board.is_own() {
        class.push_str(" board--own");
    }
    class.push_str(&format!(" board--n{}", board.cells.chars().count()));
    for (at, cell) in board.cells.chars().enumerate() {
        if cell != '.' {
            let kind = if cell == '-' { 'b' } else { cell };
            class.push_str(&format!(" {kind}{at}"));
        }
    }
    class
}

/// Returns the reported power, temperature and utilization.
pub fn readings(gpu: &Gpu) -> String {
    let power = gpu.power_watts.map(|watts| format!("{watts:.0} W"));
    let heat = gpu.temperature_celsius.map(|degrees| format!("{degrees:.0} °C"));
    let used = gpu.utilization_percent.map(|percent| format!("{percent:.0} % utilization"));
    let all: Vec<String> = [power, heat, used].into_iter().flatten().collect();
    if all.is_empty() { "no metrics".to_owned() } else { all.join(" · ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board(state: BoardState, cells: &str) -> MapBoard {
        MapBoard { uuid: "GPU-1".to_owned(), index: 3, model: 0, state, cells: cells.to_owned(), free: 0 }
    }

    fn node(state: BoardState) -> MapNode {
        MapNode {
            id: "node_00000000000000000000000001".parse().unwrap(),
            name: "pier-01".to_owned(),
            labels: [("rack".to_owned(), "r1".to_owned())].into(),
            dedicated: false,
            boards: vec![board(state, "........")],
        }
    }

    #[test]
    fn free_devices_are_counted_by_profile() {
        let free = |profile: Option<&str>, count| FreeDevices { profile: profile.map(str::to_owned), count };
        let some = [free(Some("1g.10gb"), 7), free(Some("1g.10gb+me"), 1), free(Some("4g.40gb"), 1)];
        assert_eq!(free_text(&some), "7 × 1g.10gb or 1 × 4g.40gb");
        assert_eq!(free_text(&[free(None, 1), free(Some("1g.24gb-me"), 4)]), "1 whole board");
        assert_eq!(board_text(BoardState::PartlyFree, &some[..1]), "partly free: 7 × 1g.10gb");
        assert_eq!(board_text(BoardState::Full, &[]), "full");
        let map = ClusterMap { free_sets: vec![some.to_vec()], ..ClusterMap::default() };
        let title = |state, cells: &str| board_title(&map, &node(state), &board(state, cells));
        assert_eq!(title(BoardState::Free, "........"), "pier-01, GPU 3: free");
        let own = "pier-01, GPU 3: partly free: 7 × 1g.10gb or 1 × 4g.40gb, your jobs";
        assert_eq!(title(BoardState::PartlyFree, "o......."), own);
    }

    #[test]
    fn a_node_without_new_work_has_one_word_for_it() {
        let text = |state| node_text(&node(state));
        assert_eq!(text(BoardState::Quarantined), "pier-01");
        assert_eq!(text(BoardState::Draining), "pier-01 (draining)");
        assert_eq!(text(BoardState::Cordoned), "pier-01 (cordoned)");
        assert_eq!(text(BoardState::NotConnected), "pier-01 (not connected)");
        assert_eq!(rack(&node(BoardState::Free)), Some("r1"));
    }

    #[test]
    fn cells_and_use_become_classes() {
        let partly = board(BoardState::PartlyFree, "xx.o..q-");
        let class = "board board--partly-free board--own board--n8 x0 x1 o3 q6 b7";
        assert_eq!(board_class(&partly, false, true), class);
        assert_eq!(board_class(&partly, true, false), "board board--out board--used board--used-2");
        let used = |cells: &str| used_quarter(cells);
        assert_eq!([used("........"), used("x......."), used("xxxxxxx-"), used("xxxxxxxx")], [0, 1, 3, 4]);
        assert_eq!([used("."), used("o"), used("")], [0, 4, 0]);
        assert_eq!([used("xx......"), used("xxx....."), used("xxxx...."), used("xxxxx...")], [1, 2, 2, 3]);
    }

    #[test]
    fn absent_readings_are_left_out() {
        let gpu: Gpu = serde_json::from_value(serde_json::json!({
            "uuid": "GPU", "index": 0, "model": "H100", "memory_mib": 1, "cells": 8, "blocked_cells": [],
            "mig_enabled": false, "tiles": [], "power_watts": 71.6, "utilization_percent": 0.0,
        }))
        .unwrap();
        assert_eq!(readings(&gpu), "72 W · 0 % utilization");
        let silent = Gpu { power_watts: None, utilization_percent: None, ..gpu };
        assert_eq!(readings(&silent), "no metrics");
    }
}
