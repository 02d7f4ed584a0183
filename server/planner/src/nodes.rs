//! Nodes as facts of the engine, and the nodes whose workers are expected back.

use std::collections::{HashMap, HashSet};

use berth_engine::Fact;
use berth_fleet::cluster::foreign_instances;
use berth_placement::cluster::{GpuFacts, NodeFacts};
use berth_placement::networks::{GangKind, NodeNetworks};
use berth_store::nodes::StoredNode;
use berth_store::{self as store, StoreError, Tx};
use berth_types::cluster::RACK_LABEL;
use berth_types::ids::NodeId;
use berth_types::node_pools::NodePool;
use berth_types::rdma::RdmaPort;
use berth_types::time::Timestamp;

use super::{Planner, lock};

/// The processors and the memory of a node that reports none: no job waits for them.
const UNLIMITED: i64 = 1 << 40;
/// The time for which a disconnected worker is expected back, in milliseconds: a restart of a worker or of the
/// portal takes less.
const AWAITED_MS: i64 = 30_000;

/// The disconnections of a node in a series: between two of them it was connected for less than `AWAITED_MS`.
#[derive(Debug, Clone, Copy)]
struct Disconnections {
    /// The time of the first one on the monotonic clock.
    first_ms: i64,
    /// The time at which the worker was seen again; absent while it is away.
    back_ms: Option<i64>,
}

/// The nodes without a connected worker. After a start of the portal all nodes count as connected until then.
///
/// A node is awaited once in a series of disconnections: nodes that come and go all the time do not keep
/// devices for a job that never starts.
#[derive(Debug, Default)]
pub(super) struct AwayNodes {
    nodes: HashMap<NodeId, Disconnections>,
    /// The time at which the next of them is not awaited any more.
    expires_ms: Option<i64>,
}

