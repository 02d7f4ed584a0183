//! The application of a worker's report about an attempt, in one transaction with the use that it proves.
//!
//! An older or repeated report changes nothing.

use berth_core::jobs::MachineEvent;
use berth_core::rating::charge_micros;
use berth_types::events::{JobCost, JobEvent};
use berth_types::ids::{NodeId, OrgId, ServiceId};
use berth_types::time::Timestamp;

use crate::charges::charge;
use crate::evidence;
use crate::leases;
use crate::logs::Logs;
use crate::meters;
use crate::preparation;
use crate::ranks;
use crate::reports::{AttemptPhase, AttemptReport};
use crate::transitions::{record, step};
use berth_foundation::Context;
use berth_foundation::fault;
use berth_gangs::links;
use berth_storage::volumes::uses;
use berth_store::attempts::StoredAttempt;
use berth_store::jobs::StoredJob;
use berth_store::services::replicas;
use berth_store::types::JsonColumn;
use berth_store::{self as store, StoreError, Tx};

/// A running job is charged at least this often.
const CHARGE_EVERY_MS: i64 = 60_000;

const RUNNING: &str = "Running. Metering has started.";

/// The changes by one report, for the publication after its transaction.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReportChanges {
    pub org: Option<OrgId>,
    pub events: Vec<JobEvent>,
    pub cost: Option<JobCost>,
    /// The devices were proved clean, or were reported as unclean.
    pub freed: bool,
    /// Boards were taken out of service, or nodes were set aside.
    pub quarantined: bool,
    /// The progress of the preparation changed.
    pub progressed: bool,
    /// Nodes whose assignments changed.
    pub wake: Vec<NodeId>,
    /// The process ended with this report.
    pub ended: bool,
    /// The worker has received the job's files, or the portal has received its results: the next transfer may
    /// begin.
    pub transferred: bool,
    /// Jobs that wait to write to the same volumes have to be checked again.
    pub recheck_volumes: bool,
    /// The service of a replica whose readiness changed.
    pub service: Option<ServiceId>,
}

impl ReportChanges {
    pub fn ends_job(&self) -> bool {
        self.events.iter().any(|event| event.state.ended())
    }
}

/// A report with the conclusions from the stored rows before it.
struct Report<'a> {
    context: &'a Context,
    report: &'a AttemptReport,
    now: Timestamp,
    /// The attempt is the latest of its job.
    current: bool,
    /// The process runs or has run.
    runs: bool,
    /// The process runs or has run, and no earlier report said so.
    begins: bool,
    /// The process has ended.
    ended: bool,
    /// The process has ended, and no earlier report said so.
    ends_now: bool,
}

/// Applies a report of `node` to its attempt and to the job.
pub(crate) async fn apply(
    tx: &mut Tx<'_>,
    context: &Context,
    logs: &Logs,
    node: NodeId,
    report: &AttemptReport,
    now: Timestamp,
) -> Result<ReportChanges, StoreError> {
    let mut changes = ReportChanges::default();
    let (job, number) = (report.job, report.attempt);
    let mut ranks = store::attempts::list_ranks(tx, job, i64::from(number)).await?;
    let Some(before) = ranks.iter().find(|rank| rank.node_id == node).cloned() else {
        tracing::warn!(%node, %job, attempt = number, "a report about an unknown attempt of this node");
        return Ok(changes);
    };
    let mut attempt = before.clone();
    let Some(mut row) = store::jobs::find_any(tx, job).await? else { return Ok(changes) };
    changes.org = Some(row.org_id);
    leases::record_late_report(tx, context, node, &mut attempt, report, now).await?;
    let report = &meters::bound(tx, context, &attempt, report, now).await?;
    let ended = report.phase.has_ended();
    let runs = report.phase == AttemptPhase::Running || (ended && report.began);
    let log_bytes = report.log_bytes;
    let report = Report {
        context,
        report,
        now,
        current: row.attempt == attempt.number,
        runs,
        begins: runs && !attempt.running,
        ended,
        ends_now: ended && !attempt.ended,
    };
    report.update_rank(tx, &mut attempt, &mut changes).await?;
    // The end of a rank that has run repeats the links of its begin, which an operator may have made obsolete.
    if report.begins || (report.ends_now && !report.runs) {
        let at = (&attempt, ranks.as_slice());
        let found = (report.report.links.as_slice(), report.report.failure.as_ref());
        changes.quarantined |= links::record(tx, context, &row, at, found, now).await?;
    }
    for rank in &mut ranks {
        if rank.rank == attempt.rank {
            *rank = StoredAttempt { ended, ..attempt.clone() };
        }
    }
    report.update_job(tx, &mut row, &attempt, &ranks, &mut changes).await?;
    report.update_ended_rank(tx, &mut attempt, &mut changes).await?;
    report.update_readiness(tx, &row, &attempt, &mut changes).await?;
    changes.recheck_volumes = (changes.transferred || changes.ended) && uses::writes_volumes(&row);
    // A closed attempt stays closed: an old report of an earlier session opens nothing.
    if attempt.is_open && attempt.ended && attempt.clean && !attempt.saving {
        // The log of a job that retention has removed never becomes complete.
        attempt.is_open = row.removed_at.is_none() && !logs.is_log_complete(job, &attempt, log_bytes);
    }
    if attempt != before {
        store::attempts::update(tx, &attempt).await?;
    }
    if changes.ends_job() {
        fault::point("job.end.recording");
    }
    Ok(changes)
}

