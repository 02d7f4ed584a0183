//! Accounts of people: passwords, links in mail, sessions of browsers, disabled and deleted accounts.

use berth_types::accounts::User;
use berth_types::ids::{OrgId, SessionId, TokenId, UserId};
use berth_types::lists::ListOptions;
use berth_types::people::{BrowserSession, DELETED_NAME, Person};
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

/// The purpose of a link in a mail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkPurpose {
    PasswordReset,
    Verification,
}

impl LinkPurpose {
    pub const ALL: [Self; 2] = [Self::PasswordReset, Self::Verification];

    pub const fn name(self) -> &'static str {
        match self {
            Self::PasswordReset => "password_reset",
            Self::Verification => "verification",
        }
    }
}

/// Adds a link in a mail. `hash` is the hash of its secret.
pub async fn insert_link(
    tx: &mut Tx<'_>,
    purpose: LinkPurpose,
    user: UserId,
    hash: &str,
    now: Timestamp,
    expires_at: Timestamp,
) -> Result<(), StoreError> {
    let sql =
        "INSERT INTO mail_links (hash, user_id, purpose, created_at, expires_at) VALUES ($1, $2, $3, $4, $5)";
    exec!(tx, sql, hash, user, purpose.name(), now, expires_at).map(|_| ())
}

/// Finds the user of a link that has not expired.
pub async fn find_link(
    tx: &mut Tx<'_>,
    purpose: LinkPurpose,
    hash: &str,
    now: Timestamp,
) -> Result<Option<User>, StoreError> {
    let sql =
        "SELECT user_id, hash AS row_id FROM mail_links WHERE hash = $1 AND purpose = $2 AND expires_at > $3";
    match find!(tx, (UserId,), sql, hash, purpose.name(), now)? {
        Some((user,)) => super::accounts::find_user(tx, user).await,
        None => Ok(None),
    }
}

/// Deletes all links of a user with this purpose.
pub async fn delete_links(tx: &mut Tx<'_>, purpose: LinkPurpose, user: UserId) -> Result<(), StoreError> {
    let sql = "DELETE FROM mail_links WHERE user_id = $1 AND purpose = $2";
    exec!(tx, sql, user, purpose.name()).map(|_| ())
}

/// Deletes the links that have expired.
pub async fn forget_links(tx: &mut Tx<'_>, now: Timestamp) -> Result<(), StoreError> {
    exec!(tx, "DELETE FROM mail_links WHERE expires_at <= $1", now).map(|_| ())
}

/// Finds the stored password hash of a user.
pub async fn find_password(tx: &mut Tx<'_>, user: UserId) -> Result<Option<String>, StoreError> {
    let sql = "SELECT password_hash, id AS row_id FROM users WHERE id = $1 AND deleted_at IS NULL";
    Ok(find!(tx, (String,), sql, user)?.map(|(hash,)| hash))
}

/// Replaces the password hash `before`. Returns false if the user has another one by now.
pub async fn replace_password(
    tx: &mut Tx<'_>,
    user: UserId,
    before: &str,
    hash: &str,
) -> Result<bool, StoreError> {
    let sql =
        "UPDATE users SET password_hash = $3 WHERE id = $1 AND password_hash = $2 AND deleted_at IS NULL";
    Ok(exec!(tx, sql, user, before, hash)? == 1)
}

pub async fn set_password(tx: &mut Tx<'_>, user: UserId, hash: &str) -> Result<(), StoreError> {
    let sql = "UPDATE users SET password_hash = $2 WHERE id = $1 AND deleted_at IS NULL";
    exec!(tx, sql, user, hash).map(|_| ())
}

/// Changes the name of a person. Returns false if a provider keeps the name by SCIM, which needs an account without a
/// password, or if the account is deleted.
pub async fn rename(tx: &mut Tx<'_>, user: UserId, name: &str) -> Result<bool, StoreError> {
    let sql = "UPDATE users SET name = $2 WHERE id = $1 AND deleted_at IS NULL AND NOT service \
               AND (password_hash <> '' OR operator \
               OR NOT EXISTS (SELECT 1 FROM scim_users s WHERE s.user_id = users.id))";
    Ok(exec!(tx, sql, user, name)? == 1)
}

/// Finds the time at which the e-mail address of a user was verified.
pub async fn find_verified_at(tx: &mut Tx<'_>, user: UserId) -> Result<Option<Timestamp>, StoreError> {
    let sql = "SELECT email_verified_at, id AS row_id FROM users WHERE id = $1";
    Ok(find!(tx, (Option<Timestamp>,), sql, user)?.and_then(|(at,)| at))
}

