//! The clocks of the host.

use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};

/// Milliseconds of `CLOCK_BOOTTIME`. It counts suspended time too, and nobody can set it.
pub fn boottime_ms() -> i64 {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |t| t.tv_sec() * 1_000 + t.tv_nsec() / 1_000_000)
}

/// The identity of this boot of the host.
pub fn boot_id() -> &'static str {
    static BOOT_ID: LazyLock<String> = LazyLock::new(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        text.trim().to_owned()
    });
    &BOOT_ID
}

#[expect(clippy::disallowed_methods, reason = "readings and certificates carry the host's own time")]
fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The milliseconds since a time of the wall clock; 0 for a later time.
pub fn ms_since(time: SystemTime) -> u64 {
    let age = (UNIX_EPOCH + since_epoch()).duration_since(time).unwrap_or_default();
    u64::try_from(age.as_millis()).unwrap_or(u64::MAX)
}

/// The wall clock, in microseconds since 1970.
pub fn wall_micros() -> i64 {
    i64::try_from(since_epoch().as_micros()).unwrap_or(i64::MAX)
}

/// The wall clock, in seconds since 1970.
pub fn wall_s() -> i64 {
    i64::try_from(since_epoch().as_secs()).unwrap_or(i64::MAX)
}
