//! The state machine of a job: states, events, and the effects of a transition.
//!
//! An event has the number of its attempt. An event of an older attempt, or one that does not fit the state,
//! is rejected with a reason and changes nothing.

use berth_types::ids::JobId;
use berth_types::jobs::{Failure, JobState, Retry, RetryOn};

use crate::gang_links::{LINK_FAILURES, LINK_RETRIES};

/// The reason for which an attempt is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopCause {
    Cancelled,
    TimedOut,
    /// Preempted for a job of a higher class or a replica, or (`None`) for the reserve for bursts of inference. The job is
    /// queued again, unless its retry policy excludes that.
    Preempted {
        for_job: Option<JobId>,
    },
    /// Another rank of the attempt failed.
    RankFailed,
    /// The devices were idle for the time that the job had set.
    Idle {
        /// The mean utilization of the devices, whole percent.
        percent: u8,
        /// Length of the idle time, in seconds.
        for_s: u32,
    },
    /// Stopped by the operator.
    Halted,
    /// Stopped by a spent budget.
    Spent,
    /// The node is drained.
    Drained {
        /// The job is queued again afterwards.
        again: bool,
        /// Seconds from the signal to SIGKILL; 0: the usual grace of the worker.
        grace_s: u32,
    },
}

impl StopCause {
    /// True for the stop of a job that is not queued again.
    pub const fn is_final(self) -> bool {
        match self {
            Self::Cancelled | Self::TimedOut | Self::Halted | Self::Spent | Self::Idle { .. } => true,
            Self::Preempted { .. } | Self::RankFailed | Self::Drained { .. } => false,
        }
    }
}

/// The end of an attempt, proved by its worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The process ended by itself or by a signal. `code` is 128 + the number of the signal.
    Exited { code: i32 },
    /// The worker stopped the process at the time limit.
    TimedOut { code: i32 },
    /// The process never ran, or its end is unknown.
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
pub enum MachineEvent {
    /// The scheduler placed the job.
    Assign { attempt: u32 },
    /// The worker prepares the devices and the directory.
    Prepare { attempt: u32 },
    /// The process runs.
    Start { attempt: u32 },
    /// A member of the organization stops the job.
    Cancel,
    /// The operator stops the job.
    Halt,
    /// A spent budget stops the job.
    Spend,
    /// The scheduler preempts the attempt.
    Preempt { attempt: u32, for_job: Option<JobId> },
    /// One of several ranks failed.
    RankFailed { attempt: u32 },
    /// The devices are idle, and the job is to be stopped in that case.
    Idle { attempt: u32, percent: u8, for_s: u32 },
    /// The node is drained.
    Drain { attempt: u32, again: bool, grace_s: u32 },
    /// A dependency of the job can no longer be met.
    Orphan { failure: Failure },
    End {
        attempt: u32,
        outcome: Outcome,
        /// The job is queued again ([`is_retried`]), unless it was cancelled, halted or stopped by a budget.
        again: bool,
        /// The rank whose end this is; `None` for an attempt with one rank.
        rank: Option<u32>,
    },
}

/// Failures that the job did not cause.
pub const NODE_LOST: [&str; 17] = [
    "attempt.unknown_outcome",
    "attempt.not_started",
    "device.failed",
    "device.unavailable",
    "gang.check_failed",
    "gang.keys_lost",
    "gang.link_slow",
    "gang.networks_differ",
    "gang.not_reserved",
    "gang.unreachable",
    "image.unavailable",
    "worker.io",
    "worker.isolation",
    "worker.rdma",
    "lease.ended",
    "node.lost",
    "node.shutdown",
];

