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

/// The rate with a surcharge in basis points, rounded down to whole nano-units a second. So a device is never charged more
/// than its exact share, and less than one nano-unit a second is lost. `None` on overflow.
pub fn surcharged_rate(nano_per_second: i64, basis_points: i64) -> Option<i64> {
    let product = i128::from(nano_per_second.max(0)) * (10_000 + i128::from(basis_points.max(0)));
    i64::try_from(product / 10_000).ok()
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
        assert_eq!(surcharged_rate(669_444, 1_000), Some(736_388));
        assert_eq!(surcharged_rate(i64::MAX, 0), Some(i64::MAX));
        assert_eq!(surcharged_rate(i64::MAX, 1), None);
    }

    /// Rates of devices in nano-units a second.
    const RATES: [i64; 8] = [0, 1, 7, 999, 9_999, 10_000, 669_444, 1_000_000];
    const SURCHARGES: [i64; 9] = [0, 1, 33, 500, 1_000, 1_250, 3_333, 9_999, 10_000];
    const RUNS_MS: [i64; 6] = [0, 1, 999, 60_000, 3_600_001, 604_800_000];

    /// The charge without rounding, as a whole number of parts.
    fn exact_charge(rate: i64, basis_points: i64, milli: i128, ms: i64) -> i128 {
        i128::from(rate) * (10_000 + i128::from(basis_points)) * milli * i128::from(ms)
    }

    #[test]
    fn surcharged_devices_are_charged_to_the_last_nano_unit_and_never_above() {
        for (rate, basis_points) in RATES.into_iter().flat_map(|r| SURCHARGES.map(|s| (r, s))) {
            let device = surcharged_rate(rate, basis_points).unwrap();
            for (count, ms) in [1_u32, 2, 3, 8, 64].into_iter().flat_map(|c| RUNS_MS.map(|ms| (c, ms))) {
                let charged = charge_micros(total_rate(device, count).unwrap(), ms).unwrap();
                // A micro-unit is 1,000,000 (nano-units and milliseconds) × 10,000 (basis points) × 1,000 (thousandths).
                let unit = 10_000_000_000_000_i128;
                let exact = exact_charge(rate, basis_points, i128::from(count) * 1_000, ms);
                let lost = exact - i128::from(charged) * unit;
                let case = (rate, basis_points, count, ms);
                assert!(lost >= 0, "charged too much: {case:?}");
                // One nano-unit a second for each device, and one micro-unit for the whole run.
                let most = i128::from(count) * i128::from(ms) * 10_000_000 + unit;
                assert!(lost < most, "charged too little: {case:?}");
                assert!(basis_points > 0 || device == rate, "no surcharge changes nothing: {case:?}");
            }
        }
    }

    #[test]
    fn a_surcharged_share_is_charged_to_the_nearest_nano_unit_a_second() {
        for (rate, basis_points) in RATES.into_iter().flat_map(|r| SURCHARGES.map(|s| (r, s))) {
            let device = surcharged_rate(rate, basis_points).unwrap();
            for milli in [1_u32, 250, 333, 999] {
                // Nano-units a second × 10,000 basis points × 1,000 thousandths.
                let exact = exact_charge(rate, basis_points, i128::from(milli), 1);
                let share = i128::from(share_rate(device, milli).unwrap()) * 10_000_000;
                let case = (rate, basis_points, milli);
                assert!((share - exact).abs() < 10_000_000, "{case:?}: {share} is not near {exact}");
            }
        }
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
            let _ = surcharged_rate(rate, ms);
        }
    }
}
