//! The organizations whose egress policy differs from the default one.

use berth_types::ids::OrgId;

use super::Cluster;
use crate::networks::NetworkNeed;

/// The need of an organization's request: the policy counts only if it differs from the default one.
pub fn network_need(cluster: &Cluster, org: OrgId, need: NetworkNeed) -> NetworkNeed {
    let is_default = !cluster.egress_policies.contains(&org);
    match need {
        NetworkNeed::Policy if is_default => NetworkNeed::Any,
        NetworkNeed::GangPolicy if is_default => NetworkNeed::Gang,
        need => need,
    }
}

/// Sets if the egress policy of an organization differs from the default one.
pub fn set_egress_policy(cluster: &mut Cluster, org: OrgId, differs: bool) {
    if differs {
        cluster.egress_policies.insert(org);
    } else {
        cluster.egress_policies.remove(&org);
    }
}
