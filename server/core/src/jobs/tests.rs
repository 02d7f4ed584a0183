//! Tests of the state machine of a job.

use super::*;
use proptest::prelude::*;

/// The job for which the others are preempted.
fn preemptor() -> Option<JobId> {
    Some(JobId::from_uuid(uuid::Uuid::from_u128(2)))
}

fn exit(attempt: u32, code: i32) -> MachineEvent {
    MachineEvent::End { attempt, outcome: Outcome::Exited { code }, again: false, rank: None }
}

fn run(events: &[MachineEvent]) -> Machine {
    events.iter().fold(Machine::Queued, |m, e| m.apply(e.clone()).map_or(m, |(m, _)| m))
}

#[test]
fn the_usual_lives() {
    use MachineEvent::*;
    let start = [Assign { attempt: 1 }, Prepare { attempt: 1 }, Start { attempt: 1 }];
    let with = |more: &[MachineEvent]| run(&[&start, more].concat()).state();
    assert_eq!(with(&[]), JobState::Running);
    assert_eq!(with(&[exit(1, 0)]), JobState::Succeeded);
    assert_eq!(with(&[exit(1, 3)]), JobState::Failed);
    assert_eq!(with(&[Cancel, exit(1, 143)]), JobState::Cancelled);
    assert_eq!(with(&[Cancel, Cancel, exit(1, 0), exit(1, 3)]), JobState::Cancelled);
    let late = End { attempt: 1, outcome: Outcome::TimedOut { code: 143 }, again: false, rank: None };
    assert_eq!(with(std::slice::from_ref(&late)), JobState::TimedOut);
    assert_eq!(run(&[Cancel]).state(), JobState::Cancelled);
    let preempt = Preempt { attempt: 1, for_job: preemptor() };
    let again = |code| End { attempt: 1, outcome: Outcome::Exited { code }, again: true, rank: None };
    assert_eq!(with(&[preempt.clone(), again(0)]), JobState::Queued, "any exit code counts as preempted");
    assert_eq!(with(&[preempt.clone(), exit(1, 143)]), JobState::Failed);
    assert_eq!(with(&[preempt.clone(), exit(1, 0)]), JobState::Failed, "it saved its state and ended early");
    assert_eq!(with(&[preempt.clone(), Cancel, again(143)]), JobState::Cancelled);
    assert_eq!(with(&[preempt, late]), JobState::TimedOut);
    assert_eq!(with(&[again(3)]), JobState::Queued);
    let idle = Idle { attempt: 1, percent: 3, for_s: 3_600 };
    assert_eq!(with(&[idle.clone(), Cancel, again(143)]), JobState::Cancelled, "never queued again");
    assert_eq!(with(&[Cancel, idle.clone(), exit(1, 0)]), JobState::Cancelled);
    assert_eq!(run(&[start[0].clone(), idle]).state(), JobState::Assigned, "only what runs is idle");
    assert_eq!(with(&[RankFailed { attempt: 1 }, again(3)]), JobState::Queued);
    assert_eq!(with(&[Cancel, again(143)]), JobState::Cancelled, "a cancelled job is not queued again");
    let lost = RankFailed { attempt: 1 };
    assert_eq!(with(&[lost.clone(), Cancel, again(3)]), JobState::Cancelled, "also after a failed rank");
    assert_eq!(with(&[lost, Halt, again(3)]), JobState::Cancelled);
}

