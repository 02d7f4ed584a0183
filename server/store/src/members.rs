//! Members of organizations, and invitations.

use berth_types::accounts::Role;
use berth_types::ids::{InvitationId, OrgId, UserId};
use berth_types::lists::ListOptions;
use berth_types::members::{Invitation, Member};
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

#[derive(sqlx::FromRow)]
struct MemberRow {
    user_id: UserId,
    name: String,
    email: String,
    role: Role,
    joined_at: Timestamp,
}

impl From<MemberRow> for Member {
    fn from(row: MemberRow) -> Self {
        Self { user: row.user_id, name: row.name, email: row.email, role: row.role, joined_at: row.joined_at }
    }
}

macro_rules! select_members {
    ($rest:literal) => {
        concat!(
            "SELECT m.user_id, u.name, u.email, m.role, \
             CAST(COALESCE(m.joined_at, o.created_at) AS BIGINT) AS joined_at FROM members m \
             JOIN users u ON u.id = m.user_id JOIN orgs o ON o.id = m.org_id ",
            $rest
        )
    };
}

/// Lists a page of the members by the id of the user, that is by the creation of the account.
pub async fn list(
    tx: &mut Tx<'_>,
    org: OrgId,
    options: &ListOptions<UserId>,
) -> Result<Vec<Member>, StoreError> {
    let sql = page_sql!(options.sort, [select_members!("WHERE m.org_id = $1")], "m.user_id", "$2", "$3");
    let rows = list!(tx, MemberRow, sql, org, options.cursor_text(), options.rows())?;
    Ok(rows.into_iter().map(Member::from).collect())
}

pub async fn find(tx: &mut Tx<'_>, org: OrgId, user: UserId) -> Result<Option<Member>, StoreError> {
    let sql = select_members!("WHERE m.org_id = $1 AND m.user_id = $2");
    Ok(find!(tx, MemberRow, sql, org, user)?.map(Member::from))
}

/// Returns true if the user with this address is a member.
pub async fn has_address(tx: &mut Tx<'_>, org: OrgId, email: &str) -> Result<bool, StoreError> {
    let sql = select_members!("WHERE m.org_id = $1 AND u.email = $2");
    Ok(find!(tx, MemberRow, sql, org, email)?.is_some())
}

pub async fn count_owners(tx: &mut Tx<'_>, org: OrgId) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM members WHERE org_id = $1 AND role = 'owner'";
    Ok(find!(tx, (i64,), sql, org)?.map_or(0, |(n,)| n))
}

/// Finds the owner with an enabled account who joined first: the id and the name.
pub async fn find_first_owner(tx: &mut Tx<'_>, org: OrgId) -> Result<Option<(UserId, String)>, StoreError> {
    // The founder has no time of joining.
    let sql = "SELECT m.user_id, u.name FROM members m JOIN users u ON u.id = m.user_id \
               WHERE m.org_id = $1 AND m.role = 'owner' AND u.disabled_at IS NULL \
               ORDER BY COALESCE(m.joined_at, 0), m.user_id LIMIT 1";
    find!(tx, (UserId, String), sql, org)
}

/// Adds a user as a member from `now` on.
pub async fn join(
    tx: &mut Tx<'_>,
    org: OrgId,
    user: UserId,
    role: Role,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO members (org_id, user_id, role, joined_at) VALUES ($1, $2, $3, $4)";
    exec!(tx, sql, org, user, role, now).map(|_| ())
}

/// Sets the role of a member. Returns true if the member exists.
pub async fn set_role(tx: &mut Tx<'_>, org: OrgId, user: UserId, role: Role) -> Result<bool, StoreError> {
    let sql = "UPDATE members SET role = $3 WHERE org_id = $1 AND user_id = $2";
    Ok(exec!(tx, sql, org, user, role)? == 1)
}

/// Removes a member. Returns true if the member existed.
pub async fn remove(tx: &mut Tx<'_>, org: OrgId, user: UserId) -> Result<bool, StoreError> {
    let sql = "DELETE FROM members WHERE org_id = $1 AND user_id = $2";
    Ok(exec!(tx, sql, org, user)? == 1)
}

/// Deletes every token that a user made in an organization; returns their number.
pub async fn end_tokens(tx: &mut Tx<'_>, org: OrgId, user: UserId) -> Result<u64, StoreError> {
    exec!(tx, "DELETE FROM tokens WHERE org_id = $1 AND user_id = $2", org, user)
}

/// Deletes every open invitation that a user made in an organization; returns their number.
pub async fn withdraw_all(tx: &mut Tx<'_>, org: OrgId, user: UserId) -> Result<u64, StoreError> {
    let sql = "DELETE FROM invitations WHERE org_id = $1 AND created_by_id = $2 AND accepted_at IS NULL";
    exec!(tx, sql, org, user)
}

/// An invitation with its internal fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvitationRecord {
    pub invitation: Invitation,
    pub org: OrgId,
    pub created_by_id: UserId,
    /// The new member; absent while the invitation is open.
    pub accepted_by: Option<UserId>,
}

