//! Single sign-on: providers of organizations, searches of their domains, identities of users, and the grants of
//! sessions.

use berth_types::accounts::Role;
use berth_types::ids::{OrgId, TokenId, UserId};
use berth_types::sso::{ClaimedDomain, GroupRole, Identity};
use berth_types::time::Timestamp;

use super::types::JsonColumn;
use super::{StoreError, Tx};

/// The most rows of a list of domains or identities.
pub(crate) const MAX_ROWS: i64 = 200;

/// The provider of an organization.
#[derive(Clone, sqlx::FromRow)]
pub struct StoredProvider {
    pub org_id: OrgId,
    pub issuer: String,
    pub client_id: String,
    /// The sealed secret of the client.
    pub sealed_secret: String,
    pub group_claim: String,
    pub roles: JsonColumn<Vec<GroupRole>>,
    /// The role of a person without a listed group.
    pub default_role: Option<Role>,
    pub create_members: bool,
    pub required: bool,
    pub updated_at: Timestamp,
}

macro_rules! select_providers {
    ($rest:literal) => {
        concat!(
            "SELECT org_id, issuer, client_id, sealed_secret, group_claim, roles, default_role, create_members, \
             required, updated_at FROM sso_providers ",
            $rest
        )
    };
}

pub async fn find_provider(tx: &mut Tx<'_>, org: OrgId) -> Result<Option<StoredProvider>, StoreError> {
    find!(tx, StoredProvider, select_providers!("WHERE org_id = $1"), org)
}

/// Lists the providers of all organizations.
pub async fn list_providers(tx: &mut Tx<'_>) -> Result<Vec<StoredProvider>, StoreError> {
    list!(tx, StoredProvider, select_providers!("ORDER BY org_id"))
}

/// Returns true if an organization has a provider.
pub async fn provider_exists(tx: &mut Tx<'_>) -> Result<bool, StoreError> {
    Ok(find!(tx, (OrgId,), "SELECT org_id FROM sso_providers LIMIT 1")?.is_some())
}

/// Adds or replaces the provider of an organization. Another client forgets the identities of the former one.
pub async fn put_provider(tx: &mut Tx<'_>, new: &StoredProvider) -> Result<(), StoreError> {
    forget_identities(tx, new.org_id, &new.client_id).await?;
    let sql = "INSERT INTO sso_providers (org_id, issuer, client_id, sealed_secret, group_claim, roles, default_role, \
               create_members, required, updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) \
               ON CONFLICT (org_id) DO UPDATE SET issuer = excluded.issuer, client_id = excluded.client_id, \
               sealed_secret = excluded.sealed_secret, group_claim = excluded.group_claim, roles = excluded.roles, \
               default_role = excluded.default_role, create_members = excluded.create_members, \
               required = excluded.required, updated_at = excluded.updated_at";
    exec!(
        tx,
        sql,
        new.org_id,
        &new.issuer,
        &new.client_id,
        &new.sealed_secret,
        &new.group_claim,
        &new.roles,
        new.default_role,
        new.create_members,
        new.required,
        new.updated_at
    )
    .map(|_| ())
}

/// Replaces the sealed secret. Returns true if the stored one was still that of `row`.
pub async fn reseal_provider(
    tx: &mut Tx<'_>,
    row: &StoredProvider,
    sealed: &str,
) -> Result<bool, StoreError> {
    let sql = "UPDATE sso_providers SET sealed_secret = $2 WHERE org_id = $1 AND sealed_secret = $3";
    Ok(exec!(tx, sql, row.org_id, sealed, &row.sealed_secret)? == 1)
}

/// Deletes the provider of an organization with its domains, and forgets the identities there. Returns true if it
/// existed.
pub async fn delete_provider(tx: &mut Tx<'_>, org: OrgId) -> Result<bool, StoreError> {
    forget_identities(tx, org, "").await?;
    exec!(tx, "DELETE FROM sso_domains WHERE org_id = $1", org)?;
    Ok(exec!(tx, "DELETE FROM sso_providers WHERE org_id = $1", org)? == 1)
}

