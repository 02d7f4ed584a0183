//! People and groups that the identity providers of organizations keep by SCIM.

use berth_types::ids::{OrgId, ScimGroupId, UserId};
use berth_types::scim::MAX_SCIM_GROUPS;
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

/// A person of a provider, linked with an account.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredScimUser {
    pub user_id: UserId,
    pub org_id: OrgId,
    /// The name at the provider.
    pub user_name: String,
    /// The id at the provider; absent if it gave none.
    pub external_id: Option<String>,
    pub display_name: String,
    pub given_name: String,
    pub family_name: String,
    /// False after a deactivation.
    pub active: bool,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// The address of the account. No write changes it.
    pub email: String,
}

/// A group of a provider.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredScimGroup {
    pub id: ScimGroupId,
    pub org_id: OrgId,
    pub display_name: String,
    /// The id at the provider; absent if it gave none.
    pub external_id: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// The form of a name for comparisons: names of SCIM do not differ by case.
pub fn name_key(name: &str) -> String {
    name.to_lowercase()
}

macro_rules! select_users {
    ($rest:literal) => {
        concat!(
            "SELECT s.user_id, s.org_id, s.user_name, s.external_id, s.display_name, s.given_name, s.family_name, \
             s.active, s.created_at, s.updated_at, u.email FROM scim_users s JOIN users u ON u.id = s.user_id ",
            $rest
        )
    };
}

macro_rules! select_groups {
    ($rest:literal) => {
        concat!(
            "SELECT g.id, g.org_id, g.display_name, g.external_id, g.created_at, g.updated_at FROM scim_groups g ",
            $rest
        )
    };
}

pub async fn find_user(
    tx: &mut Tx<'_>,
    org: OrgId,
    user: UserId,
) -> Result<Option<StoredScimUser>, StoreError> {
    find!(tx, StoredScimUser, select_users!("WHERE s.org_id = $1 AND s.user_id = $2"), org, user)
}

/// Finds a person by the name at the provider, without regard to case.
pub async fn find_user_by_name(
    tx: &mut Tx<'_>,
    org: OrgId,
    name: &str,
) -> Result<Option<StoredScimUser>, StoreError> {
    let sql = select_users!("WHERE s.org_id = $1 AND s.user_key = $2");
    find!(tx, StoredScimUser, sql, org, name_key(name))
}

/// Finds a person by the id at the provider.
pub async fn find_user_by_external_id(
    tx: &mut Tx<'_>,
    org: OrgId,
    external_id: &str,
) -> Result<Option<StoredScimUser>, StoreError> {
    let sql = select_users!("WHERE s.org_id = $1 AND s.external_id = $2");
    find!(tx, StoredScimUser, sql, org, external_id)
}

/// Lists people by the id of the account, from an offset on.
pub async fn list_users(
    tx: &mut Tx<'_>,
    org: OrgId,
    (rows, offset): (i64, i64),
) -> Result<Vec<StoredScimUser>, StoreError> {
    let sql = select_users!("WHERE s.org_id = $1 ORDER BY s.user_id LIMIT $2 OFFSET $3");
    list!(tx, StoredScimUser, sql, org, rows, offset)
}

/// The number of the people of an organization.
pub async fn count_users(tx: &mut Tx<'_>, org: OrgId) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM scim_users WHERE org_id = $1";
    Ok(find!(tx, (i64,), sql, org)?.map_or(0, |(n,)| n))
}

/// The number of the people of an organization with a membership.
pub async fn count_members(tx: &mut Tx<'_>, org: OrgId) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM scim_users s \
               JOIN members m ON m.org_id = s.org_id AND m.user_id = s.user_id WHERE s.org_id = $1";
    Ok(find!(tx, (i64,), sql, org)?.map_or(0, |(n,)| n))
}

/// Adds a person.
///
/// # Errors
/// [`StoreError::Duplicate`] for a known account, name or id at the provider.
pub async fn insert_user(tx: &mut Tx<'_>, new: &StoredScimUser) -> Result<(), StoreError> {
    let sql = "INSERT INTO scim_users (org_id, user_id, user_name, user_key, external_id, display_name, given_name, \
               family_name, active, created_at, updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
    exec!(
        tx,
        sql,
        new.org_id,
        new.user_id,
        &new.user_name,
        name_key(&new.user_name),
        &new.external_id,
        &new.display_name,
        &new.given_name,
        &new.family_name,
        new.active,
        new.created_at,
        new.updated_at
    )
    .map(|_| ())
}

