//! Attempts with their ranks, and their allocations on boards.

use berth_types::ids::{JobId, NodeId, OrgId, ReservationId};
use berth_types::jobs::NewJob;
use berth_types::time::Timestamp;

use super::jobs::texts;
use super::stops::Phase;
use super::types::{JsonColumn, RankEnd, StoredEvidence};
use super::{StoreError, Tx};

#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredAttempt {
    pub job_id: JobId,
    pub number: i64,
    pub rank: i64,
    pub org_id: OrgId,
    pub node_id: NodeId,
    pub known: bool,
    pub running: bool,
    pub ended: bool,
    pub outcome: Option<JsonColumn<RankEnd>>,
    pub ended_at: Option<Timestamp>,
    pub clean: bool,
    pub log_bytes: Option<i64>,
    pub is_open: bool,
    /// The evidence of process and devices.
    pub evidence: Option<JsonColumn<StoredEvidence>>,
    /// True if its worker has files that the portal should have and has not.
    pub saving: bool,
    /// The present step of its preparation as a sentence; empty without one.
    pub progress: String,
    /// The digest of its image in the registry.
    pub image_digest: Option<String>,
    /// The time of its placement.
    pub created_at: Timestamp,
}

/// An open rank, with the fields of its job for the messages to its worker.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct StoredOpenRank {
    pub job_id: JobId,
    pub number: i64,
    pub rank: i64,
    pub known: bool,
    /// 0: it has no lease.
    pub lease_ms: i64,
    pub org_id: OrgId,
    #[sqlx(flatten)]
    pub phase: Phase,
    /// The latest attempt of the job.
    pub latest: i64,
    pub max_duration_s: i64,
    pub metered_before_ms: i64,
    pub nodes: i64,
    pub device_count: i64,
    /// The submission without its inputs. Absent if the worker has the assignment and the job is not being
    /// stopped, because a node may have many open ranks and a submission may be long.
    pub spec: Option<JsonColumn<NewJob>>,
}

impl StoredOpenRank {
    /// Returns the submission.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if the row has none.
    pub fn submission(&self) -> Result<&NewJob, StoreError> {
        self.spec.as_deref().ok_or_else(|| StoreError::corrupt("jobs", self.job_id, "spec", "it is absent"))
    }
}

/// A device that an attempt holds or held on a board.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct StoredAllocation {
    pub job_id: JobId,
    pub attempt: i64,
    pub idx: i64,
    pub org_id: OrgId,
    pub node_id: NodeId,
    pub gpu_uuid: String,
    pub profile_id: Option<i64>,
    pub start: i64,
    pub size: i64,
    /// Thousandths of a shared board.
    pub share_milli: Option<i64>,
    pub mig_uuid: Option<String>,
    pub unclean: Option<String>,
}

/// A held allocation, with the fields of its job for the map and the planner.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct HeldAllocation {
    #[sqlx(flatten)]
    pub allocation: StoredAllocation,
    pub job_name: String,
    pub org_name: String,
    pub started_at: Option<Timestamp>,
    pub max_duration_s: i64,
    pub metered_before_ms: i64,
    pub priority: i64,
    pub preemptible: bool,
    pub grace_s: i64,
    pub cpu_milli: i64,
    pub memory_mib: i64,
    /// The slug of its offering.
    pub slug: String,
    pub nano_per_second: i64,
    pub reservation_id: Option<ReservationId>,
    pub reservation_ends_at: Option<Timestamp>,
    #[sqlx(flatten)]
    pub phase: Phase,
    /// The latest attempt of the job.
    #[sqlx(rename = "latest")]
    pub attempt: i64,
    /// Memory slices of the whole board.
    pub cells: i64,
    pub gpu_model: String,
    /// The job for which its attempt was stopped.
    pub room_for_job: Option<JobId>,
    /// True for a replica of a service.
    pub replica: bool,
    pub gives_back_ms: Option<i64>,
}

macro_rules! select_attempts {
    ($rest:literal) => {
        concat!(
            "SELECT job_id, number, rank, org_id, node_id, known, running, ended, outcome, ended_at, clean, \
             log_bytes, is_open, evidence, saving, progress, image_digest, created_at FROM attempts ",
            $rest
        )
    };
}