/// True if the job is queued again after this end. `retries` is the number of its retries so far. Preemptions
/// do not count against the limit of the policy, but the policy can exclude a retry after preemption. A bad link between
/// nodes is the only failure with a retry without a policy.
pub fn is_retried(policy: Option<&Retry>, retries: u32, stop: Option<StopCause>, outcome: &Outcome) -> bool {
    let on = |cause: RetryOn| policy.is_some_and(|p| p.on.contains(&cause));
    let stopped_as_asked = match outcome {
        Outcome::Exited { .. } => true,
        Outcome::TimedOut { .. } => false,
        Outcome::Failed(failure) => failure.code == "attempt.not_started",
    };
    match stop {
        Some(StopCause::Preempted { .. }) if stopped_as_asked => {
            return policy.is_none() || on(RetryOn::Preempted);
        }
        // The drain decided already. An attempt that never ran is always queued again: it has lost no work.
        Some(StopCause::Drained { again, .. }) if stopped_as_asked => {
            return again || matches!(outcome, Outcome::Failed(_));
        }
        _ => {}
    }
    // No program began, and the next attempt avoids the nodes of the bad link.
    if let (None, Outcome::Failed(failure)) = (policy, outcome)
        && LINK_FAILURES.contains(&failure.code.as_str())
    {
        return retries < LINK_RETRIES;
    }
    let left = policy.is_some_and(|p| retries < p.max);
    left && match outcome {
        Outcome::Exited { code } => *code != 0 && on(RetryOn::Exit),
        Outcome::TimedOut { .. } => false,
        Outcome::Failed(failure) => NODE_LOST.contains(&failure.code.as_str()) && on(RetryOn::NodeLost),
    }
}

/// An effect of a transition, in the same transaction or directly after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Send the node its desired state.
    WakeNode,
    /// Post the charges and release the rest of the hold.
    Settle,
    /// Queue the job for its next attempt. The use so far stays charged.
    Requeue,
    /// Record the end of the job.
    Finish { exit_code: Option<i32>, failure: Option<Failure> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    #[error("the report is about attempt {reported}; the job is at attempt {current}")]
    OldAttempt { reported: u32, current: u32 },
    #[error("the job has ended")]
    Ended,
    #[error("nothing to change")]
    NoChange,
    #[error("invalid change of a job in the state {0:?}")]
    NotNow(JobState),
}

impl MachineEvent {
    /// The stop cause of this event for an attempt under way; `None` for an event that stops nothing.
    const fn stop_cause(&self) -> Option<StopCause> {
        Some(match *self {
            Self::Preempt { for_job, .. } => StopCause::Preempted { for_job },
            Self::RankFailed { .. } => StopCause::RankFailed,
            Self::Drain { again, grace_s, .. } => StopCause::Drained { again, grace_s },
            Self::Idle { percent, for_s, .. } => StopCause::Idle { percent, for_s },
            Self::Cancel => StopCause::Cancelled,
            Self::Halt => StopCause::Halted,
            Self::Spend => StopCause::Spent,
            _ => return None,
        })
    }
}

impl Machine {
    /// The machine in its stored state. `stop` is the stored cause of a stopping job.
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

    /// True if this cause can stop the attempt under way.
    const fn stops_for(self, cause: StopCause) -> bool {
        match self {
            Self::Running { .. } => true,
            Self::Assigned { .. } | Self::Starting { .. } => !matches!(cause, StopCause::Idle { .. }),
            Self::Queued | Self::Stopping { .. } | Self::Ended(_) => false,
        }
    }

    /// Checks that an event of an attempt is of the present attempt.
    fn check_attempt(self, event: &MachineEvent) -> Result<(), Rejected> {
        use MachineEvent::{Drain, End, Idle, Preempt, Prepare, RankFailed, Start};
        if let Prepare { attempt }
        | Start { attempt }
        | Preempt { attempt, .. }
        | RankFailed { attempt }
        | Idle { attempt, .. }
        | Drain { attempt, .. }
        | End { attempt, .. } = event
        {
            if let Self::Ended(_) = self {
                return Err(Rejected::Ended);
            }
            if *attempt != self.attempt() {
                return Err(Rejected::OldAttempt { reported: *attempt, current: self.attempt() });
            }
        }
        Ok(())
    }