impl Report<'_> {
    /// Brings the row of a rank up to the report, apart from its end.
    async fn update_rank(
        &self,
        tx: &mut Tx<'_>,
        attempt: &mut StoredAttempt,
        changes: &mut ReportChanges,
    ) -> Result<(), StoreError> {
        if self.begins && !self.report.mig_uuids.is_empty() {
            let slots = store::attempts::list_allocations(tx, attempt.job_id, attempt.number).await?;
            let here = slots.into_iter().filter(|slot| slot.node_id == attempt.node_id);
            for (slot, uuid) in here.zip(&self.report.mig_uuids) {
                store::attempts::set_mig_uuid(tx, attempt.job_id, attempt.number, slot.idx, uuid).await?;
            }
        }
        changes.progressed = preparation::update_progress(attempt, self.report) && self.current;
        changes.transferred = !attempt.known;
        attempt.known = true;
        attempt.running |= self.runs;
        changes.ended = self.ends_now;
        evidence::update_evidence(attempt, self.report, self.ends_now, self.now);
        if self.ends_now {
            attempt.outcome = Some(JsonColumn(ranks::reported_end(self.report)));
            attempt.ended_at = Some(self.now);
        }
        Ok(())
    }

    /// Moves the job on, charges its use and records both. `ranks` are already as reported, and `attempt` is
    /// not marked as ended yet.
    async fn update_job(
        &self,
        tx: &mut Tx<'_>,
        row: &mut StoredJob,
        attempt: &StoredAttempt,
        ranks: &[StoredAttempt],
        changes: &mut ReportChanges,
    ) -> Result<(), StoreError> {
        let all_began = ranks.iter().all(|r| r.running || r.ended);
        if self.current && self.begins && self.ends_now && all_began {
            self.record_late_start(tx, row, changes).await?;
        }
        let event = self.event(row, attempt, ranks, all_began);
        let all_ended = self.ends_now && ranks.iter().all(|r| r.ended);
        let phase = self.report.phase;
        let is_metered = phase == AttemptPhase::Running || phase.has_ended();
        if self.current && is_metered && !attempt.ended {
            changes.cost = self.count_use(tx, row, all_ended).await?;
        }
        if self.current && all_ended {
            evidence::credit_uncovered(tx, self.context, row, row.metered_before_ms, ranks, self.now).await?;
        }
        if let Some((event, detail)) = event.filter(|_| self.current)
            && let Some(event) = step(tx, self.context, row, event, detail, self.now).await?
        {
            changes.events.push(event);
            // The workers of the other ranks have to stop or to release them.
            changes.wake = ranks::node_ids(ranks);
        }
        // The end of the job has released its hold.
        if let Some(cost) = &mut changes.cost {
            cost.held_micros = row.held_micros;
        }
        if !changes.events.is_empty() {
            record(tx, row, &changes.events).await?;
        } else if changes.cost.is_some() {
            store::jobs::update_meter(tx, row).await?;
        }
        Ok(())
    }

    /// Records the start of a job whose process had ended before the first report of its run. The metered
    /// time gives the begin.
    async fn record_late_start(
        &self,
        tx: &mut Tx<'_>,
        row: &mut StoredJob,
        changes: &mut ReportChanges,
    ) -> Result<(), StoreError> {
        let (event, before) = (MachineEvent::Start { attempt: self.report.attempt }, row.started_at);
        row.started_at = before.or(Some(began_at(row, self.report.metered_ms, self.now)));
        match step(tx, self.context, row, event, RUNNING.to_owned(), self.now).await? {
            Some(event) => changes.events.push(event),
            None => row.started_at = before,
        }
        Ok(())
    }

    /// The event of the job that follows from the report, with its text.
    fn event(
        &self,
        row: &StoredJob,
        attempt: &StoredAttempt,
        ranks: &[StoredAttempt],
        all_began: bool,
    ) -> Option<(MachineEvent, String)> {
        let number = self.report.attempt;
        match self.report.phase {
            AttemptPhase::Preparing => Some((
                MachineEvent::Prepare { attempt: number },
                "The worker prepares the devices and the directory of the job.".to_owned(),
            )),
            AttemptPhase::Running if all_began => {
                Some((MachineEvent::Start { attempt: number }, RUNNING.to_owned()))
            }
            _ if self.ends_now => ranks::ended_event(row, number, ranks, attempt),
            _ => None,
        }
    }

    /// Brings the meter up to the report, and charges by the minute and at the end of the attempt. The caller
    /// writes the row, unless the result is `None`.
    async fn count_use(
        &self,
        tx: &mut Tx<'_>,
        row: &mut StoredJob,
        all_ended: bool,
    ) -> Result<Option<JobCost>, StoreError> {
        let before = row.metered_ms;
        advance_meter(row, row.metered_before_ms.saturating_add(self.report.metered_ms));
        let due = all_ended || before / CHARGE_EVERY_MS != row.metered_ms / CHARGE_EVERY_MS;
        if due {
            charge(tx, self.context, row, self.now).await?;
        }
        if row.metered_ms == before && !due {
            return Ok(None);
        }
        let (metered_ms, cost_micros, held_micros) = (row.metered_ms, row.cost_micros, row.held_micros);
        Ok(Some(JobCost { job: self.report.job, metered_ms, cost_micros, held_micros }))
    }

    /// Records the readiness of a replica. The label of a replica spares the other jobs the statement.
    async fn update_readiness(
        &self,
        tx: &mut Tx<'_>,
        row: &StoredJob,
        attempt: &StoredAttempt,
        changes: &mut ReportChanges,
    ) -> Result<(), StoreError> {
        if attempt.rank != 0 || !row.labels.contains_key(replicas::LABEL) {
            return Ok(());
        }
        let ready = self.report.ready && self.current && self.report.phase == AttemptPhase::Running;
        changes.service = replicas::set_ready(tx, row.id, attempt.number, ready, self.now).await?;
        Ok(())
    }

    /// Brings the row of a rank up to the report of its end, and releases its clean devices.
    async fn update_ended_rank(
        &self,
        tx: &mut Tx<'_>,
        attempt: &mut StoredAttempt,
        changes: &mut ReportChanges,
    ) -> Result<(), StoreError> {
        if self.ends_now
            && let Some(failure) = self.report.failure.as_ref().filter(|f| f.code == "device.unavailable")
        {
            // Without the quarantine the next job would get the same boards.
            let (job, number, node) = (attempt.job_id, attempt.number, attempt.node_id);
            store::nodes::quarantine(tx, job, number, node, &failure.detail).await?;
            changes.quarantined = true;
        }
        if self.ended {
            attempt.ended = true;
            attempt.log_bytes = self.report.log_bytes.and_then(|n| i64::try_from(n).ok());
            let was_saving = std::mem::replace(&mut attempt.saving, self.report.saving);
            changes.transferred |= was_saving && !self.report.saving;
        }
        if self.report.phase == AttemptPhase::Clean {
            changes.freed = !attempt.clean;
            release_devices(tx, attempt, self.report.unclean.as_deref()).await?;
        }
        Ok(())
    }
}

