//! What workers report of attempts, and what they are to do.
//!
//! A report is applied in one transaction with the use that it proves. One that speaks of something
//! older, or says again what is known, changes nothing.

use std::collections::{BTreeMap, HashMap};

use berth_core::cluster::Owner;
use berth_core::jobs::Event;
use berth_core::rating::charge_micros;
use berth_proto as proto;
use berth_types::events::{JobCost, JobEvent};
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::{Failure, JobState, Network, NewJob};
use berth_types::time::Timestamp;
use futures::FutureExt;

use crate::charges::charge;
use crate::evidence;
use crate::leases;
use crate::logs::Logs;
use crate::preparation;
use crate::ranks::{self, RankEnd};
use crate::transitions::{advance, record, step};
use berth_foundation::fault;
use berth_foundation::live::News;
use berth_foundation::{Change, Context};
use berth_recordings::Recordings;
use berth_storage::volumes::uses;
use berth_storage::{Files, Secrets, VolumeUses};
use berth_store::attempts::{AllocationRow, AttemptRow, OpenRow};
use berth_store::jobs::JobRow;
use berth_store::{self as store, StoreError, Tx};

/// Use is charged at least this often while a job runs.
const CHARGE_EVERY_MS: i64 = 60_000;

const RUNNING: &str = "Running. Every millisecond counts from here.";

/// When a rank began whose end is reported, in microseconds by its use; not before its job was submitted.
fn began_at(job: &JobRow, metered_ms: i64, now: Timestamp) -> i64 {
    let metered_ms = metered_ms.clamp(0, job.max_duration_s.saturating_mul(1_000));
    now.micros().saturating_sub(metered_ms.saturating_mul(1_000)).max(job.created_at)
}

/// What changed by a report, for those who listen.
#[derive(Debug, Clone, Default)]
pub struct Applied {
    pub org: Option<OrgId>,
    pub events: Vec<JobEvent>,
    pub cost: Option<JobCost>,
    /// Slices became free, or not.
    pub freed: bool,
    /// Boards were taken out of service.
    pub quarantined: bool,
    /// How far its preparation is has changed.
    pub progressed: bool,
    /// Nodes that must be told.
    pub wake: Vec<NodeId>,
    /// Its process is gone, and was not before.
    pub ended: bool,
    /// The worker has the job's files now, so there is room to send those of another.
    pub taken: bool,
    /// Who waits to write to its volumes is looked at again.
    pub behind: bool,
}

impl Applied {
    fn ends_the_job(&self) -> bool {
        self.events.iter().any(|event| event.state.ended())
    }
}

pub(crate) fn parse<T: std::str::FromStr>(text: &str) -> Result<T, StoreError> {
    text.parse().map_err(|_| StoreError::Corrupt(text.to_owned()))
}

/// Moves the meter forward, never back and never past what is held.
fn meter(row: &mut JobRow, metered_ms: i64) {
    if metered_ms <= row.metered_ms {
        return;
    }
    row.metered_ms = metered_ms.min(row.max_duration_s.saturating_mul(1_000)).max(row.metered_ms);
    let most = row.posted_micros.saturating_add(row.held_micros);
    row.cost_micros = charge_micros(row.nano_per_second, row.metered_ms).unwrap_or(most).min(most);
}

/// Brings the meter up to a report, and charges what is due: by the minute, and when an attempt is over.
/// Unless it gives `None`, the row is still to be written.
async fn count_use(
    tx: &mut Tx<'_>,
    context: &Context,
    row: &mut JobRow,
    job: JobId,
    reported_ms: i64,
    all_ended: bool,
    now: Timestamp,
) -> Result<Option<JobCost>, StoreError> {
    let before = row.metered_ms;
    meter(row, row.metered_before_ms.saturating_add(reported_ms.max(0)));
    let due = all_ended || before / CHARGE_EVERY_MS != row.metered_ms / CHARGE_EVERY_MS;
    if due {
        charge(tx, context, row, now).await?;
    }
    if row.metered_ms == before && !due {
        return Ok(None);
    }
    let (metered_ms, cost_micros, held_micros) = (row.metered_ms, row.cost_micros, row.held_micros);
    Ok(Some(JobCost { job, metered_ms, cost_micros, held_micros }))
}

/// Frees the devices of an attempt that is clean; the others wait until someone has looked.
async fn clean_up(
    tx: &mut Tx<'_>,
    attempt: &mut AttemptRow,
    status: &proto::Status,
) -> Result<(), StoreError> {
    let (job, number, node) = (&attempt.job_id, attempt.number, &attempt.node_id);
    match &status.unclean {
        Some(reason) => store::attempts::mark_unclean(tx, job, number, node, reason).await,
        None => {
            store::attempts::release(tx, job, number, node).await?;
            attempt.clean = true;
            Ok(())
        }
    }
}

