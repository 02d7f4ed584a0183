//! The times of hand-overs: at the end of an attempt, and at intervals while it runs. One hand-over of an attempt
//! runs at a time, beside the loop.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use berth_job_files::outputs::hand_over;
use berth_session::link::Outbox;
use berth_shim::BoardLimits;
use berth_shim::model::AttemptKey;
use tokio::time::Instant;

use super::step_result::{ResultSender, StepResult};
use crate::attempt::{Attempt, AttemptMap, AttemptState, CleaningState};

/// The pause after a failed hand-over.
const AGAIN: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(super) struct OutputSchedule {
    /// Attempts with a running hand-over.
    handing_over: HashSet<AttemptKey>,
    /// Attempts whose files are being removed after the hand-over.
    pub removing: HashSet<AttemptKey>,
    /// True if the last hand-over was of an ended attempt, and the time of the next one.
    next: HashMap<AttemptKey, (bool, Instant)>,
}

impl OutputSchedule {
    /// Starts the hand-overs that are due.
    pub(super) fn start_due(
        &mut self,
        attempts: &AttemptMap,
        busy: &HashSet<AttemptKey>,
        limits: &BoardLimits,
        outbox: &Outbox,
        results: &ResultSender,
    ) {
        let now = Instant::now();
        for (key, attempt) in attempts {
            if busy.contains(key) || self.handing_over.contains(key) || !attempt.has_pending_outputs() {
                continue;
            }
            let over = match attempt.state() {
                AttemptState::Preparing => continue,
                AttemptState::Running { .. } => false,
                // No process of the attempt runs: its shim recorded the end, or its devices are clean.
                AttemptState::Ended(cleaning)
                    if attempt.exit.is_some() || cleaning == CleaningState::Done =>
                {
                    true
                }
                AttemptState::Ended(_) => continue,
            };
            let every = Duration::from_secs(attempt.record.outputs.every_s.into());
            if !over && (every.is_zero() || attempt.record.outputs.checkpoint_dir.is_none()) {
                continue;
            }
            // The first hand-over comes one interval after the start. That of an ended attempt is due at once, and
            // waits only after a failure.
            let (was_over, due) = self.next.entry(key.clone()).or_insert((false, now + every));
            if *was_over == over && *due > now {
                continue;
            }
            (*was_over, *due) = (over, now + if over { AGAIN } else { every });
            self.handing_over.insert(key.clone());
            let most_bytes = attempt.record.limits(limits).disk_mib.saturating_mul(1 << 20);
            let (task, channel) = (attempt.output_task(over, most_bytes), outbox.portal.clone());
            let (key, results) = (key.clone(), results.clone());
            tokio::spawn(async move {
                let result = hand_over(task, channel).await;
                let _ = results.send(StepResult::OutputsHandedOver(key, over, result));
            });
        }
    }

    /// Ends a hand-over. The result is `true` after the last one of an attempt: a report is due. Its files go only
    /// after a saved record. A busy
    /// attempt is being cleaned: a copy of its record is saved then, so another hand-over follows.
    pub(super) fn finish(
        &mut self,
        key: &AttemptKey,
        over: bool,
        result: &Result<(), String>,
        attempt: Option<&mut Attempt>,
        results: &ResultSender,
    ) -> bool {
        self.handing_over.remove(key);
        if let Err(error) = result {
            tracing::warn!(job = key.job, error, "files of a job are not handed over yet; trying again");
        }
        let Some(attempt) = attempt.filter(|_| over && result.is_ok()) else { return false };
        if attempt.set_outputs_done() {
            // Beside the loop: a job may leave millions of files, and heartbeats must not wait.
            self.removing.insert(key.clone());
            let (attempt, key, results) = (attempt.clone(), key.clone(), results.clone());
            tokio::task::spawn_blocking(move || {
                attempt.remove_files();
                let _ = results.send(StepResult::FilesRemoved(key));
            });
        }
        true
    }

    /// Drops the schedule of a forgotten attempt.
    pub(super) fn remove(&mut self, key: &AttemptKey) {
        self.next.remove(key);
    }
}
