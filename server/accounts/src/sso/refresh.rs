//! The refreshes of grants, which show the removal of a person at the provider.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_oidc::{Provider, RefreshError};
use berth_store::sso::StoredGrant;
use berth_store::{self as store, StoreError};
use berth_types::ids::OrgId;
use berth_types::sso::SsoFailure;
use berth_types::time::Timestamp;
use futures::{FutureExt, StreamExt, stream};

use super::SingleSignOn;
use super::flow::with_refresh_context;
use crate::grants::{REFRESH_S, next_refresh};

/// Grants of one run.
const GRANTS: i64 = 256;
/// Requests at once.
const REQUESTS: usize = 8;
/// The longest wait for the answer to one refresh.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The longest session without an answer of its provider, in seconds.
const SILENT_S: i64 = 900;
/// The longest pause after failed requests to a provider, in seconds.
const MAX_PAUSE_S: i64 = 120;

/// A provider that does not answer.
struct Silence {
    failures: u32,
    until: Timestamp,
}

/// The providers that do not answer. Each of them has sessions, so their number is that of the providers.
#[derive(Clone, Default)]
pub struct SilentProviders(Arc<Mutex<HashMap<Option<OrgId>, Silence>>>);

impl SilentProviders {
    fn lock(&self) -> MutexGuard<'_, HashMap<Option<OrgId>, Silence>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_silent(&self, org: Option<OrgId>, now: Timestamp) -> bool {
        self.lock().get(&org).is_some_and(|silence| silence.until > now)
    }

    /// Records a failed request. Returns the time of the next one.
    fn record_failure(&self, org: Option<OrgId>, now: Timestamp) -> Timestamp {
        let mut silent = self.lock();
        let silence = silent.entry(org).or_insert(Silence { failures: 0, until: now });
        if silence.until <= now {
            let pause_s = (REFRESH_S << silence.failures.min(8)).min(MAX_PAUSE_S);
            silence.failures = silence.failures.saturating_add(1);
            silence.until = now.plus_seconds(pause_s);
        }
        silence.until
    }

    fn record_answer(&self, org: Option<OrgId>) {
        self.lock().remove(&org);
    }
}

