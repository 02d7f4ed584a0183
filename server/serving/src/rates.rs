//! Rates: the requests and tokens a minute of each key, as token buckets in integers.
//!
//! A bucket of a rate has 60,000 parts for each unit and gains `rate` parts each millisecond, so a minute fills
//! an empty one exactly, whatever the steps of time are.

use std::collections::HashMap;

use berth_types::ids::InferenceKeyId;

use crate::refusals::Refusal;
use crate::snapshot::RateLimits;

/// Parts of one unit: the milliseconds of a minute.
const PARTS: u128 = 60_000;

/// A token bucket. It is full at first and never holds more than the units of one minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    per_minute: u64,
    parts: u128,
    at_ms: u64,
}

impl Bucket {
    pub fn new(per_minute: u64, now_ms: u64) -> Self {
        Self { per_minute, parts: u128::from(per_minute) * PARTS, at_ms: now_ms }
    }

    fn fill(&mut self, now_ms: u64) {
        let passed = u128::from(now_ms.saturating_sub(self.at_ms));
        let full = u128::from(self.per_minute) * PARTS;
        self.parts = (self.parts + passed * u128::from(self.per_minute)).min(full);
        self.at_ms = self.at_ms.max(now_ms);
    }

    /// Changes the rate from now on. A change gives nothing: the contents stay, and a lower rate cuts them.
    pub fn set_rate(&mut self, per_minute: u64, now_ms: u64) {
        self.fill(now_ms);
        self.per_minute = per_minute;
        self.parts = self.parts.min(u128::from(per_minute) * PARTS);
    }

    /// The milliseconds until the bucket has `units`; 0 if it has them, `None` if it never will.
    pub fn wait_ms(&mut self, units: u64, now_ms: u64) -> Option<u64> {
        self.fill(now_ms);
        if units > self.per_minute {
            return None;
        }
        let missing = (u128::from(units) * PARTS).saturating_sub(self.parts);
        let wait = if missing == 0 { 0 } else { missing.div_ceil(u128::from(self.per_minute)) };
        Some(u64::try_from(wait).unwrap_or(u64::MAX))
    }

    /// Removes units that [`Self::wait_ms`] found.
    fn remove(&mut self, units: u64) {
        self.parts = self.parts.saturating_sub(u128::from(units) * PARTS);
    }

    /// Returns units that were not used.
    fn put_back(&mut self, units: u64, now_ms: u64) {
        self.fill(now_ms);
        let full = u128::from(self.per_minute) * PARTS;
        self.parts = (self.parts + u128::from(units) * PARTS).min(full);
    }
}

#[derive(Debug, Default)]
struct KeyBuckets {
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
}

/// The rates of all keys on one gateway.
#[derive(Debug, Default)]
pub struct Rates {
    keys: HashMap<InferenceKeyId, KeyBuckets>,
}

impl Rates {
    /// Counts a request and the tokens of its worst case against the present limits of its key: both, or none.
    ///
    /// # Errors
    /// A bucket has too little, with the seconds until it has enough.
    pub fn admit(
        &mut self,
        key: InferenceKeyId,
        limits: RateLimits,
        tokens: u64,
        now_ms: u64,
    ) -> Result<(), Refusal> {
        let buckets = self.keys.entry(key).or_default();
        renew(&mut buckets.requests, limits.requests_per_minute, now_ms);
        renew(&mut buckets.tokens, limits.tokens_per_minute, now_ms);
        for (bucket, units, what) in
            [(&mut buckets.requests, 1, "requests"), (&mut buckets.tokens, tokens, "tokens")]
        {
            let Some(bucket) = bucket else { continue };
            match bucket.wait_ms(units, now_ms) {
                Some(0) => {}
                Some(wait_ms) => {
                    return Err(Refusal::Throttled { what, retry_after_s: wait_ms.div_ceil(1_000) });
                }
                None => return Err(Refusal::OverTokenRate { tokens, per_minute: bucket.per_minute }),
            }
        }
        if let Some(bucket) = &mut buckets.requests {
            bucket.remove(1);
        }
        if let Some(bucket) = &mut buckets.tokens {
            bucket.remove(tokens);
        }
        Ok(())
    }

    /// Returns the part of a worst case that an answer did not use.
    pub fn settle(&mut self, key: InferenceKeyId, unused_tokens: u64, now_ms: u64) {
        if let Some(bucket) = self.keys.get_mut(&key).and_then(|buckets| buckets.tokens.as_mut()) {
            bucket.put_back(unused_tokens, now_ms);
        }
    }

    /// Forgets the keys that a new snapshot no longer has.
    pub fn retain(&mut self, is_present: impl Fn(InferenceKeyId) -> bool) {
        self.keys.retain(|key, _| is_present(*key));
    }
}

