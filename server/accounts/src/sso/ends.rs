//! The end of access after a removal or a sign-out at the provider.

use berth_foundation::{Change, SessionKey};
use berth_store::sso::StoredGrant;
use berth_store::{self as store, StoreError};
use berth_types::ids::{OrgId, TokenId};
use berth_types::problems::Problem;
use berth_types::quotas::AuditEvent;
use berth_types::sso::SsoFailure;
use futures::FutureExt;
use serde_json::{Map, Value};

use super::{Refused, SingleSignOn};

/// The event in a logout token.
const LOGOUT_EVENT: &str = "http://schemas.openid.net/event/backchannel-logout";
/// The greatest age of a logout token, and its greatest distance in the future, in seconds.
const LOGOUT_S: i64 = 300;
/// Characters of the id of a logout token.
const MAX_ID_CHARS: usize = 255;

/// The sessions that a logout token ends.
#[derive(Debug, PartialEq, Eq)]
struct Logout {
    /// The id of the token.
    id: String,
    sid: Option<String>,
    subject: Option<String>,
}

fn not_valid(detail: &str) -> Refused {
    Refused::new(SsoFailure::Token, detail)
}

/// Reads the claims of a logout token with a right signature. `now_s` is the time in seconds.
fn read_logout(
    claims: &Map<String, Value>,
    issuer: &str,
    client_id: &str,
    now_s: i64,
) -> Result<Logout, Refused> {
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    let is_audience = match claims.get("aud") {
        Some(Value::String(audience)) => audience == client_id,
        Some(Value::Array(audiences)) => audiences.iter().any(|one| one.as_str() == Some(client_id)),
        _ => false,
    };
    let is_recent = |at: i64| (now_s - LOGOUT_S..=now_s + LOGOUT_S).contains(&at);
    let has_event =
        claims.get("events").is_some_and(|events| events.get(LOGOUT_EVENT).is_some_and(Value::is_object));
    if text("iss") != Some(issuer) || !is_audience {
        return Err(not_valid("The logout token has another issuer or audience."));
    }
    if !claims.get("iat").and_then(Value::as_i64).is_some_and(is_recent) {
        return Err(not_valid("The logout token is too old."));
    }
    if claims.get("exp").is_some_and(|end| end.as_i64().is_none_or(|end| end <= now_s)) {
        return Err(not_valid("The logout token has expired."));
    }
    if !has_event || claims.contains_key("nonce") {
        return Err(not_valid("The token is no logout token."));
    }
    let id = text("jti").filter(|id| !id.is_empty() && id.chars().count() <= MAX_ID_CHARS);
    let id = id.ok_or_else(|| not_valid("The logout token has no id."))?.to_owned();
    let owned = |name: &str| text(name).filter(|text| !text.is_empty()).map(str::to_owned);
    let (sid, subject) = (owned("sid"), owned("sub"));
    if sid.is_none() && subject.is_none() {
        return Err(not_valid("The logout token names no session."));
    }
    Ok(Logout { id, sid, subject })
}

impl SingleSignOn {
    /// An event of a provider.
    fn provider_event(&self, subject: &str, detail: String) -> AuditEvent {
        let mut event = self.accounts.context.visitor_event("sso.ended", subject.to_owned(), detail);
        event.actor = "Sign-in service".to_owned();
        event
    }

    /// Ends the sessions of these grants. The grants stay: a refused refresh ends the API tokens of the identity.
    pub(super) async fn end_grants(
        &self,
        org: Option<OrgId>,
        grants: Vec<StoredGrant>,
        cause: &str,
    ) -> Result<(), StoreError> {
        let Some(first) = grants.first() else { return Ok(()) };
        let event = self.provider_event(&first.subject, cause.to_owned());
        let hashes: Vec<String> = grants.into_iter().map(|grant| grant.hash).collect();
        let done = self.accounts.context.db.write(move |tx| {
            let (hashes, event) = (hashes.clone(), event.clone());
            async move {
                let mut ended = Vec::new();
                for hash in hashes {
                    if store::sso::end_session(tx, &hash).await? {
                        ended.push(hash);
                    }
                }
                if !ended.is_empty() {
                    store::quotas::insert_audit(tx, org, &event).await?;
                }
                Ok(ended)
            }
            .boxed()
        });
        self.providers.publish_ended(&done.await?);
        Ok(())
    }

