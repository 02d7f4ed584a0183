//! The evidence for promises: requests, first bytes, wakes and charges of a service between two times.

use berth_types::ids::ServiceId;
use berth_types::time::Timestamp;

use super::types::JsonColumn;
use super::{StoreError, Tx};

/// Sums the requests of a service and its errors in the hours between two times: (requests, errors).
pub async fn count_requests(
    tx: &mut Tx<'_>,
    service: ServiceId,
    (from, until): (Timestamp, Timestamp),
) -> Result<(i64, i64), StoreError> {
    let sql = "SELECT CAST(COALESCE(SUM(requests), 0) AS BIGINT), CAST(COALESCE(SUM(errors), 0) AS BIGINT) \
               FROM service_use WHERE service_id = $1 AND hour_at >= $2 AND hour_at < $3";
    Ok(find!(tx, (i64, i64), sql, service, from, until)?.unwrap_or((0, 0)))
}

/// Lists the counts of the times to the first byte in the hours between two times, by revision, key and hour.
pub async fn list_first_bytes(
    tx: &mut Tx<'_>,
    service: ServiceId,
    (from, until): (Timestamp, Timestamp),
) -> Result<Vec<Vec<u64>>, StoreError> {
    type Row = (ServiceId, JsonColumn<Vec<u64>>);
    let sql = "SELECT service_id, first_byte FROM service_use \
               WHERE service_id = $1 AND hour_at >= $2 AND hour_at < $3";
    let rows = list!(tx, Row, sql, service, from, until)?;
    Ok(rows.into_iter().map(|(_, counts)| counts.0).collect())
}

/// Sums the charges for tokens of the organization's own keys in the hours between two times, in nano-units. The key of
/// another organization is charged to that one.
pub async fn sum_token_nanos(
    tx: &mut Tx<'_>,
    service: ServiceId,
    (from, until): (Timestamp, Timestamp),
) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COALESCE(SUM(u.token_nanos), 0) AS BIGINT) FROM service_use u \
               JOIN inference_keys k ON k.id = u.key_id AND k.org_id = u.org_id \
               WHERE u.service_id = $1 AND u.hour_at >= $2 AND u.hour_at < $3";
    Ok(find!(tx, (i64,), sql, service, from, until)?.map_or(0, |(nanos,)| nanos))
}

/// Sums the postings for the jobs of replicas between two times in micro-units: charges, less credits for time without
/// evidence.
pub async fn sum_job_micros(
    tx: &mut Tx<'_>,
    service: ServiceId,
    (from, until): (Timestamp, Timestamp),
) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COALESCE(SUM(CASE WHEN t.kind = 'usage' THEN t.amount_micros ELSE -t.amount_micros END), 0) \
               AS BIGINT) FROM service_jobs j JOIN transfers t ON t.source IN ('job', 'evidence') \
               AND t.source_id = j.job_id AND t.kind IN ('usage', 'credit') \
               WHERE j.service_id = $1 AND t.at >= $2 AND t.at < $3";
    Ok(find!(tx, (i64,), sql, service, from, until)?.map_or(0, |(micros,)| micros))
}

/// Counts the wakes that began between two times, and those of them without a ready replica within `within_ms`:
/// (all, late). A wake that has not ended counts as late if it began before `unended_before`.
pub async fn count_wakes(
    tx: &mut Tx<'_>,
    service: ServiceId,
    (from, until): (Timestamp, Timestamp),
    within_ms: i64,
    unended_before: Timestamp,
) -> Result<(i64, i64), StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT), CAST(COALESCE(SUM(CASE WHEN took_ms > $4 THEN 1 \
               WHEN took_ms IS NULL AND at < $5 THEN 1 ELSE 0 END), 0) AS BIGINT) FROM service_wakes \
               WHERE service_id = $1 AND at >= $2 AND at < $3";
    Ok(find!(tx, (i64, i64), sql, service, from, until, within_ms, unended_before)?.unwrap_or((0, 0)))
}

/// Begins a wake.
pub async fn begin_wake(tx: &mut Tx<'_>, service: ServiceId, at: Timestamp) -> Result<(), StoreError> {
    let sql = "INSERT INTO service_wakes (service_id, at) SELECT $1, $2 WHERE NOT EXISTS \
               (SELECT 1 FROM service_wakes WHERE service_id = $1 AND took_ms IS NULL)";
    exec!(tx, sql, service, at).map(|_| ())
}

/// Ends the wake of a service at a time.
pub async fn end_wake(tx: &mut Tx<'_>, service: ServiceId, at: Timestamp) -> Result<(), StoreError> {
    let sql = "UPDATE service_wakes SET took_ms = CASE WHEN at > $2 THEN 0 ELSE ($2 - at) / 1000 END \
               WHERE service_id = $1 AND took_ms IS NULL";
    exec!(tx, sql, service, at).map(|_| ())
}

/// Deletes the wake of a service that has not ended: the service was stopped meanwhile.
pub async fn drop_wake(tx: &mut Tx<'_>, service: ServiceId) -> Result<(), StoreError> {
    exec!(tx, "DELETE FROM service_wakes WHERE service_id = $1 AND took_ms IS NULL", service).map(|_| ())
}

/// Deletes the evidence from before a time. The jobs that have not ended, or ended later, stay.
pub async fn forget(tx: &mut Tx<'_>, before: Timestamp) -> Result<(), StoreError> {
    exec!(tx, "DELETE FROM service_wakes WHERE at < $1", before)?;
    let sql = "DELETE FROM service_jobs WHERE created_at < $1 AND NOT EXISTS (SELECT 1 FROM jobs j \
               WHERE j.id = service_jobs.job_id AND (j.ended_at IS NULL OR j.ended_at >= $1))";
    exec!(tx, sql, before).map(|_| ())
}
