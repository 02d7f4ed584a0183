//! The grant of a provider for a session, and the sign-ins by password that an organization excludes.

use berth_foundation::{Change, Context, SessionKey};
use berth_oidc::domain_of;
use berth_store::sso::StoredGrant;
use berth_store::{self as store, StoreError, Tx, WriteError};
use berth_types::accounts::User;
use berth_types::ids::OrgId;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;

/// Seconds between two refreshes of a grant.
pub const REFRESH_S: i64 = 30;
/// The longest session without a refresh token, in seconds: nothing shows the removal of its person.
const UNREFRESHED_S: i64 = 8 * 3_600;

/// The grant of a provider for a new session.
#[derive(Clone)]
pub struct NewGrant {
    /// The organization of the provider; absent for the provider of the operators.
    pub org: Option<OrgId>,
    pub issuer: String,
    /// The client of the portal at the provider.
    pub client_id: String,
    pub subject: String,
    /// The session at the provider; empty without one.
    pub sid: String,
    /// True if the provider verified a second factor.
    pub second_factor: bool,
    /// The sealed refresh token.
    pub sealed_refresh: Option<String>,
}

impl NewGrant {
    /// Seconds of the longest session with this grant.
    pub const fn longest_s(&self) -> i64 {
        if self.sealed_refresh.is_some() { i64::MAX } else { UNREFRESHED_S }
    }

    /// The grant of the session with this hash.
    pub fn for_session(self, hash: &str, now: Timestamp) -> StoredGrant {
        StoredGrant {
            hash: hash.to_owned(),
            org_id: self.org,
            issuer: self.issuer,
            subject: self.subject,
            sid: self.sid,
            second_factor: self.second_factor,
            sealed_refresh: self.sealed_refresh,
            answered_at: now,
        }
    }
}

/// The time of the next refresh after an answer.
pub const fn next_refresh(now: Timestamp) -> Timestamp {
    now.plus_seconds(REFRESH_S)
}

/// The refusal of a sign-in without the necessary provider.
fn provider_required(detail: impl Into<String>) -> WriteError {
    Problem::new(403, "auth.sso_required", "Single sign-on required", detail).into()
}

/// Refuses a sign-in by password or passkey of a person whose organization permits single sign-on only, and of an
/// operator without a password: a passkey would outlast the removal at the provider of the operators. No organization
/// decides about operators.
///
/// # Errors
/// 403 for such a person.
pub async fn check_password_sign_in(
    tx: &mut Tx<'_>,
    user: &User,
    password_hash: &str,
) -> Result<(), WriteError> {
    if user.operator {
        if password_hash.is_empty() {
            return Err(provider_required(
                "An operator without a password signs in by the single sign-on of the operators only. You are not signed in. Choose “Continue with single sign-on”.",
            ));
        }
        return Ok(());
    }
    let domain = domain_of(&user.email);
    let Some(name) = store::sso::find_required_org(tx, user.id, &domain).await? else { return Ok(()) };
    Err(provider_required(format!(
        "The organization “{name}” permits single sign-on only. You are not signed in. Choose “Continue with single sign-on”."
    )))
}

/// Ends the sessions of members who need the provider of an organization and have another sign-in. Returns the hashes
/// of their cookies.
pub async fn end_without_provider(tx: &mut Tx<'_>, org: OrgId) -> Result<Vec<String>, StoreError> {
    let row = store::sso::find_provider(tx, org).await?;
    if row.is_none_or(|row| !row.required) {
        return Ok(Vec::new());
    }
    let mut ended = Vec::new();
    for known in store::sso_domains::list(tx, org).await? {
        if known.confirmed_at.is_some() {
            ended.extend(store::sso::end_password_sessions(tx, org, &known.domain).await?);
        }
    }
    Ok(ended)
}

/// Ends the streams of sessions that are deleted already.
pub fn publish_ended(context: &Context, hashes: &[String]) {
    for hash in hashes {
        context.publish(Change::SignedOut(SessionKey::from_hash(hash)));
    }
}
