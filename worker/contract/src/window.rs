//! Flow control of a tunnel: the bytes that may be sent, and the acknowledgements that are due.
//!
//! Pure, and part of the contract: both ends use the same counts.

use crate::TUNNEL_WINDOW;

/// The sender's counts of one direction of a tunnel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outgoing {
    sent: u64,
    taken: u64,
}

impl Outgoing {
    /// The number of bytes that may be sent now.
    pub fn room(&self) -> u64 {
        TUNNEL_WINDOW.saturating_sub(self.sent - self.taken)
    }

    /// Records sent bytes.
    pub fn note_sent(&mut self, bytes: u64) {
        self.sent = self.sent.saturating_add(bytes);
    }

    /// Records an acknowledgement, the total of consumed bytes. It counts only up to the sent bytes, and never
    /// below an earlier acknowledgement.
    pub fn note_taken(&mut self, taken: u64) {
        self.taken = self.taken.max(taken.min(self.sent));
    }

    /// The number of unacknowledged bytes.
    pub fn under_way(&self) -> u64 {
        self.sent - self.taken
    }
}

/// The receiver's counts of one direction of a tunnel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Incoming {
    came: u64,
    taken: u64,
    told: u64,
}

impl Incoming {
    /// Records received bytes. Returns false if they exceed the window; then the tunnel must end.
    #[must_use]
    pub fn note_came(&mut self, bytes: u64) -> bool {
        self.came = self.came.saturating_add(bytes);
        self.came - self.told <= TUNNEL_WINDOW
    }

    /// Records consumed bytes.
    pub fn note_taken(&mut self, bytes: u64) {
        self.taken = self.taken.saturating_add(bytes).min(self.came);
    }

    /// The acknowledgement to send now, if due: after a quarter of the window, so that a steady reader never
    /// stops its sender.
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
        // Chunks of a size that divides no limit.
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