    /// Applies one event and returns the new state with its effects.
    ///
    /// # Errors
    /// [`Rejected`] if the event does not fit the state; the state stays as it is.
    pub fn apply(self, event: MachineEvent) -> Result<(Self, Vec<Effect>), Rejected> {
        use MachineEvent::{
            Assign, Cancel, Drain, End, Halt, Idle, Orphan, Preempt, Prepare, RankFailed, Spend, Start,
        };
        self.check_attempt(&event)?;
        if let Some(cause) = event.stop_cause()
            && self.stops_for(cause)
        {
            let stopping = Self::Stopping { attempt: self.attempt(), cause };
            return Ok((stopping, vec![Effect::WakeNode]));
        }
        match (self, event) {
            (Self::Ended(_), _) => Err(Rejected::Ended),
            (Self::Queued, Assign { attempt }) => Ok((Self::Assigned { attempt }, vec![Effect::WakeNode])),
            (Self::Assigned { attempt }, Prepare { .. }) => Ok((Self::Starting { attempt }, vec![])),
            (Self::Assigned { attempt } | Self::Starting { attempt }, Start { .. }) => {
                Ok((Self::Running { attempt }, vec![]))
            }
            // A report can arrive twice, or after a stop.
            (Self::Starting { .. } | Self::Running { .. } | Self::Stopping { .. }, Prepare { .. })
            | (Self::Running { .. } | Self::Stopping { .. }, Start { .. })
            | (Self::Stopping { .. }, Preempt { .. } | RankFailed { .. } | Idle { .. } | Drain { .. }) => {
                Err(Rejected::NoChange)
            }
            // The worker stops the attempt already.
            (Self::Stopping { attempt, cause }, stop @ (Cancel | Halt | Spend)) => match stop.stop_cause() {
                Some(stop) if !cause.is_final() => Ok((Self::Stopping { attempt, cause: stop }, vec![])),
                _ => Err(Rejected::NoChange),
            },
            (Self::Queued, Orphan { failure }) => {
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
                End { again: true, .. },
            ) => Ok((Self::Queued, vec![Effect::Requeue, Effect::WakeNode])),
            (Self::Queued, stop @ (Cancel | Halt | Spend)) => {
                let failure = stop.stop_cause().and_then(stop_failure);
                let finish = Effect::Finish { exit_code: None, failure };
                Ok((Self::Ended(JobState::Cancelled), vec![Effect::Settle, finish]))
            }
            (machine, End { outcome, rank, .. }) => {
                let (state, exit_code, failure) = final_state(machine, outcome, rank);
                let finish = Effect::Finish { exit_code, failure };
                Ok((Self::Ended(state), vec![Effect::Settle, finish, Effect::WakeNode]))
            }
            (
                machine,
                Assign { .. }
                | Orphan { .. }
                | Preempt { .. }
                | RankFailed { .. }
                | Idle { .. }
                | Drain { .. }
                | Cancel
                | Halt
                | Spend,
            ) => Err(Rejected::NotNow(machine.state())),
            (machine, Prepare { .. } | Start { .. }) => Err(Rejected::NotNow(machine.state())),
        }
    }
}

/// A text about the end of a rank, with the number of the rank once. `None` stands for an attempt with one rank.
pub fn with_rank(rank: Option<u32>, text: String) -> String {
    match rank {
        Some(rank) if !text.starts_with(&format!("Rank {rank} ")) => format!("Rank {rank}: {text}"),
        _ => text,
    }
}

/// True if a failure is the end of this rank.
pub fn is_of_rank(failure: &Failure, rank: u32) -> bool {
    let rest = failure.detail.strip_prefix(&format!("Rank {rank}"));
    rest.is_some_and(|rest| rest.starts_with([':', ' ']))
}

/// The failure of a rank.
fn rank_failure(failure: Failure, rank: Option<u32>) -> Failure {
    Failure { code: failure.code, detail: with_rank(rank, failure.detail) }
}