    /// Ends all sessions and API tokens of an identity, after its removal at the provider.
    pub(super) async fn end_identity(&self, grant: &StoredGrant, cause: &str) -> Result<(), StoreError> {
        let context = &self.accounts.context;
        let (org, issuer, subject) = (grant.org_id, grant.issuer.clone(), grant.subject.clone());
        let event = self.provider_event(&subject, cause.to_owned());
        let done = context.db.write(move |tx| {
            let (issuer, subject, event) = (issuer.clone(), subject.clone(), event.clone());
            async move {
                let mut sessions: Vec<String> = Vec::new();
                for grant in store::sso::list_identity_grants(tx, &issuer, &subject).await? {
                    if store::sso::end_session(tx, &grant.hash).await? {
                        sessions.push(grant.hash);
                    }
                }
                let mut tokens: Vec<TokenId> = Vec::new();
                for (token, org) in store::sso::list_identity_tokens(tx, &issuer, &subject).await? {
                    let deleted = store::accounts::delete_token(tx, org, token).await?;
                    tokens.extend(deleted.into_iter().map(|(token, _)| token));
                }
                store::sso::delete_grants(tx, &issuer, &subject).await?;
                let counts = format!("; sessions {}, tokens {}", sessions.len(), tokens.len());
                let event = AuditEvent { detail: event.detail.clone() + &counts, ..event };
                store::quotas::insert_audit(tx, org, &event).await?;
                Ok((sessions, tokens))
            }
            .boxed()
        });
        let (sessions, tokens) = done.await?;
        for hash in &sessions {
            context.publish(Change::SignedOut(SessionKey::from_hash(hash)));
        }
        tokens.into_iter().for_each(|token| context.publish(Change::TokenRevoked(token)));
        Ok(())
    }

    /// Ends the sessions that a logout token of a provider names.
    ///
    /// # Errors
    /// The token is not valid, or was used before.
    pub async fn log_out(&self, org: Option<OrgId>, token: &str) -> Result<(), Refused> {
        let context = &self.accounts.context;
        let (provider, _) = self.providers.get_provider(org).await?;
        let claims = self.protocol.verify_token(&provider, token).await?;
        let now_s = context.now().millis() / 1_000;
        let logout = read_logout(&claims, &provider.issuer, &provider.client_id, now_s)?;
        if !self.logouts.claim(format!("{} {}", provider.issuer, logout.id)) {
            return Err(not_valid("The logout token was used before."));
        }
        let mut conn = context.db.read().await?;
        let issuer = &provider.issuer;
        let grants = match (&logout.sid, &logout.subject) {
            (Some(sid), _) => store::sso::list_session_grants(&mut conn.tx(), issuer, sid).await?,
            (None, Some(subject)) => {
                store::sso::list_identity_grants(&mut conn.tx(), issuer, subject).await?
            }
            (None, None) => Vec::new(),
        };
        drop(conn);
        let is_named = |grant: &StoredGrant| {
            grant.org_id == org && logout.subject.as_ref().is_none_or(|subject| *subject == grant.subject)
        };
        let grants = grants.into_iter().filter(is_named).collect();
        Ok(self.end_grants(org, grants, "Signed out at the provider").await?)
    }
}

/// The answer to a refused logout token.
pub fn refused_logout(refused: Refused) -> Problem {
    match refused.failure {
        SsoFailure::NoProvider => Problem::not_found(),
        SsoFailure::Provider => Problem::unavailable("The keys of the provider cannot be read.", 5),
        SsoFailure::Internal => Problem::internal(),
        _ => Problem::new(400, "sso.logout_token", "Logout token refused", refused.detail),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_logout_token_has_its_claims_and_no_nonce() {
        let good = json!({
            "iss": "https://idp", "aud": ["berth"], "iat": 1_000, "jti": "1", "sid": "s", "events": {LOGOUT_EVENT: {}},
        });
        let read = |change: Value| {
            let mut claims = good.as_object().cloned().unwrap();
            for (name, value) in change.as_object().unwrap() {
                if value.is_null() {
                    claims.remove(name);
                } else {
                    claims.insert(name.clone(), value.clone());
                }
            }
            read_logout(&claims, "https://idp", "berth", 1_100)
        };
        assert_eq!(read(json!({})).unwrap().sid.as_deref(), Some("s"));
        assert_eq!(
            read(json!({"aud": "berth", "sid": null, "sub": "u"})).unwrap().subject.as_deref(),
            Some("u")
        );
        for bad in [
            json!({"iss": "https://other"}),
            json!({"aud": "other"}),
            json!({"iat": 700}),
            json!({"iat": null}),
            json!({"exp": 1_100}),
            json!({"events": {}}),
            json!({"nonce": "n"}),
            json!({"jti": null}),
            json!({"sid": null}),
        ] {
            assert!(read(bad.clone()).is_err(), "{bad}");
        }
    }
}
