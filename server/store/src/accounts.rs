//! Users, organizations, members, sessions, tokens, settings and stored answers.

use berth_types::accounts::{Membership, Org, Role, Token, User};
use berth_types::ids::{OrgId, TokenId, UserId};
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

fn id<T: std::str::FromStr>(text: &str) -> Result<T, StoreError> {
    text.parse().map_err(|_| StoreError::Corrupt(format!("id {text:?}")))
}

fn role(text: &str) -> Result<Role, StoreError> {
    Role::parse(text).ok_or_else(|| StoreError::Corrupt(format!("role {text:?}")))
}

#[derive(sqlx::FromRow)]
struct UserRow {
    id: String,
    email: String,
    name: String,
    operator: bool,
}

impl UserRow {
    fn user(self) -> Result<User, StoreError> {
        Ok(User { id: id(&self.id)?, email: self.email, name: self.name, operator: self.operator })
    }
}

pub async fn insert_user(
    tx: &mut Tx<'_>,
    user: &User,
    password_hash: &str,
    now: Timestamp,
) -> Result<(), StoreError> {
    exec!(
        tx,
        "INSERT INTO users (id, email, name, password_hash, operator, created_at) VALUES ($1, $2, $3, $4, $5, $6)",
        user.id.to_string(),
        &user.email,
        &user.name,
        password_hash,
        user.operator,
        now.micros()
    )
    .map(|_| ())
}

pub async fn find_user(tx: &mut Tx<'_>, user: UserId) -> Result<Option<User>, StoreError> {
    find!(tx, UserRow, "SELECT id, email, name, operator FROM users WHERE id = $1", user.to_string())?
        .map(UserRow::user)
        .transpose()
}

/// Finds a user by e-mail address; returns the id and the stored password hash.
pub async fn find_login(tx: &mut Tx<'_>, email: &str) -> Result<Option<(UserId, String)>, StoreError> {
    find!(tx, (String, String), "SELECT id, password_hash FROM users WHERE email = $1", email)?
        .map(|(user, hash)| Ok((id(&user)?, hash)))
        .transpose()
}

pub async fn operator_exists(tx: &mut Tx<'_>) -> Result<bool, StoreError> {
    Ok(find!(tx, (String,), "SELECT id FROM users WHERE operator LIMIT 1")?.is_some())
}

pub async fn insert_org(tx: &mut Tx<'_>, org: &Org) -> Result<(), StoreError> {
    exec!(
        tx,
        "INSERT INTO orgs (id, name, created_at) VALUES ($1, $2, $3)",
        org.id.to_string(),
        &org.name,
        org.created_at.micros()
    )
    .map(|_| ())
}

pub async fn list_orgs(tx: &mut Tx<'_>) -> Result<Vec<Org>, StoreError> {
    list!(tx, (String, String, i64), "SELECT id, name, created_at FROM orgs ORDER BY id")?
        .into_iter()
        .map(|(org, name, at)| Ok(Org { id: id(&org)?, name, created_at: Timestamp::from_micros(at) }))
        .collect()
}

pub async fn find_org(tx: &mut Tx<'_>, org: OrgId) -> Result<Option<Org>, StoreError> {
    Ok(find!(tx, (String, i64), "SELECT name, created_at FROM orgs WHERE id = $1", org.to_string())?
        .map(|(name, at)| Org { id: org, name, created_at: Timestamp::from_micros(at) }))
}

pub async fn insert_member(tx: &mut Tx<'_>, org: OrgId, user: UserId, role: Role) -> Result<(), StoreError> {
    exec!(
        tx,
        "INSERT INTO members (org_id, user_id, role) VALUES ($1, $2, $3)",
        org.to_string(),
        user.to_string(),
        role.name()
    )
    .map(|_| ())
}

pub async fn find_role(tx: &mut Tx<'_>, org: OrgId, user: UserId) -> Result<Option<Role>, StoreError> {
    find!(
        tx,
        (String,),
        "SELECT role FROM members WHERE org_id = $1 AND user_id = $2",
        org.to_string(),
        user.to_string()
    )?
    .map(|(name,)| role(&name))
    .transpose()
}

pub async fn list_memberships(tx: &mut Tx<'_>, user: UserId) -> Result<Vec<Membership>, StoreError> {
    let sql = "SELECT o.id, o.name, o.created_at, m.role FROM members m JOIN orgs o ON o.id = m.org_id \
               WHERE m.user_id = $1 ORDER BY o.id";
    list!(tx, (String, String, i64, String), sql, user.to_string())?
        .into_iter()
        .map(|(org, name, at, r)| {
            let org = Org { id: id(&org)?, name, created_at: Timestamp::from_micros(at) };
            Ok(Membership { org, role: role(&r)? })
        })
        .collect()
}

