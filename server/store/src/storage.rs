//! Stored bytes of organizations, and the removal of ended jobs by retention.

use std::collections::BTreeMap;

use berth_types::ids::{JobId, OrgId};
use berth_types::jobs::NewJob;
use berth_types::time::Timestamp;

use super::types::JsonColumn;
use super::{StoreError, Tx};

/// The stored submissions and logs of an organization.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredBytes {
    /// The number of submissions.
    pub submissions: i64,
    pub submission_bytes: i64,
    /// The bytes of the logs of ended jobs.
    pub log_bytes: i64,
}

impl StoredBytes {
    /// The bytes of submissions and logs.
    pub const fn total(self) -> i64 {
        self.submission_bytes.saturating_add(self.log_bytes)
    }
}

/// An ended job whose retention is over.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct ExpiredJob {
    pub id: JobId,
    pub org_id: OrgId,
    pub ended_at: Timestamp,
    /// The submission without its inputs.
    pub spec: JsonColumn<NewJob>,
    /// The counted bytes of its logs; 0 if they are not counted.
    pub log_bytes: i64,
}

/// The stored bytes of a submission: its specification, and the texts of its script, variables and files.
pub fn submission_bytes(
    spec: &NewJob,
    script: Option<&str>,
    texts: [&BTreeMap<String, String>; 2],
) -> Result<i64, StoreError> {
    let spec = serde_json::to_string(spec).map_err(|error| StoreError::Corrupt(error.to_string()))?;
    let texts = texts.into_iter().flatten().map(|(name, text)| name.len() + text.len());
    let bytes = spec.len() + script.map_or(0, str::len) + texts.sum::<usize>();
    Ok(i64::try_from(bytes).unwrap_or(i64::MAX))
}

/// Returns the stored submissions and logs of an organization.
pub async fn stored_bytes(tx: &mut Tx<'_>, org: OrgId) -> Result<StoredBytes, StoreError> {
    let sql = "SELECT submissions, submission_bytes, log_bytes, org_id AS row_id FROM org_storage WHERE org_id = $1";
    Ok(find!(tx, StoredBytes, sql, org)?.unwrap_or_default())
}

/// Adds to the stored submissions and logs of an organization; the values may be negative.
pub async fn add(tx: &mut Tx<'_>, org: OrgId, change: StoredBytes) -> Result<(), StoreError> {
    let sql = "INSERT INTO org_storage (org_id, submissions, submission_bytes, log_bytes) VALUES ($1, $2, $3, $4) \
               ON CONFLICT (org_id) DO UPDATE SET submissions = org_storage.submissions + $2, \
               submission_bytes = org_storage.submission_bytes + $3, log_bytes = org_storage.log_bytes + $4";
    exec!(tx, sql, org, change.submissions, change.submission_bytes, change.log_bytes).map(|_| ())
}

/// Sums the bytes of an organization's job files and of its volumes, complete and partial: (job files, volumes).
pub async fn file_bytes(tx: &mut Tx<'_>, org: OrgId) -> Result<(i64, i64), StoreError> {
    let sql = "SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM job_files \
               WHERE org_id = $1 AND state IN ('partial', 'complete')";
    let files = find!(tx, (i64,), sql, org)?.map_or(0, |(bytes,)| bytes);
    let sql = "SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM volume_blobs \
               WHERE org_id = $1 AND state IN ('partial', 'complete')";
    Ok((files, find!(tx, (i64,), sql, org)?.map_or(0, |(bytes,)| bytes)))
}

/// Sums all bytes that count against the storage limit of an organization.
pub async fn used_bytes(tx: &mut Tx<'_>, org: OrgId) -> Result<i64, StoreError> {
    let (files, volumes) = file_bytes(tx, org).await?;
    Ok(files.saturating_add(volumes).saturating_add(stored_bytes(tx, org).await?.total()))
}

