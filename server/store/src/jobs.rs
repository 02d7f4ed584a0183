//! Jobs and their events.

use std::collections::BTreeMap;
use std::fmt;

use berth_core::jobs::StopCause;
use berth_types::ids::{JobId, OfferingId, OrgId, ReservationId, TransferId};
use berth_types::jobs::{JobState, NewJob};
use berth_types::lists::ListOptions;
use berth_types::time::Timestamp;

use super::stops::{Phase, StopColumns};
use super::storage::{self, StoredBytes, submission_bytes};
use super::types::JsonColumn;
use super::{StoreError, Tx};

/// A job as stored.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct StoredJob {
    pub id: JobId,
    pub org_id: OrgId,
    pub name: String,
    pub slug: String,
    pub gpu_model: String,
    pub mig_profile: Option<String>,
    pub simulated: bool,
    /// The submission without its inputs.
    pub spec: JsonColumn<NewJob>,
    #[sqlx(flatten)]
    pub phase: Phase,
    pub attempt: i64,
    pub generation: i64,
    pub priority: i64,
    pub device_count: i64,
    pub max_duration_s: i64,
    pub price_version: i64,
    pub nano_per_second: i64,
    /// The surcharge in the rate, from the promise of the service of a replica.
    pub surcharge_basis_points: i64,
    pub held_micros: i64,
    pub cost_micros: i64,
    pub posted_micros: i64,
    pub metered_ms: i64,
    /// The part of `metered_ms` from earlier attempts.
    pub metered_before_ms: i64,
    pub preemptible: bool,
    /// Thousandths of a processor for each node; 0 without a request, also for the memory in the next field.
    pub cpu_milli: i64,
    pub memory_mib: i64,
    pub nodes: i64,
    /// The grace in seconds between the stop signal and SIGKILL.
    pub grace_s: i64,
    /// The number of further attempts after bad ends.
    pub retries: i64,
    /// Thousandths of whole boards on all its nodes.
    pub board_milli: i64,
    /// The reservation in which it runs.
    pub reservation_id: Option<ReservationId>,
    pub offering_id: OfferingId,
    pub labels: JsonColumn<BTreeMap<String, String>>,
    /// `metered_ms` at the last charge.
    pub posted_ms: i64,
    /// Thousandths of devices on all its nodes.
    pub device_milli: i64,
    /// The transfer that holds `held_micros`.
    pub hold_id: Option<TransferId>,
    pub created_by: String,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub exit_code: Option<i64>,
    pub failure_code: Option<String>,
    pub failure_detail: Option<String>,
    /// The removal of its submission, logs and files by retention.
    pub removed_at: Option<Timestamp>,
    /// True for a replica of a service.
    pub replica: bool,
    /// The longest time between the stop of an attempt for another job or a drain and its end; `None` before the first.
    pub gives_back_ms: Option<i64>,
}

impl StoredJob {
    /// Returns the cause of its stop while it is being stopped.
    pub fn stop_cause(&self) -> Option<StopCause> {
        self.phase.stop.as_ref().map(|stop| stop.cause)
    }
}

/// The large parts of a submission.
#[derive(Clone, Default, sqlx::FromRow)]
pub struct JobInputs {
    pub script: Option<String>,
    /// Name → text.
    pub env: JsonColumn<BTreeMap<String, String>>,
    /// Path → text.
    pub files: JsonColumn<BTreeMap<String, String>>,
}

/// The texts may have secrets, which must not reach a log.
impl fmt::Debug for JobInputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let script_bytes = self.script.as_ref().map(String::len);
        f.debug_struct("JobInputs")
            .field("script_bytes", &script_bytes)
            .field("env", &self.env.len())
            .field("files", &self.files.len())
            .finish()
    }
}

/// A filter of jobs. An absent or empty field matches every job.
#[derive(Debug, Clone, Default)]
pub struct JobSearch {
    pub state: Option<JobState>,
    /// True for ended jobs, false for all others.
    pub ended: Option<bool>,
    /// A part of the name, without regard to case.
    pub name: String,
    /// A part of the name of the submitting user, without regard to case.
    pub created_by: String,
    /// `"key":"value"`, as labels are stored.
    pub label: String,
}

impl JobSearch {
    /// `ended` as a text; empty when absent.
    pub(crate) fn end_text(&self) -> &'static str {
        match self.ended {
            None => "",
            Some(true) => "ended",
            Some(false) => "open",
        }
    }
}