pub async fn insert_session(
    tx: &mut Tx<'_>,
    hash: &str,
    user: UserId,
    now: Timestamp,
    expires_at: Timestamp,
) -> Result<(), StoreError> {
    exec!(
        tx,
        "INSERT INTO sessions (hash, user_id, created_at, last_seen_at, expires_at) VALUES ($1, $2, $3, $3, $4)",
        hash,
        user.to_string(),
        now.micros(),
        expires_at.micros()
    )
    .map(|_| ())
}

/// Finds a session that has not expired and was used after `idle_since`. Returns its user and the time of its
/// last use.
pub async fn find_session(
    tx: &mut Tx<'_>,
    hash: &str,
    now: Timestamp,
    idle_since: Timestamp,
) -> Result<Option<(User, Timestamp)>, StoreError> {
    #[derive(sqlx::FromRow)]
    struct SessionRow {
        #[sqlx(flatten)]
        user: UserRow,
        last_seen_at: i64,
    }
    let sql = "SELECT u.id, u.email, u.name, u.operator, s.last_seen_at FROM sessions s \
               JOIN users u ON u.id = s.user_id WHERE s.hash = $1 AND s.expires_at > $2 AND s.last_seen_at > $3";
    find!(tx, SessionRow, sql, hash, now.micros(), idle_since.micros())?
        .map(|row| Ok((row.user.user()?, Timestamp::from_micros(row.last_seen_at))))
        .transpose()
}

pub async fn touch_session(tx: &mut Tx<'_>, hash: &str, now: Timestamp) -> Result<(), StoreError> {
    exec!(tx, "UPDATE sessions SET last_seen_at = $2 WHERE hash = $1", hash, now.micros()).map(|_| ())
}

pub async fn delete_session(tx: &mut Tx<'_>, hash: &str) -> Result<(), StoreError> {
    exec!(tx, "DELETE FROM sessions WHERE hash = $1", hash).map(|_| ())
}

pub async fn insert_token(
    tx: &mut Tx<'_>,
    org: Option<OrgId>,
    user: UserId,
    token: &Token,
    hash: &str,
) -> Result<(), StoreError> {
    exec!(
        tx,
        "INSERT INTO tokens (id, org_id, user_id, name, role, hash, hint, created_at, expires_at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        token.id.to_string(),
        org.map(|o| o.to_string()),
        user.to_string(),
        &token.name,
        token.role.name(),
        hash,
        &token.hint,
        token.created_at.micros(),
        token.expires_at.map(Timestamp::micros)
    )
    .map(|_| ())
}

/// An API token with its organization (absent: an operator's token), role and user.
pub struct TokenGrant {
    pub id: TokenId,
    pub org: Option<OrgId>,
    pub role: Role,
    pub user: User,
    pub last_used_at: Option<Timestamp>,
}

/// Finds a token that has not expired.
pub async fn find_token(
    tx: &mut Tx<'_>,
    hash: &str,
    now: Timestamp,
) -> Result<Option<TokenGrant>, StoreError> {
    #[derive(sqlx::FromRow)]
    struct GrantRow {
        token_id: String,
        org_id: Option<String>,
        role: String,
        last_used_at: Option<i64>,
        #[sqlx(flatten)]
        user: UserRow,
    }
    let sql = "SELECT t.id AS token_id, t.org_id, t.role, t.last_used_at, u.id, u.email, u.name, u.operator FROM tokens t \
               JOIN users u ON u.id = t.user_id WHERE t.hash = $1 AND (t.expires_at IS NULL OR t.expires_at > $2)";
    find!(tx, GrantRow, sql, hash, now.micros())?
        .map(|row| {
            let org = row.org_id.as_deref().map(id).transpose()?;
            Ok(TokenGrant {
                id: id(&row.token_id)?,
                org,
                role: role(&row.role)?,
                user: row.user.user()?,
                last_used_at: row.last_used_at.map(Timestamp::from_micros),
            })
        })
        .transpose()
}

/// Returns true if the token exists and has not expired.
pub async fn token_exists(tx: &mut Tx<'_>, token: TokenId, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "SELECT id FROM tokens WHERE id = $1 AND (expires_at IS NULL OR expires_at > $2)";
    Ok(find!(tx, (String,), sql, token.to_string(), now.micros())?.is_some())
}

pub async fn touch_token(tx: &mut Tx<'_>, token: TokenId, now: Timestamp) -> Result<(), StoreError> {
    exec!(tx, "UPDATE tokens SET last_used_at = $2 WHERE id = $1", token.to_string(), now.micros())
        .map(|_| ())
}

