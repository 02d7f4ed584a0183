//! The begin of a session: the boards are listed beside the loop, and the hello is the first message.
//!
//! A hanging board delays no heartbeat. A later session reports the boards that a hello missed.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use berth_gpu::BoardCondition;
use berth_session::link::{Outbox, SessionClaim};
use tokio::time::Instant;

use super::hello::{ListedBoards, OwnSlices, list_host};
use super::step_result::{BoardListing, ResultSender, StepResult};
use crate::attempt::Host;

/// The shortest and the longest time of a session without all boards, before an answer of one of them ends it.
const SHORTEST: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(60);

/// The state between a connection and its hello.
#[derive(Default)]
pub(super) struct Handshake {
    /// A session without a message yet.
    waiting: Option<(Outbox, SessionClaim)>,
    /// A listing of the boards runs.
    listing: bool,
    /// The boards that had answered at the last hello.
    answered: HashSet<String>,
    /// The time from which an answer of another board may end the session.
    restart_after: Option<Instant>,
    pause: Duration,
}

/// The consequence of a finished listing.
pub(super) enum ListingOutcome {
    /// The session gets its hello now.
    Ready(Outbox, SessionClaim),
    /// The listing was for an earlier connection; attempts may have begun meanwhile. This one needs another listing.
    Repeat(i64),
    /// No session waits.
    Unneeded,
}

impl Handshake {
    /// Notes a session that waits for its hello.
    pub(super) fn wait(&mut self, outbox: Outbox, claim: SessionClaim) {
        self.waiting = Some((outbox, claim));
    }

    /// Drops a session that ended before its hello.
    pub(super) fn close(&mut self) {
        self.waiting = None;
    }

    pub(super) const fn is_listing(&self) -> bool {
        self.listing
    }

    /// Lists the boards beside the loop.
    pub(super) fn start_listing(
        &mut self,
        host: &Arc<Host>,
        results: &ResultSender,
        ours: OwnSlices,
        connection: i64,
    ) {
        self.listing = true;
        let (host, results) = (host.clone(), results.clone());
        tokio::spawn(async move {
            let listed = tokio::task::spawn_blocking(move || list_host(&host)).await;
            let listed = listed.unwrap_or_else(|error| ListedBoards::without(&error.to_string()));
            let _ = results.send(StepResult::BoardsListed(BoardListing { connection, listed, ours }));
        });
    }

    /// Ends the listing for a connection.
    pub(super) fn finish_listing(&mut self, connection: i64) -> ListingOutcome {
        self.listing = false;
        match self.waiting.take() {
            None => ListingOutcome::Unneeded,
            Some((outbox, claim)) if claim.connection == connection => ListingOutcome::Ready(outbox, claim),
            Some((outbox, claim)) => {
                let connection = claim.connection;
                self.waiting = Some((outbox, claim));
                ListingOutcome::Repeat(connection)
            }
        }
    }

    /// Notes the boards of a hello. A board that is always too slow must not end each session.
    pub(super) fn note_boards(&mut self, listed: &ListedBoards, now: Instant) {
        self.answered = listed.answered().map(str::to_owned).collect();
        let whole = listed.missing.is_none() && self.answered.len() == listed.boards.len();
        self.pause = if whole { Duration::ZERO } else { (self.pause * 2).clamp(SHORTEST, LONGEST) };
        self.restart_after = Some(now + self.pause);
    }

    /// True if a board answers that had not answered at the last hello.
    pub(super) fn is_outdated(&self, found: &[(String, BoardCondition)], now: Instant) -> bool {
        let back = |(uuid, condition): &(String, BoardCondition)| {
            condition.silent.is_none() && !self.answered.contains(uuid)
        };
        self.restart_after.is_some_and(|at| at <= now) && found.iter().any(back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_that_is_always_too_slow_does_not_end_each_session() {
        let mut handshake = Handshake::default();
        let mut now = Instant::now();
        let slow = [("GPU-1".to_owned(), BoardCondition::default())];
        let silent = BoardCondition { silent: Some("It hangs.".to_owned()), ..BoardCondition::default() };
        let mut pauses = Vec::new();
        for _ in 0..8 {
            handshake.note_boards(&ListedBoards::without("it is too slow"), now);
            assert!(!handshake.is_outdated(&slow, now));
            let begun = now;
            while !handshake.is_outdated(&slow, now) {
                now += Duration::from_secs(1);
            }
            assert!(!handshake.is_outdated(&[("GPU-1".to_owned(), silent.clone())], now));
            pauses.push((now - begun).as_secs());
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60, 60]);
        // A complete hello resets the pause: a later board ends the session at once.
        handshake.note_boards(&ListedBoards::default(), now);
        assert!(handshake.is_outdated(&slow, now));
    }
}