/// Replaces the fields of a person.
///
/// # Errors
/// [`StoreError::Duplicate`] for a known name or id at the provider.
pub async fn update_user(tx: &mut Tx<'_>, row: &StoredScimUser) -> Result<(), StoreError> {
    let sql = "UPDATE scim_users SET user_name = $3, user_key = $4, external_id = $5, display_name = $6, \
               given_name = $7, family_name = $8, active = $9, updated_at = $10 WHERE org_id = $1 AND user_id = $2";
    exec!(
        tx,
        sql,
        row.org_id,
        row.user_id,
        &row.user_name,
        name_key(&row.user_name),
        &row.external_id,
        &row.display_name,
        &row.given_name,
        &row.family_name,
        row.active,
        row.updated_at
    )
    .map(|_| ())
}

/// Deletes a person with the places in groups. The account stays.
pub async fn delete_user(tx: &mut Tx<'_>, org: OrgId, user: UserId) -> Result<(), StoreError> {
    exec!(tx, "DELETE FROM scim_members WHERE org_id = $1 AND user_id = $2", org, user)?;
    exec!(tx, "DELETE FROM scim_users WHERE org_id = $1 AND user_id = $2", org, user).map(|_| ())
}

/// Deletes all records about an account.
pub async fn forget_person(tx: &mut Tx<'_>, user: UserId) -> Result<(), StoreError> {
    exec!(tx, "DELETE FROM scim_members WHERE user_id = $1", user)?;
    exec!(tx, "DELETE FROM scim_users WHERE user_id = $1", user).map(|_| ())
}

/// Returns true if the provider deactivated a person.
pub async fn is_inactive(tx: &mut Tx<'_>, org: OrgId, user: UserId) -> Result<bool, StoreError> {
    let sql = "SELECT user_id FROM scim_users WHERE org_id = $1 AND user_id = $2 AND NOT active";
    Ok(find!(tx, (UserId,), sql, org, user)?.is_some())
}

/// Ends the sessions of a person by the provider of an organization. Returns the hashes of their cookies.
pub async fn end_sessions(tx: &mut Tx<'_>, org: OrgId, user: UserId) -> Result<Vec<String>, StoreError> {
    let sql = "DELETE FROM sessions WHERE user_id = $2 AND EXISTS \
               (SELECT 1 FROM sso_grants g WHERE g.hash = sessions.hash AND g.org_id = $1) RETURNING hash";
    Ok(list!(tx, (String,), sql, org, user)?.into_iter().map(|(hash,)| hash).collect())
}

/// Sets the name of an account without a password.
pub async fn rename_account(tx: &mut Tx<'_>, user: UserId, name: &str) -> Result<(), StoreError> {
    let sql = "UPDATE users SET name = $2 WHERE id = $1 AND password_hash = '' AND NOT operator AND NOT service \
               AND deleted_at IS NULL";
    exec!(tx, sql, user, name).map(|_| ())
}

/// Finds the time of the last request with a token for SCIM.
pub async fn find_last_request(tx: &mut Tx<'_>, org: OrgId) -> Result<Option<Timestamp>, StoreError> {
    let sql = "SELECT CAST(MAX(last_used_at) AS BIGINT) AS last_used_at FROM tokens \
               WHERE org_id = $1 AND scopes LIKE '%scim%'";
    Ok(find!(tx, (Option<Timestamp>,), sql, org)?.and_then(|(at,)| at))
}

pub async fn find_group(
    tx: &mut Tx<'_>,
    org: OrgId,
    group: ScimGroupId,
) -> Result<Option<StoredScimGroup>, StoreError> {
    find!(tx, StoredScimGroup, select_groups!("WHERE g.org_id = $1 AND g.id = $2"), org, group)
}

/// Finds a group by its name, without regard to case.
pub async fn find_group_by_name(
    tx: &mut Tx<'_>,
    org: OrgId,
    name: &str,
) -> Result<Option<StoredScimGroup>, StoreError> {
    let sql = select_groups!("WHERE g.org_id = $1 AND g.display_key = $2");
    find!(tx, StoredScimGroup, sql, org, name_key(name))
}

