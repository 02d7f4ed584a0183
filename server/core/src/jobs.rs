//! The life of a job as a machine: a state, an event, and what must follow from it.
//!
//! Events carry the number of the attempt they speak of; one that speaks of an older attempt, or
//! that does not fit the state, is rejected with its reason and changes nothing.

use berth_types::ids::JobId;
use berth_types::jobs::{Failure, JobState, Retry, RetryOn};

/// Why an attempt is being stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopCause {
    Cancelled,
    TimedOut,
    /// It makes room for a job of a higher class, and waits again afterwards.
    Preempted {
        for_job: JobId,
    },
    /// One of its ranks ended badly, so the others are stopped.
    RankFailed,
    /// Its devices stood idle for as long as it had said.
    Idle {
        /// Their mean utilisation, whole percent.
        percent: u8,
        /// Seconds for which that was so.
        for_s: u32,
    },
    /// The operator wants it to end.
    Halted,
    /// Its node is emptied for its operator.
    Drained {
        /// It waits for another place afterwards.
        again: bool,
        /// Seconds from the signal until it is killed; 0: as long as its worker gives.
        grace_s: u32,
    },
}

/// How an attempt ended, as its worker proved it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The process ended by itself or by a signal. A signal counts as 128 + its number.
    Exited { code: i32 },
    /// The worker stopped it at its limit.
    TimedOut { code: i32 },
    /// It never ran, or nobody knows how it ended.
    Failed(Failure),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Machine {
    Queued,
    Assigned { attempt: u32 },
    Starting { attempt: u32 },
    Running { attempt: u32 },
    Stopping { attempt: u32, cause: StopCause },
    Ended(JobState),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The scheduler found a place.
    Assign { attempt: u32 },
    /// The worker prepares devices and directory.
    Prepare { attempt: u32 },
    /// The process runs.
    Start { attempt: u32 },
    /// The tenant wants it to end.
    Cancel,
    /// The operator wants it to end.
    Halt,
    /// The scheduler wants its place.
    Preempt { attempt: u32, for_job: JobId },
    /// One of several ranks ended badly.
    RankFailed { attempt: u32 },
    /// Its devices stand idle, and it was to be stopped then.
    Idle { attempt: u32, percent: u8, for_s: u32 },
    /// Its node is to be empty.
    Drain { attempt: u32, again: bool, grace_s: u32 },
    /// A job that it waited for did not end as it had to.
    Orphan { failure: Failure },
    End {
        attempt: u32,
        outcome: Outcome,
        /// It is tried again ([`tries_again`]), unless somebody wanted it ended.
        again: bool,
    },
}

/// Failures that are no fault of the job's own.
const NODE_LOST: [&str; 10] = [
    "attempt.unknown_outcome",
    "attempt.not_started",
    "device.failed",
    "device.unavailable",
    "image.unavailable",
    "worker.io",
    "worker.isolation",
    "lease.ended",
    "node.lost",
    "node.shutdown",
];

/// Whether an end is followed by another try, after `retries` of them. What makes room is tried again
/// unless its policy leaves that out, however often.
pub fn tries_again(policy: Option<&Retry>, retries: u32, stop: Option<StopCause>, outcome: &Outcome) -> bool {
    let on = |cause: RetryOn| policy.is_some_and(|p| p.on.contains(&cause));
    let made_room = match outcome {
        Outcome::Exited { .. } => true,
        Outcome::TimedOut { .. } => false,
        Outcome::Failed(failure) => failure.code == "attempt.not_started",
    };
    match stop {
        Some(StopCause::Preempted { .. }) if made_room => return policy.is_none() || on(RetryOn::Preempted),
        // Decided when it was told to go; what never ran has lost nothing by it.
        Some(StopCause::Drained { again, .. }) if made_room => {
            return again || matches!(outcome, Outcome::Failed(_));
        }
        _ => {}
    }
    let left = policy.is_some_and(|p| retries < p.max);
    left && match outcome {
        Outcome::Exited { code } => *code != 0 && on(RetryOn::Exit),
        Outcome::TimedOut { .. } => false,
        Outcome::Failed(failure) => NODE_LOST.contains(&failure.code.as_str()) && on(RetryOn::NodeLost),
    }
}

