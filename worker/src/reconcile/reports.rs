//! The times of reports to the portal: at once after a quiet time, else together with other changes, because each
//! report costs the portal a transaction.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use berth_proto::worker_message;
use berth_session::link::Outbox;
use berth_shim::CommandStart;
use berth_shim::model::AttemptKey;
use berth_system::clock::boottime_ms;
use tokio::time::Instant;

use crate::attempt::{Attempt, AttemptMap, AttemptState, CleaningState, status};

/// The time until an unacknowledged report is sent again.
const RESEND: Duration = Duration::from_secs(5);
/// The time of one report: several changes of an attempt meanwhile are one report.
const PACE: Duration = Duration::from_millis(100);
/// The permitted lead over the pace: after a quiet time the first three reports go at once, so a single job is
/// reported as it begins.
const AHEAD: Duration = Duration::from_millis(200);
/// The permitted deviation on a busy node, so a report has the attempts that have just been cleaned: many are at
/// once.
const SLACK: Duration = Duration::from_millis(50);
/// The wait of the report "preparing" on a busy node: a short job has begun or ended by then, and only that is
/// reported.
const PREPARING: Duration = Duration::from_millis(500);
/// The wait of the report "running" for the end of the job, if as many as this changed: the end reports both.
const RUNNING: Duration = Duration::from_millis(200);
const CROWD: usize = 8;
/// The wait of the report "ended" for the proof of clean devices, which is reported with it.
const TOGETHER: Duration = Duration::from_millis(150);

/// The portal's knowledge of an attempt.
#[derive(Default)]
pub(super) struct ReportState {
    /// A change is not reported yet.
    pub dirty: bool,
    /// The number and time of an unacknowledged report.
    sent: Option<(u64, Instant)>,
    /// The begin of a wait for the next change.
    since: Option<(ReportWait, Instant)>,
}

/// The event that a report waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReportWait {
    Begin,
    End,
    CleanProof,
}

impl ReportWait {
    const fn longest(self) -> Duration {
        match self {
            Self::Begin => PREPARING,
            Self::End => RUNNING,
            Self::CleanProof => TOGETHER,
        }
    }
}

/// The amount of changes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ReportLoad {
    Quiet,
    /// There were more reports lately than those of a single job.
    Busy,
    /// Many attempts changed in addition.
    Crowded,
}

/// The event that the next report of an attempt may wait for.
fn possible_wait(attempt: &Attempt, load: ReportLoad) -> Option<ReportWait> {
    let age = |start: &CommandStart| {
        Duration::from_millis(u64::try_from(boottime_ms() - start.boottime_ms).unwrap_or(0))
    };
    let is_young = || attempt.start.as_ref().is_some_and(|start| age(start) < RUNNING);
    match attempt.state() {
        AttemptState::Preparing if load >= ReportLoad::Busy && attempt.progress.is_empty() => {
            Some(ReportWait::Begin)
        }
        AttemptState::Running { .. } if load == ReportLoad::Crowded && is_young() => Some(ReportWait::End),
        AttemptState::Ended(CleaningState::Due | CleaningState::UnderWay) if attempt.unclean.is_none() => {
            Some(ReportWait::CleanProof)
        }
        _ => None,
    }
}

/// Waits until a time; for ever without one.
pub(super) async fn wait_until(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}

/// The reports of all attempts.
#[derive(Default)]
pub(super) struct Reports {
    states: HashMap<AttemptKey, ReportState>,
    seq: u64,
    /// The end of the time of all sent reports, each one pace long.
    paced_until: Option<Instant>,
    /// An attempt was proved clean since the last report.
    cleaned: bool,
}

impl Reports {
    /// Marks an attempt as changed.
    pub fn mark(&mut self, key: &AttemptKey) {
        self.states.entry(key.clone()).or_default().dirty = true;
    }

    /// Marks an attempt of which the portal knows nothing.
    pub fn mark_unknown(&mut self, key: &AttemptKey) {
        self.states.insert(key.clone(), ReportState { dirty: true, ..ReportState::default() });
    }

