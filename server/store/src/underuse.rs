//! Reported intervals of idle devices of jobs.

use berth_types::ids::OrgId;

use super::{StoreError, Tx};

#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct UnderuseRow {
    pub job_id: String,
    pub attempt: i64,
    pub org_id: String,
    /// By the clock of the host that took the readings.
    pub starts_at: i64,
    pub ends_at: i64,
    /// Mean utilisation, rounded down.
    pub percent: i64,
    pub cost_micros: i64,
    /// The time of the report by the portal's clock.
    pub told_at: i64,
    /// The day of `told_at`: days since 1970, UTC.
    pub day: i64,
}

pub async fn insert(tx: &mut Tx<'_>, row: &UnderuseRow) -> Result<(), StoreError> {
    let sql = "INSERT INTO underuse (job_id, attempt, org_id, starts_at, ends_at, percent, cost_micros, told_at, day) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    exec!(
        tx,
        sql,
        &row.job_id,
        row.attempt,
        &row.org_id,
        row.starts_at,
        row.ends_at,
        row.percent,
        row.cost_micros,
        row.told_at,
        row.day
    )
    .map(|_| ())
}

/// Finds the latest reported interval of an attempt.
pub async fn find_latest(
    tx: &mut Tx<'_>,
    job: &str,
    attempt: i64,
) -> Result<Option<UnderuseRow>, StoreError> {
    let sql = "SELECT job_id, attempt, org_id, starts_at, ends_at, percent, cost_micros, told_at, day FROM underuse \
               WHERE job_id = $1 AND attempt = $2 ORDER BY told_at DESC, ends_at DESC LIMIT 1";
    find!(tx, UnderuseRow, sql, job, attempt)
}

/// Sums the cost of the idle intervals that were reported to an organization from one day to another, both
/// counted, in micros.
pub async fn cost(tx: &mut Tx<'_>, org: OrgId, from: i64, until: i64) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COALESCE(SUM(cost_micros), 0) AS BIGINT) FROM underuse \
               WHERE org_id = $1 AND day >= $2 AND day <= $3";
    Ok(find!(tx, (i64,), sql, org.to_string(), from, until)?.map_or(0, |(n,)| n))
}