/// A new job.
#[derive(Debug, Clone)]
pub struct NewStoredJob {
    pub id: JobId,
    pub org: OrgId,
    pub name: String,
    pub offering: OfferingId,
    /// The submission without its inputs.
    pub spec: JsonColumn<NewJob>,
    pub inputs: JobInputs,
    pub priority: i64,
    pub preemptible: bool,
    pub cpu_milli: i64,
    pub memory_mib: i64,
    pub nodes: i64,
    pub grace_s: i64,
    pub board_milli: i64,
    pub reservation: Option<ReservationId>,
    pub labels: JsonColumn<BTreeMap<String, String>>,
    pub device_milli: i64,
    pub device_count: i64,
    pub max_duration_s: i64,
    pub price_version: i64,
    pub nano_per_second: i64,
    /// The surcharge in the rate, from the promise of the service of a replica.
    pub surcharge_basis_points: i64,
    pub held_micros: i64,
    /// The transfer that holds `held_micros`.
    pub hold: Option<TransferId>,
    pub created_by: String,
    pub created_at: Timestamp,
}

macro_rules! select_jobs {
    ($rest:literal) => {
        concat!(
            "SELECT j.id, j.org_id, j.name, o.slug, o.gpu_model, o.mig_profile, o.simulated, j.spec, j.state, \
             j.stop_cause, j.stop_reason, j.stop_for_job, j.stop_requeues, j.stop_seconds, j.stop_percent, j.attempt, j.generation, j.priority, j.device_count, j.max_duration_s, j.price_version, \
             j.nano_per_second, j.surcharge_basis_points, j.held_micros, j.cost_micros, j.posted_micros, j.metered_ms, j.metered_before_ms, j.preemptible, j.cpu_milli, j.memory_mib, j.nodes, j.grace_s, j.retries, j.board_milli, j.reservation_id, j.offering_id, j.labels, j.posted_ms, j.device_milli, j.hold_id, j.created_by, \
             j.created_at, j.started_at, j.ended_at, j.exit_code, j.failure_code, j.failure_detail, j.removed_at, \
             EXISTS (SELECT 1 FROM service_replicas s WHERE s.job_id = j.id) AS replica, j.gives_back_ms \
             FROM jobs j JOIN offerings o ON o.id = j.offering_id ",
            $rest
        )
    };
}

macro_rules! search_conditions {
    () => {
        " AND ($3 = '' OR ($3 = 'ended' AND j.ended_at IS NOT NULL) OR ($3 = 'open' AND j.ended_at IS NULL)) \
         AND ($4 = '' OR REPLACE(LOWER(j.name), LOWER($4), '') <> LOWER(j.name)) \
         AND ($5 = '' OR REPLACE(LOWER(j.created_by), LOWER($5), '') <> LOWER(j.created_by)) \
         AND ($6 = '' OR REPLACE(j.labels, '{' || $6, '') <> j.labels OR REPLACE(j.labels, ',' || $6, '') <> j.labels)"
    };
}

pub async fn insert(tx: &mut Tx<'_>, job: &NewStoredJob) -> Result<(), StoreError> {
    exec!(
        tx,
        "INSERT INTO jobs (id, org_id, name, offering_id, spec, state, attempt, generation, priority, device_count, \
         max_duration_s, price_version, nano_per_second, held_micros, cost_micros, posted_micros, metered_ms, \
         created_by, created_at, preemptible, cpu_milli, memory_mib, nodes, grace_s, board_milli, reservation_id, labels, device_milli, hold_id, surcharge_basis_points) \
         VALUES ($1, $2, $3, $4, $5, 'queued', 0, 1, $6, $7, $8, $9, $10, $11, 0, 0, 0, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24)",
        job.id,
        job.org,
        &job.name,
        job.offering,
        &job.spec,
        job.priority,
        job.device_count,
        job.max_duration_s,
        job.price_version,
        job.nano_per_second,
        job.held_micros,
        &job.created_by,
        job.created_at,
        job.preemptible,
        job.cpu_milli,
        job.memory_mib,
        job.nodes,
        job.grace_s,
        job.board_milli,
        job.reservation,
        &job.labels,
        job.device_milli,
        job.hold,
        job.surcharge_basis_points
    )?;
    let JobInputs { script, env, files } = &job.inputs;
    let bytes = submission_bytes(&job.spec, script.as_deref(), [&env.0, &files.0])?;
    let sql = "INSERT INTO job_inputs (job_id, script, env, files, bytes) VALUES ($1, $2, $3, $4, $5)";
    exec!(tx, sql, job.id, script, env, files, bytes)?;
    let change = StoredBytes { submissions: 1, submission_bytes: bytes, log_bytes: 0 };
    storage::add(tx, job.org, change).await
}

