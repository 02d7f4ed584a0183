//! Times and shares as people type them.
//!
//! Must not decide which of them the portal accepts.

use berth_types::money::parse_amount_micros;

/// In what a time limit is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitUnit {
    /// 60 s.
    Minutes,
    /// 3,600 s.
    Hours,
}

impl LimitUnit {
    /// The value of the option in the form.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Minutes => "minutes",
            Self::Hours => "hours",
        }
    }

    /// The unit that an option stands for; hours for anything unknown.
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

/// Seconds for `1.5` and a unit; `None` when it is no positive number.
pub fn limit_seconds(text: &str, unit: LimitUnit) -> Option<u64> {
    // A decimal in millionths is exact, where a float would not be.
    let millionths = parse_amount_micros(text)?;
    let seconds = millionths.checked_mul(unit.seconds())? / 1_000_000;
    u64::try_from(seconds).ok().filter(|seconds| *seconds > 0)
}

/// Thousandths for a percentage such as `12.5` or `25 %`; `None` when it is no such number, or finer than
/// that.
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
