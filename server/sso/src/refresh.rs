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
use tokio::time::Instant;

use super::SingleSignOn;
use super::flow::with_refresh_context;
use berth_accounts::grants::{REFRESH_S, next_refresh};

/// Grants of one run.
const GRANTS: i64 = 256;
/// Grants of one provider in a run, so that no provider holds up the others.
const PROVIDER_GRANTS: i64 = 32;
/// Providers at once.
const PROVIDERS: usize = 32;
/// Requests at once to one provider.
const PROVIDER_REQUESTS: usize = 2;
/// The time for the first requests of a run. Later ones stay due.
const RUN: Duration = Duration::from_secs(10);
/// The longest wait for the answer to one refresh. The three requests of one end earlier, so a new refresh token that
/// arrives is not lost.
const TIMEOUT: Duration = Duration::from_secs(35);
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

    /// The time of the next request to a provider that does not answer at `now`.
    fn find_pause(&self, org: Option<OrgId>, now: Timestamp) -> Option<Timestamp> {
        self.lock().get(&org).map(|silence| silence.until).filter(|until| *until > now)
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
        let context = &self.providers.context;
        let now = context.now();
        let idle_since = now.plus_seconds(-context.settings.session_idle_s);
        let mut conn = context.db.read().await?;
        let rows = (GRANTS, PROVIDER_GRANTS);
        let due = store::sso::list_due_grants(&mut conn.tx(), now, idle_since, rows).await?;
        drop(conn);
        let is_full = |grants: usize, most: i64| i64::try_from(grants).is_ok_and(|grants| grants >= most);
        let all = due.len();
        let mut by_provider: HashMap<Option<OrgId>, Vec<StoredGrant>> = HashMap::new();
        for grant in due {
            by_provider.entry(grant.org_id).or_default().push(grant);
        }
        let more =
            is_full(all, GRANTS) || by_provider.values().any(|grants| is_full(grants.len(), PROVIDER_GRANTS));
        let work: Vec<_> = by_provider
            .into_iter()
            .map(|(org, grants)| {
                let this = self.clone();
                async move { this.refresh_provider(org, grants, now).await }
            })
            .collect();
        let results: Vec<Result<(), StoreError>> =
            stream::iter(work).buffer_unordered(PROVIDERS).collect().await;
        results.into_iter().collect::<Result<(), StoreError>>()?;
        self.end_silent_grants(now, idle_since).await?;
        Ok(more)
    }

    /// Refreshes the due grants of one provider.
    async fn refresh_provider(
        &self,
        org: Option<OrgId>,
        grants: Vec<StoredGrant>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        if let Some(until) = self.silent.find_pause(org, now) {
            return self.postpone(org, until).await;
        }
        let provider = match self.providers.get_provider(org).await {
            Ok((provider, _)) => Some(provider),
            Err(refused) if refused.failure == SsoFailure::NoProvider => None,
            // The secret of the client cannot be read: no reason to end a session at once.
            Err(refused) => {
                let org_id = org.map_or_else(String::new, |org| org.to_string());
                tracing::error!(
                    org = org_id,
                    error = refused.detail,
                    "a provider of single sign-on cannot be read"
                );
                return self.postpone(org, self.silent.record_failure(org, now)).await;
            }
        };
        let ends = Instant::now() + RUN;
        let work: Vec<_> = grants
            .into_iter()
            .map(|grant| {
                let (this, provider) = (self.clone(), provider.clone());
                async move {
                    if Instant::now() >= ends {
                        return Ok(());
                    }
                    this.refresh_grant(provider, grant).await
                }
            })
            .collect();
        let results: Vec<Result<(), StoreError>> =
            stream::iter(work).buffer_unordered(PROVIDER_REQUESTS).collect().await;
        results.into_iter().collect()
    }

    /// Postpones the due refreshes of a provider.
    async fn postpone(&self, org: Option<OrgId>, next_at: Timestamp) -> Result<(), StoreError> {
        let db = &self.providers.context.db;
        db.write(move |tx| async move { store::sso::postpone_grants(tx, org, next_at).await }.boxed()).await
    }

    /// Ends the sessions whose provider did not answer for long. Each grant has a try before, also after a pause of
    /// the portal.
    async fn end_silent_grants(&self, now: Timestamp, idle_since: Timestamp) -> Result<(), StoreError> {
        let mut conn = self.providers.context.db.read().await?;
        let since = now.plus_seconds(-SILENT_S);
        let times = (since, now, idle_since);
        let silent = store::sso::list_silent_grants(&mut conn.tx(), times, GRANTS).await?;
        drop(conn);
        for grant in silent {
            let cause = "The provider did not answer for 15 minutes";
            self.end_grants(grant.org_id, vec![grant], cause).await?;
        }
        Ok(())
    }

    async fn refresh_grant(&self, provider: Option<Provider>, grant: StoredGrant) -> Result<(), StoreError> {
        let context = &self.providers.context;
        let Some(provider) = provider.filter(|provider| provider.issuer == grant.issuer) else {
            return self.end_identity(&grant, "The provider was removed").await;
        };
        if self.silent.find_pause(grant.org_id, context.now()).is_some() {
            return Ok(());
        }
        let sealed = grant.sealed_refresh.as_deref().unwrap_or_default();
        let keys = context.keys().map_err(StoreError::Engine)?;
        let opened =
            with_refresh_context(&grant.issuer, &grant.subject, |context| keys.open_sealed(context, sealed));
        let Ok(token) = opened else {
            // This grant shows no removal of the person.
            return self.end_grant(&grant, "The refresh token cannot be opened").await;
        };
        let asked = tokio::time::timeout(TIMEOUT, self.protocol.refresh(&provider, token.clone())).await;
        let error = match asked {
            Ok(Ok(new)) => {
                self.silent.record_answer(grant.org_id);
                return self.record_answer(grant, new.unwrap_or(token)).await;
            }
            Ok(Err(RefreshError::Ended)) => {
                self.silent.record_answer(grant.org_id);
                return self.end_grant(&grant, "The provider ended the access").await;
            }
            Ok(Err(RefreshError::NoAnswer(error))) => error,
            Err(_) => "no answer in time".to_owned(),
        };
        tracing::warn!(issuer = grant.issuer, error, "a provider of single sign-on does not answer");
        self.postpone(grant.org_id, self.silent.record_failure(grant.org_id, context.now())).await
    }

    /// Stores the present refresh token of a grant after an answer.
    async fn record_answer(&self, grant: StoredGrant, token: String) -> Result<(), StoreError> {
        let context = &self.providers.context;
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
        assert_eq!(silent.find_pause(None, at(0)), None);
        assert_eq!(silent.record_failure(None, at(0)), at(30));
        // Another request of the same run does not make the pause longer.
        assert_eq!(silent.record_failure(None, at(1)), at(30));
        assert_eq!(silent.find_pause(None, at(29)), Some(at(30)));
        assert_eq!(silent.find_pause(None, at(30)), None);
        assert_eq!(silent.record_failure(None, at(30)), at(90));
        for n in 0..20 {
            assert_eq!(silent.record_failure(None, at(200 + n * 120)), at(320 + n * 120));
        }
        silent.record_answer(None);
        assert_eq!(silent.record_failure(None, at(5_000)), at(5_030));
    }
}
