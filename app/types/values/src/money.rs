//! Money as integers: micro-units of one configured currency; rates in nano-units a second.
//!
//! The texts follow one rule (docs/billing.md, "Amounts on the screen"):
//!
//! - A charged, paid, granted or returned amount is exact ([`money_text`]).
//! - A single figure of money set aside or required is rounded up, except for less than a hundredth of its last digit
//!   ([`reserved_text`]), and one of money at hand is rounded down ([`available_text`]).
//! - The amounts of a column are exact and have one number of decimals ([`column_decimals`]).
//! - The price of one device has all its digits ([`money_text`]), and the rate of several devices at most four decimals
//!   ([`price_text`]).

/// The least and the greatest number of decimals of an amount.
const MIN_DECIMALS: usize = 2;
const MAX_DECIMALS: usize = 6;

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

/// Returns `$`, or `CHF ` for a code.
fn prefix(currency: &str) -> String {
    let symbol = symbol(currency);
    let space = if symbol.len() > 2 && symbol.is_ascii() { " " } else { "" };
    format!("{symbol}{space}")
}

/// The number of decimals that an amount needs.
fn needed_decimals(micros: i64) -> usize {
    let mut rest = micros.unsigned_abs() % 1_000_000;
    let mut decimals = MAX_DECIMALS;
    while decimals > MIN_DECIMALS && rest.is_multiple_of(10) {
        rest /= 10;
        decimals -= 1;
    }
    decimals
}

/// Formats an exact amount, such as `$2.41`, `$0.149999` or `−$3.00`: at least two decimals, and all that the
/// amount needs.
pub fn money_text(micros: i64, currency: &str) -> String {
    column_text(micros, currency, MIN_DECIMALS)
}

/// Returns the number of decimals for a column of amounts in micro-units: that of its most precise amount, 2
/// to 6.
pub fn column_decimals(amounts: impl IntoIterator<Item = i64>) -> usize {
    amounts.into_iter().map(needed_decimals).max().unwrap_or(MIN_DECIMALS)
}

/// Formats an exact amount of a column with `decimals` decimals, and with more if the amount needs them.
pub fn column_text(micros: i64, currency: &str, decimals: usize) -> String {
    let decimals = decimals.max(needed_decimals(micros)).min(MAX_DECIMALS);
    let sign = if micros < 0 { "−" } else { "" };
    let magnitude = micros.unsigned_abs();
    let digits = format!("{:06}", magnitude % 1_000_000);
    let shown = digits.get(..decimals).unwrap_or(&digits);
    format!("{sign}{}{}.{shown}", prefix(currency), grouped(magnitude / 1_000_000))
}

/// Formats an exact amount with its sign: `+$5.00`, `−$0.02`, `$0.00`.
pub fn signed_money(micros: i64, currency: &str) -> String {
    signed_column_text(micros, currency, MIN_DECIMALS)
}

/// [`column_text`] with the sign of the amount: `+$5.00`.
pub fn signed_column_text(micros: i64, currency: &str, decimals: usize) -> String {
    let plus = if micros > 0 { "+" } else { "" };
    format!("{plus}{}", column_text(micros, currency, decimals))
}

/// The unit of a rounded figure in micro-units: a hundredth; below a tenth the second significant digit.
const fn figure_step(micros: i64) -> i64 {
    match micros.unsigned_abs() {
        0..=99 => 1,
        100..=999 => 10,
        1_000..=9_999 => 100,
        10_000..=99_999 => 1_000,
        _ => 10_000,
    }
}

/// Formats money that is set aside or required, rounded up: `$0.30` for 0.299998, `$0.16` for 0.1502. An excess below a
/// hundredth of the last digit has no digit: rates are rounded, so an hour at `$0.15` can cost 0.150001.
pub fn reserved_text(micros: i64, currency: &str) -> String {
    let step = figure_step(micros);
    let over = micros.rem_euclid(step);
    let down = micros.saturating_sub(over);
    let is_excess = over > 0 && over >= step / 100;
    money_text(if is_excess { down.saturating_add(step) } else { down }, currency)
}

