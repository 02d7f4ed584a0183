//! The price of metered time.
//!
//! A charge is the difference of two floors over cumulative use. So the total of the charges does not depend
//! on the times at which the use was charged.

/// The charge in micro-units for `metered_ms` milliseconds at `nano_per_second`, rounded down and never
/// negative. `None` on overflow.
pub fn charge_micros(nano_per_second: i64, metered_ms: i64) -> Option<i64> {
    let product = i128::from(nano_per_second.max(0)) * i128::from(metered_ms.max(0));
    // nano per second × ms ÷ 1000 = nano; ÷ 1000 = micro.
    i64::try_from(product / 1_000_000).ok()
}

/// The rate of `count` devices. `None` on overflow.
pub fn total_rate(nano_per_second: i64, count: u32) -> Option<i64> {
    nano_per_second.checked_mul(i64::from(count))
}

/// The rate of `milli` thousandths of a board, rounded up so that a share always has a price. `None` on
/// overflow.
pub fn share_rate(nano_per_second: i64, milli: u32) -> Option<i64> {
    let product = i128::from(nano_per_second.max(0)) * i128::from(milli);
    i64::try_from((product + 999) / 1_000).ok()
}

/// The highest charge of a run at this rate. `None` on overflow.
pub fn worst_case_micros(nano_per_second: i64, max_duration_s: u64) -> Option<i64> {
    let ms = i64::try_from(max_duration_s).ok()?.checked_mul(1_000)?;
    charge_micros(nano_per_second, ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_charges() {
        assert_eq!(charge_micros(1_000_000_000, 1_000), Some(1_000_000));
        assert_eq!(charge_micros(669_444, 999), Some(668));
        assert_eq!(charge_micros(i64::MAX, i64::MAX), None);
        assert_eq!(worst_case_micros(i64::MAX, 10_000_000), None);
        assert_eq!(worst_case_micros(5, u64::MAX), None);
        assert_eq!(share_rate(1_001, 500), Some(501));
        assert_eq!(share_rate(1, 1), Some(1));
        assert_eq!(share_rate(i64::MAX, 1_001), None);
    }

    proptest! {
        #[test]
        fn cutting_use_into_pieces_changes_nothing(rate in 0i64..10_000_000_000, cuts in prop::collection::vec(0i64..100_000, 1..30)) {
            let (mut cum, mut sum) = (0, 0);
            for part in &cuts {
                let next = cum + part;
                sum += charge_micros(rate, next).unwrap() - charge_micros(rate, cum).unwrap();
                cum = next;
            }
            prop_assert_eq!(Some(sum), charge_micros(rate, cum));
        }

        #[test]
        fn no_input_panics(rate: i64, ms: i64, count: u32, seconds: u64) {
            let _ = (charge_micros(rate, ms), worst_case_micros(rate, seconds), share_rate(rate, count));
        }
    }
}