pub async fn find_org_by_slug(tx: &mut Tx<'_>, slug: &str) -> Result<Option<OrgId>, StoreError> {
    Ok(find!(tx, (OrgId,), "SELECT id FROM orgs WHERE slug = $1", slug)?.map(|(org,)| org))
}

pub async fn delete_domain(tx: &mut Tx<'_>, org: OrgId, domain: &str) -> Result<(), StoreError> {
    exec!(tx, "DELETE FROM sso_domains WHERE org_id = $1 AND domain = $2", org, domain).map(|_| ())
}

/// Finds the organization for which a domain is confirmed.
pub async fn find_domain_org(tx: &mut Tx<'_>, domain: &str) -> Result<Option<OrgId>, StoreError> {
    let sql = "SELECT org_id FROM sso_domains WHERE domain = $1 AND confirmed_at IS NOT NULL";
    Ok(find!(tx, (OrgId,), sql, domain)?.map(|(org,)| org))
}

/// A text as a part of a pattern of LIKE. The escape character is `!`.
fn escaped(text: &str) -> String {
    text.replace('!', "!!").replace('%', "!%").replace('_', "!_")
}

/// Lists the domains of all organizations with `text` in the domain or in the name of the organization: at most 200
/// without a confirmation, then at most 200 with one, so that neither hides the other. The domain that is `text` is first
/// in each part.
pub async fn list_claimed_domains(tx: &mut Tx<'_>, text: &str) -> Result<Vec<ClaimedDomain>, StoreError> {
    #[derive(sqlx::FromRow)]
    struct DomainRow {
        domain: String,
        org_id: OrgId,
        name: String,
        created_at: Timestamp,
        confirmed_at: Option<Timestamp>,
    }
    let sql = "SELECT domain, org_id, name, created_at, confirmed_at FROM (\
                 SELECT d.domain, d.org_id, o.name, d.created_at, d.confirmed_at, \
                 ROW_NUMBER() OVER (PARTITION BY CASE WHEN d.confirmed_at IS NULL THEN 0 ELSE 1 END \
                 ORDER BY CASE WHEN d.domain = $2 THEN 0 ELSE 1 END, d.created_at DESC, d.domain, d.org_id) AS place \
                 FROM sso_domains d JOIN orgs o ON o.id = d.org_id \
                 WHERE $1 = '%%' OR d.domain LIKE $1 ESCAPE '!' OR LOWER(o.name) LIKE $1 ESCAPE '!') claimed \
               WHERE place <= $3 ORDER BY CASE WHEN confirmed_at IS NULL THEN 0 ELSE 1 END, place";
    let text = text.to_lowercase();
    let rows = list!(tx, DomainRow, sql, format!("%{}%", escaped(&text)), &text, MAX_ROWS)?;
    let claimed = |row: DomainRow| ClaimedDomain {
        domain: row.domain,
        organization: row.org_id,
        organization_name: row.name,
        created_at: row.created_at,
        confirmed_at: row.confirmed_at,
    };
    Ok(rows.into_iter().map(claimed).collect())
}

/// Finds an organization that requires its provider of this user: the user is a member, no owner, and has an address
/// of the organization's confirmed domain.
pub async fn find_required_org(
    tx: &mut Tx<'_>,
    user: UserId,
    domain: &str,
) -> Result<Option<String>, StoreError> {
    let sql = "SELECT o.name FROM members m JOIN orgs o ON o.id = m.org_id \
               JOIN sso_providers p ON p.org_id = m.org_id JOIN sso_domains d ON d.org_id = m.org_id \
               WHERE m.user_id = $1 AND d.domain = $2 AND m.role <> 'owner' AND p.required \
               AND d.confirmed_at IS NOT NULL LIMIT 1";
    Ok(find!(tx, (String,), sql, user, domain)?.map(|(name,)| name))
}

