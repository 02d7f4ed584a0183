//! The comparison of a canary with the live revision by counted evidence.
//!
//! Errors: Fisher's exact test, one-sided. If both revisions had the same error share, the number of the canary's
//! errors among all errors would be hypergeometric (R. A. Fisher, Statistical Methods for Research Workers, "The
//! exact treatment of 2×2 tables"). The canary is worse if at least as many errors are less likely than a level.
//! Without enough requests of the live revision the binomial tail at the permitted error share replaces the test.
//! Latency: the same test on the requests above the 95th percentile of the live revision.
//!
//! The evidence is looked at after the least number of requests, after each doubling, and at the end of the step. A step
//! that is over and stays has a further look only for further requests. Look `k`, from 0, has the level
//! 1/1000 ÷ ((k + 1) (k + 2)). The levels of all looks sum to at most 1/1000, which by the union bound limits the chance
//! of a false rollback for each of the two tests and each step.
//!
//! Few requests can never reach the level. So a step stays while most requests of the canary fail, more than permitted
//! and than at the live revision.

use berth_types::time::Timestamp;

/// The upper bounds of the buckets of latencies in milliseconds. A last bucket has all longer ones.
pub const BOUNDS_MS: [u32; 24] = [
    1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1_000, 2_000, 5_000, 10_000, 30_000,
    60_000, 120_000,
];
/// The chance of a false rollback by one test in one step.
const LEVEL: f64 = 0.001;
/// The percentile of the comparison of latencies.
const PERCENTILE: u64 = 95;
/// Counts beyond this number have its evidence.
const MOST_REQUESTS: u64 = 1 << 40;

/// Latencies counted in fixed buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Histogram([u64; BOUNDS_MS.len() + 1]);

impl Histogram {
    /// The bucket of a latency.
    fn bucket(millis: u32) -> usize {
        BOUNDS_MS.partition_point(|bound| *bound < millis)
    }

    /// Adds `count` requests with this latency.
    pub fn add(&mut self, millis: u32, count: u64) {
        if let Some(bucket) = self.0.get_mut(Self::bucket(millis)) {
            *bucket = bucket.saturating_add(count);
        }
    }

    /// Adds all requests of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (bucket, more) in self.0.iter_mut().zip(other.0) {
            *bucket = bucket.saturating_add(more);
        }
    }

    fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The bucket with the 95th percentile: the first with at least 95 % of all requests up to it.
    fn p95_bucket(&self) -> Option<usize> {
        let total = u128::from(self.total());
        let mut sum = 0_u128;
        if total == 0 {
            return None;
        }
        self.0.iter().position(|count| {
            sum += u128::from(*count);
            sum * 100 >= total * u128::from(PERCENTILE)
        })
    }

    /// The upper bound of the bucket with the 95th percentile in milliseconds; `None` without requests, or above
    /// all bounds.
    pub fn p95_ms(&self) -> Option<u32> {
        BOUNDS_MS.get(self.p95_bucket()?).copied()
    }

    /// The requests in later buckets than this one.
    fn above(&self, bucket: usize) -> u64 {
        self.0.iter().skip(bucket + 1).fold(0, |sum, count| sum.saturating_add(*count))
    }
}

/// The counted requests of a revision since the begin of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Evidence {
    pub requests: u64,
    /// The requests that failed by the fault of the revision.
    pub errors: u64,
    /// The latencies of the requests without an error.
    pub latencies: Histogram,
}

/// The rule for the end of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// The least number of the canary's requests, at least 1.
    pub min_requests: u64,
    /// The least time of a step in seconds.
    pub min_s: u32,
    /// The permitted error share in thousandths, where the live revision has too few requests.
    pub permitted_errors_permille: u16,
}

/// The fault of a canary, with its figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error(
        "{errors} of {requests} requests failed, and {live_errors} of {live_requests} at the live revision"
    )]
    Errors { errors: u64, requests: u64, live_errors: u64, live_requests: u64 },
    #[error("{errors} of {requests} requests failed, and {permille} of 1,000 are permitted")]
    PermittedErrors { errors: u64, requests: u64, permille: u16 },
    #[error(
        "{slow} of {requests} requests took more than {bound_ms} ms, the 95th percentile of the live revision"
    )]
    Latency { slow: u64, requests: u64, bound_ms: u32 },
}

/// The state of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The step needs more requests or more time.
    Wait {
        requests_left: u64,
        seconds_left: u32,
    },
    Promote,
    Rollback(Fault),
}

/// The looks at the evidence of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judge {
    since: Timestamp,
    looks: u32,
    /// The requests of the canary at the next look.
    next: u64,
    /// The requests of the canary at the last look after the end of the step.
    seen: Option<u64>,
}

impl Judge {
    /// The judge of a step that begins now.
    pub const fn new(rule: &Rule, since: Timestamp) -> Self {
        let next = if rule.min_requests == 0 { 1 } else { rule.min_requests };
        Self { since, looks: 0, next, seen: None }
    }

