//! Sums of charges by day, written in the transaction of each charge.

use berth_types::ids::OrgId;

use super::{StoreError, Tx};

/// The mode of a charged use, which decides its rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageMode {
    OnDemand,
    Preemptible,
    /// A reservation, also the jobs in it.
    Reserved,
}

impl UsageMode {
    pub const ALL: [Self; 3] = [Self::OnDemand, Self::Preemptible, Self::Reserved];

    pub const fn name(self) -> &'static str {
        match self {
            Self::OnDemand => "on_demand",
            Self::Preemptible => "preemptible",
            Self::Reserved => "reserved",
        }
    }
}

/// One charge.
#[derive(Debug, Clone)]
pub struct Charge<'a> {
    pub org: OrgId,
    /// Days since 1970, UTC.
    pub day: i64,
    /// The id of an offering; empty for a charge without one.
    pub offering: &'a str,
    pub mode: UsageMode,
    pub member: &'a str,
    /// The version of the offering's price; 0 for a fee.
    pub price_version: i64,
    /// The surcharge on the price in basis points.
    pub surcharge_basis_points: i64,
    pub labels: Vec<(String, String)>,
    /// Thousandths of devices × milliseconds.
    pub device_milli_ms: i64,
    pub cost_micros: i64,
}

/// Adds a charge to its day.
pub async fn add_charge(tx: &mut Tx<'_>, charge: &Charge<'_>) -> Result<(), StoreError> {
    let sql = "INSERT INTO usage_days (org_id, day, offering_id, mode, member, price_version, \
               surcharge_basis_points, device_milli_ms, cost_micros) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) \
               ON CONFLICT (org_id, day, offering_id, mode, member, price_version, surcharge_basis_points) \
               DO UPDATE SET device_milli_ms = usage_days.device_milli_ms + $8, \
               cost_micros = usage_days.cost_micros + $9";
    exec!(
        tx,
        sql,
        charge.org,
        charge.day,
        charge.offering,
        charge.mode.name(),
        charge.member,
        charge.price_version,
        charge.surcharge_basis_points,
        charge.device_milli_ms,
        charge.cost_micros
    )?;
    for (label, value) in &charge.labels {
        let sql = "INSERT INTO usage_label_days (org_id, day, label, value, device_milli_ms, cost_micros) \
                   VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (org_id, label, day, value) DO UPDATE SET \
                   device_milli_ms = usage_label_days.device_milli_ms + $5, \
                   cost_micros = usage_label_days.cost_micros + $6";
        exec!(tx, sql, charge.org, charge.day, label, value, charge.device_milli_ms, charge.cost_micros)?;
    }
    Ok(())
}

/// Sums by day and a column: (day, key, device milli-ms, micros).
pub type Sums = Vec<(i64, String, i64, i64)>;

/// The sums by day and one column. The groups follow the order of the table's key as far as possible, because
/// a year of a large organization has many rows.
macro_rules! sums {
    ($key: literal, $group: literal) => {
        concat!(
            "SELECT day, ",
            $key,
            " AS k, CAST(SUM(device_milli_ms) AS BIGINT) AS ms, CAST(SUM(cost_micros) AS BIGINT) AS micros \
             FROM usage_days WHERE org_id = $1 AND day >= $2 AND day <= $3 GROUP BY ",
            $group,
            " ORDER BY ",
            $group
        )
    };
}

/// Sums the use of an organization from one day to another, both counted, by day alone or by day and one more
/// key (`offering`, `mode`, `member`).
pub async fn by_day(
    tx: &mut Tx<'_>,
    org: OrgId,
    (from, until): (i64, i64),
    key: &str,
) -> Result<Sums, StoreError> {
    let sql = match key {
        "offering" => concat!(
            "SELECT s.day, COALESCE(o.slug, s.k), s.ms, s.micros FROM (",
            sums!("offering_id", "day, offering_id"),
            ") AS s LEFT JOIN offerings o ON o.id = s.k ORDER BY s.day, COALESCE(o.slug, s.k)"
        ),
        "mode" => sums!("mode", "day, mode"),
        "member" => sums!("member", "day, member"),
        _ => sums!("''", "day"),
    };
    list!(tx, (i64, String, i64, i64), sql, org, from, until)
}

/// Sums the use of an organization by day and value of a label.
pub async fn by_label(
    tx: &mut Tx<'_>,
    org: OrgId,
    (from, until): (i64, i64),
    label: &str,
) -> Result<Sums, StoreError> {
    let sql = "SELECT day, value, device_milli_ms, cost_micros FROM usage_label_days \
               WHERE org_id = $1 AND label = $4 AND day >= $2 AND day <= $3 ORDER BY day, value";
    list!(tx, (i64, String, i64, i64), sql, org, from, until, label)
}

/// A running job or an active reservation, with its open charges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx::FromRow)]
pub struct OpenCharge {
    /// The hold that its further charges come from.
    pub held_micros: i64,
    /// The part of the hold that its metered use costs already.
    pub uncharged_micros: i64,
    pub nano_per_second: i64,
}

/// Lists the running jobs and the active reservations of an organization that have a hold.
pub async fn list_open(tx: &mut Tx<'_>, org: OrgId) -> Result<Vec<OpenCharge>, StoreError> {
    let sql = "SELECT held_micros, cost_micros - posted_micros AS uncharged_micros, nano_per_second FROM jobs \
               WHERE org_id = $1 AND ended_at IS NULL AND state IN ('running', 'stopping') AND held_micros > 0 \
               UNION ALL SELECT held_micros, CAST(0 AS BIGINT) AS uncharged_micros, nano_per_second FROM reservations \
               WHERE org_id = $1 AND state = 'active' AND held_micros > 0";
    list!(tx, OpenCharge, sql, org)
}

/// Sums the charges of an organization from one day to another, both counted, in micros.
pub async fn cost(tx: &mut Tx<'_>, org: OrgId, from: i64, until: i64) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COALESCE(SUM(cost_micros), 0) AS BIGINT) FROM usage_days \
               WHERE org_id = $1 AND day >= $2 AND day <= $3";
    Ok(find!(tx, (i64,), sql, org, from, until)?.map_or(0, |(n,)| n))
}

/// Sums the charges of all organizations from one day to another, both counted, in micros. The sum of each
/// organization reads only its own days of the index.
pub async fn total_cost(tx: &mut Tx<'_>, from: i64, until: i64) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COALESCE(SUM((SELECT COALESCE(SUM(u.cost_micros), 0) FROM usage_days u \
               WHERE u.org_id = o.id AND u.day >= $1 AND u.day <= $2)), 0) AS BIGINT) FROM orgs o";
    Ok(find!(tx, (i64,), sql, from, until)?.map_or(0, |(n,)| n))
}
