//! Rate limits for sign-ins, codes, sign-ups, links in mail and invitations. No account is locked, and no mailbox is
//! flooded.
//!
//! A sign-in is counted before its password is verified, so the limits hold for right passwords too. Three limits
//! apply: for one account from one network, for one network, and for one account from all networks. The last one
//! does not apply to networks that signed in to the account before, so strangers cannot lock its owner out there.
//! These networks are in memory: after a restart of the portal all networks are new.
//! Keys are hashes, and each limit has a fixed number of entries. Addresses without an account have no entry in the
//! limit for accounts, so they displace none.

mod providers;

use std::hash::{BuildHasher, Hash, RandomState};
use std::net::IpAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_foundation::proxies::network;
use berth_types::ids::{OrgId, TokenId, UserId};
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use lru::LruCache;

pub use providers::{DomainThrottle, IssuerThrottle, LogoutThrottle, PasskeyThrottle, SsoThrottle};

/// Entries of one limit. The least recent entry makes room for a new one.
const ENTRIES: usize = 1 << 16;

/// A number of events at once, then one more in each interval.
#[derive(Clone, Copy)]
struct Rate {
    burst: u32,
    every_s: u64,
}

/// Sign-ins to one account from one network.
const PAIR: Rate = Rate { burst: 10, every_s: 10 };
/// Sign-ins from one network. Many people can share it.
const NETWORK: Rate = Rate { burst: 200, every_s: 1 };
/// Sign-ins to one account from networks that are new to it.
const ACCOUNT: Rate = Rate { burst: 100, every_s: 30 };
/// Codes of second factors for one account from all networks. A person who tries them knows the password.
const CODE: Rate = Rate { burst: 30, every_s: 300 };
/// Sign-ups from one network.
const SIGN_UP: Rate = Rate { burst: 50, every_s: 60 };
/// Requests of one network for links by mail.
const LINK_NETWORK: Rate = Rate { burst: 20, every_s: 60 };
/// Links by mail to one address.
const LINK_MAILBOX: Rate = Rate { burst: 3, every_s: 3_600 };
/// The requests at once of one caller, as a multiple of those in a second.
const REQUEST_BURST: u32 = 20;
/// Invitations of one organization.
const ORG: Rate = Rate { burst: 30, every_s: 60 };
/// Invitations of one organization to one address. No organization uses up the limit of another.
const ADDRESS: Rate = Rate { burst: 5, every_s: 600 };
/// Invitations of all organizations to one address. Anyone can found organizations.
const MAILBOX: Rate = Rate { burst: 20, every_s: 600 };

/// An empty cache with a fixed number of entries.
fn cache<V>() -> Mutex<LruCache<u64, V>> {
    Mutex::new(LruCache::new(NonZeroUsize::new(ENTRIES).unwrap_or(NonZeroUsize::MIN)))
}

/// Counts events by key.
struct Limiter {
    quota: Quota,
    hasher: RandomState,
    entries: Mutex<LruCache<u64, DefaultDirectRateLimiter>>,
}

impl Limiter {
    fn new(rate: Rate) -> Self {
        let burst = NonZeroU32::new(rate.burst).unwrap_or(NonZeroU32::MIN);
        let quota = Quota::with_period(Duration::from_secs(rate.every_s))
            .unwrap_or_else(|| Quota::per_second(NonZeroU32::MIN))
            .allow_burst(burst);
        Self::with_quota(quota)
    }

    fn with_quota(quota: Quota) -> Self {
        Self { quota, hasher: RandomState::new(), entries: cache() }
    }

    fn entries(&self) -> MutexGuard<'_, LruCache<u64, DefaultDirectRateLimiter>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one event of a key. Beyond the quota it returns the seconds to wait.
    fn count(&self, key: impl Hash) -> Option<u64> {
        let key = self.hasher.hash_one(key);
        let mut entries = self.entries();
        let limiter = entries.get_or_insert(key, || RateLimiter::direct(self.quota));
        let refusal = limiter.check().err()?;
        Some(refusal.wait_time_from(DefaultClock::default().now()).as_secs().saturating_add(1))
    }

    /// Gives a key its full quota again.
    fn reset(&self, key: impl Hash) {
        self.entries().pop(&self.hasher.hash_one(key));
    }
}

/// Counts the requests of signed-in callers.
pub struct RequestThrottle(Option<Limiter>);