impl AwayNodes {
    /// Replaces the nodes without a connected worker, and returns those that are expected back.
    fn update(&mut self, away: &HashSet<NodeId>, now_ms: i64) -> HashSet<NodeId> {
        let lasting = |back_ms: i64| now_ms.saturating_sub(back_ms) >= AWAITED_MS;
        for node in away {
            let known = self.nodes.get(node).filter(|known| !known.back_ms.is_some_and(lasting));
            let first_ms = known.map_or(now_ms, |known| known.first_ms);
            self.nodes.insert(*node, Disconnections { first_ms, back_ms: None });
        }
        self.nodes
            .retain(|node, known| away.contains(node) || !lasting(*known.back_ms.get_or_insert(now_ms)));
        let until =
            |node: &NodeId| self.nodes.get(node).map(|known| known.first_ms.saturating_add(AWAITED_MS));
        let awaited =
            away.iter().filter_map(|node| Some((*node, until(node).filter(|until| *until > now_ms)?)));
        let awaited: HashMap<NodeId, i64> = awaited.collect();
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

/// The nodes of a read, with their boards and the deadlines of their drains.
pub(super) struct ReadNodes {
    rows: Vec<StoredNode>,
    boards: HashMap<NodeId, Vec<GpuFacts>>,
    /// The numbers of boards of the last reports.
    present: HashMap<NodeId, u32>,
    drains_by: HashMap<NodeId, Timestamp>,
    /// The nodes whose attempts have ended without their workers.
    lost: HashSet<NodeId>,
    /// The nodes that operators removed.
    removed: Vec<NodeId>,
}

/// The number of a node's boards if it has an active RDMA port; 0 without one.
fn rdma_boards(row: &StoredNode, present: Option<u32>) -> u32 {
    let is_active = row.rdma_ports.iter().any(RdmaPort::is_active);
    present.filter(|_| is_active).unwrap_or(0)
}

/// The networks that the worker of a node gives to jobs.
fn networks(row: &StoredNode, now: Timestamp) -> NodeNetworks {
    let gang = match (row.gang_first_port, row.gang_plain) {
        (..=0, _) => GangKind::Host,
        (_, true) => GangKind::Plain,
        (_, false) => GangKind::Encrypted,
    };
    let aside = row.aside_until.is_some_and(|until| until > now);
    NodeNetworks { policy: row.egress, host: row.host_network, gang, aside }
}

/// Reads the approved nodes.
///
/// # Errors
/// The database cannot be read.
pub(super) async fn read_nodes(tx: &mut Tx<'_>) -> Result<ReadNodes, StoreError> {
    let drains = store::operations::list_drains(tx).await?;
    let drains_by = drains.into_iter().filter_map(|row| Some((row.node_id, row.deadline_at?))).collect();
    let lost = store::leases::list_lost(tx).await?;
    let mut boards: HashMap<NodeId, Vec<GpuFacts>> = HashMap::new();
    let mut present: HashMap<NodeId, u32> = HashMap::new();
    for gpu in store::nodes::list_gpus(tx).await? {
        *present.entry(gpu.node_id).or_default() += u32::from(gpu.present);
        boards.entry(gpu.node_id).or_default().push(GpuFacts {
            uuid: gpu.uuid.as_str().into(),
            model: gpu.model.as_str().into(),
            mig_enabled: gpu.mig_enabled,
            healthy: gpu.present && gpu.quarantined.is_none(),
            island: u8::try_from(gpu.nvlink_island).unwrap_or(0),
            limit_watts: gpu.facts.power_limit_watts.map(i64::from),
            foreign: foreign_instances(&gpu),
        });
    }
    // A node without an approval is no fact: the engine would count its boards for requests that no node fits.
    let rows = store::nodes::list_approved(tx).await?;
    let removed = store::nodes::list_removed(tx).await?.into_iter().map(|(node, _)| node).collect();
    Ok(ReadNodes { rows, boards, present, drains_by, lost: lost.into_iter().collect(), removed })
}

/// The facts of a removed node. The engine forgets no node, so it gets one without boards.
fn removed_facts(id: NodeId) -> NodeFacts {
    NodeFacts {
        id,
        open: false,
        away: false,
        awaited: false,
        lost: true,
        drains_by: None,
        images: false,
        rdma_boards: 0,
        networks: NodeNetworks::default(),
        storage: Vec::new(),
        cpu_milli: 0,
        memory_mib: 0,
        switch: None,
        rack: None,
        dedicated_to: None,
        pool: NodePool::Both,
        gpus: Vec::new(),
    }
}

/// The facts of read nodes at the time `now`. `connected` are the nodes with a connected worker, `awaited` those whose
/// worker is expected back.
pub(super) fn node_facts(
    nodes: ReadNodes,
    (version, now): (i64, Timestamp),
    connected: &HashSet<NodeId>,
    awaited: &HashSet<NodeId>,
) -> Vec<Fact> {
    let ReadNodes { rows, mut boards, present, drains_by, lost, removed } = nodes;
    let node = |row: StoredNode| {
        let label = |name: &str| row.labels.get(name).map(|value| value.as_str().into());
        let facts = NodeFacts {
            id: row.id,
            open: !row.cordoned && connected.contains(&row.id),
            away: !row.cordoned && !connected.contains(&row.id),
            awaited: !row.cordoned && awaited.contains(&row.id),
            lost: lost.contains(&row.id),
            drains_by: drains_by.get(&row.id).copied(),
            images: row.images,
            rdma_boards: rdma_boards(&row, present.get(&row.id).copied()),
            networks: networks(&row, now),
            storage: row.host_mounts.iter().map(|mount| mount.name.as_str().into()).collect(),
            cpu_milli: if row.cpu_milli > 0 { row.cpu_milli } else { UNLIMITED },
            memory_mib: if row.memory_mib > 0 { row.memory_mib } else { UNLIMITED },
            switch: label("switch"),
            rack: label(RACK_LABEL),
            dedicated_to: row.dedicated_to,
            pool: row.pool,
            gpus: boards.remove(&row.id).unwrap_or_default(),
        };
        Fact::Node { version, facts }
    };
    let removed = removed.into_iter().map(|id| Fact::Node { version, facts: removed_facts(id) });
    rows.into_iter().map(node).chain(removed).collect()
}

impl Planner {
    pub(super) async fn nodes_as_facts(
        &self,
        tx: &mut Tx<'_>,
        version: i64,
    ) -> Result<Vec<Fact>, StoreError> {
        let connected = self.context.live.connected();
        let now_ms = self.context.monotonic_ms();
        let nodes = read_nodes(tx).await?;
        let away = nodes.rows.iter().map(|row| row.id).filter(|id| !connected.contains(id)).collect();
        let awaited = lock(&self.state.away).update(&away, now_ms);
        Ok(node_facts(nodes, (version, self.context.now()), &connected, &awaited))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(n: u128) -> NodeId {
        NodeId::from_uuid(uuid::Uuid::from_u128(n))
    }

    fn update(away: &mut AwayNodes, nodes: &[u128], now_ms: i64) -> Vec<u128> {
        let awaited = away.update(&nodes.iter().copied().map(node).collect(), now_ms);
        (0..4).filter(|n| awaited.contains(&node(*n))).collect()
    }

    #[test]
    fn a_node_is_awaited_for_a_while_after_a_disconnection() {
        let mut away = AwayNodes::default();
        assert_eq!(update(&mut away, &[], 5), []);
        assert_eq!((away.next_expiry_after(5), away.has_expired(i64::MAX)), (None, false));
        assert_eq!(update(&mut away, &[1], 10), [1]);
        assert_eq!(update(&mut away, &[1, 2], 20), [1, 2]);
        assert_eq!(away.next_expiry_after(30), Some(AWAITED_MS - 20));
        assert!(!away.has_expired(AWAITED_MS + 9) && away.has_expired(AWAITED_MS + 10));
        assert_eq!(update(&mut away, &[1, 2], AWAITED_MS + 10), [2]);
        assert_eq!(away.next_expiry_after(AWAITED_MS + 10), Some(10));
        assert_eq!(update(&mut away, &[1, 2], AWAITED_MS + 20), []);
        assert!(!away.has_expired(i64::MAX), "an expired node needs no further read");
    }

    #[test]
    fn a_node_that_comes_and_goes_is_awaited_once() {
        let mut away = AwayNodes::default();
        // The nodes disconnect in turn, each for a second, and are awaited for one time together.
        let awaited =
            (0..120).map(|second| update(&mut away, &[second % 2], i64::try_from(second).unwrap() * 1_000));
        let awaited: Vec<usize> = awaited.map(|nodes| nodes.len()).collect();
        assert!(awaited[..30].iter().all(|count| *count == 1));
        assert!(awaited[31..].iter().all(|count| *count == 0), "{awaited:?}");
        // A node that stays for a while is awaited again; one millisecond less is not enough.
        let back_ms = 120_000;
        assert_eq!(update(&mut away, &[], back_ms), []);
        let mut short = AwayNodes { nodes: away.nodes.clone(), ..AwayNodes::default() };
        assert_eq!(update(&mut short, &[1], back_ms + AWAITED_MS - 1), []);
        assert_eq!(update(&mut away, &[1], back_ms + AWAITED_MS), [1]);
        // No list of nodes was read in between: the disconnection begins a new series.
        assert_eq!(update(&mut away, &[], back_ms + AWAITED_MS + 5), []);
        assert_eq!(update(&mut away, &[1], back_ms + 3 * AWAITED_MS), [1]);
    }

    #[test]
    fn connected_nodes_are_forgotten() {
        let mut away = AwayNodes::default();
        update(&mut away, &[1, 2], 0);
        update(&mut away, &[], 1);
        assert_eq!(away.nodes.len(), 2);
        update(&mut away, &[], 1 + AWAITED_MS);
        assert!(away.nodes.is_empty());
    }
}
