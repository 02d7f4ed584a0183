//! A service with its revisions and replicas, as its rows have them, for the plan of the loop.

use std::collections::BTreeMap;

use berth_autoscaling::rollout::{RevisionNumber, Rollout};
use berth_core::jobs::{DRAINED, HALTED, NODE_LOST};
use berth_service_types::revisions::{NewRevision, RevisionState};
use berth_store::services::replicas::{LoopReplica, LoopRevision, LoopService, LoopWorld};
use berth_types::ids::{JobId, RevisionId, ServiceId};
use berth_types::jobs::JobState;
use berth_types::time::Timestamp;

use super::rollout;

/// Failures of a job that say nothing about its revision. They are over with the job, so its replacement follows at once.
const NOT_ITS_FAULT: [&str; 6] =
    ["node.lost", "node.shutdown", "lease.ended", "job.preempted", DRAINED, HALTED];
/// Characters of the text of a failure.
const MAX_FAULT_CHARS: usize = 300;

/// The part of the specification of a revision that the plan needs. It never changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    pub ready_within_s: u32,
    pub canary_percent: Vec<u8>,
    pub max_duration_s: i64,
}

impl Terms {
    /// The terms of a revision that cannot be read, for a service without replicas.
    pub const fn unreadable() -> Self {
        Self { ready_within_s: 0, canary_percent: Vec::new(), max_duration_s: 0 }
    }
}

impl From<&NewRevision> for Terms {
    fn from(spec: &NewRevision) -> Self {
        Self {
            ready_within_s: spec.ready_within_s,
            canary_percent: spec.canary_percent.clone(),
            max_duration_s: i64::try_from(spec.job.max_duration_s).unwrap_or(i64::MAX),
        }
    }
}

/// The job of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaJob {
    /// It is not submitted yet.
    Absent,
    /// It waits for devices, or is prepared.
    Waiting,
    /// It runs, and its time limit ends it.
    Running {
        since: Timestamp,
        until: Timestamp,
    },
    Stopping,
    Ended {
        /// The program ended by itself, failed, or was never ready.
        own_fault: bool,
    },
}

/// A replica that has not ended, or one of the last ended ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    pub id: JobId,
    pub revision: RevisionId,
    pub created_at: Timestamp,
    pub job: ReplicaJob,
    pub ready: bool,
    pub first_ready_at: Option<Timestamp>,
    pub unready_since: Option<Timestamp>,
    pub draining_since: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub failed: bool,
    /// Its job failed by a fault of its node. The next replica can have the same one, but the revision is not to blame.
    pub is_of_node: bool,
    /// The failure of its job as a sentence; empty without one.
    pub fault: String,
}

/// A revision with requests or replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision {
    pub id: RevisionId,
    pub number: RevisionNumber,
    pub terms: Terms,
}

/// A service for the plan.
#[derive(Debug, Clone, PartialEq)]
pub struct World {
    /// The service is stopped or deleted: it has no replicas.
    pub halted: bool,
    pub rollout: Rollout,
    pub revisions: Vec<Revision>,
    pub replicas: Vec<Replica>,
}

/// The rows of one service.
#[derive(Debug, Clone)]
pub struct Rows {
    pub service: LoopService,
    pub revisions: Vec<LoopRevision>,
    pub replicas: Vec<LoopReplica>,
}

impl Rows {
    /// The service is stopped or deleted.
    pub const fn is_halted(&self) -> bool {
        self.service.stopped || self.service.deleted_at.is_some()
    }

    /// The replicas that have not ended and do not drain.
    fn kept(&self) -> impl Iterator<Item = &LoopReplica> {
        self.replicas.iter().filter(|row| row.ended_at.is_none() && row.draining_since.is_none())
    }

    /// True if a replica has devices.
    pub fn has_devices(&self) -> bool {
        // Each other state comes after the place of the job.
        let before = |state| matches!(state, JobState::Queued | JobState::Cancelled);
        self.kept().any(|row| row.job_state.is_some_and(|state| !before(state)))
    }

    /// The replicas whose jobs wait in the queue.
    pub fn queued(&self) -> impl Iterator<Item = JobId> {
        self.kept().filter(|row| row.job_state == Some(JobState::Queued)).map(|row| row.job_id)
    }

    /// The rows by service.
    pub fn group(world: LoopWorld) -> Vec<Self> {
        let rows = |service: LoopService| {
            (service.id, Self { service, revisions: Vec::new(), replicas: Vec::new() })
        };
        let mut all: BTreeMap<ServiceId, Self> = world.services.into_iter().map(rows).collect();
        for row in world.revisions {
            if let Some(rows) = all.get_mut(&row.service_id) {
                rows.revisions.push(row);
            }
        }
        for row in world.replicas {
            if let Some(rows) = all.get_mut(&row.service_id) {
                rows.replicas.push(row);
            }
        }
        all.into_values().collect()
    }
}