fn renew(bucket: &mut Option<Bucket>, limit: Option<u64>, now_ms: u64) {
    match (bucket.as_mut(), limit) {
        (Some(bucket), Some(limit)) if bucket.per_minute != limit => bucket.set_rate(limit, now_ms),
        (Some(_), Some(_)) => {}
        (None, Some(limit)) => *bucket = Some(Bucket::new(limit, now_ms)),
        (_, None) => *bucket = None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::snapshot::samples::key_id;

    /// The contents of a bucket as an exact fraction with the denominator 60,000, from its whole history: the
    /// most recent of all times at which it could have been full decides.
    fn contents(rate: u64, history: &[(u64, u64)], now_ms: u64) -> i128 {
        let full = i128::from(rate) * 60_000;
        let gained = |from: u64| i128::from(now_ms - from) * i128::from(rate);
        let taken =
            |from: usize| history[from..].iter().map(|(_, units)| i128::from(*units) * 60_000).sum::<i128>();
        let since_take = (0..history.len()).map(|from| full + gained(history[from].0) - taken(from));
        since_take.fold(full, i128::min)
    }

    #[test]
    fn a_bucket_is_exact_at_its_boundaries() {
        let mut bucket = Bucket::new(7, 0);
        assert_eq!(bucket.wait_ms(7, 0), Some(0));
        bucket.remove(7);
        assert_eq!(bucket.wait_ms(1, 0), Some(8_572), "60,000 / 7 rounded up");
        assert_eq!(bucket.wait_ms(1, 8_571), Some(1));
        assert_eq!(bucket.wait_ms(1, 8_572), Some(0));
        assert_eq!(bucket.wait_ms(7, 59_999), Some(1));
        assert_eq!(bucket.wait_ms(7, 60_000), Some(0), "a minute has no drift");
        assert_eq!(bucket.wait_ms(8, u64::MAX), None);
        assert_eq!(bucket.wait_ms(7, 0), Some(0), "a clock that goes back takes nothing away");
    }

    #[test]
    fn a_change_of_the_rate_gives_nothing() {
        let mut bucket = Bucket::new(10, 0);
        bucket.remove(10);
        bucket.set_rate(100, 0);
        assert_eq!(bucket.wait_ms(1, 0), Some(600));
        assert_eq!(bucket.wait_ms(100, 60_000), Some(0));
        bucket.set_rate(10, 60_000);
        bucket.set_rate(100, 60_000);
        assert_eq!(bucket.wait_ms(10, 60_000), Some(0));
        assert_eq!(bucket.wait_ms(11, 60_000), Some(600));
        bucket.set_rate(0, 60_000);
        assert_eq!(bucket.wait_ms(1, u64::MAX), None);
        assert_eq!(bucket.wait_ms(0, u64::MAX), Some(0));
    }

    #[test]
    fn a_request_counts_in_both_buckets_or_in_none() {
        let (key, mut rates) = (key_id(1), Rates::default());
        let limits = RateLimits { requests_per_minute: Some(2), tokens_per_minute: Some(100) };
        assert_eq!(rates.admit(key, limits, 60, 0), Ok(()));
        let throttled = |what, retry_after_s| Err(Refusal::Throttled { what, retry_after_s });
        assert_eq!(rates.admit(key, limits, 60, 0), throttled("tokens", 12));
        assert_eq!(rates.admit(key, limits, 60, 0), throttled("tokens", 12), "a refusal takes nothing");
        assert_eq!(
            rates.admit(key, limits, 101, 0),
            Err(Refusal::OverTokenRate { tokens: 101, per_minute: 100 })
        );
        rates.settle(key, 20, 0);
        assert_eq!(rates.admit(key, limits, 60, 0), Ok(()));
        assert_eq!(rates.admit(key, limits, 0, 0), throttled("requests", 30));
        assert_eq!(rates.admit(key, RateLimits::default(), u64::MAX, 0), Ok(()), "no limit");
        assert_eq!(rates.admit(key_id(2), limits, 100, 0), Ok(()), "each key has its own");
        rates.retain(|present| present == key);
        assert_eq!(rates.keys.len(), 1);
    }

    #[test]
    fn a_bucket_that_gets_too_much_back_is_only_full() {
        let (key, mut rates) = (key_id(1), Rates::default());
        let limits = RateLimits { requests_per_minute: None, tokens_per_minute: Some(100) };
        assert_eq!(rates.admit(key, limits, 1, 0), Ok(()));
        rates.settle(key, u64::MAX, 0);
        assert_eq!(rates.admit(key, limits, 100, 0), Ok(()));
        assert!(rates.admit(key, limits, 1, 0).is_err());
    }

    proptest! {
        #[test]
        fn a_bucket_equals_rational_arithmetic(
            rate in 1..200_u64,
            steps in prop::collection::vec((0..30_000_u64, 0..50_u64), 1..40),
        ) {
            let mut bucket = Bucket::new(rate, 0);
            let (mut now, mut history) = (0, Vec::new());
            for (passed, units) in steps {
                now += passed;
                let missing = i128::from(units) * 60_000 - contents(rate, &history, now);
                let expected = match missing {
                    _ if units > rate => None,
                    ..=0 => Some(0),
                    missing => Some(u64::try_from((missing + i128::from(rate) - 1) / i128::from(rate)).unwrap()),
                };
                prop_assert_eq!(bucket.wait_ms(units, now), expected);
                if expected == Some(0) {
                    bucket.remove(units);
                    history.push((now, units));
                }
            }
        }
    }
}
