//! Attempts: the application of workers' reports, the assignments of nodes, and the portal's own events.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_core::jobs::MachineEvent;
use berth_placement::cluster::Owner;
use berth_storage::start_inputs::may_use_node;
use berth_types::ids::{AuditEventId, JobId, NodeId, OrgId};
use berth_types::jobs::{Failure, JobState};
use berth_types::quotas::{AuditContext, AuditEvent};
use futures::FutureExt;

use crate::assignments::{RankAssignment, RankDevice, RankSlice, RankStart};
use crate::egress::find_egress;
use crate::leases;
use crate::logs::Logs;
use crate::preparation;
use crate::ranks;
use crate::reports::AttemptReport;
use crate::start_inputs::{Inputs, add_inputs, add_replica};
use crate::status_reports::{self, ReportChanges};
use crate::transitions::advance;
use berth_foundation::fault;
use berth_foundation::live::JobUpdate;
use berth_foundation::{Change, Context};
use berth_gangs::networks::{RankNetwork, rank_network, rdma_check};
use berth_recordings::Recordings;

use berth_store::attempts::{StoredAllocation, StoredOpenRank};
use berth_store::{self as store, StoreError, Tx};

/// The attempts of jobs: workers' reports about them, and the assignments of nodes.
#[derive(Clone)]
pub struct Attempts {
    context: Context,
    recordings: Recordings,
    logs: Logs,
    inputs: Inputs,
    /// The ranks of recorded refusals.
    refused: Arc<Mutex<HashSet<RefusedRank>>>,
}

/// A node with a job and the number of its attempt.
type RefusedRank = (NodeId, JobId, i64);

/// The most remembered refusals.
const MAX_REFUSED: usize = 1_024;

fn lock(refused: &Mutex<HashSet<RefusedRank>>) -> MutexGuard<'_, HashSet<RefusedRank>> {
    refused.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The start for a rank on a node that its organization may not use: a failure and nothing else.
fn refused_start() -> RankStart {
    let detail = "The node is not for this organization. The job got no data there.";
    let failure = Failure { code: "node.not_usable".to_owned(), detail: detail.to_owned() };
    RankStart { unusable: Some(failure), ..RankStart::default() }
}

/// The start for a rank of a job with RDMA whose organization has lost the grant: a failure and nothing else.
fn ungranted_start() -> RankStart {
    let detail = "The operator has revoked RDMA for the organization. The job was not started and costs nothing. Launch it without RDMA, or ask the operator.";
    let failure = Failure { code: "rdma.not_granted".to_owned(), detail: detail.to_owned() };
    RankStart { unusable: Some(failure), ..RankStart::default() }
}

impl Attempts {
    pub fn new(context: Context, recordings: Recordings, logs: Logs, inputs: Inputs) -> Self {
        Self { context, recordings, logs, inputs, refused: Arc::default() }
    }

    /// Applies a worker's report in one transaction, and publishes the changes after it.
    ///
    /// # Errors
    /// The database cannot be read or written. The last read comes after the commit of the report.
    pub async fn apply_status(&self, node: NodeId, report: AttemptReport) -> Result<(), StoreError> {
        let now = self.context.now();
        let job = report.job;
        let (context, logs) = (self.context.clone(), self.logs.clone());
        let changes = self
            .context
            .db
            .write(move |tx| {
                let (context, logs, report) = (context.clone(), logs.clone(), report.clone());
                async move { status_reports::apply(tx, &context, &logs, node, &report, now).await }.boxed()
            })
            .await?;
        if changes.ends_job() {
            fault::point("job.end.recorded");
        }
        self.publish_changes(node, job, changes).await
    }

    async fn publish_changes(
        &self,
        node: NodeId,
        job: JobId,
        changes: ReportChanges,
    ) -> Result<(), StoreError> {
        if let Some(org) = changes.org {
            for event in &changes.events {
                self.context.publish(Change::Job { org, job: event.job, event: Some(event.clone()) });
            }
            if changes.progressed && changes.events.is_empty() {
                self.context.publish(Change::Job { org, job, event: None });
            }
            if changes.cost.is_some() {
                self.context.publish(Change::Charged(org));
            }
            if let Some(cost) = changes.cost
                && self.context.live.has_listeners(cost.job)
                && let Ok(text) = serde_json::to_string(&cost)
            {
                self.context.live.publish_job(cost.job, JobUpdate::Cost(text.into()));
            }
        }
        if let Some(service) = changes.service {
            self.context.publish(Change::Service(service));
        }
        if changes.freed {
            self.context.publish(Change::JobDevices(job));
        }
        if changes.quarantined {
            self.context.publish(Change::Boards);
        }
        if changes.freed || changes.transferred {
            self.context.publish(Change::Assignments(node));
        }
        if changes.recheck_volumes {
            self.inputs.volumes.publish_waiting(job).await?;
        }
        changes
            .wake
            .iter()
            .filter(|n| **n != node)
            .for_each(|n| self.context.publish(Change::Assignments(*n)));
        Ok(())
    }

