//! Budgets and notices.

use std::collections::BTreeMap;

use berth_types::budgets::AtLimit;
use berth_types::ids::{BudgetId, JobId, NoticeId, OrgId};
use berth_types::lists::ListOptions;
use berth_types::time::Timestamp;

use super::types::JsonColumn;
use super::{StoreError, Tx};

#[derive(Debug, Clone, sqlx::FromRow)]
pub struct StoredBudget {
    pub id: BudgetId,
    pub org_id: OrgId,
    pub name: String,
    pub label: String,
    pub value: String,
    pub limit_micros: i64,
    pub at_limit: AtLimit,
    /// The highest threshold with a notice, in percent, of the month in the next field.
    pub notified_percent: i64,
    pub notified_month: String,
    pub created_by: String,
    pub created_at: Timestamp,
}

macro_rules! select_budgets {
    ($rest:literal) => {
        concat!(
            "SELECT id, org_id, name, label, value, limit_micros, at_limit, notified_percent, notified_month, created_by, \
             created_at FROM budgets ",
            $rest
        )
    };
}

pub async fn insert(tx: &mut Tx<'_>, row: &StoredBudget) -> Result<(), StoreError> {
    let sql = "INSERT INTO budgets (id, org_id, name, label, value, limit_micros, at_limit, notified_percent, notified_month, \
               created_by, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
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
        row.notified_percent,
        &row.notified_month,
        &row.created_by,
        row.created_at
    )
    .map(|_| ())
}

/// Lists the budgets of an organization (`None`: of all).
pub async fn list(tx: &mut Tx<'_>, org: Option<OrgId>) -> Result<Vec<StoredBudget>, StoreError> {
    match org {
        Some(org) => list!(tx, StoredBudget, select_budgets!("WHERE org_id = $1 ORDER BY id"), org),
        None => list!(tx, StoredBudget, select_budgets!("ORDER BY org_id, id")),
    }
}

/// Lists a page of the budgets of an organization by id.
pub async fn list_page(
    tx: &mut Tx<'_>,
    org: OrgId,
    options: &ListOptions<BudgetId>,
) -> Result<Vec<StoredBudget>, StoreError> {
    let sql = page_sql!(options.sort, [select_budgets!("WHERE org_id = $1")], "id", "$2", "$3");
    list!(tx, StoredBudget, sql, org, options.cursor_text(), options.rows())
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
    let sql = "UPDATE budgets SET notified_percent = $2, notified_month = $3 \
               WHERE id = $1 AND (notified_percent < $2 OR notified_month <> $3)";
    Ok(exec!(tx, sql, id, percent, month)? == 1)
}

/// Sums the charges in the scope of each of these budgets from one day to another, both counted, in micros.
/// All charges of the organization are in the scope of a budget without a label.
pub async fn list_spent(
    tx: &mut Tx<'_>,
    budgets: &[BudgetId],
    (from, until): (i64, i64),
) -> Result<Vec<(BudgetId, i64)>, StoreError> {
    macro_rules! select_spent {
        ($condition:literal) => {
            concat!(
                "SELECT b.id, CAST(COALESCE(CASE WHEN b.label = '' THEN \
                 (SELECT SUM(u.cost_micros) FROM usage_days u WHERE u.org_id = b.org_id \
                  AND u.day >= $2 AND u.day <= $3) ELSE \
                 (SELECT SUM(u.cost_micros) FROM usage_label_days u WHERE u.org_id = b.org_id AND u.label = b.label \
                  AND u.value = b.value AND u.day >= $2 AND u.day <= $3) END, 0) AS BIGINT) FROM budgets b WHERE b.id ",
                $condition
            )
        };
    }
    let sqlite = select_spent!("IN (SELECT value FROM json_each($1))");
    let budgets: Vec<String> = budgets.iter().map(ToString::to_string).collect();
    list_in!(tx, (BudgetId, i64), sqlite, select_spent!("= ANY($1)"), budgets, from, until)
}

/// A job that has not ended, with its part of the budgets.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct OpenJob {
    pub id: JobId,
    pub labels: JsonColumn<BTreeMap<String, String>>,
    pub held_micros: i64,
    /// The cost of its metered use without a charge yet.
    pub uncharged_micros: i64,
}

/// Lists the jobs of an organization that have not ended.
pub async fn open_jobs(tx: &mut Tx<'_>, org: OrgId) -> Result<Vec<OpenJob>, StoreError> {
    let sql = "SELECT id, labels, held_micros, cost_micros - posted_micros AS uncharged_micros FROM jobs \
               WHERE org_id = $1 AND ended_at IS NULL ORDER BY id";
    list!(tx, OpenJob, sql, org)
}

/// Sums the holds of an organization's reservations that begin in a half-open interval, and of the blocks of credit
/// that gateways got in it, in micros.
pub async fn reserved(
    tx: &mut Tx<'_>,
    org: OrgId,
    (from, until): (Timestamp, Timestamp),
) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COALESCE(SUM(h.held_micros), 0) AS BIGINT) FROM (SELECT held_micros FROM reservations \
               WHERE org_id = $1 AND state IN ('pending', 'scheduled', 'active') AND starts_at >= $2 AND starts_at < $3 \
               UNION ALL SELECT held_micros FROM credit_blocks \
               WHERE org_id = $1 AND NOT closed AND lent_at >= $2 AND lent_at < $3) AS h";
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
    let sql = "INSERT INTO notices (id, org_id, kind, subject, detail, data, at, dispatched) \
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
