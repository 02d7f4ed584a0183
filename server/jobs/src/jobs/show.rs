//! The API's view of jobs, with their devices and the reasons for waiting.

use std::collections::{BTreeSet, HashMap};

use berth_mig::board_by_name;
use berth_placement::assignment::AssignedDevice;
use berth_types::Page;
use berth_types::events::{JobChange, JobEvent};
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::{
    Action, Device, Explanation, Failure, Job, JobState, NewJob, OrgJobFilter, Placement, Underuse,
};
use berth_types::lists::ListOptions;
use berth_types::overview::{JobCounts, MAX_COUNTED};
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use berth_types::volumes::{JobVolume, VolumeUse};

use super::Jobs;
use crate::job_filter::job_search;
use crate::{drains, evidence, preparation, ranks};
use berth_foundation::live::ChangedJob;
use berth_foundation::{Caller, Right};
use berth_rest::streams::END_DATA;
use berth_storage::volumes::uses;
use berth_store::attempts::{StoredAllocation, StoredAttempt};
use berth_store::jobs::{JobInputs, StoredJob};
use berth_store::types::JsonColumn;
use berth_store::underuse::StoredUnderuse;
use berth_store::{self as store, StoreError, Tx};
use std::sync::Arc;

/// An idle hour is shown with its job for this long.
const IDLE_SHOWN_MS: i64 = 2 * 3_600_000;
/// The boards in one read of names.
const BOARDS_PER_READ: usize = 1_000;

/// The reason for the end of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogEnd {
    /// The log is complete.
    Complete,
    /// The node counts as lost. The rest of the log arrives after the return of the node, for a new request.
    Lost,
}

impl LogEnd {
    /// The text for a client that follows the log.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Complete => END_DATA,
            Self::Lost => {
                "The node of this attempt is lost. The rest of the log follows if the node returns."
            }
        }
    }
}

