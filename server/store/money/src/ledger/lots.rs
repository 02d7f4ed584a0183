//! Lots of credit that expires, with the rest of each.
//!
//! [`super::post`] and [`super::post_forced`] reduce the lots in the transaction of their posting.

use std::collections::{BTreeMap, BTreeSet};

use berth_core::expiry::{self, ExpiringCredit};
use berth_types::ids::{OrgId, TransferId};
use berth_types::time::Timestamp;

use super::Posting;
use crate::{StoreError, Tx};

/// The source of the debits of expired credit.
pub const EXPIRY: &str = "expiry";

/// A grant that expires, with its rest.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct StoredExpiringCredit {
    pub transfer_id: TransferId,
    pub org_id: OrgId,
    pub amount_micros: i64,
    pub left_micros: i64,
    pub expires_at: Timestamp,
    /// The number of debits of its expired part.
    pub expiry_debits: i64,
    /// The number of warnings that were sent.
    pub warnings: i64,
    pub memo: String,
    pub granted_at: Timestamp,
}

impl StoredExpiringCredit {
    pub const fn lot(&self) -> ExpiringCredit {
        ExpiringCredit { left_micros: self.left_micros, expires_at: self.expires_at }
    }
}

macro_rules! select_lots {
    ($rest:literal) => {
        concat!(
            "SELECT l.transfer_id, l.org_id, l.amount_micros, l.left_micros, l.expires_at, l.expiry_debits, l.warnings, \
             t.memo, t.at AS granted_at FROM credit_lots l JOIN transfers t ON t.id = l.transfer_id WHERE l.left_micros > 0 ",
            $rest
        )
    };
}

/// Adds the lot of a posted grant. The part that paid an overdraft is not left in the lot.
pub async fn insert(tx: &mut Tx<'_>, grant: &Posting, expires_at: Timestamp) -> Result<(), StoreError> {
    let (posted, _) = super::balance(tx, grant.org).await?;
    let left = grant.amount_micros.min(posted.max(0));
    let sql = "INSERT INTO credit_lots (transfer_id, org_id, amount_micros, left_micros, expires_at, expiry_debits, warnings) \
               VALUES ($1, $2, $3, $4, $5, 0, 0)";
    exec!(tx, sql, grant.id, grant.org, grant.amount_micros, left, expires_at).map(|_| ())
}

/// Lists the lots of an organization that have something left, first expiry first.
pub async fn list_live(tx: &mut Tx<'_>, org: OrgId) -> Result<Vec<StoredExpiringCredit>, StoreError> {
    let sql = select_lots!("AND l.org_id = $1 ORDER BY l.expires_at, l.transfer_id");
    list!(tx, StoredExpiringCredit, sql, org)
}

/// Lists the lots of an organization that expire after `now`, first expiry first: (left micros, expiry).
pub async fn list_expiring(
    tx: &mut Tx<'_>,
    org: OrgId,
    now: Timestamp,
    limit: i64,
) -> Result<Vec<(i64, Timestamp)>, StoreError> {
    let sql = "SELECT l.left_micros, l.expires_at, l.transfer_id AS row_id FROM credit_lots l WHERE l.left_micros > 0 AND l.org_id = $1 \
               AND l.expires_at > $2 ORDER BY l.expires_at, l.transfer_id LIMIT $3";
    list!(tx, (i64, Timestamp), sql, org, now, limit)
}

/// Takes a posted amount from the lots. `amount` is the part that the lots pay first; it is 0 if other credit
/// pays first.
pub(super) async fn spend(tx: &mut Tx<'_>, posting: &Posting, amount: i64) -> Result<(), StoreError> {
    let rows = list_live(tx, posting.org).await?;
    let set_aside_at = match posting.pending {
        Some(hold) => posted_at(tx, hold).await?.unwrap_or(posting.at),
        None => posting.at,
    };
    let (posted, _) = super::balance(tx, posting.org).await?;
    let lots: Vec<ExpiringCredit> = rows.iter().map(StoredExpiringCredit::lot).collect();
    let parts = expiry::spend(&lots, amount, set_aside_at, posted);
    let sql = "UPDATE credit_lots SET left_micros = left_micros - $2 WHERE transfer_id = $1";
    for (row, part) in rows.iter().zip(parts).filter(|(_, part)| *part > 0) {
        exec!(tx, sql, row.transfer_id, part)?;
    }
    Ok(())
}

async fn posted_at(tx: &mut Tx<'_>, id: TransferId) -> Result<Option<Timestamp>, StoreError> {
    let row = find!(tx, (Timestamp,), "SELECT at, id AS row_id FROM transfers WHERE id = $1", id)?;
    Ok(row.map(|(at,)| at))
}

/// Posts the debit of an expired part and takes it from the lot.
pub async fn take_back(
    tx: &mut Tx<'_>,
    row: &StoredExpiringCredit,
    posting: &Posting,
) -> Result<(), StoreError> {
    super::write_transfer(tx, posting).await?;
    let sql =
        "UPDATE credit_lots SET left_micros = left_micros - $2, expiry_debits = $3 WHERE transfer_id = $1";
    exec!(tx, sql, row.transfer_id, posting.amount_micros, posting.seq).map(|_| ())
}

