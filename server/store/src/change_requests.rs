//! Change requests of operators, and the rule for a second operator.

use berth_types::change_requests::{ChangeAction, ChangePolicy, ChangeRequest, ChangeState};
use berth_types::ids::{ChangeRequestId, JobId, OrgId, UserId};
use berth_types::lists::ListOptions;
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

/// The setting with the rule as JSON.
const POLICY: &str = "change_policy";
/// Seconds for which an approved access to a job is open.
const ACCESS_S: i64 = 3_600;

/// The rule for a second operator; off before its first change.
pub async fn policy(tx: &mut Tx<'_>) -> Result<ChangePolicy, StoreError> {
    let text = super::accounts::find_setting(tx, POLICY).await?;
    text.map_or(Ok(ChangePolicy::default()), |text| {
        serde_json::from_str(&text).map_err(|error| StoreError::corrupt("settings", POLICY, "value", error))
    })
}

pub async fn set_policy(tx: &mut Tx<'_>, policy: ChangePolicy) -> Result<(), StoreError> {
    let text = serde_json::to_string(&policy).map_err(|error| StoreError::Corrupt(error.to_string()))?;
    super::accounts::put_setting(tx, POLICY, &text).await
}

/// A new change request, or a stored one with the body of its act.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredChange {
    pub id: ChangeRequestId,
    pub action: ChangeAction,
    pub org: Option<OrgId>,
    pub target: String,
    pub amount_micros: Option<i64>,
    pub reason: String,
    pub detail: String,
    /// The body of the act as JSON.
    pub input: String,
    pub requested_by: UserId,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
}

/// The change requests that an operator may read: those with one of the actions, and the own ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readable {
    pub actions: Vec<ChangeAction>,
    pub user: UserId,
}

impl Readable {
    pub fn includes(&self, request: &ChangeRequest) -> bool {
        request.requested_by == self.user || self.actions.contains(&request.action)
    }

    fn names(&self) -> Vec<String> {
        self.actions.iter().map(|action| action.name().to_owned()).collect()
    }
}

#[derive(sqlx::FromRow)]
struct ChangeRow {
    id: ChangeRequestId,
    action: ChangeAction,
    state: ChangeState,
    org_id: Option<OrgId>,
    org_name: Option<String>,
    target: String,
    amount_micros: Option<i64>,
    reason: String,
    detail: String,
    requested_by: UserId,
    requested_by_name: String,
    created_at: Timestamp,
    expires_at: Timestamp,
    decided_by: Option<UserId>,
    decided_by_name: Option<String>,
    decided_at: Option<Timestamp>,
    decision_reason: String,
}

impl ChangeRow {
    /// The change request at `now`.
    fn request(self, now: Timestamp) -> ChangeRequest {
        let is_over = self.state == ChangeState::Pending && self.expires_at <= now;
        let opens_job = self.action == ChangeAction::AccessJob && self.state == ChangeState::Approved;
        ChangeRequest {
            id: self.id,
            action: self.action,
            state: if is_over { ChangeState::Expired } else { self.state },
            organization: self.org_id,
            organization_name: self.org_name,
            target: self.target,
            amount_micros: self.amount_micros,
            reason: self.reason,
            detail: self.detail,
            requested_by: self.requested_by,
            requested_by_name: self.requested_by_name,
            created_at: self.created_at,
            expires_at: self.expires_at,
            decided_by: self.decided_by,
            decided_by_name: self.decided_by_name,
            decided_at: self.decided_at,
            decision_reason: self.decision_reason,
            access_until: self.decided_at.filter(|_| opens_job).map(|at| at.plus_seconds(ACCESS_S)),
        }
    }
}