/// Finds a group by the id at the provider.
pub async fn find_group_by_external_id(
    tx: &mut Tx<'_>,
    org: OrgId,
    external_id: &str,
) -> Result<Option<StoredScimGroup>, StoreError> {
    let sql = select_groups!("WHERE g.org_id = $1 AND g.external_id = $2");
    find!(tx, StoredScimGroup, sql, org, external_id)
}

/// Lists groups by id, that is by their creation, from an offset on.
pub async fn list_groups(
    tx: &mut Tx<'_>,
    org: OrgId,
    (rows, offset): (i64, i64),
) -> Result<Vec<StoredScimGroup>, StoreError> {
    let sql = select_groups!("WHERE g.org_id = $1 ORDER BY g.id LIMIT $2 OFFSET $3");
    list!(tx, StoredScimGroup, sql, org, rows, offset)
}

/// The number of the groups of an organization.
pub async fn count_groups(tx: &mut Tx<'_>, org: OrgId) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM scim_groups WHERE org_id = $1";
    Ok(find!(tx, (i64,), sql, org)?.map_or(0, |(n,)| n))
}

/// Lists the groups of a person.
pub async fn list_user_groups(
    tx: &mut Tx<'_>,
    org: OrgId,
    user: UserId,
) -> Result<Vec<StoredScimGroup>, StoreError> {
    let sql = select_groups!(
        "JOIN scim_members m ON m.group_id = g.id WHERE m.org_id = $1 AND m.user_id = $2 ORDER BY g.id LIMIT $3"
    );
    list!(tx, StoredScimGroup, sql, org, user, MAX_SCIM_GROUPS)
}

/// Adds a group.
///
/// # Errors
/// [`StoreError::Duplicate`] for a known name or id at the provider.
pub async fn insert_group(tx: &mut Tx<'_>, new: &StoredScimGroup) -> Result<(), StoreError> {
    let sql = "INSERT INTO scim_groups (id, org_id, display_name, display_key, external_id, created_at, updated_at) \
               VALUES ($1, $2, $3, $4, $5, $6, $7)";
    exec!(
        tx,
        sql,
        new.id,
        new.org_id,
        &new.display_name,
        name_key(&new.display_name),
        &new.external_id,
        new.created_at,
        new.updated_at
    )
    .map(|_| ())
}

/// Replaces the name, the id at the provider and the time of the last change of a group.
///
/// # Errors
/// [`StoreError::Duplicate`] for a known name or id at the provider.
pub async fn update_group(tx: &mut Tx<'_>, row: &StoredScimGroup) -> Result<(), StoreError> {
    let sql = "UPDATE scim_groups SET display_name = $2, display_key = $3, external_id = $4, updated_at = $5 \
               WHERE id = $1";
    exec!(tx, sql, row.id, &row.display_name, name_key(&row.display_name), &row.external_id, row.updated_at)
        .map(|_| ())
}

/// Deletes a group with its members' places.
pub async fn delete_group(tx: &mut Tx<'_>, group: ScimGroupId) -> Result<(), StoreError> {
    exec!(tx, "DELETE FROM scim_members WHERE group_id = $1", group)?;
    exec!(tx, "DELETE FROM scim_groups WHERE id = $1", group).map(|_| ())
}

/// Lists the members of a group with their names at the provider.
pub async fn list_members(tx: &mut Tx<'_>, group: ScimGroupId) -> Result<Vec<(UserId, String)>, StoreError> {
    let sql = "SELECT m.user_id, s.user_name FROM scim_members m \
               JOIN scim_users s ON s.org_id = m.org_id AND s.user_id = m.user_id \
               WHERE m.group_id = $1 ORDER BY m.user_id";
    list!(tx, (UserId, String), sql, group)
}

/// Adds a person to a group.
pub async fn add_member(
    tx: &mut Tx<'_>,
    org: OrgId,
    group: ScimGroupId,
    user: UserId,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO scim_members (group_id, org_id, user_id) VALUES ($1, $2, $3)";
    exec!(tx, sql, group, org, user).map(|_| ())
}

/// Removes a person from a group.
pub async fn remove_member(tx: &mut Tx<'_>, group: ScimGroupId, user: UserId) -> Result<(), StoreError> {
    exec!(tx, "DELETE FROM scim_members WHERE group_id = $1 AND user_id = $2", group, user).map(|_| ())
}
