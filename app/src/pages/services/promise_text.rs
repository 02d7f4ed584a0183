//! Texts of the promise of a service. Pure.

use berth_service_types::promises::{PromiseCases, PromiseEvidence, PromiseTerms, PromiseWindow};
use berth_types::documents::surcharge_text;

use super::super::text::{counted, number};

/// Returns a number without zeros at the end of its decimals.
fn trimmed(number: &str) -> String {
    number.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns a share in parts a million as the input of a percentage: `99.9`.
pub fn typed_percent(ppm: u32) -> String {
    trimmed(&format!("{}.{:04}", ppm / 10_000, ppm % 10_000))
}

/// Returns a time as the input of seconds: `1.25`.
pub fn typed_seconds(ms: u32) -> String {
    trimmed(&format!("{}.{:03}", ms / 1_000, ms % 1_000))
}

/// Returns a share in parts a million as a percentage: `99.9 %`.
pub fn percent_text(ppm: u32) -> String {
    format!("{} %", typed_percent(ppm))
}

/// Returns a promised time: `700 ms`, `1.25 s`.
pub fn time_text(ms: u32) -> String {
    if ms < 1_000 { format!("{ms} ms") } else { format!("{} s", typed_seconds(ms)) }
}

/// Returns the windows that count.
pub const fn window_text(window: PromiseWindow) -> &'static str {
    match window {
        PromiseWindow::Hour => "Each whole hour (UTC) counts.",
        PromiseWindow::Day => "Each whole day (UTC) counts.",
        PromiseWindow::Week => "Each whole week (UTC, from Thursday) counts.",
    }
}

/// Returns the price of a promise.
pub fn replica_price_text(basis_points: u32) -> String {
    match basis_points {
        0 => "no surcharge".to_owned(),
        points => {
            format!(
                "{} on the price of each replica that is submitted with the promise",
                surcharge_text(points)
            )
        }
    }
}

/// Returns the promised parts, each with its share, its time and its credit.
pub fn part_texts(terms: &PromiseTerms) -> Vec<(&'static str, String)> {
    let part = |name: &'static str, good_ppm: u32, what: &str, basis_points: u32| {
        let (good, credit) = (percent_text(good_ppm), percent_text(basis_points.saturating_mul(100)));
        (name, format!("{good} {what}; a miss gives {credit} of the charges of the window"))
    };
    let availability = terms.availability.map(|share| {
        part("Requests", share.good_ppm, "without a fault of the platform", share.credit_basis_points)
    });
    let first_token = terms.first_token.map(|time| {
        let what = format!("within {}", time_text(time.within_ms));
        part("First tokens", time.good_ppm, &what, time.credit_basis_points)
    });
    let wake = terms.wake.map(|time| {
        let what = format!("with devices within {}", time_text(time.within_ms));
        part("Wakes", time.good_ppm, &what, time.credit_basis_points)
    });
    [availability, first_token, wake].into_iter().flatten().collect()
}

/// Returns the promised parts with their cases.
pub fn part_cases(terms: &PromiseTerms, found: &PromiseEvidence) -> Vec<(&'static str, PromiseCases)> {
    let all = [
        terms.availability.map(|_| ("Requests", found.requests)),
        terms.first_token.map(|_| ("First tokens", found.first_tokens)),
        terms.wake.map(|_| ("Wakes", found.wakes)),
    ];
    all.into_iter().flatten().collect()
}

/// Returns the cases of a judged window: `1,000 requests, 2 bad; 4 wakes, 1 bad`.
pub fn evidence_text(found: &PromiseEvidence) -> String {
    let all = [
        (found.requests, "request", "requests"),
        (found.first_tokens, "first token", "first tokens"),
        (found.wakes, "wake", "wakes"),
    ];
    let parts: Vec<String> = all
        .into_iter()
        .filter(|(cases, _, _)| cases.all > 0)
        .map(|(cases, one, many)| {
            let all = counted(usize::try_from(cases.all).unwrap_or(usize::MAX), one, many);
            format!("{all}, {} bad", number(cases.bad))
        })
        .collect();
    if parts.is_empty() { "no cases".to_owned() } else { parts.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_service_types::promises::{PromisedShare, PromisedTime};

    const fn cases(all: u64, bad: u64) -> PromiseCases {
        PromiseCases { all, bad }
    }

    #[test]
    fn a_percentage_has_the_digits_of_its_share() {
        for (ppm, text) in [
            (1, "0.0001 %"),
            (10_000, "1 %"),
            (100_000, "10 %"),
            (999_000, "99.9 %"),
            (999_990, "99.999 %"),
            (1_000_000, "100 %"),
            (0, "0 %"),
        ] {
            assert_eq!(percent_text(ppm), text);
        }
    }

    #[test]
    fn a_promised_time_is_exact() {
        for (ms, text) in
            [(1, "1 ms"), (700, "700 ms"), (1_000, "1 s"), (1_250, "1.25 s"), (120_000, "120 s")]
        {
            assert_eq!(time_text(ms), text);
        }
        assert_eq!((typed_seconds(1), typed_seconds(900_000)), ("0.001".to_owned(), "900".to_owned()));
    }

    #[test]
    fn only_promised_parts_are_shown_in_their_order() {
        let time = |within_ms| Some(PromisedTime { within_ms, good_ppm: 950_000, credit_basis_points: 250 });
        let found = PromiseEvidence { wakes: cases(4, 1), ..PromiseEvidence::default() };
        let terms = PromiseTerms {
            window: PromiseWindow::Day,
            availability: Some(PromisedShare { good_ppm: 999_000, credit_basis_points: 1_000 }),
            first_token: None,
            wake: time(10_000),
            surcharge_basis_points: 0,
        };
        assert_eq!(
            part_texts(&terms),
            [
                (
                    "Requests",
                    "99.9 % without a fault of the platform; a miss gives 10 % of the charges of the window"
                        .to_owned()
                ),
                (
                    "Wakes",
                    "95 % with devices within 10 s; a miss gives 2.5 % of the charges of the window"
                        .to_owned()
                ),
            ]
        );
        assert_eq!(part_cases(&terms, &found), [("Requests", cases(0, 0)), ("Wakes", cases(4, 1))]);
        let terms = PromiseTerms { availability: None, first_token: time(700), wake: None, ..terms };
        assert_eq!(
            part_texts(&terms),
            [(
                "First tokens",
                "95 % within 700 ms; a miss gives 2.5 % of the charges of the window".to_owned()
            )]
        );
        assert_eq!(part_cases(&terms, &found), [("First tokens", cases(0, 0))]);
    }

    #[test]
    fn a_price_is_a_surcharge_on_later_replicas() {
        assert_eq!(replica_price_text(0), "no surcharge");
        assert_eq!(
            replica_price_text(1_000),
            "+10 % on the price of each replica that is submitted with the promise"
        );
        assert_eq!(
            replica_price_text(25),
            "+0.25 % on the price of each replica that is submitted with the promise"
        );
    }

    #[test]
    fn evidence_names_the_kinds_with_cases() {
        let found =
            PromiseEvidence { requests: cases(1_000, 2), wakes: cases(1, 1), ..PromiseEvidence::default() };
        assert_eq!(evidence_text(&found), "1,000 requests, 2 bad; 1 wake, 1 bad");
        assert_eq!(evidence_text(&PromiseEvidence::default()), "no cases");
    }
}
