//! When the portal is told of attempts: at once after a quiet time, else what happened within a moment together,
//! because each word costs it a transaction. Must not decide what is said.

use std::time::Duration;

use berth_proto::up;
use tokio::time::Instant;

use super::Daemon;
use crate::agent::{Cleaning, Key, Seen};
use crate::attempts::Attempt;

/// A report that was not acknowledged is sent again after this long.
pub(super) const RESEND: Duration = Duration::from_secs(5);
/// After one report the next comes so much later at the soonest: what happens to an attempt meanwhile is one
/// report, and each costs the portal a transaction.
const PACE: Duration = Duration::from_millis(100);
/// So long an end waits for the proof that its devices are clean, which then is told with it.
const TOGETHER: Duration = Duration::from_millis(150);

/// How far the portal knows of an attempt.
#[derive(Default)]
pub(super) struct Told {
    pub dirty: bool,
    pub sent: Option<(u64, Instant)>,
    /// Since when it has ended and is being cleaned, as far as nobody was told.
    ended: Option<Instant>,
}

impl Told {
    /// Nothing.
    pub fn news() -> Self {
        Self { dirty: true, ..Self::default() }
    }
}

/// Whether it has ended, and the proof that it is clean is on its way.
fn is_being_cleaned(attempt: &Attempt) -> bool {
    matches!(attempt.seen(), Seen::Ended(Cleaning::Due | Cleaning::UnderWay)) && attempt.unclean.is_none()
}

/// Waits until then; for ever when that is never.
pub(super) async fn at(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}

impl Daemon {
    /// When there is something to report.
    pub(super) fn next_report(&self) -> Option<Instant> {
        self.outbox.as_ref()?;
        let news = |(key, told): (&Key, &Told)| {
            let attempt = self.attempts.get(key).filter(|_| told.dirty && !self.unrecorded.contains(key))?;
            let waits = told.ended.filter(|_| is_being_cleaned(attempt));
            Some(waits.map_or(self.report_after, |at| self.report_after.max(at + TOGETHER)))
        };
        self.told.iter().filter_map(news).min()
    }

    /// Sends what the portal does not know yet.
    pub(super) fn report(&mut self) {
        let Some(outbox) = self.outbox.as_ref().filter(|_| Instant::now() >= self.report_after) else {
            return;
        };
        let unrecorded = &self.unrecorded;
        for (key, told) in self.told.iter_mut().filter(|(key, told)| told.dirty && !unrecorded.contains(*key))
        {
            let Some(attempt) = self.attempts.get(key) else { continue };
            let now = Instant::now();
            if is_being_cleaned(attempt) && now.duration_since(*told.ended.get_or_insert(now)) < TOGETHER {
                continue;
            }
            self.seq += 1;
            let status = attempt.status(self.seq);
            *told = Told { sent: Some((self.seq, now)), ..Told::default() };
            self.report_after = now + PACE;
            let _ = outbox.words.send(up::What::Status(status).into());
        }
    }
}