macro_rules! select_changes {
    ($($rest:literal),+) => {
        concat!(
            "SELECT c.id, c.action, c.state, c.org_id, o.name AS org_name, c.target, c.amount_micros, c.reason, \
             c.detail, c.requested_by, r.name AS requested_by_name, c.created_at, c.expires_at, c.decided_by, \
             d.name AS decided_by_name, c.decided_at, c.decision_reason FROM change_requests c \
             JOIN users r ON r.id = c.requested_by LEFT JOIN users d ON d.id = c.decided_by \
             LEFT JOIN orgs o ON o.id = c.org_id ",
            $($rest),+
        )
    };
}

/// Adds a pending change request.
pub async fn insert(tx: &mut Tx<'_>, new: &StoredChange) -> Result<(), StoreError> {
    let sql = "INSERT INTO change_requests (id, action, state, org_id, target, amount_micros, reason, detail, input, \
               requested_by, created_at, expires_at, decision_reason, mail_due) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, '', TRUE)";
    exec!(
        tx,
        sql,
        new.id,
        new.action,
        ChangeState::Pending,
        new.org,
        &new.target,
        new.amount_micros,
        &new.reason,
        &new.detail,
        &new.input,
        new.requested_by,
        new.created_at,
        new.expires_at
    )
    .map(|_| ())
}

/// Finds a change request as it is at `now`.
pub async fn find(
    tx: &mut Tx<'_>,
    id: ChangeRequestId,
    now: Timestamp,
) -> Result<Option<ChangeRequest>, StoreError> {
    Ok(find!(tx, ChangeRow, select_changes!("WHERE c.id = $1"), id)?.map(|row| row.request(now)))
}

/// Finds the body of the act as JSON.
pub async fn find_input(tx: &mut Tx<'_>, id: ChangeRequestId) -> Result<Option<String>, StoreError> {
    let sql = "SELECT input, id AS row_id FROM change_requests WHERE id = $1";
    Ok(find!(tx, (String,), sql, id)?.map(|(input,)| input))
}

/// Finds a pending request of the same operator for the same act.
pub async fn find_same(tx: &mut Tx<'_>, new: &StoredChange) -> Result<Option<ChangeRequest>, StoreError> {
    let sql = select_changes!(
        "WHERE c.state = 'pending' AND c.expires_at > $1 AND c.requested_by = $2 AND c.action = $3 AND c.target = $4 \
         AND c.input = $5 ORDER BY c.id LIMIT 1"
    );
    let row =
        find!(tx, ChangeRow, sql, new.created_at, new.requested_by, new.action, &new.target, &new.input)?;
    Ok(row.map(|row| row.request(new.created_at)))
}

/// Counts the readable requests that wait at `now`.
pub async fn count_readable_pending(
    tx: &mut Tx<'_>,
    readable: &Readable,
    now: Timestamp,
) -> Result<i64, StoreError> {
    macro_rules! count {
        ($actions:literal) => {
            concat!(
                "SELECT CAST(COUNT(*) AS BIGINT) FROM change_requests WHERE state = 'pending' AND expires_at > $3 \
                 AND (requested_by = $2 OR action ",
                $actions,
                ")"
            )
        };
    }
    let sqlite = count!("IN (SELECT value FROM json_each($1))");
    let postgres = count!("= ANY($1)");
    let rows = list_in!(tx, (i64,), sqlite, postgres, readable.names(), readable.user, now)?;
    Ok(rows.first().map_or(0, |(n,)| *n))
}

/// Counts the requests that wait at `now`: all of them, and those of an operator.
pub async fn count_pending(
    tx: &mut Tx<'_>,
    requested_by: UserId,
    now: Timestamp,
) -> Result<(i64, i64), StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT), \
               CAST(COALESCE(SUM(CASE WHEN requested_by = $2 THEN 1 ELSE 0 END), 0) AS BIGINT) \
               FROM change_requests WHERE state = 'pending' AND expires_at > $1";
    Ok(find!(tx, (i64, i64), sql, now, requested_by)?.unwrap_or_default())
}

