//! Budgets and notices.

use berth_types::budgets::AtLimit;
use berth_types::ids::{BudgetId, JobId, NoticeId, OrgId};
use berth_types::lists::ListOptions;
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

#[derive(Debug, Clone, sqlx::FromRow)]
pub struct BudgetRow {
    pub id: BudgetId,
    pub org_id: OrgId,
    pub name: String,
    pub label: String,
    pub value: String,
    pub limit_micros: i64,
    pub at_limit: AtLimit,
    /// The highest reported threshold in percent, of the month in the next field.
    pub told: i64,
    pub told_month: String,
    pub created_by: String,
    pub created_at: Timestamp,
}

macro_rules! select_budgets {
    ($rest:literal) => {
        concat!(
            "SELECT id, org_id, name, label, value, limit_micros, at_limit, told, told_month, created_by, created_at \
             FROM budgets ",
            $rest
        )
    };
}

pub async fn insert(tx: &mut Tx<'_>, row: &BudgetRow) -> Result<(), StoreError> {
    let sql = "INSERT INTO budgets (id, org_id, name, label, value, limit_micros, at_limit, told, told_month, created_by, \
               created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
    exec!(
        tx,
        sql,
        row.id,
        row.org_id,
        &row.name,
        &row.label,
        &row.value,
        row.limit_micros,
        row.at_limit,
        row.told,
        &row.told_month,
        &row.created_by,
        row.created_at
    )
    .map(|_| ())
}

/// Lists the budgets of an organization (`None`: of all).
pub async fn list(tx: &mut Tx<'_>, org: Option<OrgId>) -> Result<Vec<BudgetRow>, StoreError> {
    let org = org.map_or_else(String::new, |org| org.to_string());
    list!(tx, BudgetRow, select_budgets!("WHERE $1 = '' OR org_id = $1 ORDER BY org_id, id"), &org)
}

/// Lists a page of the budgets of an organization by id.
pub async fn list_page(
    tx: &mut Tx<'_>,
    org: OrgId,
    options: &ListOptions<BudgetId>,
) -> Result<Vec<BudgetRow>, StoreError> {
    let sql = page_sql!(options.sort, [select_budgets!("WHERE org_id = $1")], "id", "$2", "$3");
    list!(tx, BudgetRow, sql, org, options.cursor_text(), options.rows())
}

/// Deletes a budget of this organization. Returns true if it existed.
pub async fn delete(tx: &mut Tx<'_>, org: OrgId, id: BudgetId) -> Result<bool, StoreError> {
    let sql = "DELETE FROM budgets WHERE org_id = $1 AND id = $2";
    Ok(exec!(tx, sql, org, id)? == 1)
}

/// Records the report of a threshold. Returns true if it was not recorded before.
pub async fn mark_reported(
    tx: &mut Tx<'_>,
    id: BudgetId,
    percent: i64,
    month: &str,
) -> Result<bool, StoreError> {
    let sql =
        "UPDATE budgets SET told = $2, told_month = $3 WHERE id = $1 AND (told < $2 OR told_month <> $3)";
    Ok(exec!(tx, sql, id, percent, month)? == 1)
}

/// Sums the charges of an organization from one day to another, both counted, in micros: all charges, or
/// (`label` not empty) the charges of one label.
pub async fn spent(
    tx: &mut Tx<'_>,
    org: OrgId,
    (label, value): (&str, &str),
    (from, until): (i64, i64),
) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COALESCE(CASE WHEN $2 = '' THEN \
               (SELECT SUM(cost_micros) FROM usage_days WHERE org_id = $1 AND day >= $4 AND day <= $5) ELSE \
               (SELECT SUM(cost_micros) FROM usage_label_days WHERE org_id = $1 AND label = $2 AND value = $3 \
                AND day >= $4 AND day <= $5) END, 0) AS BIGINT)";
    Ok(find!(tx, (i64,), sql, org, label, value, from, until)?.map_or(0, |(n,)| n))
}

/// Lists the jobs of an organization that have not ended: (id, labels as JSON, held micros, uncharged
/// micros).
pub async fn open_jobs(tx: &mut Tx<'_>, org: OrgId) -> Result<Vec<(JobId, String, i64, i64)>, StoreError> {
    let sql = "SELECT id, labels, held_micros, cost_micros - posted_micros FROM jobs \
               WHERE org_id = $1 AND ended_at IS NULL ORDER BY id";
    list!(tx, (JobId, String, i64, i64), sql, org)
}

/// Sums the holds of an organization's reservations that begin in a half-open interval, in micros.
pub async fn reserved(
    tx: &mut Tx<'_>,
    org: OrgId,
    (from, until): (Timestamp, Timestamp),
) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COALESCE(SUM(held_micros), 0) AS BIGINT) FROM reservations \
               WHERE org_id = $1 AND state IN ('pending', 'scheduled', 'active') \
               AND starts_at >= $2 AND starts_at < $3";
    Ok(find!(tx, (i64,), sql, org, from, until)?.map_or(0, |(n,)| n))
}

/// An event for webhooks and mail.
#[derive(Debug, Clone)]
pub struct Notice {
    pub id: NoticeId,
    pub org: OrgId,
    /// `budget.passed`, `credit.expiring`, `reservation.ending`, `invoice.issued`, …
    pub kind: String,
    pub subject: String,
    pub detail: String,
    /// JSON.
    pub data: String,
    pub at: Timestamp,
}

pub async fn insert_notice(tx: &mut Tx<'_>, notice: &Notice) -> Result<(), StoreError> {
    let sql = "INSERT INTO notices (id, org_id, kind, subject, detail, data, at, spread) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
    exec!(
        tx,
        sql,
        notice.id,
        notice.org,
        &notice.kind,
        &notice.subject,
        &notice.detail,
        &notice.data,
        notice.at,
        false
    )
    .map(|_| ())
}
