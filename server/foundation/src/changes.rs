//! Committed changes and their listeners: the planner, open streams, worker sessions, tunnels, passes to ports, the
//! watch for idle devices, budgets, the loop of services, the snapshots for gateways.
//!
//! A part of the portal publishes a change after its commit and does not know the listeners. A listener must
//! not block and must not fail: it sets a mark or forwards the change. A listener that missed a change reads
//! the database again.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};

use berth_types::events::JobEvent;
use berth_types::ids::{JobId, NodeId, OrgId, ServiceId, TokenId, UserId};

use crate::credentials::SessionKey;

/// A committed change, or a part of the state that listeners must read again.
#[derive(Debug, Clone)]
pub enum Change {
    /// The state of a job changed by `event`. Without an event only the presentation of the job changed.
    Job {
        org: OrgId,
        job: JobId,
        event: Option<JobEvent>,
    },
    /// The devices of a job changed, or a change of them may have failed. Listeners read them again.
    JobDevices(JobId),
    /// A node joined, left or reported, or the health of a board changed.
    Boards,
    /// Limits or weights of organizations changed, or an organization was added.
    Orgs,
    /// A reservation or a maintenance window was added, removed or changed.
    Reservations,
    /// A service, its revisions or its replicas changed, or the readiness of a replica.
    Service(ServiceId),
    /// An inference key of this organization was added or revoked.
    InferenceKeys(OrgId),
    /// The assigned attempts of a node changed.
    Assignments(NodeId),
    /// A node was removed or lost its certificate.
    NodeRevoked(NodeId),
    /// A job of this organization was charged.
    Charged(OrgId),
    /// The rights of a member changed, the member left, or lacks a second factor that is required now.
    Member {
        org: OrgId,
        user: UserId,
    },
    /// A user got another role of operators, or is no operator any more.
    Operator(UserId),
    TokenRevoked(TokenId),
    /// A person ended this session.
    SignedOut(SessionKey),
    /// The new set of organizations with webhooks for events of jobs.
    Webhooks(HashSet<OrgId>),
}

/// A part of the portal that reacts to changes.
pub trait Listener: Send + Sync {
    fn on_change(&self, change: &Change);
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

    /// Passes a change to every listener in the order of subscription.
    pub fn publish(&self, change: &Change) {
        let listeners = self.listeners.read().unwrap_or_else(PoisonError::into_inner);
        listeners.iter().for_each(|listener| listener.on_change(change));
    }
}
