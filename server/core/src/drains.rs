//! The rules of a drain: jobs on the node may end until a deadline, and the rest is stopped then.
//!
//! The module decides only: its callers stop the attempts.

use berth_types::jobs::{JobState, Retry, RetryOn};
use berth_types::time::Timestamp;

/// An open attempt on a draining node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAttempt<Id> {
    pub job: Id,
    pub attempt: u32,
    /// The number of the job's latest attempt.
    pub latest: u32,
    /// The state of the job.
    pub state: JobState,
}

/// The next actions of a drain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainActions<Id> {
    /// Attempts to stop now: job and number.
    pub stop: Vec<(Id, u32)>,
    /// The node has no open attempt: its host may be switched off.
    pub empty: bool,
}

/// Decides the next actions of a drain. Without a deadline every job may run to its own end. The same state
/// gives the same actions again, so a failed action is repeated by the next call.
pub fn decide<Id: Copy>(
    deadline_at: Option<Timestamp>,
    now: Timestamp,
    attempts: &[NodeAttempt<Id>],
) -> DrainActions<Id> {
    let late = deadline_at.is_some_and(|at| at <= now);
    let has_to_stop = |a: &&NodeAttempt<Id>| {
        let runs = matches!(a.state, JobState::Assigned | JobState::Starting | JobState::Running);
        late && runs && a.attempt == a.latest
    };
    let stop = attempts.iter().filter(has_to_stop).map(|a| (a.job, a.attempt)).collect();
    DrainActions { stop, empty: attempts.is_empty() }
}

/// True if a job goes back to the queue after its stop by a drain. Its retry policy has to name lost nodes,
/// or preemption for a preemptible job. Without a policy only preemptible jobs go back. The number of earlier
/// retries does not matter, since a drain does not count as a retry.
pub fn is_requeued(preemptible: bool, policy: Option<&Retry>) -> bool {
    match policy {
        None => preemptible,
        Some(policy) => {
            policy.on.contains(&RetryOn::NodeLost) || (preemptible && policy.on.contains(&RetryOn::Preempted))
        }
    }
}

/// The grace in seconds: the shorter of the job's and the drain's; 0 without either.
pub fn grace_s(of_job: Option<u32>, of_drain: Option<u32>) -> u32 {
    match (of_job, of_drain) {
        (Some(job), Some(drain)) => job.min(drain),
        (job, drain) => job.or(drain).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(0).plus_seconds(seconds)
    }

    fn attempt(job: u32, state: JobState) -> NodeAttempt<u32> {
        NodeAttempt { job, attempt: 1, latest: 1, state }
    }

    #[test]
    fn jobs_may_end_until_the_deadline() {
        let all: Vec<NodeAttempt<u32>> = (0..).zip(JobState::ALL).map(|(n, s)| attempt(n, s)).collect();
        for (deadline, now) in [(None, 1_000), (Some(60), 59)] {
            let actions = decide(deadline.map(at), at(now), &all);
            assert_eq!((actions.stop, actions.empty), (vec![], false), "{deadline:?}");
        }
        // Assigned, starting and running jobs are stopped; a stopping job needs no second stop.
        let actions = decide(Some(at(60)), at(60), &all);
        assert_eq!((actions.stop, actions.empty), (vec![(1, 1), (2, 1), (3, 1)], false));
        let older = NodeAttempt { latest: 2, ..attempt(7, JobState::Running) };
        assert!(decide(Some(at(0)), at(60), &[older]).stop.is_empty(), "it runs elsewhere by now");
    }

    #[test]
    fn a_drained_job_is_requeued_by_its_policy_or_ends() {
        let policy = |max, on: &[RetryOn]| Retry { max, on: on.to_vec() };
        assert!(is_requeued(true, None) && !is_requeued(false, None));
        let preempted = policy(0, &[RetryOn::Preempted]);
        assert!(is_requeued(true, Some(&preempted)) && !is_requeued(false, Some(&preempted)));
        assert!(!is_requeued(true, Some(&policy(3, &[RetryOn::Exit]))));
        assert!(is_requeued(false, Some(&policy(0, &[RetryOn::NodeLost]))), "it does not count as a try");
    }

    #[test]
    fn a_grace_is_the_shorter_of_both() {
        let all =
            [(None, None), (Some(300), None), (None, Some(30)), (Some(300), Some(30)), (Some(5), Some(30))];
        assert_eq!(all.map(|(of_job, of_drain)| grace_s(of_job, of_drain)), [0, 300, 30, 30, 5]);
    }

    proptest! {
        #[test]
        fn a_node_is_empty_only_without_attempts_and_no_job_is_stopped_early(
            states in prop::collection::vec(0usize..9, 0..12), deadline in prop::option::of(0i64..100), now in 0i64..100,
        ) {
            let all: Vec<NodeAttempt<u32>> =
                (0..).zip(states).map(|(n, s)| attempt(n, JobState::ALL[s])).collect();
            let actions = decide(deadline.map(at), at(now), &all);
            prop_assert_eq!(actions.empty, all.is_empty());
            if deadline.is_none_or(|d| d > now) {
                prop_assert!(actions.stop.is_empty());
            }
            let ended = |job: u32| all.iter().any(|r| r.job == job && r.state.ended());
            prop_assert!(actions.stop.iter().all(|(job, _)| !ended(*job)));
        }
    }
}