impl RequestThrottle {
    /// With this number of requests a second, and twenty times as many at once. 0 is no limit.
    pub fn new(per_s: u32) -> Self {
        let burst = |per_s: NonZeroU32| per_s.saturating_mul(NonZeroU32::new(REQUEST_BURST).unwrap_or(per_s));
        let limiter =
            |per_s: NonZeroU32| Limiter::with_quota(Quota::per_second(per_s).allow_burst(burst(per_s)));
        Self(NonZeroU32::new(per_s).map(limiter))
    }

    /// Counts a request of a person or of a token. Beyond the limit it returns the seconds to wait.
    pub fn count_request(&self, user: UserId, token: Option<TokenId>) -> Option<u64> {
        self.0.as_ref()?.count((user, token))
    }
}

/// Counts sign-ins.
pub struct SignInThrottle {
    by_pair: Limiter,
    by_network: Limiter,
    by_account: Limiter,
    /// Hashes of the accounts and networks of past sign-ins.
    known: Mutex<LruCache<u64, ()>>,
    hasher: RandomState,
}

impl Default for SignInThrottle {
    fn default() -> Self {
        Self {
            by_pair: Limiter::new(PAIR),
            by_network: Limiter::new(NETWORK),
            by_account: Limiter::new(ACCOUNT),
            known: cache(),
            hasher: RandomState::new(),
        }
    }
}

impl SignInThrottle {
    /// Counts a sign-in to an address, with or without an account, for the limits of its network. Beyond a limit it
    /// returns the seconds to wait.
    pub fn count_sender(&self, account: &str, from: Option<IpAddr>) -> Option<u64> {
        let network = from.map(network);
        let by_network = network.and_then(|network| self.by_network.count(network));
        // A refused attempt counts for no further limit.
        by_network.or_else(|| self.by_pair.count((account, network)))
    }

    /// Counts a sign-in for the limit of an existing account. Beyond the limit it returns the seconds to wait.
    pub fn count_account(&self, account: &str, from: Option<IpAddr>) -> Option<u64> {
        let known = self.hasher.hash_one((account, from.map(network)));
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&known).is_some();
        if known { None } else { self.by_account.count(account) }
    }

    /// Counts a sign-in to an existing account before its password is verified. Beyond a limit it returns the seconds
    /// to wait.
    pub fn count_attempt(&self, account: &str, from: Option<IpAddr>) -> Option<u64> {
        self.count_sender(account, from).or_else(|| self.count_account(account, from))
    }

    /// Records a right password: the account has its full quota again from this network.
    pub fn record_success(&self, account: &str, from: Option<IpAddr>) {
        let network = from.map(network);
        self.by_pair.reset((account, network));
        let known = self.hasher.hash_one((account, network));
        self.known.lock().unwrap_or_else(PoisonError::into_inner).put(known, ());
    }
}

/// Counts codes of second factors by account.
pub struct CodeThrottle(Limiter);

impl Default for CodeThrottle {
    fn default() -> Self {
        Self(Limiter::new(CODE))
    }
}

impl CodeThrottle {
    /// Counts a code before its verification. Beyond the quota it returns the seconds to wait.
    pub fn count_code(&self, user: UserId) -> Option<u64> {
        self.0.count(user)
    }

    /// Records a right code: the account has its full quota again.
    pub fn record_success(&self, user: UserId) {
        self.0.reset(user);
    }
}

/// Counts sign-ups by network.
pub struct SignUpThrottle(Limiter);

impl Default for SignUpThrottle {
    fn default() -> Self {
        Self(Limiter::new(SIGN_UP))
    }
}

impl SignUpThrottle {
    /// Counts a sign-up. Beyond the quota it returns the seconds to wait.
    pub fn count_sign_up(&self, from: Option<IpAddr>) -> Option<u64> {
        self.0.count(network(from?))
    }
}

/// Counts links by mail, by network and by address. Addresses without an account count too.
pub struct LinkThrottle {
    by_network: Limiter,
    by_mailbox: Limiter,
}

impl Default for LinkThrottle {
    fn default() -> Self {
        Self { by_network: Limiter::new(LINK_NETWORK), by_mailbox: Limiter::new(LINK_MAILBOX) }
    }
}

impl LinkThrottle {
    /// Counts a link to an address. Beyond a quota it returns the seconds to wait.
    pub fn count_link(&self, address: &str, from: Option<IpAddr>) -> Option<u64> {
        // A request that is refused for its network must not count for the address.
        let by_network = from.and_then(|address| self.by_network.count(network(address)));
        by_network.or_else(|| self.by_mailbox.count(address))
    }
}

