//! Changes, and the listeners that act on them: the planner, open streams, worker sessions, tunnels, passes to ports,
//! the watch for idle devices, budgets.
//!
//! A part of the portal publishes the change after its commit and knows no listener. A listener must not block and
//! must not fail: it marks or forwards. A listener that missed a change reads the database again.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};

use berth_types::events::JobEvent;
use berth_types::ids::{JobId, NodeId, OrgId, TokenId, UserId};

/// A committed change, or a part of the state that must be read again.
#[derive(Debug, Clone)]
pub enum Change {
    /// A job moved on by `event`, or (without one) is shown differently.
    Job {
        org: OrgId,
        job: JobId,
        event: Option<JobEvent>,
    },
    /// The devices of a job are to be read again: they changed, or a change of them may have failed.
    Claim(JobId),
    /// A node came, went or reported, or the health of a board changed.
    Boards,
    /// Limits or weights of organizations changed, or an organization was added.
    Orgs,
    /// A reservation or a maintenance window came, went or changed.
    Reservations,
    /// The attempts that a node must have changed.
    Assignments(NodeId),
    /// A node was removed or lost its certificate.
    NodeRevoked(NodeId),
    /// A job was charged.
    Charged,
    /// The rights of a member changed, or the member left.
    Member {
        org: OrgId,
        user: UserId,
    },
    TokenRevoked(TokenId),
    SignedOut(UserId),
    /// The organizations that have webhooks for events of jobs.
    Webhooks(HashSet<String>),
}

/// A part of the portal that acts on changes.
pub trait Listener: Send + Sync {
    fn hear(&self, change: &Change);
}

/// The list of listeners.
#[derive(Default)]
pub struct Changes {
    listeners: RwLock<Vec<Arc<dyn Listener>>>,
}

impl Changes {
    pub fn subscribe(&self, listener: Arc<dyn Listener>) {
        self.listeners.write().unwrap_or_else(PoisonError::into_inner).push(listener);
    }

    /// Gives a change to every listener, in the order of their subscriptions.
    pub fn publish(&self, change: &Change) {
        let listeners = self.listeners.read().unwrap_or_else(PoisonError::into_inner);
        listeners.iter().for_each(|listener| listener.hear(change));
    }
}
