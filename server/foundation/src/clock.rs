//! The one place that reads the wall clock. Everything else is given `now`.

use std::sync::OnceLock;
use std::time::Instant;

use berth_types::time::Timestamp;

/// Where `now` comes from.
pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> Timestamp;

    /// Milliseconds of a clock that nobody sets and that never goes back, from wherever it began.
    fn monotonic_ms(&self) -> i64 {
        self.now().millis()
    }
}

/// The machine's clock.
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the room that the rule names")]
    fn now(&self) -> Timestamp {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }

    fn monotonic_ms(&self) -> i64 {
        static BEGAN: OnceLock<Instant> = OnceLock::new();
        i64::try_from(BEGAN.get_or_init(Instant::now).elapsed().as_millis()).unwrap_or(i64::MAX)
    }
}
