//! Invoices and credit notes. Triggers of the database refuse a change of their content; only their state
//! changes.

use berth_types::ids::{InvoiceId, OrgId};
use berth_types::invoices::{InvoiceKind, InvoiceState};
use berth_types::ledger::TransferKind;
use berth_types::lists::ListOptions;
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

#[derive(Debug, Clone, sqlx::FromRow)]
pub struct StoredInvoice {
    pub id: InvoiceId,
    pub number: i64,
    pub kind: InvoiceKind,
    pub org_id: OrgId,
    pub month: String,
    pub state: InvoiceState,
    /// JSON.
    pub document: String,
    pub total_micros: i64,
    pub issued_at: Timestamp,
    pub due_at: Option<Timestamp>,
    pub paid_at: Option<Timestamp>,
    pub corrects: Option<InvoiceId>,
}

macro_rules! select_invoices {
    ($rest:literal) => {
        concat!(
            "SELECT id, number, kind, org_id, month, state, document, total_micros, issued_at, due_at, paid_at, corrects \
             FROM invoices ",
            $rest
        )
    };
}

/// Returns the next number. The caller inserts the invoice in the same transaction, so the numbers have no
/// gap.
pub async fn next_number(tx: &mut Tx<'_>) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COALESCE(MAX(number), 0) AS BIGINT) + 1 FROM invoices";
    Ok(find!(tx, (i64,), sql)?.map_or(1, |(n,)| n))
}

pub async fn insert(tx: &mut Tx<'_>, row: &StoredInvoice) -> Result<(), StoreError> {
    let sql = "INSERT INTO invoices (id, number, kind, org_id, month, state, document, total_micros, issued_at, due_at, \
               paid_at, corrects) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
    exec!(
        tx,
        sql,
        row.id,
        row.number,
        row.kind,
        row.org_id,
        &row.month,
        row.state,
        &row.document,
        row.total_micros,
        row.issued_at,
        row.due_at,
        row.paid_at,
        row.corrects
    )
    .map(|_| ())
}

/// Moves an invoice from one state to another. Returns true if it was in the first.
pub async fn set_state(
    tx: &mut Tx<'_>,
    id: InvoiceId,
    (from, to): (InvoiceState, InvoiceState),
    paid_at: Option<Timestamp>,
) -> Result<bool, StoreError> {
    let sql = "UPDATE invoices SET state = $3, paid_at = $4 WHERE id = $1 AND state = $2";
    Ok(exec!(tx, sql, id, from, to, paid_at)? == 1)
}

pub async fn find_any(tx: &mut Tx<'_>, id: InvoiceId) -> Result<Option<StoredInvoice>, StoreError> {
    find!(tx, StoredInvoice, select_invoices!("WHERE id = $1"), id)
}

/// Lists a page of the invoices of an organization (`None`: of all) by number, in `state` (`None`: in any).
pub async fn list(
    tx: &mut Tx<'_>,
    org: Option<OrgId>,
    state: Option<InvoiceState>,
    options: &ListOptions<i64>,
) -> Result<Vec<StoredInvoice>, StoreError> {
    let sql = org_page_sql!(
        org,
        options.sort,
        [select_invoices!("")],
        "org_id",
        " AND ($2 = '' OR state = $2)",
        "number",
        number "$3",
        "$4"
    );
    let org = org.map_or_else(String::new, |org| org.to_string());
    let state = state.map_or("", InvoiceState::name);
    list!(tx, StoredInvoice, sql, org, state, options.cursor.unwrap_or(0), options.rows())
}

/// The condition for transfers that return a charge, in the text of the index `transfers_given_back`.
macro_rules! is_given_back {
    () => {
        "kind = 'credit' AND source IN ('reservation', 'evidence', 'promise')"
    };
}

/// Lists the organizations without an invoice for a month that have charges on its days, or returned charges
/// within its times: (id, name).
pub async fn list_to_bill(
    tx: &mut Tx<'_>,
    month: &str,
    (first, last): (i64, i64),
    (from, until): (Timestamp, Timestamp),
) -> Result<Vec<(OrgId, String)>, StoreError> {
    let sql = concat!(
        "SELECT o.id, o.name FROM orgs o JOIN accounts a ON a.org_id = o.id WHERE \
         (EXISTS (SELECT 1 FROM usage_days u WHERE u.org_id = o.id AND u.day >= $2 AND u.day <= $3 \
         AND u.cost_micros > 0) OR EXISTS (SELECT 1 FROM transfers WHERE credit = a.id AND ",
        is_given_back!(),
        " AND at >= $4 AND at < $5)) AND NOT EXISTS \
         (SELECT 1 FROM invoices i WHERE i.org_id = o.id AND i.month = $1) ORDER BY o.id"
    );
    list!(tx, (OrgId, String), sql, month, first, last, from, until)
}

