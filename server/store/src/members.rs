//! Members of organizations, and invitations.

use berth_types::accounts::Role;
use berth_types::ids::{InvitationId, OrgId, UserId};
use berth_types::members::{Invitation, Member};
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

fn parse<T: std::str::FromStr>(text: &str) -> Result<T, StoreError> {
    text.parse().map_err(|_| StoreError::Corrupt(text.to_owned()))
}

fn role(text: &str) -> Result<Role, StoreError> {
    Role::parse(text).ok_or_else(|| StoreError::Corrupt(format!("role {text:?}")))
}

#[derive(sqlx::FromRow)]
struct MemberRow {
    user_id: String,
    name: String,
    email: String,
    role: String,
    joined_at: i64,
}

impl MemberRow {
    fn member(self) -> Result<Member, StoreError> {
        Ok(Member {
            user: parse(&self.user_id)?,
            name: self.name,
            email: self.email,
            role: role(&self.role)?,
            joined_at: Timestamp::from_micros(self.joined_at),
        })
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

/// Lists members, oldest account first, after the user `after` (`''`: from the first).
pub async fn list(tx: &mut Tx<'_>, org: OrgId, after: &str, limit: i64) -> Result<Vec<Member>, StoreError> {
    let sql = select_members!("WHERE m.org_id = $1 AND m.user_id > $2 ORDER BY m.user_id LIMIT $3");
    list!(tx, MemberRow, sql, org.to_string(), after, limit)?.into_iter().map(MemberRow::member).collect()
}

pub async fn find(tx: &mut Tx<'_>, org: OrgId, user: UserId) -> Result<Option<Member>, StoreError> {
    let sql = select_members!("WHERE m.org_id = $1 AND m.user_id = $2");
    find!(tx, MemberRow, sql, org.to_string(), user.to_string())?.map(MemberRow::member).transpose()
}

/// Returns true if the user with this address is a member.
pub async fn has_address(tx: &mut Tx<'_>, org: OrgId, email: &str) -> Result<bool, StoreError> {
    let sql = select_members!("WHERE m.org_id = $1 AND u.email = $2");
    Ok(find!(tx, MemberRow, sql, org.to_string(), email)?.is_some())
}

pub async fn count_owners(tx: &mut Tx<'_>, org: OrgId) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM members WHERE org_id = $1 AND role = 'owner'";
    Ok(find!(tx, (i64,), sql, org.to_string())?.map_or(0, |(n,)| n))
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
    exec!(tx, sql, org.to_string(), user.to_string(), role.name(), now.micros()).map(|_| ())
}

/// Sets the role of a member. Returns true if the member exists.
pub async fn set_role(tx: &mut Tx<'_>, org: OrgId, user: UserId, role: Role) -> Result<bool, StoreError> {
    let sql = "UPDATE members SET role = $3 WHERE org_id = $1 AND user_id = $2";
    Ok(exec!(tx, sql, org.to_string(), user.to_string(), role.name())? == 1)
}

/// Removes a member. Returns true if the member existed.
pub async fn remove(tx: &mut Tx<'_>, org: OrgId, user: UserId) -> Result<bool, StoreError> {
    let sql = "DELETE FROM members WHERE org_id = $1 AND user_id = $2";
    Ok(exec!(tx, sql, org.to_string(), user.to_string())? == 1)
}

/// Deletes every token that a user made in an organization; returns their number.
pub async fn end_tokens(tx: &mut Tx<'_>, org: OrgId, user: UserId) -> Result<u64, StoreError> {
    exec!(tx, "DELETE FROM tokens WHERE org_id = $1 AND user_id = $2", org.to_string(), user.to_string())
}

/// Deletes every open invitation that a user made in an organization; returns their number.
pub async fn withdraw_all(tx: &mut Tx<'_>, org: OrgId, user: UserId) -> Result<u64, StoreError> {
    let sql = "DELETE FROM invitations WHERE org_id = $1 AND created_by_id = $2 AND accepted_at IS NULL";
    exec!(tx, sql, org.to_string(), user.to_string())
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
    id: String,
    org_id: String,
    email: String,
    role: String,
    created_by: String,
    created_by_id: String,
    created_at: i64,
    expires_at: i64,
    mailed_at: Option<i64>,
    accepted_by: Option<String>,
}

impl InvitationRow {
    fn record(self) -> Result<InvitationRecord, StoreError> {
        let invitation = Invitation {
            id: parse(&self.id)?,
            email: self.email,
            role: role(&self.role)?,
            created_at: Timestamp::from_micros(self.created_at),
            created_by: self.created_by,
            expires_at: Timestamp::from_micros(self.expires_at),
            mailed_at: self.mailed_at.map(Timestamp::from_micros),
        };
        Ok(InvitationRecord {
            invitation,
            org: parse(&self.org_id)?,
            created_by_id: parse(&self.created_by_id)?,
            accepted_by: self.accepted_by.as_deref().map(parse).transpose()?,
        })
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
        new.invitation.id.to_string(),
        new.org.to_string(),
        &new.invitation.email,
        new.invitation.role.name(),
        hash,
        &new.invitation.created_by,
        new.created_by_id.to_string(),
        new.invitation.created_at.micros(),
        new.invitation.expires_at.micros()
    )
    .map(|_| ())
}

/// Lists the open invitations of an organization, also expired ones, newest first.
pub async fn list_invitations(tx: &mut Tx<'_>, org: OrgId) -> Result<Vec<InvitationRecord>, StoreError> {
    let sql = select_invitations!("WHERE org_id = $1 AND accepted_at IS NULL ORDER BY id DESC");
    list!(tx, InvitationRow, sql, org.to_string())?.into_iter().map(InvitationRow::record).collect()
}

/// Finds an open invitation of this organization.
pub async fn find_invitation(
    tx: &mut Tx<'_>,
    org: OrgId,
    id: InvitationId,
) -> Result<Option<InvitationRecord>, StoreError> {
    let sql = select_invitations!("WHERE org_id = $1 AND id = $2 AND accepted_at IS NULL");
    find!(tx, InvitationRow, sql, org.to_string(), id.to_string())?.map(InvitationRow::record).transpose()
}

/// Finds the invitation with this hash of its secret, in any state.
pub async fn find_by_secret(tx: &mut Tx<'_>, hash: &str) -> Result<Option<InvitationRecord>, StoreError> {
    let sql = select_invitations!("WHERE hash = $1");
    find!(tx, InvitationRow, sql, hash)?.map(InvitationRow::record).transpose()
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
    Ok(exec!(tx, sql, id.to_string(), hash, expires_at.micros())? == 1)
}

/// Records the time of the mail with this secret.
pub async fn mark_mailed(
    tx: &mut Tx<'_>,
    id: InvitationId,
    hash: &str,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = "UPDATE invitations SET mailed_at = $3 WHERE id = $1 AND hash = $2";
    exec!(tx, sql, id.to_string(), hash, now.micros()).map(|_| ())
}

/// Deletes an open invitation of this organization. Returns true if it existed.
pub async fn withdraw(tx: &mut Tx<'_>, org: OrgId, id: InvitationId) -> Result<bool, StoreError> {
    let sql = "DELETE FROM invitations WHERE org_id = $1 AND id = $2 AND accepted_at IS NULL";
    Ok(exec!(tx, sql, org.to_string(), id.to_string())? == 1)
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
    Ok(exec!(tx, sql, id.to_string(), user.to_string(), now.micros())? == 1)
}
