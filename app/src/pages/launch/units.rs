//! Parsing of times and shares. The portal checks their ranges.

use berth_types::money::parse_amount_micros;
use serde::{Deserialize, Serialize};

/// The unit of a time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LimitUnit {
    /// 60 s.
    Minutes,
    /// 3,600 s.
    Hours,
}

impl LimitUnit {
    /// Returns the value and the text of the option.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Minutes => "minutes",
            Self::Hours => "hours",
        }
    }

    /// Parses the value of an option; hours for other text.
    pub fn parse(name: &str) -> Self {
        if name == "minutes" { Self::Minutes } else { Self::Hours }
    }

    const fn seconds(self) -> i64 {
        match self {
            Self::Minutes => 60,
            Self::Hours => 3_600,
        }
    }
}

/// Parses a time such as `1.5` with its unit to seconds; `None` for other text or less than a second.
pub fn limit_seconds(text: &str, unit: LimitUnit) -> Option<u64> {
    // Decimal millionths are exact, unlike a float.
    let millionths = parse_amount_micros(text)?;
    let seconds = millionths.checked_mul(unit.seconds())? / 1_000_000;
    u64::try_from(seconds).ok().filter(|seconds| *seconds > 0)
}

/// Parses a percentage such as `12.5` or `25 %` to thousandths; `None` for other text or more decimals.
pub fn share_milli(text: &str) -> Option<u32> {
    let text = text.trim();
    let millionths = parse_amount_micros(text.strip_suffix('%').unwrap_or(text))?;
    // A tenth of a percent is a thousandth of the board.
    let milli = (millionths % 100_000 == 0).then_some(millionths / 100_000)?;
    u32::try_from(milli).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_exact() {
        assert_eq!(limit_seconds("90", LimitUnit::Minutes), Some(5_400));
        assert_eq!(limit_seconds("0.1", LimitUnit::Hours), Some(360));
        for no in ["", "-1", "0", "0.000001", "9999999999999", "1h"] {
            assert_eq!(limit_seconds(no, LimitUnit::Minutes), None, "{no}");
        }
        assert_eq!(LimitUnit::parse(LimitUnit::Minutes.name()), LimitUnit::Minutes);
    }
}
