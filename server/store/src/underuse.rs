//! Reported intervals of idle devices of jobs.

use berth_types::ids::{JobId, OrgId};
use berth_types::time::Timestamp;

use super::jobs::texts;
use super::{StoreError, Tx};

#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredUnderuse {
    pub job_id: JobId,
    pub attempt: i64,
    pub org_id: OrgId,
    /// By the clock of the host that took the readings.
    pub starts_at: Timestamp,
    pub ends_at: Timestamp,
    /// Mean utilisation, rounded down.
    pub percent: i64,
    pub cost_micros: i64,
    /// The time of the report by the portal's clock.
    pub reported_at: Timestamp,
    /// The day of `reported_at`: days since 1970, UTC.
    pub day: i64,
}

pub async fn insert(tx: &mut Tx<'_>, row: &StoredUnderuse) -> Result<(), StoreError> {
    let sql = "INSERT INTO underuse (job_id, attempt, org_id, starts_at, ends_at, percent, cost_micros, reported_at, day) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    exec!(
        tx,
        sql,
        row.job_id,
        row.attempt,
        row.org_id,
        row.starts_at,
        row.ends_at,
        row.percent,
        row.cost_micros,
        row.reported_at,
        row.day
    )
    .map(|_| ())
}

/// Finds the latest reported interval of an attempt.
pub async fn find_latest(
    tx: &mut Tx<'_>,
    job: JobId,
    attempt: i64,
) -> Result<Option<StoredUnderuse>, StoreError> {
    let sql = "SELECT job_id, attempt, org_id, starts_at, ends_at, percent, cost_micros, reported_at, day FROM underuse \
               WHERE job_id = $1 AND attempt = $2 ORDER BY reported_at DESC, ends_at DESC LIMIT 1";
    find!(tx, StoredUnderuse, sql, job, attempt)
}

/// Lists the intervals of these jobs that were reported after a time, the latest last.
pub async fn list_after(
    tx: &mut Tx<'_>,
    jobs: &[JobId],
    after: Timestamp,
) -> Result<Vec<StoredUnderuse>, StoreError> {
    macro_rules! select_for_jobs {
        ($condition:literal) => {
            concat!(
                "SELECT job_id, attempt, org_id, starts_at, ends_at, percent, cost_micros, reported_at, day \
                 FROM underuse WHERE job_id ",
                $condition,
                " AND reported_at > $2 ORDER BY reported_at, ends_at"
            )
        };
    }
    list_in!(
        tx,
        StoredUnderuse,
        select_for_jobs!("IN (SELECT value FROM json_each($1))"),
        select_for_jobs!("= ANY($1)"),
        texts(jobs),
        after
    )
}

/// Sums the cost of the idle intervals that were reported to an organization from one day to another, both
/// counted, in micros.
pub async fn cost(tx: &mut Tx<'_>, org: OrgId, from: i64, until: i64) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COALESCE(SUM(cost_micros), 0) AS BIGINT) FROM underuse \
               WHERE org_id = $1 AND day >= $2 AND day <= $3";
    Ok(find!(tx, (i64,), sql, org, from, until)?.map_or(0, |(n,)| n))
}