/// Finds the large parts of a job's submission.
pub async fn find_inputs(tx: &mut Tx<'_>, job: JobId) -> Result<Option<JobInputs>, StoreError> {
    find!(tx, JobInputs, "SELECT job_id, script, env, files FROM job_inputs WHERE job_id = $1", job)
}

/// Lists the scripts of these jobs. A job without a script is absent.
pub async fn list_scripts(tx: &mut Tx<'_>, jobs: &[JobId]) -> Result<Vec<(JobId, String)>, StoreError> {
    let sqlite = "SELECT job_id, script FROM job_inputs \
                  WHERE job_id IN (SELECT value FROM json_each($1)) AND script IS NOT NULL";
    let postgres = "SELECT job_id, script FROM job_inputs WHERE job_id = ANY($1) AND script IS NOT NULL";
    list_in!(tx, (JobId, String), sqlite, postgres, texts(jobs))
}

/// Finds a job of this organization.
pub async fn find(tx: &mut Tx<'_>, org: OrgId, job: JobId) -> Result<Option<StoredJob>, StoreError> {
    find!(tx, StoredJob, select_jobs!("WHERE j.org_id = $1 AND j.id = $2"), org, job)
}

/// Lists a page of the matching jobs of an organization by id.
pub async fn list(
    tx: &mut Tx<'_>,
    org: OrgId,
    search: &JobSearch,
    options: &ListOptions<JobId>,
) -> Result<Vec<StoredJob>, StoreError> {
    // A condition that holds for each job would hide the index of the state, or that of the open jobs.
    let sql = match (search.state, search.ended) {
        (Some(_), _) => page_sql!(
            options.sort,
            [select_jobs!("WHERE j.org_id = $1 AND j.state = $2"), search_conditions!()],
            "j.id",
            "$7",
            "$8"
        ),
        (None, Some(false)) => page_sql!(
            options.sort,
            [select_jobs!("WHERE j.org_id = $1 AND $2 = '' AND j.ended_at IS NULL"), search_conditions!()],
            "j.id",
            "$7",
            "$8"
        ),
        (None, Some(true) | None) => page_sql!(
            options.sort,
            [select_jobs!("WHERE j.org_id = $1 AND $2 = ''"), search_conditions!()],
            "j.id",
            "$7",
            "$8"
        ),
    };
    let state = search.state.map_or("", JobState::name);
    let JobSearch { name, created_by, label, .. } = search;
    let (end, cursor, rows) = (search.end_text(), options.cursor_text(), options.rows());
    list!(tx, StoredJob, sql, org, state, end, name, created_by, label, cursor, rows)
}

/// Stores a changed job with its new generation. `before` is the generation on which the change is based.
///
/// # Errors
/// [`StoreError::Stale`] if the stored generation is another, after a concurrent change.
pub async fn update(tx: &mut Tx<'_>, job: &StoredJob, before: i64) -> Result<(), StoreError> {
    let sql = "UPDATE jobs SET generation = $18, state = $3, stop_cause = $4, held_micros = $5, \
               ended_at = $6, exit_code = $7, failure_code = $8, failure_detail = $9, attempt = $10, \
               started_at = $11, cost_micros = $12, posted_micros = $13, metered_ms = $14, metered_before_ms = $15, \
               retries = $16, posted_ms = $17, stop_reason = $19, stop_for_job = $20, stop_requeues = $21, \
               stop_seconds = $22, stop_percent = $23 \
               WHERE id = $1 AND generation = $2";
    let stop = StopColumns::new(job.phase.stop.as_ref());
    let changed = exec!(
        tx,
        sql,
        job.id,
        before,
        job.phase.state,
        stop.stop_cause,
        job.held_micros,
        job.ended_at,
        job.exit_code,
        &job.failure_code,
        &job.failure_detail,
        job.attempt,
        job.started_at,
        job.cost_micros,
        job.posted_micros,
        job.metered_ms,
        job.metered_before_ms,
        job.retries,
        job.posted_ms,
        job.generation,
        &stop.stop_reason,
        stop.stop_for_job,
        stop.stop_requeues,
        stop.stop_seconds,
        stop.stop_percent
    )?;
    if changed == 1 { Ok(()) } else { Err(StoreError::Stale) }
}

