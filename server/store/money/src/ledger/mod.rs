//! The ledger: accounts and transfers, in double entry and append-only.
//!
//! One function writes a transfer and its balances in the transaction of the caller, so they always agree. A
//! posting with a stored `(source, source_id, kind, seq)` fails with [`StoreError::Duplicate`]. A posting
//! that would overdraw the account fails with [`StoreError::Refused`].

use berth_types::ids::{OrgId, TransferId};
use berth_types::ledger::TransferKind;
use berth_types::lists::ListOptions;
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

mod batch;
pub mod lots;

pub use batch::post_credits;

/// The platform's account for granted credit. The accounts of the platform are names in transfers only. A
/// stored balance of such an account would be one row that every charge of every organization writes.
pub const GRANTS: &str = "platform:grants";
/// The platform's account for charges.
pub const REVENUE: &str = "platform:revenue";
/// The platform's account for the taxes of invoices that were paid from the balance.
pub const TAXES: &str = "platform:taxes";
/// The source of their debits, and of the credits for taxes of credit notes. The id is that of the invoice.
pub const TAX: &str = "tax";
/// The source of credits for charges that evidence does not support. Such a credit returns a charge, so it
/// comes from [`REVENUE`].
pub const EVIDENCE: &str = "evidence";
/// The source of credits for missed promises of services. It comes from [`REVENUE`] too.
pub const PROMISE: &str = "promise";
/// The source of the hold and the charge of a block of credit for a gateway. The id is that of the hold.
pub const CREDIT_BLOCK: &str = "credit_block";

/// Returns the platform's account of a posting.
fn platform_side(posting: &Posting) -> &'static str {
    match posting.kind {
        TransferKind::Credit if matches!(posting.source, EVIDENCE | PROMISE) => REVENUE,
        TransferKind::Credit | TransferKind::Debit if posting.source == TAX => TAXES,
        TransferKind::Credit | TransferKind::Debit => GRANTS,
        TransferKind::Hold | TransferKind::Usage | TransferKind::Release => REVENUE,
    }
}

/// Returns the name of an organization's account.
pub fn org_account(org: OrgId) -> String {
    format!("tenant:{org}")
}

/// A transfer to post.
#[derive(Debug, Clone)]
pub struct Posting {
    pub id: TransferId,
    pub org: OrgId,
    pub kind: TransferKind,
    /// Above zero.
    pub amount_micros: i64,
    /// The hold that a charge or release reduces.
    pub pending: Option<TransferId>,
    pub source: &'static str,
    pub source_id: String,
    pub seq: i64,
    pub memo: String,
    pub at: Timestamp,
}

/// Creates the account of an organization, unless it exists.
pub async fn open_accounts(tx: &mut Tx<'_>, org: OrgId) -> Result<(), StoreError> {
    let sql = "INSERT INTO accounts (id, org_id, posted_micros, held_micros) VALUES ($1, $2, 0, 0) \
               ON CONFLICT (id) DO NOTHING";
    exec!(tx, sql, org_account(org), org).map(|_| ())
}

/// True if money has moved: a transfer was posted, or a payment by card has begun.
pub async fn has_money(tx: &mut Tx<'_>) -> Result<bool, StoreError> {
    let sql = "SELECT CAST(CASE WHEN EXISTS (SELECT 1 FROM transfers) OR EXISTS (SELECT 1 FROM payments) \
               THEN 1 ELSE 0 END AS BIGINT)";
    Ok(find!(tx, (i64,), sql)?.is_some_and(|(found,)| found > 0))
}

/// Posts one transfer and changes the balances. Money that leaves the balance comes from the credit that
/// expires first.
pub async fn post(tx: &mut Tx<'_>, posting: &Posting) -> Result<(), StoreError> {
    if write_transfer(tx, posting).await? {
        lots::spend(tx, posting, posting.amount_micros).await?;
    }
    Ok(())
}