/// Formats money at hand, rounded down: `$1.49` for 1.495. No more than the real amount is shown.
pub fn available_text(micros: i64, currency: &str) -> String {
    money_text(micros.saturating_sub(micros.rem_euclid(figure_step(micros))), currency)
}

/// Formats a running counter with four decimals, rounded down: `$11.5736`.
pub fn ticking_money(micros: i64, currency: &str) -> String {
    let magnitude = micros.max(0).unsigned_abs() / 100;
    format!("{}{}.{:04}", prefix(currency), grouped(magnitude / 10_000), magnitude % 10_000)
}

/// Formats the rate of several devices an hour, with at most four decimals: `$0.30`, `$1.495`. A rate below a
/// thousandth has all its digits.
pub fn price_text(per_hour_micros: i64, currency: &str) -> String {
    if per_hour_micros < 1_000 {
        return money_text(per_hour_micros, currency);
    }
    // The rate of several devices is off by some micro-units, which no price has.
    money_text(per_hour_micros.saturating_add(50) / 100 * 100, currency)
}

/// Formats a rate a second with all nine decimals: `$0.002677777`.
pub fn rate_text(nano_per_second: i64, currency: &str) -> String {
    let nano = nano_per_second.max(0).unsigned_abs();
    format!("{}{}.{:09}", prefix(currency), grouped(nano / 1_000_000_000), nano % 1_000_000_000)
}