/// Stores the meter and the charges of a running job. The state does not change, so the generation stays.
pub async fn update_meter(tx: &mut Tx<'_>, job: &StoredJob) -> Result<(), StoreError> {
    let sql = "UPDATE jobs SET held_micros = $2, cost_micros = $3, posted_micros = $4, metered_ms = $5, posted_ms = $6 WHERE id = $1";
    exec!(tx, sql, job.id, job.held_micros, job.cost_micros, job.posted_micros, job.metered_ms, job.posted_ms)
        .map(|_| ())
}

/// Raises the generation for an event without another change of the job.
///
/// # Errors
/// [`StoreError::Stale`] if the stored generation is not `generation`.
pub async fn raise_generation(tx: &mut Tx<'_>, job: JobId, generation: i64) -> Result<(), StoreError> {
    let sql = "UPDATE jobs SET generation = generation + 1 WHERE id = $1 AND generation = $2";
    let changed = exec!(tx, sql, job, generation)?;
    if changed == 1 { Ok(()) } else { Err(StoreError::Stale) }
}

/// Stores a longer time limit with its hold, and raises the generation.
///
/// # Errors
/// [`StoreError::Stale`] if the stored generation is not `generation`.
pub async fn update_limit(
    tx: &mut Tx<'_>,
    job: JobId,
    generation: i64,
    max_duration_s: i64,
    held_micros: i64,
) -> Result<(), StoreError> {
    let sql = "UPDATE jobs SET generation = generation + 1, max_duration_s = $3, held_micros = $4 \
               WHERE id = $1 AND generation = $2";
    let changed = exec!(tx, sql, job, generation, max_duration_s, held_micros)?;
    if changed == 1 { Ok(()) } else { Err(StoreError::Stale) }
}

/// Finds a job of any organization. Only for the portal's own loops.
pub async fn find_any(tx: &mut Tx<'_>, job: JobId) -> Result<Option<StoredJob>, StoreError> {
    find!(tx, StoredJob, select_jobs!("WHERE j.id = $1"), job)
}

/// Lists the jobs with these ids, of any organization. Only for the portal's own loops.
pub async fn list_any(tx: &mut Tx<'_>, jobs: &[JobId]) -> Result<Vec<StoredJob>, StoreError> {
    let sqlite = select_jobs!("WHERE j.id IN (SELECT value FROM json_each($1))");
    list_in!(tx, StoredJob, sqlite, select_jobs!("WHERE j.id = ANY($1)"), texts(jobs))
}

/// Lists the states of the jobs with these ids, of any organization. Only for the portal's own loops.
pub async fn list_states(tx: &mut Tx<'_>, jobs: &[JobId]) -> Result<Vec<(JobId, JobState)>, StoreError> {
    let sqlite = "SELECT id, state FROM jobs WHERE id IN (SELECT value FROM json_each($1))";
    let postgres = "SELECT id, state FROM jobs WHERE id = ANY($1)";
    list_in!(tx, (JobId, JobState), sqlite, postgres, texts(jobs))
}

/// Lists the names and states of the jobs with these ids that belong to an organization.
pub async fn list_names(
    tx: &mut Tx<'_>,
    org: OrgId,
    jobs: &[JobId],
) -> Result<Vec<(JobId, String, JobState)>, StoreError> {
    let sqlite =
        "SELECT id, name, state FROM jobs WHERE id IN (SELECT value FROM json_each($1)) AND org_id = $2";
    let postgres = "SELECT id, name, state FROM jobs WHERE id = ANY($1) AND org_id = $2";
    list_in!(tx, (JobId, String, JobState), sqlite, postgres, texts(jobs), org)
}

/// The ids as texts, for `list_in`.
pub(crate) fn texts(jobs: &[JobId]) -> Vec<String> {
    jobs.iter().map(ToString::to_string).collect()
}

/// Lists the queue, by priority and then by age, as `map` makes it. The rows of a long queue need much memory.
pub async fn list_queued<T: Send>(
    tx: &mut Tx<'_>,
    limit: i64,
    mut map: impl FnMut(StoredJob) -> Result<T, StoreError> + Send,
) -> Result<Vec<T>, StoreError> {
    let sql = select_jobs!("WHERE j.state = 'queued' ORDER BY j.priority DESC, j.created_at, j.id LIMIT $1");
    map_rows!(tx, StoredJob, &mut map, sql, limit)
}

