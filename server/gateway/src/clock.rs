//! The clocks of the gateway. Only this module reads the system time.

use std::sync::LazyLock;
use std::time::Instant;

use berth_types::time::Timestamp;

/// Milliseconds of a monotonic clock, counted from the first call.
pub fn now_ms() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// The wall clock, for the ends of keys and of blocks.
#[expect(clippy::disallowed_methods, reason = "this is the module that the rule names")]
pub fn wall() -> Timestamp {
    let elapsed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(i64::try_from(elapsed.as_micros()).unwrap_or(i64::MAX))
}