    /// Judges the evidence of both revisions since the begin of the step.
    pub fn judge(&mut self, rule: &Rule, canary: &Evidence, live: &Evidence, now: Timestamp) -> Verdict {
        let required = rule.min_requests.max(1);
        let passed = now.millis_since(self.since).max(0);
        let left = (i64::from(rule.min_s).saturating_mul(1_000) - passed).max(0);
        let over = left == 0 && canary.requests >= required;
        // The end of a step has its own look, so that no promotion has an unseen fault. A further look without a further
        // request would only lower the level.
        let is_news = self.seen.is_none_or(|seen| canary.requests > seen);
        if canary.requests >= self.next || (over && is_news) {
            let level = LEVEL / (f64::from(self.looks) + 1.0) / (f64::from(self.looks) + 2.0);
            self.looks = self.looks.saturating_add(1);
            self.next = canary.requests.max(1).saturating_mul(2);
            if over {
                self.seen = Some(canary.requests);
            }
            if let Some(fault) = fault(rule, canary, live, level) {
                return Verdict::Rollback(fault);
            }
        }
        if over && !is_in_doubt(rule, canary, live) {
            return Verdict::Promote;
        }
        let seconds_left = u32::try_from(left.saturating_add(999) / 1_000).unwrap_or(u32::MAX);
        Verdict::Wait { requests_left: required.saturating_sub(canary.requests), seconds_left }
    }
}

/// True if most requests of the canary failed, more than permitted and than at the live revision. They prove no fault if
/// they are few.
fn is_in_doubt(rule: &Rule, canary: &Evidence, live: &Evidence) -> bool {
    let counts = |evidence: &Evidence| {
        (u128::from(evidence.errors.min(evidence.requests)), u128::from(evidence.requests))
    };
    let ((errors, requests), (live_errors, live_requests)) = (counts(canary), counts(live));
    errors * 2 > requests
        && errors * 1_000 > u128::from(rule.permitted_errors_permille) * requests
        && errors * live_requests.max(1) > live_errors * requests
}

/// The first test that the canary fails at a level.
fn fault(rule: &Rule, canary: &Evidence, live: &Evidence, level: f64) -> Option<Fault> {
    let (requests, errors) = (canary.requests, canary.errors.min(canary.requests));
    let (live_requests, live_errors) = (live.requests, live.errors.min(live.requests));
    if live_requests >= rule.min_requests.max(1) {
        if at_least_hypergeometric(errors, requests, live_errors, live_requests) < level {
            return Some(Fault::Errors { errors, requests, live_errors, live_requests });
        }
    } else {
        let permille = rule.permitted_errors_permille;
        if at_least_binomial(errors, requests, f64::from(permille) / 1_000.0) < level {
            return Some(Fault::PermittedErrors { errors, requests, permille });
        }
    }
    let bucket = live.latencies.p95_bucket()?;
    // Above the last bound no bucket is slower.
    let bound_ms = BOUNDS_MS.get(bucket).copied()?;
    let (slow, answered) = (canary.latencies.above(bucket), canary.latencies.total());
    let (live_slow, live_answered) = (live.latencies.above(bucket), live.latencies.total());
    let enough = live_answered >= rule.min_requests.max(1);
    let slower = canary.latencies.p95_bucket() > Some(bucket);
    let unlikely = at_least_hypergeometric(slow, answered, live_slow, live_answered) < level;
    (enough && slower && unlikely).then_some(Fault::Latency { slow, requests: answered, bound_ms })
}

/// The natural logarithm of `n!`: exact sums below 32, Stirling's series above (an error below 1e-12).
fn ln_factorial(n: u64) -> f64 {
    if n < 32 {
        return (2..=n).map(|k| (k as f64).ln()).sum();
    }
    let x = n as f64;
    let series = 1.0 / (12.0 * x) - 1.0 / (360.0 * x.powi(3)) + 1.0 / (1_260.0 * x.powi(5));
    x * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI * x).ln() + series
}

fn ln_choose(n: u64, k: u64) -> f64 {
    ln_factorial(n) - ln_factorial(k) - ln_factorial(n - k)
}

/// Sums terms that fall faster and faster: `first`, then each by its ratio to the one before.
fn tail(first: f64, mut ratios: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut term) = (first, first);
    while let Some(ratio) = ratios.next().filter(|_| term > sum * 1e-17) {
        term *= ratio;
        sum += term;
    }
    sum.min(1.0)
}

/// The chance of at least `errors` of `requests`, if `errors + other_errors` errors fell on all requests at random.
/// At or below the expectation it is no evidence, and the answer is 1.
fn at_least_hypergeometric(errors: u64, requests: u64, other_errors: u64, other_requests: u64) -> f64 {
    let (requests, other_requests) = (requests.min(MOST_REQUESTS), other_requests.min(MOST_REQUESTS));
    let (errors, other_errors) = (errors.min(requests), other_errors.min(other_requests));
    let (all_errors, all) = (errors + other_errors, requests + other_requests);
    if u128::from(errors) * u128::from(all) <= u128::from(all_errors) * u128::from(requests) {
        return 1.0;
    }
    let first =
        ln_choose(requests, errors) + ln_choose(other_requests, other_errors) - ln_choose(all, all_errors);
    let ratio = |x: u64| {
        let good = (requests - x) as f64 * (all_errors - x) as f64;
        good / ((x + 1) as f64 * (other_requests + x + 1 - all_errors) as f64)
    };
    tail(first.exp(), (errors..requests.min(all_errors)).map(ratio))
}

/// The chance of at least `errors` of `requests` at this error share. At or below the expectation it is no evidence,
/// and the answer is 1.
fn at_least_binomial(errors: u64, requests: u64, share: f64) -> f64 {
    let requests = requests.min(MOST_REQUESTS);
    let errors = errors.min(requests);
    if errors as f64 <= share * requests as f64 {
        return 1.0;
    }
    if share <= 0.0 {
        return 0.0;
    }
    let good = (requests - errors) as f64;
    let first = ln_choose(requests, errors) + errors as f64 * share.ln() + good * (1.0 - share).ln();
    let odds = share / (1.0 - share);
    let ratio = |x: u64| (requests - x) as f64 / (x + 1) as f64 * odds;
    tail(first.exp(), (errors..requests).map(ratio))
}

#[cfg(test)]
mod tests;
