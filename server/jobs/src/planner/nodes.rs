//! Nodes as facts of the engine, and the nodes whose workers are expected back.

use std::collections::{HashMap, HashSet};

use berth_engine::Fact;
use berth_fleet::cluster::foreign_instances;
use berth_placement::cluster::{GpuFacts, NodeFacts};
use berth_store::{self as store, StoreError, Tx};
use berth_types::ids::NodeId;
use berth_types::time::Timestamp;

use super::{Planner, lock};

/// The processors and the memory of a node that reports none: no job waits for them.
const UNLIMITED: i64 = 1 << 40;
/// The time for which a disconnected worker is expected back, in milliseconds: a restart of a worker or of the
/// portal takes less.
const AWAITED_MS: i64 = 30_000;

/// The nodes without a connected worker. After a start of the portal all nodes count as connected until then.
#[derive(Debug, Default)]
pub(super) struct AwayNodes {
    /// The time of the monotonic clock at which each node was first seen without a worker.
    since_ms: HashMap<NodeId, i64>,
    /// The time at which the next of them is not awaited any more.
    expires_ms: Option<i64>,
}

impl AwayNodes {
    /// Replaces the nodes without a connected worker, and returns those that are expected back.
    fn update(&mut self, away: Vec<NodeId>, now_ms: i64) -> HashSet<NodeId> {
        let before = std::mem::take(&mut self.since_ms);
        self.since_ms =
            away.into_iter().map(|node| (node, before.get(&node).copied().unwrap_or(now_ms))).collect();
        let awaited: HashMap<NodeId, i64> = self
            .since_ms
            .iter()
            .map(|(node, since)| (*node, since.saturating_add(AWAITED_MS)))
            .filter(|(_, until)| *until > now_ms)
            .collect();
        self.expires_ms = awaited.values().copied().min();
        awaited.into_keys().collect()
    }

    /// True if a node is not awaited any more since the last update.
    pub(super) fn has_expired(&self, now_ms: i64) -> bool {
        self.expires_ms.is_some_and(|expires| expires <= now_ms)
    }

    /// The milliseconds until the next node is not awaited any more.
    pub(super) fn next_expiry_after(&self, now_ms: i64) -> Option<i64> {
        self.expires_ms.map(|expires| expires.saturating_sub(now_ms).max(0))
    }
}

impl Planner {
    pub(super) async fn nodes_as_facts(
        &self,
        tx: &mut Tx<'_>,
        version: i64,
    ) -> Result<Vec<Fact>, StoreError> {
        let connected = self.context.live.connected();
        let now_ms = self.context.monotonic_ms();
        let drains = store::operations::list_drains(tx).await?;
        let drains_by: HashMap<NodeId, Timestamp> =
            drains.into_iter().filter_map(|row| Some((row.node_id, row.deadline_at?))).collect();
        let mut boards: HashMap<NodeId, Vec<GpuFacts>> = HashMap::new();
        for gpu in store::nodes::list_gpus(tx).await? {
            boards.entry(gpu.node_id).or_default().push(GpuFacts {
                uuid: gpu.uuid.as_str().into(),
                model: gpu.model.as_str().into(),
                mig_enabled: gpu.mig_enabled,
                healthy: gpu.present && gpu.quarantined.is_none(),
                island: u8::try_from(gpu.nvlink_island).unwrap_or(0),
                limit_watts: gpu.facts().power_limit_watts.map(i64::from),
                foreign: foreign_instances(&gpu),
            });
        }
        let rows = store::nodes::list(tx).await?;
        let away = rows.iter().map(|row| row.id).filter(|id| !connected.contains(id));
        let awaited = lock(&self.state.away).update(away.collect(), now_ms);
        let node = |row: store::nodes::NodeRow| {
            let labels = berth_fleet::cluster::node_labels(&row);
            let label = |name: &str| labels.get(name).map(|value| value.as_str().into());
            let facts = NodeFacts {
                id: row.id,
                open: !row.cordoned && connected.contains(&row.id),
                away: !row.cordoned && !connected.contains(&row.id),
                awaited: !row.cordoned && awaited.contains(&row.id),
                drains_by: drains_by.get(&row.id).copied(),
                images: row.images,
                cpu_milli: if row.cpu_milli > 0 { row.cpu_milli } else { UNLIMITED },
                memory_mib: if row.memory_mib > 0 { row.memory_mib } else { UNLIMITED },
                switch: label("switch"),
                rack: label("rack"),
                gpus: boards.remove(&row.id).unwrap_or_default(),
            };
            Fact::Node { version, facts }
        };
        Ok(rows.into_iter().map(node).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(n: u128) -> NodeId {
        NodeId::from_uuid(uuid::Uuid::from_u128(n))
    }

    #[test]
    fn a_node_is_awaited_for_a_while_after_each_disconnection() {
        let mut away = AwayNodes::default();
        assert_eq!(away.update(vec![], 5), HashSet::new());
        assert_eq!((away.next_expiry_after(5), away.has_expired(i64::MAX)), (None, false));
        assert_eq!(away.update(vec![node(1)], 10), HashSet::from([node(1)]));
        assert_eq!(away.update(vec![node(1), node(2)], 20), HashSet::from([node(1), node(2)]));
        assert_eq!(away.next_expiry_after(30), Some(AWAITED_MS - 20));
        assert!(!away.has_expired(AWAITED_MS + 9) && away.has_expired(AWAITED_MS + 10));
        assert_eq!(away.update(vec![node(1), node(2)], AWAITED_MS + 10), HashSet::from([node(2)]));
        assert_eq!(away.next_expiry_after(AWAITED_MS + 10), Some(10));
        assert_eq!(away.update(vec![node(1), node(2)], AWAITED_MS + 20), HashSet::new());
        assert!(!away.has_expired(i64::MAX), "an expired node needs no further read");
        assert_eq!(away.update(vec![], AWAITED_MS + 30), HashSet::new());
        assert_eq!(away.update(vec![node(1)], AWAITED_MS + 40), HashSet::from([node(1)]), "it was back");
    }
}