async fn apply(
    tx: &mut Tx<'_>,
    attempts: &Attempts,
    node: NodeId,
    status: &proto::Status,
    now: Timestamp,
) -> Result<Applied, StoreError> {
    let context = &attempts.context;
    let mut applied = Applied::default();
    let Some(id) = &status.attempt else { return Ok(applied) };
    let Ok(job) = id.job.parse::<JobId>() else { return Ok(applied) };
    let mut ranks = store::attempts::list_ranks(tx, &job.to_string(), i64::from(id.number)).await?;
    let here = node.to_string();
    let Some(before) = ranks.iter().find(|rank| rank.node_id == here).cloned() else {
        tracing::warn!(%node, %job, attempt = id.number, "a report about an attempt that this node never had");
        return Ok(applied);
    };
    let mut attempt = before.clone();
    let Some(mut row) = store::jobs::find_any(tx, job).await? else { return Ok(applied) };
    applied.org = Some(parse(&row.org_id)?);
    let current = row.attempt == attempt.number;
    let phase = status.phase();
    leases::note_late(tx, context, node, &mut attempt, status, now).await?;
    let (number, ended) = (id.number, matches!(phase, proto::Phase::Ended | proto::Phase::Clean));
    let runs = phase == proto::Phase::Running || (ended && status.began);
    let begins = runs && !attempt.running;
    if begins && !status.mig_uuids.is_empty() {
        let held = store::attempts::list_allocations(tx, &row.id, attempt.number).await?;
        let here = held.into_iter().filter(|a| a.node_id == attempt.node_id);
        for (slot, uuid) in here.zip(&status.mig_uuids) {
            store::attempts::set_mig_uuid(tx, &row.id, attempt.number, slot.idx, uuid).await?;
        }
    }
    applied.progressed = preparation::keep(&mut attempt, status) && current;
    applied.taken = !attempt.known;
    attempt.known = true;
    attempt.running |= runs;
    let ends_now = ended && !attempt.ended;
    applied.ended = ends_now;
    evidence::keep(&mut attempt, status, ends_now, now)?;
    if ends_now {
        attempt.outcome = serde_json::to_string(&RankEnd::of(status)).ok();
        attempt.ended_at = Some(now.micros());
    }
    for rank in &mut ranks {
        if rank.rank == attempt.rank {
            *rank = AttemptRow { ended, ..attempt.clone() };
        }
    }
    let all_began = ranks.iter().all(|r| r.running || r.ended);
    if current && begins && ends_now && all_began {
        // It was over before anybody could be told that it ran: that is recorded first, with its begin by what
        // it metered.
        let (event, before) = (Event::Start { attempt: number }, row.started_at);
        row.started_at = before.or(Some(began_at(&row, status.metered_ms, now)));
        match step(tx, context, &mut row, event, RUNNING.to_owned(), now).await? {
            Ok(event) => applied.events.push(event),
            Err(_) => row.started_at = before,
        }
    }
    let event = match phase {
        proto::Phase::Preparing => Some((
            Event::Prepare { attempt: number },
            "The worker makes the device and the job's directory.".to_owned(),
        )),
        proto::Phase::Running if all_began => Some((Event::Start { attempt: number }, RUNNING.to_owned())),
        _ if ends_now => ranks::ended_event(&row, number, &ranks, &attempt)?,
        _ => None,
    };
    let all_ended = ends_now && ranks.iter().all(|r| r.ended);
    if current
        && matches!(phase, proto::Phase::Running | proto::Phase::Ended | proto::Phase::Clean)
        && !attempt.ended
    {
        applied.cost = count_use(tx, context, &mut row, job, status.metered_ms, all_ended, now).await?;
    }
    if current && all_ended {
        evidence::credit(tx, context, &row, row.metered_before_ms, &ranks, now).await?;
    }
    if let Some((event, detail)) = event.filter(|_| current)
        && let Ok(event) = step(tx, context, &mut row, event, detail, now).await?
    {
        applied.events.push(event);
        // The other ranks are stopped, or may go.
        applied.wake = ranks::nodes(&ranks);
    }
    if !applied.events.is_empty() {
        record(tx, &row, &applied.events).await?;
    } else if applied.cost.is_some() {
        store::jobs::update_meter(tx, &row).await?;
    }
    if ended
        && !attempt.ended
        && let Some(failure) = status.failure.as_ref().filter(|f| f.code == "device.unavailable")
    {
        // The next job would be given the same place: the boards wait until someone has looked.
        store::nodes::quarantine(tx, &row.id, attempt.number, &attempt.node_id, &failure.detail).await?;
        applied.quarantined = true;
    }
    if ended {
        attempt.ended = true;
        attempt.log_bytes = status.log_bytes.and_then(|n| i64::try_from(n).ok());
        applied.taken |= std::mem::replace(&mut attempt.saving, status.saving) && !status.saving;
    }
    if phase == proto::Phase::Clean {
        applied.freed = !attempt.clean;
        clean_up(tx, &mut attempt, status).await?;
    }
    applied.behind = (applied.taken || applied.ended) && uses::writes(&row)?;
    // Closed is closed: an old word of an older session opens nothing.
    if attempt.is_open && attempt.ended && attempt.clean && !attempt.saving {
        attempt.is_open = !attempts.logs.log_complete(job, &attempt, status.log_bytes);
    }
    if attempt != before {
        store::attempts::update(tx, &attempt).await?;
    }
    if applied.ends_the_job() {
        fault::point("job.end.recording");
    }
    Ok(applied)
}

