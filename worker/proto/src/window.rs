//! How far the two directions of a tunnel have come: what may still be sent, and what must be said.
//!
//! Pure, and part of the contract: both ends count alike.

use crate::TUNNEL_WINDOW;

/// The direction away from here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outgoing {
    sent: u64,
    taken: u64,
}

impl Outgoing {
    /// Bytes that may be sent now.
    pub fn room(&self) -> u64 {
        TUNNEL_WINDOW.saturating_sub(self.sent - self.taken)
    }

    /// Notes that so many bytes were sent.
    pub fn note_sent(&mut self, bytes: u64) {
        self.sent = self.sent.saturating_add(bytes);
    }

    /// Notes what the other side has taken so far: never less than it said before, nor more than it was sent.
    pub fn note_taken(&mut self, taken: u64) {
        self.taken = self.taken.max(taken.min(self.sent));
    }

    /// Bytes that are under way.
    pub fn under_way(&self) -> u64 {
        self.sent - self.taken
    }
}

/// The direction towards here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Incoming {
    came: u64,
    taken: u64,
    told: u64,
}

impl Incoming {
    /// Notes that so many bytes came. `false`: they are more than was allowed, and the tunnel must end.
    #[must_use]
    pub fn note_came(&mut self, bytes: u64) -> bool {
        self.came = self.came.saturating_add(bytes);
        self.came - self.told <= TUNNEL_WINDOW
    }

    /// Notes that so many bytes were passed on.
    pub fn note_taken(&mut self, bytes: u64) {
        self.taken = self.taken.saturating_add(bytes).min(self.came);
    }

    /// What the other side must be told now. It is told rarely enough to cost little, and early enough that
    /// a reader who keeps up is never waited for.
    pub fn due(&mut self) -> Option<u64> {
        if self.taken - self.told < TUNNEL_WINDOW / 4 {
            return None;
        }
        self.told = self.taken;
        Some(self.told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_side_sends_no_more_than_the_other_allows() {
        let (mut out, mut inn) = (Outgoing::default(), Incoming::default());
        let (mut through, mut said) = (0u64, 0);
        // Pieces of a size that divides nothing.
        while through < 20 * TUNNEL_WINDOW {
            let piece = out.room().min(7_919);
            assert!(piece > 0, "a reader who keeps up is never waited for");
            out.note_sent(piece);
            assert!(inn.note_came(piece));
            inn.note_taken(piece);
            if let Some(taken) = inn.due() {
                out.note_taken(taken);
                said += 1;
            }
            through += piece;
        }
        assert!(said <= 80, "{said}");
    }

    #[test]
    fn a_reader_that_stands_still_stops_the_other_side() {
        let (mut out, mut inn) = (Outgoing::default(), Incoming::default());
        let room = out.room();
        out.note_sent(room);
        assert_eq!((room, out.room(), out.under_way()), (TUNNEL_WINDOW, 0, TUNNEL_WINDOW));
        assert!(inn.note_came(room) && inn.due().is_none());
        assert!(!inn.note_came(1), "one byte more is a breach");
    }

    #[test]
    fn what_was_never_sent_cannot_be_taken() {
        let mut out = Outgoing::default();
        out.note_sent(10);
        out.note_taken(u64::MAX);
        assert_eq!(out.room(), TUNNEL_WINDOW);
        out.note_taken(3);
        assert_eq!((out.under_way(), out.room()), (0, TUNNEL_WINDOW), "nor is it taken back");
        let mut inn = Incoming::default();
        inn.note_taken(TUNNEL_WINDOW);
        assert_eq!(inn.due(), None);
    }
}
