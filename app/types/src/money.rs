//! Money as integers: micro-units of one configured currency; rates in nano-units a second.

/// The sign or code before an amount.
fn symbol(currency: &str) -> &str {
    match currency {
        "USD" => "$",
        "EUR" => "€",
        "GBP" => "£",
        "JPY" => "¥",
        other => other,
    }
}

/// Formats an amount, such as `$2.41`, `$0.0067` or `−$3.00`: two decimals, and more for amounts below a
/// tenth.
///
/// It rounds toward zero, so that a shown balance is never larger than the real one.
pub fn money_text(micros: i64, currency: &str) -> String {
    let sign = if micros < 0 { "−" } else { "" };
    let space = if symbol(currency).len() > 2 && symbol(currency).is_ascii() { " " } else { "" };
    let magnitude = micros.unsigned_abs();
    let (units, rest) = (magnitude / 1_000_000, magnitude % 1_000_000);
    let number = if units == 0 && rest > 0 && rest < 1_000_000 / 10 {
        let text = format!("{rest:06}");
        let keep = text.trim_end_matches('0').len().clamp(2, 6);
        format!("0.{}", text.get(..keep.min(significant(&text))).unwrap_or(&text))
    } else {
        format!("{}.{:02}", grouped(units), rest / 10_000)
    };
    format!("{sign}{}{space}{number}", symbol(currency))
}

/// The number of decimals for two significant digits, at least two.
fn significant(text: &str) -> usize {
    let zeros = text.len() - text.trim_start_matches('0').len();
    (zeros + 2).clamp(2, 6)
}

fn grouped(units: u64) -> String {
    let digits = units.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// Converts a rate in nano-units a second to micro-units an hour, rounded down. `None` beyond `i64`.
pub fn per_hour_micros(nano_per_second: i64) -> Option<i64> {
    i64::try_from(i128::from(nano_per_second) * 3_600 / 1_000).ok()
}

/// Converts micro-units an hour to the nearest rate in nano-units a second. A positive price never becomes
/// zero. `None` beyond `i64`.
pub fn nano_per_second(per_hour_micros: i64) -> Option<i64> {
    let nearest = i64::try_from((i128::from(per_hour_micros) * 1_000 + 1_800).div_euclid(3_600)).ok()?;
    Some(if per_hour_micros > 0 { nearest.max(1) } else { nearest })
}

/// Parses a decimal amount, such as `12`, `12.5` or `0.000001`, into micro-units. `None` for other texts, for
/// more than six decimals, and beyond `i64`.
pub fn parse_amount_micros(text: &str) -> Option<i64> {
    let text = text.trim();
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || part.len() > 6 || !digits(whole) || !digits(part) {
        return None;
    }
    let units: i64 = whole.parse().ok()?;
    let micros: i64 = format!("{part:0<6}").parse().ok()?;
    units.checked_mul(1_000_000)?.checked_add(micros)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn amounts_read_well() {
        let cases = [
            (0, "$0.00"),
            (2_410_000, "$2.41"),
            (6_700, "$0.0067"),
            (3, "$0.000003"),
            (90_000, "$0.09"),
            (91_500, "$0.091"),
            (-3_000_000, "−$3.00"),
            (1_234_567_890_000, "$1,234,567.89"),
            (100_000, "$0.10"),
        ];
        for (micros, text) in cases {
            assert_eq!(money_text(micros, "USD"), text, "{micros}");
        }
        assert_eq!(money_text(5_000_000, "CHF"), "CHF 5.00");
    }

    proptest! {
        #[test]
        fn every_amount_has_a_text(micros: i64) {
            prop_assert!(!money_text(micros, "EUR").is_empty());
        }
        #[test]
        fn what_is_read_is_what_was_written(units in 0i64..1_000_000_000, micros in 0i64..1_000_000) {
            prop_assert_eq!(parse_amount_micros(&format!("{units}.{micros:06}")), Some(units * 1_000_000 + micros));
        }
        #[test]
        fn a_rate_survives_its_hourly_text(cents in 0i64..10_000_000) {
            let hourly = cents * 10_000;
            let back = per_hour_micros(nano_per_second(hourly).unwrap()).unwrap();
            prop_assert!((back - hourly).abs() <= 4);
        }
    }

    /// True if a rate is its price rounded to the nearest nano-unit a second; only the price 0 has the rate 0.
    fn is_nearest(per_hour_micros: i64, rate: i64) -> bool {
        let off = (i128::from(rate) * 3_600 - i128::from(per_hour_micros) * 1_000).abs();
        match per_hour_micros {
            0 => rate == 0,
            _ => rate == 1 && off < 3_600 || rate > 0 && 2 * off <= 3_600,
        }
    }

    #[test]
    fn a_rate_is_the_nearest_to_its_price_and_something_for_something() {
        // The greatest price that an operator may set is a million an hour.
        let greatest = 1_000_000_000_000;
        let cases = [
            (0, 0),
            (1, 1),
            (2, 1),
            (3_599, 1_000),
            (3_600, 1_000),
            (3_601, 1_000),
            (3_600_000, 1_000_000),
            (greatest, 277_777_777_778),
        ];
        for (hourly, rate) in cases {
            assert_eq!(nano_per_second(hourly), Some(rate), "{hourly}");
            assert!(is_nearest(hourly, rate), "{hourly} {rate}");
        }
        assert!(is_nearest(i64::MAX, nano_per_second(i64::MAX).unwrap()), "no overflow");
    }

    proptest! {
        #[test]
        fn every_price_has_the_nearest_rate(small in 0i64..100_000, any in 0i64..=i64::MAX) {
            for hourly in [small, any] {
                let rate = nano_per_second(hourly).unwrap();
                prop_assert!(is_nearest(hourly, rate), "{} {}", hourly, rate);
            }
        }
    }

    #[test]
    fn what_is_no_amount_is_refused() {
        for text in ["", "-1", "1e3", "1.0000001", "99999999999999999999", "1.2.3", ".5", "1,000"] {
            assert_eq!(parse_amount_micros(text), None, "{text}");
        }
    }
}
