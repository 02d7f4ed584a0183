//! The deletion of old records of services, in batches. A deletion returns the number of deleted objects.

use berth_types::ids::{InferenceKeyId, ServiceId};
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

/// Deletes the use of hours before `before`.
pub async fn delete_use(tx: &mut Tx<'_>, before: Timestamp, most: i64) -> Result<u64, StoreError> {
    let sql = "DELETE FROM service_use WHERE (service_id, revision_id, key_id, hour_at) IN \
               (SELECT service_id, revision_id, key_id, hour_at FROM service_use WHERE hour_at < $1 \
               ORDER BY hour_at LIMIT $2)";
    exec!(tx, sql, before, most)
}

/// Deletes the replicas that ended before `before`.
pub async fn delete_replicas(tx: &mut Tx<'_>, before: Timestamp, most: i64) -> Result<u64, StoreError> {
    let sql = "DELETE FROM service_replicas WHERE job_id IN (SELECT job_id FROM service_replicas \
               WHERE ended_at < $1 ORDER BY ended_at LIMIT $2)";
    exec!(tx, sql, before, most)
}

/// Deletes the closed blocks of gateways that were removed before `before`, and those of replaced tokens that ended before
/// it: no gateway has their number any more.
pub async fn delete_blocks(tx: &mut Tx<'_>, before: Timestamp, most: i64) -> Result<u64, StoreError> {
    let sql = "DELETE FROM credit_blocks WHERE hold_id IN (SELECT b.hold_id FROM credit_blocks b \
               LEFT JOIN gateways g ON g.number = b.gateway_number \
               WHERE b.closed AND ((g.number IS NULL AND b.until_at < $1) OR g.removed_at < $1) \
               ORDER BY b.hold_id LIMIT $2)";
    exec!(tx, sql, before, most)
}

/// Deletes the charges of gateways of hours before `before`.
pub async fn delete_gateway_hours(tx: &mut Tx<'_>, before: Timestamp, most: i64) -> Result<u64, StoreError> {
    let sql = "DELETE FROM gateway_hours WHERE (gateway_number, org_id, hour_at) IN \
               (SELECT gateway_number, org_id, hour_at FROM gateway_hours WHERE hour_at < $1 \
               ORDER BY hour_at LIMIT $2)";
    exec!(tx, sql, before, most)
}

/// Deletes the keys that were revoked before `before` and have neither use nor blocks. The key with the greatest number
/// stays, because no number is used again.
pub async fn delete_keys(tx: &mut Tx<'_>, before: Timestamp, most: i64) -> Result<u64, StoreError> {
    let sql = "SELECT k.id, k.number FROM inference_keys k WHERE k.revoked_at < $1 \
               AND k.number < (SELECT MAX(l.number) FROM inference_keys l) \
               AND NOT EXISTS (SELECT 1 FROM service_use u WHERE u.key_id = k.id) \
               AND NOT EXISTS (SELECT 1 FROM credit_blocks b WHERE b.key_number = k.number) \
               ORDER BY k.revoked_at LIMIT $2";
    let mut deleted = 0;
    for (id, number) in list!(tx, (InferenceKeyId, i64), sql, before, most)? {
        exec!(tx, "DELETE FROM credit_days WHERE key_number = $1", number)?;
        deleted += exec!(tx, "DELETE FROM inference_keys WHERE id = $1", id)?;
    }
    Ok(deleted)
}

/// Lists services that were deleted before `before` and have neither use, replicas, promises nor judged windows, after an
/// id.
pub async fn list_services(
    tx: &mut Tx<'_>,
    before: Timestamp,
    after: Option<ServiceId>,
    most: i64,
) -> Result<Vec<ServiceId>, StoreError> {
    let sql = "SELECT s.id FROM services s WHERE s.deleted_at < $1 AND s.id > $2 \
               AND NOT EXISTS (SELECT 1 FROM service_use u WHERE u.service_id = s.id) \
               AND NOT EXISTS (SELECT 1 FROM service_replicas p WHERE p.service_id = s.id) \
               AND NOT EXISTS (SELECT 1 FROM service_promises c WHERE c.service_id = s.id) \
               AND NOT EXISTS (SELECT 1 FROM service_promise_windows w WHERE w.service_id = s.id) \
               ORDER BY s.id LIMIT $3";
    let after = after.map(|id| id.to_string()).unwrap_or_default();
    Ok(list!(tx, (ServiceId,), sql, before, after, most)?.into_iter().map(|(id,)| id).collect())
}

/// Deletes a service with its revisions and its evidence for promises.
pub async fn delete_service(tx: &mut Tx<'_>, id: ServiceId) -> Result<(), StoreError> {
    exec!(tx, "DELETE FROM service_wakes WHERE service_id = $1", id)?;
    exec!(tx, "DELETE FROM service_faults WHERE service_id = $1", id)?;
    exec!(tx, "DELETE FROM service_jobs WHERE service_id = $1", id)?;
    exec!(tx, "DELETE FROM service_hosts WHERE service_id = $1", id)?;
    exec!(tx, "DELETE FROM service_revisions WHERE service_id = $1", id)?;
    exec!(tx, "DELETE FROM services WHERE id = $1", id).map(|_| ())
}
