//! Emptying a node: what runs there may end until a deadline, then it is told to go.
//!
//! Must not stop anything: it says who is to be stopped now, and whether the node is empty.

use berth_types::jobs::{JobState, Retry, RetryOn};
use berth_types::time::Timestamp;

/// An attempt that is not closed yet on the node that is emptied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAttempt<Id> {
    pub job: Id,
    /// The number of this attempt, and of the job's latest.
    pub attempt: u32,
    pub latest: u32,
    /// The job's.
    pub state: JobState,
}

/// The next action of a drain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due<Id> {
    /// Attempts that are told to stop, each with its number.
    pub stop: Vec<(Id, u32)>,
    /// Nothing is left on the node: it may be switched off.
    pub empty: bool,
}

/// Looks at a drain. Without a deadline everything may run to its own end. Said again as long as it is
/// so: whoever acts on it may fail and look again.
pub fn decide<Id: Copy>(
    deadline_at: Option<Timestamp>,
    now: Timestamp,
    residents: &[NodeAttempt<Id>],
) -> Due<Id> {
    let late = deadline_at.is_some_and(|at| at <= now);
    let goes = |r: &&NodeAttempt<Id>| {
        let runs = matches!(r.state, JobState::Assigned | JobState::Starting | JobState::Running);
        late && runs && r.attempt == r.latest
    };
    let stop = residents.iter().filter(goes).map(|r| (r.job, r.attempt)).collect();
    Due { stop, empty: residents.is_empty() }
}

/// True if a job that is told to leave waits for another place: its policy tries it again after the loss
/// of its node or after preemption, or it has none and may be preempted. Others end. How often it was
/// tried does not matter, since this is no try of its own.
pub fn waits_again(preemptible: bool, policy: Option<&Retry>) -> bool {
    match policy {
        None => preemptible,
        Some(policy) => {
            policy.on.contains(&RetryOn::NodeLost) || (preemptible && policy.on.contains(&RetryOn::Preempted))
        }
    }
}

/// Seconds that a job gets between the signal and its end: what it asked for, but no more than the drain
/// gives; 0 when neither says.
pub fn grace_s(own: Option<u32>, given: Option<u32>) -> u32 {
    match (own, given) {
        (Some(own), Some(given)) => own.min(given),
        (own, given) => own.or(given).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(0).plus_seconds(seconds)
    }

    fn resident(job: u32, state: JobState) -> NodeAttempt<u32> {
        NodeAttempt { job, attempt: 1, latest: 1, state }
    }

    #[test]
    fn what_runs_may_end_until_the_deadline() {
        let all: Vec<NodeAttempt<u32>> = (0..).zip(JobState::ALL).map(|(n, s)| resident(n, s)).collect();
        for (deadline, now) in [(None, 1_000), (Some(60), 59)] {
            let due = decide(deadline.map(at), at(now), &all);
            assert_eq!((due.stop, due.empty), (vec![], false), "{deadline:?}");
        }
        // Assigned, starting and running; what stops already is left to it.
        let due = decide(Some(at(60)), at(60), &all);
        assert_eq!((due.stop, due.empty), (vec![(1, 1), (2, 1), (3, 1)], false));
        let older = NodeAttempt { latest: 2, ..resident(7, JobState::Running) };
        assert!(decide(Some(at(0)), at(60), &[older]).stop.is_empty(), "it runs elsewhere by now");
    }

    #[test]
    fn who_leaves_waits_again_or_ends() {
        let policy = |max, on: &[RetryOn]| Retry { max, on: on.to_vec() };
        assert!(waits_again(true, None) && !waits_again(false, None));
        let preempted = policy(0, &[RetryOn::Preempted]);
        assert!(waits_again(true, Some(&preempted)) && !waits_again(false, Some(&preempted)));
        assert!(!waits_again(true, Some(&policy(3, &[RetryOn::Exit]))));
        assert!(waits_again(false, Some(&policy(0, &[RetryOn::NodeLost]))), "it does not count as a try");
    }

    #[test]
    fn a_grace_is_the_shorter_of_both() {
        let all =
            [(None, None), (Some(300), None), (None, Some(30)), (Some(300), Some(30)), (Some(5), Some(30))];
        assert_eq!(all.map(|(own, given)| grace_s(own, given)), [0, 300, 30, 30, 5]);
    }

    proptest! {
        #[test]
        fn a_node_is_empty_only_without_residents_and_nobody_is_stopped_early(
            states in prop::collection::vec(0usize..9, 0..12), deadline in prop::option::of(0i64..100), now in 0i64..100,
        ) {
            let all: Vec<NodeAttempt<u32>> =
                (0..).zip(states).map(|(n, s)| resident(n, JobState::ALL[s])).collect();
            let due = decide(deadline.map(at), at(now), &all);
            prop_assert_eq!(due.empty, all.is_empty());
            if deadline.is_none_or(|d| d > now) {
                prop_assert!(due.stop.is_empty());
            }
            let ended = |job: u32| all.iter().any(|r| r.job == job && r.state.ended());
            prop_assert!(due.stop.iter().all(|(job, _)| !ended(*job)));
        }
    }
}
