//! The leases of nodes: which nodes are heard, and the leases of their attempts since the last heartbeat.
//!
//! Heartbeats renew a lease. They are counted in memory by a clock that no one sets. A portal that starts takes
//! each node to be as late as it can have been.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_core::lease::{Holder, Terms};
use berth_foundation::Context;
use berth_store::leases::{NodeLeaseRow, UnendedCount};
use berth_store::{self as store, StoreError};
use berth_types::ids::{AuditEventId, NodeId};
use berth_types::nodes::{Silence, SilenceState};
use berth_types::quotas::AuditEvent;
use berth_types::time::Timestamp;

/// What is known of every node since this portal began.
#[derive(Debug)]
pub struct Leases {
    began_ms: i64,
    nodes: Mutex<HashMap<NodeId, Holder>>,
}

impl Leases {
    pub fn since(began_ms: i64) -> Self {
        Self { began_ms, nodes: Mutex::default() }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<NodeId, Holder>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, node: NodeId, change: impl FnOnce(&mut Holder) -> T) -> T {
        change(self.all().entry(node).or_insert_with(|| Holder::new(self.began_ms)))
    }

    /// How a node stands; nothing is remembered of one that was never here.
    pub fn holder(&self, node: NodeId) -> Holder {
        self.all().get(&node).copied().unwrap_or(Holder::new(self.began_ms))
    }

    /// A worker's session begins. `None` while its node's work is being taken: it may come again.
    pub fn hold(self: &Arc<Self>, node: NodeId) -> Option<Held> {
        let entered = self.with(node, Holder::enter);
        entered.then(|| Held { leases: self.clone(), node })
    }

    /// To be called before a heartbeat is acknowledged.
    pub fn renew(&self, node: NodeId, now_ms: i64) {
        self.with(node, |holder| holder.renew(now_ms));
    }

    /// Whether a node's worker is spoken with, from its hello on.
    pub fn is_heard(&self, node: NodeId) -> bool {
        !self.holder(node).is_silent()
    }

    /// Begins to take a node's work, if [`Holder::take`] lets it.
    pub fn take(self: &Arc<Self>, node: NodeId, after_ms: Option<i64>, now_ms: i64) -> Option<Taking> {
        let taking = self.with(node, |holder| holder.take(after_ms, now_ms));
        taking.then(|| Taking { leases: self.clone(), node })
    }
}

/// While this is held the node's worker is spoken with, and nothing is taken from it.
#[derive(Debug)]
pub struct Held {
    leases: Arc<Leases>,
    node: NodeId,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.leases.with(self.node, Holder::leave);
    }
}

/// While this is held the node's work is taken from it, and its worker is not spoken with.
pub struct Taking {
    leases: Arc<Leases>,
    node: NodeId,
}

impl Drop for Taking {
    fn drop(&mut self) {
        self.leases.with(self.node, Holder::taken);
    }
}

/// How a node that does not speak stands, for operators.
pub(crate) struct Silences {
    rows: HashMap<String, NodeLeaseRow>,
    unended: HashMap<String, UnendedCount>,
}

impl Silences {
    pub(crate) async fn read(tx: &mut store::Tx<'_>) -> Result<Self, StoreError> {
        let rows = store::leases::list_nodes(tx).await?;
        let unended = store::leases::count_unended(tx).await?;
        Ok(Self {
            rows: rows.into_iter().map(|row| (row.id.clone(), row)).collect(),
            unended: unended.into_iter().map(|count| (count.node_id.clone(), count)).collect(),
        })
    }

    /// `None` for a node that speaks, or never did.
    pub(crate) fn find(&self, context: &Context, leases: &Leases, node: NodeId) -> Option<Silence> {
        let id = node.to_string();
        let row = self.rows.get(&id).filter(|row| row.last_seen_at.is_some())?;
        let holder = leases.holder(node);
        if !holder.is_silent() {
            return None;
        }
        let count = self.unended.get(&id);
        let attempts = count.map_or(0, |count| u32::try_from(count.ranks).unwrap_or(u32::MAX));
        if let Some(at) = row.lost_at {
            let lost_at = Some(Timestamp::from_micros(at));
            return Some(Silence { state: SilenceState::Lost, attempts, lost_at, why: row.lost_why.clone() });
        }
        let leased = row.leased && count.is_none_or(|count| count.shortest_ms > 0);
        let lease_ms = count.map_or(context.settings.lease_ms, |count| count.longest_ms);
        let left_ms = holder.left_ms(Terms::new(lease_ms).lost_after_ms(), context.monotonic_ms());
        let lost_at = leased.then(|| context.now().plus_millis(left_ms.max(0)));
        Some(Silence { state: SilenceState::Suspect, attempts, lost_at, why: None })
    }
}

/// An action of the portal itself on a node, for the audit log.
pub fn node_audit(context: &Context, node: NodeId, action: &str, detail: &str) -> AuditEvent {
    let at = context.now();
    AuditEvent {
        id: context.new_id::<AuditEventId>(at),
        at,
        actor: "The portal".to_owned(),
        action: action.to_owned(),
        subject: node.to_string(),
        detail: detail.to_owned(),
    }
}