/// What must follow from a change, in the same transaction or right after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Send the node its desired state.
    WakeNode,
    /// Post what is metered and release the rest of the hold.
    Settle,
    /// What it has used so far stays used; it waits for its next attempt.
    Requeue,
    /// Record how it ended.
    Finish { exit_code: Option<i32>, failure: Option<Failure> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    #[error("the report is about attempt {reported}, the job is at attempt {current}")]
    OldAttempt { reported: u32, current: u32 },
    #[error("the job has ended already")]
    Ended,
    #[error("nothing to change")]
    NoChange,
    #[error("this cannot happen to a job that is {0:?}")]
    NotNow(JobState),
}

impl Event {
    /// Why an attempt under way stops by this event.
    const fn stop_cause(&self) -> Option<StopCause> {
        Some(match *self {
            Self::Preempt { for_job, .. } => StopCause::Preempted { for_job },
            Self::RankFailed { .. } => StopCause::RankFailed,
            Self::Drain { again, grace_s, .. } => StopCause::Drained { again, grace_s },
            Self::Idle { percent, for_s, .. } => StopCause::Idle { percent, for_s },
            Self::Cancel => StopCause::Cancelled,
            Self::Halt => StopCause::Halted,
            _ => return None,
        })
    }
}

impl Machine {
    /// From its stored form. `stop` is the cause that was recorded with a stopping job.
    pub fn restore(state: JobState, attempt: u32, stop: Option<StopCause>) -> Self {
        match state {
            JobState::Queued => Self::Queued,
            JobState::Assigned => Self::Assigned { attempt },
            JobState::Starting => Self::Starting { attempt },
            JobState::Running => Self::Running { attempt },
            JobState::Stopping => Self::Stopping { attempt, cause: stop.unwrap_or(StopCause::Cancelled) },
            ended => Self::Ended(ended),
        }
    }

    pub const fn state(self) -> JobState {
        match self {
            Self::Queued => JobState::Queued,
            Self::Assigned { .. } => JobState::Assigned,
            Self::Starting { .. } => JobState::Starting,
            Self::Running { .. } => JobState::Running,
            Self::Stopping { .. } => JobState::Stopping,
            Self::Ended(state) => state,
        }
    }

    const fn attempt(self) -> u32 {
        match self {
            Self::Assigned { attempt }
            | Self::Starting { attempt }
            | Self::Running { attempt }
            | Self::Stopping { attempt, .. } => attempt,
            Self::Queued | Self::Ended(_) => 0,
        }
    }

    /// True if an attempt is under way that this cause can stop.
    const fn stops_for(self, cause: StopCause) -> bool {
        match self {
            Self::Running { .. } => true,
            Self::Assigned { .. } | Self::Starting { .. } => !matches!(cause, StopCause::Idle { .. }),
            Self::Queued | Self::Stopping { .. } | Self::Ended(_) => false,
        }
    }