/// Adds one rank of an attempt. It has a lease if the worker of its node ends jobs at the end of their
/// leases.
pub async fn insert(
    tx: &mut Tx<'_>,
    job: JobId,
    (number, rank): (u32, u32),
    org: OrgId,
    node: NodeId,
    lease_ms: i64,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO attempts (job_id, number, rank, org_id, node_id, known, running, ended, clean, is_open, \
               created_at, lease_ms) VALUES ($1, $2, $3, $4, $5, $6, $6, $6, $6, $7, $8, \
               CASE WHEN EXISTS (SELECT 1 FROM nodes WHERE id = $5 AND leased = $7) THEN $9 ELSE 0 END)";
    let (number, rank, no, yes) = (i64::from(number), i64::from(rank), false, true);
    exec!(tx, sql, job, number, rank, org, node, no, yes, now, lease_ms).map(|_| ())
}

pub async fn insert_allocation(tx: &mut Tx<'_>, row: &StoredAllocation) -> Result<(), StoreError> {
    let sql = "INSERT INTO allocations (job_id, attempt, idx, org_id, node_id, gpu_uuid, profile_id, start, size, share_milli, held) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
    exec!(
        tx,
        sql,
        row.job_id,
        row.attempt,
        row.idx,
        row.org_id,
        row.node_id,
        &row.gpu_uuid,
        row.profile_id,
        row.start,
        row.size,
        row.share_milli,
        true
    )
    .map(|_| ())
}

/// Finds the rank of an attempt on a node.
pub async fn find(
    tx: &mut Tx<'_>,
    job: JobId,
    number: u32,
    node: NodeId,
) -> Result<Option<StoredAttempt>, StoreError> {
    let sql = select_attempts!("WHERE job_id = $1 AND number = $2 AND node_id = $3");
    find!(tx, StoredAttempt, sql, job, i64::from(number), node)
}

/// Finds the open rank of an attempt on a node. `None` also for a job that retention has removed: it gets no more
/// files.
pub async fn find_open(
    tx: &mut Tx<'_>,
    job: JobId,
    number: u32,
    node: NodeId,
) -> Result<Option<StoredAttempt>, StoreError> {
    let sql = select_attempts!(
        "WHERE job_id = $1 AND number = $2 AND node_id = $3 AND is_open = $4 \
         AND EXISTS (SELECT 1 FROM jobs j WHERE j.id = attempts.job_id AND j.removed_at IS NULL)"
    );
    find!(tx, StoredAttempt, sql, job, i64::from(number), node, true)
}

/// The rank of a node in an attempt.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredNodeRank {
    pub rank: i64,
    pub is_open: bool,
    /// The time of the assignment.
    pub created_at: Timestamp,
}

/// Finds the rank of a node in an attempt, with the time of its assignment. `None` also for a job that retention has
/// removed.
pub async fn find_node_rank(
    tx: &mut Tx<'_>,
    job: JobId,
    number: u32,
    node: NodeId,
) -> Result<Option<StoredNodeRank>, StoreError> {
    let sql = "SELECT a.job_id, a.rank, a.is_open, a.created_at FROM attempts a JOIN jobs j ON j.id = a.job_id \
               WHERE a.job_id = $1 AND a.number = $2 AND a.node_id = $3 AND j.removed_at IS NULL";
    find!(tx, StoredNodeRank, sql, job, i64::from(number), node)
}

/// Lists all ranks of an attempt.
pub async fn list_ranks(tx: &mut Tx<'_>, job: JobId, number: i64) -> Result<Vec<StoredAttempt>, StoreError> {
    list!(tx, StoredAttempt, select_attempts!("WHERE job_id = $1 AND number = $2 ORDER BY rank"), job, number)
}

/// Lists all ranks of these jobs' latest attempts, each job's ranks in order.
pub async fn list_latest_ranks(tx: &mut Tx<'_>, jobs: &[JobId]) -> Result<Vec<StoredAttempt>, StoreError> {
    macro_rules! select_for_jobs {
        ($condition:literal) => {
            concat!(
                "SELECT a.job_id, a.number, a.rank, a.org_id, a.node_id, a.known, a.running, a.ended, \
                 a.outcome, a.ended_at, a.clean, a.log_bytes, a.is_open, a.evidence, a.saving, a.progress, \
                 a.image_digest, a.created_at FROM jobs j JOIN attempts a ON a.job_id = j.id AND a.number = j.attempt WHERE j.id ",
                $condition,
                " ORDER BY a.job_id, a.rank"
            )
        };
    }
    list_in!(
        tx,
        StoredAttempt,
        select_for_jobs!("IN (SELECT value FROM json_each($1))"),
        select_for_jobs!("= ANY($1)"),
        texts(jobs)
    )
}