/// Returns true for an organization with a balance above zero, with a credit limit, or with a credit at any time.
pub async fn has_credit(tx: &mut Tx<'_>, org: OrgId) -> Result<bool, StoreError> {
    // The account first: most organizations need no search of the ledger, which could meet concurrent postings.
    let (posted, _) = super::ledger::balance(tx, org).await?;
    if posted > 0 || super::ledger::credit_limit(tx, org).await? > 0 {
        return Ok(true);
    }
    let account = super::ledger::org_account(org);
    let sql =
        "SELECT amount_micros, id AS row_id FROM transfers WHERE credit = $1 AND kind = 'credit' LIMIT 1";
    Ok(find!(tx, (i64,), sql, account)?.is_some())
}

/// The end and the id before the first job of a page; by default before all jobs.
fn page_start(after: Option<(Timestamp, JobId)>) -> (Timestamp, String) {
    after.map_or_else(
        || (Timestamp::from_micros(0), String::new()),
        |(ended_at, id)| (ended_at, id.to_string()),
    )
}

/// Lists ended jobs without counted logs after the end and the id in `after`, the oldest end first. A job with an
/// open rank still gets log, also from a lost node that returns.
pub async fn list_uncounted(
    tx: &mut Tx<'_>,
    after: Option<(Timestamp, JobId)>,
    limit: i64,
) -> Result<Vec<(JobId, OrgId, Timestamp)>, StoreError> {
    let (ended_at, id) = page_start(after);
    let sql = "SELECT id, org_id, ended_at FROM jobs WHERE ended_at IS NOT NULL AND log_bytes IS NULL \
               AND ended_at >= $3 AND (ended_at > $3 OR id > $4) \
               AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.job_id = jobs.id AND a.is_open = $1) \
               ORDER BY ended_at, id LIMIT $2";
    list!(tx, (JobId, OrgId, Timestamp), sql, true, limit, ended_at, &id)
}

/// Stores the bytes of the logs of an ended job, and adds them to its organization. A second count changes nothing.
pub async fn count_logs(tx: &mut Tx<'_>, org: OrgId, job: JobId, log_bytes: i64) -> Result<(), StoreError> {
    let sql = "UPDATE jobs SET log_bytes = $2 WHERE id = $1 AND log_bytes IS NULL";
    if exec!(tx, sql, job, log_bytes)? == 1 {
        add(tx, org, StoredBytes { log_bytes, ..StoredBytes::default() }).await?;
    }
    Ok(())
}

/// The condition that a rank of an attempt `a` has ended on a lost node: its worker may never return.
macro_rules! ended_on_lost_node {
    () => {
        "a.ended = $2 AND EXISTS (SELECT 1 FROM nodes n WHERE n.id = a.node_id AND n.lost_at IS NOT NULL)"
    };
}

/// Open ranks on lost nodes do not keep their job, whose log is then uncounted.
macro_rules! expired_sql {
    ($condition:literal) => {
        concat!(
            "SELECT id, org_id, ended_at, spec, CAST(COALESCE(log_bytes, 0) AS BIGINT) AS log_bytes FROM jobs \
             WHERE ended_at IS NOT NULL AND removed_at IS NULL \
             AND ended_at < $1 AND ended_at >= $4 AND (ended_at > $4 OR id > $5) ",
            $condition,
            " AND (log_bytes IS NOT NULL OR EXISTS \
             (SELECT 1 FROM attempts a WHERE a.job_id = jobs.id AND a.is_open = $2 AND ",
            ended_on_lost_node!(),
            ")) AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.job_id = jobs.id AND a.is_open = $2 AND NOT (",
            ended_on_lost_node!(),
            ")) ORDER BY ended_at, id LIMIT $3"
        )
    };
}