/// Ends the sessions without a grant of this organization of all members with an address of a domain, except owners
/// and operators. Returns the hashes of their cookies.
pub async fn end_password_sessions(
    tx: &mut Tx<'_>,
    org: OrgId,
    domain: &str,
) -> Result<Vec<String>, StoreError> {
    let sql = "DELETE FROM sessions WHERE user_id IN (SELECT m.user_id FROM members m \
               JOIN users u ON u.id = m.user_id WHERE m.org_id = $1 AND m.role <> 'owner' \
               AND NOT u.operator AND u.email LIKE $2 ESCAPE '!') \
               AND NOT EXISTS (SELECT 1 FROM sso_grants g WHERE g.hash = sessions.hash AND g.org_id = $1) \
               RETURNING hash";
    let pattern = format!("%@{}", escaped(domain));
    Ok(list!(tx, (String,), sql, org, pattern)?.into_iter().map(|(hash,)| hash).collect())
}

/// Finds the user of an identity.
pub async fn find_identity(
    tx: &mut Tx<'_>,
    issuer: &str,
    subject: &str,
) -> Result<Option<UserId>, StoreError> {
    let sql = "SELECT i.user_id FROM sso_identities i JOIN users u ON u.id = i.user_id \
               WHERE i.issuer = $1 AND i.subject = $2 AND u.deleted_at IS NULL AND NOT u.service";
    Ok(find!(tx, (UserId,), sql, issuer, subject)?.map(|(user,)| user))
}

/// Links an identity with a person, or records its use.
///
/// # Errors
/// [`StoreError::Refused`] for a service account and for a deleted person: neither has an identity.
pub async fn put_identity(
    tx: &mut Tx<'_>,
    issuer: &str,
    subject: &str,
    user: UserId,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO sso_identities (issuer, subject, user_id, created_at, last_used_at) \
               SELECT $1, $2, u.id, $4, $4 FROM users u \
               WHERE u.id = $3 AND u.deleted_at IS NULL AND NOT u.service \
               ON CONFLICT (issuer, subject) DO UPDATE SET last_used_at = $4";
    if exec!(tx, sql, issuer, subject, user, now)? == 1 { Ok(()) } else { Err(StoreError::Refused) }
}

/// Lists the identities of a user.
pub async fn list_identities(tx: &mut Tx<'_>, user: UserId) -> Result<Vec<Identity>, StoreError> {
    let sql = "SELECT issuer, created_at, last_used_at FROM sso_identities WHERE user_id = $1 \
               ORDER BY created_at, issuer LIMIT $2";
    let rows = list!(tx, (String, Timestamp, Timestamp), sql, user, MAX_ROWS)?;
    let identity = |(issuer, created_at, last_used_at)| Identity { issuer, created_at, last_used_at };
    Ok(rows.into_iter().map(identity).collect())
}

/// The grant of a provider for a session.
#[derive(Clone, sqlx::FromRow)]
pub struct StoredGrant {
    /// The hash of the cookie of the session.
    pub hash: String,
    /// The organization of the provider; absent for the provider of the operators.
    pub org_id: Option<OrgId>,
    pub issuer: String,
    pub subject: String,
    /// The session at the provider; empty without one.
    pub sid: String,
    pub second_factor: bool,
    /// The sealed refresh token.
    pub sealed_refresh: Option<String>,
    pub answered_at: Timestamp,
}

macro_rules! select_grants {
    ($rest:literal) => {
        concat!(
            "SELECT hash, org_id, issuer, subject, sid, second_factor, sealed_refresh, answered_at FROM sso_grants ",
            $rest
        )
    };
}

pub async fn insert_grant(tx: &mut Tx<'_>, new: &StoredGrant, next_at: Timestamp) -> Result<(), StoreError> {
    let sql = "INSERT INTO sso_grants (hash, org_id, issuer, subject, sid, second_factor, sealed_refresh, created_at, \
               answered_at, next_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8, $9)";
    exec!(
        tx,
        sql,
        &new.hash,
        new.org_id,
        &new.issuer,
        &new.subject,
        &new.sid,
        new.second_factor,
        &new.sealed_refresh,
        new.answered_at,
        next_at
    )
    .map(|_| ())
}