/// Writes one transfer and the balances, without a change of expiring credit. Returns true if money left the
/// balance and the organization has expiring credit.
pub(super) async fn write_transfer(tx: &mut Tx<'_>, posting: &Posting) -> Result<bool, StoreError> {
    let tenant = org_account(posting.org);
    let platform = platform_side(posting);
    let (debit, credit) = match posting.kind {
        TransferKind::Credit | TransferKind::Release => (platform, tenant.as_str()),
        TransferKind::Hold | TransferKind::Usage | TransferKind::Debit => (tenant.as_str(), platform),
    };
    exec!(
        tx,
        "INSERT INTO transfers (id, debit, credit, amount_micros, kind, pending_id, source, source_id, seq, memo, at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        posting.id,
        debit,
        credit,
        posting.amount_micros,
        posting.kind,
        posting.pending,
        posting.source,
        &posting.source_id,
        posting.seq,
        &posting.memo,
        posting.at
    )?;
    let amount = posting.amount_micros;
    // Changes of the organization's account: posted, held.
    let (posted, held) = match posting.kind {
        TransferKind::Credit => (amount, 0),
        TransferKind::Hold => (0, amount),
        TransferKind::Release => (0, -amount),
        TransferKind::Debit => (-amount, 0),
        TransferKind::Usage => (-amount, if posting.pending.is_some() { -amount } else { 0 }),
    };
    // A transfer that raises the available money clears `forced_micros` as far as it is paid. Other transfers
    // leave it, so the CHECK constraint refuses an overdraft.
    let raises_available = posted > 0 || held < 0;
    let sql = "UPDATE accounts SET posted_micros = posted_micros + $2, held_micros = held_micros + $3, \
               forced_micros = CASE WHEN NOT $4 THEN forced_micros \
               WHEN forced_micros = 0 OR posted_micros + $2 - held_micros - $3 + credit_limit_micros >= 0 THEN 0 \
               ELSE held_micros + $3 - posted_micros - $2 - credit_limit_micros END WHERE id = $1 \
               RETURNING CASE WHEN $2 < 0 THEN (SELECT CAST(COUNT(*) AS BIGINT) FROM credit_lots \
               WHERE org_id = $5 AND left_micros > 0) ELSE 0 END";
    match list!(tx, (i64,), sql, &tenant, posted, held, raises_available, posting.org)?.as_slice() {
        [(lots,)] => Ok(*lots > 0),
        _ => Err(StoreError::Corrupt(format!("no account {tenant}"))),
    }
}

/// Posts a debit, also beyond the available money. The available money may then be negative, and nothing new
/// starts until the difference is paid. Taxes use the credit that expires first. Other debits use it last, because a
/// payment by card does not expire.
pub async fn post_forced(tx: &mut Tx<'_>, posting: &Posting) -> Result<(), StoreError> {
    let available = available(tx, posting.org).await?;
    let shortage = posting.amount_micros - available.max(0);
    if shortage > 0 {
        let sql = "UPDATE accounts SET forced_micros = forced_micros + $2 WHERE id = $1";
        exec!(tx, sql, org_account(posting.org), shortage)?;
    }
    if write_transfer(tx, posting).await? {
        let first = if posting.source == TAX { posting.amount_micros } else { 0 };
        lots::spend(tx, posting, first).await?;
    }
    Ok(())
}

/// Counts the transfers after one id and up to another, by kind.
pub async fn count_between(
    tx: &mut Tx<'_>,
    after: TransferId,
    until: TransferId,
) -> Result<Vec<(TransferKind, i64)>, StoreError> {
    let sql = "SELECT kind, CAST(COUNT(*) AS BIGINT) FROM transfers WHERE id > $1 AND id <= $2 \
               GROUP BY kind ORDER BY kind";
    list!(tx, (TransferKind, i64), sql, after, until)
}

/// Finds the first hold of a source, such as a job.
pub async fn find_hold(
    tx: &mut Tx<'_>,
    source: &str,
    source_id: &str,
) -> Result<Option<TransferId>, StoreError> {
    let sql = "SELECT id FROM transfers WHERE source = $1 AND source_id = $2 AND kind = 'hold' ORDER BY seq LIMIT 1";
    Ok(find!(tx, (TransferId,), sql, source, source_id)?.map(|(id,)| id))
}

/// True if the transfer of this cause is posted.
pub async fn is_posted(
    tx: &mut Tx<'_>,
    (kind, source, source_id, seq): (TransferKind, &str, &str, i64),
) -> Result<bool, StoreError> {
    let sql = "SELECT id FROM transfers WHERE source = $1 AND source_id = $2 AND kind = $3 AND seq = $4";
    Ok(find!(tx, (TransferId,), sql, source, source_id, kind, seq)?.is_some())
}

/// Sums the credits of sources in micros by id, such as the credits for jobs' charges that evidence does not
/// support. A source without credits is absent.
pub async fn list_credited(
    tx: &mut Tx<'_>,
    source: &str,
    source_ids: Vec<String>,
) -> Result<Vec<(String, i64)>, StoreError> {
    macro_rules! select_credits {
        ($condition:literal) => {
            concat!(
                "SELECT source_id, CAST(SUM(amount_micros) AS BIGINT) FROM transfers \
                 WHERE source = $2 AND kind = 'credit' AND source_id ",
                $condition,
                " GROUP BY source_id"
            )
        };
    }
    list_in!(
        tx,
        (String, i64),
        select_credits!("IN (SELECT value FROM json_each($1))"),
        select_credits!("= ANY($1)"),
        source_ids,
        source
    )
}

