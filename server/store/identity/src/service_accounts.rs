//! Service accounts of organizations. Each one is a user without a password, and no member.

use berth_types::accounts::Role;
use berth_types::ids::{OrgId, TokenId, UserId};
use berth_types::lists::ListOptions;
use berth_types::service_accounts::ServiceAccount;
use berth_types::time::Timestamp;

use super::accounts::SERVICE_ADDRESS_HEAD;
use super::{StoreError, Tx};

#[derive(sqlx::FromRow)]
struct ServiceAccountRow {
    user_id: UserId,
    name: String,
    role: Role,
    created_by: String,
    created_at: Timestamp,
    disabled_at: Option<Timestamp>,
    tokens: i64,
}

impl From<ServiceAccountRow> for ServiceAccount {
    fn from(row: ServiceAccountRow) -> Self {
        Self {
            id: row.user_id,
            name: row.name,
            role: row.role,
            created_by: row.created_by,
            created_at: row.created_at,
            disabled_at: row.disabled_at,
            tokens: row.tokens,
        }
    }
}

macro_rules! select_accounts {
    ($condition:literal) => {
        concat!(
            "SELECT s.user_id, u.name, s.role, s.created_by, s.created_at, u.disabled_at, \
             (SELECT CAST(COUNT(*) AS BIGINT) FROM tokens t WHERE t.user_id = s.user_id) AS tokens \
             FROM service_accounts s JOIN users u ON u.id = s.user_id WHERE ",
            $condition
        )
    };
}

/// Adds a service account of an organization.
pub async fn insert(tx: &mut Tx<'_>, org: OrgId, new: &ServiceAccount) -> Result<(), StoreError> {
    let sql = "INSERT INTO users (id, email, name, password_hash, operator, created_at, service) \
               VALUES ($1, $2, $3, '', FALSE, $4, TRUE)";
    exec!(tx, sql, new.id, format!("{SERVICE_ADDRESS_HEAD}{}", new.id), &new.name, new.created_at)?;
    let sql = "INSERT INTO service_accounts (user_id, org_id, role, created_by, created_at) \
               VALUES ($1, $2, $3, $4, $5)";
    exec!(tx, sql, new.id, org, new.role, &new.created_by, new.created_at).map(|_| ())
}

/// The number of the service accounts of an organization.
pub async fn count(tx: &mut Tx<'_>, org: OrgId) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM service_accounts WHERE org_id = $1";
    Ok(find!(tx, (i64,), sql, org)?.map_or(0, |(n,)| n))
}

/// Lists a page of the service accounts of an organization by id, that is by their creation.
pub async fn list(
    tx: &mut Tx<'_>,
    org: OrgId,
    options: &ListOptions<UserId>,
) -> Result<Vec<ServiceAccount>, StoreError> {
    let sql = page_sql!(options.sort, [select_accounts!("s.org_id = $1")], "s.user_id", "$2", "$3");
    let rows = list!(tx, ServiceAccountRow, sql, org, options.cursor_text(), options.rows())?;
    Ok(rows.into_iter().map(ServiceAccount::from).collect())
}

/// Finds a service account of this organization.
pub async fn find(
    tx: &mut Tx<'_>,
    org: OrgId,
    account: UserId,
) -> Result<Option<ServiceAccount>, StoreError> {
    let sql = select_accounts!("s.org_id = $1 AND s.user_id = $2");
    Ok(find!(tx, ServiceAccountRow, sql, org, account)?.map(ServiceAccount::from))
}

/// Disables (with the time) or enables a service account.
pub async fn set_disabled(
    tx: &mut Tx<'_>,
    account: UserId,
    disabled_at: Option<Timestamp>,
) -> Result<(), StoreError> {
    let sql = "UPDATE users SET disabled_at = $2 WHERE id = $1 AND service";
    exec!(tx, sql, account, disabled_at).map(|_| ())
}

/// Deletes a service account with its tokens. The user stays with its name, because jobs refer to it. Returns the
/// deleted tokens.
pub async fn delete(tx: &mut Tx<'_>, account: UserId, now: Timestamp) -> Result<Vec<TokenId>, StoreError> {
    let tokens = super::people::list_token_ids(tx, account).await?;
    exec!(tx, "DELETE FROM tokens WHERE user_id = $1", account)?;
    exec!(tx, "DELETE FROM service_accounts WHERE user_id = $1", account)?;
    let sql =
        "UPDATE users SET deleted_at = $2, disabled_at = COALESCE(disabled_at, $2) WHERE id = $1 AND service";
    exec!(tx, sql, account, now)?;
    Ok(tokens)
}
