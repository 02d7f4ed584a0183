//! Single sign-on by OpenID Connect: sign-ins, the accounts and members that they make, and the end of access after a
//! removal at the provider.
//!
//! Each organization has at most one provider, and the operators have one of their own. A provider decides about
//! addresses of the confirmed domains of its organization only, and never about operators.

mod admission;
mod domains;
mod ends;
mod flow;
pub mod membership;
mod proofs;
mod provider;
mod refresh;
mod reseal;
pub mod routes;

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_foundation::Context;
use berth_foundation::delivery::Transport;
use berth_foundation::dns::{DnsServer, TxtRecords};
use berth_foundation::envelope::EnvelopeError;
use berth_oidc::{OidcError, Protocol};
use berth_store::StoreError;
use berth_types::problems::Problem;
use berth_types::sso::SsoFailure;
use lru::LruCache;
use tokio::sync::Semaphore;

use berth_accounts::accounts::Accounts;
use berth_accounts::throttle::{DomainThrottle, IssuerThrottle, LogoutThrottle, SsoThrottle};
use refresh::SilentProviders;

/// Used states of sign-ins, and used logout tokens, in memory. The least recent one makes room for a new one.
const USED: usize = 1 << 14;
/// Reads of new issuers at the same time.
const ISSUER_READS: usize = 8;

/// A refused sign-in: the cause for the person, and the detail for the audit log.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    pub failure: SsoFailure,
    pub detail: String,
}

impl Refused {
    pub fn new(failure: SsoFailure, detail: impl ToString) -> Self {
        Self { failure, detail: detail.to_string() }
    }
}

impl From<OidcError> for Refused {
    fn from(error: OidcError) -> Self {
        Self::new(error.failure, error.detail)
    }
}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        let failure = match problem.code.as_str() {
            "account.disabled" => SsoFailure::Disabled,
            // The account changed during the sign-in.
            "auth.challenge" | "auth.wrong_password" => SsoFailure::Expired,
            _ => SsoFailure::Internal,
        };
        Self::new(failure, problem)
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        Problem::from(error).into()
    }
}

impl From<EnvelopeError> for Refused {
    fn from(error: EnvelopeError) -> Self {
        Self::new(SsoFailure::Internal, error)
    }
}

/// Values that are valid once.
#[derive(Clone)]
struct UsedOnce(Arc<Mutex<LruCache<String, ()>>>);

impl Default for UsedOnce {
    fn default() -> Self {
        let entries = NonZeroUsize::new(USED).unwrap_or(NonZeroUsize::MIN);
        Self(Arc::new(Mutex::new(LruCache::new(entries))))
    }
}

impl UsedOnce {
    fn lock(&self) -> MutexGuard<'_, LruCache<String, ()>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_used(&self, value: &str) -> bool {
        self.lock().contains(value)
    }

    /// Uses a value. Returns true the first time.
    fn claim(&self, value: String) -> bool {
        self.lock().put(value, ()).is_none()
    }
}

/// The providers of organizations and of the operators, with their domains.
#[derive(Clone)]
pub struct Providers {
    context: Context,
    transport: Arc<Transport>,
    dns: Arc<dyn TxtRecords>,
    domain_throttle: Arc<DomainThrottle>,
    issuer_throttle: Arc<IssuerThrottle>,
    /// The places for reads of new issuers.
    issuer_reads: Arc<Semaphore>,
}

/// Single sign-on for organizations and operators.
#[derive(Clone)]
pub struct SingleSignOn {
    pub providers: Providers,
    accounts: Accounts,
    protocol: Protocol,
    throttle: Arc<SsoThrottle>,
    logout_throttle: Arc<LogoutThrottle>,
    /// The states of completed sign-ins.
    states: UsedOnce,
    /// The ids of logout tokens.
    logouts: UsedOnce,
    silent: SilentProviders,
}

impl SingleSignOn {
    pub fn new(context: Context, accounts: Accounts, transport: Arc<Transport>) -> Self {
        let dns = Arc::new(DnsServer::new(context.settings.dns_server));
        Self {
            protocol: Protocol::new(context.clone(), transport.clone()),
            providers: Providers {
                context,
                transport,
                dns,
                domain_throttle: Arc::default(),
                issuer_throttle: Arc::default(),
                issuer_reads: Arc::new(Semaphore::new(ISSUER_READS)),
            },
            accounts,
            throttle: Arc::default(),
            logout_throttle: Arc::default(),
            states: UsedOnce::default(),
            logouts: UsedOnce::default(),
            silent: SilentProviders::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_used_once() {
        let used = UsedOnce::default();
        assert!(!used.is_used("a") && !used.is_used("a"));
        assert!(used.claim("a".to_owned()) && !used.claim("a".to_owned()));
        assert!(used.is_used("a"));
        assert!((0..USED + 10).all(|n| used.claim(n.to_string())));
        assert_eq!(used.lock().len(), USED);
    }
}