/// Lists the grants with a due refresh: those of sessions that are valid at `now`, and of identities with API tokens,
/// except of disabled accounts. `rows` has the most grants of all providers and of each one. The longest due grants of
/// each provider are first.
pub async fn list_due_grants(
    tx: &mut Tx<'_>,
    now: Timestamp,
    idle_since: Timestamp,
    (rows, provider_rows): (i64, i64),
) -> Result<Vec<StoredGrant>, StoreError> {
    let sql = "SELECT hash, org_id, issuer, subject, sid, second_factor, sealed_refresh, answered_at FROM (\
                 SELECT hash, org_id, issuer, subject, sid, second_factor, sealed_refresh, answered_at, next_at, \
                 ROW_NUMBER() OVER (PARTITION BY COALESCE(org_id, '') ORDER BY next_at, hash) AS place \
                 FROM sso_grants WHERE sealed_refresh IS NOT NULL AND next_at <= $1 AND \
                 (EXISTS (SELECT 1 FROM sessions s WHERE s.hash = sso_grants.hash AND s.expires_at > $1 \
                  AND s.last_seen_at > $2) \
                  OR EXISTS (SELECT 1 FROM sso_tokens t JOIN tokens k ON k.id = t.token_id \
                  JOIN users u ON u.id = k.user_id WHERE t.issuer = sso_grants.issuer \
                  AND t.subject = sso_grants.subject AND u.disabled_at IS NULL))) due \
               WHERE place <= $4 ORDER BY place, next_at, hash LIMIT $3";
    list!(tx, StoredGrant, sql, now, idle_since, rows, provider_rows)
}

/// Lists the grants of sessions that are valid at `now` whose provider did not answer after `since`, nor to a present
/// try.
pub async fn list_silent_grants(
    tx: &mut Tx<'_>,
    (since, now, idle_since): (Timestamp, Timestamp, Timestamp),
    rows: i64,
) -> Result<Vec<StoredGrant>, StoreError> {
    let sql = select_grants!(
        "WHERE sealed_refresh IS NOT NULL AND answered_at <= $1 AND next_at > $2 \
         AND EXISTS (SELECT 1 FROM sessions s WHERE s.hash = sso_grants.hash AND s.expires_at > $2 \
         AND s.last_seen_at > $3) ORDER BY answered_at, hash LIMIT $4"
    );
    list!(tx, StoredGrant, sql, since, now, idle_since, rows)
}

/// Lists all grants with a refresh token.
pub async fn list_sealed_grants(tx: &mut Tx<'_>) -> Result<Vec<StoredGrant>, StoreError> {
    list!(tx, StoredGrant, select_grants!("WHERE sealed_refresh IS NOT NULL ORDER BY hash"))
}

/// Finds the grant of a session by the hash of its cookie.
pub async fn find_grant(tx: &mut Tx<'_>, hash: &str) -> Result<Option<StoredGrant>, StoreError> {
    find!(tx, StoredGrant, select_grants!("WHERE hash = $1"), hash)
}

/// Lists the grants of an identity.
pub async fn list_identity_grants(
    tx: &mut Tx<'_>,
    issuer: &str,
    subject: &str,
) -> Result<Vec<StoredGrant>, StoreError> {
    list!(tx, StoredGrant, select_grants!("WHERE issuer = $1 AND subject = $2"), issuer, subject)
}

/// Lists the grants of a session at a provider.
pub async fn list_session_grants(
    tx: &mut Tx<'_>,
    issuer: &str,
    sid: &str,
) -> Result<Vec<StoredGrant>, StoreError> {
    list!(tx, StoredGrant, select_grants!("WHERE issuer = $1 AND sid = $2 AND sid <> ''"), issuer, sid)
}

/// Records the answer of a provider, with the present refresh token.
pub async fn record_answer(
    tx: &mut Tx<'_>,
    hash: &str,
    sealed: &str,
    now: Timestamp,
    next_at: Timestamp,
) -> Result<(), StoreError> {
    let sql = "UPDATE sso_grants SET sealed_refresh = $2, answered_at = $3, next_at = $4 WHERE hash = $1";
    exec!(tx, sql, hash, sealed, now, next_at).map(|_| ())
}