/// The end of a rank's log, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredLogEnd {
    pub log_bytes: Option<i64>,
    pub outcome: Option<JsonColumn<RankEnd>>,
}

/// Finds the length of a rank's log, once it is known, and the outcome of the rank.
pub async fn find_log_end(
    tx: &mut Tx<'_>,
    job: JobId,
    number: u32,
    rank: u32,
) -> Result<Option<StoredLogEnd>, StoreError> {
    let sql =
        "SELECT job_id, log_bytes, outcome FROM attempts WHERE job_id = $1 AND number = $2 AND rank = $3";
    find!(tx, StoredLogEnd, sql, job, i64::from(number), i64::from(rank))
}

/// Stores the fields of a rank that can change. The last closed rank takes the network of its gang with it.
pub async fn update(tx: &mut Tx<'_>, row: &StoredAttempt) -> Result<(), StoreError> {
    let sql = "UPDATE attempts SET known = $4, running = $5, ended = $6, outcome = $7, ended_at = $8, clean = $9, \
               log_bytes = $10, is_open = $11, evidence = $12, saving = $13, \
               progress = $14, image_digest = $15 WHERE job_id = $1 AND number = $2 AND rank = $3";
    exec!(
        tx,
        sql,
        row.job_id,
        row.number,
        row.rank,
        row.known,
        row.running,
        row.ended,
        &row.outcome,
        row.ended_at,
        row.clean,
        row.log_bytes,
        row.is_open,
        &row.evidence,
        row.saving,
        &row.progress,
        &row.image_digest
    )?;
    if row.is_open { Ok(()) } else { super::gangs::delete_closed(tx, row.job_id, row.number).await }
}

/// Lists the ranks of a job's attempts before `before` with files that the portal has not got yet.
pub async fn list_saving(tx: &mut Tx<'_>, job: JobId, before: i64) -> Result<Vec<StoredAttempt>, StoreError> {
    let sql = select_attempts!("WHERE job_id = $1 AND number < $2 AND saving = $3");
    list!(tx, StoredAttempt, sql, job, before, true)
}

/// Lists the open ranks of a node.
pub async fn list_open(tx: &mut Tx<'_>, node: NodeId) -> Result<Vec<StoredOpenRank>, StoreError> {
    let sql = "SELECT t.job_id, t.number, t.rank, t.known, t.lease_ms, j.org_id, j.state, j.stop_cause, j.stop_reason, \
               j.stop_for_job, j.stop_requeues, j.stop_seconds, j.stop_percent, \
               j.attempt AS latest, j.max_duration_s, j.metered_before_ms, j.nodes, j.device_count, \
               CASE WHEN t.known = $3 OR j.stop_cause IS NOT NULL THEN j.spec END AS spec \
               FROM attempts t JOIN jobs j ON j.id = t.job_id \
               WHERE t.node_id = $1 AND t.is_open = $2 ORDER BY t.job_id, t.number";
    list!(tx, StoredOpenRank, sql, node, true, false)
}

pub async fn list_allocations(
    tx: &mut Tx<'_>,
    job: JobId,
    attempt: i64,
) -> Result<Vec<StoredAllocation>, StoreError> {
    let sql = "SELECT job_id, attempt, idx, org_id, node_id, gpu_uuid, profile_id, start, size, share_milli, mig_uuid, unclean \
               FROM allocations WHERE job_id = $1 AND attempt = $2 ORDER BY idx";
    list!(tx, StoredAllocation, sql, job, attempt)
}