/// Counts invitations by organization, by organization and invited address, and by invited address.
pub struct InvitationThrottle {
    by_org: Limiter,
    by_address: Limiter,
    by_mailbox: Limiter,
}

impl Default for InvitationThrottle {
    fn default() -> Self {
        Self {
            by_org: Limiter::new(ORG),
            by_address: Limiter::new(ADDRESS),
            by_mailbox: Limiter::new(MAILBOX),
        }
    }
}

impl InvitationThrottle {
    /// Counts an invitation. Beyond a quota it returns the seconds to wait.
    pub fn count_invitation(&self, org: OrgId, address: &str) -> Option<u64> {
        // A refusal for the organization must not count for the address.
        self.by_org
            .count(org)
            .or_else(|| self.by_address.count((org, address)))
            .or_else(|| self.by_mailbox.count(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn attempts_slow_down_only_their_sender() {
        let throttle = SignInThrottle::default();
        let here = ip("192.0.2.1");
        for _ in 0..PAIR.burst {
            assert_eq!(throttle.count_attempt("ada@example.org", here), None);
        }
        let wait = throttle.count_attempt("ada@example.org", here).unwrap();
        assert!((1..=PAIR.every_s + 1).contains(&wait), "{wait}");
        assert_eq!(throttle.count_attempt("ada@example.org", ip("10.0.0.9")), None);
        assert_eq!(throttle.count_attempt("bob@example.org", here), None);
    }

    #[test]
    fn a_right_password_restores_the_quota() {
        let throttle = SignInThrottle::default();
        let here = ip("192.0.2.1");
        for _ in 0..5 {
            for _ in 0..PAIR.burst - 1 {
                assert_eq!(throttle.count_attempt("ada@example.org", here), None);
            }
            throttle.record_success("ada@example.org", here);
        }
    }

    #[test]
    fn one_network_is_limited_over_all_accounts() {
        let throttle = SignInThrottle::default();
        // All addresses of one /64 network are one sender.
        let address = |n: u32| ip(&format!("2001:db8::{n:x}"));
        for n in 0..NETWORK.burst {
            assert_eq!(throttle.count_attempt(&format!("{n}@example.org"), address(n)), None, "{n}");
        }
        assert!(throttle.count_attempt("new@example.org", address(9_999)).is_some());
        assert_eq!(throttle.count_attempt("new@example.org", ip("2001:db8:0:1::1")), None);
        // The mapped form of an IPv4 address is the same sender.
        for n in 0..NETWORK.burst {
            assert_eq!(throttle.count_attempt(&format!("{n}@example.net"), ip("198.51.100.7")), None, "{n}");
        }
        assert!(throttle.count_attempt("new@example.net", ip("::ffff:198.51.100.7")).is_some());
    }

    #[test]
    fn many_networks_cannot_lock_an_owner_out() {
        let throttle = SignInThrottle::default();
        let home = ip("192.0.2.1");
        assert_eq!(throttle.count_attempt("ada@example.org", home), None);
        throttle.record_success("ada@example.org", home);
        let stranger = |n: u32| Some(IpAddr::V4(std::net::Ipv4Addr::from_bits(0x0a00_0000 + n)));
        for n in 0..ACCOUNT.burst - 1 {
            assert_eq!(throttle.count_attempt("ada@example.org", stranger(n)), None, "{n}");
        }
        assert!(throttle.count_attempt("ada@example.org", stranger(7_000)).is_some());
        assert_eq!(throttle.count_attempt("ada@example.org", home), None);
    }

    #[test]
    fn addresses_without_an_account_displace_no_account() {
        let throttle = SignInThrottle::default();
        for n in 0..NETWORK.burst {
            assert_eq!(throttle.count_sender(&format!("{n}@example.org"), ip("192.0.2.1")), None);
        }
        assert_eq!(throttle.by_account.entries().len(), 0);
        assert_eq!(throttle.count_attempt("ada@example.org", ip("192.0.2.2")), None);
        assert_eq!(throttle.by_account.entries().len(), 1);
    }

    #[test]
    fn the_number_of_entries_is_fixed() {
        let limiter = Limiter::new(PAIR);
        for n in 0..ENTRIES + 100 {
            limiter.count(n);
        }
        assert_eq!(limiter.entries().len(), ENTRIES);
    }

    #[test]
    fn codes_are_limited_until_a_right_one() {
        let throttle = CodeThrottle::default();
        let user = |n: u128| UserId::from_uuid(uuid::Uuid::from_u128(n));
        for _ in 0..CODE.burst {
            assert_eq!(throttle.count_code(user(1)), None);
        }
        let wait = throttle.count_code(user(1)).unwrap();
        assert!((1..=CODE.every_s + 1).contains(&wait), "{wait}");
        assert_eq!(throttle.count_code(user(2)), None);
        throttle.record_success(user(1));
        assert_eq!(throttle.count_code(user(1)), None);
    }

    #[test]
    fn one_network_signs_up_a_limited_number_of_people() {
        let throttle = SignUpThrottle::default();
        for _ in 0..SIGN_UP.burst {
            assert_eq!(throttle.count_sign_up(ip("192.0.2.1")), None);
        }
        assert!(throttle.count_sign_up(ip("192.0.2.1")).is_some());
        assert_eq!(throttle.count_sign_up(ip("192.0.2.2")), None);
    }

    #[test]
    fn links_are_limited_by_address_and_by_network() {
        let links = LinkThrottle::default();
        for n in 0..LINK_MAILBOX.burst {
            assert_eq!(links.count_link("ada@example.org", ip(&format!("192.0.2.{n}"))), None);
        }
        let wait = links.count_link("ada@example.org", ip("192.0.2.99")).unwrap();
        assert!((1..=LINK_MAILBOX.every_s + 1).contains(&wait), "{wait}");
        for n in 0..LINK_NETWORK.burst {
            assert_eq!(links.count_link(&format!("{n}@example.net"), ip("198.51.100.7")), None);
        }
        assert!(links.count_link("new@example.net", ip("198.51.100.7")).is_some());
        assert_eq!(
            links.count_link("new@example.net", ip("198.51.100.8")),
            None,
            "the address was not counted"
        );
    }

    #[test]
    fn each_caller_has_a_rate_of_requests() {
        let user = UserId::from_uuid(uuid::Uuid::from_u128(1));
        let token = Some(TokenId::from_uuid(uuid::Uuid::from_u128(2)));
        let requests = RequestThrottle::new(1);
        for _ in 0..REQUEST_BURST {
            assert_eq!(requests.count_request(user, None), None);
        }
        assert!(requests.count_request(user, None).is_some_and(|wait_s| (1..=2).contains(&wait_s)));
        assert_eq!(requests.count_request(user, token), None, "a token has a rate of its own");
        let unlimited = RequestThrottle::new(0);
        assert!((0..1_000).all(|_| unlimited.count_request(user, None).is_none()));
    }

    #[test]
    fn many_organizations_cannot_flood_one_mailbox() {
        let invites = InvitationThrottle::default();
        let org = |n: u32| OrgId::from_uuid(uuid::Uuid::from_u128(n.into()));
        for n in 0..MAILBOX.burst {
            assert_eq!(invites.count_invitation(org(n), "ada@example.org"), None);
        }
        assert!(invites.count_invitation(org(MAILBOX.burst), "ada@example.org").is_some());
        assert_eq!(invites.count_invitation(org(MAILBOX.burst), "bob@example.org"), None);
    }

    #[test]
    fn organizations_and_addresses_have_separate_quotas() {
        let invites = InvitationThrottle::default();
        let org = |n: u128| OrgId::from_uuid(uuid::Uuid::from_u128(n));
        for _ in 0..ADDRESS.burst {
            assert_eq!(invites.count_invitation(org(1), "ada@example.org"), None);
        }
        let wait = invites.count_invitation(org(1), "ada@example.org").unwrap();
        assert!((1..=ADDRESS.every_s + 1).contains(&wait), "{wait}");
        assert_eq!(
            invites.count_invitation(org(2), "ada@example.org"),
            None,
            "another organization has its own"
        );
        // The refused invitation counts for its organization too.
        for n in ADDRESS.burst + 1..ORG.burst {
            assert_eq!(invites.count_invitation(org(1), &format!("{n}@example.org")), None);
        }
        let wait = invites.count_invitation(org(1), "late@example.org").unwrap();
        assert!((1..=ORG.every_s + 1).contains(&wait), "{wait}");
        assert_eq!(invites.count_invitation(org(2), "late@example.org"), None, "the address was not counted");
    }
}
