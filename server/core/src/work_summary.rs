//! The summary of open jobs for the operators' overview.

use berth_types::jobs::{JobState, Priority};
use berth_types::overview::{QueueLength, WorkSummary};
use berth_types::time::Timestamp;

fn count(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

/// The priority with a rank of the queue.
fn priority(rank: i64) -> Priority {
    let all = [Priority::Low, Priority::Normal, Priority::High];
    all.into_iter().find(|priority| priority.rank() >= rank).unwrap_or(Priority::High)
}

/// The summary of counted jobs (state, jobs, devices) and of the counted queue (rank, jobs, oldest).
#[must_use]
pub fn work_summary(open: &[(JobState, i64, i64)], queue: Vec<(i64, i64, Timestamp)>) -> WorkSummary {
    let running = || open.iter().filter(|(state, ..)| *state != JobState::Queued && !state.ended());
    let length = |(rank, jobs, oldest_at): (i64, i64, Timestamp)| QueueLength {
        priority: priority(rank),
        jobs: count(jobs),
        oldest_at,
    };
    let queue: Vec<QueueLength> = queue.into_iter().map(length).collect();
    WorkSummary {
        running_jobs: running().map(|(_, jobs, _)| count(*jobs)).sum(),
        running_devices: running().map(|(.., devices)| count(*devices)).sum(),
        queued_jobs: queue.iter().map(|one| one.jobs).sum(),
        oldest_queued_at: queue.iter().map(|one| one.oldest_at).min(),
        queue,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_with_devices_and_the_queue_are_summed() {
        let at = Timestamp::from_micros;
        let open = [
            (JobState::Queued, 3, 40),
            (JobState::Starting, 1, 2),
            (JobState::Running, 2, 9),
            (JobState::Stopping, 1, 1),
        ];
        let found = work_summary(&open, vec![(2, 1, at(70)), (1, 2, at(50))]);
        assert_eq!((found.running_jobs, found.running_devices, found.queued_jobs), (4, 12, 3));
        assert_eq!(found.oldest_queued_at, Some(at(50)));
        let classes: Vec<_> = found.queue.iter().map(|one| (one.priority, one.jobs)).collect();
        assert_eq!(classes, [(Priority::High, 1), (Priority::Normal, 2)]);
        assert_eq!(work_summary(&[], Vec::new()).oldest_queued_at, None);
    }
}
