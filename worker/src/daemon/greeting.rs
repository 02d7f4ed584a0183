//! The beginning of a session: the boards are listed beside the loop, and nothing is said before the hello.
//!
//! A board that hangs holds up no heartbeat here; what the hello did not know of, the next session tells.

use std::collections::HashSet;
use std::time::Duration;

use berth_proto::{Hello, up};
use tokio::time::Instant;

use super::{Daemon, Done, Told};
use crate::gpu::Condition;
use crate::hello::{Listed, Slices, hello, list, own_slices};
use crate::link::{Claim, Outbox};

/// How long a session lasts at least in whose hello boards were left out, before one that answers ends it.
const SHORTEST: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(60);

/// A look at the boards for the session of a connection, with the slices that were this worker's before it.
pub(super) struct Look {
    connection: i64,
    listed: Listed,
    ours: Slices,
}

/// What is between a connection and its first message.
#[derive(Default)]
pub(super) struct Greeting {
    /// A session in which nothing was said yet.
    waits: Option<(Outbox, Claim)>,
    looking: bool,
    /// The boards that had answered when the last hello was made.
    heard: HashSet<String>,
    /// From when on a board that had not may end the session.
    again: Option<Instant>,
    pause: Duration,
}

impl Greeting {
    /// Notes which boards a hello knows of. One that is always too slow for it must not end each session.
    fn note(&mut self, listed: &Listed, now: Instant) {
        self.heard = listed.heard().map(str::to_owned).collect();
        let whole = listed.missing.is_none() && self.heard.len() == listed.boards.len();
        self.pause = if whole { Duration::ZERO } else { (self.pause * 2).clamp(SHORTEST, LONGEST) };
        self.again = Some(now + self.pause);
    }

    /// Whether a board answers that the last hello did not know of as it is.
    fn is_outdated(&self, found: &[(String, Condition)], now: Instant) -> bool {
        let back = |(uuid, condition): &(String, Condition)| {
            condition.silent.is_none() && !self.heard.contains(uuid)
        };
        self.again.is_some_and(|at| at <= now) && found.iter().any(back)
    }

    /// Whether the boards are looked at for a hello.
    #[cfg(test)]
    pub(super) const fn is_looking(&self) -> bool {
        self.looking
    }

    /// The session is gone.
    pub(super) fn close(&mut self) {
        self.waits = None;
    }
}

impl Daemon {
    /// A session is open, and its hello is expected.
    pub(super) fn opened(&mut self, outbox: Outbox, claim: Claim) {
        self.outbox = None;
        // Until the portal has spoken again nothing begins, so what the look finds is still so at the hello.
        self.desired = None;
        self.followed.clear();
        let connection = claim.connection;
        self.greeting.waits = Some((outbox, claim));
        if !self.greeting.looking {
            self.list_boards(connection);
        }
    }

    fn list_boards(&mut self, connection: i64) {
        self.greeting.looking = true;
        let (host, done, ours) = (self.host.clone(), self.done.clone(), own_slices(&self.attempts));
        tokio::spawn(async move {
            let looked = tokio::task::spawn_blocking(move || list(&host.gpus)).await;
            let listed = looked.unwrap_or_else(|error| Listed::without(&error.to_string()));
            // The daemon ends only with the process.
            let _ = done.send(Done::Listed(Look { connection, listed, ours }));
        });
    }

    /// Says the hello of the session that waits for it, and what follows a hello.
    pub(super) fn listed(&mut self, look: Look) {
        self.greeting.looking = false;
        let Some((outbox, claim)) = self.greeting.waits.take() else { return };
        if claim.connection != look.connection {
            // It was for a session that is gone, in which something may have begun meanwhile.
            let connection = claim.connection;
            self.greeting.waits = Some((outbox, claim));
            self.list_boards(connection);
            return;
        }
        let Look { listed, mut ours, .. } = look;
        ours.extend(own_slices(&self.attempts));
        self.greeting.note(&listed, Instant::now());
        let hello = Hello {
            instance: claim.instance,
            epoch: claim.epoch,
            connection: claim.connection,
            leaving: self.leaving.is_under_way(),
            ..hello(&self.host, &self.attempts, listed, &ours)
        };
        // A session that ended meanwhile is followed by a Closed.
        let _ = outbox.words.send(up::What::Hello(hello).into());
        self.boards.greet();
        self.outbox = Some(outbox);
        self.beat();
        for key in self.attempts.keys() {
            self.told.insert(key.clone(), Told::news());
        }
    }

    /// Begins another session when a board answers of which the last hello knew nothing, or only what had
    /// been: what is on it now may be something else.
    pub(super) fn hear_again(&mut self, found: &[(String, Condition)]) {
        if self.outbox.is_some() && self.greeting.is_outdated(found, Instant::now()) {
            tracing::info!("a board answers again, so the session is opened anew");
            // The session ends with its outbox; what runs goes on.
            self.outbox = None;
            self.followed.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_that_is_always_too_slow_does_not_end_each_session() {
        let mut greeting = Greeting::default();
        let mut now = Instant::now();
        let slow = [("GPU-1".to_owned(), Condition::default())];
        let silent = Condition { silent: Some("It hangs.".to_owned()), ..Condition::default() };
        let mut pauses = Vec::new();
        for _ in 0..8 {
            greeting.note(&Listed::without("it is too slow"), now);
            assert!(!greeting.is_outdated(&slow, now));
            let begun = now;
            while !greeting.is_outdated(&slow, now) {
                now += Duration::from_secs(1);
            }
            assert!(!greeting.is_outdated(&[("GPU-1".to_owned(), silent.clone())], now));
            pauses.push((now - begun).as_secs());
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60, 60]);
        // A hello that knows of everything begins anew: what comes after it is told at once.
        greeting.note(&Listed::default(), now);
        assert!(greeting.is_outdated(&slow, now));
    }
}
