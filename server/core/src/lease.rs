//! How long what runs on a node may go on without a word from the portal, and from when on the portal may
//! take it for ended.
//!
//! Two clocks, neither of which ever goes back, that know nothing of each other: the worker counts from when
//! it sent what the portal acknowledged, the portal from when it acknowledged, which is later. So the
//! worker's end comes first, and the margin is for everything between its lease's end and its last process.
//!
//! Times are milliseconds of whichever clock counts; nothing here reads one.

/// The lease of an attempt: all of it follows from its length, so that one number is kept and sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// From when a renewal was sent until what runs is ended.
    pub lease_ms: i64,
    /// A renewal that is acknowledged later than this after it was sent counts for nothing.
    pub answer_ms: i64,
    /// Between SIGTERM and SIGKILL when the lease has ended.
    pub grace_ms: i64,
}

impl Terms {
    pub fn new(lease_ms: i64) -> Self {
        let lease_ms = lease_ms.max(1_000);
        let part = (lease_ms / 20).clamp(500, 15_000);
        Self { lease_ms, answer_ms: part, grace_ms: part }
    }

    /// From the last acknowledgement until the portal may take what ran for ended: the lease, the grace,
    /// an answer that was under way, a second for the looks between, and clocks that differ by a fivehundredth.
    pub fn lost_after_ms(self) -> i64 {
        let margin = self.grace_ms + self.answer_ms + 1_000 + self.lease_ms / 500;
        self.lease_ms.saturating_add(margin)
    }
}

/// What a portal knows of one node, by its own clock.
///
/// A node's session and the taking of its work exclude each other: otherwise it could begin anew what is
/// being given to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    renewed_ms: i64,
    sessions: u32,
    takers: u32,
}

impl Holder {
    /// Of a portal that has not heard of it since `began_ms`, its own start: what a former one acknowledged
    /// it cannot know, but that was before.
    pub const fn new(began_ms: i64) -> Self {
        Self { renewed_ms: began_ms, sessions: 0, takers: 0 }
    }

    /// A session begins; `false` while its work is being taken.
    pub const fn enter(&mut self) -> bool {
        if self.takers > 0 {
            return false;
        }
        self.sessions += 1;
        true
    }

    pub const fn leave(&mut self) {
        self.sessions = self.sessions.saturating_sub(1);
    }

    /// A renewal is about to be acknowledged.
    pub fn renew(&mut self, now_ms: i64) {
        self.renewed_ms = self.renewed_ms.max(now_ms);
    }

    pub const fn is_silent(&self) -> bool {
        self.sessions == 0
    }

    /// Until `after_ms` have passed since the last acknowledgement; not above zero when they have.
    pub const fn left_ms(&self, after_ms: i64, now_ms: i64) -> i64 {
        self.renewed_ms.saturating_add(after_ms).saturating_sub(now_ms)
    }

    /// Begins to take its work: only from a silent node, and only when `after_ms` have passed. `None`:
    /// somebody knows that nothing runs there. To be followed by [`Self::taken`].
    pub const fn take(&mut self, after_ms: Option<i64>, now_ms: i64) -> bool {
        let over = match after_ms {
            Some(after_ms) => self.left_ms(after_ms, now_ms) <= 0,
            None => true,
        };
        if !over || !self.is_silent() {
            return false;
        }
        self.takers += 1;
        true
    }

    pub const fn taken(&mut self) {
        self.takers = self.takers.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_lease_has_its_figures() {
        let usual = Terms::new(600_000);
        assert_eq!((usual.answer_ms, usual.grace_ms, usual.lost_after_ms()), (15_000, 15_000, 632_200));
        let short = Terms::new(3_000);
        assert_eq!((short.answer_ms, short.grace_ms, short.lost_after_ms()), (500, 500, 5_006));
        assert_eq!(Terms::new(-5).lease_ms, 1_000);
    }

    #[test]
    fn work_is_taken_from_the_silent_only_and_not_before_time() {
        let mut node = Holder::new(100);
        assert!(!node.take(Some(1_000), 1_099), "a former portal may have acknowledged until this one began");
        assert!(node.take(Some(1_000), 1_100));
        assert!(!node.enter(), "not while its work is being taken");
        node.taken();
        assert!(node.enter() && node.enter(), "the next session comes before the last has ended");
        node.renew(5_000);
        node.renew(4_000);
        node.leave();
        assert!(!node.is_silent() && !node.take(None, i64::MAX), "whoever is there is asked, not taken from");
        node.leave();
        assert_eq!((node.left_ms(1_000, 5_400), node.left_ms(1_000, 6_100)), (600, -100));
        assert!(!node.take(Some(1_000), 5_999) && node.take(None, 5_000), "somebody may know better");
        assert!(node.take(Some(1_000), 6_000), "two may take at once");
        node.taken();
        assert!(!node.enter());
        node.taken();
        assert!(node.enter());
    }

    proptest! {
        #[test]
        fn the_margin_holds_what_it_must(lease_ms: i64) {
            let terms = Terms::new(lease_ms.min(i64::MAX / 2));
            let margin = terms.lost_after_ms() - terms.lease_ms;
            prop_assert!(margin > terms.grace_ms + terms.lease_ms / 500);
            prop_assert!(margin > terms.answer_ms + terms.lease_ms / 500, "a late renewal never reaches beyond");
            prop_assert!(terms.grace_ms <= terms.lease_ms);
        }
    }
}
