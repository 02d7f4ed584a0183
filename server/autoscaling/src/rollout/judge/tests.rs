//! Tests of the comparison, against exact arithmetic with integers.

use super::*;

fn second(second: i64) -> Timestamp {
    Timestamp::from_micros(1_795_392_000_000_000).plus_seconds(second)
}

fn choose(n: u64, k: u64) -> u128 {
    (0..k).fold(1, |product, i| product * u128::from(n - i) / u128::from(i + 1))
}

fn near(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-9 * other.abs().max(1e-30)
}

#[test]
fn the_hypergeometric_tail_agrees_with_counted_tables() {
    for requests in 0..=12_u64 {
        for others in 0..=12_u64 {
            for errors in 0..=requests {
                for other_errors in 0..=others {
                    let all_errors = errors + other_errors;
                    let tables = |x: u64| {
                        let rest = all_errors - x;
                        if rest > others { 0 } else { choose(requests, x) * choose(others, rest) }
                    };
                    let more: u128 = (errors..=requests.min(all_errors)).map(tables).sum();
                    let exact = more as f64 / choose(requests + others, all_errors) as f64;
                    let evidence = errors * (requests + others) > all_errors * requests;
                    let found = at_least_hypergeometric(errors, requests, other_errors, others);
                    let expected = if evidence { exact } else { 1.0 };
                    assert!(
                        near(found, expected),
                        "{errors}/{requests} {other_errors}/{others}: {found} {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn the_binomial_tail_agrees_with_counted_outcomes() {
    // With shares of k/8 all weights are integers.
    for eighths in 0..=8_u128 {
        for requests in 0..=20_u64 {
            for errors in 0..=requests {
                let power =
                    |base: u128, exponent: u64| (0..exponent).fold(1_u128, |product, _| product * base);
                let weight =
                    |x: u64| choose(requests, x) * power(eighths, x) * power(8 - eighths, requests - x);
                let exact = (errors..=requests).map(weight).sum::<u128>() as f64 / power(8, requests) as f64;
                let evidence = u128::from(errors) * 8 > eighths * u128::from(requests);
                let found = at_least_binomial(errors, requests, eighths as f64 / 8.0);
                let expected = if evidence { exact } else { 1.0 };
                assert!(near(found, expected), "{errors}/{requests} at {eighths}/8: {found} {expected}");
            }
        }
    }
}

#[test]
fn large_counts_have_finite_tails_and_factorials_agree_at_the_border() {
    let exact: f64 = (2..=40_u64).map(|k| (k as f64).ln()).sum();
    assert!(near(ln_factorial(40), exact));
    for (errors, requests, other_errors, others) in [
        (u64::MAX, u64::MAX, 0, u64::MAX),
        (1_000_000, 100_000_000, 900_000, 100_000_000),
        (3, 3, 0, u64::MAX),
    ] {
        let found = at_least_hypergeometric(errors, requests, other_errors, others);
        assert!((0.0..=1.0).contains(&found), "{found}");
    }
    assert!(at_least_binomial(1_000, 10_000, 0.05) < 1e-50);
}

#[test]
fn the_percentile_is_that_of_the_sorted_latencies() {
    let mut histogram = Histogram::default();
    assert_eq!(histogram.p95_ms(), None);
    let mut sorted = Vec::new();
    for turn in 0..400_u32 {
        let millis = turn * 7_919 % 997;
        histogram.add(millis, 1);
        sorted.push(millis);
        sorted.sort_unstable();
        let rank = (sorted.len() * 95).div_ceil(100);
        let exact = sorted[rank - 1];
        let bound = *BOUNDS_MS.iter().find(|bound| **bound >= exact).unwrap();
        assert_eq!(histogram.p95_ms(), Some(bound), "{turn}");
    }
    let mut long = Histogram::default();
    long.add(u32::MAX, u64::MAX);
    let same = long;
    long.merge(&same);
    assert_eq!((long.p95_ms(), long.total()), (None, u64::MAX));
}

/// Evidence with latencies of 10 ms, of which `slow` have 900 ms.
fn evidence(requests: u64, errors: u64, slow: u64) -> Evidence {
    let mut latencies = Histogram::default();
    latencies.add(10, requests - errors - slow);
    latencies.add(900, slow);
    Evidence { requests, errors, latencies }
}

const RULE: Rule = Rule { min_requests: 50, min_s: 60, permitted_errors_permille: 20 };

fn judged(canary: Evidence, live: Evidence, s: i64) -> Verdict {
    Judge::new(&RULE, second(0)).judge(&RULE, &canary, &live, second(s))
}

#[test]
fn a_step_ends_with_enough_evidence() {
    let live = evidence(1_000, 10, 0);
    let wait = |requests_left, seconds_left| Verdict::Wait { requests_left, seconds_left };
    for (canary, s, verdict) in [
        (evidence(49, 0, 0), 60, wait(1, 0)),
        (evidence(50, 0, 0), 59, wait(0, 1)),
        (evidence(50, 0, 0), 60, Verdict::Promote),
        (evidence(49, 49, 0), 60, wait(1, 0)),
        (evidence(50, 2, 0), 60, Verdict::Promote),
        (evidence(0, 0, 0), -5, wait(50, 60)),
    ] {
        assert_eq!(judged(canary, live, s), verdict, "{canary:?}");
    }
    let bad = judged(evidence(50, 20, 0), live, 1);
    let fault = Fault::Errors { errors: 20, requests: 50, live_errors: 10, live_requests: 1_000 };
    assert_eq!(bad, Verdict::Rollback(fault));
    assert_eq!(fault.to_string(), "20 of 50 requests failed, and 10 of 1000 at the live revision");
}

#[test]
fn a_slow_canary_is_rolled_back_and_an_equally_slow_one_is_not() {
    let slow = Fault::Latency { slow: 15, requests: 50, bound_ms: 10 };
    assert_eq!(judged(evidence(50, 0, 15), evidence(1_000, 0, 10), 60), Verdict::Rollback(slow));
    assert_eq!(judged(evidence(50, 0, 15), evidence(1_000, 0, 300), 60), Verdict::Promote);
    assert_eq!(judged(evidence(50, 0, 3), evidence(1_000, 0, 40), 60), Verdict::Promote);
}

#[test]
fn without_a_busy_live_revision_the_permitted_share_counts() {
    let fault = Fault::PermittedErrors { errors: 12, requests: 50, permille: 20 };
    assert_eq!(judged(evidence(50, 12, 0), evidence(0, 0, 0), 60), Verdict::Rollback(fault));
    assert_eq!(judged(evidence(50, 1, 0), evidence(49, 49, 0), 60), Verdict::Promote);
}

#[test]
fn looks_come_at_doublings_and_their_levels_sum_to_one_thousandth() {
    let rule = Rule { min_s: 1_000_000, ..RULE };
    let mut judge = Judge::new(&rule, second(0));
    let mut looks = Vec::new();
    for requests in 0..1_000 {
        let before = judge.looks;
        judge.judge(&rule, &evidence(requests, 0, 0), &evidence(1_000, 0, 0), second(1));
        if judge.looks > before {
            looks.push(requests);
        }
    }
    assert_eq!(looks, [50, 100, 200, 400, 800]);
    let levels: f64 = (0..64).map(|look| LEVEL / (f64::from(look) + 1.0) / (f64::from(look) + 2.0)).sum();
    assert!(levels < LEVEL);
}

#[test]
fn few_requests_that_all_fail_are_never_promoted_and_more_of_them_are_rolled_back() {
    for (min_requests, has_live, rolled_back) in [(1, false, 4), (5, true, 9), (6, true, 8), (7, true, 7)] {
        let rule = Rule { min_requests, min_s: 0, permitted_errors_permille: 50 };
        let mut judge = Judge::new(&rule, second(0));
        let mut requests = min_requests;
        loop {
            let live = evidence(if has_live { requests } else { 0 }, 0, 0);
            match judge.judge(&rule, &evidence(requests, requests, 0), &live, second(0)) {
                Verdict::Wait { requests_left: 0, seconds_left: 0 } => requests += 1,
                Verdict::Rollback(_) => break,
                verdict => panic!("{requests} of {min_requests}: {verdict:?}"),
            }
        }
        assert_eq!(requests, rolled_back, "{min_requests}");
    }
}

#[test]
fn a_step_that_is_over_ends_unless_its_canary_mostly_fails() {
    for min_requests in 1..=6_u64 {
        let rule = Rule { min_requests, min_s: 0, permitted_errors_permille: 600 };
        for (requests, live_requests) in
            (min_requests..=6).flat_map(|n| (0..=6_u64).map(move |live| (n, live)))
        {
            let errors = (0..=requests).flat_map(|own| (0..=live_requests).map(move |live| (own, live)));
            for (own, live) in errors {
                let (canary, other) = (evidence(requests, own, 0), evidence(live_requests, live, 0));
                let verdict = Judge::new(&rule, second(0)).judge(&rule, &canary, &other, second(0));
                let share = own as f64 / requests as f64;
                let live_share = live as f64 / live_requests.max(1) as f64;
                let waits = Verdict::Wait { requests_left: 0, seconds_left: 0 };
                let expected = if share > 0.6 && share > live_share { waits } else { Verdict::Promote };
                assert_eq!(verdict, expected, "{own} of {requests}, {live} of {live_requests}");
            }
        }
    }
}

#[test]
fn looks_without_a_further_request_keep_the_level() {
    let rule = Rule { min_s: 0, ..RULE };
    let (mut judge, live) = (Judge::new(&rule, second(0)), evidence(1_000, 10, 0));
    for run in 0..20_000 {
        assert_eq!(judge.judge(&rule, &evidence(50, 1, 0), &live, second(run)), Verdict::Promote);
    }
    assert_eq!(judge.looks, 1);
    let bad = judge.judge(&rule, &evidence(56, 7, 0), &live, second(20_000));
    assert!(matches!(bad, Verdict::Rollback(Fault::Errors { errors: 7, .. })), "{bad:?}");
}

#[test]
fn equal_revisions_are_seldom_rolled_back() {
    // A fixed generator of numbers; each request of both revisions fails with a chance of 1/16.
    let mut state = 1_u64;
    let mut fails = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u64::from(state >> 60 == 0)
    };
    let rule = Rule { min_s: 0, min_requests: 200, ..RULE };
    let mut rolled_back = 0;
    for _ in 0..2_000 {
        let mut errors = |requests: u64| (0..requests).map(|_| fails()).sum::<u64>();
        let (canary, live) = (evidence(200, errors(200), 0), evidence(1_000, errors(1_000), 0));
        let verdict = Judge::new(&rule, second(0)).judge(&rule, &canary, &live, second(0));
        rolled_back += u32::from(verdict != Verdict::Promote);
    }
    assert!(rolled_back <= 8, "{rolled_back} of 2,000, and one is expected");
}