impl Jobs {
    pub async fn get_job(&self, caller: &Caller, org: OrgId, job: JobId) -> Result<Job, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        self.show_job(org, job).await
    }

    /// The submission of a job with its present time limit, as the body of another submission. It has the values
    /// of environment variables and the texts of files, so its right is the one to run jobs.
    ///
    /// # Errors
    /// The caller may not run jobs, or the job is unknown.
    pub async fn get_submission(&self, caller: &Caller, org: OrgId, job: JobId) -> Result<NewJob, Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let row = store::jobs::find(&mut tx, org, job).await?.ok_or_else(Problem::not_found)?;
        if row.removed_at.is_some() {
            let detail = "Retention has removed the submission, the logs and the files of the job. Its times and its cost remain. Write a new submission.";
            return Err(Problem::conflict("job.removed", "Job removed", detail));
        }
        let absent = || StoreError::corrupt("job_inputs", job, "job_id", "the row does not exist");
        let inputs = store::jobs::find_inputs(&mut tx, job).await?.ok_or_else(absent)?;
        let JobInputs { script, env, files } = inputs;
        let max_duration_s = u64::try_from(row.max_duration_s).unwrap_or(0);
        Ok(NewJob { script, env: env.0, files: files.0, max_duration_s, ..row.spec.0 })
    }

    pub(super) async fn show_job(&self, org: OrgId, job: JobId) -> Result<Job, Problem> {
        let mut conn = self.context.db.read().await?;
        let row = store::jobs::find(&mut conn.tx(), org, job).await?.ok_or_else(Problem::not_found)?;
        drop(conn);
        self.show_complete(vec![row]).await?.pop().ok_or_else(Problem::not_found)
    }

    /// The wire form of stored jobs, with the parts that lists of jobs leave out.
    async fn show_complete(&self, rows: Vec<StoredJob>) -> Result<Vec<Job>, StoreError> {
        let explanations = self.explain_queued(&rows).await;
        let mut conn = self.context.db.read().await?;
        let tx = &mut conn.tx();
        let ids: Vec<JobId> = rows.iter().map(|row| row.id).collect();
        let begun = begun_jobs(&rows);
        let mut jobs = self.show(tx, rows, explanations).await?;
        let mut scripts: HashMap<JobId, String> =
            store::jobs::list_scripts(tx, &ids).await?.into_iter().collect();
        let mut ranks: HashMap<JobId, Vec<StoredAttempt>> = HashMap::new();
        for rank in store::attempts::list_latest_ranks(tx, &begun).await? {
            ranks.entry(rank.job_id).or_default().push(rank);
        }
        let begun: Vec<String> = begun.iter().map(ToString::to_string).collect();
        let credited = store::ledger::list_credited(tx, store::ledger::EVIDENCE, begun).await?;
        let mut credited: HashMap<String, i64> = credited.into_iter().collect();
        for job in &mut jobs {
            job.script = scripts.remove(&job.id);
            if job.attempt == 0 {
                continue;
            }
            uses::add_outcomes(tx, job.id, i64::from(job.attempt), &mut job.volumes).await?;
            let ranks = ranks.remove(&job.id).unwrap_or_default();
            job.evidence = evidence::rank_evidence(&ranks);
            job.failed_rank = ranks::failed_rank(job.failure.as_ref(), &ranks);
            preparation::add_progress(job, ranks);
            job.credited_micros = credited.remove(&job.id.to_string()).unwrap_or(0);
        }
        Ok(jobs)
    }

    /// A page of an organization's jobs.
    pub async fn list_jobs(
        &self,
        caller: &Caller,
        org: OrgId,
        filter: &OrgJobFilter,
        options: &ListOptions<JobId>,
    ) -> Result<Page<Job>, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        let search = job_search(filter)?;
        let mut conn = self.context.db.read().await?;
        let rows = store::jobs::list(&mut conn.tx(), org, &search, options).await?;
        drop(conn);
        let Page { items, next_cursor } = options.page(rows, |row| row.id);
        let explanations = self.explain_queued(&items).await;
        let mut conn = self.context.db.read().await?;
        Ok(Page { items: self.show(&mut conn.tx(), items, explanations).await?, next_cursor })
    }

    /// The numbers of an organization's jobs.
    ///
    /// # Errors
    /// The caller may not see the jobs.
    pub async fn count_jobs(&self, caller: &Caller, org: OrgId) -> Result<JobCounts, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        let limit = i64::try_from(MAX_COUNTED).unwrap_or(i64::MAX);
        let mut conn = self.context.db.read().await?;
        let (running, queued, ended) = store::jobs::count_of_org(&mut conn.tx(), org, limit).await?;
        let count = |n: i64| u64::try_from(n).unwrap_or(0);
        Ok(JobCounts { running: count(running), queued: count(queued), ended: count(ended) })
    }

    pub async fn list_job_events(
        &self,
        caller: &Caller,
        org: OrgId,
        job: JobId,
        after: i64,
    ) -> Result<Page<JobEvent>, Problem> {
        self.get_job(caller, org, job).await?;
        let mut conn = self.context.db.read().await?;
        Ok(Page::whole(store::job_events::list_events(&mut conn.tx(), job, after).await?))
    }

    /// The changes of an organization's jobs since a time, oldest first, each with its job as it is now.
    pub async fn org_changes(
        &self,
        caller: &Caller,
        org: OrgId,
        since: Timestamp,
    ) -> Result<Vec<JobChange>, Problem> {
        const MOST: i64 = 1_000;
        self.context.authorise(caller, org, Right::View).await?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let events = store::job_events::list_org_events(&mut tx, org, since, MOST).await?;
        let ids: BTreeSet<JobId> = events.iter().map(|event| event.job).collect();
        let ids: Vec<JobId> = ids.into_iter().collect();
        let mut rows = store::jobs::list_any(&mut tx, &ids).await?;
        rows.retain(|row| row.org_id == org);
        drop(conn);
        let shown = self.show_complete(rows).await?;
        let jobs: HashMap<JobId, Job> = shown.into_iter().map(|job| (job.id, job)).collect();
        let mut out = Vec::with_capacity(events.len());
        for event in events {
            let job = jobs.get(&event.job).cloned().ok_or_else(Problem::not_found)?;
            out.push(JobChange { event: Some(event), job });
        }
        Ok(out)
    }

    /// The reason if no more output of a rank's log will come. Attempt 0 stands for a job without an attempt.
    pub async fn log_end(&self, job: JobId, number: u32, rank: u32) -> Result<Option<LogEnd>, StoreError> {
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        if number == 0 {
            let row = store::jobs::find_any(&mut tx, job).await?;
            let over = row.is_none_or(|r| r.ended_at.is_some() && r.attempt == 0);
            return Ok(over.then_some(LogEnd::Complete));
        }
        let Some(row) = store::attempts::find_log_end(&mut tx, job, number, rank).await? else {
            // A rank or an attempt that an ended job never had gets no output.
            let row = store::jobs::find_any(&mut tx, job).await?;
            return Ok(row.is_none_or(|row| row.ended_at.is_some()).then_some(LogEnd::Complete));
        };
        let Some(length) = row.log_bytes else {
            // A lost node reports the length only after its return, if it ever returns.
            return Ok(row.outcome.filter(|end| end.is_lost()).map(|_| LogEnd::Lost));
        };
        let have = self.recordings.log_length(job, number, rank);
        if u64::try_from(length).is_ok_and(|n| have >= n) {
            return Ok(Some(LogEnd::Complete));
        }
        // A log that retention has removed has no more bytes.
        let row = store::jobs::find_any(&mut tx, job).await?;
        Ok(row.and_then(|row| row.removed_at).map(|_| LogEnd::Complete))
    }

    /// The reasons of the queued ones of these jobs. No connection to the database may be held meanwhile: the
    /// answer may wait for a pass.
    async fn explain_queued(&self, rows: &[StoredJob]) -> HashMap<JobId, Explanation> {
        self.planner.explain(rows.iter().filter(|row| row.phase.state == JobState::Queued)).await
    }

    /// The wire form of stored jobs, with devices and reasons.
    async fn show(
        &self,
        tx: &mut Tx<'_>,
        rows: Vec<StoredJob>,
        mut explanations: HashMap<JobId, Explanation>,
    ) -> Result<Vec<Job>, StoreError> {
        let connected = self.context.live.connected();
        let begun = begun_jobs(&rows);
        let leaving = if begun.is_empty() { Vec::new() } else { drains::list_notices(tx).await? };
        let mut devices = stored_devices(tx, &begun).await?;
        let mut idle_hours = self.idle_hours(tx, &rows).await?;
        let mut out = Vec::with_capacity(rows.len());
        for row in rows {
            let devices = devices.remove(&row.id).unwrap_or_default();
            let explanation = explanations.remove(&row.id);
            let underused = idle_hours.remove(&(row.id, row.attempt));
            let mut job = Job { underused, ..self.job_from_row(row, devices) };
            if let Some(explanation) = explanation {
                job.reasons = match explanation.blockers.is_empty() {
                    true => vec![explanation.basis],
                    false => explanation.blockers.into_iter().map(|b| b.detail).collect(),
                };
            }
            let silent = job.devices.iter().find(|d| !connected.contains(&d.node));
            if let Some(device) = silent.filter(|_| !job.state.ended()) {
                job.reasons.push(format!(
                    "The worker on {} is unreachable. The job continues there for its offline tolerance. Its log and cost follow after the worker reconnects.",
                    device.node_name
                ));
            }
            let placed = !job.state.ended() && job.state != JobState::Queued;
            for (node, notice) in leaving.iter().filter(|_| placed) {
                if job.devices.iter().any(|d| d.node == *node) {
                    job.reasons.push(notice.clone());
                }
            }
            out.push(job);
        }
        Ok(out)
    }

    /// The last idle hours of the running jobs, by job and attempt, if they were reported less than
    /// `IDLE_SHOWN_MS` ago.
    async fn idle_hours(
        &self,
        tx: &mut Tx<'_>,
        rows: &[StoredJob],
    ) -> Result<HashMap<(JobId, i64), Underuse>, StoreError> {
        let running = rows.iter().filter(|row| row.phase.state == JobState::Running);
        let running: Vec<JobId> = running.map(|row| row.id).collect();
        if running.is_empty() {
            return Ok(HashMap::new());
        }
        let after = self.context.now().plus_millis(-IDLE_SHOWN_MS);
        let reported = store::underuse::list_after(tx, &running, after).await?;
        let idle_hour = |row: StoredUnderuse| {
            let percent = u32::try_from(row.percent).unwrap_or(0);
            let StoredUnderuse { starts_at: since, ends_at: until, cost_micros, .. } = row;
            ((row.job_id, row.attempt), Underuse { since, until, percent, cost_micros })
        };
        // The latest report of an attempt comes last and replaces the others.
        Ok(reported.into_iter().map(idle_hour).collect())
    }

    /// The wire form of a stored job.
    pub(super) fn job_from_row(&self, row: StoredJob, devices: Vec<Device>) -> Job {
        let JsonColumn(spec) = row.spec;
        let state = row.phase.state;
        let actions = match state {
            JobState::Queued | JobState::Assigned | JobState::Starting | JobState::Running => {
                vec![Action::Cancel, Action::Extend]
            }
            _ => vec![],
        };
        Job {
            id: row.id,
            org: row.org_id,
            state,
            reasons: vec![],
            attempt: u32::try_from(row.attempt).unwrap_or(0),
            offering: row.slug,
            simulated: row.simulated,
            count: spec.count,
            priority: spec.priority,
            preemptible: spec.preemptible,
            depends_on: spec.depends_on,
            nodes: spec.nodes,
            cpus: spec.cpus,
            memory_mib: spec.memory_mib,
            gpu_milli: spec.gpu_milli,
            topology: spec.topology,
            network: spec.network,
            rdma: spec.rdma,
            ports: spec.ports,
            ports_keep_path: spec.ports_keep_path,
            retry: spec.retry,
            retries: u32::try_from(row.retries).unwrap_or(0),
            checkpoint: spec.checkpoint,
            stop_when_idle: spec.stop_when_idle,
            underused: None,
            reservation: spec.reservation,
            command: spec.command,
            // Only the view of a single job fills this.
            script: None,
            image: spec.image,
            image_digests: vec![],
            files: spec.files.into_keys().collect(),
            volumes: spec.volumes.into_iter().map(job_volume).collect(),
            labels: spec.labels,
            max_duration_s: u64::try_from(row.max_duration_s).unwrap_or(0),
            devices,
            created_at: row.created_at,
            created_by: row.created_by,
            started_at: row.started_at,
            ended_at: row.ended_at,
            removed_at: row.removed_at,
            exit_code: row.exit_code.and_then(|c| i32::try_from(c).ok()),
            failure: row
                .failure_code
                .map(|code| Failure { code, detail: row.failure_detail.unwrap_or_default() }),
            metered_ms: row.metered_ms,
            cost_micros: row.cost_micros,
            // Only the view of a single job fills these.
            credited_micros: 0,
            evidence: vec![],
            failed_rank: None,
            held_micros: row.held_micros,
            nano_per_second: row.nano_per_second,
            surcharge_basis_points: u32::try_from(row.surcharge_basis_points).unwrap_or(0),
            currency: self.context.settings.currency.clone(),
            price_version: row.price_version,
            generation: row.generation,
            actions,
            name: row.name,
        }
    }

    /// A change of a job in the form of the event streams: the event and the present job.
    ///
    /// # Errors
    /// The job is unknown or cannot be read.
    pub async fn change_text(&self, news: &ChangedJob) -> Result<Arc<str>, Problem> {
        let make = || async {
            let job = self.show_job(news.org, news.job).await?;
            let change = JobChange { event: news.event.clone(), job };
            serde_json::to_string(&change).map(Arc::from).map_err(|_| Problem::internal())
        };
        news.text.get_or_try_init(make).await.cloned()
    }
}

