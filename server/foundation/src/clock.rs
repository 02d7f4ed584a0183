//! The clock of the portal. Only this module reads the system time. All other modules receive `now`.

use std::sync::OnceLock;
use std::time::Instant;

use berth_types::time::Timestamp;

/// The source of `now`.
pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> Timestamp;

    /// Milliseconds of a monotonic clock, counted from an arbitrary start.
    fn monotonic_ms(&self) -> i64 {
        self.now().millis()
    }
}

/// The clock of the operating system.
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the module that the rule names")]
    fn now(&self) -> Timestamp {
        let elapsed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_micros(i64::try_from(elapsed.as_micros()).unwrap_or(i64::MAX))
    }

    fn monotonic_ms(&self) -> i64 {
        static START: OnceLock<Instant> = OnceLock::new();
        i64::try_from(START.get_or_init(Instant::now).elapsed().as_millis()).unwrap_or(i64::MAX)
    }
}
