//! The terms of promises: their checks, and their form for the judgement.

use berth_autoscaling::promise::{Part, Promise};
use berth_autoscaling::rollout::BOUNDS_MS;
use berth_service_types::promises::{
    MAX_CREDIT_BASIS_POINTS, MAX_GOOD_PPM, MAX_SURCHARGE_BASIS_POINTS, MAX_WAKE_MS, PromiseTerms,
    PromisedTime,
};
use berth_types::problems::FieldError;

/// The time after the end of a window until its judgement, in seconds. A wake at the end of the window has ended by then,
/// or is late.
const LATE_S: u32 = MAX_WAKE_MS / 1_000;

/// The form for the judgement.
pub fn promise(terms: &PromiseTerms) -> Promise {
    let time =
        |time: PromisedTime| Part { good_ppm: time.good_ppm, credit_basis_points: time.credit_basis_points };
    let availability = terms
        .availability
        .map(|share| Part { good_ppm: share.good_ppm, credit_basis_points: share.credit_basis_points });
    Promise {
        availability,
        first_token: terms.first_token.map(time),
        first_token_ms: terms.first_token.map_or(0, |time| time.within_ms),
        wake: terms.wake.map(time),
        wake_ms: terms.wake.map_or(0, |time| time.within_ms),
        window_s: terms.window.seconds(),
        late_s: LATE_S,
    }
}

/// All faults of terms, with `/terms` before their pointers.
pub fn check_terms(terms: &PromiseTerms) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut refuse =
        |pointer: &str, detail: &str| errors.push(FieldError::new(format!("/terms{pointer}"), detail));
    let parts = [
        ("availability", terms.availability.map(|share| (share.good_ppm, share.credit_basis_points))),
        ("first_token", terms.first_token.map(|time| (time.good_ppm, time.credit_basis_points))),
        ("wake", terms.wake.map(|time| (time.good_ppm, time.credit_basis_points))),
    ];
    if parts.iter().all(|(_, part)| part.is_none()) {
        refuse("", "Promise at least one of availability, first_token and wake.");
    }
    let mut sum = 0_u64;
    for (name, (good_ppm, credit)) in parts.into_iter().filter_map(|(name, part)| Some((name, part?))) {
        if !(1..=MAX_GOOD_PPM).contains(&good_ppm) {
            refuse(&format!("/{name}/good_ppm"), "Enter 1 to 1000000 parts a million (0.0001 to 100 %).");
        }
        if credit > MAX_CREDIT_BASIS_POINTS {
            refuse(&format!("/{name}/credit_basis_points"), "Enter 0 to 10000 basis points (0 to 100 %).");
        }
        sum += u64::from(credit);
    }
    if sum > u64::from(MAX_CREDIT_BASIS_POINTS) && is_each_bounded(&parts) {
        refuse("", "The credits of all parts sum to at most 10000 basis points: the charges of the window.");
    }
    if terms.first_token.is_some_and(|time| !BOUNDS_MS.contains(&time.within_ms)) {
        let bounds: Vec<String> = BOUNDS_MS.iter().map(ToString::to_string).collect();
        refuse("/first_token/within_ms", &format!("Enter a bound of the counts: {}.", bounds.join(", ")));
    }
    if terms.wake.is_some_and(|time| !(1..=MAX_WAKE_MS).contains(&time.within_ms)) {
        refuse("/wake/within_ms", "Enter 1 to 900000 milliseconds (15 minutes).");
    }
    if terms.surcharge_basis_points > MAX_SURCHARGE_BASIS_POINTS {
        refuse("/surcharge_basis_points", "Enter 0 to 10000 basis points (0 to 100 %).");
    }
    errors
}

/// True if each credit alone is within its limit, so that only their sum is wrong.
fn is_each_bounded(parts: &[(&str, Option<(u32, u32)>)]) -> bool {
    parts.iter().all(|(_, part)| part.is_none_or(|(_, credit)| credit <= MAX_CREDIT_BASIS_POINTS))
}

#[cfg(test)]
mod tests {
    use berth_service_types::promises::{FIRST_TOKEN_MS, PromiseWindow, PromisedShare};

    use super::*;

    fn share(good_ppm: u32, credit_basis_points: u32) -> Option<PromisedShare> {
        Some(PromisedShare { good_ppm, credit_basis_points })
    }

    fn time(within_ms: u32) -> Option<PromisedTime> {
        Some(PromisedTime { within_ms, good_ppm: 950_000, credit_basis_points: 500 })
    }

    fn terms() -> PromiseTerms {
        let window = PromiseWindow::Day;
        PromiseTerms {
            window,
            availability: share(999_000, 1_000),
            first_token: time(700),
            wake: time(6_000),
            surcharge_basis_points: 10_000,
        }
    }

    #[test]
    fn bad_terms_are_refused_at_their_fields() {
        let pointers = |terms: &PromiseTerms| -> Vec<String> {
            check_terms(terms).into_iter().map(|error| error.pointer).collect()
        };
        let none = PromiseTerms { availability: None, first_token: None, wake: None, ..terms() };
        for (terms, expected) in [
            (terms(), vec![]),
            (none, vec!["/terms"]),
            (PromiseTerms { availability: share(0, 1), ..terms() }, vec!["/terms/availability/good_ppm"]),
            (
                PromiseTerms { availability: share(1_000_001, 10_001), ..terms() },
                vec!["/terms/availability/good_ppm", "/terms/availability/credit_basis_points"],
            ),
            (PromiseTerms { availability: share(1, 9_000), ..terms() }, vec![]),
            (PromiseTerms { availability: share(1, 9_001), ..terms() }, vec!["/terms"]),
            (PromiseTerms { first_token: time(800), ..terms() }, vec!["/terms/first_token/within_ms"]),
            (PromiseTerms { wake: time(0), ..terms() }, vec!["/terms/wake/within_ms"]),
            (PromiseTerms { wake: time(900_001), ..terms() }, vec!["/terms/wake/within_ms"]),
            (PromiseTerms { surcharge_basis_points: 0, ..terms() }, vec![]),
            (
                PromiseTerms { surcharge_basis_points: 10_001, ..terms() },
                vec!["/terms/surcharge_basis_points"],
            ),
        ] {
            assert_eq!(pointers(&terms), expected, "{terms:?}");
        }
    }

    #[test]
    fn the_promised_times_of_first_tokens_are_the_bounds_of_the_counts() {
        assert_eq!(FIRST_TOKEN_MS, BOUNDS_MS);
    }

    #[test]
    fn terms_without_a_fault_pass_the_judgement() {
        for window in PromiseWindow::ALL {
            for bound in BOUNDS_MS {
                let terms = PromiseTerms { window, first_token: time(bound), ..terms() };
                assert_eq!(check_terms(&terms), Vec::new());
                let promise = promise(&terms);
                assert_eq!((promise.check(), promise.first_token_ms), (Ok(()), bound));
                assert_eq!((promise.wake_ms, promise.window_s % 3_600), (6_000, 0));
            }
        }
    }
}
