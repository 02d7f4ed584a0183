//! The life of a job as a machine: a state, an event, and what must follow from it.
//!
//! Events carry the number of the attempt they speak of; one that speaks of an older attempt, or
//! that does not fit the state, is rejected with its reason and changes nothing.

use berth_types::jobs::{Failure, JobState, Retry, RetryOn};

/// Why an attempt is being stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopCause {
    Cancelled,
    TimedOut,
    /// It makes room for a more important job, and waits again afterwards.
    Preempted,
    /// One of its ranks ended badly, so the others are stopped.
    RankFailed,
    /// Its devices stood idle for as long as it had said.
    Idle {
        /// Their mean utilisation, whole percent.
        percent: u8,
        /// Seconds for which that was so.
        for_s: u32,
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
    /// The scheduler wants its place.
    Preempt { attempt: u32 },
    /// One of several ranks ended badly.
    RankFailed { attempt: u32 },
    /// Its devices stand idle, and it was to be stopped then.
    Idle { attempt: u32, percent: u8, for_s: u32 },
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
const NODE_LOST: [&str; 6] = [
    "attempt.unknown_outcome",
    "attempt.not_started",
    "device.unavailable",
    "image.unavailable",
    "worker.io",
    "worker.isolation",
];

/// Whether an end is followed by another try, after `retries` of them. What makes room is tried again
/// unless its policy leaves that out, however often.
pub fn tries_again(policy: Option<&Retry>, retries: u32, stop: Option<StopCause>, outcome: &Outcome) -> bool {
    let on = |cause: RetryOn| policy.is_some_and(|p| p.on.contains(&cause));
    if stop == Some(StopCause::Preempted) {
        let made_room = match outcome {
            Outcome::Exited { .. } => true,
            Outcome::TimedOut { .. } => false,
            Outcome::Failed(failure) => failure.code == "attempt.not_started",
        };
        if made_room {
            return policy.is_none() || on(RetryOn::Preempted);
        }
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

    /// Applies one event.
    pub fn apply(self, event: Event) -> Result<(Self, Vec<Effect>), Rejected> {
        if let Event::Prepare { attempt }
        | Event::Start { attempt }
        | Event::Preempt { attempt }
        | Event::RankFailed { attempt }
        | Event::Idle { attempt, .. }
        | Event::End { attempt, .. } = event
        {
            if let Self::Ended(_) = self {
                return Err(Rejected::Ended);
            }
            if attempt != self.attempt() {
                return Err(Rejected::OldAttempt { reported: attempt, current: self.attempt() });
            }
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
                        StopCause::Cancelled
                        | StopCause::TimedOut
                        | StopCause::RankFailed
                        | StopCause::Idle { .. },
                    ..
                },
                Event::Cancel,
            )
            | (
                Self::Stopping { .. },
                Event::Preempt { .. } | Event::RankFailed { .. } | Event::Idle { .. },
            ) => Err(Rejected::NoChange),
            // Who wants it ended does not want it queued again.
            (Self::Stopping { attempt, cause: StopCause::Preempted }, Event::Cancel) => {
                Ok((Self::Stopping { attempt, cause: StopCause::Cancelled }, vec![]))
            }
            (
                Self::Assigned { attempt } | Self::Starting { attempt } | Self::Running { attempt },
                Event::Preempt { .. },
            ) => Ok((Self::Stopping { attempt, cause: StopCause::Preempted }, vec![Effect::WakeNode])),
            (
                Self::Assigned { attempt } | Self::Starting { attempt } | Self::Running { attempt },
                Event::RankFailed { .. },
            ) => Ok((Self::Stopping { attempt, cause: StopCause::RankFailed }, vec![Effect::WakeNode])),
            (Self::Running { attempt }, Event::Idle { percent, for_s, .. }) => {
                let cause = StopCause::Idle { percent, for_s };
                Ok((Self::Stopping { attempt, cause }, vec![Effect::WakeNode]))
            }
            (Self::Queued, Event::Orphan { failure }) => {
                let finish = Effect::Finish { exit_code: None, failure: Some(failure) };
                Ok((Self::Ended(JobState::Failed), vec![Effect::Settle, finish]))
            }
            (
                Self::Assigned { .. }
                | Self::Starting { .. }
                | Self::Running { .. }
                | Self::Stopping { cause: StopCause::Preempted | StopCause::RankFailed, .. },
                Event::End { again: true, .. },
            ) => Ok((Self::Queued, vec![Effect::Requeue, Effect::WakeNode])),
            (Self::Queued, Event::Cancel) => {
                let finish = Effect::Finish { exit_code: None, failure: None };
                Ok((Self::Ended(JobState::Cancelled), vec![Effect::Settle, finish]))
            }
            (
                Self::Assigned { attempt } | Self::Starting { attempt } | Self::Running { attempt },
                Event::Cancel,
            ) => Ok((Self::Stopping { attempt, cause: StopCause::Cancelled }, vec![Effect::WakeNode])),
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
                | Event::Idle { .. },
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
        (_, Outcome::Exited { code: 0 }) => (JobState::Succeeded, Some(0), None),
        (Machine::Stopping { cause: StopCause::Preempted, .. }, Outcome::Exited { code }) => {
            let detail = "It made room for a more important job, and its retry policy leaves it at that.";
            let failure = Failure { code: "job.preempted".to_owned(), detail: detail.to_owned() };
            (JobState::Failed, Some(code), Some(failure))
        }
        (_, Outcome::Exited { code }) => (JobState::Failed, Some(code), Some(exit_failure(code))),
        (_, Outcome::Failed(failure)) => (JobState::Failed, None, Some(failure)),
    }
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn exit(attempt: u32, code: i32) -> Event {
        Event::End { attempt, outcome: Outcome::Exited { code }, again: false }
    }

    fn run(events: &[Event]) -> Machine {
        events.iter().fold(Machine::Queued, |m, e| m.apply(e.clone()).map_or(m, |(m, _)| m))
    }

    #[test]
    fn the_usual_lives() {
        use Event::*;
        let start = [Assign { attempt: 1 }, Prepare { attempt: 1 }, Start { attempt: 1 }];
        let with = |more: &[Event]| run(&[&start, more].concat()).state();
        assert_eq!(with(&[]), JobState::Running);
        assert_eq!(with(&[exit(1, 0)]), JobState::Succeeded);
        assert_eq!(with(&[exit(1, 3)]), JobState::Failed);
        assert_eq!(with(&[Cancel, exit(1, 143)]), JobState::Cancelled);
        assert_eq!(with(&[Cancel, Cancel, exit(1, 0), exit(1, 3)]), JobState::Cancelled);
        let late = End { attempt: 1, outcome: Outcome::TimedOut { code: 143 }, again: false };
        assert_eq!(with(std::slice::from_ref(&late)), JobState::TimedOut);
        assert_eq!(run(&[Cancel]).state(), JobState::Cancelled);
        let preempt = Preempt { attempt: 1 };
        let again = |code| End { attempt: 1, outcome: Outcome::Exited { code }, again: true };
        assert_eq!(with(&[preempt.clone(), again(0)]), JobState::Queued, "however it ends, it made room");
        assert_eq!(with(&[preempt.clone(), exit(1, 143)]), JobState::Failed);
        assert_eq!(with(&[preempt.clone(), Cancel, again(143)]), JobState::Cancelled);
        assert_eq!(with(&[preempt, late]), JobState::TimedOut);
        assert_eq!(with(&[again(3)]), JobState::Queued);
        let idle = Idle { attempt: 1, percent: 3, for_s: 3_600 };
        assert_eq!(with(&[idle.clone(), Cancel, again(143)]), JobState::Cancelled, "never tried again");
        assert_eq!(with(&[Cancel, idle.clone(), exit(1, 0)]), JobState::Cancelled);
        assert_eq!(run(&[start[0].clone(), idle]).state(), JobState::Assigned, "only what runs is idle");
        assert_eq!(with(&[RankFailed { attempt: 1 }, again(3)]), JobState::Queued);
        assert_eq!(with(&[Cancel, again(143)]), JobState::Cancelled, "who wants it ended is heard");
    }

    #[test]
    fn a_policy_says_what_is_tried_again() {
        use RetryOn::*;
        let policy = |on: &[RetryOn]| Retry { max: 2, on: on.to_vec() };
        let failed = |code: &str| Outcome::Failed(Failure { code: code.into(), detail: String::new() });
        let (bad, late) = (Outcome::Exited { code: 1 }, Outcome::TimedOut { code: 143 });
        let preempted = Some(StopCause::Preempted);
        for (on, retries, stop, outcome, again) in [
            (&[Exit][..], 0, None, bad.clone(), true),
            (&[Exit], 1, Some(StopCause::RankFailed), bad.clone(), true),
            (&[Exit], 2, None, bad.clone(), false),
            (&[Exit], 0, None, Outcome::Exited { code: 0 }, false),
            (&[Exit, NodeLost, Preempted], 0, None, late.clone(), false),
            (&[NodeLost], 0, None, bad.clone(), false),
            (&[NodeLost], 0, None, failed("attempt.unknown_outcome"), true),
            (&[NodeLost], 2, None, failed("attempt.unknown_outcome"), false),
            (&[NodeLost], 0, None, failed("log.full"), false),
            (&[Exit], 0, preempted, bad.clone(), false),
            (&[Preempted], 9, preempted, bad.clone(), true),
            (&[NodeLost], 0, preempted, failed("attempt.unknown_outcome"), true),
            (&[Preempted], 0, preempted, late.clone(), false),
        ] {
            assert_eq!(
                tries_again(Some(&policy(on)), retries, stop, &outcome),
                again,
                "{on:?} {stop:?} {outcome:?}"
            );
        }
        assert!(!tries_again(None, 0, None, &bad));
        assert!(tries_again(None, 50, preempted, &bad));
        assert!(!tries_again(None, 0, preempted, &failed("attempt.unknown_outcome")));
    }

    #[test]
    fn a_job_that_stops_for_standing_idle_says_so() {
        let idle =
            Machine::Running { attempt: 1 }.apply(Event::Idle { attempt: 1, percent: 3, for_s: 3_600 });
        let (stopping, effects) = idle.unwrap();
        assert_eq!(effects, [Effect::WakeNode]);
        for (event, code) in [(exit(1, 143), Some(143)), (exit(1, 0), Some(0)), (lost(), None)] {
            let (ended, effects) = stopping.apply(event).unwrap();
            assert_eq!(ended, Machine::Ended(JobState::Cancelled));
            let detail = "Stopped by itself: GPU utilisation was 3 % for 60 minutes.".to_owned();
            let failure = Some(Failure { code: "job.idle".to_owned(), detail });
            assert!(effects.contains(&Effect::Finish { exit_code: code, failure }), "{effects:?}");
        }
        let older = stopping.apply(Event::Idle { attempt: 2, percent: 3, for_s: 60 });
        assert_eq!(older, Err(Rejected::OldAttempt { reported: 2, current: 1 }));
    }

    fn lost() -> Event {
        let failure = Failure { code: "attempt.unknown_outcome".into(), detail: String::new() };
        Event::End { attempt: 1, outcome: Outcome::Failed(failure), again: true }
    }

    #[test]
    fn an_older_attempt_changes_nothing() {
        let machine = Machine::Running { attempt: 2 };
        assert_eq!(machine.apply(exit(1, 0)), Err(Rejected::OldAttempt { reported: 1, current: 2 }));
    }

    fn any_event() -> impl Strategy<Value = Event> {
        (0u32..3, 0i32..3, 0u8..10).prop_map(|(attempt, code, kind)| match kind {
            6 => Event::Preempt { attempt },
            8 => Event::RankFailed { attempt },
            9 => Event::Idle { attempt, percent: 7, for_s: 600 },
            7 => Event::Orphan { failure: Failure { code: "x".into(), detail: String::new() } },
            0 => Event::Assign { attempt },
            1 => Event::Prepare { attempt },
            2 => Event::Start { attempt },
            3 => Event::Cancel,
            4 => exit(attempt, code),
            _ => Event::End {
                attempt,
                outcome: Outcome::Failed(Failure { code: "x".into(), detail: String::new() }),
                again: code == 1,
            },
        })
    }

    proptest! {
        #[test]
        fn an_ended_job_stays_ended_and_settles_once(events in prop::collection::vec(any_event(), 0..40)) {
            let (mut machine, mut settled) = (Machine::Queued, 0);
            for event in events {
                if let Ok((next, effects)) = machine.apply(event) {
                    prop_assert!(!machine.state().ended());
                    settled += effects.iter().filter(|e| **e == Effect::Settle).count();
                    machine = next;
                }
                prop_assert_eq!(settled, usize::from(machine.state().ended()));
            }
        }

        #[test]
        fn a_machine_survives_its_stored_form(events in prop::collection::vec(any_event(), 0..12)) {
            let machine = run(&events);
            let stop = match machine { Machine::Stopping { cause, .. } => Some(cause), _ => None };
            prop_assert_eq!(Machine::restore(machine.state(), machine.attempt(), stop), machine);
        }
    }
}