    /// Applies one event.
    pub fn apply(self, event: Event) -> Result<(Self, Vec<Effect>), Rejected> {
        if let Event::Prepare { attempt }
        | Event::Start { attempt }
        | Event::Preempt { attempt, .. }
        | Event::RankFailed { attempt }
        | Event::Idle { attempt, .. }
        | Event::Drain { attempt, .. }
        | Event::End { attempt, .. } = event
        {
            if let Self::Ended(_) = self {
                return Err(Rejected::Ended);
            }
            if attempt != self.attempt() {
                return Err(Rejected::OldAttempt { reported: attempt, current: self.attempt() });
            }
        }
        if let Some(cause) = event.stop_cause()
            && self.stops_for(cause)
        {
            let stopping = Self::Stopping { attempt: self.attempt(), cause };
            return Ok((stopping, vec![Effect::WakeNode]));
        }
        match (self, event) {
            (Self::Ended(_), _) => Err(Rejected::Ended),
            (Self::Queued, Event::Assign { attempt }) => {
                Ok((Self::Assigned { attempt }, vec![Effect::WakeNode]))
            }
            (Self::Assigned { attempt }, Event::Prepare { .. }) => Ok((Self::Starting { attempt }, vec![])),
            (Self::Assigned { attempt } | Self::Starting { attempt }, Event::Start { .. }) => {
                Ok((Self::Running { attempt }, vec![]))
            }
            // A report may arrive twice, or after the tenant already asked to stop.
            (Self::Starting { .. } | Self::Running { .. } | Self::Stopping { .. }, Event::Prepare { .. })
            | (Self::Running { .. } | Self::Stopping { .. }, Event::Start { .. })
            | (
                Self::Stopping {
                    cause:
                        StopCause::Cancelled | StopCause::TimedOut | StopCause::Halted | StopCause::Idle { .. },
                    ..
                },
                Event::Cancel | Event::Halt,
            )
            | (
                Self::Stopping { .. },
                Event::Preempt { .. } | Event::RankFailed { .. } | Event::Idle { .. } | Event::Drain { .. },
            ) => Err(Rejected::NoChange),
            // Who wants it ended does not want it queued again. No more than that changes for its worker.
            (Self::Stopping { attempt, .. }, Event::Cancel) => {
                Ok((Self::Stopping { attempt, cause: StopCause::Cancelled }, vec![]))
            }
            (Self::Stopping { attempt, .. }, Event::Halt) => {
                Ok((Self::Stopping { attempt, cause: StopCause::Halted }, vec![]))
            }
            (Self::Queued, Event::Orphan { failure }) => {
                let finish = Effect::Finish { exit_code: None, failure: Some(failure) };
                Ok((Self::Ended(JobState::Failed), vec![Effect::Settle, finish]))
            }
            (
                Self::Assigned { .. }
                | Self::Starting { .. }
                | Self::Running { .. }
                | Self::Stopping {
                    cause: StopCause::Preempted { .. } | StopCause::RankFailed | StopCause::Drained { .. },
                    ..
                },
                Event::End { again: true, .. },
            ) => Ok((Self::Queued, vec![Effect::Requeue, Effect::WakeNode])),
            (Self::Queued, Event::Cancel) => {
                let finish = Effect::Finish { exit_code: None, failure: None };
                Ok((Self::Ended(JobState::Cancelled), vec![Effect::Settle, finish]))
            }
            (Self::Queued, Event::Halt) => {
                let finish = Effect::Finish { exit_code: None, failure: Some(halted()) };
                Ok((Self::Ended(JobState::Cancelled), vec![Effect::Settle, finish]))
            }
            (machine, Event::End { outcome, .. }) => {
                let (state, exit_code, failure) = end(machine, outcome);
                let finish = Effect::Finish { exit_code, failure };
                Ok((Self::Ended(state), vec![Effect::Settle, finish, Effect::WakeNode]))
            }
            (
                machine,
                Event::Assign { .. }
                | Event::Orphan { .. }
                | Event::Preempt { .. }
                | Event::RankFailed { .. }
                | Event::Idle { .. }
                | Event::Drain { .. }
                | Event::Cancel
                | Event::Halt,
            ) => Err(Rejected::NotNow(machine.state())),
            (machine, Event::Prepare { .. } | Event::Start { .. }) => Err(Rejected::NotNow(machine.state())),
        }
    }
}