#[test]
fn a_policy_says_what_is_tried_again() {
    use RetryOn::*;
    let policy = |on: &[RetryOn]| Retry { max: 2, on: on.to_vec() };
    let failed = |code: &str| Outcome::Failed(Failure { code: code.into(), detail: String::new() });
    let (bad, late) = (Outcome::Exited { code: 1 }, Outcome::TimedOut { code: 143 });
    let preempted = Some(StopCause::Preempted { for_job: preemptor() });
    for (on, retries, stop, outcome, again) in [
        (&[Exit][..], 0, None, bad.clone(), true),
        (&[Exit], 1, Some(StopCause::RankFailed), bad.clone(), true),
        (&[Exit], 2, None, bad.clone(), false),
        (&[Exit], 0, None, Outcome::Exited { code: 0 }, false),
        (&[Exit, NodeLost, Preempted], 0, None, late.clone(), false),
        (&[NodeLost], 0, None, bad.clone(), false),
        (&[NodeLost], 0, None, failed("attempt.unknown_outcome"), true),
        (&[NodeLost], 2, None, failed("attempt.unknown_outcome"), false),
        (&[NodeLost], 0, None, failed("node.lost"), true),
        (&[NodeLost], 1, Some(StopCause::RankFailed), failed("lease.ended"), true),
        (&[NodeLost], 0, None, failed("node.shutdown"), true),
        (&[Exit, Preempted], 0, None, failed("node.lost"), false),
        (&[NodeLost], 0, None, failed("log.full"), false),
        (&[Exit], 0, preempted, bad.clone(), false),
        (&[Preempted], 9, preempted, bad.clone(), true),
        (&[NodeLost], 0, preempted, failed("attempt.unknown_outcome"), true),
        (&[Preempted], 0, preempted, late.clone(), false),
    ] {
        assert_eq!(
            is_retried(Some(&policy(on)), retries, stop, &outcome),
            again,
            "{on:?} {stop:?} {outcome:?}"
        );
    }
    assert!(!is_retried(None, 0, None, &bad));
    assert!(is_retried(None, 50, preempted, &bad));
    assert!(!is_retried(None, 0, preempted, &failed("attempt.unknown_outcome")));
    for code in LINK_FAILURES {
        let stop = Some(StopCause::RankFailed);
        assert!(is_retried(None, LINK_RETRIES - 1, stop, &failed(code)), "{code} needs no policy");
        assert!(!is_retried(None, LINK_RETRIES, stop, &failed(code)), "{code}");
        assert!(is_retried(Some(&policy(&[NodeLost])), 1, stop, &failed(code)), "{code}");
        assert!(!is_retried(Some(&policy(&[Exit])), 0, stop, &failed(code)), "{code}: the policy decides");
    }
}

#[test]
fn a_job_whose_node_is_emptied_waits_again_or_says_so() {
    let running = Machine::Running { attempt: 1 };
    let drained_with = |again| running.apply(MachineEvent::Drain { attempt: 1, again, grace_s: 30 }).unwrap();
    let end = |outcome, again| MachineEvent::End { attempt: 1, outcome, again, rank: None };
    let (stopping, effects) = drained_with(true);
    assert_eq!(effects, [Effect::WakeNode]);
    let stop = Some(StopCause::Drained { again: true, grace_s: 30 });
    let exited = |code| Outcome::Exited { code };
    assert!(is_retried(None, 9, stop, &exited(0)) && is_retried(None, 9, stop, &exited(143)));
    assert_eq!(stopping.apply(end(exited(0), true)).unwrap().0, Machine::Queued);
    assert_eq!(
        stopping.apply(MachineEvent::Drain { attempt: 1, again: false, grace_s: 0 }),
        Err(Rejected::NoChange)
    );
    let cancelled = stopping.apply(MachineEvent::Cancel).unwrap().0;
    assert_eq!(cancelled.apply(end(exited(143), true)).unwrap().0, Machine::Ended(JobState::Cancelled));

    let (stopping, _) = drained_with(false);
    let stop = Some(StopCause::Drained { again: false, grace_s: 30 });
    let policy = Retry { max: 9, on: vec![RetryOn::Exit, RetryOn::Preempted] };
    assert!(!is_retried(Some(&policy), 0, stop, &exited(143)));
    let never_ran = Failure { code: "attempt.not_started".into(), detail: String::new() };
    assert!(is_retried(None, 0, stop, &Outcome::Failed(never_ran)), "an attempt that never ran lost no work");
    for code in [0, 143] {
        let (ended, effects) = stopping.apply(end(exited(code), false)).unwrap();
        assert_eq!(ended, Machine::Ended(JobState::Failed));
        assert!(effects.contains(&Effect::Finish { exit_code: Some(code), failure: Some(drained()) }));
    }
    let late = stopping.apply(end(Outcome::TimedOut { code: 143 }, false)).unwrap().0;
    assert_eq!(late, Machine::Ended(JobState::TimedOut));
    assert_eq!(Machine::Queued.apply(MachineEvent::Cancel).unwrap().0, Machine::Ended(JobState::Cancelled));
}

