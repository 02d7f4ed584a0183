//! Types of the boards of the cluster for the map and the table, and their filter.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::NodeId;
use crate::nodes::Gpu;
use crate::time::Timestamp;

/// The label of a node with the name of its rack.
pub const RACK_LABEL: &str = "rack";

/// The value of [`BoardFilter::fits`] for a whole board. No MIG profile has this name.
pub const WHOLE_BOARD: &str = "board";

/// The state of a board for new work. The state of its node has precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum BoardState {
    /// Nothing of the board is in use. A board in MIG mode until a reset is free for slices only.
    Free,
    /// A slice or a share is free, but not the whole board.
    PartlyFree,
    /// No device is free: the board is in use or reserved.
    Full,
    /// Out of service until a passed check.
    Quarantined,
    /// The node is in a drain and takes no new work.
    Draining,
    /// The node is cordoned without a drain and takes no new work.
    Cordoned,
    /// The worker of the node has no session.
    NotConnected,
}

impl BoardState {
    pub const ALL: [Self; 7] = [
        Self::Free,
        Self::PartlyFree,
        Self::Full,
        Self::Quarantined,
        Self::Draining,
        Self::Cordoned,
        Self::NotConnected,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::PartlyFree => "partly_free",
            Self::Full => "full",
            Self::Quarantined => "quarantined",
            Self::Draining => "draining",
            Self::Cordoned => "cordoned",
            Self::NotConnected => "not_connected",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// True if the node takes no new work: all its boards have this state.
    pub const fn is_of_node(self) -> bool {
        matches!(self, Self::Draining | Self::Cordoned | Self::NotConnected)
    }
}

/// The number of equal devices that a board has free.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FreeDevices {
    /// The MIG profile, such as `1g.10gb`; absent for the whole board.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The number of devices that fit now, if no other device starts on the board.
    pub count: u32,
}

/// A board model of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BoardModel {
    /// The name of the model, as in `gpu_model` of offerings.
    pub name: String,
    /// The MIG profiles of the model, from the smallest.
    pub profiles: Vec<String>,
}

/// A board in the map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MapBoard {
    /// The UUID of the board.
    pub uuid: String,
    /// The number of the board on its node, from 0.
    pub index: u32,
    /// The position of the board model in `models` of the map, from 0.
    pub model: u32,
    /// The state of the board.
    pub state: BoardState,
    /// One character for each memory slice: `.` not in use, `-` not in use and without a fitting profile, `o` in use by the
    /// organization, `x` in use by others, `q` quarantined.
    pub cells: String,
    /// The position of the free devices in `free_sets` of the map, from 0.
    pub free: u32,
}

impl MapBoard {
    /// True if the organization uses a part of the board.
    pub fn is_own(&self) -> bool {
        self.cells.contains('o')
    }
}

/// A node in the map, with its boards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MapNode {
    /// The id of the node.
    pub id: NodeId,
    /// The name of the node.
    pub name: String,
    /// The labels of the node. The value of `rack` is its rack.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// True for a node that is dedicated to the organization.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dedicated: bool,
    /// The boards of the node by their numbers.
    pub boards: Vec<MapBoard>,
}

/// All boards of the cluster in a short form, about 120 bytes for each board.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClusterMap {
    /// The board models, each once.
    pub models: Vec<BoardModel>,
    /// The different sets of free devices, each once: the whole board, then profiles from the smallest.
    pub free_sets: Vec<Vec<FreeDevices>>,
    /// The nodes with boards by name.
    pub nodes: Vec<MapNode>,
}

impl ClusterMap {
    /// Returns the model of a board; `None` for a position outside of `models`.
    pub fn model(&self, board: &MapBoard) -> Option<&BoardModel> {
        self.models.get(usize::try_from(board.model).ok()?)
    }

    /// Returns the free devices of a board.
    pub fn free(&self, board: &MapBoard) -> &[FreeDevices] {
        let set = usize::try_from(board.free).ok().and_then(|at| self.free_sets.get(at));
        set.map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the facts of a board for a filter.
    pub fn facts<'a>(&'a self, node: &'a MapNode, board: &'a MapBoard) -> BoardFacts<'a> {
        BoardFacts {
            model: self.model(board).map_or("", |model| model.name.as_str()),
            labels: &node.labels,
            state: board.state,
            free: self.free(board),
            own: board.is_own(),
            dedicated: node.dedicated,
        }
    }
}

/// A board with its node, its occupants and its free devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Board {
    /// The UUID of the board.
    pub uuid: String,
    /// The id of the node.
    pub node: NodeId,
    /// The name of the node.
    pub node_name: String,
    /// The labels of the node. The value of `rack` is its rack.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// True for a node that is dedicated to the organization.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dedicated: bool,
    /// True for a simulated board.
    pub simulated: bool,
    /// True if jobs on the node run without a sandbox.
    pub unisolated: bool,
    /// The latest message of the worker; absent before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen_at: Option<Timestamp>,
    /// The name of the model, as in `gpu_model` of offerings.
    pub model: String,
    /// The state of the board.
    pub state: BoardState,
    /// The free devices: the whole board, then profiles from the smallest. Empty without a free device.
    pub free: Vec<FreeDevices>,
    /// The board with the jobs that the caller may see.
    pub gpu: Gpu,
}

impl Board {
    /// Returns the facts of the board for a filter.
    pub fn facts(&self) -> BoardFacts<'_> {
        BoardFacts {
            model: &self.model,
            labels: &self.labels,
            state: self.state,
            free: &self.free,
            own: self.gpu.tiles.iter().any(|tile| tile.owner.is_some() && tile.quarantined.is_none()),
            dedicated: self.dedicated,
        }
    }
}

