//! Users, organizations, members, sessions, tokens, settings and stored answers.

use berth_types::accounts::{Membership, Org, Role, Token, User};
use berth_types::ids::{OrgId, SessionId, TokenId, UserId};
use berth_types::lists::ListOptions;
use berth_types::operators::OperatorRole;
use berth_types::portal::PortalSettings;
use berth_types::scopes::ApiScopes;
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

/// The head of the placeholder in place of the address of a service account. No mail address has a colon.
pub(crate) const SERVICE_ADDRESS_HEAD: &str = "service:";

#[derive(sqlx::FromRow)]
struct UserRow {
    id: UserId,
    email: String,
    name: String,
    operator: bool,
}

impl From<UserRow> for User {
    fn from(row: UserRow) -> Self {
        // A service account has a placeholder in place of its address.
        let is_service = row.email.starts_with(SERVICE_ADDRESS_HEAD);
        let email = if is_service { String::new() } else { row.email };
        Self { id: row.id, email, name: row.name, operator: row.operator }
    }
}

/// Adds a user with a verified e-mail address. An operator has the role of an owner until
/// [`put_role`](crate::operators::put_role) gives another one.
pub async fn insert_user(
    tx: &mut Tx<'_>,
    user: &User,
    password_hash: &str,
    now: Timestamp,
) -> Result<(), StoreError> {
    exec!(
        tx,
        "INSERT INTO users (id, email, name, password_hash, operator, created_at, email_verified_at, \
         operator_role) VALUES ($1, $2, $3, $4, $5, $6, $6, $7)",
        user.id,
        &user.email,
        &user.name,
        password_hash,
        user.operator,
        now,
        user.operator.then_some(OperatorRole::Owner)
    )
    .map(|_| ())
}

pub async fn find_user(tx: &mut Tx<'_>, user: UserId) -> Result<Option<User>, StoreError> {
    let row = find!(tx, UserRow, "SELECT id, email, name, operator FROM users WHERE id = $1", user)?;
    Ok(row.map(User::from))
}

/// Finds a user by e-mail address; returns the id and the stored password hash.
pub async fn find_login(tx: &mut Tx<'_>, email: &str) -> Result<Option<(UserId, String)>, StoreError> {
    let sql = "SELECT id, password_hash FROM users WHERE email = $1 AND deleted_at IS NULL AND NOT service";
    find!(tx, (UserId, String), sql, email)
}

pub async fn operator_exists(tx: &mut Tx<'_>) -> Result<bool, StoreError> {
    Ok(find!(tx, (UserId,), "SELECT id FROM users WHERE operator LIMIT 1")?.is_some())
}

pub async fn insert_org(tx: &mut Tx<'_>, org: &Org) -> Result<(), StoreError> {
    exec!(
        tx,
        "INSERT INTO orgs (id, name, slug, created_at) VALUES ($1, $2, $3, $4)",
        org.id,
        &org.name,
        &org.slug,
        org.created_at
    )
    .map(|_| ())
}

/// Returns true if an organization has this slug.
pub async fn has_slug(tx: &mut Tx<'_>, slug: &str) -> Result<bool, StoreError> {
    Ok(find!(tx, (OrgId,), "SELECT id FROM orgs WHERE slug = $1", slug)?.is_some())
}

pub async fn list_orgs(tx: &mut Tx<'_>) -> Result<Vec<Org>, StoreError> {
    let sql = "SELECT id, name, slug, created_at FROM orgs ORDER BY id";
    let rows = list!(tx, (OrgId, String, String, Timestamp), sql)?;
    Ok(rows.into_iter().map(|(id, name, slug, created_at)| Org { id, name, slug, created_at }).collect())
}

pub async fn find_org(tx: &mut Tx<'_>, org: OrgId) -> Result<Option<Org>, StoreError> {
    let sql = "SELECT name, slug, created_at, id AS row_id FROM orgs WHERE id = $1";
    let row = find!(tx, (String, String, Timestamp), sql, org)?;
    Ok(row.map(|(name, slug, created_at)| Org { id: org, name, slug, created_at }))
}

