//! Operators and their roles.

use berth_types::ids::{TokenId, UserId};
use berth_types::lists::ListOptions;
use berth_types::operators::{Operator, OperatorRole};
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

#[derive(sqlx::FromRow)]
struct OperatorRow {
    id: UserId,
    name: String,
    email: String,
    operator_role: OperatorRole,
    factor_at: Option<Timestamp>,
    disabled_at: Option<Timestamp>,
    last_seen_at: Option<Timestamp>,
}

impl From<OperatorRow> for Operator {
    fn from(row: OperatorRow) -> Self {
        Self {
            user: row.id,
            name: row.name,
            email: row.email,
            role: row.operator_role,
            second_factor: row.factor_at.is_some(),
            disabled_at: row.disabled_at,
            last_seen_at: row.last_seen_at,
        }
    }
}

macro_rules! select_operators {
    ($condition:literal) => {
        concat!(
            "SELECT u.id, u.name, u.email, u.operator_role, \
             COALESCE((SELECT f.confirmed_at FROM totp_factors f WHERE f.user_id = u.id), \
             (SELECT MIN(p.created_at) FROM passkeys p WHERE p.user_id = u.id)) AS factor_at, u.disabled_at, \
             (SELECT CAST(MAX(s.last_seen_at) AS BIGINT) FROM sessions s WHERE s.user_id = u.id) AS last_seen_at \
             FROM users u WHERE u.operator_role IS NOT NULL",
            $condition
        )
    };
}

/// Lists a page of the operators by the id of the user, that is by the creation of the account.
pub async fn list(tx: &mut Tx<'_>, options: &ListOptions<UserId>) -> Result<Vec<Operator>, StoreError> {
    let sql = page_sql!(options.sort, [select_operators!("")], "u.id", "$1", "$2");
    let rows = list!(tx, OperatorRow, sql, options.cursor_text(), options.rows())?;
    Ok(rows.into_iter().map(Operator::from).collect())
}

pub async fn find(tx: &mut Tx<'_>, user: UserId) -> Result<Option<Operator>, StoreError> {
    let row = find!(tx, OperatorRow, select_operators!(" AND u.id = $1"), user)?;
    Ok(row.map(Operator::from))
}

/// Finds the role of an operator; `None` for all other users.
pub async fn find_role(tx: &mut Tx<'_>, user: UserId) -> Result<Option<OperatorRole>, StoreError> {
    let sql = "SELECT operator_role, id AS row_id FROM users WHERE id = $1 AND operator_role IS NOT NULL";
    Ok(find!(tx, (OperatorRole,), sql, user)?.map(|(role,)| role))
}

/// Gives a user a role of operators, or (`None`) takes it away.
pub async fn put_role(tx: &mut Tx<'_>, user: UserId, role: Option<OperatorRole>) -> Result<(), StoreError> {
    let sql = "UPDATE users SET operator = $2, operator_role = $3 WHERE id = $1";
    exec!(tx, sql, user, role.is_some(), role).map(|_| ())
}

/// Records the address of a removed operator by its hash.
pub async fn put_former(tx: &mut Tx<'_>, email_hash: &str, now: Timestamp) -> Result<(), StoreError> {
    let sql = "INSERT INTO former_operators (email_hash, removed_at) VALUES ($1, $2) \
               ON CONFLICT (email_hash) DO UPDATE SET removed_at = $2";
    exec!(tx, sql, email_hash, now).map(|_| ())
}

/// Forgets the removal of an operator who is one again.
pub async fn forget_former(tx: &mut Tx<'_>, email_hash: &str) -> Result<(), StoreError> {
    exec!(tx, "DELETE FROM former_operators WHERE email_hash = $1", email_hash).map(|_| ())
}

/// Returns true if the last operator with this address was removed.
pub async fn is_former(tx: &mut Tx<'_>, email_hash: &str) -> Result<bool, StoreError> {
    let sql = "SELECT email_hash FROM former_operators WHERE email_hash = $1";
    Ok(find!(tx, (String,), sql, email_hash)?.is_some())
}

/// The role of an operator with an enabled account.
pub async fn find_enabled_role(tx: &mut Tx<'_>, user: UserId) -> Result<Option<OperatorRole>, StoreError> {
    let sql = "SELECT operator_role, id AS row_id FROM users WHERE id = $1 AND operator_role IS NOT NULL AND NOT service \
               AND disabled_at IS NULL AND deleted_at IS NULL";
    Ok(find!(tx, (OperatorRole,), sql, user)?.map(|(role,)| role))
}

/// Finds the address for mails to an operator: that of an enabled account with a verified address.
pub async fn find_mail_address(tx: &mut Tx<'_>, user: UserId) -> Result<Option<String>, StoreError> {
    let sql = "SELECT email, id AS row_id FROM users WHERE id = $1 AND operator_role IS NOT NULL AND NOT service \
               AND disabled_at IS NULL AND deleted_at IS NULL AND email_verified_at IS NOT NULL";
    Ok(find!(tx, (String,), sql, user)?.map(|(email,)| email))
}

/// Lists the addresses for mails to operators with a role but not to this user, the oldest account first.
pub async fn list_mail_addresses(
    tx: &mut Tx<'_>,
    role: OperatorRole,
    not_to: UserId,
    limit: i64,
) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT email, id AS row_id FROM users WHERE operator_role = $1 AND id <> $2 AND NOT service \
               AND disabled_at IS NULL AND deleted_at IS NULL AND email_verified_at IS NOT NULL ORDER BY id LIMIT $3";
    Ok(list!(tx, (String,), sql, role, not_to, limit)?.into_iter().map(|(email,)| email).collect())
}

/// Counts the owners of the portal with an enabled account.
pub async fn count_owners(tx: &mut Tx<'_>) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM users WHERE operator_role = 'owner' AND NOT service \
               AND disabled_at IS NULL AND deleted_at IS NULL";
    Ok(find!(tx, (i64,), sql)?.map_or(0, |(n,)| n))
}

/// Counts the owners of the portal with an enabled account, without this user.
pub async fn count_other_owners(tx: &mut Tx<'_>, user: UserId) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM users WHERE operator_role = 'owner' AND disabled_at IS NULL \
               AND deleted_at IS NULL AND id <> $1";
    Ok(find!(tx, (i64,), sql, user)?.map_or(0, |(n,)| n))
}

/// Returns true if the account can become an operator: it is enabled, with a verified address and a password.
pub async fn can_become_one(tx: &mut Tx<'_>, user: UserId) -> Result<bool, StoreError> {
    let sql = "SELECT id FROM users WHERE id = $1 AND disabled_at IS NULL AND deleted_at IS NULL AND NOT service \
               AND email_verified_at IS NOT NULL AND password_hash <> ''";
    Ok(find!(tx, (UserId,), sql, user)?.is_some())
}

/// Deletes the operator's tokens of a user, with all tokens that they created. Returns their ids.
pub async fn end_tokens(tx: &mut Tx<'_>, user: UserId) -> Result<Vec<TokenId>, StoreError> {
    let sql = "WITH RECURSIVE created AS (\
                 SELECT id FROM tokens WHERE user_id = $1 AND org_id IS NULL \
                 UNION \
                 SELECT t.id FROM tokens t JOIN created c ON t.parent_id = c.id) \
               DELETE FROM tokens WHERE id IN (SELECT id FROM created) RETURNING id";
    Ok(list!(tx, (TokenId,), sql, user)?.into_iter().map(|(id,)| id).collect())
}
