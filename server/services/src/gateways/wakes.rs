//! The changes after which a snapshot is built.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use berth_foundation::{Change, Listener};
use berth_types::ids::JobId;
use tokio::sync::Notify;

/// The signal of changes, and the jobs that the last snapshot has: other jobs change no snapshot.
#[derive(Default)]
pub(super) struct Wakes {
    changed: Notify,
    replicas: Mutex<HashSet<JobId>>,
}

impl Wakes {
    /// Resolves after a change.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    pub fn has_replica(&self, job: JobId) -> bool {
        self.replicas.lock().unwrap_or_else(PoisonError::into_inner).contains(&job)
    }

    /// Replaces the jobs that are replicas.
    pub fn set_replicas(&self, jobs: HashSet<JobId>) {
        *self.replicas.lock().unwrap_or_else(PoisonError::into_inner) = jobs;
    }
}

impl Listener for Wakes {
    fn on_change(&self, change: &Change) {
        let concerns = match change {
            Change::Service(_) | Change::InferenceKeys(_) | Change::Boards | Change::NodeRevoked(_) => true,
            Change::Job { job, .. } => self.has_replica(*job),
            _ => false,
        };
        if concerns {
            self.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_types::ids::OrgId;
    use futures::FutureExt;

    use super::*;

    #[test]
    fn only_changes_of_replicas_services_and_nodes_wake() {
        let id = |n: u8| format!("job_{n:026}").parse::<JobId>().unwrap();
        let org: OrgId = "org_00000000000000000000000001".parse().unwrap();
        let wakes = Wakes::default();
        wakes.set_replicas(HashSet::from([id(1)]));
        let job = |job: JobId| Change::Job { org, job, event: None };
        for (change, expected) in [
            (Change::Service("svc_00000000000000000000000001".parse().unwrap()), true),
            (Change::InferenceKeys(org), true),
            (Change::Boards, true),
            (job(id(1)), true),
            (job(id(2)), false),
            (Change::Orgs, false),
            (Change::Charged(org), false),
        ] {
            wakes.on_change(&change);
            assert_eq!(wakes.changed().now_or_never().is_some(), expected, "{change:?}");
        }
    }
}