pub async fn insert_member(tx: &mut Tx<'_>, org: OrgId, user: UserId, role: Role) -> Result<(), StoreError> {
    exec!(tx, "INSERT INTO members (org_id, user_id, role) VALUES ($1, $2, $3)", org, user, role).map(|_| ())
}

/// Finds the role of a member or of a service account.
pub async fn find_role(tx: &mut Tx<'_>, org: OrgId, user: UserId) -> Result<Option<Role>, StoreError> {
    let sql = "SELECT role, user_id AS row_id FROM members WHERE org_id = $1 AND user_id = $2 UNION ALL \
               SELECT role, user_id AS row_id FROM service_accounts WHERE org_id = $1 AND user_id = $2";
    Ok(find!(tx, (Role,), sql, org, user)?.map(|(role,)| role))
}

/// Lists the organizations of a member, or the one of a service account.
pub async fn list_memberships(tx: &mut Tx<'_>, user: UserId) -> Result<Vec<Membership>, StoreError> {
    let sql = "SELECT o.id, o.name, o.slug, o.created_at, m.role FROM \
               (SELECT org_id, user_id, role FROM members WHERE user_id = $1 UNION ALL \
                SELECT org_id, user_id, role FROM service_accounts WHERE user_id = $1) m \
               JOIN orgs o ON o.id = m.org_id ORDER BY o.id";
    let rows = list!(tx, (OrgId, String, String, Timestamp, Role), sql, user)?;
    let membership =
        |(id, name, slug, created_at, role)| Membership { org: Org { id, name, slug, created_at }, role };
    Ok(rows.into_iter().map(membership).collect())
}

/// A session of a sign-in.
#[derive(Debug, Clone)]
pub struct NewSession {
    pub id: SessionId,
    /// The hash of its first cookie, which stays its key.
    pub hash: String,
    pub user: UserId,
    /// The network of the sign-in; empty if it is unknown.
    pub network: String,
    /// The header `User-Agent` of the sign-in, or its head.
    pub browser: String,
}

pub async fn insert_session(
    tx: &mut Tx<'_>,
    new: &NewSession,
    now: Timestamp,
    expires_at: Timestamp,
) -> Result<(), StoreError> {
    exec!(
        tx,
        "INSERT INTO sessions (hash, cookie, id, user_id, created_at, last_seen_at, expires_at, network, browser) \
         VALUES ($1, $1, $2, $3, $4, $4, $5, $6, $7)",
        &new.hash,
        new.id,
        new.user,
        now,
        expires_at,
        &new.network,
        &new.browser
    )
    .map(|_| ())
}

/// An open session.
pub struct Session {
    pub user: User,
    /// The role of an operator; absent for all other users.
    pub operator_role: Option<OperatorRole>,
    pub last_seen_at: Timestamp,
    pub expires_at: Timestamp,
    /// The last proof of the user's identity: the sign-in, or a later proof.
    pub proved_at: Timestamp,
    /// True if the user has a second factor.
    pub has_factor: bool,
    /// True if an organization of the user requires a second factor. The organization of the session's provider does
    /// not count.
    pub factor_required: bool,
    /// True if the provider of the session verified a second factor.
    pub provider_factor: bool,
}