    /// Notes that an attempt was proved clean.
    pub fn note_cleaned(&mut self) {
        self.cleaned = true;
    }

    pub fn remove(&mut self, key: &AttemptKey) {
        self.states.remove(key);
    }

    /// Notes the acknowledgement of a report.
    pub fn acknowledge(&mut self, seq: u64) {
        for state in self.states.values_mut() {
            if state.sent.is_some_and(|(sent, _)| sent == seq) {
                state.sent = None;
            }
        }
    }

    /// Marks an attempt whose report was not acknowledged in time, or whose meter runs.
    pub fn mark_if_due(&mut self, key: &AttemptKey, running: bool, now: Instant) {
        let state = self.states.entry(key.clone()).or_default();
        let overdue = state.sent.is_some_and(|(_, at)| now.duration_since(at) > RESEND);
        state.dirty |= overdue || running;
    }

    fn load(&self, now: Instant) -> ReportLoad {
        match self.paced_until.is_some_and(|until| until > now + PACE) {
            true if self.states.values().filter(|state| state.dirty).count() >= CROWD => ReportLoad::Crowded,
            true => ReportLoad::Busy,
            false => ReportLoad::Quiet,
        }
    }

    /// The earliest time of the next report.
    fn earliest(&self, now: Instant, attempts: &AttemptMap) -> Instant {
        let due = self.paced_until.and_then(|until| until.checked_sub(AHEAD)).unwrap_or(now);
        let is_being_cleaned =
            |attempt: &Attempt| possible_wait(attempt, ReportLoad::Busy) == Some(ReportWait::CleanProof);
        match self.load(now) {
            ReportLoad::Quiet => due,
            _ if self.cleaned => due.checked_sub(SLACK).unwrap_or(due),
            _ if attempts.values().any(is_being_cleaned) => due + SLACK,
            _ => due,
        }
    }

    /// The time of the next report. `None`: nothing changed.
    pub fn next(&self, attempts: &AttemptMap, unrecorded: &HashSet<AttemptKey>) -> Option<Instant> {
        let now = Instant::now();
        let earliest = self.earliest(now, attempts);
        let time = |(key, state): (&AttemptKey, &ReportState)| {
            let attempt = attempts.get(key).filter(|_| state.dirty && !unrecorded.contains(key))?;
            // A wait ends at its time, or when the node has been quiet.
            let wait =
                state.since.filter(|(wait, _)| possible_wait(attempt, ReportLoad::Crowded) == Some(*wait));
            Some(wait.map_or(earliest, |(wait, at)| earliest.max(at + wait.longest())))
        };
        self.states.iter().filter_map(time).min()
    }

    /// Sends all due reports.
    pub fn send_due(
        &mut self,
        now: Instant,
        attempts: &AttemptMap,
        unrecorded: &HashSet<AttemptKey>,
        outbox: &Outbox,
    ) {
        let load = self.load(now);
        if self.earliest(now, attempts) > now {
            return;
        }
        let mut sent = false;
        let reportable =
            self.states.iter_mut().filter(|(key, state)| state.dirty && !unrecorded.contains(*key));
        for (key, state) in reportable {
            let Some(attempt) = attempts.get(key) else { continue };
            if let Some(wait) = possible_wait(attempt, load) {
                let (_, at) = state.since.filter(|(before, _)| *before == wait).unwrap_or((wait, now));
                state.since = Some((wait, at));
                if now.duration_since(at) < wait.longest() {
                    continue;
                }
            }
            self.seq += 1;
            let report = status(attempt, self.seq);
            *state = ReportState { sent: Some((self.seq, now)), ..ReportState::default() };
            sent = true;
            let _ = outbox.control.send(worker_message::Body::Status(report).into());
        }
        if sent {
            self.cleaned = false;
            self.paced_until = Some(self.paced_until.map_or(now, |until| until.max(now)) + PACE);
        }
    }
}