    /// The assignments of a node.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn desired(&self, node: NodeId) -> Result<Vec<RankAssignment>, StoreError> {
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let mut assignments = Vec::new();
        let mut refusals = Vec::new();
        // One read gives the allocations of all attempts: a node may have many, and any change comes here.
        let open = store::attempts::list_open(&mut tx, node).await?;
        let mut held: HashMap<(JobId, i64), Vec<StoredAllocation>> = HashMap::new();
        for slot in store::attempts::list_node_allocations(&mut tx, node).await? {
            held.entry((slot.job_id, slot.attempt)).or_default().push(slot);
        }
        for row in open {
            // An attempt that was closed between the reads has no allocations.
            let Some(slots) = held.remove(&(row.job_id, row.number)) else { continue };
            let mut assignment = self.assignment(&row, &slots)?;
            if !row.known {
                assignment.start = if assignment.stop {
                    // An attempt that is stopped before its start needs no files.
                    Some(RankStart::default())
                } else if may_use_node(&mut tx, row.org_id, node).await? {
                    self.start(&mut tx, node, &row).await?
                } else {
                    refusals.push((row.job_id, row.number, row.org_id));
                    Some(refused_start())
                };
                if assignment.start.is_none() {
                    continue;
                }
            }
            assignments.push(assignment);
        }
        drop(conn);
        for (job, attempt, org) in refusals {
            self.record_refusal(node, job, attempt, org).await?;
        }
        Ok(assignments)
    }

    /// Records once that a node got no start of an attempt, because its organization may not use the node.
    async fn record_refusal(
        &self,
        node: NodeId,
        job: JobId,
        attempt: i64,
        org: OrgId,
    ) -> Result<(), StoreError> {
        // A rank stays unknown to its worker for some messages.
        let rank = (node, job, attempt);
        if lock(&self.refused).contains(&rank) {
            return Ok(());
        }
        let now = self.context.now();
        tracing::error!(%node, %job, attempt, "a start on a node that its organization may not use is refused");
        let event = AuditEvent {
            id: self.context.new_id::<AuditEventId>(now),
            at: now,
            actor: "The portal".to_owned(),
            action: "attempt.start_refused".to_owned(),
            subject: job.to_string(),
            detail: format!(
                "Attempt {attempt} on the node {node}: it got no program, no secret and no data."
            ),
            context: AuditContext::default(),
        };
        self.context
            .db
            .write(move |tx| {
                let event = event.clone();
                async move { store::quotas::insert_audit(tx, Some(org), &event).await }.boxed()
            })
            .await?;
        let mut refused = lock(&self.refused);
        if refused.len() >= MAX_REFUSED {
            refused.clear();
        }
        refused.insert(rank);
        Ok(())
    }

    /// The assignment of an open rank, without the start.
    fn assignment(
        &self,
        row: &StoredOpenRank,
        slots: &[StoredAllocation],
    ) -> Result<RankAssignment, StoreError> {
        let number = u32::try_from(row.number).unwrap_or(0);
        let to_u32 = |n: i64| u32::try_from(n).unwrap_or(0);
        let device = |a: &StoredAllocation| RankDevice {
            gpu_uuid: a.gpu_uuid.clone(),
            slice: a.profile_id.map(|id| RankSlice {
                profile_id: to_u32(id),
                start: to_u32(a.start),
                size: to_u32(a.size),
            }),
            share_milli: a.share_milli.map(to_u32),
        };
        let state = row.phase.state;
        let over = state.ended() || matches!(state, JobState::Stopping | JobState::Queued);
        Ok(RankAssignment {
            job: row.job_id,
            attempt: number,
            org: row.org_id,
            stop: over || row.number != row.latest,
            stop_signal: ranks::stop_signal(row)?,
            limit_ms: row.max_duration_s.saturating_mul(1_000) - row.metered_before_ms,
            lease: leases::lease_limits(row.lease_ms),
            devices: slots.iter().map(device).collect(),
            log_bytes: self.recordings.log_length(row.job_id, number, to_u32(row.rank)),
            start: None,
        })
    }

    /// The start of a rank for a worker that does not know it yet. `None` as long as its inputs are not
    /// complete.
    async fn start(
        &self,
        tx: &mut Tx<'_>,
        node: NodeId,
        row: &StoredOpenRank,
    ) -> Result<Option<RankStart>, StoreError> {
        let submission = row.submission()?;
        if submission.rdma && store::rdma::find_grant(tx, row.org_id).await? != Some(true) {
            return Ok(Some(ungranted_start()));
        }
        let egress = match find_egress(tx, row.org_id, node, submission).await? {
            Ok(egress) => egress,
            Err(failure) => return Ok(Some(RankStart { unusable: Some(failure), ..RankStart::default() })),
        };
        let absent = || StoreError::corrupt("job_inputs", row.job_id, "job_id", "the row does not exist");
        let inputs = store::jobs::find_inputs(tx, row.job_id).await?.ok_or_else(absent)?;
        let gang = match rank_network(tx, &self.context, row).await? {
            RankNetwork::Host => None,
            RankNetwork::Gang(gang) => Some(gang),
            RankNetwork::Impossible(failure) => {
                return Ok(Some(RankStart { unusable: Some(failure), ..RankStart::default() }));
            }
        };
        let env = ranks::environment(tx, row, gang.is_some()).await?;
        let mut start = RankStart {
            command: submission.command.clone().unwrap_or_default(),
            script: inputs.script,
            // The variables of the submission override those of the portal.
            env: env.into_iter().chain(inputs.env.0).collect(),
            files: inputs.files.0,
            cpu_milli: u64::from(submission.cpus.unwrap_or(0)) * 1_000,
            memory_mib: submission.memory_mib.unwrap_or(0),
            network: submission.network,
            egress,
            spans_nodes: row.nodes > 1,
            gang,
            rdma: submission.rdma,
            rdma_check: rdma_check(tx, &self.context, row).await?,
            image: preparation::full_image_name(submission.image.as_deref()),
            ..RankStart::default()
        };
        add_replica(tx, &self.context, row, submission, &mut start).await?;
        Ok(add_inputs(tx, &self.inputs, row, submission, &mut start).await?.then_some(start))
    }

    /// Stops an attempt for a job of a higher class or a replica, or (`None`) for the reserve for bursts. Returns false if the
    /// attempt has ended or stops already.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn preempt(&self, victim: Owner, for_job: Option<JobId>) -> Result<bool, StoreError> {
        let event = MachineEvent::Preempt { attempt: victim.attempt, for_job };
        let Owner { job, attempt } = victim;
        let detail = if let Some(for_job) = for_job {
            tracing::info!(%job, attempt, %for_job, "an attempt is preempted");
            "Preempted for a replica or a job of higher priority. The job waits for its next attempt, unless its retry policy or its time limit excludes one."
        } else {
            tracing::info!(%job, attempt, "an attempt is preempted for the reserve for bursts");
            "Preempted for the boards that stay free for services. The job waits for its next attempt, unless its retry policy or its time limit excludes one."
        };
        self.apply_event(victim.job, None, event, detail.to_owned()).await
    }

    /// Ends a waiting job after a bad end of the job on which it depends. Returns false if the waiting job
    /// has changed meanwhile.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn orphan(&self, job: JobId, generation: i64, on: JobId) -> Result<bool, StoreError> {
        let detail = format!("The dependency {on} did not succeed.");
        let failure = Failure { code: "dependency.failed".to_owned(), detail: detail.clone() };
        self.apply_event(job, Some(generation), MachineEvent::Orphan { failure }, detail).await
    }

    /// Applies an event that the portal itself decided, and publishes it. Returns false if the state of the
    /// job does not allow the event, or if the job has another generation than the given one.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn apply_event(
        &self,
        job: JobId,
        generation: Option<i64>,
        event: MachineEvent,
        detail: String,
    ) -> Result<bool, StoreError> {
        let now = self.context.now();
        let context = self.context.clone();
        let done = self
            .context
            .db
            .write(move |tx| {
                let (context, event, detail) = (context.clone(), event.clone(), detail.clone());
                async move {
                    let Some(mut row) = store::jobs::find_any(tx, job).await? else { return Ok(None) };
                    if generation.is_some_and(|g| g != row.generation) {
                        return Ok(None);
                    }
                    let slots = store::attempts::list_allocations(tx, row.id, row.attempt).await?;
                    let moved = advance(tx, &context, &mut row, event, detail, now).await?;
                    Ok(moved.map(|event| (row.org_id, slots, event)))
                }
                .boxed()
            })
            .await;
        self.context.publish(Change::JobDevices(job));
        let Some((org, slots, event)) = done? else { return Ok(false) };
        for slot in slots {
            self.context.publish(Change::Assignments(slot.node_id));
        }
        self.context.publish(Change::Job { org, job, event: Some(event) });
        Ok(true)
    }
}
