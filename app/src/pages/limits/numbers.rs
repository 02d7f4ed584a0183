//! Numbers as people type and read them: thousandths, whole ones, money.
//!
//! Pure; must not know what is counted.

use berth_types::money::{money_text, parse_amount_micros};

use super::super::words::{grouped, typed_amount};

/// Thousandths for a decimal such as `2`, `1.5` or `0.125`; `None` when it is no such number, or finer
/// than that.
pub fn parse_milli(text: &str) -> Option<i64> {
    let micros = parse_amount_micros(text)?;
    (micros % 1_000 == 0).then_some(micros / 1_000)
}

fn decimal(whole: &str, rest: i64) -> String {
    if rest == 0 {
        return whole.to_owned();
    }
    format!("{whole}.{rest:03}").trim_end_matches('0').to_owned()
}

/// Thousandths as they would be typed: `2`, `1.5`, `0.125`.
pub fn typed_milli(milli: i64) -> String {
    let milli = milli.max(0);
    decimal(&(milli / 1_000).to_string(), milli % 1_000)
}

/// Thousandths to read: `1,284.5`.
pub fn milli_text(milli: i64) -> String {
    let milli = milli.max(0);
    decimal(&grouped(milli / 1_000), milli % 1_000)
}

/// A whole number such as `8`; `None` for anything else, a sign included.
pub fn parse_whole(text: &str) -> Option<i64> {
    let text = text.trim();
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// In what a limit is counted, and how it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Thousandths, typed as a decimal.
    Milli,
    /// Whole ones.
    Whole,
    /// Micro-units of money, typed as an amount.
    Money,
}

impl Unit {
    /// Reads what is typed; `None` where it is no such number.
    pub fn parse(self, text: &str) -> Option<i64> {
        match self {
            Self::Milli => parse_milli(text),
            Self::Whole => parse_whole(text),
            Self::Money => parse_amount_micros(text),
        }
    }

    /// A value as it would be typed.
    pub fn typed(self, value: i64) -> String {
        match self {
            Self::Milli => typed_milli(value),
            Self::Whole => value.to_string(),
            Self::Money => typed_amount(value),
        }
    }

    /// A value to read.
    pub fn text(self, value: i64, currency: &str) -> String {
        match self {
            Self::Milli => milli_text(value),
            Self::Whole => grouped(value),
            Self::Money => money_text(value, currency),
        }
    }

    /// What to type, for somebody who typed something else.
    pub const fn example(self) -> &'static str {
        match self {
            Self::Milli => "Give a number such as 2 or 0.125, with three decimals at most.",
            Self::Whole => "Give a whole number, such as 8.",
            Self::Money => "Give an amount such as 12.50, with six decimals at most.",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousandths_are_typed_as_they_are_written() {
        for (milli, text) in [(0, "0"), (125, "0.125"), (500, "0.5"), (1_000, "1"), (12_050, "12.05")] {
            assert_eq!(typed_milli(milli), text);
            assert_eq!(parse_milli(text), Some(milli));
        }
        assert_eq!(milli_text(1_284_500), "1,284.5");
        for wrong in ["", "a", "-1", "0.0001", "1,5", ".5"] {
            assert_eq!(parse_milli(wrong), None, "{wrong}");
        }
        assert_eq!(parse_milli(" 0.50 "), Some(500));
    }

    #[test]
    fn whole_numbers_are_whole() {
        assert_eq!(parse_whole(" 8 "), Some(8));
        for wrong in ["", "+8", "-8", "8.0", "99999999999999999999"] {
            assert_eq!(parse_whole(wrong), None, "{wrong}");
        }
        assert_eq!(Unit::Money.typed(12_500_000), "12.50");
        assert_eq!(Unit::Money.parse("12.50"), Some(12_500_000));
        assert_eq!(Unit::Whole.text(1_200, "USD"), "1,200");
    }
}