/// The facts of a board for a filter.
#[derive(Debug, Clone, Copy)]
pub struct BoardFacts<'a> {
    pub model: &'a str,
    pub labels: &'a BTreeMap<String, String>,
    pub state: BoardState,
    pub free: &'a [FreeDevices],
    /// True if the organization uses a part of the board.
    pub own: bool,
    /// True if the node is dedicated to the organization.
    pub dedicated: bool,
}

/// A filter of boards. An absent field matches every board.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct BoardFilter {
    /// The name of the board model.
    pub model: Option<String>,
    /// The rack of the node.
    pub rack: Option<String>,
    /// A label of the node as `key=value`.
    pub label: Option<String>,
    /// The state of the board.
    pub state: Option<BoardState>,
    /// A device that the board has free: a MIG profile or [`WHOLE_BOARD`].
    pub fits: Option<String>,
    /// True for boards with own jobs only.
    pub own: bool,
    /// True for boards of dedicated nodes only.
    pub dedicated: bool,
}

impl BoardFilter {
    /// Tells whether a board matches all fields.
    pub fn matches(&self, board: &BoardFacts<'_>) -> bool {
        let has_label = |key: &str, value: &str| board.labels.get(key).is_some_and(|known| known == value);
        let fits = |wanted: &str| {
            board.free.iter().any(|free| free.profile.as_deref().unwrap_or(WHOLE_BOARD) == wanted)
        };
        self.model.as_deref().is_none_or(|model| model == board.model)
            && self.rack.as_deref().is_none_or(|rack| has_label(RACK_LABEL, rack))
            && self.label.as_deref().is_none_or(|label| {
                label.split_once('=').is_some_and(|(key, value)| has_label(key.trim(), value.trim()))
            })
            && self.state.is_none_or(|state| state == board.state)
            && self.fits.as_deref().is_none_or(fits)
            && (!self.own || board.own)
            && (!self.dedicated || board.dedicated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_names_that_are_parsed_again() {
        for state in BoardState::ALL {
            assert_eq!(BoardState::parse(state.name()), Some(state));
            assert_eq!(serde_json::to_value(state).unwrap(), state.name());
        }
        assert_eq!(BoardState::parse("ready"), None);
    }

    #[test]
    fn a_filter_matches_boards_with_all_its_fields() {
        let labels: BTreeMap<String, String> =
            [("rack", "r1"), ("zone", "north")].map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let free = [FreeDevices { profile: Some("1g.10gb".to_owned()), count: 3 }];
        let board = BoardFacts {
            model: "H100-80GB",
            labels: &labels,
            state: BoardState::PartlyFree,
            free: &free,
            own: false,
            dedicated: false,
        };
        let text = |text: &str| Some(text.to_owned());
        let none = BoardFilter::default();
        let all = BoardFilter {
            model: text("H100-80GB"),
            rack: text("r1"),
            label: text("zone = north"),
            state: Some(BoardState::PartlyFree),
            fits: text("1g.10gb"),
            own: false,
            dedicated: false,
        };
        assert!(none.matches(&board) && all.matches(&board));
        for different in [
            BoardFilter { model: text("H100"), ..none.clone() },
            BoardFilter { rack: text("r2"), ..none.clone() },
            BoardFilter { label: text("zone"), ..none.clone() },
            BoardFilter { label: text("zone=south"), ..none.clone() },
            BoardFilter { state: Some(BoardState::Full), ..none.clone() },
            BoardFilter { fits: text("2g.20gb"), ..none.clone() },
            BoardFilter { fits: text(WHOLE_BOARD), ..none.clone() },
            BoardFilter { own: true, ..none.clone() },
            BoardFilter { dedicated: true, ..none.clone() },
            BoardFilter { state: Some(BoardState::Full), ..all.clone() },
        ] {
            assert!(!different.matches(&board), "{different:?}");
        }
        let whole = [FreeDevices { profile: None, count: 1 }];
        let own = BoardFacts { free: &whole, own: true, dedicated: true, ..board };
        assert!(BoardFilter { fits: text(WHOLE_BOARD), own: true, dedicated: true, ..none }.matches(&own));
    }

    #[test]
    fn a_thousand_boards_have_at_most_150_kb() {
        let free = |count| FreeDevices { profile: Some("1g.10gb".to_owned()), count };
        let board = |index: u32| MapBoard {
            uuid: "GPU-6ba7b810-9dad-11d1-80b4-00c04fd430c8".to_owned(),
            index,
            model: 0,
            state: BoardState::NotConnected,
            cells: "xxxxxxxx".to_owned(),
            free: 40,
        };
        let node = |number: u128| MapNode {
            id: NodeId::from_uuid(uuid::Uuid::from_u128(number)),
            name: format!("pier-{number:03}"),
            labels: [(RACK_LABEL.to_owned(), format!("r{}", number / 8))].into(),
            dedicated: false,
            boards: (0..8).map(board).collect(),
        };
        let map = ClusterMap {
            models: vec![BoardModel { name: "H100-80GB".to_owned(), profiles: vec!["1g.10gb".to_owned()] }],
            free_sets: (0..41).map(|_| (1..8).map(free).collect()).collect(),
            nodes: (0..125).map(node).collect(),
        };
        let bytes = serde_json::to_string(&map).unwrap().len();
        assert!(bytes < 150_000, "{bytes}");
        let first = &map.nodes[0];
        assert_eq!(map.facts(first, &first.boards[0]).model, "H100-80GB");
        assert_eq!(map.free(&first.boards[0]).len(), 7);
    }
}