/// The begin of a rank whose end is reported: its metered time ago, but not before the submission of its job.
fn began_at(job: &StoredJob, metered_ms: i64, now: Timestamp) -> Timestamp {
    let metered_ms = metered_ms.clamp(0, job.max_duration_s.saturating_mul(1_000));
    now.plus_millis(-metered_ms).max(job.created_at)
}

/// Moves the meter of a job forward, never back and never past its time limit.
fn advance_meter(row: &mut StoredJob, metered_ms: i64) {
    if metered_ms <= row.metered_ms {
        return;
    }
    row.metered_ms = metered_ms.min(row.max_duration_s.saturating_mul(1_000)).max(row.metered_ms);
    let most = row.posted_micros.saturating_add(row.held_micros);
    row.cost_micros = charge_micros(row.nano_per_second, row.metered_ms).unwrap_or(most).min(most);
}

/// Releases the clean devices of a rank. Unclean devices, for the reason `unclean`, wait for the check of an
/// operator.
async fn release_devices(
    tx: &mut Tx<'_>,
    attempt: &mut StoredAttempt,
    unclean: Option<&str>,
) -> Result<(), StoreError> {
    let (job, number, node) = (attempt.job_id, attempt.number, attempt.node_id);
    match unclean {
        Some(reason) => store::attempts::mark_unclean(tx, job, number, node, reason).await,
        None => {
            store::attempts::release(tx, job, number, node).await?;
            attempt.clean = true;
            Ok(())
        }
    }
}
