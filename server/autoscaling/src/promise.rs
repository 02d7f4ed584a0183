//! The promise of a service: availability, time to first token and wake time, judged by counts over a window.
//!
//! A part with fewer than [`MIN_CASES`] cases in the window is kept. A window is judged once, after its end and after the time for late
//! reports, so it has one credit at most.

use std::fmt;

use berth_types::time::Timestamp;

/// The whole, in parts a million.
const WHOLE_PPM: u32 = 1_000_000;
/// The least number of cases in a window with which a part can be missed.
pub const MIN_CASES: u64 = 20;
/// The whole of an amount, in basis points.
const WHOLE_BASIS_POINTS: u32 = 10_000;

/// The promised share of good cases of one kind, and the credit after a miss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The least share of good cases in parts a million.
    pub good_ppm: u32,
    /// The credit for a miss, in basis points of the charges of the window.
    pub credit_basis_points: u32,
}

/// The promise of a service. The limits of times are with the counts: a token later than `first_token_ms` is late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promise {
    /// Requests without a fault of the platform.
    pub availability: Option<Part>,
    /// First tokens within `first_token_ms`.
    pub first_token: Option<Part>,
    pub first_token_ms: u32,
    /// Wakes within `wake_ms`.
    pub wake: Option<Part>,
    pub wake_ms: u32,
    /// The length of a window in seconds.
    pub window_s: u32,
    /// The time for late reports after the end of a window, in seconds.
    pub late_s: u32,
}

/// The reason why a promise is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PromiseError {
    #[error("a share must be at most 1,000,000 parts a million")]
    Share,
    #[error("the credits of all parts must sum to at most 10,000 basis points")]
    Credit,
    #[error("a window must have 1 hour to 31 days, and a day at most for late reports")]
    Window,
}

/// The counted cases of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cases {
    pub all: u64,
    pub bad: u64,
}

/// The evidence of a window: its counts, and the charges in micro-units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WindowEvidence {
    pub requests: Cases,
    pub first_tokens: Cases,
    pub wakes: Cases,
    pub charged_micros: u64,
}

/// A missed part with its counts. Its text is a sentence for the evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Miss {
    pub kind: Kind,
    pub cases: Cases,
    pub good_ppm: u32,
}

/// The kind of a promised part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Availability,
    FirstToken { within_ms: u32 },
    Wake { within_ms: u32 },
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cases { all, bad } = self.cases;
        match self.kind {
            Kind::Availability => write!(f, "{bad} of {all} requests failed")?,
            Kind::FirstToken { within_ms } => {
                write!(f, "{bad} of {all} first tokens took more than {within_ms} ms")?;
            }
            Kind::Wake { within_ms } => write!(f, "{bad} of {all} wakes took more than {within_ms} ms")?,
        }
        let percent = format!("{}.{:04}", self.good_ppm / 10_000, self.good_ppm % 10_000);
        let percent = percent.trim_end_matches('0').trim_end_matches('.');
        write!(f, "; {percent} % good ones are promised")
    }
}

/// The judgement of a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// The begin of the window.
    pub since: Timestamp,
    pub misses: Vec<Miss>,
    /// The credit in micro-units, rounded up, at most the charges.
    pub credit_micros: u64,
}

impl Part {
    /// True if too few of enough cases are good.
    fn is_missed(&self, cases: Cases) -> bool {
        let bad = u128::from(cases.bad.min(cases.all));
        let permitted = u128::from(cases.all) * u128::from(WHOLE_PPM.saturating_sub(self.good_ppm));
        cases.all >= MIN_CASES && bad * u128::from(WHOLE_PPM) > permitted
    }
}

impl Promise {
    /// Checks the limits of all fields.
    ///
    /// # Errors
    /// The first limit that does not hold.
    pub fn check(&self) -> Result<(), PromiseError> {
        let parts = || [self.availability, self.first_token, self.wake].into_iter().flatten();
        if parts().any(|part| part.good_ppm > WHOLE_PPM) {
            return Err(PromiseError::Share);
        }
        let credit: u64 = parts().map(|part| u64::from(part.credit_basis_points)).sum();
        if credit > u64::from(WHOLE_BASIS_POINTS) {
            return Err(PromiseError::Credit);
        }
        if !(3_600..=31 * 86_400).contains(&self.window_s) || self.late_s > 86_400 {
            return Err(PromiseError::Window);
        }
        Ok(())
    }