fn end(machine: Machine, outcome: Outcome) -> (JobState, Option<i32>, Option<Failure>) {
    match (machine, outcome) {
        (_, Outcome::TimedOut { code })
        | (Machine::Stopping { cause: StopCause::TimedOut, .. }, Outcome::Exited { code }) => {
            (JobState::TimedOut, Some(code), None)
        }
        (Machine::Stopping { cause: StopCause::Cancelled, .. }, Outcome::Exited { code }) => {
            (JobState::Cancelled, Some(code), None)
        }
        // It was asked to stop before it ran.
        (Machine::Stopping { cause: StopCause::Cancelled, .. }, Outcome::Failed(failure)) => {
            (JobState::Cancelled, None, Some(failure).filter(|f| f.code != "attempt.not_started"))
        }
        // It was to end then, so it has not failed; but whoever looks for it must learn why it is over.
        (Machine::Stopping { cause: StopCause::Idle { percent, for_s }, .. }, outcome) => {
            let code = match outcome {
                Outcome::Exited { code } | Outcome::TimedOut { code } => Some(code),
                Outcome::Failed(_) => None,
            };
            let failure = Failure { code: "job.idle".to_owned(), detail: idle_text(percent, for_s) };
            (JobState::Cancelled, code, Some(failure))
        }
        // As with one that was cancelled, but whoever looks for it must learn who wanted that.
        (Machine::Stopping { cause: StopCause::Halted, .. }, outcome) => {
            let code = match outcome {
                Outcome::Exited { code } | Outcome::TimedOut { code } => Some(code),
                Outcome::Failed(_) => None,
            };
            (JobState::Cancelled, code, Some(halted()))
        }
        // A program that saves its state and ends well has not done its work.
        (Machine::Stopping { cause: StopCause::Drained { .. }, .. }, outcome) => match outcome {
            Outcome::Exited { code } => (JobState::Failed, Some(code), Some(drained())),
            Outcome::TimedOut { code } => (JobState::TimedOut, Some(code), None),
            Outcome::Failed(failure) if failure.code == "attempt.not_started" => {
                (JobState::Failed, None, Some(drained()))
            }
            Outcome::Failed(failure) => (JobState::Failed, None, Some(failure)),
        },
        (_, Outcome::Exited { code: 0 }) => (JobState::Succeeded, Some(0), None),
        (Machine::Stopping { cause: StopCause::Preempted { .. }, .. }, Outcome::Exited { code }) => {
            let detail = "It made room for a more important job, and its retry policy leaves it at that.";
            let failure = Failure { code: "job.preempted".to_owned(), detail: detail.to_owned() };
            (JobState::Failed, Some(code), Some(failure))
        }
        (_, Outcome::Exited { code }) => (JobState::Failed, Some(code), Some(exit_failure(code))),
        (_, Outcome::Failed(failure)) => (JobState::Failed, None, Some(failure)),
    }
}

/// The code of what ended because its node had to be empty. Who wanted that, and why, stands beside it.
pub const DRAINED: &str = "node.drained";

fn drained() -> Failure {
    let detail = "Its node had to be empty, and it could not wait for another place.";
    Failure { code: DRAINED.to_owned(), detail: detail.to_owned() }
}

/// The code of what the operator stopped. Who did, and why, stands beside it.
pub const HALTED: &str = "operator.stopped";

fn halted() -> Failure {
    let detail = "The operator of this cloud stopped it.";
    Failure { code: HALTED.to_owned(), detail: detail.to_owned() }
}

/// Why a job was stopped that asked for it.
pub fn idle_text(percent: u8, for_s: u32) -> String {
    format!("Stopped by itself: GPU utilisation was {percent} % for {} minutes.", for_s.div_ceil(60))
}

fn exit_failure(code: i32) -> Failure {
    let detail = match code {
        126 => "The command was found but could not be executed.".to_owned(),
        127 => "The command was not found on the worker.".to_owned(),
        137 => "The process was killed (signal 9), often for want of memory.".to_owned(),
        129..=192 => format!("The process was ended by signal {}.", code - 128),
        _ => format!("The process ended with exit code {code}."),
    };
    let code = match code {
        126 | 127 => "command.not_runnable",
        129..=192 => "process.signalled",
        _ => "process.exit",
    };
    Failure { code: code.to_owned(), detail }
}

#[cfg(test)]
mod tests;