/// Finds a session that has not expired and was used after `idle_since`. A disabled account has none.
pub async fn find_session(
    tx: &mut Tx<'_>,
    hash: &str,
    now: Timestamp,
    idle_since: Timestamp,
) -> Result<Option<Session>, StoreError> {
    #[derive(sqlx::FromRow)]
    struct SessionRow {
        #[sqlx(flatten)]
        user: UserRow,
        operator_role: Option<OperatorRole>,
        last_seen_at: Timestamp,
        expires_at: Timestamp,
        proved_at: Timestamp,
        factor_at: Option<Timestamp>,
        required_since: Option<Timestamp>,
        provider_factor: Option<bool>,
    }
    let sql = "SELECT u.id, u.email, u.name, u.operator, u.operator_role, s.last_seen_at, s.expires_at, \
               COALESCE(s.proved_at, s.created_at) AS proved_at, COALESCE(f.confirmed_at, \
               (SELECT MIN(p.created_at) FROM passkeys p WHERE p.user_id = s.user_id)) AS factor_at, \
               (SELECT MIN(o.second_factor_since) FROM members m JOIN orgs o ON o.id = m.org_id \
                WHERE m.user_id = s.user_id AND o.id <> COALESCE(g.org_id, '')) AS required_since, \
               g.second_factor AS provider_factor FROM sessions s \
               JOIN users u ON u.id = s.user_id LEFT JOIN totp_factors f ON f.user_id = s.user_id \
               LEFT JOIN sso_grants g ON g.hash = s.hash \
               WHERE s.hash = $1 AND s.expires_at > $2 AND s.last_seen_at > $3 \
               AND u.disabled_at IS NULL";
    let row = find!(tx, SessionRow, sql, hash, now, idle_since)?;
    Ok(row.map(|row| Session {
        user: row.user.into(),
        operator_role: row.operator_role,
        last_seen_at: row.last_seen_at,
        expires_at: row.expires_at,
        proved_at: row.proved_at,
        has_factor: row.factor_at.is_some(),
        factor_required: row.required_since.is_some(),
        provider_factor: row.provider_factor.unwrap_or(false),
    }))
}

/// Returns true if the session exists, valid or not.
pub async fn session_exists(tx: &mut Tx<'_>, hash: &str) -> Result<bool, StoreError> {
    Ok(find!(tx, (String,), "SELECT hash FROM sessions WHERE hash = $1", hash)?.is_some())
}

pub async fn touch_session(tx: &mut Tx<'_>, hash: &str, now: Timestamp) -> Result<(), StoreError> {
    exec!(tx, "UPDATE sessions SET last_seen_at = $2 WHERE hash = $1", hash, now).map(|_| ())
}

pub async fn delete_session(tx: &mut Tx<'_>, hash: &str) -> Result<(), StoreError> {
    exec!(tx, "DELETE FROM sessions WHERE hash = $1", hash).map(|_| ())
}

/// Adds a token of a user. `parent` is the token that creates it.
pub async fn insert_token(
    tx: &mut Tx<'_>,
    org: Option<OrgId>,
    user: UserId,
    token: &Token,
    hash: &str,
    parent: Option<TokenId>,
) -> Result<(), StoreError> {
    exec!(
        tx,
        "INSERT INTO tokens (id, org_id, user_id, name, role, hash, hint, created_at, expires_at, parent_id, \
         scopes, networks) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
        token.id,
        org,
        user,
        &token.name,
        token.role,
        hash,
        &token.hint,
        token.created_at,
        token.expires_at,
        parent,
        token.scopes.iter().copied().collect::<ApiScopes>(),
        token.networks.join(" ")
    )
    .map(|_| ())
}

/// An API token with its organization (absent: an operator's token), role and user.
pub struct TokenGrant {
    pub id: TokenId,
    pub org: Option<OrgId>,
    pub role: Role,
    pub scopes: ApiScopes,
    /// The networks of accepted requests; empty: all.
    pub networks: Vec<String>,
    pub user: User,
    /// The present role of the user as an operator; absent for all other users.
    pub operator_role: Option<OperatorRole>,
    pub last_used_at: Option<Timestamp>,
    pub expires_at: Option<Timestamp>,
}

/// The networks in a column.
fn split_networks(text: &str) -> Vec<String> {
    text.split_ascii_whitespace().map(str::to_owned).collect()
}