    /// The number of the window of a time, from 1970.
    pub fn window(&self, at: Timestamp) -> i64 {
        at.millis().div_euclid(i64::from(self.window_s.max(1)).saturating_mul(1_000))
    }

    /// The begin of a window.
    pub fn begin(&self, window: i64) -> Timestamp {
        Timestamp::default().plus_seconds(window.saturating_mul(i64::from(self.window_s.max(1))))
    }

    /// The missed parts with their credits in basis points.
    fn misses(&self, evidence: &WindowEvidence) -> impl Iterator<Item = (Miss, u32)> {
        let token = Kind::FirstToken { within_ms: self.first_token_ms };
        let parts = [
            (self.availability, Kind::Availability, evidence.requests),
            (self.first_token, token, evidence.first_tokens),
            (self.wake, Kind::Wake { within_ms: self.wake_ms }, evidence.wakes),
        ];
        parts.into_iter().filter_map(|(part, kind, cases)| {
            let part = part.filter(|part| part.is_missed(cases))?;
            Some((Miss { kind, cases, good_ppm: part.good_ppm }, part.credit_basis_points))
        })
    }
}

/// The judged windows of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromiseWatch {
    /// The next window to judge. It is stored with each judgement, in the transaction of its credit.
    next: i64,
}

impl PromiseWatch {
    /// Begins with the first whole window after a time.
    pub fn new(promise: &Promise, since: Timestamp) -> Self {
        let window = promise.window(since);
        let whole = promise.begin(window) == since;
        Self { next: if whole { window } else { window.saturating_add(1) } }
    }

    /// Continues with a stored window.
    pub const fn stored(next: i64) -> Self {
        Self { next }
    }

    /// The next window to judge.
    pub const fn next(&self) -> i64 {
        self.next
    }

    /// The window that can be judged now: its end and the time for late reports have passed.
    pub fn due(&self, promise: &Promise, now: Timestamp) -> Option<i64> {
        let end = promise.begin(self.next.saturating_add(1)).plus_seconds(promise.late_s.into());
        (now >= end).then_some(self.next)
    }

