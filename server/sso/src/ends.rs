//! The end of access after a removal or a sign-out at the provider.

use berth_foundation::Change;
use berth_oidc::read_logout;
use berth_store::sso::StoredGrant;
use berth_store::{self as store, StoreError, Tx};
use berth_types::ids::{OrgId, TokenId};
use berth_types::problems::Problem;
use berth_types::quotas::AuditEvent;
use berth_types::sso::SsoFailure;
use futures::FutureExt;

use super::{Refused, SingleSignOn};
use berth_accounts::grants::NewGrant;

/// The hashes of the cookies of ended sessions, and the ended tokens.
type Ended = (Vec<String>, Vec<TokenId>);

/// Ends all sessions and API tokens of the identity of a grant.
async fn end_all(tx: &mut Tx<'_>, grant: &StoredGrant, event: AuditEvent) -> Result<Ended, StoreError> {
    let (issuer, subject) = (&grant.issuer, &grant.subject);
    let mut sessions = Vec::new();
    for known in store::sso::list_identity_grants(tx, issuer, subject).await? {
        if store::sso::end_session(tx, &known.hash).await? {
            sessions.push(known.hash);
        }
    }
    let listed = store::sso::list_identity_tokens(tx, issuer, subject).await?;
    let tokens = end_tokens(tx, listed).await?;
    store::sso::delete_grants(tx, issuer, subject).await?;
    let counts = format!("; sessions {}, tokens {}", sessions.len(), tokens.len());
    let event = AuditEvent { detail: event.detail.clone() + &counts, ..event };
    store::quotas::insert_audit(tx, grant.org_id, &event).await?;
    Ok((sessions, tokens))
}

/// Ends tokens, with those that they created.
pub(super) async fn end_tokens(
    tx: &mut Tx<'_>,
    listed: Vec<(TokenId, Option<OrgId>)>,
) -> Result<Vec<TokenId>, StoreError> {
    let mut tokens = Vec::new();
    for (token, org) in listed {
        let deleted = store::accounts::delete_token(tx, org, token).await?;
        tokens.extend(deleted.into_iter().map(|(token, _)| token));
    }
    Ok(tokens)
}

impl SingleSignOn {
    /// An event of a provider.
    fn provider_event(&self, subject: &str, detail: String) -> AuditEvent {
        let mut event = self.providers.context.visitor_event("sso.ended", subject.to_owned(), detail);
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
        let done = self.providers.context.db.write(move |tx| {
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

    /// Ends all sessions and API tokens of an identity, after the removal of its provider.
    pub(super) async fn end_identity(&self, grant: &StoredGrant, cause: &str) -> Result<(), StoreError> {
        let event = self.provider_event(&grant.subject, cause.to_owned());
        let grant = grant.clone();
        let done = self.providers.context.db.write(move |tx| {
            let (grant, event) = (grant.clone(), event.clone());
            async move { end_all(tx, &grant, event).await }.boxed()
        });
        self.publish_end(done.await?);
        Ok(())
    }

    /// Ends the session of a grant that no refresh renews. The provider may have ended this grant only, so the other
    /// grants of the identity are refreshed at once. The end of the last one ends the identity.
    pub(super) async fn end_grant(&self, grant: &StoredGrant, cause: &str) -> Result<(), StoreError> {
        let now = self.providers.context.now();
        let event = self.provider_event(&grant.subject, cause.to_owned());
        let grant = grant.clone();
        let done = self.providers.context.db.write(move |tx| {
            let (grant, event) = (grant.clone(), event.clone());
            async move {
                let known = store::sso::list_identity_grants(tx, &grant.issuer, &grant.subject).await?;
                if !known.iter().any(|row| row.hash == grant.hash) {
                    // Another request ended it.
                    return Ok((Vec::new(), Vec::new()));
                }
                if !known.iter().any(|row| row.hash != grant.hash && row.sealed_refresh.is_some()) {
                    return end_all(tx, &grant, event).await;
                }
                let is_ended = store::sso::end_session(tx, &grant.hash).await?;
                store::sso::delete_grant(tx, &grant.hash).await?;
                store::sso::hasten_grants(tx, &grant.issuer, &grant.subject, now).await?;
                let sessions: Vec<String> = is_ended.then_some(grant.hash).into_iter().collect();
                if is_ended {
                    let event =
                        AuditEvent { detail: event.detail.clone() + "; sessions 1, tokens 0", ..event };
                    store::quotas::insert_audit(tx, grant.org_id, &event).await?;
                }
                Ok((sessions, Vec::new()))
            }
            .boxed()
        });
        self.publish_end(done.await?);
        Ok(())
    }

    /// Ends the streams of sessions and tokens that are deleted already.
    fn publish_end(&self, (sessions, tokens): Ended) {
        self.providers.publish_ended(&sessions);
        tokens.into_iter().for_each(|token| self.providers.context.publish(Change::TokenRevoked(token)));
    }

    /// Ends the sessions that a logout token of a provider names.
    ///
    /// # Errors
    /// The token is not valid, or was used before.
    pub async fn log_out(&self, org: Option<OrgId>, token: &str) -> Result<(), Refused> {
        let context = &self.providers.context;
        let (provider, _) = self.providers.get_provider(org).await?;
        let claims = self.protocol.verify_logout_token(&provider, token).await?;
        let now_s = context.now().millis() / 1_000;
        let logout = read_logout(&claims, &provider.issuer, &provider.client_id, now_s)?;
        let id = format!("{} {}", provider.issuer, logout.id);
        if self.logouts.is_used(&id) {
            return Err(Refused::new(SsoFailure::Token, "The logout token was used before."));
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
        self.end_grants(org, grants, "Signed out at the provider").await?;
        // Claimed after the end: a provider sends a token again after a failure of the portal.
        self.logouts.claim(id);
        Ok(())
    }

    /// Ends the sessions and API tokens of an operator who left the group of the operators. Other people keep theirs:
    /// the provider may be that of an organization too.
    pub(super) async fn end_former_operator(&self, former: NewGrant) -> Result<(), StoreError> {
        let context = &self.providers.context;
        let mut conn = context.db.read().await?;
        let mut tx = conn.tx();
        let (issuer, subject) = (&former.issuer, &former.subject);
        let user = match store::sso::find_identity(&mut tx, issuer, subject).await? {
            Some(user) => store::accounts::find_user(&mut tx, user).await?,
            None => None,
        };
        let grants = store::sso::list_identity_grants(&mut tx, issuer, subject).await?;
        let tokens = store::sso::list_identity_tokens(&mut tx, issuer, subject).await?;
        drop(conn);
        let is_operator = user.is_some_and(|user| user.operator);
        if !is_operator || (grants.is_empty() && tokens.is_empty()) {
            return Ok(());
        }
        let grant = former.for_session("", context.now());
        self.end_identity(&grant, "The person left the group of the operators").await
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
