//! The share of each gateway in the faults of services by hour, which ends with the token of the gateway.

use berth_types::ids::ServiceId;
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

/// Adds faults of a service to the share of a gateway in an hour. Each sum is at most `most`.
pub async fn add(
    tx: &mut Tx<'_>,
    (gateway, service, hour_at): (i64, ServiceId, Timestamp),
    (refused, lost): (i64, i64),
    most: i64,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO gateway_faults (gateway_number, service_id, hour_at, refused, lost) \
               VALUES ($1, $2, $3, $4, $5) ON CONFLICT (gateway_number, service_id, hour_at) DO UPDATE SET \
               refused = CASE WHEN gateway_faults.refused + $4 > $6 THEN $6 ELSE gateway_faults.refused + $4 END, \
               lost = CASE WHEN gateway_faults.lost + $5 > $6 THEN $6 ELSE gateway_faults.lost + $5 END";
    exec!(tx, sql, gateway, service, hour_at, refused, lost, most).map(|_| ())
}

/// Removes the share of a gateway from the faults of all services. Returns the number of removed rows.
pub async fn discard(tx: &mut Tx<'_>, gateway: i64) -> Result<u64, StoreError> {
    // A sum at its limit may be less than its shares.
    let sql = "UPDATE service_faults SET \
               refused = (SELECT CASE WHEN g.refused > service_faults.refused THEN 0 \
               ELSE service_faults.refused - g.refused END FROM gateway_faults g WHERE g.gateway_number = $1 \
               AND g.service_id = service_faults.service_id AND g.hour_at = service_faults.hour_at), \
               lost = (SELECT CASE WHEN g.lost > service_faults.lost THEN 0 \
               ELSE service_faults.lost - g.lost END FROM gateway_faults g WHERE g.gateway_number = $1 \
               AND g.service_id = service_faults.service_id AND g.hour_at = service_faults.hour_at) \
               WHERE (service_id, hour_at) IN \
               (SELECT g.service_id, g.hour_at FROM gateway_faults g WHERE g.gateway_number = $1)";
    exec!(tx, sql, gateway)?;
    exec!(tx, "DELETE FROM gateway_faults WHERE gateway_number = $1", gateway)
}

/// Deletes the shares of hours before `before`.
pub async fn delete_hours(tx: &mut Tx<'_>, before: Timestamp, most: i64) -> Result<u64, StoreError> {
    let sql = "DELETE FROM gateway_faults WHERE (gateway_number, service_id, hour_at) IN \
               (SELECT gateway_number, service_id, hour_at FROM gateway_faults WHERE hour_at < $1 \
               ORDER BY hour_at LIMIT $2)";
    exec!(tx, sql, before, most)
}
