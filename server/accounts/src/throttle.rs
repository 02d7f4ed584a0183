//! Slows down guessing of passwords, without locking anyone out, and invitations, so that nobody's
//! letter box is filled from here.
//!
//! Of sign-ins, failures are counted, by account and peer together: whoever guesses from elsewhere slows
//! only themselves, and a right password is always taken.

use std::hash::Hash;
use std::net::IpAddr;
use std::num::NonZeroU32;

use berth_types::ids::OrgId;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

/// Failures in a row before it slows, and then one more every so many seconds.
const BURST: u32 = 10;
const EVERY_S: u64 = 10;

/// Invitations of one organization at once, and then one more every so many seconds.
const ORG_BURST: u32 = 30;
const ORG_EVERY_S: u64 = 60;
/// The same for one address of one organization: no organization can use up another's.
const ADDRESS_BURST: u32 = 5;
const ADDRESS_EVERY_S: u64 = 600;

/// Who tries: the account's address, and where from.
type Who = (String, Option<IpAddr>);

pub struct Throttle(DefaultKeyedRateLimiter<Who>);

/// So many at once, and then one more every so many seconds.
fn quota(burst: u32, every_s: u64) -> Quota {
    let burst = NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN);
    Quota::with_period(std::time::Duration::from_secs(every_s))
        .unwrap_or_else(|| Quota::per_second(NonZeroU32::MIN))
        .allow_burst(burst)
}

/// Counts one more of a key. Beyond its quota: how many seconds to wait.
fn count<K: Clone + Eq + Hash>(limiter: &DefaultKeyedRateLimiter<K>, key: &K) -> Option<u64> {
    // Entries that are fresh again hold nothing.
    if limiter.len() > 100_000 {
        limiter.retain_recent();
    }
    let not_yet = limiter.check_key(key).err()?;
    Some(not_yet.wait_time_from(DefaultClock::default().now()).as_secs().saturating_add(1))
}

impl Default for Throttle {
    fn default() -> Self {
        Self(RateLimiter::keyed(quota(BURST, EVERY_S)))
    }
}

impl Throttle {
    /// Counts a failure. Beyond the burst: how many seconds to wait before the next try is heard.
    pub fn failed(&self, account: &str, from: Option<IpAddr>) -> Option<u64> {
        count(&self.0, &(account.to_owned(), from))
    }
}

/// Counts invitations, by organization, and by each address that it invites.
pub struct Invites {
    by_org: DefaultKeyedRateLimiter<OrgId>,
    by_address: DefaultKeyedRateLimiter<(OrgId, String)>,
}

impl Default for Invites {
    fn default() -> Self {
        let by_org = RateLimiter::keyed(quota(ORG_BURST, ORG_EVERY_S));
        Self { by_org, by_address: RateLimiter::keyed(quota(ADDRESS_BURST, ADDRESS_EVERY_S)) }
    }
}

impl Invites {
    /// Counts one more. Beyond what may be sent: how many seconds to wait.
    pub fn ask(&self, org: OrgId, address: &str) -> Option<u64> {
        // An organization that may not invite now uses up nobody's letter box.
        count(&self.by_org, &org).or_else(|| count(&self.by_address, &(org, address.to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guessing_slows_only_the_one_who_guesses() {
        let throttle = Throttle::default();
        let here = Some("127.0.0.1".parse().unwrap());
        for _ in 0..BURST {
            assert_eq!(throttle.failed("ada@example.org", here), None);
        }
        let wait = throttle.failed("ada@example.org", here).unwrap();
        assert!((1..=EVERY_S + 1).contains(&wait), "{wait}");
        assert_eq!(throttle.failed("ada@example.org", Some("10.0.0.9".parse().unwrap())), None);
        assert_eq!(throttle.failed("bob@example.org", here), None);
    }

    #[test]
    fn an_organization_and_a_letter_box_are_counted_apart() {
        let invites = Invites::default();
        let org = |n: u128| OrgId::from_uuid(uuid::Uuid::from_u128(n));
        for _ in 0..ADDRESS_BURST {
            assert_eq!(invites.ask(org(1), "ada@example.org"), None);
        }
        let wait = invites.ask(org(1), "ada@example.org").unwrap();
        assert!((1..=ADDRESS_EVERY_S + 1).contains(&wait), "{wait}");
        assert_eq!(invites.ask(org(2), "ada@example.org"), None, "another organization has its own");
        // The one that was refused counts for its organization too.
        for n in ADDRESS_BURST + 1..ORG_BURST {
            assert_eq!(invites.ask(org(1), &format!("{n}@example.org")), None);
        }
        let wait = invites.ask(org(1), "late@example.org").unwrap();
        assert!((1..=ORG_EVERY_S + 1).contains(&wait), "{wait}");
        assert_eq!(invites.ask(org(2), "late@example.org"), None, "the address was not counted");
    }
}