/// Sums the holds of jobs, reservations and blocks of credit from before each of these times that still exist, in
/// micros. Charges use the oldest hold first. The result is empty if nothing has a hold.
pub async fn held_before(
    tx: &mut Tx<'_>,
    org: OrgId,
    times: &BTreeSet<Timestamp>,
) -> Result<BTreeMap<Timestamp, i64>, StoreError> {
    macro_rules! select_held {
        ($times:literal, $table:literal, $source:literal, $id:literal, $open:literal) => {
            concat!(
                "SELECT x.at, w.held_micros, (SELECT CAST(COALESCE(SUM(CASE WHEN t.kind = 'usage' THEN -t.amount_micros \
                 WHEN t.at >= x.at THEN 0 WHEN t.kind = 'hold' THEN t.amount_micros WHEN t.kind = 'release' \
                 THEN -t.amount_micros ELSE 0 END), 0) AS BIGINT) FROM transfers t WHERE t.source = '",
                $source,
                "' AND t.source_id = w.",
                $id,
                "), w.",
                $id,
                " AS row_id FROM ",
                $table,
                " w CROSS JOIN (SELECT CAST(value AS BIGINT) AS at FROM ",
                $times,
                ") x WHERE w.org_id = $2 AND w.held_micros > 0 AND ",
                $open
            )
        };
        ($table:literal, $source:literal, $id:literal, $open:literal) => {
            (
                select_held!("json_each($1)", $table, $source, $id, $open),
                select_held!("UNNEST($1::TEXT[]) AS list (value)", $table, $source, $id, $open),
            )
        };
    }
    let mut sums = BTreeMap::new();
    if times.is_empty() {
        return Ok(sums);
    }
    for (sqlite, postgres) in [
        select_held!("jobs", "job", "id", "w.ended_at IS NULL"),
        select_held!("reservations", "reservation", "id", "w.state IN ('pending', 'scheduled', 'active')"),
        select_held!("credit_blocks", "credit_block", "hold_id", "NOT w.closed"),
    ] {
        let texts: Vec<String> = times.iter().map(|at| at.micros().to_string()).collect();
        for (at, held, held_then) in list_in!(tx, (Timestamp, i64, i64), sqlite, postgres, texts, org)? {
            let sum: &mut i64 = sums.entry(at).or_default();
            *sum = sum.saturating_add(held.min(held_then).max(0));
        }
    }
    Ok(sums)
}

/// Lists the lots that have expired, that expire by `last` and lack their last warning, or that expire by
/// `first` and lack their first warning.
pub async fn list_due(
    tx: &mut Tx<'_>,
    now: Timestamp,
    (last, first): (Timestamp, Timestamp),
) -> Result<Vec<StoredExpiringCredit>, StoreError> {
    let sql = select_lots!(
        "AND l.expires_at <= $3 AND (l.expires_at <= $1 OR l.warnings < 1 OR (l.warnings < 2 AND l.expires_at <= $2)) \
         ORDER BY l.org_id, l.expires_at, l.transfer_id"
    );
    list!(tx, StoredExpiringCredit, sql, now, last, first)
}

/// Records the number of sent warnings. Returns true if it was lower before and the lot has something left.
pub async fn mark_warned(tx: &mut Tx<'_>, id: TransferId, warnings: i64) -> Result<bool, StoreError> {
    let sql =
        "UPDATE credit_lots SET warnings = $2 WHERE transfer_id = $1 AND warnings < $2 AND left_micros > 0";
    Ok(exec!(tx, sql, id, warnings)? == 1)
}

/// Lists the organizations with more left in lots than in the balance, and the lots with more left and
/// expired than was granted.
pub async fn mismatches(tx: &mut Tx<'_>) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT a.org_id FROM accounts a WHERE a.org_id IS NOT NULL AND \
               (SELECT CAST(COALESCE(SUM(l.left_micros), 0) AS BIGINT) FROM credit_lots l \
                WHERE l.org_id = a.org_id AND l.left_micros > 0) \
               > CASE WHEN a.posted_micros > 0 THEN a.posted_micros ELSE 0 END ORDER BY a.org_id LIMIT 100";
    let rows = list!(tx, (String,), sql)?;
    let mut out: Vec<String> =
        rows.into_iter().map(|(id,)| format!("{id}: more credit is to expire than there is")).collect();
    let sql = "SELECT l.transfer_id FROM credit_lots l WHERE l.left_micros + \
               (SELECT CAST(COALESCE(SUM(t.amount_micros), 0) AS BIGINT) FROM transfers t \
                WHERE t.source = $1 AND t.source_id = l.transfer_id) > l.amount_micros ORDER BY l.transfer_id LIMIT 100";
    let rows = list!(tx, (String,), sql, EXPIRY)?;
    out.extend(rows.into_iter().map(|(id,)| format!("{id}: more is left and expired than was granted")));
    Ok(out)
}