    /// Judges a window by its evidence. `None` for a window that is judged already or not due, so a repeated call posts
    /// no second credit.
    pub fn judge(
        &mut self,
        promise: &Promise,
        window: i64,
        evidence: &WindowEvidence,
        now: Timestamp,
    ) -> Option<Judgement> {
        if self.due(promise, now) != Some(window) {
            return None;
        }
        self.next = window.saturating_add(1);
        let (misses, credits): (Vec<Miss>, Vec<u32>) = promise.misses(evidence).unzip();
        let basis_points = credits.iter().fold(0_u32, |sum, credit| sum.saturating_add(*credit));
        let share = u128::from(evidence.charged_micros) * u128::from(basis_points.min(WHOLE_BASIS_POINTS));
        let credit_micros = u64::try_from(share.div_ceil(u128::from(WHOLE_BASIS_POINTS))).unwrap_or(u64::MAX);
        Some(Judgement { since: promise.begin(window), misses, credit_micros })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn second(second: i64) -> Timestamp {
        Timestamp::from_micros(1_795_996_800_000_000).plus_seconds(second)
    }

    const fn part(good_ppm: u32, credit_basis_points: u32) -> Option<Part> {
        Some(Part { good_ppm, credit_basis_points })
    }

    fn promise() -> Promise {
        Promise {
            availability: part(999_000, 1_000),
            first_token: part(950_000, 500),
            first_token_ms: 800,
            wake: part(900_000, 250),
            wake_ms: 6_000,
            window_s: 86_400,
            late_s: 600,
        }
    }

    /// The judgement of the first day.
    fn judged(evidence: &WindowEvidence) -> Judgement {
        let mut watch = PromiseWatch::new(&promise(), second(0));
        watch.judge(&promise(), watch.next(), evidence, second(86_400 + 600)).unwrap()
    }

    #[test]
    fn a_miss_has_its_credit_and_its_evidence() {
        let cases = |all, bad| Cases { all, bad };
        let evidence = |requests, first_tokens, wakes| WindowEvidence {
            requests,
            first_tokens,
            wakes,
            charged_micros: 10_001,
        };
        let none = cases(0, 0);
        for (evidence, misses, credit) in [
            (evidence(none, none, none), 0, 0),
            (evidence(cases(1_000, 1), none, none), 0, 0),
            (evidence(cases(1_000, 2), none, none), 1, 1_001),
            (evidence(cases(999, 1), none, none), 1, 1_001),
            (evidence(none, cases(100, 5), cases(20, 2)), 0, 0),
            (evidence(none, cases(100, 6), cases(20, 3)), 2, 751),
            (evidence(cases(20, 90), cases(20, 20), cases(20, 20)), 3, 1_751),
            (evidence(cases(19, 19), cases(19, 19), cases(19, 19)), 0, 0),
        ] {
            let judgement = judged(&evidence);
            assert_eq!((judgement.misses.len(), judgement.credit_micros), (misses, credit), "{evidence:?}");
            assert_eq!(judgement.since, second(0));
        }
        let late = judged(&evidence(none, cases(100, 6), cases(20, 3)));
        let texts: Vec<String> = late.misses.iter().map(ToString::to_string).collect();
        let token = "6 of 100 first tokens took more than 800 ms; 95 % good ones are promised";
        assert_eq!(texts, [token, "3 of 20 wakes took more than 6000 ms; 90 % good ones are promised"]);
        for (good_ppm, percent) in [(999_000, "99.9"), (1, "0.0001"), (1_000_000, "100"), (0, "0")] {
            let miss = Miss { kind: Kind::Availability, cases: cases(20, 20), good_ppm };
            let sentence = format!("20 of 20 requests failed; {percent} % good ones are promised");
            assert_eq!(miss.to_string(), sentence);
        }
    }

    #[test]
    fn each_window_is_judged_once_and_in_order() {
        let (promise, evidence) = (promise(), WindowEvidence::default());
        let mut watch = PromiseWatch::new(&promise, second(1));
        let first = promise.window(second(86_400));
        assert_eq!(watch.next(), first, "the day that has begun does not count");
        assert_eq!(watch.due(&promise, second(2 * 86_400 + 599)), None);
        let now = second(3 * 86_400 + 600);
        assert_eq!(watch.due(&promise, now), Some(first));
        assert_eq!(watch.judge(&promise, first + 1, &evidence, now), None);
        assert!(watch.judge(&promise, first, &evidence, now).is_some());
        assert_eq!(watch.judge(&promise, first, &evidence, now), None);
        let mut stored = PromiseWatch::stored(watch.next());
        assert!(stored.judge(&promise, first + 1, &evidence, now).is_some());
        assert_eq!(stored.due(&promise, now), None);
    }

    #[test]
    fn promises_beyond_their_limits_are_refused() {
        assert_eq!(promise().check(), Ok(()));
        for (bad, error) in [
            (Promise { wake: part(1_000_001, 0), ..promise() }, PromiseError::Share),
            (Promise { wake: part(1, 8_501), ..promise() }, PromiseError::Credit),
            (Promise { window_s: 3_599, ..promise() }, PromiseError::Window),
            (Promise { late_s: 86_401, ..promise() }, PromiseError::Window),
        ] {
            assert_eq!(bad.check(), Err(error));
        }
    }

    proptest! {
        #[test]
        fn a_credit_is_never_above_the_charges(
            all in prop_oneof![0..2 * MIN_CASES, any::<u64>()],
            bad: u64, charged_micros: u64, good_ppm: u32, credit_basis_points: u32,
        ) {
            let promise = Promise { availability: part(good_ppm, credit_basis_points), ..promise() };
            let requests = Cases { all, bad };
            let evidence = WindowEvidence { requests, charged_micros, ..WindowEvidence::default() };
            let mut watch = PromiseWatch::new(&promise, second(0));
            let judgement = watch.judge(&promise, watch.next(), &evidence, second(90_000)).unwrap();
            prop_assert!(judgement.credit_micros <= charged_micros);
            prop_assert!(all >= MIN_CASES || judgement.misses.is_empty());
            let missed = !judgement.misses.is_empty() && credit_basis_points > 0 && charged_micros > 0;
            prop_assert_eq!(judgement.credit_micros > 0, missed);
        }
    }
}