/// Replaces the sealed refresh token. Returns true if the stored one was still that of `row`.
pub async fn reseal_grant(tx: &mut Tx<'_>, row: &StoredGrant, sealed: &str) -> Result<bool, StoreError> {
    let sql = "UPDATE sso_grants SET sealed_refresh = $2 WHERE hash = $1 AND sealed_refresh = $3";
    Ok(exec!(tx, sql, &row.hash, sealed, &row.sealed_refresh)? == 1)
}

/// Postpones the due refreshes of a provider that does not answer.
pub async fn postpone_grants(
    tx: &mut Tx<'_>,
    org: Option<OrgId>,
    next_at: Timestamp,
) -> Result<(), StoreError> {
    let sql = "UPDATE sso_grants SET next_at = $2 WHERE COALESCE(org_id, '') = $1 AND next_at < $2";
    let org = org.map_or_else(String::new, |org| org.to_string());
    exec!(tx, sql, org, next_at).map(|_| ())
}

/// Makes the refreshes of an identity due at `now`.
pub async fn hasten_grants(
    tx: &mut Tx<'_>,
    issuer: &str,
    subject: &str,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = "UPDATE sso_grants SET next_at = $3 WHERE issuer = $1 AND subject = $2 AND next_at > $3";
    exec!(tx, sql, issuer, subject, now).map(|_| ())
}

/// Ends the session of a grant. Returns true if it existed.
pub async fn end_session(tx: &mut Tx<'_>, hash: &str) -> Result<bool, StoreError> {
    Ok(exec!(tx, "DELETE FROM sessions WHERE hash = $1", hash)? == 1)
}

/// Ends all sessions by the provider of an organization. Returns the hashes of their cookies.
pub async fn end_org_sessions(tx: &mut Tx<'_>, org: OrgId) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT s.hash FROM sessions s JOIN sso_grants g ON g.hash = s.hash WHERE g.org_id = $1";
    let ended = list!(tx, (String,), sql, org)?.into_iter().map(|(hash,)| hash).collect();
    exec!(tx, "DELETE FROM sessions WHERE hash IN (SELECT hash FROM sso_grants WHERE org_id = $1)", org)?;
    exec!(tx, "DELETE FROM sso_grants WHERE org_id = $1", org)?;
    Ok(ended)
}

pub async fn delete_grant(tx: &mut Tx<'_>, hash: &str) -> Result<(), StoreError> {
    exec!(tx, "DELETE FROM sso_grants WHERE hash = $1", hash).map(|_| ())
}

/// Deletes all grants of an identity.
pub async fn delete_grants(tx: &mut Tx<'_>, issuer: &str, subject: &str) -> Result<(), StoreError> {
    exec!(tx, "DELETE FROM sso_grants WHERE issuer = $1 AND subject = $2", issuer, subject).map(|_| ())
}

/// Records that a token was made in a session with a grant, or by a token of one. Other tokens change nothing.
pub async fn record_token(
    tx: &mut Tx<'_>,
    token: TokenId,
    session: Option<&str>,
    parent: Option<TokenId>,
) -> Result<(), StoreError> {
    if let Some(session) = session {
        let sql = "INSERT INTO sso_tokens (token_id, issuer, subject) \
                   SELECT $1, issuer, subject FROM sso_grants WHERE hash = $2";
        exec!(tx, sql, token, session)?;
    } else if let Some(parent) = parent {
        let sql = "INSERT INTO sso_tokens (token_id, issuer, subject) \
                   SELECT $1, issuer, subject FROM sso_tokens WHERE token_id = $2";
        exec!(tx, sql, token, parent)?;
    }
    Ok(())
}