/// Marks the e-mail address of a user as verified. Returns true at the first proof of the address.
pub async fn verify_email(tx: &mut Tx<'_>, user: UserId, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "UPDATE users SET email_verified_at = $2 WHERE id = $1 AND email_verified_at IS NULL \
               AND deleted_at IS NULL";
    Ok(exec!(tx, sql, user, now)? == 1)
}

/// Marks the e-mail address of a user as not verified.
pub async fn unverify_email(tx: &mut Tx<'_>, user: UserId) -> Result<(), StoreError> {
    exec!(tx, "UPDATE users SET email_verified_at = NULL WHERE id = $1", user).map(|_| ())
}

/// Returns true if an owner of the organization has a verified e-mail address.
pub async fn has_verified_owner(tx: &mut Tx<'_>, org: OrgId) -> Result<bool, StoreError> {
    let sql = "SELECT m.user_id FROM members m JOIN users u ON u.id = m.user_id \
               WHERE m.org_id = $1 AND m.role = 'owner' AND u.email_verified_at IS NOT NULL LIMIT 1";
    Ok(find!(tx, (UserId,), sql, org)?.is_some())
}

#[derive(sqlx::FromRow)]
struct SessionRow {
    id: SessionId,
    hash: String,
    created_at: Timestamp,
    last_seen_at: Timestamp,
    expires_at: Timestamp,
    network: String,
    browser: String,
}

/// Lists a page of the sessions of a user by id, that is by their sign-in. Sessions that have expired or were not
/// used after `idle_since` are left out. `current` is the hash of the caller's own session.
pub async fn list_sessions(
    tx: &mut Tx<'_>,
    user: UserId,
    current: &str,
    (now, idle_since): (Timestamp, Timestamp),
    options: &ListOptions<SessionId>,
) -> Result<Vec<BrowserSession>, StoreError> {
    let sql = page_sql!(
        options.sort,
        ["SELECT id, hash, created_at, last_seen_at, expires_at, network, browser FROM sessions \
          WHERE user_id = $1 AND expires_at > $2 AND last_seen_at > $3"],
        "id",
        "$4",
        "$5"
    );
    let rows = list!(tx, SessionRow, sql, user, now, idle_since, options.cursor_text(), options.rows())?;
    let session = |row: SessionRow| BrowserSession {
        id: row.id,
        created_at: row.created_at,
        last_seen_at: row.last_seen_at,
        expires_at: row.expires_at,
        network: Some(row.network).filter(|network| !network.is_empty()),
        browser: row.browser,
        current: row.hash == current,
    };
    Ok(rows.into_iter().map(session).collect())
}

/// Ends a session of a user. Returns the hash of its cookie; `None` if the user has no such session.
pub async fn end_session(
    tx: &mut Tx<'_>,
    user: UserId,
    session: SessionId,
) -> Result<Option<String>, StoreError> {
    let sql = "SELECT hash, id AS row_id FROM sessions WHERE user_id = $1 AND id = $2";
    let found = find!(tx, (String,), sql, user, session)?.map(|(hash,)| hash);
    exec!(tx, "DELETE FROM sessions WHERE user_id = $1 AND id = $2", user, session)?;
    Ok(found)
}

/// Ends all sessions of a user except the one with the hash `kept`; an empty text keeps none. Returns the hashes of
/// their cookies.
pub async fn end_sessions(tx: &mut Tx<'_>, user: UserId, kept: &str) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT hash, id AS row_id FROM sessions WHERE user_id = $1 AND hash <> $2";
    let ended = list!(tx, (String,), sql, user, kept)?.into_iter().map(|(hash,)| hash).collect();
    exec!(tx, "DELETE FROM sessions WHERE user_id = $1 AND hash <> $2", user, kept)?;
    Ok(ended)
}

/// Lists the ids of all API tokens of a user.
pub async fn list_token_ids(tx: &mut Tx<'_>, user: UserId) -> Result<Vec<TokenId>, StoreError> {
    let rows = list!(tx, (TokenId,), "SELECT id FROM tokens WHERE user_id = $1", user)?;
    Ok(rows.into_iter().map(|(id,)| id).collect())
}

