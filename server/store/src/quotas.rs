//! Limits of organizations, monthly use, quota requests and audit events.

use berth_types::ids::{AuditEventId, OrgId, QuotaRequestId, RequestId, TokenId, UserId};
use berth_types::lists::ListOptions;
use berth_types::quotas::{
    AUDIT_ACTIONS, AuditContext, AuditEvent, AuditFilter, Limits, QuotaRequest, QuotaRequestState,
};
use berth_types::time::Timestamp;

use super::types::JsonColumn;
use super::{StoreError, Tx};

/// The stored form of an organization's id; empty for `None`.
fn key(org: Option<OrgId>) -> String {
    org.map_or_else(String::new, |org| org.to_string())
}

/// Finds the limits of an organization, or (`None`) the limits of all organizations without their own.
pub async fn find(tx: &mut Tx<'_>, org: Option<OrgId>) -> Result<Option<Limits>, StoreError> {
    let sql = "SELECT limits, org_id AS row_id FROM quotas WHERE org_id = $1";
    Ok(find!(tx, (JsonColumn<Limits>,), sql, key(org))?.map(|(limits,)| limits.0))
}

/// Lists every organization, with its own limits if it has any.
pub async fn list(tx: &mut Tx<'_>) -> Result<Vec<(OrgId, Option<Limits>)>, StoreError> {
    let sql = "SELECT o.id, q.limits FROM orgs o LEFT JOIN quotas q ON q.org_id = o.id ORDER BY o.id";
    let rows = list!(tx, (OrgId, Option<JsonColumn<Limits>>), sql)?;
    Ok(rows.into_iter().map(|(org, limits)| (org, limits.map(|limits| limits.0))).collect())
}

pub async fn put(tx: &mut Tx<'_>, org: Option<OrgId>, limits: &Limits) -> Result<(), StoreError> {
    let sql =
        "INSERT INTO quotas (org_id, limits) VALUES ($1, $2) ON CONFLICT (org_id) DO UPDATE SET limits = $2";
    exec!(tx, sql, key(org), JsonColumn(limits)).map(|_| ())
}

pub async fn remove(tx: &mut Tx<'_>, org: OrgId) -> Result<(), StoreError> {
    exec!(tx, "DELETE FROM quotas WHERE org_id = $1", org).map(|_| ())
}

/// Adds thousandths of whole boards × seconds to a month; the value may be negative.
pub async fn count_month(
    tx: &mut Tx<'_>,
    org: OrgId,
    month: &str,
    board_milli_s: i64,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO usage_months (org_id, month, board_milli_s) VALUES ($1, $2, $3) \
               ON CONFLICT (org_id, month) DO UPDATE SET board_milli_s = usage_months.board_milli_s + $3";
    exec!(tx, sql, org, month, board_milli_s).map(|_| ())
}

/// Returns the use of a month in thousandths of whole boards × seconds.
pub async fn month_use(tx: &mut Tx<'_>, org: OrgId, month: &str) -> Result<i64, StoreError> {
    let sql = "SELECT board_milli_s, org_id AS row_id FROM usage_months WHERE org_id = $1 AND month = $2";
    Ok(find!(tx, (i64,), sql, org, month)?.map_or(0, |(n,)| n))
}

#[derive(sqlx::FromRow)]
struct RequestRow {
    id: QuotaRequestId,
    org_id: OrgId,
    org_name: String,
    limits: JsonColumn<Limits>,
    credit_micros: Option<i64>,
    reason: String,
    state: QuotaRequestState,
    created_at: Timestamp,
    created_by: String,
    decided_at: Option<Timestamp>,
    granted_limits: Option<JsonColumn<Limits>>,
    granted_micros: Option<i64>,
    note: String,
}

impl From<RequestRow> for QuotaRequest {
    fn from(row: RequestRow) -> Self {
        Self {
            id: row.id,
            org: row.org_id,
            org_name: row.org_name,
            limits: row.limits.0,
            credit_micros: row.credit_micros,
            reason: row.reason,
            state: row.state,
            created_at: row.created_at,
            created_by: row.created_by,
            decided_at: row.decided_at,
            granted_limits: row.granted_limits.map(|limits| limits.0),
            granted_micros: row.granted_micros,
            note: row.note,
        }
    }
}

