//! What was charged, summed up by day as it is charged.

use berth_types::ids::OrgId;

use super::{StoreError, Tx};

/// One charge.
#[derive(Debug, Clone)]
pub struct Charged<'a> {
    pub org: &'a str,
    /// Days since 1970, UTC.
    pub day: i64,
    pub offering: &'a str,
    pub mode: &'a str,
    pub member: &'a str,
    pub labels: Vec<(String, String)>,
    /// Thousandths of devices × milliseconds.
    pub device_milli_ms: i64,
    pub cost_micros: i64,
}

/// Adds a charge to its day.
pub async fn count(tx: &mut Tx<'_>, charged: &Charged<'_>) -> Result<(), StoreError> {
    let sql = "INSERT INTO usage_days (org_id, day, offering_id, mode, member, device_milli_ms, cost_micros) \
               VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (org_id, day, offering_id, mode, member) DO UPDATE SET \
               device_milli_ms = usage_days.device_milli_ms + $6, cost_micros = usage_days.cost_micros + $7";
    exec!(
        tx,
        sql,
        charged.org,
        charged.day,
        charged.offering,
        charged.mode,
        charged.member,
        charged.device_milli_ms,
        charged.cost_micros
    )?;
    for (label, value) in &charged.labels {
        let sql = "INSERT INTO usage_label_days (org_id, day, label, value, device_milli_ms, cost_micros) \
                   VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (org_id, label, day, value) DO UPDATE SET \
                   device_milli_ms = usage_label_days.device_milli_ms + $5, \
                   cost_micros = usage_label_days.cost_micros + $6";
        exec!(tx, sql, charged.org, charged.day, label, value, charged.device_milli_ms, charged.cost_micros)?;
    }
    Ok(())
}

/// Sums by day and a column: (day, key, device milli-ms, micros).
type Sums = Vec<(i64, String, i64, i64)>;

/// What an organization used on some days, by day alone or with one more key (`offering`, `mode`, `member`).
pub async fn by_day(
    tx: &mut Tx<'_>,
    org: OrgId,
    (from, until): (i64, i64),
    key: &str,
) -> Result<Sums, StoreError> {
    let sql = "SELECT u.day, CASE WHEN $4 = 'offering' THEN COALESCE(o.slug, u.offering_id) WHEN $4 = 'mode' THEN u.mode \
               WHEN $4 = 'member' THEN u.member ELSE '' END AS k, CAST(SUM(u.device_milli_ms) AS BIGINT), \
               CAST(SUM(u.cost_micros) AS BIGINT) FROM usage_days u LEFT JOIN offerings o ON o.id = u.offering_id \
               WHERE u.org_id = $1 AND u.day >= $2 AND u.day <= $3 GROUP BY u.day, k ORDER BY u.day, k";
    list!(tx, (i64, String, i64, i64), sql, org.to_string(), from, until, key)
}

/// The same by the values of a label.
pub async fn by_label(
    tx: &mut Tx<'_>,
    org: OrgId,
    (from, until): (i64, i64),
    label: &str,
) -> Result<Sums, StoreError> {
    let sql = "SELECT day, value, device_milli_ms, cost_micros FROM usage_label_days \
               WHERE org_id = $1 AND label = $4 AND day >= $2 AND day <= $3 ORDER BY day, value";
    list!(tx, (i64, String, i64, i64), sql, org.to_string(), from, until, label)
}

/// What an organization was charged from one day to another, both counted.
pub async fn cost(tx: &mut Tx<'_>, org: OrgId, from: i64, until: i64) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COALESCE(SUM(cost_micros), 0) AS BIGINT) FROM usage_days \
               WHERE org_id = $1 AND day >= $2 AND day <= $3";
    Ok(find!(tx, (i64,), sql, org.to_string(), from, until)?.map_or(0, |(n,)| n))
}
