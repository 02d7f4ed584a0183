//! Rate limits for wrong passwords and for invitations. No account is locked, and no mailbox is flooded.
//!
//! Only failed sign-ins count, by account and peer address together. Wrong passwords from one address
//! therefore slow down only that address, and the right password always opens a session.

use std::hash::Hash;
use std::net::IpAddr;
use std::num::NonZeroU32;

use berth_types::ids::OrgId;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

/// Failures before the limit, and seconds for each further failure.
const BURST: u32 = 10;
const EVERY_S: u64 = 10;

/// Invitations of one organization before the limit, and seconds for each further invitation.
const ORG_BURST: u32 = 30;
const ORG_EVERY_S: u64 = 60;
/// The same per invited address and organization, so no organization uses up the limit of another.
const ADDRESS_BURST: u32 = 5;
const ADDRESS_EVERY_S: u64 = 600;

/// The source of a sign-in: e-mail address of the account, and IP address of the peer.
type SignInSource = (String, Option<IpAddr>);

/// Counts failed sign-ins.
pub struct SignInThrottle(DefaultKeyedRateLimiter<SignInSource>);

/// A quota of `burst` at once, then one more every `every_s` seconds.
fn quota(burst: u32, every_s: u64) -> Quota {
    let burst = NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN);
    Quota::with_period(std::time::Duration::from_secs(every_s))
        .unwrap_or_else(|| Quota::per_second(NonZeroU32::MIN))
        .allow_burst(burst)
}

/// Counts one event of a key. Beyond the quota it returns the seconds to wait.
fn count<K: Clone + Eq + Hash>(limiter: &DefaultKeyedRateLimiter<K>, key: &K) -> Option<u64> {
    // Entries with a full quota need no memory.
    if limiter.len() > 100_000 {
        limiter.retain_recent();
    }
    let refusal = limiter.check_key(key).err()?;
    Some(refusal.wait_time_from(DefaultClock::default().now()).as_secs().saturating_add(1))
}

impl Default for SignInThrottle {
    fn default() -> Self {
        Self(RateLimiter::keyed(quota(BURST, EVERY_S)))
    }
}

impl SignInThrottle {
    /// Counts a failed sign-in. Beyond the quota it returns the seconds to wait before the next try.
    pub fn count_failure(&self, account: &str, from: Option<IpAddr>) -> Option<u64> {
        count(&self.0, &(account.to_owned(), from))
    }
}

/// Counts invitations by organization, and by organization and invited address.
pub struct InvitationThrottle {
    by_org: DefaultKeyedRateLimiter<OrgId>,
    by_address: DefaultKeyedRateLimiter<(OrgId, String)>,
}

impl Default for InvitationThrottle {
    fn default() -> Self {
        let by_org = RateLimiter::keyed(quota(ORG_BURST, ORG_EVERY_S));
        Self { by_org, by_address: RateLimiter::keyed(quota(ADDRESS_BURST, ADDRESS_EVERY_S)) }
    }
}

impl InvitationThrottle {
    /// Counts an invitation. Beyond a quota it returns the seconds to wait.
    pub fn count_invitation(&self, org: OrgId, address: &str) -> Option<u64> {
        // A refusal for the organization must not count for the address.
        count(&self.by_org, &org).or_else(|| count(&self.by_address, &(org, address.to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_passwords_slow_down_only_their_sender() {
        let throttle = SignInThrottle::default();
        let here = Some("127.0.0.1".parse().unwrap());
        for _ in 0..BURST {
            assert_eq!(throttle.count_failure("ada@example.org", here), None);
        }
        let wait = throttle.count_failure("ada@example.org", here).unwrap();
        assert!((1..=EVERY_S + 1).contains(&wait), "{wait}");
        assert_eq!(throttle.count_failure("ada@example.org", Some("10.0.0.9".parse().unwrap())), None);
        assert_eq!(throttle.count_failure("bob@example.org", here), None);
    }

    #[test]
    fn organizations_and_addresses_have_separate_quotas() {
        let invites = InvitationThrottle::default();
        let org = |n: u128| OrgId::from_uuid(uuid::Uuid::from_u128(n));
        for _ in 0..ADDRESS_BURST {
            assert_eq!(invites.count_invitation(org(1), "ada@example.org"), None);
        }
        let wait = invites.count_invitation(org(1), "ada@example.org").unwrap();
        assert!((1..=ADDRESS_EVERY_S + 1).contains(&wait), "{wait}");
        assert_eq!(
            invites.count_invitation(org(2), "ada@example.org"),
            None,
            "another organization has its own"
        );
        // The refused invitation counts for its organization too.
        for n in ADDRESS_BURST + 1..ORG_BURST {
            assert_eq!(invites.count_invitation(org(1), &format!("{n}@example.org")), None);
        }
        let wait = invites.count_invitation(org(1), "late@example.org").unwrap();
        assert!((1..=ORG_EVERY_S + 1).contains(&wait), "{wait}");
        assert_eq!(invites.count_invitation(org(2), "late@example.org"), None, "the address was not counted");
    }
}