/// Sums over the jobs of an organization that have not ended: the uncharged micros, and the rates of running
/// and stopping jobs in nano-units a second.
pub async fn open_use(tx: &mut Tx<'_>, org: OrgId) -> Result<(i64, i64), StoreError> {
    let sql = "SELECT CAST(COALESCE(SUM(cost_micros - posted_micros), 0) AS BIGINT), \
               CAST(COALESCE(SUM(CASE WHEN state IN ('running', 'stopping') THEN nano_per_second ELSE 0 END), 0) AS BIGINT) \
               FROM jobs WHERE org_id = $1 AND ended_at IS NULL";
    Ok(find!(tx, (i64, i64), sql, org)?.unwrap_or_default())
}

/// Sums the use of organizations since a time: (organization, day, thousandths of boards × seconds). A job
/// counts on the day of its end (UTC), an open job on today.
pub async fn use_by_day(
    tx: &mut Tx<'_>,
    since: Timestamp,
    now: Timestamp,
) -> Result<Vec<(OrgId, i64, i64)>, StoreError> {
    let sql = "SELECT org_id, day, CAST(SUM(board_milli * metered_ms / 1000) AS BIGINT) FROM \
               (SELECT org_id, board_milli, metered_ms, COALESCE(ended_at, $2) / 86400000000 AS day FROM jobs \
                WHERE metered_ms > 0 AND (ended_at IS NULL OR ended_at >= $1)) AS used GROUP BY org_id, day";
    list!(tx, (OrgId, i64, i64), sql, since, now)
}

/// Counts the jobs of all organizations that have not ended, by state.
pub async fn count_by_state(tx: &mut Tx<'_>) -> Result<Vec<(JobState, i64)>, StoreError> {
    let sql = "SELECT state, CAST(COUNT(*) AS BIGINT) FROM jobs WHERE ended_at IS NULL GROUP BY state ORDER BY state";
    list!(tx, (JobState, i64), sql)
}

/// Finds the submission time of the oldest queued job.
pub async fn find_oldest_queued_at(tx: &mut Tx<'_>) -> Result<Option<Timestamp>, StoreError> {
    let sql = "SELECT MIN(created_at) FROM jobs WHERE state = 'queued'";
    Ok(find!(tx, (Option<Timestamp>,), sql)?.and_then(|(at,)| at))
}

/// Counts the queued jobs of an organization.
pub async fn count_queued(tx: &mut Tx<'_>, org: OrgId) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM jobs WHERE org_id = $1 AND state = 'queued'";
    Ok(find!(tx, (i64,), sql, org)?.map_or(0, |(n,)| n))
}

/// Counts the jobs of all organizations that have not ended, and their devices, by state: (state, jobs, devices).
pub async fn count_open(tx: &mut Tx<'_>) -> Result<Vec<(JobState, i64, i64)>, StoreError> {
    let sql = "SELECT state, CAST(COUNT(*) AS BIGINT), CAST(SUM(device_count * nodes) AS BIGINT) FROM jobs \
               WHERE ended_at IS NULL GROUP BY state ORDER BY state";
    list!(tx, (JobState, i64, i64), sql)
}

/// Counts the queue by priority, the highest first: (priority, jobs, submission of the oldest).
pub async fn count_queue(tx: &mut Tx<'_>) -> Result<Vec<(i64, i64, Timestamp)>, StoreError> {
    let sql = "SELECT priority, CAST(COUNT(*) AS BIGINT), MIN(created_at) FROM jobs \
               WHERE state = 'queued' GROUP BY priority ORDER BY priority DESC";
    list!(tx, (i64, i64, Timestamp), sql)
}

/// Counts the jobs of an organization: those with devices, the queued ones, and at most `limit` ended ones.
pub async fn count_of_org(tx: &mut Tx<'_>, org: OrgId, limit: i64) -> Result<(i64, i64, i64), StoreError> {
    let sql = "SELECT CAST(COALESCE(SUM(CASE WHEN state = 'queued' THEN 0 ELSE 1 END), 0) AS BIGINT), \
               CAST(COALESCE(SUM(CASE WHEN state = 'queued' THEN 1 ELSE 0 END), 0) AS BIGINT) \
               FROM jobs WHERE org_id = $1 AND ended_at IS NULL";
    let (running, queued) = find!(tx, (i64, i64), sql, org)?.unwrap_or_default();
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM (SELECT id FROM jobs WHERE org_id = $1 \
               AND state IN ('succeeded', 'failed', 'cancelled', 'timed_out') LIMIT $2) AS ended";
    let ended = find!(tx, (i64,), sql, org, limit)?.map_or(0, |(n,)| n);
    Ok((running, queued, ended))
}