#[test]
fn a_preempted_job_without_another_attempt_fails_and_says_so() {
    for (for_job, room) in [
        (preemptor(), "a replica or a job of higher priority"),
        (None, "the boards that stay free for services"),
    ] {
        let failure = preempted(for_job);
        assert!(failure.detail.contains(room), "{}", failure.detail);
        let preempt = MachineEvent::Preempt { attempt: 1, for_job };
        let (stopping, effects) = Machine::Running { attempt: 1 }.apply(preempt).unwrap();
        assert_eq!(effects, [Effect::WakeNode]);
        let never_ran = Failure { code: "attempt.not_started".into(), detail: String::new() };
        for (outcome, exit_code) in [
            (Outcome::Exited { code: 0 }, Some(0)),
            (Outcome::Exited { code: 143 }, Some(143)),
            (Outcome::Failed(never_ran), None),
        ] {
            let end = MachineEvent::End { attempt: 1, outcome, again: false, rank: None };
            let (ended, effects) = stopping.apply(end).unwrap();
            assert_eq!(ended, Machine::Ended(JobState::Failed));
            let finish = Effect::Finish { exit_code, failure: Some(failure.clone()) };
            assert!(effects.contains(&finish), "{effects:?}");
        }
    }
}

#[test]
fn a_job_that_the_operator_or_a_budget_stops_ends_and_says_so() {
    for (event, cause, failure) in
        [(MachineEvent::Halt, StopCause::Halted, halted()), (MachineEvent::Spend, StopCause::Spent, spent())]
    {
        let failure = Some(failure);
        let (ended, effects) = Machine::Queued.apply(event.clone()).unwrap();
        assert_eq!(ended, Machine::Ended(JobState::Cancelled));
        let finish = Effect::Finish { exit_code: None, failure: failure.clone() };
        assert!(effects.contains(&finish), "{effects:?}");
        let (stopping, effects) = Machine::Running { attempt: 1 }.apply(event.clone()).unwrap();
        assert_eq!(effects, [Effect::WakeNode]);
        for again in [MachineEvent::Halt, MachineEvent::Spend, MachineEvent::Cancel] {
            assert_eq!(stopping.apply(again), Err(Rejected::NoChange), "a second stop changes nothing");
        }
        let outcome = Outcome::Exited { code: 143 };
        let bad = MachineEvent::End { attempt: 1, outcome, again: true, rank: None };
        for (end, exit_code) in [(exit(1, 0), Some(0)), (bad, Some(143)), (lost(), None)] {
            let (ended, effects) = stopping.apply(end).unwrap();
            assert_eq!(ended, Machine::Ended(JobState::Cancelled));
            let finish = Effect::Finish { exit_code, failure: failure.clone() };
            assert!(effects.contains(&finish), "{effects:?}");
        }
        let preempted =
            Machine::Stopping { attempt: 1, cause: StopCause::Preempted { for_job: preemptor() } };
        let (stopping, effects) = preempted.apply(event.clone()).unwrap();
        assert_eq!((stopping, effects), (Machine::Stopping { attempt: 1, cause }, vec![]));
        let ended = Machine::Ended(JobState::Succeeded);
        assert_eq!(ended.apply(event), Err(Rejected::Ended));
    }
}