/// Lists the tokens of an identity with their organizations.
pub async fn list_identity_tokens(
    tx: &mut Tx<'_>,
    issuer: &str,
    subject: &str,
) -> Result<Vec<(TokenId, Option<OrgId>)>, StoreError> {
    let sql = "SELECT t.id, t.org_id FROM sso_tokens x JOIN tokens t ON t.id = x.token_id \
               WHERE x.issuer = $1 AND x.subject = $2 ORDER BY t.id";
    list!(tx, (TokenId, Option<OrgId>), sql, issuer, subject)
}

/// Lists the tokens of the identities of an organization's provider, with the organizations of the tokens. A token is
/// left out while the provider of another organization still refreshes its identity.
pub async fn list_org_tokens(
    tx: &mut Tx<'_>,
    org: OrgId,
) -> Result<Vec<(TokenId, Option<OrgId>)>, StoreError> {
    let sql = "SELECT t.id, t.org_id FROM sso_tokens x JOIN tokens t ON t.id = x.token_id \
               WHERE EXISTS (SELECT 1 FROM sso_grants g WHERE g.issuer = x.issuer AND g.subject = x.subject \
                 AND g.org_id = $1) \
               AND NOT EXISTS (SELECT 1 FROM sso_grants o WHERE o.issuer = x.issuer AND o.subject = x.subject \
                 AND (o.org_id IS NULL OR o.org_id <> $1) AND o.sealed_refresh IS NOT NULL) ORDER BY t.id";
    list!(tx, (TokenId, Option<OrgId>), sql, org)
}

/// Deletes the identities and grants of a user, and the records of providers about the user.
pub async fn forget_person(tx: &mut Tx<'_>, user: UserId) -> Result<(), StoreError> {
    super::scim::forget_person(tx, user).await?;
    let sql = "DELETE FROM sso_grants WHERE EXISTS (SELECT 1 FROM sso_identities i WHERE i.user_id = $1 \
               AND i.issuer = sso_grants.issuer AND i.subject = sso_grants.subject)";
    exec!(tx, sql, user)?;
    exec!(tx, "DELETE FROM sso_identities WHERE user_id = $1", user).map(|_| ())
}

/// Deletes the grants of ended sessions, except the latest one of each identity with API tokens.
pub async fn forget_grants(tx: &mut Tx<'_>) -> Result<(), StoreError> {
    let sql = "DELETE FROM sso_grants WHERE NOT EXISTS (SELECT 1 FROM sessions s WHERE s.hash = sso_grants.hash) \
               AND (sealed_refresh IS NULL OR NOT EXISTS (SELECT 1 FROM sso_tokens t \
                 WHERE t.issuer = sso_grants.issuer AND t.subject = sso_grants.subject) \
               OR EXISTS (SELECT 1 FROM sso_grants n WHERE n.issuer = sso_grants.issuer \
                 AND n.subject = sso_grants.subject AND n.created_at > sso_grants.created_at \
                 AND n.sealed_refresh IS NOT NULL))";
    exec!(tx, sql).map(|_| ())
}

/// Returns true if a user has an identity at an issuer.
pub async fn has_identity(tx: &mut Tx<'_>, issuer: &str, user: UserId) -> Result<bool, StoreError> {
    let sql = "SELECT user_id FROM sso_identities WHERE issuer = $1 AND user_id = $2 LIMIT 1";
    Ok(find!(tx, (UserId,), sql, issuer, user)?.is_some())
}

/// Deletes the identities of people with an address of a confirmed domain at the provider of their organization, unless
/// its client is still `client_id`. Some providers give each client other subjects, so people get new identities at
/// their next sign-in. Operators keep theirs.
async fn forget_identities(tx: &mut Tx<'_>, org: OrgId, client_id: &str) -> Result<(), StoreError> {
    let sql = "DELETE FROM sso_identities WHERE user_id IN (SELECT u.id FROM users u JOIN sso_domains d \
               ON u.email LIKE '%@' || d.domain \
               WHERE d.org_id = $1 AND d.confirmed_at IS NOT NULL AND NOT u.operator) \
               AND issuer IN (SELECT issuer FROM sso_providers WHERE org_id = $1 AND client_id <> $2)";
    exec!(tx, sql, org, client_id).map(|_| ())
}
