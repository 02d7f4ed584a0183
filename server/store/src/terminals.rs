//! Sessions of terminals in running jobs.

use berth_types::ids::{JobId, NodeId, OrgId, TerminalId, UserId};
use berth_types::lists::ListOptions;
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredTerminal {
    pub id: TerminalId,
    pub org_id: OrgId,
    pub job_id: JobId,
    pub attempt: i64,
    pub node_rank: i64,
    pub node_id: NodeId,
    pub user_id: UserId,
    pub actor: String,
    pub reason: Option<String>,
    pub opened_at: Timestamp,
    pub attached_at: Option<Timestamp>,
    pub left_at: Option<Timestamp>,
    pub closed_at: Option<Timestamp>,
    pub exit_code: Option<i64>,
    pub cause: Option<String>,
}

macro_rules! select_terminals {
    ($rest:literal) => {
        concat!(
            "SELECT id, org_id, job_id, attempt, node_rank, node_id, user_id, actor, reason, opened_at, attached_at, \
             left_at, closed_at, exit_code, cause FROM terminals ",
            $rest
        )
    };
}

pub async fn insert(tx: &mut Tx<'_>, row: &StoredTerminal) -> Result<(), StoreError> {
    let sql = "INSERT INTO terminals (id, org_id, job_id, attempt, node_rank, node_id, user_id, actor, reason, \
               opened_at, left_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
    exec!(
        tx,
        sql,
        row.id,
        row.org_id,
        row.job_id,
        row.attempt,
        row.node_rank,
        row.node_id,
        row.user_id,
        &row.actor,
        &row.reason,
        row.opened_at,
        row.left_at
    )
    .map(|_| ())
}

/// Finds a terminal of this job.
pub async fn find(
    tx: &mut Tx<'_>,
    org: OrgId,
    job: JobId,
    id: TerminalId,
) -> Result<Option<StoredTerminal>, StoreError> {
    let sql = select_terminals!("WHERE id = $1 AND job_id = $2 AND org_id = $3");
    find!(tx, StoredTerminal, sql, id, job, org)
}

/// Lists a page of the terminals of a job by id.
pub async fn list(
    tx: &mut Tx<'_>,
    org: OrgId,
    job: JobId,
    options: &ListOptions<TerminalId>,
) -> Result<Vec<StoredTerminal>, StoreError> {
    let sql =
        page_sql!(options.sort, [select_terminals!("WHERE job_id = $1 AND org_id = $2")], "id", "$3", "$4");
    list!(tx, StoredTerminal, sql, job, org, options.cursor_text(), options.rows())
}

/// Lists the terminals that are not closed.
pub async fn list_open(tx: &mut Tx<'_>) -> Result<Vec<StoredTerminal>, StoreError> {
    list!(tx, StoredTerminal, select_terminals!("WHERE closed_at IS NULL ORDER BY id"))
}

/// Counts the open terminals of an organization: (of one job, of all jobs).
pub async fn count_open(tx: &mut Tx<'_>, org: OrgId, job: JobId) -> Result<(i64, i64), StoreError> {
    let sql = "SELECT CAST(COALESCE(SUM(CASE WHEN job_id = $2 THEN 1 ELSE 0 END), 0) AS BIGINT), \
               CAST(COUNT(*) AS BIGINT) FROM terminals WHERE org_id = $1 AND closed_at IS NULL";
    Ok(find!(tx, (i64, i64), sql, org, job)?.unwrap_or_default())
}

/// Records that a client is attached. Returns false if the terminal is closed.
pub async fn attach(tx: &mut Tx<'_>, id: TerminalId, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "UPDATE terminals SET attached_at = COALESCE(attached_at, $2), left_at = NULL \
               WHERE id = $1 AND closed_at IS NULL";
    Ok(exec!(tx, sql, id, now)? == 1)
}

/// Records that no client is attached any more. Returns false if the terminal is closed.
pub async fn leave(tx: &mut Tx<'_>, id: TerminalId, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "UPDATE terminals SET left_at = $2 WHERE id = $1 AND closed_at IS NULL";
    Ok(exec!(tx, sql, id, now)? == 1)
}

/// Closes a terminal, unless it is closed. With `left_at`, it closes only if no client attached since then.
pub async fn close(
    tx: &mut Tx<'_>,
    id: TerminalId,
    left_at: Option<Timestamp>,
    exit_code: Option<i32>,
    cause: &str,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let (unconditional, left) = (left_at.is_none(), left_at.unwrap_or_default());
    let sql = "UPDATE terminals SET closed_at = $2, exit_code = $3, cause = $4 \
               WHERE id = $1 AND closed_at IS NULL AND ($5 OR left_at = $6)";
    Ok(exec!(tx, sql, id, now, exit_code.map(i64::from), cause, unconditional, left)? == 1)
}
