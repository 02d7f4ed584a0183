//! The evidence for promises: requests, first bytes, wakes and charges of a service between two times.

use berth_types::ids::{OrgId, ServiceId};
use berth_types::time::Timestamp;

use super::types::JsonColumn;
use super::{StoreError, Tx};

/// Rows of one page of counts.
const PAGE: i64 = 500;

/// Sums the requests of a service at its replicas in the hours between two times.
pub async fn count_requests(
    tx: &mut Tx<'_>,
    service: ServiceId,
    (from, until): (Timestamp, Timestamp),
) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COALESCE(SUM(requests), 0) AS BIGINT) FROM service_use \
               WHERE service_id = $1 AND hour_at >= $2 AND hour_at < $3";
    Ok(find!(tx, (i64,), sql, service, from, until)?.map_or(0, |(requests,)| requests))
}

/// Sums the faults of the platform in the hours between two times: (requests without a replica, requests whose replica was
/// lost).
pub async fn count_faults(
    tx: &mut Tx<'_>,
    service: ServiceId,
    (from, until): (Timestamp, Timestamp),
) -> Result<(i64, i64), StoreError> {
    let sql = "SELECT CAST(COALESCE(SUM(refused), 0) AS BIGINT), CAST(COALESCE(SUM(lost), 0) AS BIGINT) \
               FROM service_faults WHERE service_id = $1 AND hour_at >= $2 AND hour_at < $3";
    Ok(find!(tx, (i64, i64), sql, service, from, until)?.unwrap_or((0, 0)))
}

/// Adds the faults of a service to those of an hour. Each sum is at most `most`.
pub async fn add_faults(
    tx: &mut Tx<'_>,
    (service, hour_at): (ServiceId, Timestamp),
    (refused, lost): (i64, i64),
    most: i64,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO service_faults (service_id, hour_at, refused, lost) VALUES ($1, $2, $3, $4) \
               ON CONFLICT (service_id, hour_at) DO UPDATE SET \
               refused = CASE WHEN service_faults.refused + $3 > $5 THEN $5 ELSE service_faults.refused + $3 END, \
               lost = CASE WHEN service_faults.lost + $4 > $5 THEN $5 ELSE service_faults.lost + $4 END";
    exec!(tx, sql, service, hour_at, refused, lost, most).map(|_| ())
}

/// The facts about a service that decide which of its faults count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx::FromRow)]
pub struct FaultyService {
    pub id: ServiceId,
    /// A request without a replica waits for the organization.
    pub is_excused: bool,
}

/// Lists those of these services whose faults count: the organization has not stopped or deleted them, a revision gets
/// requests or is on its way, and no replica failed that has not ended, or ended since `failed_since`.
pub async fn list_faulty(
    tx: &mut Tx<'_>,
    services: Vec<String>,
    failed_since: Timestamp,
) -> Result<Vec<FaultyService>, StoreError> {
    // Gateways send no request to a draining replica, so its devices answer none.
    macro_rules! select_services {
        ($condition:literal) => {
            concat!(
                "SELECT s.id, (EXISTS (SELECT 1 FROM service_replicas p JOIN jobs j ON j.id = p.job_id \
                 WHERE p.service_id = s.id AND p.ended_at IS NULL AND p.draining_since IS NULL \
                 AND j.state IN ('assigned', 'starting', 'running')) \
                 OR COALESCE(s.own_wait_until >= $2, FALSE)) AS is_excused FROM services s \
                 WHERE NOT s.stopped AND s.deleted_at IS NULL AND s.state <> 'failed' \
                 AND EXISTS (SELECT 1 FROM service_revisions r WHERE r.service_id = s.id \
                 AND r.state IN ('live', 'canary', 'staging')) \
                 AND NOT EXISTS (SELECT 1 FROM service_replicas p WHERE p.service_id = s.id AND p.failed \
                 AND (p.ended_at IS NULL OR p.ended_at >= $2)) AND s.id ",
                $condition
            )
        };
    }
    list_in!(
        tx,
        FaultyService,
        select_services!("IN (SELECT value FROM json_each($1))"),
        select_services!("= ANY($1)"),
        services,
        failed_since
    )
}

/// Passes the counts of the times to the first byte in the hours between two times to `add`, for each revision, key and
/// hour.
pub async fn fold_first_bytes<T>(
    tx: &mut Tx<'_>,
    service: ServiceId,
    (from, until): (Timestamp, Timestamp),
    mut sum: T,
    add: impl Fn(T, &[u64]) -> T,
) -> Result<T, StoreError> {
    type Row = (Timestamp, String, String, JsonColumn<Vec<u64>>);
    let sql = "SELECT hour_at, revision_id, key_id, first_byte FROM service_use \
               WHERE service_id = $1 AND hour_at >= $2 AND hour_at < $3 \
               AND (hour_at, revision_id, key_id) > ($4, $5, $6) ORDER BY hour_at, revision_id, key_id LIMIT $7";
    let mut after = (Timestamp::from_micros(i64::MIN), String::new(), String::new());
    loop {
        let (hour, revision, key) = &after;
        let page = list!(tx, Row, sql, service, from, until, *hour, revision, key, PAGE)?;
        let is_last = i64::try_from(page.len()).is_ok_and(|rows| rows < PAGE);
        for (hour, revision, key, counts) in page {
            sum = add(sum, &counts.0);
            after = (hour, revision, key);
        }
        if is_last {
            return Ok(sum);
        }
    }
}