/// Lists the tokens of an organization, or (`None`) of operators.
pub async fn list_tokens(tx: &mut Tx<'_>, org: Option<OrgId>) -> Result<Vec<Token>, StoreError> {
    #[derive(sqlx::FromRow)]
    struct TokenRow {
        id: String,
        name: String,
        role: String,
        hint: String,
        created_at: i64,
        expires_at: Option<i64>,
        last_used_at: Option<i64>,
    }
    let sql = "SELECT id, name, role, hint, created_at, expires_at, last_used_at FROM tokens \
               WHERE COALESCE(org_id, '') = $1 ORDER BY id DESC";
    list!(tx, TokenRow, sql, org.map_or_else(String::new, |org| org.to_string()))?
        .into_iter()
        .map(|row| {
            Ok(Token {
                id: id(&row.id)?,
                role: role(&row.role)?,
                name: row.name,
                hint: row.hint,
                created_at: Timestamp::from_micros(row.created_at),
                expires_at: row.expires_at.map(Timestamp::from_micros),
                last_used_at: row.last_used_at.map(Timestamp::from_micros),
            })
        })
        .collect()
}

/// Deletes a token of this organization, or (`None`) of an operator. Returns true if it existed.
pub async fn delete_token(tx: &mut Tx<'_>, org: Option<OrgId>, token: TokenId) -> Result<bool, StoreError> {
    let owner = org.map_or_else(String::new, |org| org.to_string());
    let sql = "DELETE FROM tokens WHERE id = $1 AND COALESCE(org_id, '') = $2";
    let deleted = exec!(tx, sql, token.to_string(), owner)?;
    Ok(deleted > 0)
}

pub async fn find_setting(tx: &mut Tx<'_>, name: &str) -> Result<Option<String>, StoreError> {
    Ok(find!(tx, (String,), "SELECT value FROM settings WHERE name = $1", name)?.map(|(value,)| value))
}

pub async fn put_setting(tx: &mut Tx<'_>, name: &str, value: &str) -> Result<(), StoreError> {
    let sql =
        "INSERT INTO settings (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = $2";
    exec!(tx, sql, name, value).map(|_| ())
}

pub async fn delete_setting(tx: &mut Tx<'_>, name: &str) -> Result<(), StoreError> {
    exec!(tx, "DELETE FROM settings WHERE name = $1", name).map(|_| ())
}

/// The stored answer to an idempotency key: the hash of its request, its status (0: claimed, not answered)
/// and its body.
pub struct Replay {
    pub request_hash: String,
    pub status: u16,
    pub answer: String,
}

/// Stores an answer under its key. Returns false if the key is in use.
pub async fn insert_idempotency(
    tx: &mut Tx<'_>,
    scope: &str,
    key: &str,
    replay: &Replay,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let sql = "INSERT INTO idempotency_keys (scope, idempotency_key, request_hash, status, answer, created_at) \
               VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING";
    let new = exec!(
        tx,
        sql,
        scope,
        key,
        &replay.request_hash,
        i64::from(replay.status),
        &replay.answer,
        now.micros()
    )?;
    Ok(new > 0)
}

pub async fn find_idempotency(tx: &mut Tx<'_>, scope: &str, key: &str) -> Result<Option<Replay>, StoreError> {
    let sql =
        "SELECT request_hash, status, answer FROM idempotency_keys WHERE scope = $1 AND idempotency_key = $2";
    Ok(find!(tx, (String, i64, String), sql, scope, key)?.map(|(request_hash, status, answer)| Replay {
        request_hash,
        status: u16::try_from(status).unwrap_or(500),
        answer,
    }))
}

/// Stores an answer under its key. It replaces a claim (status 0), but no other answer.
pub async fn put_answer(
    tx: &mut Tx<'_>,
    scope: &str,
    key: &str,
    replay: &Replay,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO idempotency_keys (scope, idempotency_key, request_hash, status, answer, created_at) \
               VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (scope, idempotency_key) \
               DO UPDATE SET status = excluded.status, answer = excluded.answer WHERE idempotency_keys.status = 0";
    let status = i64::from(replay.status);
    exec!(tx, sql, scope, key, &replay.request_hash, status, &replay.answer, now.micros()).map(|_| ())
}

/// Deletes the answers that were stored before a time.
pub async fn forget_answers(tx: &mut Tx<'_>, before: Timestamp) -> Result<(), StoreError> {
    exec!(tx, "DELETE FROM idempotency_keys WHERE created_at < $1", before.micros()).map(|_| ())
}

/// Deletes the sessions that have expired, or were not used after `idle_since`.
pub async fn forget_sessions(
    tx: &mut Tx<'_>,
    now: Timestamp,
    idle_since: Timestamp,
) -> Result<(), StoreError> {
    let sql = "DELETE FROM sessions WHERE expires_at <= $1 OR last_seen_at <= $2";
    exec!(tx, sql, now.micros(), idle_since.micros()).map(|_| ())
}