#[derive(sqlx::FromRow)]
struct InvitationRow {
    id: InvitationId,
    org_id: OrgId,
    email: String,
    role: Role,
    created_by: String,
    created_by_id: UserId,
    created_at: Timestamp,
    expires_at: Timestamp,
    mailed_at: Option<Timestamp>,
    accepted_by: Option<UserId>,
}

impl From<InvitationRow> for InvitationRecord {
    fn from(row: InvitationRow) -> Self {
        let invitation = Invitation {
            id: row.id,
            email: row.email,
            role: row.role,
            created_at: row.created_at,
            created_by: row.created_by,
            expires_at: row.expires_at,
            mailed_at: row.mailed_at,
        };
        Self { invitation, org: row.org_id, created_by_id: row.created_by_id, accepted_by: row.accepted_by }
    }
}

macro_rules! select_invitations {
    ($rest:literal) => {
        concat!(
            "SELECT id, org_id, email, role, created_by, created_by_id, created_at, expires_at, mailed_at, \
             accepted_by FROM invitations ",
            $rest
        )
    };
}

/// Adds an open invitation.
///
/// # Errors
/// [`StoreError::Duplicate`] if the organization has an open invitation for the address.
pub async fn insert_invitation(
    tx: &mut Tx<'_>,
    new: &InvitationRecord,
    hash: &str,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO invitations (id, org_id, email, role, hash, created_by, created_by_id, created_at, \
               expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    exec!(
        tx,
        sql,
        new.invitation.id,
        new.org,
        &new.invitation.email,
        new.invitation.role,
        hash,
        &new.invitation.created_by,
        new.created_by_id,
        new.invitation.created_at,
        new.invitation.expires_at
    )
    .map(|_| ())
}

/// Lists the open invitations of an organization, also expired ones, newest first.
pub async fn list_invitations(tx: &mut Tx<'_>, org: OrgId) -> Result<Vec<InvitationRecord>, StoreError> {
    let sql = select_invitations!("WHERE org_id = $1 AND accepted_at IS NULL ORDER BY id DESC");
    Ok(list!(tx, InvitationRow, sql, org)?.into_iter().map(InvitationRecord::from).collect())
}

/// Lists a page of the open invitations of an organization by id, also expired ones.
pub async fn list_invitations_page(
    tx: &mut Tx<'_>,
    org: OrgId,
    options: &ListOptions<InvitationId>,
) -> Result<Vec<InvitationRecord>, StoreError> {
    let sql = page_sql!(
        options.sort,
        [select_invitations!("WHERE org_id = $1 AND accepted_at IS NULL")],
        "id",
        "$2",
        "$3"
    );
    let rows = list!(tx, InvitationRow, sql, org, options.cursor_text(), options.rows())?;
    Ok(rows.into_iter().map(InvitationRecord::from).collect())
}

/// Finds an open invitation of this organization.
pub async fn find_invitation(
    tx: &mut Tx<'_>,
    org: OrgId,
    id: InvitationId,
) -> Result<Option<InvitationRecord>, StoreError> {
    let sql = select_invitations!("WHERE org_id = $1 AND id = $2 AND accepted_at IS NULL");
    Ok(find!(tx, InvitationRow, sql, org, id)?.map(InvitationRecord::from))
}

/// Finds the invitation with this hash of its secret, in any state.
pub async fn find_by_secret(tx: &mut Tx<'_>, hash: &str) -> Result<Option<InvitationRecord>, StoreError> {
    let sql = select_invitations!("WHERE hash = $1");
    Ok(find!(tx, InvitationRow, sql, hash)?.map(InvitationRecord::from))
}

/// Gives an open invitation a new secret and a new expiry; the old secret becomes invalid. Returns true if
/// the invitation was open.
pub async fn renew_invitation(
    tx: &mut Tx<'_>,
    id: InvitationId,
    hash: &str,
    expires_at: Timestamp,
) -> Result<bool, StoreError> {
    let sql = "UPDATE invitations SET hash = $2, expires_at = $3, mailed_at = NULL \
               WHERE id = $1 AND accepted_at IS NULL";
    Ok(exec!(tx, sql, id, hash, expires_at)? == 1)
}

/// Records the time of the mail with this secret.
pub async fn mark_mailed(
    tx: &mut Tx<'_>,
    id: InvitationId,
    hash: &str,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = "UPDATE invitations SET mailed_at = $3 WHERE id = $1 AND hash = $2";
    exec!(tx, sql, id, hash, now).map(|_| ())
}

/// Deletes an open invitation of this organization. Returns true if it existed.
pub async fn withdraw(tx: &mut Tx<'_>, org: OrgId, id: InvitationId) -> Result<bool, StoreError> {
    let sql = "DELETE FROM invitations WHERE org_id = $1 AND id = $2 AND accepted_at IS NULL";
    Ok(exec!(tx, sql, org, id)? == 1)
}

/// Marks an invitation as accepted. Returns true if it was open and had not expired.
pub async fn accept(
    tx: &mut Tx<'_>,
    id: InvitationId,
    user: UserId,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let sql = "UPDATE invitations SET accepted_at = $3, accepted_by = $2 \
               WHERE id = $1 AND accepted_at IS NULL AND expires_at > $3";
    Ok(exec!(tx, sql, id, user, now)? == 1)
}