/// The final state of a job with its exit code and its failure.
fn final_state(
    machine: Machine,
    outcome: Outcome,
    rank: Option<u32>,
) -> (JobState, Option<i32>, Option<Failure>) {
    let outcome = match outcome {
        Outcome::Failed(failure) => Outcome::Failed(rank_failure(failure, rank)),
        ended => ended,
    };
    match (machine, outcome) {
        (_, Outcome::TimedOut { code })
        | (Machine::Stopping { cause: StopCause::TimedOut, .. }, Outcome::Exited { code }) => {
            (JobState::TimedOut, Some(code), None)
        }
        (Machine::Stopping { cause: StopCause::Cancelled, .. }, Outcome::Exited { code }) => {
            (JobState::Cancelled, Some(code), None)
        }
        // Cancelled before it ran.
        (Machine::Stopping { cause: StopCause::Cancelled, .. }, Outcome::Failed(failure)) => {
            (JobState::Cancelled, None, Some(failure).filter(|f| f.code != "attempt.not_started"))
        }
        // Cancelled rather than failed, because the job asked for this stop. The failure has the reason for
        // its users.
        (Machine::Stopping { cause: StopCause::Idle { percent, for_s }, .. }, outcome) => {
            let code = match outcome {
                Outcome::Exited { code } | Outcome::TimedOut { code } => Some(code),
                Outcome::Failed(_) => None,
            };
            let failure = Failure { code: "job.idle".to_owned(), detail: idle_text(percent, for_s) };
            (JobState::Cancelled, code, Some(failure))
        }
        // Like a cancelled job, but the failure says that the operator or a budget stopped it.
        (Machine::Stopping { cause: cause @ (StopCause::Halted | StopCause::Spent), .. }, outcome) => {
            let code = match outcome {
                Outcome::Exited { code } | Outcome::TimedOut { code } => Some(code),
                Outcome::Failed(_) => None,
            };
            (JobState::Cancelled, code, stop_failure(cause))
        }
        // Exit code 0 is no success here: the program saved its state and ended early.
        (
            Machine::Stopping {
                cause: cause @ (StopCause::Drained { .. } | StopCause::Preempted { .. }),
                ..
            },
            outcome,
        ) => match outcome {
            Outcome::Exited { code } => (JobState::Failed, Some(code), stop_failure(cause)),
            Outcome::TimedOut { code } => (JobState::TimedOut, Some(code), None),
            Outcome::Failed(failure) if failure.code == "attempt.not_started" => {
                (JobState::Failed, None, stop_failure(cause))
            }
            Outcome::Failed(failure) => (JobState::Failed, None, Some(failure)),
        },
        (_, Outcome::Exited { code: 0 }) => (JobState::Succeeded, Some(0), None),
        (_, Outcome::Exited { code }) => {
            (JobState::Failed, Some(code), Some(rank_failure(exit_failure(code), rank)))
        }
        (_, Outcome::Failed(failure)) => (JobState::Failed, None, Some(failure)),
    }
}

/// The failure code of a job that ended by a drain. The detail has the operator and the reason.
pub const DRAINED: &str = "node.drained";

fn drained() -> Failure {
    let detail = "The job was stopped by the drain of its node, and it could not return to the queue.";
    Failure { code: DRAINED.to_owned(), detail: detail.to_owned() }
}

/// The failure of a preempted job without another attempt.
fn preempted(for_job: Option<JobId>) -> Failure {
    let room =
        for_job.map_or("the boards that stay free for services", |_| "a replica or a job of higher priority");
    let detail = format!(
        "The job was preempted for {room}, and its retry policy or its time limit excludes another attempt."
    );
    Failure { code: "job.preempted".to_owned(), detail }
}

/// The failure code of a job that the operator stopped. The detail has the operator and the reason.
pub const HALTED: &str = "operator.stopped";

fn halted() -> Failure {
    let detail = "The operator stopped the job.";
    Failure { code: HALTED.to_owned(), detail: detail.to_owned() }
}

/// The failure code of a job that a spent budget stopped. The detail names the budget.
pub const SPENT: &str = "budget.spent";

fn spent() -> Failure {
    let detail = "A budget of the job is spent.";
    Failure { code: SPENT.to_owned(), detail: detail.to_owned() }
}

/// The failure of a job that was not stopped by its own organization.
fn stop_failure(cause: StopCause) -> Option<Failure> {
    match cause {
        StopCause::Halted => Some(halted()),
        StopCause::Spent => Some(spent()),
        StopCause::Drained { .. } => Some(drained()),
        StopCause::Preempted { for_job } => Some(preempted(for_job)),
        _ => None,
    }
}

/// The failure text of a job that was stopped because of idle devices.
pub fn idle_text(percent: u8, for_s: u32) -> String {
    format!("Stopped when idle: GPU utilization was {percent} % for {} minutes.", for_s.div_ceil(60))
}

fn exit_failure(code: i32) -> Failure {
    let detail = match code {
        126 => "The command was found but could not be executed.".to_owned(),
        127 => "The command was not found on the worker.".to_owned(),
        137 => "The process was killed by signal 9, often because of too little memory.".to_owned(),
        129..=192 => format!("The process ended by signal {}.", code - 128),
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