/// Finds a token that has not expired, of an account that is not disabled.
pub async fn find_token(
    tx: &mut Tx<'_>,
    hash: &str,
    now: Timestamp,
) -> Result<Option<TokenGrant>, StoreError> {
    #[derive(sqlx::FromRow)]
    struct GrantRow {
        token_id: TokenId,
        org_id: Option<OrgId>,
        role: Role,
        scopes: ApiScopes,
        networks: String,
        last_used_at: Option<Timestamp>,
        expires_at: Option<Timestamp>,
        #[sqlx(flatten)]
        user: UserRow,
        operator_role: Option<OperatorRole>,
    }
    let sql = "SELECT t.id AS token_id, t.org_id, t.role, t.scopes, t.networks, t.last_used_at, t.expires_at, \
               u.id, u.email, u.name, u.operator, u.operator_role FROM tokens t \
               JOIN users u ON u.id = t.user_id WHERE t.hash = $1 AND (t.expires_at IS NULL OR t.expires_at > $2) \
               AND u.disabled_at IS NULL";
    Ok(find!(tx, GrantRow, sql, hash, now)?.map(|row| TokenGrant {
        id: row.token_id,
        org: row.org_id,
        role: row.role,
        scopes: row.scopes,
        networks: split_networks(&row.networks),
        user: row.user.into(),
        operator_role: row.operator_role,
        last_used_at: row.last_used_at,
        expires_at: row.expires_at,
    }))
}

/// Finds the networks of a token; `None` for an unknown token.
pub async fn find_networks(tx: &mut Tx<'_>, token: TokenId) -> Result<Option<Vec<String>>, StoreError> {
    let sql = "SELECT networks, id AS row_id FROM tokens WHERE id = $1";
    Ok(find!(tx, (String,), sql, token)?.map(|(networks,)| split_networks(&networks)))
}

/// Returns true if the token exists, has not expired, and is of an account that is not disabled.
pub async fn token_exists(tx: &mut Tx<'_>, token: TokenId, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "SELECT t.id FROM tokens t JOIN users u ON u.id = t.user_id \
               WHERE t.id = $1 AND (t.expires_at IS NULL OR t.expires_at > $2) AND u.disabled_at IS NULL";
    Ok(find!(tx, (TokenId,), sql, token, now)?.is_some())
}

/// Counts the tokens of an organization, or (`None`) of operators.
pub async fn count_tokens(tx: &mut Tx<'_>, org: Option<OrgId>) -> Result<i64, StoreError> {
    let count = match org {
        Some(org) => find!(tx, (i64,), "SELECT CAST(COUNT(*) AS BIGINT) FROM tokens WHERE org_id = $1", org)?,
        None => find!(tx, (i64,), "SELECT CAST(COUNT(*) AS BIGINT) FROM tokens WHERE org_id IS NULL")?,
    };
    Ok(count.map_or(0, |(n,)| n))
}

pub async fn touch_token(tx: &mut Tx<'_>, token: TokenId, now: Timestamp) -> Result<(), StoreError> {
    exec!(tx, "UPDATE tokens SET last_used_at = $2 WHERE id = $1", token, now).map(|_| ())
}

/// Lists a page of the tokens of an organization, or (`None`) of operators, by id.
pub async fn list_tokens(
    tx: &mut Tx<'_>,
    org: Option<OrgId>,
    options: &ListOptions<TokenId>,
) -> Result<Vec<Token>, StoreError> {
    #[derive(sqlx::FromRow)]
    struct TokenRow {
        id: TokenId,
        name: String,
        role: Role,
        scopes: ApiScopes,
        networks: String,
        service_account: Option<String>,
        hint: String,
        created_at: Timestamp,
        expires_at: Option<Timestamp>,
        last_used_at: Option<Timestamp>,
    }
    macro_rules! select_tokens {
        ($condition:literal) => {
            concat!(
                "SELECT id, name, role, scopes, networks, hint, created_at, expires_at, last_used_at, \
                 (SELECT u.name FROM users u WHERE u.id = tokens.user_id AND u.service) AS service_account \
                 FROM tokens WHERE ",
                $condition
            )
        };
    }
    let sql = match org {
        Some(_) => page_sql!(options.sort, [select_tokens!("org_id = $1")], "id", "$2", "$3"),
        None => page_sql!(options.sort, [select_tokens!("$1 = '' AND org_id IS NULL")], "id", "$2", "$3"),
    };
    let owner = org.map_or_else(String::new, |org| org.to_string());
    let rows = list!(tx, TokenRow, sql, owner, options.cursor_text(), options.rows())?;
    let token = |row: TokenRow| Token {
        id: row.id,
        name: row.name,
        role: row.role,
        scopes: row.scopes.iter().collect(),
        networks: split_networks(&row.networks),
        service_account: row.service_account,
        hint: row.hint,
        created_at: row.created_at,
        expires_at: row.expires_at,
        last_used_at: row.last_used_at,
    };
    Ok(rows.into_iter().map(token).collect())
}

