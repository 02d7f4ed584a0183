//! The shutdown of the host: the worker tells the portal, which takes the attempts back while there is time, as in a
//! drain. The worker stops no job itself.

use std::time::Duration;

use tokio::time::Instant;

/// The wait for a portal that is out of reach. Running attempts end with the host.
const PATIENCE: Duration = Duration::from_secs(10);

/// The last time with a session during a shutdown. `None`: the host stays up.
#[derive(Debug, Default)]
pub(super) struct HostShutdown(Option<Instant>);

impl HostShutdown {
    pub(super) fn begin(&mut self, now: Instant) {
        self.0 = Some(now);
    }

    pub(super) const fn is_under_way(&self) -> bool {
        self.0.is_some()
    }

    /// Notes that there is a session.
    pub(super) fn note_session(&mut self, now: Instant) {
        self.0 = self.0.map(|_| now);
    }

    /// True if the daemon may end. `empty`: the portal has taken all attempts back.
    pub(super) fn is_over(&self, empty: bool, now: Instant) -> bool {
        self.0.is_some_and(|last| empty || now.duration_since(last) > PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shutdown_waits_for_a_portal_that_answers() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut shutdown = HostShutdown::default();
        shutdown.note_session(start);
        assert!(!shutdown.is_under_way() && !shutdown.is_over(true, after(100)), "it stays");
        let mut shutdown = HostShutdown(Some(start));
        assert!(shutdown.is_over(true, start), "nothing is there");
        for seconds in 1..100 {
            shutdown.note_session(after(seconds));
            assert!(!shutdown.is_over(false, after(seconds + 1)));
        }
        assert!(
            !shutdown.is_over(false, after(109)) && shutdown.is_over(false, after(110)),
            "nobody hears it"
        );
    }
}
