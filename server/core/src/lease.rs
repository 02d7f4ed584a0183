//! Leases: the time that an attempt may run without word from the portal, and the time after which the portal
//! may treat it as ended.
//!
//! Worker and portal each have a monotonic clock of their own. The worker counts from the time at which it
//! sent an acknowledged renewal. The portal counts from the time of its acknowledgement, which is later. So
//! the lease ends at the worker first. The margin covers the time from the end of the lease to the end of the
//! last process.
//!
//! Times are milliseconds of the clock of the counting side. This module reads no clock.

/// The times of an attempt's lease. All of them follow from its length, so one number is stored and sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseLimits {
    /// From the sending of a renewal until the worker stops the attempt.
    pub lease_ms: i64,
    /// A renewal without an acknowledgement within this time does not count.
    pub answer_ms: i64,
    /// Between SIGTERM and SIGKILL after the end of the lease.
    pub grace_ms: i64,
}

impl LeaseLimits {
    pub fn new(lease_ms: i64) -> Self {
        let lease_ms = lease_ms.max(1_000);
        let part = (lease_ms / 20).clamp(500, 15_000);
        Self { lease_ms, answer_ms: part, grace_ms: part }
    }

    /// From the last acknowledgement until the portal may treat the attempt as ended: the lease, the grace,
    /// an acknowledgement on its way, a second between two checks, and 0.2 % for the difference of the
    /// clocks.
    pub fn lost_after_ms(self) -> i64 {
        let margin = self.grace_ms + self.answer_ms + 1_000 + self.lease_ms / 500;
        self.lease_ms.saturating_add(margin)
    }
}

/// The lease of one node, by the portal's clock.
///
/// A session of the node and a takeover of its attempts exclude each other. Otherwise the node could start an
/// attempt again while the portal gives it to another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeLease {
    renewed_ms: i64,
    sessions: u32,
    takeovers: u32,
}

impl NodeLease {
    /// The lease of a node without a session since `began_ms`, the start of the portal. An earlier portal may
    /// have acknowledged renewals until that time.
    pub const fn new(began_ms: i64) -> Self {
        Self { renewed_ms: began_ms, sessions: 0, takeovers: 0 }
    }

    /// Begins a session. Returns false during a takeover.
    pub const fn begin_session(&mut self) -> bool {
        if self.takeovers > 0 {
            return false;
        }
        self.sessions += 1;
        true
    }

    pub const fn end_session(&mut self) {
        self.sessions = self.sessions.saturating_sub(1);
    }

    /// Records a renewal, before its acknowledgement is sent.
    pub fn renew(&mut self, now_ms: i64) {
        self.renewed_ms = self.renewed_ms.max(now_ms);
    }

    pub const fn is_silent(&self) -> bool {
        self.sessions == 0
    }

    /// The milliseconds that remain until `after_ms` after the last acknowledgement; zero or less after that.
    pub const fn remaining_ms(&self, after_ms: i64, now_ms: i64) -> i64 {
        self.renewed_ms.saturating_add(after_ms).saturating_sub(now_ms)
    }

    /// Begins a takeover of the node's attempts. Returns false if the node has a session, or if `after_ms`
    /// have not passed since the last acknowledgement. `after_ms` is `None` for a node that is marked as
    /// lost: nothing runs there. Each takeover ends with [`Self::end_takeover`].
    pub const fn begin_takeover(&mut self, after_ms: Option<i64>, now_ms: i64) -> bool {
        let over = match after_ms {
            Some(after_ms) => self.remaining_ms(after_ms, now_ms) <= 0,
            None => true,
        };
        if !over || !self.is_silent() {
            return false;
        }
        self.takeovers += 1;
        true
    }

    pub const fn end_takeover(&mut self) {
        self.takeovers = self.takeovers.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_lease_has_its_figures() {
        let usual = LeaseLimits::new(600_000);
        assert_eq!((usual.answer_ms, usual.grace_ms, usual.lost_after_ms()), (15_000, 15_000, 632_200));
        let short = LeaseLimits::new(3_000);
        assert_eq!((short.answer_ms, short.grace_ms, short.lost_after_ms()), (500, 500, 5_006));
        assert_eq!(LeaseLimits::new(-5).lease_ms, 1_000);
    }

    #[test]
    fn work_is_taken_from_the_silent_only_and_not_before_time() {
        let mut node = NodeLease::new(100);
        assert!(
            !node.begin_takeover(Some(1_000), 1_099),
            "a former portal may have acknowledged until this one began"
        );
        assert!(node.begin_takeover(Some(1_000), 1_100));
        assert!(!node.begin_session(), "no session during a takeover");
        node.end_takeover();
        assert!(
            node.begin_session() && node.begin_session(),
            "the next session comes before the last has ended"
        );
        node.renew(5_000);
        node.renew(4_000);
        node.end_session();
        assert!(!node.is_silent() && !node.begin_takeover(None, i64::MAX), "no takeover during a session");
        node.end_session();
        assert_eq!((node.remaining_ms(1_000, 5_400), node.remaining_ms(1_000, 6_100)), (600, -100));
        assert!(
            !node.begin_takeover(Some(1_000), 5_999) && node.begin_takeover(None, 5_000),
            "a lost node needs no waiting time"
        );
        assert!(node.begin_takeover(Some(1_000), 6_000), "two takeovers may overlap");
        node.end_takeover();
        assert!(!node.begin_session());
        node.end_takeover();
        assert!(node.begin_session());
    }

    proptest! {
        #[test]
        fn the_margin_holds_what_it_must(lease_ms: i64) {
            let limits = LeaseLimits::new(lease_ms.min(i64::MAX / 2));
            let margin = limits.lost_after_ms() - limits.lease_ms;
            prop_assert!(margin > limits.grace_ms + limits.lease_ms / 500);
            prop_assert!(margin > limits.answer_ms + limits.lease_ms / 500, "a late renewal never reaches beyond");
            prop_assert!(limits.grace_ms <= limits.lease_ms);
        }
    }
}