/// The sources of what an attempt is given beside its submission.
#[derive(Clone)]
pub struct Inputs {
    pub secrets: Secrets,
    pub volumes: VolumeUses,
    pub files: Files,
}

/// Attempts: the reports of workers, and the assignments of nodes.
#[derive(Clone)]
pub struct Attempts {
    context: Context,
    recordings: Recordings,
    logs: Logs,
    inputs: Inputs,
}

impl Attempts {
    pub const fn new(context: Context, recordings: Recordings, logs: Logs, inputs: Inputs) -> Self {
        Self { context, recordings, logs, inputs }
    }

    /// Applies a worker's report and tells everyone. Durable when it returns.
    pub async fn apply_status(&self, node: NodeId, status: proto::Status) -> Result<(), StoreError> {
        let now = self.context.now();
        let job = status.attempt.as_ref().and_then(|id| id.job.parse().ok());
        let attempts = self.clone();
        let applied = self
            .context
            .db
            .write(move |tx| {
                let (attempts, status) = (attempts.clone(), status.clone());
                async move { apply(tx, &attempts, node, &status, now).await }.boxed()
            })
            .await?;
        if applied.ends_the_job() {
            fault::point("job.end.recorded");
        }
        if let Some(org) = applied.org {
            for event in &applied.events {
                self.context.publish(Change::Job { org, job: event.job, event: Some(event.clone()) });
            }
            if let Some(job) = job.filter(|_| applied.progressed && applied.events.is_empty()) {
                self.context.publish(Change::Job { org, job, event: None });
            }
            if applied.cost.is_some() {
                self.context.publish(Change::Charged);
            }
            if let Some(cost) = applied.cost
                && self.context.live.heard(cost.job)
                && let Ok(text) = serde_json::to_string(&cost)
            {
                self.context.live.publish_job(cost.job, News::Cost(text.into()));
            }
        }
        if applied.freed
            && let Some(job) = job
        {
            self.context.publish(Change::Claim(job));
        }
        if applied.quarantined {
            self.context.publish(Change::Boards);
        }
        if applied.freed || applied.taken {
            self.context.publish(Change::Assignments(node));
        }
        if applied.behind
            && let Some(job) = job
        {
            self.inputs.volumes.publish_waiting(job).await?;
        }
        applied
            .wake
            .iter()
            .filter(|n| **n != node)
            .for_each(|n| self.context.publish(Change::Assignments(*n)));
        Ok(())
    }

    /// What a node must have.
    pub async fn desired(&self, node: NodeId) -> Result<proto::Desired, StoreError> {
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let mut attempts = Vec::new();
        // Read for all at once: a node has many, and is looked at whenever one of them changes.
        let open = store::attempts::list_open(&mut tx, node).await?;
        let mut held: HashMap<(String, i64), Vec<AllocationRow>> = HashMap::new();
        for slot in store::attempts::list_allocations_on(&mut tx, node).await? {
            held.entry((slot.job_id.clone(), slot.attempt)).or_default().push(slot);
        }
        for row in open {
            // One that was closed between the reads is wanted no more.
            let Some(slots) = held.remove(&(row.job_id.clone(), row.number)) else { continue };
            let mut assignment = self.assignment(&row, &slots)?;
            if !row.known {
                assignment.spec = match assignment.stop {
                    // What is stopped before it began needs no files.
                    true => Some(proto::Spec::default()),
                    false => self.specification(&mut tx, &row).await?,
                };
                if assignment.spec.is_none() {
                    continue;
                }
            }
            attempts.push(assignment);
        }
        Ok(proto::Desired { attempts, ..proto::Desired::default() })
    }