/// The use of one offering by an organization in one mode at one price with one surcharge.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredLine {
    pub org_id: OrgId,
    /// The slug of the offering.
    pub item: String,
    pub mode: String,
    /// The price of a device without the surcharge; absent for fees, and for use without a recorded price.
    pub unit_nano_per_second: Option<i64>,
    pub surcharge_basis_points: i64,
    pub device_milli_ms: i64,
    pub amount_micros: i64,
}

/// Lists the use of these organizations on some days, by offering, mode, price and surcharge. The prices follow the order
/// of their versions.
pub async fn list_lines(
    tx: &mut Tx<'_>,
    orgs: &[OrgId],
    (from, until): (i64, i64),
) -> Result<Vec<StoredLine>, StoreError> {
    macro_rules! select_lines {
        ($condition:literal) => {
            concat!(
                "SELECT u.org_id, COALESCE(o.slug, u.offering_id) AS item, u.mode, \
                 CASE u.mode WHEN 'reserved' THEN COALESCE(p.reserved_nano_per_second, p.nano_per_second) \
                 WHEN 'preemptible' THEN COALESCE(p.preemptible_nano_per_second, p.nano_per_second) \
                 ELSE p.nano_per_second END AS unit_nano_per_second, u.surcharge_basis_points, \
                 CAST(SUM(u.device_milli_ms) AS BIGINT) AS device_milli_ms, \
                 CAST(SUM(u.cost_micros) AS BIGINT) AS amount_micros \
                 FROM usage_days u LEFT JOIN offerings o ON o.id = u.offering_id \
                 LEFT JOIN prices p ON p.offering_id = u.offering_id AND p.version = u.price_version \
                 WHERE u.org_id ",
                $condition,
                " AND u.day >= $2 AND u.day <= $3 \
                 GROUP BY u.org_id, item, u.mode, unit_nano_per_second, u.surcharge_basis_points \
                 ORDER BY u.org_id, item, u.mode, MIN(u.price_version), u.surcharge_basis_points"
            )
        };
    }
    let sqlite = select_lines!("IN (SELECT value FROM json_each($1))");
    let orgs: Vec<String> = orgs.iter().map(ToString::to_string).collect();
    list_in!(tx, StoredLine, sqlite, select_lines!("= ANY($1)"), orgs, from, until)
}

/// Sums the returned charges of these organizations between two times by source, such as `reservation`:
/// (organization, source, micros).
pub async fn list_given_back(
    tx: &mut Tx<'_>,
    orgs: &[OrgId],
    (from, until): (Timestamp, Timestamp),
) -> Result<Vec<(OrgId, String, i64)>, StoreError> {
    // CROSS JOIN makes SQLite read the transfers by account.
    macro_rules! select_given_back {
        ($condition:literal) => {
            concat!(
                "SELECT a.org_id, source, CAST(SUM(amount_micros) AS BIGINT) \
                 FROM accounts a CROSS JOIN transfers WHERE a.id ",
                $condition,
                " AND credit = a.id AND ",
                is_given_back!(),
                " AND at >= $2 AND at < $3 GROUP BY a.org_id, source"
            )
        };
    }
    let sqlite = select_given_back!("IN (SELECT value FROM json_each($1))");
    let accounts: Vec<String> = orgs.iter().map(|org| super::ledger::org_account(*org)).collect();
    list_in!(tx, (OrgId, String, i64), sqlite, select_given_back!("= ANY($1)"), accounts, from, until)
}

/// The credits or debits of one source in a month, without returned charges.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredEntry {
    pub kind: TransferKind,
    pub source: String,
    pub transfers: i64,
    pub amount_micros: i64,
}

/// Sums the credits and debits of an organization between two times by kind and source. Returned charges are
/// in [`list_given_back`].
pub async fn list_entries(
    tx: &mut Tx<'_>,
    org: OrgId,
    (from, until): (Timestamp, Timestamp),
) -> Result<Vec<StoredEntry>, StoreError> {
    let sql = "SELECT kind, source, CAST(COUNT(*) AS BIGINT) AS transfers, \
               CAST(SUM(amount_micros) AS BIGINT) AS amount_micros FROM transfers \
               WHERE credit = $1 AND kind = 'credit' AND source NOT IN ('reservation', 'evidence', 'promise') \
               AND at >= $2 AND at < $3 GROUP BY kind, source \
               UNION ALL SELECT kind, source, CAST(COUNT(*) AS BIGINT) AS transfers, \
               CAST(SUM(amount_micros) AS BIGINT) AS amount_micros FROM transfers \
               WHERE debit = $1 AND kind = 'debit' AND at >= $2 AND at < $3 GROUP BY kind, source \
               ORDER BY kind, source";
    list!(tx, StoredEntry, sql, super::ledger::org_account(org), from, until)
}
