//! The end of a host: the portal is told, and what runs here is given back to it while there is time.
//!
//! Must not stop a job: who goes, and with how much time, the portal says, as when an operator empties a node.

use std::time::Duration;

use tokio::time::Instant;

use super::Daemon;

/// A portal that is out of reach for so long is not waited for: what runs ends with the host.
const PATIENCE: Duration = Duration::from_secs(10);

/// Since when there is no session while the host goes; `None`: it stays.
#[derive(Debug, Default)]
pub(super) struct Leaving(Option<Instant>);

impl Leaving {
    pub(super) const fn is_under_way(&self) -> bool {
        self.0.is_some()
    }

    /// There is a session.
    pub(super) fn heard(&mut self, now: Instant) {
        self.0 = self.0.map(|_| now);
    }

    /// Nothing is left to do here; `empty`: the portal has taken everything back.
    pub(super) fn is_over(&self, empty: bool, now: Instant) -> bool {
        self.0.is_some_and(|heard| empty || now.duration_since(heard) > PATIENCE)
    }
}

impl Daemon {
    pub(super) fn leave(&mut self) {
        tracing::warn!(attempts = self.attempts.len(), "the host is being shut down");
        self.leaving = Leaving(Some(Instant::now()));
        if self.outbox.is_some() {
            self.beat();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_leaves_waits_for_a_portal_that_is_there() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut leaving = Leaving::default();
        leaving.heard(start);
        assert!(!leaving.is_under_way() && !leaving.is_over(true, after(100)), "it stays");
        let mut leaving = Leaving(Some(start));
        assert!(leaving.is_over(true, start), "nothing is there");
        for seconds in 1..100 {
            leaving.heard(after(seconds));
            assert!(!leaving.is_over(false, after(seconds + 1)));
        }
        assert!(!leaving.is_over(false, after(109)) && leaving.is_over(false, after(110)), "nobody hears it");
    }
}
