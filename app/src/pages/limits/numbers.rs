//! Parsing and texts of numbers: thousandths, whole numbers and money.
//!
//! Pure.

use berth_types::money::parse_amount_micros;

use super::super::text::{grouped, price_text, typed_amount};

/// Parses a decimal such as `2`, `1.5` or `0.125` to thousandths; `None` for other text or more decimals.
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

/// Returns thousandths as input: `2`, `1.5`, `0.125`.
pub fn typed_milli(milli: i64) -> String {
    let milli = milli.max(0);
    decimal(&(milli / 1_000).to_string(), milli % 1_000)
}

/// Returns thousandths as text: `1,284.5`.
pub fn milli_text(milli: i64) -> String {
    let milli = milli.max(0);
    decimal(&grouped(milli / 1_000), milli % 1_000)
}

/// Parses a whole number such as `8`; `None` for other text or a sign.
pub fn parse_whole(text: &str) -> Option<i64> {
    let text = text.trim();
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// The unit of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Thousandths with a decimal as input.
    Milli,
    /// Whole numbers.
    Whole,
    /// Micro-units of the currency an hour with an amount as input.
    Money,
}

impl Unit {
    /// Parses input; `None` for other text.
    pub fn parse(self, text: &str) -> Option<i64> {
        match self {
            Self::Milli => parse_milli(text),
            Self::Whole => parse_whole(text),
            Self::Money => parse_amount_micros(text),
        }
    }

    /// Returns a value as input.
    pub fn typed(self, value: i64) -> String {
        match self {
            Self::Milli => typed_milli(value),
            Self::Whole => value.to_string(),
            Self::Money => typed_amount(value),
        }
    }

    /// Returns a value as text.
    pub fn text(self, value: i64, currency: &str) -> String {
        match self {
            Self::Milli => milli_text(value),
            Self::Whole => grouped(value),
            Self::Money => price_text(value, currency),
        }
    }

    /// Returns the error for invalid input.
    pub const fn example(self) -> &'static str {
        match self {
            Self::Milli => "Enter a number such as 2 or 0.125, with at most three decimals.",
            Self::Whole => "Enter a whole number, such as 8.",
            Self::Money => "Enter an amount, such as 12.50, with at most six decimals.",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousandths_survive_text_and_parsing() {
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
