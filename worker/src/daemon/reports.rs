//! When the portal is told of attempts: at once after a quiet time, else what happened within a moment together,
//! because each word costs it a transaction. Must not decide what is said.

use std::time::Duration;

use berth_proto::up;
use tokio::time::Instant;

use super::Daemon;
use crate::agent::{Cleaning, Key, Seen};
use crate::attempts::Attempt;
use crate::shim::{self, Start};

/// A report that was not acknowledged is sent again after this long.
pub(super) const RESEND: Duration = Duration::from_secs(5);
/// One report in this time: what happens to an attempt meanwhile is one report, and each costs the portal a
/// transaction.
const PACE: Duration = Duration::from_millis(100);
/// Reports may be so much ahead of that: after a quiet time the first three go at once, so that a single job is
/// told of as it begins.
const AHEAD: Duration = Duration::from_millis(200);
/// By so much a report may come earlier or later on a busy node, so that it is of those that have just been cleaned:
/// many are at once.
const SLACK: Duration = Duration::from_millis(50);
/// So long the word that an attempt is being prepared waits on a busy node: a short job has begun or ended by then,
/// which is all that is told.
const PREPARING: Duration = Duration::from_millis(500);
/// So long the word that an attempt has begun waits for its end, when as many as this have news: of short jobs the
/// end tells both.
const RUNNING: Duration = Duration::from_millis(200);
const CROWD: usize = 8;
/// So long an end waits for the proof that its devices are clean, which then is told with it.
const TOGETHER: Duration = Duration::from_millis(150);

/// How far the portal knows of an attempt.
#[derive(Default)]
pub(super) struct Told {
    pub dirty: bool,
    pub sent: Option<(u64, Instant)>,
    /// Since when it is as it is, as far as nobody was told and somebody waits for what comes next.
    since: Option<(Waits, Instant)>,
}

/// What a report is held back for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// For its begin.
    Preparing,
    /// For its end.
    Running,
    /// For the proof that it is clean.
    Cleaning,
}

impl Waits {
    const fn most(self) -> Duration {
        match self {
            Self::Preparing => PREPARING,
            Self::Running => RUNNING,
            Self::Cleaning => TOGETHER,
        }
    }
}

impl Told {
    /// Nothing.
    pub fn news() -> Self {
        Self { dirty: true, ..Self::default() }
    }
}

/// How much there is to report.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Load {
    Quiet,
    /// More was reported lately than comes of a single job.
    Busy,
    /// There is news of many besides.
    Crowded,
}

/// What the next word of it could wait for.
fn waits(attempt: &Attempt, load: Load) -> Option<Waits> {
    let age = |start: &Start| {
        Duration::from_millis(u64::try_from(shim::boottime_ms() - start.boottime_ms).unwrap_or(0))
    };
    let is_young = || attempt.start.as_ref().is_some_and(|start| age(start) < RUNNING);
    match attempt.seen() {
        Seen::Preparing if load >= Load::Busy && attempt.progress.is_empty() => Some(Waits::Preparing),
        Seen::Running { .. } if load == Load::Crowded && is_young() => Some(Waits::Running),
        Seen::Ended(Cleaning::Due | Cleaning::UnderWay) if attempt.unclean.is_none() => Some(Waits::Cleaning),
        _ => None,
    }
}

/// Waits until then; for ever when that is never.
pub(super) async fn at(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}

impl Daemon {
    fn load(&self, now: Instant) -> Load {
        match self.reported_until.is_some_and(|until| until > now + PACE) {
            true if self.told.values().filter(|told| told.dirty).count() >= CROWD => Load::Crowded,
            true => Load::Busy,
            false => Load::Quiet,
        }
    }

    /// When the next is due.
    fn report_after(&self, now: Instant) -> Instant {
        let due = self.reported_until.and_then(|until| until.checked_sub(AHEAD)).unwrap_or(now);
        let is_being_cleaned = |attempt: &Attempt| waits(attempt, Load::Busy) == Some(Waits::Cleaning);
        match self.load(now) {
            Load::Quiet => due,
            _ if self.cleaned => due.checked_sub(SLACK).unwrap_or(due),
            _ if self.attempts.values().any(is_being_cleaned) => due + SLACK,
            _ => due,
        }
    }

    /// When there is something to report.
    pub(super) fn next_report(&self) -> Option<Instant> {
        self.outbox.as_ref()?;
        let now = Instant::now();
        let soonest = self.report_after(now);
        let news = |(key, told): (&Key, &Told)| {
            let attempt = self.attempts.get(key).filter(|_| told.dirty && !self.unrecorded.contains(key))?;
            // Looked at again when its time has come, or when the node has been quiet.
            let until = told.since.filter(|(what, _)| waits(attempt, Load::Crowded) == Some(*what));
            Some(until.map_or(soonest, |(what, at)| soonest.max(at + what.most())))
        };
        self.told.iter().filter_map(news).min()
    }

    /// Sends what the portal does not know yet.
    pub(super) fn report(&mut self, now: Instant) {
        let load = self.load(now);
        let due = self.report_after(now) <= now;
        let Some(outbox) = self.outbox.as_ref().filter(|_| due) else { return };
        let mut said = false;
        let unrecorded = &self.unrecorded;
        for (key, told) in self.told.iter_mut().filter(|(key, told)| told.dirty && !unrecorded.contains(*key))
        {
            let Some(attempt) = self.attempts.get(key) else { continue };
            if let Some(what) = waits(attempt, load) {
                let (_, at) = told.since.filter(|(was, _)| *was == what).unwrap_or((what, now));
                told.since = Some((what, at));
                if now.duration_since(at) < what.most() {
                    continue;
                }
            }
            self.seq += 1;
            let status = attempt.status(self.seq);
            *told = Told { sent: Some((self.seq, now)), ..Told::default() };
            said = true;
            let _ = outbox.words.send(up::What::Status(status).into());
        }
        if said {
            self.cleaned = false;
            self.reported_until = Some(self.reported_until.map_or(now, |until| until.max(now)) + PACE);
        }
    }
}