/// Lists the allocations of open ranks on a node, also released allocations.
pub async fn list_node_allocations(
    tx: &mut Tx<'_>,
    node: NodeId,
) -> Result<Vec<StoredAllocation>, StoreError> {
    let sql = "SELECT a.job_id, a.attempt, a.idx, a.org_id, a.node_id, a.gpu_uuid, a.profile_id, a.start, a.size, a.share_milli, a.mig_uuid, a.unclean \
               FROM attempts t JOIN allocations a ON a.job_id = t.job_id AND a.attempt = t.number AND a.node_id = t.node_id \
               WHERE t.node_id = $1 AND t.is_open = $2 ORDER BY a.job_id, a.attempt, a.idx";
    list!(tx, StoredAllocation, sql, node, true)
}

/// Lists the allocations of these jobs' latest attempts, also released allocations.
pub async fn list_latest_allocations(
    tx: &mut Tx<'_>,
    jobs: &[JobId],
) -> Result<Vec<StoredAllocation>, StoreError> {
    macro_rules! select_for_jobs {
        ($condition:literal) => {
            concat!(
                "SELECT a.job_id, a.attempt, a.idx, a.org_id, a.node_id, a.gpu_uuid, a.profile_id, a.start, a.size, \
                 a.share_milli, a.mig_uuid, a.unclean \
                 FROM jobs j JOIN allocations a ON a.job_id = j.id AND a.attempt = j.attempt WHERE j.id ",
                $condition,
                " ORDER BY a.job_id, a.idx"
            )
        };
    }
    list_in!(
        tx,
        StoredAllocation,
        select_for_jobs!("IN (SELECT value FROM json_each($1))"),
        select_for_jobs!("= ANY($1)"),
        texts(jobs)
    )
}

/// Lists the held allocations of all boards, without their jobs.
pub async fn list_held_allocations(tx: &mut Tx<'_>) -> Result<Vec<StoredAllocation>, StoreError> {
    let sql = "SELECT job_id, attempt, idx, org_id, node_id, gpu_uuid, profile_id, start, size, share_milli, mig_uuid, unclean \
               FROM allocations WHERE held = $1 ORDER BY gpu_uuid, start";
    list!(tx, StoredAllocation, sql, true)
}

/// A time of a job on a board.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredBoardJob {
    pub job_id: JobId,
    pub number: i64,
    pub org_id: OrgId,
    pub org_name: String,
    pub job_name: String,
    /// The assignment.
    pub created_at: Timestamp,
    pub ended_at: Option<Timestamp>,
}

/// Lists the latest attempts on a board between two times, newest first, each once.
pub async fn list_board_jobs(
    tx: &mut Tx<'_>,
    gpu_uuid: &str,
    (from, to): (Timestamp, Timestamp),
    limit: i64,
) -> Result<Vec<StoredBoardJob>, StoreError> {
    // With both values of `held` the index of held allocations has the board.
    let sql = "SELECT DISTINCT t.job_id, t.number, t.org_id, o.name AS org_name, j.name AS job_name, t.created_at, t.ended_at \
               FROM allocations a JOIN attempts t ON t.job_id = a.job_id AND t.number = a.attempt AND t.node_id = a.node_id \
               JOIN jobs j ON j.id = t.job_id JOIN orgs o ON o.id = t.org_id \
               WHERE a.held IN ($1, $2) AND a.gpu_uuid = $3 AND t.created_at <= $4 \
               AND (t.ended_at >= $5 OR (t.ended_at IS NULL AND t.is_open = $1)) \
               ORDER BY t.created_at DESC, t.job_id LIMIT $6";
    list!(tx, StoredBoardJob, sql, true, false, gpu_uuid, to, from, limit)
}

macro_rules! select_held {
    ($rest:literal) => {
        concat!(
            "SELECT a.job_id, a.attempt, a.idx, a.org_id, a.node_id, a.gpu_uuid, a.profile_id, a.start, a.size, a.share_milli, \
             a.mig_uuid, a.unclean, j.name AS job_name, o.name AS org_name, j.started_at, j.max_duration_s, \
             j.metered_before_ms, j.priority, j.preemptible, j.grace_s, j.cpu_milli, j.memory_mib, f.slug, j.nano_per_second, j.reservation_id, r.ends_at AS reservation_ends_at, j.state, j.stop_cause, j.stop_reason, j.stop_for_job, j.stop_requeues, j.stop_seconds, j.stop_percent, j.attempt AS latest, f.board_cells AS cells, f.gpu_model, a.room_for_job, \
             EXISTS (SELECT 1 FROM service_replicas s WHERE s.job_id = j.id) AS replica, j.gives_back_ms \
             FROM allocations a JOIN jobs j ON j.id = a.job_id JOIN orgs o ON o.id = a.org_id \
             JOIN offerings f ON f.id = j.offering_id LEFT JOIN reservations r ON r.id = j.reservation_id ",
            $rest
        )
    };
}