/// Lists a page of the readable change requests by id, that is by their creation; with `pending` those that wait at
/// `now` only.
pub async fn list(
    tx: &mut Tx<'_>,
    readable: &Readable,
    pending: bool,
    options: &ListOptions<ChangeRequestId>,
    now: Timestamp,
) -> Result<Vec<ChangeRequest>, StoreError> {
    macro_rules! select_readable {
        ($actions:literal) => {
            select_changes!(
                "WHERE ($3 = 0 OR (c.state = 'pending' AND c.expires_at > $4)) AND (c.requested_by = $2 OR c.action ",
                $actions,
                ")"
            )
        };
    }
    let sqlite = page_sql!(
        options.sort,
        [select_readable!("IN (SELECT value FROM json_each($1))")],
        "c.id",
        "$5",
        "$6"
    );
    let postgres = page_sql!(options.sort, [select_readable!("= ANY($1)")], "c.id", "$5", "$6");
    let pending = i64::from(pending);
    let rows = list_in!(
        tx,
        ChangeRow,
        sqlite,
        postgres,
        readable.names(),
        readable.user,
        pending,
        now,
        options.cursor_text(),
        options.rows()
    )?;
    Ok(rows.into_iter().map(|row| row.request(now)).collect())
}

/// Decides a pending request that has not expired. Returns true if it was one. The requester gets a mail about the
/// decision of another operator.
pub async fn decide(
    tx: &mut Tx<'_>,
    id: ChangeRequestId,
    state: ChangeState,
    (by, reason): (UserId, &str),
    now: Timestamp,
) -> Result<bool, StoreError> {
    let sql = "UPDATE change_requests SET state = $2, decided_by = $3, decided_at = $4, decision_reason = $5, \
               mail_due = $6 WHERE id = $1 AND state = 'pending' AND expires_at > $4";
    let mailed = state != ChangeState::Withdrawn;
    Ok(exec!(tx, sql, id, state, by, now, reason, mailed)? == 1)
}

/// Lists change requests whose mail is due at `now`, by requester and creation. New requests of an operator wait while
/// the last mail about others is from after `since`.
pub async fn list_mail_due(
    tx: &mut Tx<'_>,
    since: Timestamp,
    now: Timestamp,
) -> Result<Vec<ChangeRequest>, StoreError> {
    let sql = select_changes!(
        "WHERE c.mail_due AND (c.state IN ('approved', 'rejected') OR (c.state = 'pending' AND c.expires_at > $1 \
         AND NOT EXISTS (SELECT 1 FROM change_requests m WHERE m.requested_by = c.requested_by \
         AND m.mailed_at > $2))) ORDER BY c.requested_by, c.id LIMIT 100"
    );
    let rows = list!(tx, ChangeRow, sql, now, since)?;
    Ok(rows.into_iter().map(|row| row.request(now)).collect())
}

/// Records the mail about the present state of a request.
pub async fn mark_mailed(tx: &mut Tx<'_>, id: ChangeRequestId, now: Timestamp) -> Result<(), StoreError> {
    let sql = "UPDATE change_requests SET mail_due = FALSE, \
               mailed_at = CASE WHEN state = 'pending' THEN $2 ELSE mailed_at END WHERE id = $1";
    exec!(tx, sql, id, now).map(|_| ())
}

/// Finds the end of the longest open access of an operator to a job.
pub async fn find_access(
    tx: &mut Tx<'_>,
    user: UserId,
    job: JobId,
    now: Timestamp,
) -> Result<Option<Timestamp>, StoreError> {
    let sql = "SELECT decided_at, id AS row_id FROM change_requests WHERE requested_by = $1 AND target = $2 \
               AND action = 'access_job' AND state = 'approved' AND decided_at > $3 ORDER BY decided_at DESC LIMIT 1";
    let since = now.plus_seconds(-ACCESS_S);
    let found = find!(tx, (Timestamp,), sql, user, job.to_string(), since)?;
    Ok(found.map(|(at,)| at.plus_seconds(ACCESS_S)))
}