impl SingleSignOn {
    /// Refreshes the due grants, and ends the access of removed people. Returns true if more grants are due.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn tick_grants(&self) -> Result<bool, StoreError> {
        let context = &self.accounts.context;
        let now = context.now();
        let idle_since = now.plus_seconds(-context.settings.session_idle_s);
        let mut conn = context.db.read().await?;
        let due = store::sso::list_due_grants(&mut conn.tx(), now, idle_since, GRANTS).await?;
        drop(conn);
        let more = i64::try_from(due.len()).unwrap_or(GRANTS) >= GRANTS;
        let mut providers: HashMap<Option<OrgId>, Option<Provider>> = HashMap::new();
        for grant in &due {
            if providers.contains_key(&grant.org_id) {
                continue;
            }
            let found = match self.providers.get_provider(grant.org_id).await {
                Ok((provider, _)) => Some(provider),
                Err(refused) if refused.failure == SsoFailure::NoProvider => None,
                // The secret or the database cannot be read: no reason to end a session.
                Err(refused) => return Err(StoreError::Engine(refused.detail)),
            };
            providers.insert(grant.org_id, found);
        }
        let work: Vec<_> = due
            .into_iter()
            .map(|grant| {
                let (this, provider) = (self.clone(), providers.get(&grant.org_id).cloned().flatten());
                async move { this.refresh_grant(provider, grant).await }
            })
            .collect();
        let results: Vec<Result<(), StoreError>> =
            stream::iter(work).buffer_unordered(REQUESTS).collect().await;
        results.into_iter().collect::<Result<(), StoreError>>()?;
        // After a pause of the portal each grant has a try before its session ends.
        if !more {
            self.end_silent_grants(now).await?;
        }
        Ok(more)
    }

    async fn end_silent_grants(&self, now: Timestamp) -> Result<(), StoreError> {
        let mut conn = self.accounts.context.db.read().await?;
        let since = now.plus_seconds(-SILENT_S);
        let silent = store::sso::list_silent_grants(&mut conn.tx(), since, GRANTS).await?;
        drop(conn);
        for grant in silent {
            let cause = "The provider did not answer for 15 minutes";
            self.end_grants(grant.org_id, vec![grant], cause).await?;
        }
        Ok(())
    }

    async fn refresh_grant(&self, provider: Option<Provider>, grant: StoredGrant) -> Result<(), StoreError> {
        let context = &self.accounts.context;
        let Some(provider) = provider.filter(|provider| provider.issuer == grant.issuer) else {
            return self.end_identity(&grant, "The provider was removed").await;
        };
        if self.silent.is_silent(grant.org_id, context.now()) {
            return Ok(());
        }
        let sealed = grant.sealed_refresh.as_deref().unwrap_or_default();
        let keys = context.keys().map_err(StoreError::Engine)?;
        let opened =
            with_refresh_context(&grant.issuer, &grant.subject, |context| keys.open_sealed(context, sealed));
        let Ok(token) = opened else {
            // Nothing would show the removal of the person.
            return self.end_identity(&grant, "The refresh token cannot be opened").await;
        };
        let asked = tokio::time::timeout(TIMEOUT, self.protocol.refresh(&provider, token.clone())).await;
        let error = match asked {
            Ok(Ok(new)) => {
                self.silent.record_answer(grant.org_id);
                return self.record_answer(grant, new.unwrap_or(token)).await;
            }
            Ok(Err(RefreshError::Ended)) => {
                self.silent.record_answer(grant.org_id);
                return self.end_identity(&grant, "The provider ended the access").await;
            }
            Ok(Err(RefreshError::NoAnswer(error))) => error,
            Err(_) => "no answer in time".to_owned(),
        };
        tracing::warn!(issuer = grant.issuer, error, "a provider of single sign-on does not answer");
        let (org, next_at) = (grant.org_id, self.silent.record_failure(grant.org_id, context.now()));
        let postpone = context
            .db
            .write(move |tx| async move { store::sso::postpone_grants(tx, org, next_at).await }.boxed());
        postpone.await
    }

    /// Stores the present refresh token of a grant after an answer.
    async fn record_answer(&self, grant: StoredGrant, token: String) -> Result<(), StoreError> {
        let context = &self.accounts.context;
        let keys = context.keys().map_err(StoreError::Engine)?;
        let sealed =
            with_refresh_context(&grant.issuer, &grant.subject, |context| keys.seal(context, &token));
        let sealed = sealed.map_err(|error| StoreError::Engine(error.to_string()))?;
        let (hash, now) = (grant.hash, context.now());
        let recorded = context.db.write(move |tx| {
            let (hash, sealed) = (hash.clone(), sealed.clone());
            async move { store::sso::record_answer(tx, &hash, &sealed, now, next_refresh(now)).await }.boxed()
        });
        recorded.await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pauses_of_a_silent_provider_grow_to_two_minutes() {
        let silent = SilentProviders::default();
        let at = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000);
        assert!(!silent.is_silent(None, at(0)));
        assert_eq!(silent.record_failure(None, at(0)), at(30));
        // Another request of the same run does not make the pause longer.
        assert_eq!(silent.record_failure(None, at(1)), at(30));
        assert!(silent.is_silent(None, at(29)) && !silent.is_silent(None, at(30)));
        assert_eq!(silent.record_failure(None, at(30)), at(90));
        for n in 0..20 {
            assert_eq!(silent.record_failure(None, at(200 + n * 120)), at(320 + n * 120));
        }
        silent.record_answer(None);
        assert_eq!(silent.record_failure(None, at(5_000)), at(5_030));
    }
}
