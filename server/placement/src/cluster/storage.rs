//! The storage classes of nodes and of requests, as bits.
//!
//! A class gets its bit at the first request for it. So names that nodes announce in vain take none.

use std::sync::Arc;

use super::{Cluster, NodeIx};

/// The most classes with a bit. A request with another class waits.
const MAX_CLASSES: usize = 63;
/// The bit of a class beyond the list, which no node has.
const NO_NODE: u64 = 1 << MAX_CLASSES;

/// The classes that requests have named. Each has the bit of its index.
#[derive(Debug, Clone, Default)]
pub(super) struct StorageList(Vec<Arc<str>>);

fn bit(index: usize) -> u64 {
    u32::try_from(index).ok().and_then(|index| 1u64.checked_shl(index)).unwrap_or(0)
}

impl StorageList {
    /// The bits of those classes that are in the list.
    pub(super) fn bits(&self, classes: &[Arc<str>]) -> u64 {
        let known = self.0.iter().enumerate().filter(|(_, class)| classes.contains(*class));
        known.fold(0, |bits, (index, _)| bits | bit(index))
    }

    /// Adds classes. Returns true if one of them is new.
    fn add(&mut self, classes: &[Arc<str>]) -> bool {
        let before = self.0.len();
        for class in classes {
            if self.0.len() < MAX_CLASSES && !self.0.contains(class) {
                self.0.push(class.clone());
            }
        }
        self.0.len() > before
    }

    fn has_all(&self, classes: &[Arc<str>]) -> bool {
        classes.iter().all(|class| self.0.contains(class))
    }
}

/// The bits of the classes of a request. A new class is added, and the views of the nodes that have it follow.
pub fn storage_bits(cluster: &mut Cluster, classes: &[Arc<str>]) -> u64 {
    if cluster.storage.add(classes) {
        for number in 0..cluster.nodes.len() {
            let Some(node) = cluster.nodes.get_mut(number) else { continue };
            let bits = cluster.storage.bits(&node.facts.storage);
            if std::mem::replace(&mut node.storage, bits) != bits {
                cluster.refresh_view(NodeIx(u32::try_from(number).unwrap_or(u32::MAX)));
            }
        }
    }
    let bits = cluster.storage.bits(classes);
    if cluster.storage.has_all(classes) { bits } else { bits | NO_NODE }
}

/// The first class of `wanted` that none of some nodes has, or else the first that one of them lacks.
pub fn missing_storage<'a>(cluster: &'a Cluster, wanted: u64, nodes: &[NodeIx]) -> Option<&'a Arc<str>> {
    let bits = |node: &NodeIx| cluster.node(*node).map_or(0, |node| node.storage);
    let some = nodes.iter().map(bits).fold(0, |some, bits| some | bits);
    let all = nodes.iter().map(bits).fold(u64::MAX, |all, bits| all & bits);
    let first = |missing: u64| {
        let mut classes = cluster.storage.0.iter().enumerate();
        classes.find(|(index, _)| (missing & bit(*index)) != 0).map(|(_, class)| class)
    };
    first(wanted & !some).or_else(|| first(wanted & !all))
}