/// Lists the held allocations of all boards, with their jobs.
pub async fn list_held(tx: &mut Tx<'_>) -> Result<Vec<HeldAllocation>, StoreError> {
    list!(tx, HeldAllocation, select_held!("WHERE a.held = $1 ORDER BY a.gpu_uuid, a.start"), true)
}

/// Lists the held allocations of these jobs.
pub async fn list_held_by(tx: &mut Tx<'_>, jobs: &[JobId]) -> Result<Vec<HeldAllocation>, StoreError> {
    // With `a.held = …` SQLite would read all held allocations and filter them by job.
    let sqlite = select_held!(
        "WHERE a.job_id IN (SELECT value FROM json_each($1)) AND a.held <> $2 ORDER BY a.job_id, a.attempt, a.idx"
    );
    let postgres =
        select_held!("WHERE a.job_id = ANY($1) AND a.held <> $2 ORDER BY a.job_id, a.attempt, a.idx");
    list_in!(tx, HeldAllocation, sqlite, postgres, texts(jobs), false)
}

/// A held device with the reservation of its job.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct HeldDevice {
    pub gpu_uuid: String,
    /// Absent: the whole board or a share of it.
    pub profile_id: Option<i64>,
    pub start: i64,
    pub size: i64,
    pub unclean: bool,
    pub reservation_id: Option<ReservationId>,
}

/// Lists the held devices of these boards.
pub async fn list_held_devices(tx: &mut Tx<'_>, boards: &[String]) -> Result<Vec<HeldDevice>, StoreError> {
    macro_rules! select_devices {
        ($condition:literal) => {
            concat!(
                "SELECT a.job_id, a.gpu_uuid, a.profile_id, a.start, a.size, a.unclean IS NOT NULL AS unclean, \
                 j.reservation_id FROM allocations a JOIN jobs j ON j.id = a.job_id WHERE a.held = $2 AND a.gpu_uuid ",
                $condition,
                " ORDER BY a.gpu_uuid, a.start"
            )
        };
    }
    let sqlite = select_devices!("IN (SELECT value FROM json_each($1))");
    list_in!(tx, HeldDevice, sqlite, select_devices!("= ANY($1)"), boards.to_vec(), true)
}

/// Records the job for which an attempt is stopped.
pub async fn set_room_for(
    tx: &mut Tx<'_>,
    job: JobId,
    attempt: i64,
    for_job: JobId,
) -> Result<(), StoreError> {
    let sql = "UPDATE allocations SET room_for_job = $3 WHERE job_id = $1 AND attempt = $2";
    exec!(tx, sql, job, attempt, for_job).map(|_| ())
}

pub async fn set_mig_uuid(
    tx: &mut Tx<'_>,
    job: JobId,
    attempt: i64,
    idx: i64,
    uuid: &str,
) -> Result<(), StoreError> {
    let sql = "UPDATE allocations SET mig_uuid = $4 WHERE job_id = $1 AND attempt = $2 AND idx = $3";
    exec!(tx, sql, job, attempt, idx, uuid).map(|_| ())
}

/// Releases the devices of an attempt on a node.
pub async fn release(tx: &mut Tx<'_>, job: JobId, attempt: i64, node: NodeId) -> Result<(), StoreError> {
    let sql = "UPDATE allocations SET held = $4, unclean = NULL WHERE job_id = $1 AND attempt = $2 AND node_id = $3";
    exec!(tx, sql, job, attempt, node, false).map(|_| ())
}

/// Marks the held devices of an attempt on a node as unclean; they stay held until they are proved clean.
pub async fn mark_unclean(
    tx: &mut Tx<'_>,
    job: JobId,
    attempt: i64,
    node: NodeId,
    reason: &str,
) -> Result<(), StoreError> {
    let sql = "UPDATE allocations SET unclean = $4 WHERE job_id = $1 AND attempt = $2 AND node_id = $3 AND held = $5";
    exec!(tx, sql, job, attempt, node, reason, true).map(|_| ())
}
