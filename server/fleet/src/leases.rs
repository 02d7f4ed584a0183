//! Leases of nodes: their sessions and the time since the last heartbeat, in memory.
//!
//! A heartbeat renews the leases of a node's attempts. The clock is monotonic. A new portal assumes the
//! latest possible heartbeat of each node: its own start.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_core::lease::{LeaseLimits, NodeLease};
use berth_foundation::Context;
use berth_store::leases::{StoredNodeLease, UnendedCount};
use berth_store::{self as store, StoreError};
use berth_types::ids::{AuditEventId, NodeId};
use berth_types::nodes::{Silence, SilenceState};
use berth_types::quotas::{AuditContext, AuditEvent};

/// The lease state of every node since the start of this portal.
#[derive(Debug)]
pub struct Leases {
    started_ms: i64,
    nodes: Mutex<HashMap<NodeId, NodeLease>>,
}

impl Leases {
    pub fn new(started_ms: i64) -> Self {
        Self { started_ms, nodes: Mutex::default() }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<NodeId, NodeLease>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, node: NodeId, change: impl FnOnce(&mut NodeLease) -> T) -> T {
        change(self.all().entry(node).or_insert_with(|| NodeLease::new(self.started_ms)))
    }

    /// The lease state of a node. A node without a session so far has the initial state.
    pub fn node_lease(&self, node: NodeId) -> NodeLease {
        self.all().get(&node).copied().unwrap_or(NodeLease::new(self.started_ms))
    }

    /// Begins a worker's session. `None` during a takeover of its node's work; the worker can retry.
    pub fn begin_session(self: &Arc<Self>, node: NodeId) -> Option<LeaseGuard> {
        let entered = self.with(node, NodeLease::begin_session);
        entered.then(|| LeaseGuard { leases: self.clone(), node })
    }

    /// Renews the leases of a node. To be called before the acknowledgement of a heartbeat.
    pub fn renew(&self, node: NodeId, now_ms: i64) {
        self.with(node, |lease| lease.renew(now_ms));
    }

    /// Returns true if a node has a session, from its hello on.
    pub fn has_session(&self, node: NodeId) -> bool {
        !self.node_lease(node).is_silent()
    }

    /// Begins a takeover of a node's work. `None` if [`NodeLease::begin_takeover`] refuses it.
    pub fn begin_takeover(
        self: &Arc<Self>,
        node: NodeId,
        after_ms: Option<i64>,
        now_ms: i64,
    ) -> Option<TakeoverGuard> {
        let begun = self.with(node, |lease| lease.begin_takeover(after_ms, now_ms));
        begun.then(|| TakeoverGuard { leases: self.clone(), node })
    }
}

/// The guard of a session. As long as it exists, no takeover of the node's work can begin.
#[derive(Debug)]
pub struct LeaseGuard {
    leases: Arc<Leases>,
    node: NodeId,
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        self.leases.with(self.node, NodeLease::end_session);
    }
}

/// The guard of a takeover of a node's work. As long as it exists, no session of the node can begin.
pub struct TakeoverGuard {
    leases: Arc<Leases>,
    node: NodeId,
}

impl Drop for TakeoverGuard {
    fn drop(&mut self) {
        self.leases.with(self.node, NodeLease::end_takeover);
    }
}

/// The states of silent nodes, for operators.
pub(crate) struct Silences {
    rows: HashMap<NodeId, StoredNodeLease>,
    unended: HashMap<NodeId, UnendedCount>,
}

impl Silences {
    pub(crate) async fn read(tx: &mut store::Tx<'_>) -> Result<Self, StoreError> {
        let rows = store::leases::list_nodes(tx).await?;
        let unended = store::leases::count_unended(tx).await?;
        Ok(Self {
            rows: rows.into_iter().map(|row| (row.id, row)).collect(),
            unended: unended.into_iter().map(|count| (count.node_id, count)).collect(),
        })
    }

    /// The silence of a node. `None` for a node with a session, or without any session so far.
    pub(crate) fn find(&self, context: &Context, leases: &Leases, node: NodeId) -> Option<Silence> {
        let row = self.rows.get(&node).filter(|row| row.last_seen_at.is_some())?;
        let lease = leases.node_lease(node);
        if !lease.is_silent() {
            return None;
        }
        let count = self.unended.get(&node);
        let attempts = count.map_or(0, |count| u32::try_from(count.ranks).unwrap_or(u32::MAX));
        if row.lost_at.is_some() {
            let (lost_at, why) = (row.lost_at, row.lost_reason.clone());
            return Some(Silence { state: SilenceState::Lost, attempts, lost_at, why });
        }
        let leased = row.leased && count.is_none_or(|count| count.shortest_ms > 0);
        let lease_ms = count.map_or(context.settings.lease_ms, |count| count.longest_ms);
        let left_ms = lease.remaining_ms(LeaseLimits::new(lease_ms).lost_after_ms(), context.monotonic_ms());
        let lost_at = leased.then(|| context.now().plus_millis(left_ms.max(0)));
        Some(Silence { state: SilenceState::Suspect, attempts, lost_at, why: None })
    }
}

/// The audit event of an act of the portal on a node.
pub fn node_audit(context: &Context, node: NodeId, action: &str, detail: &str) -> AuditEvent {
    let at = context.now();
    AuditEvent {
        id: context.new_id::<AuditEventId>(at),
        at,
        actor: "The portal".to_owned(),
        action: action.to_owned(),
        subject: node.to_string(),
        detail: detail.to_owned(),
        context: AuditContext::default(),
    }
}
