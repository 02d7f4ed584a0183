//! The latest samples of boards and slices from the nodes. They are in memory only.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_proto::{BoardSample, SliceSample};
use berth_types::ids::NodeId;

/// Exported boards and slices of one node. No host has more.
const MAX_BOARDS: usize = 64;
const MAX_SLICES: usize = 64 * 16;

/// The latest samples of a node.
#[derive(Debug)]
pub struct NodeSamples {
    pub boards: Vec<BoardSample>,
    pub slices: Vec<SliceSample>,
}

/// The latest samples of all nodes.
#[derive(Debug, Default)]
pub struct LatestSamples {
    nodes: Mutex<HashMap<NodeId, Arc<NodeSamples>>>,
}

impl LatestSamples {
    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, Arc<NodeSamples>>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the samples of a node.
    pub fn put(&self, node: NodeId, mut boards: Vec<BoardSample>, mut slices: Vec<SliceSample>) {
        boards.truncate(MAX_BOARDS);
        slices.truncate(MAX_SLICES);
        self.lock().insert(node, Arc::new(NodeSamples { boards, slices }));
    }

    /// The samples of the connected nodes. The samples of other nodes are removed.
    pub fn list(&self, connected: &HashSet<NodeId>) -> Vec<(NodeId, Arc<NodeSamples>)> {
        let mut nodes = self.lock();
        nodes.retain(|node, _| connected.contains(node));
        let mut all: Vec<_> = nodes.iter().map(|(node, samples)| (*node, samples.clone())).collect();
        drop(nodes);
        all.sort_by_key(|(node, _)| *node);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_disconnected_nodes_are_removed() {
        let latest = LatestSamples::default();
        let node = |n: u128| NodeId::from_uuid(uuid::Uuid::from_u128(n));
        for n in 1..3 {
            latest.put(node(n), vec![BoardSample::default(); 100], Vec::new());
        }
        let samples = latest.list(&HashSet::from([node(2)]));
        assert_eq!(
            samples.iter().map(|(n, s)| (*n, s.boards.len())).collect::<Vec<_>>(),
            [(node(2), MAX_BOARDS)]
        );
        assert_eq!(latest.list(&HashSet::from([node(1), node(2)])).len(), 1, "it is forgotten");
    }
}