pub fn grouped(units: u64) -> String {
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

/// Converts a rate in nano-units a second to its price in micro-units an hour: the shortest decimal that
/// [`nano_per_second`] converts to this rate. `None` beyond `i64`.
pub fn per_hour_micros(rate: i64) -> Option<i64> {
    let floor = i128::from(rate) * 3_600 / 1_000;
    let tens = floor - floor.rem_euclid(10);
    let has_rate =
        |hourly: &i128| i64::try_from(*hourly).ok().and_then(nano_per_second).is_some_and(|own| own == rate);
    // A rate has about four prices in micro-units, so at most one of them ends with a zero.
    let shortest = [tens, tens + 10].into_iter().find(has_rate).unwrap_or(floor);
    i64::try_from(shortest).ok()
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

/// Returns an amount as input, such as `2.41` or `0.0067`: the inverse of [`parse_amount_micros`]. A negative
/// amount, which no field accepts, becomes `0.00`.
pub fn typed_amount(micros: i64) -> String {
    let magnitude = micros.max(0).unsigned_abs();
    let digits = format!("{:06}", magnitude % 1_000_000);
    let shown = digits.get(..needed_decimals(micros.max(0))).unwrap_or(&digits);
    format!("{}.{shown}", magnitude / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn amounts_are_exact() {
        let cases = [
            (0, "$0.00"),
            (2_410_000, "$2.41"),
            (1_495_000, "$1.495"),
            (6_700, "$0.0067"),
            (3, "$0.000003"),
            (90_000, "$0.09"),
            (91_500, "$0.0915"),
            (-3_000_000, "−$3.00"),
            (1_234_567_890_000, "$1,234,567.89"),
            (11_573_612, "$11.573612"),
            (100_000, "$0.10"),
        ];
        for (micros, text) in cases {
            assert_eq!(money_text(micros, "USD"), text, "{micros}");
        }
        assert_eq!(money_text(5_000_000, "CHF"), "CHF 5.00");
        assert_eq!(
            (signed_money(5_000_000, "USD"), signed_money(-5, "EUR")),
            ("+$5.00".into(), "−€0.000005".into())
        );
    }

    #[test]
    fn an_hour_at_thirty_cents_costs_thirty_cents() {
        // The rate is rounded, so an hour costs a little less than its price.
        let rate = nano_per_second(300_000).unwrap();
        let hour = rate * 3_600 / 1_000;
        assert_eq!(hour, 299_998);
        assert_eq!(
            (reserved_text(hour, "USD"), money_text(hour, "USD")),
            ("$0.30".into(), "$0.299998".into())
        );
        assert_eq!(price_text(per_hour_micros(rate).unwrap(), "USD"), "$0.30");
        assert_eq!(
            (available_text(1_495_000, "USD"), reserved_text(1_495_000, "USD")),
            ("$1.49".into(), "$1.50".into())
        );
        assert_eq!(
            (available_text(-1_495_000, "USD"), reserved_text(99_999, "USD")),
            ("−$1.50".into(), "$0.10".into())
        );
    }

    #[test]
    fn an_hour_costs_its_price_on_the_screen() {
        for hourly in (1..=200).map(|cents| cents * 50_000) {
            let hour = nano_per_second(hourly).unwrap() * 3_600 / 1_000;
            assert_eq!(reserved_text(hour, "USD"), money_text(hourly, "USD"), "{hour}");
            let day = nano_per_second(hourly).unwrap() * 86_400 / 1_000;
            assert_eq!(reserved_text(day, "USD"), money_text(hourly * 24, "USD"), "{day}");
        }
        for (micros, text) in [(150_001, "$0.15"), (150_100, "$0.16"), (10_009, "$0.01"), (101, "$0.00011")] {
            assert_eq!(reserved_text(micros, "USD"), text, "{micros}");
        }
    }

    #[test]
    fn a_column_has_one_number_of_decimals() {
        let amounts = [1_500_000, -149_999, 20_000_000, 6_700];
        for (count, decimals, last) in
            [(0, 2, "$0.00"), (1, 2, "$1.50"), (2, 6, "−$0.149999"), (3, 6, "$20.000000")]
        {
            let column = amounts.get(..count).unwrap();
            assert_eq!(column_decimals(column.iter().copied()), decimals);
            assert_eq!(column_text(column.last().copied().unwrap_or(0), "USD", decimals), last);
        }
        assert_eq!(column_decimals([6_700, 10_000]), 4);
        assert_eq!(column_text(149_999, "USD", 2), "$0.149999", "no amount loses a digit");
        assert_eq!(
            (column_text(1, "USD", 99), signed_column_text(10, "USD", 6)),
            ("$0.000001".into(), "+$0.000010".into())
        );
    }

    #[test]
    fn prices_counters_and_rates_read_well() {
        for (micros, text) in
            [(299_998, "$0.30"), (1_495_000, "$1.495"), (899_996, "$0.90"), (5, "$0.000005")]
        {
            assert_eq!(price_text(micros, "USD"), text);
        }
        assert_eq!(ticking_money(1_234_567_899, "USD"), "$1,234.5678");
        assert_eq!(rate_text(2_677_777, "USD"), "$0.002677777");
    }

    /// An amount as numerator and denominator, read from its text without the functions of this module.
    fn rational(text: &str) -> (i128, i128) {
        let digits = text.replace(['$', ','], "");
        let (sign, digits) = digits.strip_prefix('−').map_or((1, digits.as_str()), |rest| (-1, rest));
        let (whole, part) = digits.split_once('.').unwrap();
        let denominator = 10_i128.pow(u32::try_from(part.len()).unwrap());
        (sign * (whole.parse::<i128>().unwrap() * denominator + part.parse::<i128>().unwrap()), denominator)
    }

    /// The text of an amount less the amount, in micro-units times the denominator of the text.
    fn difference(text: &str, micros: i64) -> i128 {
        let (numerator, denominator) = rational(text);
        numerator * 1_000_000 - i128::from(micros) * denominator
    }

    #[test]
    fn small_amounts_agree_with_rational_numbers() {
        let near = |centre: i64| centre - 1_100..=centre + 1_100;
        let all = (-120_000..=120_000)
            .chain(near(1_000_000))
            .chain(near(-10_000_000))
            .chain(near(1_000_000_000_000));
        for micros in all {
            let exact = money_text(micros, "USD");
            assert_eq!(difference(&exact, micros), 0, "{micros} {exact}");
            let (_, denominator) = rational(&exact);
            let longest = denominator > 100 && exact.ends_with('0');
            assert!(!longest, "{exact} has a superfluous zero");
            // A figure of two significant digits, or of cents, is never off by a tenth, nor by a cent.
            let most = (i128::from(micros.unsigned_abs()) / 9 + 1).min(9_999);
            let up = reserved_text(micros, "USD");
            let more = difference(&up, micros);
            let (_, parts) = rational(&up);
            let unseen = i128::from(figure_step(micros)) / 100;
            assert!(more >= -unseen * parts && more <= most * parts, "{micros} {up}");
            let down = available_text(micros, "USD");
            let less = difference(&down, micros);
            let (_, parts) = rational(&down);
            assert!(less <= 0 && -less <= most * parts, "{micros} {down}");
            for decimals in 2..=6 {
                assert_eq!(
                    difference(&column_text(micros, "USD", decimals), micros),
                    0,
                    "{micros} {decimals}"
                );
            }
        }
    }

    #[test]
    fn typing_and_parsing_are_inverse() {
        let near = |centre: i64| centre - 5_000..=centre + 5_000;
        for micros in (0..=120_000).chain(near(1_000_000)).chain(near(999_999_000_000)).chain([i64::MAX]) {
            let text = typed_amount(micros);
            assert_eq!(parse_amount_micros(&text), Some(micros), "{text}");
            let part = text.split_once('.').unwrap().1;
            assert!(part.len() == 2 || !part.ends_with('0'), "{text} is not the shortest");
        }
        for (micros, text) in
            [(2_410_000, "2.41"), (2_000_000, "2.00"), (6_700, "0.0067"), (1, "0.000001"), (-1, "0.00")]
        {
            assert_eq!(typed_amount(micros), text);
        }
    }

    #[test]
    fn a_stored_rate_is_typed_as_the_price_that_was_set() {
        // Every price with up to five decimals comes back as it was; the cents below ten are all here.
        let prices = (10..=20_000).map(|n| n * 10).chain((1..=1_000).map(|n| n * 10_000));
        for hourly in prices {
            let rate = nano_per_second(hourly).unwrap();
            assert_eq!(per_hour_micros(rate), Some(hourly), "{hourly}");
        }
        // Every rate comes back from its typed price.
        for rate in (0..=100_000).chain(41_000_000..=41_010_000) {
            let typed = typed_amount(per_hour_micros(rate).unwrap());
            let back = parse_amount_micros(&typed).and_then(nano_per_second);
            assert_eq!(back, Some(rate), "{typed}");
        }
        assert_eq!(typed_amount(per_hour_micros(41_667).unwrap()), "0.15");
        assert_eq!(per_hour_micros(i64::MAX), None);
    }

    proptest! {
        #[test]
        fn every_amount_has_a_text(micros: i64) {
            for text in [money_text(micros, "EUR"), reserved_text(micros, "EUR"), available_text(micros, "EUR")] {
                prop_assert!(!text.is_empty());
            }
        }
        #[test]
        fn what_is_read_is_what_was_written(units in 0i64..1_000_000_000, micros in 0i64..1_000_000) {
            prop_assert_eq!(parse_amount_micros(&format!("{units}.{micros:06}")), Some(units * 1_000_000 + micros));
        }
        #[test]
        fn a_rate_survives_its_hourly_text(cents in 0i64..10_000_000) {
            let hourly = cents * 10_000;
            prop_assert_eq!(per_hour_micros(nano_per_second(hourly).unwrap()), Some(hourly));
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
