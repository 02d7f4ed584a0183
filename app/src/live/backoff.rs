//! The pause before another attempt to reach the portal.

const FIRST_MS: u64 = 1_000;
const LONGEST_MS: u64 = 30_000;

/// Returns the milliseconds before the next attempt, doubled with each failure up to 30 s. The jitter separates
/// the pages that lost the portal at the same time.
pub fn pause_ms(failures: u32) -> u64 {
    jittered(failures, random())
}

/// `random` is from 0 to 1.
fn jittered(failures: u32, random: f64) -> u64 {
    let full = FIRST_MS.saturating_mul(1_u64 << failures.min(10)).min(LONGEST_MS);
    let half = full / 2;
    half + (half as f64 * random) as u64
}

#[cfg(feature = "hydrate")]
fn random() -> f64 {
    js_sys::Math::random()
}

#[cfg(not(feature = "hydrate"))]
fn random() -> f64 {
    1.0
}

#[cfg(test)]
mod tests {
    use super::jittered;

    #[test]
    fn the_pause_doubles_up_to_half_a_minute() {
        let longest: Vec<u64> = (0..7).map(|failures| jittered(failures, 1.0)).collect();
        assert_eq!(longest, [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
        assert_eq!((jittered(0, 0.0), jittered(u32::MAX, 0.0)), (500, 15_000));
    }
}