/// Deletes all API tokens of a user. Returns their ids.
pub async fn delete_tokens(tx: &mut Tx<'_>, user: UserId) -> Result<Vec<TokenId>, StoreError> {
    let tokens = list_token_ids(tx, user).await?;
    exec!(tx, "DELETE FROM tokens WHERE user_id = $1", user)?;
    Ok(tokens)
}

#[derive(sqlx::FromRow)]
struct PersonRow {
    id: UserId,
    email: String,
    name: String,
    operator: bool,
    created_at: Timestamp,
    email_verified_at: Option<Timestamp>,
    factor_at: Option<Timestamp>,
    last_seen_at: Option<Timestamp>,
    organizations: i64,
    disabled_at: Option<Timestamp>,
    disabled_reason: String,
    deleted_at: Option<Timestamp>,
}

impl From<PersonRow> for Person {
    fn from(row: PersonRow) -> Self {
        // A deleted account has a placeholder in place of its address.
        let email = if row.deleted_at.is_some() { String::new() } else { row.email };
        Self {
            user: User { id: row.id, email, name: row.name, operator: row.operator },
            created_at: row.created_at,
            email_verified_at: row.email_verified_at,
            second_factor: row.factor_at.is_some(),
            last_seen_at: row.last_seen_at,
            organizations: row.organizations,
            disabled_at: row.disabled_at,
            disabled_reason: Some(row.disabled_reason).filter(|reason| !reason.is_empty()),
            deleted_at: row.deleted_at,
        }
    }
}

macro_rules! select_people {
    ($condition:literal) => {
        concat!(
            "SELECT u.id, u.email, u.name, u.operator, u.created_at, u.email_verified_at, \
             COALESCE((SELECT f.confirmed_at FROM totp_factors f WHERE f.user_id = u.id), \
             (SELECT MIN(p.created_at) FROM passkeys p WHERE p.user_id = u.id)) AS factor_at, \
             (SELECT CAST(MAX(s.last_seen_at) AS BIGINT) FROM sessions s WHERE s.user_id = u.id) AS last_seen_at, \
             (SELECT CAST(COUNT(*) AS BIGINT) FROM members m WHERE m.user_id = u.id) AS organizations, \
             u.disabled_at, u.disabled_reason, u.deleted_at FROM users u WHERE ",
            $condition
        )
    };
}

/// The pattern of LIKE for all texts with `text` in them. The escape character is `!`.
fn pattern(text: &str) -> String {
    let escaped = text.replace('!', "!!").replace('%', "!%").replace('_', "!_");
    format!("%{escaped}%")
}

/// Lists a page of the users by id. With `text` only users with this text in their name or address.
pub async fn list_people(
    tx: &mut Tx<'_>,
    text: &str,
    options: &ListOptions<UserId>,
) -> Result<Vec<Person>, StoreError> {
    // SQLite changes the case of ASCII letters only, so the text is tried as it is too.
    let sql = page_sql!(
        options.sort,
        [select_people!(
            "NOT u.service AND ($1 = '%%' OR LOWER(u.email) LIKE $1 ESCAPE '!' OR LOWER(u.name) LIKE $1 ESCAPE '!' \
             OR u.name LIKE $2 ESCAPE '!')"
        )],
        "u.id",
        "$3",
        "$4"
    );
    let (lower, exact) = (pattern(&text.to_lowercase()), pattern(text));
    let rows = list!(tx, PersonRow, sql, lower, exact, options.cursor_text(), options.rows())?;
    Ok(rows.into_iter().map(Person::from).collect())
}

pub async fn find_person(tx: &mut Tx<'_>, user: UserId) -> Result<Option<Person>, StoreError> {
    let row = find!(tx, PersonRow, select_people!("u.id = $1 AND NOT u.service"), user)?;
    Ok(row.map(Person::from))
}

/// Finds the reason for which an operator disabled the account; `None` for an enabled account.
pub async fn find_disabled_reason(tx: &mut Tx<'_>, user: UserId) -> Result<Option<String>, StoreError> {
    let sql = "SELECT disabled_reason, id AS row_id FROM users WHERE id = $1 AND disabled_at IS NOT NULL";
    Ok(find!(tx, (String,), sql, user)?.map(|(reason,)| reason))
}

/// Disables an account, or changes the reason. Returns false if the account does not exist or is deleted.
pub async fn disable(
    tx: &mut Tx<'_>,
    user: UserId,
    reason: &str,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let sql = "UPDATE users SET disabled_at = COALESCE(disabled_at, $3), disabled_reason = $2 \
               WHERE id = $1 AND deleted_at IS NULL AND NOT service";
    Ok(exec!(tx, sql, user, reason, now)? == 1)
}