/// Deletes a token of this organization, or (`None`) of an operator, with all tokens that it created. Returns the
/// deleted tokens with their names, oldest first; none if the token does not exist.
pub async fn delete_token(
    tx: &mut Tx<'_>,
    org: Option<OrgId>,
    token: TokenId,
) -> Result<Vec<(TokenId, String)>, StoreError> {
    let owner = org.map_or_else(String::new, |org| org.to_string());
    let sql = "WITH RECURSIVE created AS (\
                 SELECT id FROM tokens WHERE id = $1 AND COALESCE(org_id, '') = $2 \
                 UNION ALL \
                 SELECT t.id FROM tokens t JOIN created c ON t.parent_id = c.id) \
               DELETE FROM tokens WHERE id IN (SELECT id FROM created) RETURNING id, name";
    let mut deleted: Vec<(TokenId, String)> = list!(tx, (TokenId, String), sql, token, owner)?;
    deleted.sort_unstable_by_key(|(id, _)| *id);
    Ok(deleted)
}

pub async fn find_setting(tx: &mut Tx<'_>, name: &str) -> Result<Option<String>, StoreError> {
    let sql = "SELECT value, name AS row_id FROM settings WHERE name = $1";
    Ok(find!(tx, (String,), sql, name)?.map(|(value,)| value))
}

/// The setting with the portal settings as JSON.
pub const PORTAL_SETTINGS: &str = "portal";

/// The portal settings; the defaults before the first change.
pub async fn portal_settings(tx: &mut Tx<'_>) -> Result<PortalSettings, StoreError> {
    let text = find_setting(tx, PORTAL_SETTINGS).await?;
    text.map_or(Ok(PortalSettings::default()), |text| {
        serde_json::from_str(&text)
            .map_err(|error| StoreError::corrupt("settings", PORTAL_SETTINGS, "value", error))
    })
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
    let new =
        exec!(tx, sql, scope, key, &replay.request_hash, i64::from(replay.status), &replay.answer, now)?;
    Ok(new > 0)
}

pub async fn find_idempotency(tx: &mut Tx<'_>, scope: &str, key: &str) -> Result<Option<Replay>, StoreError> {
    let sql = "SELECT request_hash, status, answer, idempotency_key AS row_id FROM idempotency_keys \
               WHERE scope = $1 AND idempotency_key = $2";
    let row = find!(tx, (String, i64, String), sql, scope, key)?;
    row.map(|(request_hash, status, answer)| {
        let status = u16::try_from(status)
            .map_err(|error| StoreError::corrupt("idempotency_keys", key, "status", error))?;
        Ok(Replay { request_hash, status, answer })
    })
    .transpose()
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
    exec!(tx, sql, scope, key, &replay.request_hash, status, &replay.answer, now).map(|_| ())
}

/// Deletes the answers that were stored before a time.
pub async fn forget_answers(tx: &mut Tx<'_>, before: Timestamp) -> Result<(), StoreError> {
    exec!(tx, "DELETE FROM idempotency_keys WHERE created_at < $1", before).map(|_| ())
}

/// Deletes the sessions that have expired, or were not used after `idle_since`.
pub async fn forget_sessions(
    tx: &mut Tx<'_>,
    now: Timestamp,
    idle_since: Timestamp,
) -> Result<(), StoreError> {
    let sql = "DELETE FROM sessions WHERE expires_at <= $1 OR last_seen_at <= $2";
    exec!(tx, sql, now, idle_since).map(|_| ())
}