/// Returns the posted and held micros of an organization.
pub async fn balance(tx: &mut Tx<'_>, org: OrgId) -> Result<(i64, i64), StoreError> {
    let sql = "SELECT posted_micros, held_micros, id AS row_id FROM accounts WHERE id = $1";
    Ok(find!(tx, (i64, i64), sql, org_account(org))?.unwrap_or((0, 0)))
}

/// Returns the credit limit of an organization in micros.
pub async fn credit_limit(tx: &mut Tx<'_>, org: OrgId) -> Result<i64, StoreError> {
    let sql = "SELECT credit_limit_micros, id AS row_id FROM accounts WHERE id = $1";
    Ok(find!(tx, (i64,), sql, org_account(org))?.map_or(0, |(n,)| n))
}

/// Lists those of these organizations that have a credit limit.
pub async fn list_with_credit_limit(tx: &mut Tx<'_>, orgs: &[OrgId]) -> Result<Vec<OrgId>, StoreError> {
    macro_rules! select_accounts {
        ($condition:literal) => {
            concat!("SELECT org_id FROM accounts WHERE credit_limit_micros > 0 AND id ", $condition)
        };
    }
    let sqlite = select_accounts!("IN (SELECT value FROM json_each($1))");
    let accounts: Vec<String> = orgs.iter().map(|org| org_account(*org)).collect();
    let rows = list_in!(tx, (OrgId,), sqlite, select_accounts!("= ANY($1)"), accounts)?;
    Ok(rows.into_iter().map(|(org,)| org).collect())
}

/// Returns the available micros of an organization: posted, less held, plus the credit limit.
pub async fn available(tx: &mut Tx<'_>, org: OrgId) -> Result<i64, StoreError> {
    let sql =
        "SELECT posted_micros - held_micros + credit_limit_micros, id AS row_id FROM accounts WHERE id = $1";
    Ok(find!(tx, (i64,), sql, org_account(org))?.map_or(0, |(n,)| n))
}

/// Counts the organizations that had credit and have no available money, and lists the first `limit` of them,
/// the lowest amount first: (organization, name, available micros).
pub async fn list_without_credit(
    tx: &mut Tx<'_>,
    limit: i64,
) -> Result<(i64, Vec<(OrgId, String, i64)>), StoreError> {
    let sql = "SELECT o.id, o.name, a.posted_micros - a.held_micros + a.credit_limit_micros AS available, \
               CAST(COUNT(*) OVER () AS BIGINT) AS total FROM accounts a JOIN orgs o ON o.id = a.org_id \
               WHERE a.posted_micros - a.held_micros + a.credit_limit_micros <= 0 \
               AND EXISTS (SELECT 1 FROM transfers t WHERE t.credit = a.id AND t.kind = 'credit') \
               ORDER BY available, o.id LIMIT $1";
    let rows = list!(tx, (OrgId, String, i64, i64), sql, limit)?;
    let total = rows.first().map_or(0, |(.., total)| *total);
    Ok((total, rows.into_iter().map(|(org, name, available, _)| (org, name, available)).collect()))
}

/// Sets the credit limit.
///
/// # Errors
/// [`StoreError::Refused`] if the organization uses more than this limit.
pub async fn set_credit_limit(tx: &mut Tx<'_>, org: OrgId, micros: i64) -> Result<(), StoreError> {
    let sql = "UPDATE accounts SET credit_limit_micros = $2 WHERE id = $1";
    exec!(tx, sql, org_account(org), micros).map(|_| ())
}

/// A stored transfer, with the fields for a statement of account.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct StoredTransfer {
    pub id: TransferId,
    pub kind: TransferKind,
    pub amount_micros: i64,
    pub source: String,
    pub source_id: String,
    pub memo: String,
    pub at: Timestamp,
    /// The expiry of a grant; absent for credit that does not expire.
    pub expires_at: Option<Timestamp>,
}

/// Lists a page of the transfers of an organization by id.
pub async fn list(
    tx: &mut Tx<'_>,
    org: OrgId,
    options: &ListOptions<TransferId>,
) -> Result<Vec<StoredTransfer>, StoreError> {
    let sql = page_sql!(
        options.sort,
        ["SELECT id, kind, amount_micros, source, source_id, memo, at, \
          (SELECT l.expires_at FROM credit_lots l WHERE l.transfer_id = transfers.id) AS expires_at FROM transfers \
          WHERE (debit = $1 OR credit = $1)"],
        "id",
        "$2",
        "$3"
    );
    list!(tx, StoredTransfer, sql, org_account(org), options.cursor_text(), options.rows())
}

