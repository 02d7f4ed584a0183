//! The dedicated nodes of organizations, and the organizations whose work goes nowhere else.

use std::collections::{BTreeMap, BTreeSet};

use berth_types::ids::OrgId;

use super::{Cluster, ModelIx, Node, NodeIx, WHOLE_MILLI};
use crate::tenancy::Tenancy;

#[derive(Debug, Clone, Default)]
pub(super) struct DedicatedNodes {
    /// The number of dedicated nodes; organizations without one are absent.
    counts: BTreeMap<OrgId, u32>,
    own_only: BTreeSet<OrgId>,
}

impl DedicatedNodes {
    /// Counts a node that is dedicated to another organization than before.
    pub(super) fn replace(&mut self, before: Option<OrgId>, after: Option<OrgId>) {
        if let Some(org) = after {
            *self.counts.entry(org).or_default() += 1;
        }
        if let Some(org) = before
            && let Some(count) = self.counts.get_mut(&org)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&org);
            }
        }
    }
}

/// The nodes that an organization may use.
pub fn tenancy(cluster: &Cluster, org: OrgId) -> Tenancy {
    let own_only = cluster.dedicated.own_only.contains(&org);
    if !own_only && !cluster.dedicated.counts.contains_key(&org) {
        return Tenancy::COMMON;
    }
    Tenancy { org: cluster.org_index(org), own_only }
}

/// Sets the restriction of an organization's work to its dedicated nodes.
pub fn set_own_only(cluster: &mut Cluster, org: OrgId, own_only: bool) {
    if own_only {
        // An organization without an index would use the nodes of all.
        cluster.org(org);
        cluster.dedicated.own_only.insert(org);
    } else {
        cluster.dedicated.own_only.remove(&org);
    }
}

/// True if an organization may use a node.
pub fn may_use(cluster: &Cluster, node: NodeIx, org: OrgId) -> bool {
    let tenancy = tenancy(cluster, org);
    cluster.node(node).is_some_and(|node| tenancy.admits(node.view().dedicated_to))
}

/// The thousandths of a model's boards on the nodes that are dedicated to an organization, or (`None`) to none.
pub fn group_milli(cluster: &Cluster, model: ModelIx, dedicated_to: Option<OrgId>) -> i64 {
    let nodes = cluster.nodes().iter().filter(|node| node.facts.dedicated_to == dedicated_to);
    let boards =
        |node: &Node| (0..node.facts.gpus.len()).filter(|index| node.model_ix(*index) == model).count();
    nodes.map(boards).sum::<usize>() as i64 * i64::from(WHOLE_MILLI)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_dedicated_nodes_follows_each_change() {
        let org = |n: u128| OrgId::from_uuid(uuid::Uuid::from_u128(n));
        let mut nodes = DedicatedNodes::default();
        nodes.replace(None, Some(org(1)));
        nodes.replace(None, Some(org(1)));
        nodes.replace(Some(org(1)), Some(org(2)));
        assert_eq!(nodes.counts, BTreeMap::from([(org(1), 1), (org(2), 1)]));
        nodes.replace(Some(org(1)), Some(org(1)));
        assert_eq!(nodes.counts.get(&org(1)), Some(&1), "the same organization again");
        nodes.replace(Some(org(1)), None);
        nodes.replace(Some(org(2)), None);
        assert!(nodes.counts.is_empty());
    }
}