    /// What is told of an attempt as long as it is open.
    fn assignment(&self, row: &OpenRow, slots: &[AllocationRow]) -> Result<proto::Assignment, StoreError> {
        let job: JobId = parse(&row.job_id)?;
        let number = u32::try_from(row.number).unwrap_or(0);
        let to_u32 = |n: i64| u32::try_from(n).unwrap_or(0);
        let slot = |a: &AllocationRow| proto::Slot {
            gpu_uuid: a.gpu_uuid.clone(),
            instance: a.profile_id.map(|id| proto::Instance {
                profile_id: to_u32(id),
                start: to_u32(a.start),
                size: to_u32(a.size),
            }),
            share_milli: a.share_milli.map_or(0, to_u32),
        };
        let state = row.phase.state;
        let over = state.ended() || matches!(state, JobState::Stopping | JobState::Queued);
        let (stop_signal, stop_grace_ms) = ranks::notice(row)?;
        let mut assignment = proto::Assignment {
            attempt: Some(proto::AttemptId::new(&row.job_id, number)),
            stop: over || row.number != row.latest,
            limit_ms: row.max_duration_s.saturating_mul(1_000) - row.metered_before_ms,
            slots: slots.iter().map(slot).collect(),
            log_from: self.recordings.log_length(job, number, to_u32(row.rank)),
            stop_signal,
            stop_grace_ms,
            organization: row.org_id.clone(),
            ..proto::Assignment::default()
        };
        leases::impose(&mut assignment, row.lease_ms);
        Ok(assignment)
    }

    /// What an attempt runs, for a worker that has not taken it yet. `None`: it is not told yet.
    async fn specification(&self, tx: &mut Tx<'_>, row: &OpenRow) -> Result<Option<proto::Spec>, StoreError> {
        let mut submission: NewJob = row.submission()?;
        let corrupt = || StoreError::Corrupt(row.job_id.clone());
        let inputs = store::jobs::find_inputs(tx, &row.job_id).await?.ok_or_else(corrupt)?;
        let own_env: BTreeMap<String, String> = serde_json::from_str(&inputs.env).map_err(|_| corrupt())?;
        let env = ranks::environment(tx, row).await?;
        let mut spec = proto::Spec {
            command: submission.command.take().unwrap_or_default(),
            script: inputs.script,
            // What the tenant sets overrides what is set for it.
            env: env.into_iter().chain(own_env).collect(),
            files: serde_json::from_str(&inputs.files).map_err(|_| corrupt())?,
            cpu_milli: u64::from(submission.cpus.unwrap_or(0)) * 1_000,
            memory_mib: submission.memory_mib.unwrap_or(0),
            no_network: submission.network == Network::None,
            image: preparation::image(submission.image.as_deref()),
            ..proto::Spec::default()
        };
        self.inputs.secrets.add_secrets(tx, parse(&row.org_id)?, &submission, &mut spec).await?;
        self.inputs.volumes.add_volumes(tx, row, &submission, &mut spec).await?;
        Ok(self.inputs.files.add_kept(tx, row, &submission, &mut spec).await?.then_some(spec))
    }

    /// Stops an attempt to make room; says whether it still could be.
    pub async fn preempt(&self, victim: Owner, for_job: JobId) -> Result<bool, StoreError> {
        let event = Event::Preempt { attempt: victim.attempt, for_job };
        let detail = "Stopped to make room for a more important job; it waits for its next attempt.";
        tracing::info!(job = %victim.job, attempt = victim.attempt, %for_job, "an attempt makes room");
        self.move_on(victim.job, None, event, detail.to_owned()).await
    }

    /// Ends a job that waits for one that did not end as it had to.
    pub async fn orphan(&self, job: JobId, generation: i64, on: JobId) -> Result<bool, StoreError> {
        let detail = format!("It waited for {on}, which did not succeed.");
        let failure = Failure { code: "dependency.failed".to_owned(), detail: detail.clone() };
        self.move_on(job, Some(generation), Event::Orphan { failure }, detail).await
    }

    /// Applies an event that the portal itself decided; says whether it fitted.
    pub async fn move_on(
        &self,
        job: JobId,
        generation: Option<i64>,
        event: Event,
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
                    let org: OrgId = parse(&row.org_id)?;
                    let slots = store::attempts::list_allocations(tx, &row.id, row.attempt).await?;
                    let moved = advance(tx, &context, &mut row, event, detail, now).await?;
                    Ok(moved.ok().map(|event| (org, slots, event)))
                }
                .boxed()
            })
            .await;
        self.context.publish(Change::Claim(job));
        let Some((org, slots, event)) = done? else { return Ok(false) };
        for node in slots.iter().filter_map(|a| a.node_id.parse().ok()) {
            self.context.publish(Change::Assignments(node));
        }
        self.context.publish(Change::Job { org, job, event: Some(event) });
        Ok(true)
    }
}