#[test]
fn a_job_that_stops_for_standing_idle_says_so() {
    let idle =
        Machine::Running { attempt: 1 }.apply(MachineEvent::Idle { attempt: 1, percent: 3, for_s: 3_600 });
    let (stopping, effects) = idle.unwrap();
    assert_eq!(effects, [Effect::WakeNode]);
    for (event, code) in [(exit(1, 143), Some(143)), (exit(1, 0), Some(0)), (lost(), None)] {
        let (ended, effects) = stopping.apply(event).unwrap();
        assert_eq!(ended, Machine::Ended(JobState::Cancelled));
        let detail = "Stopped when idle: GPU utilization was 3 % for 60 minutes.".to_owned();
        let failure = Some(Failure { code: "job.idle".to_owned(), detail });
        assert!(effects.contains(&Effect::Finish { exit_code: code, failure }), "{effects:?}");
    }
    let older = stopping.apply(MachineEvent::Idle { attempt: 2, percent: 3, for_s: 60 });
    assert_eq!(older, Err(Rejected::OldAttempt { reported: 2, current: 1 }));
}

#[test]
fn the_failure_of_a_rank_names_it_once() {
    let running = Machine::Running { attempt: 1 };
    let failure = |outcome, rank| {
        let event = MachineEvent::End { attempt: 1, outcome, again: false, rank };
        let (_, effects) = running.apply(event).unwrap();
        let finish = effects.into_iter().find_map(|effect| match effect {
            Effect::Finish { failure, .. } => failure,
            _ => None,
        });
        finish.unwrap()
    };
    let failed = |detail: &str| Outcome::Failed(Failure { code: "x".into(), detail: detail.into() });
    for (outcome, rank, detail) in [
        (Outcome::Exited { code: 7 }, None, "The process ended with exit code 7."),
        (Outcome::Exited { code: 7 }, Some(1), "Rank 1: The process ended with exit code 7."),
        (failed("It is lost."), Some(0), "Rank 0: It is lost."),
        (failed("Rank 1 does not reach rank 2."), Some(1), "Rank 1 does not reach rank 2."),
        (failed("Rank 1 does not reach rank 2."), Some(2), "Rank 2: Rank 1 does not reach rank 2."),
    ] {
        let failure = failure(outcome, rank);
        assert_eq!(failure.detail, detail);
        assert_eq!((0..20).find(|rank| is_of_rank(&failure, *rank)), rank, "{detail}");
    }
}

fn lost() -> MachineEvent {
    let failure = Failure { code: "attempt.unknown_outcome".into(), detail: String::new() };
    MachineEvent::End { attempt: 1, outcome: Outcome::Failed(failure), again: true, rank: None }
}

#[test]
fn an_older_attempt_changes_nothing() {
    let machine = Machine::Running { attempt: 2 };
    assert_eq!(machine.apply(exit(1, 0)), Err(Rejected::OldAttempt { reported: 1, current: 2 }));
}

fn any_event() -> impl Strategy<Value = MachineEvent> {
    (0u32..3, 0i32..3, 0u8..13).prop_map(|(attempt, code, kind)| match kind {
        6 => MachineEvent::Preempt { attempt, for_job: preemptor() },
        8 => MachineEvent::RankFailed { attempt },
        9 => MachineEvent::Idle { attempt, percent: 7, for_s: 600 },
        11 => MachineEvent::Halt,
        12 => MachineEvent::Spend,
        10 => MachineEvent::Drain { attempt, again: code == 1, grace_s: 30 },
        7 => MachineEvent::Orphan { failure: Failure { code: "x".into(), detail: String::new() } },
        0 => MachineEvent::Assign { attempt },
        1 => MachineEvent::Prepare { attempt },
        2 => MachineEvent::Start { attempt },
        3 => MachineEvent::Cancel,
        4 => exit(attempt, code),
        _ => MachineEvent::End {
            attempt,
            outcome: Outcome::Failed(Failure { code: "x".into(), detail: String::new() }),
            again: code == 1,
            rank: None,
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
