//! Groups of the map by rack and node, and the walk over boards by keyboard. Pure.

use std::collections::BTreeMap;

use berth_types::cluster::ClusterMap;

use super::text::rack;

/// The place of a board in the answer of the portal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The position of the node.
    pub node: usize,
    /// The position of the board on its node.
    pub board: usize,
}

/// A node of the map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeGroup {
    /// The position of the node in the answer.
    pub node: usize,
    /// The number of its first board in the order of the map.
    pub first: usize,
    /// The UUIDs of its boards.
    pub boards: Vec<String>,
}

/// A rack of the map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RackGroup {
    /// The name of the rack; absent for nodes without a rack.
    pub name: Option<String>,
    pub nodes: Vec<NodeGroup>,
}

/// Groups the nodes by rack. The nodes without a rack are last.
pub fn racks(map: &ClusterMap) -> Vec<RackGroup> {
    // A present name sorts before an absent one.
    let mut by_rack: BTreeMap<(bool, Option<&str>), Vec<usize>> = BTreeMap::new();
    for (at, node) in map.nodes.iter().enumerate() {
        let rack = rack(node);
        by_rack.entry((rack.is_none(), rack)).or_default().push(at);
    }
    let mut number = 0;
    let mut group = |node: usize| {
        let first = number;
        let boards: Vec<String> = map
            .nodes
            .get(node)
            .into_iter()
            .flat_map(|node| &node.boards)
            .map(|board| board.uuid.clone())
            .collect();
        number += boards.len();
        NodeGroup { node, first, boards }
    };
    let mut groups = Vec::new();
    for ((_, name), nodes) in by_rack {
        let nodes = nodes.into_iter().map(&mut group).collect();
        groups.push(RackGroup { name: name.map(str::to_owned), nodes });
    }
    groups
}

/// Returns the places of all boards in the order of the map.
pub fn order(racks: &[RackGroup]) -> Vec<Place> {
    let nodes = racks.iter().flat_map(|rack| &rack.nodes);
    nodes.flat_map(|node| (0..node.boards.len()).map(|board| Place { node: node.node, board })).collect()
}

/// Returns the board after a key: the next or the last board to a side, the first board of the next or the last
/// node, the first or the last board. `None` for another key, or without such a board. `shown` tells whether a
/// board is in the map.
pub fn step(order: &[Place], from: usize, key: &str, shown: impl Fn(Place) -> bool) -> Option<usize> {
    let mut places = order.iter().copied().enumerate().filter(|(_, place)| shown(*place));
    let node = order.get(from).map(|place| place.node);
    match key {
        "ArrowRight" => places.find(|(at, _)| *at > from).map(|(at, _)| at),
        "ArrowLeft" => places.take_while(|(at, _)| *at < from).last().map(|(at, _)| at),
        "ArrowDown" => places.find(|(at, place)| *at > from && Some(place.node) != node).map(|(at, _)| at),
        "ArrowUp" => {
            let mut before: Option<(usize, Place)> = None;
            for (at, place) in places.take_while(|(at, _)| *at < from) {
                // The first board of each node.
                if Some(place.node) != node && before.is_none_or(|(_, known)| known.node != place.node) {
                    before = Some((at, place));
                }
            }
            before.map(|(at, _)| at)
        }
        "Home" => places.next().map(|(at, _)| at),
        "End" => places.next_back().map(|(at, _)| at),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::cluster::{BoardState, MapBoard, MapNode};

    fn node(number: u32, rack: Option<&str>, boards: u32) -> MapNode {
        let board = |index: u32| MapBoard {
            uuid: format!("GPU-{number}-{index}"),
            index,
            model: 0,
            state: BoardState::Free,
            cells: ".".to_owned(),
            free: 0,
        };
        MapNode {
            id: format!("node_{number:0>26}").parse().unwrap(),
            name: format!("pier-{number}"),
            labels: rack.map(|rack| ("rack".to_owned(), rack.to_owned())).into_iter().collect(),
            dedicated: false,
            boards: (0..boards).map(board).collect(),
        }
    }

    fn map() -> ClusterMap {
        let nodes =
            vec![node(1, Some("r2"), 2), node(2, None, 1), node(3, Some("r1"), 2), node(4, Some("r2"), 1)];
        ClusterMap { nodes, ..ClusterMap::default() }
    }

    #[test]
    fn nodes_are_grouped_by_rack_and_those_without_a_rack_are_last() {
        let racks = racks(&map());
        let nodes = |rack: &RackGroup| rack.nodes.iter().map(|node| (node.node, node.first)).collect();
        let groups: Vec<(Option<&str>, Vec<(usize, usize)>)> =
            racks.iter().map(|rack| (rack.name.as_deref(), nodes(rack))).collect();
        let expected =
            vec![(Some("r1"), vec![(2, 0)]), (Some("r2"), vec![(0, 2), (3, 4)]), (None, vec![(1, 5)])];
        assert_eq!(groups, expected);
        let order: Vec<(usize, usize)> =
            order(&racks).iter().map(|place| (place.node, place.board)).collect();
        assert_eq!(order, [(2, 0), (2, 1), (0, 0), (0, 1), (3, 0), (1, 0)]);
    }

    #[test]
    fn keys_walk_over_the_shown_boards() {
        let order = order(&racks(&map()));
        let all = |_: Place| true;
        let steps = |from: usize| {
            ["ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp", "Home", "End"]
                .map(|key| step(&order, from, key, all))
        };
        assert_eq!(steps(3), [Some(4), Some(2), Some(4), Some(0), Some(0), Some(5)]);
        assert_eq!(steps(0), [Some(1), None, Some(2), None, Some(0), Some(5)]);
        assert_eq!(steps(5), [None, Some(4), None, Some(4), Some(0), Some(5)]);
        let one_node = |place: Place| place.node == 0;
        assert_eq!(step(&order, 0, "ArrowRight", one_node), Some(2));
        assert_eq!(step(&order, 3, "ArrowDown", one_node), None);
        assert_eq!(step(&order, 3, "Enter", all), None);
        assert_eq!(step(&order, 0, "End", |_| false), None);
    }
}