macro_rules! select_requests {
    ($rest:literal) => {
        concat!(
            "SELECT r.id, r.org_id, o.name AS org_name, r.limits, r.credit_micros, r.reason, r.state, r.created_at, \
             r.created_by, r.decided_at, r.granted_limits, r.granted_micros, r.note FROM quota_requests r \
             JOIN orgs o ON o.id = r.org_id ",
            $rest
        )
    };
}

/// Adds a request of a user.
pub async fn insert_request(tx: &mut Tx<'_>, request: &QuotaRequest, user: UserId) -> Result<(), StoreError> {
    let sql = "INSERT INTO quota_requests (id, org_id, limits, reason, state, created_at, created_by, note, credit_micros, \
               created_by_id) VALUES ($1, $2, $3, $4, $5, $6, $7, '', $8, $9)";
    exec!(
        tx,
        sql,
        request.id,
        request.org,
        JsonColumn(&request.limits),
        &request.reason,
        request.state,
        request.created_at,
        &request.created_by,
        request.credit_micros,
        user
    )
    .map(|_| ())
}

/// Finds the address for the mail about the decision on a request: the verified one of the user who made it, if the user
/// is a member with an enabled account.
pub async fn find_requester_address(
    tx: &mut Tx<'_>,
    id: QuotaRequestId,
) -> Result<Option<String>, StoreError> {
    let sql = "SELECT u.email, r.id AS row_id FROM quota_requests r \
               JOIN members m ON m.org_id = r.org_id AND m.user_id = r.created_by_id \
               JOIN users u ON u.id = m.user_id \
               WHERE r.id = $1 AND u.email_verified_at IS NOT NULL AND u.disabled_at IS NULL";
    Ok(find!(tx, (String,), sql, id)?.map(|(email,)| email))
}

/// Counts the pending requests of an organization.
pub async fn count_org_pending(tx: &mut Tx<'_>, org: OrgId) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM quota_requests WHERE org_id = $1 AND state = 'pending'";
    Ok(find!(tx, (i64,), sql, org)?.map_or(0, |(n,)| n))
}

pub async fn find_request(tx: &mut Tx<'_>, id: QuotaRequestId) -> Result<Option<QuotaRequest>, StoreError> {
    Ok(find!(tx, RequestRow, select_requests!("WHERE r.id = $1"), id)?.map(QuotaRequest::from))
}

/// Lists a page of the requests of an organization (`None`: of all) by id, in `state` (`None`: in any).
pub async fn list_requests(
    tx: &mut Tx<'_>,
    org: Option<OrgId>,
    state: Option<QuotaRequestState>,
    options: &ListOptions<QuotaRequestId>,
) -> Result<Vec<QuotaRequest>, StoreError> {
    let sql = org_page_sql!(
        org,
        options.sort,
        [select_requests!("")],
        "r.org_id",
        " AND ($2 = '' OR r.state = $2)",
        "r.id",
        "$3",
        "$4"
    );
    let state = state.map_or("", QuotaRequestState::name);
    let rows = list!(tx, RequestRow, sql, key(org), state, options.cursor_text(), options.rows())?;
    Ok(rows.into_iter().map(QuotaRequest::from).collect())
}

/// Counts the pending requests of all organizations.
pub async fn count_pending(tx: &mut Tx<'_>) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM quota_requests WHERE state = 'pending'";
    Ok(find!(tx, (i64,), sql)?.map_or(0, |(n,)| n))
}

/// Lists the oldest `limit` pending requests of all organizations.
pub async fn list_pending(tx: &mut Tx<'_>, limit: i64) -> Result<Vec<QuotaRequest>, StoreError> {
    let sql = select_requests!("WHERE r.state = 'pending' ORDER BY r.id LIMIT $1");
    let rows = list!(tx, RequestRow, sql, limit)?;
    Ok(rows.into_iter().map(QuotaRequest::from).collect())
}