/// Lists the accounts with a balance that differs from the sum of their transfers.
pub async fn mismatches(tx: &mut Tx<'_>) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT a.id FROM accounts a WHERE a.posted_micros <> \
               (SELECT CAST(COALESCE(SUM(CASE WHEN t.credit = a.id THEN t.amount_micros ELSE -t.amount_micros END), 0) AS BIGINT) \
                FROM transfers t WHERE (t.credit = a.id OR t.debit = a.id) AND t.kind IN ('credit', 'debit', 'usage')) \
               OR a.held_micros <> \
               (SELECT CAST(COALESCE(SUM(CASE WHEN t.kind = 'hold' THEN t.amount_micros WHEN t.kind = 'release' OR \
                t.pending_id IS NOT NULL THEN -t.amount_micros ELSE 0 END), 0) AS BIGINT) \
                FROM transfers t WHERE t.credit = a.id OR t.debit = a.id) ORDER BY a.id";
    Ok(list!(tx, (String,), sql)?.into_iter().map(|(account,)| account).collect())
}

/// Lists the differences between the ledger and jobs, reservations, blocks of credit, usage days and expiring
/// credit. It checks jobs and reservations that are open or ended since a time, the stored blocks, and the days and
/// credit of every organization.
pub async fn cross_mismatches(tx: &mut Tx<'_>, since: Timestamp) -> Result<Vec<String>, StoreError> {
    let mut out = Vec::new();
    for (table, source) in [("jobs", "job"), ("reservations", "reservation")] {
        let sql = match table {
            "jobs" => {
                "SELECT j.id FROM jobs j WHERE (j.ended_at IS NULL OR j.ended_at >= $1) AND (j.posted_micros <> \
                 (SELECT CAST(COALESCE(SUM(t.amount_micros), 0) AS BIGINT) FROM transfers t \
                  WHERE t.source = $2 AND t.source_id = j.id AND t.kind = 'usage') OR j.held_micros <> \
                 (SELECT CAST(COALESCE(SUM(CASE WHEN t.kind = 'hold' THEN t.amount_micros ELSE -t.amount_micros END), 0) \
                  AS BIGINT) FROM transfers t WHERE t.source = $2 AND t.source_id = j.id)) ORDER BY j.id LIMIT 100"
            }
            _ => {
                "SELECT j.id FROM reservations j WHERE (j.ended_at IS NULL OR j.ended_at >= $1) AND (j.posted_micros <> \
                 (SELECT CAST(COALESCE(SUM(t.amount_micros), 0) AS BIGINT) FROM transfers t \
                  WHERE t.source = $2 AND t.source_id = j.id AND t.kind = 'usage') OR j.held_micros <> \
                 (SELECT CAST(COALESCE(SUM(CASE WHEN t.kind = 'hold' THEN t.amount_micros WHEN t.kind = 'credit' THEN 0 \
                  ELSE -t.amount_micros END), 0) AS BIGINT) FROM transfers t WHERE t.source = $2 AND t.source_id = j.id)) \
                 ORDER BY j.id LIMIT 100"
            }
        };
        let rows = list!(tx, (String,), sql, since, source)?;
        out.extend(rows.into_iter().map(|(id,)| format!("{id} and its transfers differ")));
    }
    let sql = "SELECT b.hold_id FROM credit_blocks b WHERE b.posted_micros <> \
               (SELECT CAST(COALESCE(SUM(t.amount_micros), 0) AS BIGINT) FROM transfers t \
                WHERE t.source = $1 AND t.source_id = b.hold_id AND t.kind = 'usage') OR b.held_micros <> \
               (SELECT CAST(COALESCE(SUM(CASE WHEN t.kind = 'hold' THEN t.amount_micros ELSE -t.amount_micros END), 0) \
                AS BIGINT) FROM transfers t WHERE t.source = $1 AND t.source_id = b.hold_id) ORDER BY b.hold_id LIMIT 100";
    let rows = list!(tx, (String,), sql, CREDIT_BLOCK)?;
    out.extend(rows.into_iter().map(|(id,)| format!("the block of credit {id} and its transfers differ")));
    let sql = "SELECT a.org_id FROM accounts a WHERE a.org_id IS NOT NULL AND \
               (SELECT CAST(COALESCE(SUM(u.cost_micros), 0) AS BIGINT) FROM usage_days u WHERE u.org_id = a.org_id) <> \
               (SELECT CAST(COALESCE(SUM(t.amount_micros), 0) AS BIGINT) FROM transfers t \
                WHERE t.debit = a.id AND t.kind = 'usage') ORDER BY a.org_id LIMIT 100";
    let rows = list!(tx, (String,), sql)?;
    out.extend(rows.into_iter().map(|(id,)| format!("{id}: the days and the transfers differ")));
    out.extend(lots::mismatches(tx).await?);
    Ok(out)
}

/// Counts the transfers.
pub async fn count(tx: &mut Tx<'_>) -> Result<i64, StoreError> {
    Ok(find!(tx, (i64,), "SELECT CAST(COUNT(*) AS BIGINT) FROM transfers")?.map_or(0, |(n,)| n))
}
