//! Second factors of users, proofs of sessions, and the organizations that require a factor.

use berth_types::ids::{OrgId, UserId};
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

/// The TOTP factor of a user.
#[derive(Clone, sqlx::FromRow)]
pub struct StoredTotp {
    pub user_id: UserId,
    pub sealed: String,
    pub created_at: Timestamp,
    /// Absent before the first right code.
    pub confirmed_at: Option<Timestamp>,
    /// The step of the last accepted code.
    pub last_step: i64,
}

pub async fn find_totp(tx: &mut Tx<'_>, user: UserId) -> Result<Option<StoredTotp>, StoreError> {
    let sql =
        "SELECT user_id, sealed, created_at, confirmed_at, last_step FROM totp_factors WHERE user_id = $1";
    find!(tx, StoredTotp, sql, user)
}

/// Lists the TOTP factors of all users.
pub async fn list_totp(tx: &mut Tx<'_>) -> Result<Vec<StoredTotp>, StoreError> {
    list!(
        tx,
        StoredTotp,
        "SELECT user_id, sealed, created_at, confirmed_at, last_step FROM totp_factors ORDER BY user_id"
    )
}

/// Stores a new factor without a confirmation, in place of an earlier one without a confirmation. Returns false if
/// the user has a confirmed factor.
pub async fn put_totp(
    tx: &mut Tx<'_>,
    user: UserId,
    sealed: &str,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let sql = "INSERT INTO totp_factors (user_id, sealed, created_at, last_step) VALUES ($1, $2, $3, 0) \
               ON CONFLICT (user_id) DO UPDATE SET sealed = excluded.sealed, created_at = excluded.created_at \
               WHERE totp_factors.confirmed_at IS NULL";
    Ok(exec!(tx, sql, user, sealed, now)? == 1)
}

/// Confirms a factor by the code of a step. Returns false if it is confirmed already, or replaced.
pub async fn confirm_totp(
    tx: &mut Tx<'_>,
    row: &StoredTotp,
    step: i64,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let sql = "UPDATE totp_factors SET confirmed_at = $4, last_step = $3 \
               WHERE user_id = $1 AND created_at = $2 AND confirmed_at IS NULL";
    Ok(exec!(tx, sql, row.user_id, row.created_at, step, now)? == 1)
}

/// Accepts the code of a step once. Returns false for a step that is not later than the last accepted one.
pub async fn accept_step(tx: &mut Tx<'_>, row: &StoredTotp, step: i64) -> Result<bool, StoreError> {
    let sql = "UPDATE totp_factors SET last_step = $3 \
               WHERE user_id = $1 AND created_at = $2 AND confirmed_at IS NOT NULL AND last_step < $3";
    Ok(exec!(tx, sql, row.user_id, row.created_at, step)? == 1)
}

/// Replaces the sealed secret. Returns true if the stored one was still that of `row`.
pub async fn reseal_totp(tx: &mut Tx<'_>, row: &StoredTotp, sealed: &str) -> Result<bool, StoreError> {
    let sql = "UPDATE totp_factors SET sealed = $2 WHERE user_id = $1 AND sealed = $3";
    Ok(exec!(tx, sql, row.user_id, sealed, &row.sealed)? == 1)
}

/// Deletes the TOTP factor of a user. Returns true if it existed.
pub async fn delete_totp(tx: &mut Tx<'_>, user: UserId) -> Result<bool, StoreError> {
    Ok(exec!(tx, "DELETE FROM totp_factors WHERE user_id = $1", user)? == 1)
}

/// Replaces the recovery codes of a user, given as hashes.
pub async fn replace_recovery_codes(
    tx: &mut Tx<'_>,
    user: UserId,
    hashes: &[String],
) -> Result<(), StoreError> {
    exec!(tx, "DELETE FROM recovery_codes WHERE user_id = $1", user)?;
    for hash in hashes {
        exec!(tx, "INSERT INTO recovery_codes (user_id, hash) VALUES ($1, $2)", user, hash)?;
    }
    Ok(())
}