fn job_volume(requested: VolumeUse) -> JobVolume {
    let VolumeUse { name, path, mode } = requested;
    JobVolume { name, path, mode, version: None, kept_version: None, note: None }
}

/// Node, board index and memory slices of boards, by their UUIDs. The node is the present one, with its name.
type Boards = HashMap<String, ((NodeId, String), u32, u32)>;

async fn board_names(tx: &mut Tx<'_>, uuids: BTreeSet<String>) -> Result<Boards, StoreError> {
    let uuids: Vec<String> = uuids.into_iter().collect();
    let mut out = HashMap::with_capacity(uuids.len());
    for part in uuids.chunks(BOARDS_PER_READ) {
        for row in store::nodes::list_board_names(tx, part).await? {
            let cells = board_by_name(&row.model).map_or(1, |b| b.memory_slices);
            let node = (row.node_id, row.node_name);
            out.insert(row.uuid, (node, u32::try_from(row.idx).unwrap_or(0), cells));
        }
    }
    Ok(out)
}

/// The node name, the index and the memory slices of a board.
fn board_name(names: &Boards, gpu_uuid: &str) -> (String, u32, u32) {
    let found = names.get(gpu_uuid);
    found.map(|((_, name), index, cells)| (name.clone(), *index, *cells)).unwrap_or_default()
}