/// Enables an account. Returns false if the account is not disabled.
pub async fn enable(tx: &mut Tx<'_>, user: UserId) -> Result<bool, StoreError> {
    let sql = "UPDATE users SET disabled_at = NULL, disabled_reason = '' \
               WHERE id = $1 AND disabled_at IS NOT NULL AND deleted_at IS NULL AND NOT service";
    Ok(exec!(tx, sql, user)? == 1)
}

/// An organization with one owner only, and the facts that keep this owner.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct SoleOwnership {
    pub id: OrgId,
    pub name: String,
    /// The number of other members.
    pub others: i64,
    /// The number of jobs that have not ended.
    pub open_jobs: i64,
    /// The number of reservations that are pending, scheduled or active.
    pub open_reservations: i64,
    pub posted_micros: i64,
    pub held_micros: i64,
}

/// Lists the organizations in which a user is the only owner. The id of an account is that of
/// `ledger::org_account`.
pub async fn list_sole_ownerships(tx: &mut Tx<'_>, user: UserId) -> Result<Vec<SoleOwnership>, StoreError> {
    let sql = "SELECT o.id, o.name, \
                 (SELECT CAST(COUNT(*) AS BIGINT) FROM members x \
                  WHERE x.org_id = o.id AND x.user_id <> $1) AS others, \
                 (SELECT CAST(COUNT(*) AS BIGINT) FROM jobs j \
                  WHERE j.org_id = o.id AND j.ended_at IS NULL) AS open_jobs, \
                 (SELECT CAST(COUNT(*) AS BIGINT) FROM reservations r \
                  WHERE r.org_id = o.id AND r.state IN ('pending', 'scheduled', 'active')) AS open_reservations, \
                 COALESCE(a.posted_micros, 0) AS posted_micros, COALESCE(a.held_micros, 0) AS held_micros \
               FROM members m JOIN orgs o ON o.id = m.org_id \
               LEFT JOIN accounts a ON a.id = 'tenant:' || o.id \
               WHERE m.user_id = $1 AND m.role = 'owner' AND NOT EXISTS \
                 (SELECT 1 FROM members w WHERE w.org_id = o.id AND w.role = 'owner' AND w.user_id <> $1) \
               ORDER BY o.id";
    list!(tx, SoleOwnership, sql, user)
}

/// Deletes the data of a person alone: name, address, password, second factors, memberships, tokens, links and open
/// invitations. The row stays with [`DELETED_NAME`], because jobs, tokens for metrics and terminals refer to it. The
/// sessions end by [`end_sessions`].
pub async fn delete_person(tx: &mut Tx<'_>, user: UserId, now: Timestamp) -> Result<(), StoreError> {
    exec!(tx, "DELETE FROM totp_factors WHERE user_id = $1", user)?;
    exec!(tx, "DELETE FROM passkeys WHERE user_id = $1", user)?;
    exec!(tx, "DELETE FROM recovery_codes WHERE user_id = $1", user)?;
    exec!(tx, "DELETE FROM members WHERE user_id = $1", user)?;
    super::sso::forget_person(tx, user).await?;
    exec!(tx, "DELETE FROM tokens WHERE user_id = $1", user)?;
    exec!(tx, "DELETE FROM mail_links WHERE user_id = $1", user)?;
    exec!(tx, "DELETE FROM invitations WHERE created_by_id = $1 AND accepted_at IS NULL", user)?;
    let sql = "UPDATE invitations SET created_by = $2 WHERE created_by_id = $1";
    exec!(tx, sql, user, DELETED_NAME)?;
    exec!(tx, "UPDATE webhooks SET created_by = $2 WHERE created_by_id = $1", user, DELETED_NAME)?;
    let sql = "UPDATE invitations SET email = 'deleted:' || accepted_by WHERE accepted_by = $1";
    exec!(tx, sql, user)?;
    let sql = "UPDATE users SET email = 'deleted:' || id, name = $2, password_hash = '', email_verified_at = NULL, \
               deleted_at = $3 WHERE id = $1";
    exec!(tx, sql, user, DELETED_NAME, now).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::pattern;

    #[test]
    fn a_pattern_has_no_wildcards_of_the_text() {
        assert_eq!(pattern(""), "%%");
        assert_eq!(pattern("a_b%c!"), "%a!_b!%c!!%");
    }
}