/// Uses a recovery code. Returns true once for each code.
pub async fn use_recovery_code(
    tx: &mut Tx<'_>,
    user: UserId,
    hash: &str,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let sql = "UPDATE recovery_codes SET used_at = $3 WHERE user_id = $1 AND hash = $2 AND used_at IS NULL";
    Ok(exec!(tx, sql, user, hash, now)? == 1)
}

/// Counts the unused recovery codes of a user.
pub async fn count_recovery_codes(tx: &mut Tx<'_>, user: UserId) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) FROM recovery_codes WHERE user_id = $1 AND used_at IS NULL";
    Ok(find!(tx, (i64,), sql, user)?.map_or(0, |(count,)| count))
}

/// Records a proof of the user of a session, given by its key, and gives the session another cookie. The former cookie is
/// valid until `former_until`.
pub async fn prove_session(
    tx: &mut Tx<'_>,
    key: &str,
    cookie_hash: &str,
    now: Timestamp,
    former_until: Timestamp,
) -> Result<(), StoreError> {
    let sql = "UPDATE sessions SET proved_at = $3, former_cookie = cookie, former_until = $4, cookie = $2 \
               WHERE hash = $1";
    exec!(tx, sql, key, cookie_hash, now, former_until).map(|_| ())
}

/// The session of a cookie.
pub struct SessionOfCookie {
    /// The key of the session.
    pub key: String,
    /// True for the cookie before the last proof, which has no proof.
    pub is_former: bool,
}

/// Finds the session with a cookie, given by the hash of the cookie.
pub async fn find_session_of_cookie(
    tx: &mut Tx<'_>,
    cookie_hash: &str,
    now: Timestamp,
) -> Result<Option<SessionOfCookie>, StoreError> {
    let sql = "SELECT hash, cookie, id AS row_id FROM sessions \
               WHERE cookie = $1 OR (former_cookie = $1 AND former_until > $2)";
    let found = find!(tx, (String, String), sql, cookie_hash, now)?;
    Ok(found.map(|(key, cookie)| SessionOfCookie { key, is_former: cookie != cookie_hash }))
}

/// Finds the time since which an organization requires a second factor; `None` if it requires none.
pub async fn find_requirement(tx: &mut Tx<'_>, org: OrgId) -> Result<Option<Timestamp>, StoreError> {
    let sql = "SELECT second_factor_since, id AS row_id FROM orgs WHERE id = $1";
    Ok(find!(tx, (Option<Timestamp>,), sql, org)?.and_then(|(since,)| since))
}

/// Returns true if a user has a confirmed app or a passkey.
pub async fn has_factor(tx: &mut Tx<'_>, user: UserId) -> Result<bool, StoreError> {
    let sql = "SELECT user_id FROM totp_factors WHERE user_id = $1 AND confirmed_at IS NOT NULL \
               UNION ALL SELECT user_id FROM passkeys WHERE user_id = $1 LIMIT 1";
    Ok(find!(tx, (UserId,), sql, user)?.is_some())
}

/// Lists the members of an organization without a confirmed factor.
pub async fn list_members_without(tx: &mut Tx<'_>, org: OrgId) -> Result<Vec<UserId>, StoreError> {
    let sql = "SELECT m.user_id FROM members m WHERE m.org_id = $1 AND NOT EXISTS \
               (SELECT 1 FROM totp_factors f WHERE f.user_id = m.user_id AND f.confirmed_at IS NOT NULL) \
               AND NOT EXISTS (SELECT 1 FROM passkeys p WHERE p.user_id = m.user_id)";
    Ok(list!(tx, (UserId,), sql, org)?.into_iter().map(|(user,)| user).collect())
}

/// Sets the time since which an organization requires a second factor.
pub async fn put_requirement(
    tx: &mut Tx<'_>,
    org: OrgId,
    since: Option<Timestamp>,
) -> Result<(), StoreError> {
    exec!(tx, "UPDATE orgs SET second_factor_since = $2 WHERE id = $1", org, since).map(|_| ())
}