/// Sums the charges for tokens of the organization's own keys in the hours between two times, in nano-units: those of the
/// service, and those of all services. The key of another organization is charged to that one.
pub async fn sum_token_nanos(
    tx: &mut Tx<'_>,
    (org, service): (OrgId, ServiceId),
    (from, until): (Timestamp, Timestamp),
) -> Result<(i64, i64), StoreError> {
    let sql = "SELECT CAST(COALESCE(SUM(CASE WHEN u.service_id = $2 THEN u.token_nanos ELSE 0 END), 0) AS BIGINT), \
               CAST(COALESCE(SUM(u.token_nanos), 0) AS BIGINT) FROM inference_keys k \
               CROSS JOIN service_use u WHERE k.org_id = $1 AND u.key_id = k.id \
               AND u.hour_at >= $3 AND u.hour_at < $4";
    Ok(find!(tx, (i64, i64), sql, org, service, from, until)?.unwrap_or((0, 0)))
}

/// Sums the charges of the blocks of credit that an organization got between two times, in micro-units. A block belongs to
/// the time of its loan, so each charge is in one window.
pub async fn sum_block_micros(
    tx: &mut Tx<'_>,
    account: &str,
    (from, until): (Timestamp, Timestamp),
) -> Result<i64, StoreError> {
    // The order of the joins is fixed: SQLite would read all transfers of blocks.
    let sql = "SELECT CAST(COALESCE(SUM(t.amount_micros), 0) AS BIGINT) FROM transfers h CROSS JOIN transfers t \
               WHERE h.debit = $1 AND h.kind = 'hold' AND h.source = 'credit_block' AND h.at >= $2 AND h.at < $3 \
               AND t.source = 'credit_block' AND t.source_id = h.source_id AND t.kind = 'usage'";
    Ok(find!(tx, (i64,), sql, account, from, until)?.map_or(0, |(micros,)| micros))
}

/// Sums the postings for the jobs of replicas with at least this surcharge in basis points, between two times in
/// micro-units: charges, less credits for time without evidence.
pub async fn sum_job_micros(
    tx: &mut Tx<'_>,
    (service, surcharge): (ServiceId, i64),
    (from, until): (Timestamp, Timestamp),
) -> Result<i64, StoreError> {
    // The order of the joins is fixed: SQLite would read all transfers of jobs.
    let sql = "SELECT CAST(COALESCE(SUM(CASE WHEN t.kind = 'usage' THEN t.amount_micros ELSE -t.amount_micros END), 0) \
               AS BIGINT) FROM service_jobs j CROSS JOIN transfers t WHERE j.service_id = $1 \
               AND NOT EXISTS (SELECT 1 FROM jobs r WHERE r.id = j.job_id AND r.surcharge_basis_points < $4) \
               AND t.source IN ('job', 'evidence') AND t.source_id = j.job_id AND t.kind IN ('usage', 'credit') \
               AND t.at >= $2 AND t.at < $3";
    Ok(find!(tx, (i64,), sql, service, from, until, surcharge)?.map_or(0, |(micros,)| micros))
}

/// Counts the wakes that began between two times, and those of them without a placed replica within `within_ms`:
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

/// Begins a wake, unless the service is stopped or deleted.
pub async fn begin_wake(tx: &mut Tx<'_>, service: ServiceId, at: Timestamp) -> Result<(), StoreError> {
    let sql = "INSERT INTO service_wakes (service_id, at) SELECT s.id, $2 FROM services s \
               WHERE s.id = $1 AND NOT s.stopped AND s.deleted_at IS NULL AND NOT EXISTS \
               (SELECT 1 FROM service_wakes w WHERE w.service_id = $1 AND w.took_ms IS NULL)";
    exec!(tx, sql, service, at).map(|_| ())
}

/// Ends the wake of a service at a time: a replica has its devices, or nobody waits any more.
pub async fn end_wake(tx: &mut Tx<'_>, service: ServiceId, at: Timestamp) -> Result<(), StoreError> {
    let sql = "UPDATE service_wakes SET took_ms = CASE WHEN at > $2 THEN 0 ELSE ($2 - at) / 1000 END \
               WHERE service_id = $1 AND took_ms IS NULL";
    exec!(tx, sql, service, at).map(|_| ())
}

/// True if a wake of the service has not ended.
pub async fn has_open_wake(tx: &mut Tx<'_>, service: ServiceId) -> Result<bool, StoreError> {
    let sql = "SELECT service_id FROM service_wakes WHERE service_id = $1 AND took_ms IS NULL LIMIT 1";
    Ok(find!(tx, (ServiceId,), sql, service)?.is_some())
}

/// Deletes the wake of a service that has not ended: the organization stopped the service, or its replicas are refused.
pub async fn drop_wake(tx: &mut Tx<'_>, service: ServiceId) -> Result<(), StoreError> {
    exec!(tx, "DELETE FROM service_wakes WHERE service_id = $1 AND took_ms IS NULL", service).map(|_| ())
}

/// Deletes the evidence from before a time. The jobs that have not ended, or ended later, stay.
pub async fn forget(tx: &mut Tx<'_>, before: Timestamp) -> Result<(), StoreError> {
    exec!(tx, "DELETE FROM service_wakes WHERE at < $1", before)?;
    exec!(tx, "DELETE FROM service_faults WHERE hour_at < $1", before)?;
    let sql = "DELETE FROM service_jobs WHERE created_at < $1 AND NOT EXISTS (SELECT 1 FROM jobs j \
               WHERE j.id = service_jobs.job_id AND (j.ended_at IS NULL OR j.ended_at >= $1))";
    exec!(tx, sql, before).map(|_| ())
}
