//! Slows down guessing of passwords, without locking anyone out.
//!
//! What is counted is failures, by account and peer together: whoever guesses from elsewhere slows
//! only themselves, and a right password is always taken.

use std::net::IpAddr;
use std::num::NonZeroU32;

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

/// Failures in a row before it slows, and then one more every so many seconds.
const BURST: u32 = 10;
const EVERY_S: u64 = 10;

/// Who tries: the account's address, and where from.
type Who = (String, Option<IpAddr>);

pub struct Throttle(DefaultKeyedRateLimiter<Who>);

impl Default for Throttle {
    fn default() -> Self {
        let burst = NonZeroU32::new(BURST).unwrap_or(NonZeroU32::MIN);
        let quota = Quota::with_period(std::time::Duration::from_secs(EVERY_S))
            .unwrap_or_else(|| Quota::per_second(NonZeroU32::MIN))
            .allow_burst(burst);
        Self(RateLimiter::keyed(quota))
    }
}

impl Throttle {
    /// Counts a failure. Beyond the burst: how many seconds to wait before the next try is heard.
    pub fn failed(&self, account: &str, from: Option<IpAddr>) -> Option<u64> {
        // Entries that are fresh again hold nothing.
        if self.0.len() > 100_000 {
            self.0.retain_recent();
        }
        let key = (account.to_owned(), from);
        match self.0.check_key(&key) {
            Ok(()) => None,
            Err(not_yet) => {
                Some(not_yet.wait_time_from(DefaultClock::default().now()).as_secs().saturating_add(1))
            }
        }
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
}