/// Decides a pending request, with the granted limits and credit. Returns true if it was pending.
pub async fn decide_request(
    tx: &mut Tx<'_>,
    id: QuotaRequestId,
    state: QuotaRequestState,
    note: &str,
    (limits, micros): (Option<&Limits>, Option<i64>),
    now: Timestamp,
) -> Result<bool, StoreError> {
    let sql = "UPDATE quota_requests SET state = $2, note = $3, decided_at = $4, granted_limits = $5, \
               granted_micros = $6 WHERE id = $1 AND state = 'pending'";
    Ok(exec!(tx, sql, id, state, note, now, limits.map(JsonColumn), micros)? == 1)
}

/// Records an audit event of an organization, or (`None`) of the operators, at the end of the transaction.
pub async fn insert_audit(tx: &mut Tx<'_>, org: Option<OrgId>, event: &AuditEvent) -> Result<(), StoreError> {
    // The pages have a text for each listed action, so the tests meet no other one.
    if cfg!(debug_assertions) && !AUDIT_ACTIONS.contains(&event.action.as_str()) {
        return Err(StoreError::Corrupt(format!("{} is not in AUDIT_ACTIONS", event.action)));
    }
    let mut event = event.clone();
    event.context.org = org;
    tx.add_audit_event(event);
    Ok(())
}

#[derive(sqlx::FromRow)]
struct AuditRow {
    id: AuditEventId,
    /// Empty for the operators.
    org_id: String,
    at: Timestamp,
    actor: String,
    action: String,
    subject: String,
    detail: String,
    actor_id: Option<UserId>,
    token_id: Option<TokenId>,
    session: Option<String>,
    address: Option<String>,
    request_id: Option<RequestId>,
    before_json: Option<String>,
    after_json: Option<String>,
    seq: Option<i64>,
    hash: Option<String>,
}

impl From<AuditRow> for AuditEvent {
    fn from(row: AuditRow) -> Self {
        Self {
            id: row.id,
            at: row.at,
            actor: row.actor,
            action: row.action,
            subject: row.subject,
            detail: row.detail,
            context: AuditContext {
                org: row.org_id.parse().ok(),
                actor_id: row.actor_id,
                token_id: row.token_id,
                session: row.session,
                address: row.address,
                request_id: row.request_id,
                before: row.before_json,
                after: row.after_json,
                seq: row.seq,
                hash: row.hash,
            },
        }
    }
}

/// The columns of an audit event.
macro_rules! select_audit {
    () => {
        "SELECT id, org_id, at, actor, action, subject, detail, actor_id, token_id, session, address, request_id, \
         before_json, after_json, seq, hash FROM audit_events "
    };
}

/// The conditions of a filter of audit events besides the organization and the subject.
macro_rules! audit_conditions {
    () => {
        " AND ($3 = '' OR action = $3) AND ($4 = '' OR actor = $4 OR actor_id = $4) AND at >= $5 AND at < $6"
    };
}

/// Lists a page of the audit events of an organization (`None`: of all) by id. Each case has its own text, because
/// `$1 = '' OR …` uses no index.
pub async fn list_audit(
    tx: &mut Tx<'_>,
    org: Option<OrgId>,
    filter: &AuditFilter,
    options: &ListOptions<AuditEventId>,
) -> Result<Vec<AuditEvent>, StoreError> {
    let sql = match (org, filter.subject.is_empty()) {
        (_, false) => page_sql!(
            options.sort,
            [select_audit!(), "WHERE subject = $2 AND ($1 = '' OR org_id = $1)", audit_conditions!()],
            "id",
            "$7",
            "$8"
        ),
        (Some(_), true) => page_sql!(
            options.sort,
            [select_audit!(), "WHERE org_id = $1 AND $2 = ''", audit_conditions!()],
            "id",
            "$7",
            "$8"
        ),
        (None, true) => page_sql!(
            options.sort,
            [select_audit!(), "WHERE $1 = '' AND $2 = ''", audit_conditions!()],
            "id",
            "$7",
            "$8"
        ),
    };
    let rows = list!(
        tx,
        AuditRow,
        sql,
        key(org),
        &filter.subject,
        &filter.action,
        &filter.actor,
        filter.since.map_or(i64::MIN, Timestamp::micros),
        filter.until.map_or(i64::MAX, Timestamp::micros),
        options.cursor_text(),
        options.rows()
    )?;
    Ok(rows.into_iter().map(AuditEvent::from).collect())
}