fn job(row: &LoopReplica) -> ReplicaJob {
    let Some(state) = row.job_state else { return ReplicaJob::Absent };
    match state {
        JobState::Queued | JobState::Assigned | JobState::Starting => ReplicaJob::Waiting,
        JobState::Running => row.started_at.map_or(ReplicaJob::Waiting, |since| {
            let limit_ms = row.max_duration_s.unwrap_or(0).saturating_mul(1_000);
            let left_ms = limit_ms.saturating_sub(row.metered_before_ms.unwrap_or(0));
            ReplicaJob::Running { since, until: since.plus_millis(left_ms) }
        }),
        JobState::Stopping => ReplicaJob::Stopping,
        JobState::Cancelled => ReplicaJob::Ended { own_fault: false },
        JobState::Succeeded => ReplicaJob::Ended { own_fault: true },
        JobState::TimedOut => ReplicaJob::Ended { own_fault: row.first_ready_at.is_none() },
        JobState::Failed => {
            let code = row.failure_code.as_deref().unwrap_or_default();
            ReplicaJob::Ended { own_fault: !NOT_ITS_FAULT.contains(&code) && !NODE_LOST.contains(&code) }
        }
    }
}

/// True if the job failed by a fault that its node can still have.
fn is_of_node(row: &LoopReplica) -> bool {
    let code = row.failure_code.as_deref().unwrap_or_default();
    let is_failed = row.job_state == Some(JobState::Failed);
    is_failed && NODE_LOST.contains(&code) && !NOT_ITS_FAULT.contains(&code)
}

fn replica(row: &LoopReplica) -> Replica {
    let runs = row.job_state == Some(JobState::Running) && row.ended_at.is_none();
    let fault = match (&row.failure_detail, row.exit_code, row.job_state) {
        (Some(detail), ..) => detail.chars().take(MAX_FAULT_CHARS).collect(),
        (None, Some(code), Some(JobState::Failed | JobState::Succeeded)) => {
            format!("The program ended with exit code {code}.")
        }
        _ => String::new(),
    };
    Replica {
        id: row.job_id,
        revision: row.revision_id,
        created_at: row.created_at,
        job: job(row),
        // A report about an earlier attempt says nothing about this one.
        ready: runs && row.ready_since.is_some() && row.ready_attempt == row.attempt,
        first_ready_at: row.first_ready_at,
        unready_since: row.unready_since,
        draining_since: row.draining_since,
        ended_at: row.ended_at,
        failed: row.failed,
        is_of_node: is_of_node(row),
        fault,
    }
}

impl World {
    /// The world of these rows. `None` if the terms of a revision are missing.
    pub fn from_rows(rows: &Rows, terms: &BTreeMap<RevisionId, Terms>) -> Option<Self> {
        let revision = |row: &LoopRevision| {
            Some(Revision { id: row.id, number: rollout::number(row)?, terms: terms.get(&row.id)?.clone() })
        };
        let revisions: Vec<Revision> = rows.revisions.iter().map(revision).collect::<Option<_>>()?;
        let on_its_way =
            |row: &&LoopRevision| matches!(row.state, RevisionState::Staging | RevisionState::Canary);
        let candidate = rows.revisions.iter().find(on_its_way);
        let steps = candidate.and_then(|row| terms.get(&row.id)).map(|terms| terms.canary_percent.as_slice());
        Some(Self {
            halted: rows.is_halted(),
            rollout: rollout::load(&rows.revisions, steps.unwrap_or_default()),
            revisions,
            replicas: rows.replicas.iter().map(replica).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    /// A replica whose job ended with this failure.
    fn failed(code: &str) -> Replica {
        replica(&LoopReplica {
            job_id: JobId::from_uuid(Uuid::from_u128(1)),
            service_id: ServiceId::from_uuid(Uuid::from_u128(2)),
            revision_id: RevisionId::from_uuid(Uuid::from_u128(3)),
            created_at: Timestamp::from_micros(0),
            ready_attempt: None,
            ready_since: None,
            first_ready_at: None,
            unready_since: None,
            draining_since: None,
            ended_at: None,
            failed: false,
            job_state: Some(JobState::Failed),
            attempt: Some(1),
            max_duration_s: Some(60),
            metered_before_ms: Some(0),
            started_at: None,
            exit_code: None,
            failure_code: Some(code.to_owned()),
            failure_detail: Some("It failed.".to_owned()),
        })
    }

    #[test]
    fn no_fault_of_a_node_is_one_of_the_revision() {
        for code in NODE_LOST.into_iter().chain(NOT_ITS_FAULT) {
            let replica = failed(code);
            assert_eq!(replica.job, ReplicaJob::Ended { own_fault: false }, "{code}");
            // A node that is gone gets no other replica.
            assert_eq!(replica.is_of_node, !NOT_ITS_FAULT.contains(&code), "{code}");
        }
        for code in ["process.exit", "command.not_runnable", "image.pull_failed", ""] {
            let replica = failed(code);
            assert_eq!(replica.job, ReplicaJob::Ended { own_fault: true }, "{code}");
            assert!(!replica.is_of_node, "{code}");
        }
    }
}