/// The wire form of the devices of a plan, by node.
pub(super) async fn plan_devices(
    tx: &mut Tx<'_>,
    places: Vec<(NodeId, Vec<AssignedDevice>)>,
) -> Result<Vec<Device>, StoreError> {
    let uuids = places.iter().flat_map(|(_, slots)| slots).map(|slot| slot.gpu_uuid.clone()).collect();
    let names = board_names(tx, uuids).await?;
    let mut out = Vec::new();
    for (node, slots) in places {
        for slot in slots {
            let (node_name, gpu_index, cells) = board_name(&names, &slot.gpu_uuid);
            let placement = slot.instance.map(|i| Placement { start: i.start, size: slot.size });
            let (gpu_uuid, gpu_milli) = (slot.gpu_uuid, slot.share_milli.map(u32::from));
            let mig_uuid = None;
            out.push(Device { node, node_name, gpu_uuid, gpu_index, cells, mig_uuid, placement, gpu_milli });
        }
    }
    Ok(out)
}

/// The devices of the latest attempts of these jobs, by job.
pub(super) async fn stored_devices(
    tx: &mut Tx<'_>,
    jobs: &[JobId],
) -> Result<HashMap<JobId, Vec<Device>>, StoreError> {
    let slots = store::attempts::list_latest_allocations(tx, jobs).await?;
    let names = board_names(tx, slots.iter().map(|slot| slot.gpu_uuid.clone()).collect()).await?;
    let mut devices: HashMap<JobId, Vec<Device>> = HashMap::new();
    // A board can be on another node meanwhile, such as that of a removed node.
    let is_moved = |slot: &&StoredAllocation| {
        names.get(&slot.gpu_uuid).is_some_and(|((node, _), ..)| *node != slot.node_id)
    };
    let moved: BTreeSet<NodeId> = slots.iter().filter(is_moved).map(|slot| slot.node_id).collect();
    let moved: Vec<NodeId> = moved.into_iter().collect();
    let former: HashMap<NodeId, String> = store::nodes::list_names(tx, &moved).await?.into_iter().collect();
    for slot in slots {
        let job = slot.job_id;
        let mut device = stored_device(slot, &names);
        if let Some(name) = former.get(&device.node) {
            device.node_name.clone_from(name);
        }
        devices.entry(job).or_default().push(device);
    }
    Ok(devices)
}

/// The jobs that have or had an attempt.
fn begun_jobs(rows: &[StoredJob]) -> Vec<JobId> {
    rows.iter().filter(|row| row.attempt > 0).map(|row| row.id).collect()
}

fn stored_device(slot: StoredAllocation, names: &Boards) -> Device {
    let (node_name, gpu_index, cells) = board_name(names, &slot.gpu_uuid);
    let number = |n: i64| u32::try_from(n).unwrap_or(0);
    Device {
        node: slot.node_id,
        node_name,
        gpu_uuid: slot.gpu_uuid,
        gpu_index,
        cells,
        mig_uuid: slot.mig_uuid,
        placement: slot.profile_id.map(|_| Placement { start: number(slot.start), size: number(slot.size) }),
        gpu_milli: slot.share_milli.map(number),
    }
}