/// Lists ended jobs of all organizations with an end before `before` and after the end and the id in `after`, the
/// oldest end first.
pub async fn list_expired(
    tx: &mut Tx<'_>,
    before: Timestamp,
    after: Option<(Timestamp, JobId)>,
    limit: i64,
) -> Result<Vec<ExpiredJob>, StoreError> {
    let (ended_at, id) = page_start(after);
    list!(tx, ExpiredJob, expired_sql!(""), before, true, limit, ended_at, &id)
}

/// [`list_expired`] for the jobs of one organization.
pub async fn list_expired_of(
    tx: &mut Tx<'_>,
    org: OrgId,
    before: Timestamp,
    after: Option<(Timestamp, JobId)>,
    limit: i64,
) -> Result<Vec<ExpiredJob>, StoreError> {
    let (ended_at, id) = page_start(after);
    list!(tx, ExpiredJob, expired_sql!("AND org_id = $6"), before, true, limit, ended_at, &id, org)
}

/// Removes the submission of an ended job and marks its files as gone. The row of the job stays, with `spec`.
/// Returns the bytes of submission, logs and files; `None` for a job that is removed already.
pub async fn remove_job(
    tx: &mut Tx<'_>,
    job: &ExpiredJob,
    spec: &NewJob,
    now: Timestamp,
) -> Result<Option<i64>, StoreError> {
    // With a number in `log_bytes` no later run counts the logs.
    let sql = "UPDATE jobs SET removed_at = $2, spec = $3, log_bytes = $4 \
               WHERE id = $1 AND removed_at IS NULL AND ended_at IS NOT NULL";
    if exec!(tx, sql, job.id, now, JsonColumn(spec), job.log_bytes)? == 0 {
        return Ok(None);
    }
    let sql = "SELECT bytes, job_id AS row_id FROM job_inputs WHERE job_id = $1";
    let submission = find!(tx, (i64,), sql, job.id)?;
    exec!(tx, "DELETE FROM job_inputs WHERE job_id = $1", job.id)?;
    let sql = "SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM job_files \
               WHERE job_id = $1 AND state IN ('partial', 'complete')";
    let files = find!(tx, (i64,), sql, job.id)?.map_or(0, |(bytes,)| bytes);
    exec!(tx, "UPDATE job_files SET state = 'gone' WHERE job_id = $1 AND state <> 'gone'", job.id)?;
    let submission_bytes = submission.map_or(0, |(bytes,)| bytes);
    let change = StoredBytes {
        submissions: if submission.is_some() { -1 } else { 0 },
        submission_bytes: -submission_bytes,
        log_bytes: -job.log_bytes,
    };
    add(tx, job.org_id, change).await?;
    Ok(Some(submission_bytes.saturating_add(job.log_bytes).saturating_add(files)))
}

/// Finds the days for which an organization itself keeps ended jobs.
pub async fn find_retention(tx: &mut Tx<'_>, org: OrgId) -> Result<Option<i64>, StoreError> {
    let sql = "SELECT keep_ended_jobs_days, org_id AS row_id FROM org_retention WHERE org_id = $1";
    Ok(find!(tx, (i64,), sql, org)?.map(|(days,)| days))
}

/// Lists the organizations with their own retention: (organization, days).
pub async fn list_retentions(tx: &mut Tx<'_>) -> Result<Vec<(OrgId, i64)>, StoreError> {
    list!(tx, (OrgId, i64), "SELECT org_id, keep_ended_jobs_days FROM org_retention ORDER BY org_id")
}

/// Sets or (`None`) removes the retention of an organization.
pub async fn put_retention(tx: &mut Tx<'_>, org: OrgId, days: Option<i64>) -> Result<(), StoreError> {
    let Some(days) = days else {
        return exec!(tx, "DELETE FROM org_retention WHERE org_id = $1", org).map(|_| ());
    };
    let sql = "INSERT INTO org_retention (org_id, keep_ended_jobs_days) VALUES ($1, $2) \
               ON CONFLICT (org_id) DO UPDATE SET keep_ended_jobs_days = $2";
    exec!(tx, sql, org, days).map(|_| ())
}
