//! Detection of stuck work: jobs and attempts that need a person, each with its cause and remedy.
//!
//! This module must not act on a finding. The operator decides.

use berth_types::jobs::JobState;
use berth_types::operations::{StuckCause, StuckHelp};
use berth_types::time::Timestamp;

/// The times in seconds after which work counts as stuck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StuckThresholds {
    /// From the assignment of devices to the running process.
    pub start_s: i64,
    /// From the end of the grace to the end of the process.
    pub stop_s: i64,
    /// From the last message of a node without a session.
    pub silent_s: i64,
}

/// A job with assigned devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedJob {
    pub state: JobState,
    /// The begin of this state.
    pub since: Timestamp,
    /// Seconds from the stop signal to SIGKILL.
    pub grace_s: i64,
    /// The last message of the node with the longest silence. `None` if all nodes have a session.
    pub silent_since: Option<Timestamp>,
}

/// A rank of an open attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenRank {
    /// The job has ended, is queued again or has a later attempt.
    pub over: bool,
    /// The portal knows the end of its process.
    pub ended: bool,
    /// The worker has proved its devices clean.
    pub clean: bool,
    /// Its node has a session.
    pub connected: bool,
    /// The worker could not prove all its devices clean.
    pub unclean: bool,
    /// The outcome of its process is unknown.
    pub unknown: bool,
    pub since: Timestamp,
}

/// A finding of stuck work, with its cause, its begin and the remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StuckFinding {
    pub cause: StuckCause,
    pub since: Timestamp,
    pub help: StuckHelp,
}

fn has_passed(since: Timestamp, seconds: i64, now: Timestamp) -> bool {
    now.millis_since(since) > seconds.saturating_mul(1_000)
}

/// The finding of a stuck job with devices. A silent node takes precedence over other causes.
pub fn find_stuck_job(
    placed: &PlacedJob,
    thresholds: &StuckThresholds,
    now: Timestamp,
) -> Option<StuckFinding> {
    let has_devices = matches!(
        placed.state,
        JobState::Assigned | JobState::Starting | JobState::Running | JobState::Stopping
    );
    if let Some(since) =
        placed.silent_since.filter(|at| has_devices && has_passed(*at, thresholds.silent_s, now))
    {
        return Some(StuckFinding { cause: StuckCause::NodeSilent, since, help: StuckHelp::SeeNode });
    }
    let found = |cause, help| Some(StuckFinding { cause, since: placed.since, help });
    match placed.state {
        JobState::Assigned | JobState::Starting if has_passed(placed.since, thresholds.start_s, now) => {
            found(StuckCause::NeverStarts, StuckHelp::StopJob)
        }
        JobState::Stopping if has_passed(placed.since, placed.grace_s + thresholds.stop_s, now) => {
            found(StuckCause::NeverStops, StuckHelp::DrainNode)
        }
        _ => None,
    }
}

/// The finding of a rank with unclean devices, or of a rank that its node does not close after its job has
/// gone on.
pub fn find_stuck_rank(
    open: &OpenRank,
    thresholds: &StuckThresholds,
    now: Timestamp,
) -> Option<StuckFinding> {
    if open.unclean {
        return Some(StuckFinding {
            cause: StuckCause::SliceUnclean,
            since: open.since,
            help: StuckHelp::ResetBoard,
        });
    }
    let is_late = has_passed(open.since, thresholds.silent_s, now);
    let found = |cause| Some(StuckFinding { cause, since: open.since, help: StuckHelp::SeeNode });
    match (open.over, open.connected) {
        (true, false) if is_late => found(StuckCause::AttemptWithoutNode),
        (true, true) if is_late && open.unknown && !open.clean => found(StuckCause::UnknownOutcome),
        // Only the rest of the log is missing.
        (true, true) if is_late && open.ended && open.clean => found(StuckCause::LogMissing),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THRESHOLDS: StuckThresholds = StuckThresholds { start_s: 600, stop_s: 60, silent_s: 120 };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(0).plus_seconds(seconds)
    }

    fn placed(state: JobState, silent_since: Option<i64>) -> PlacedJob {
        PlacedJob { state, since: at(0), grace_s: 30, silent_since: silent_since.map(at) }
    }

    #[test]
    fn a_job_is_stuck_after_its_time_and_not_before() {
        use JobState::*;
        for (state, silent, now, cause) in [
            (Assigned, None, 600, None),
            (Assigned, None, 601, Some(StuckCause::NeverStarts)),
            (Starting, None, 601, Some(StuckCause::NeverStarts)),
            (Stopping, None, 90, None),
            (Stopping, None, 91, Some(StuckCause::NeverStops)),
            (Running, None, 1_000_000, None),
            (Running, Some(10), 130, None),
            (Running, Some(10), 131, Some(StuckCause::NodeSilent)),
            // A silent node takes precedence.
            (Stopping, Some(10), 1_000, Some(StuckCause::NodeSilent)),
            (Queued, Some(10), 1_000, None),
            (Failed, Some(10), 1_000, None),
        ] {
            let found = find_stuck_job(&placed(state, silent), &THRESHOLDS, at(now));
            assert_eq!(found.map(|f| f.cause), cause, "{state:?} {silent:?} {now}");
        }
        let silent = find_stuck_job(&placed(Running, Some(10)), &THRESHOLDS, at(500)).unwrap();
        assert_eq!((silent.since, silent.help), (at(10), StuckHelp::SeeNode));
    }

    #[test]
    fn open_ranks_are_found() {
        let open = OpenRank {
            over: true,
            ended: true,
            clean: false,
            connected: true,
            unclean: false,
            unknown: false,
            since: at(0),
        };
        let found = |open: OpenRank, now| find_stuck_rank(&open, &THRESHOLDS, at(now)).map(|f| f.cause);
        assert_eq!(found(open, 9_000), None, "it is being cleaned up");
        assert_eq!(found(OpenRank { unclean: true, ..open }, 0), Some(StuckCause::SliceUnclean));
        let unclean = find_stuck_rank(&OpenRank { unclean: true, ..open }, &THRESHOLDS, at(0));
        assert_eq!(unclean.map(|f| f.help), Some(StuckHelp::ResetBoard), "no other board needs a drain");
        assert_eq!(found(OpenRank { connected: false, ..open }, 120), None);
        assert_eq!(found(OpenRank { connected: false, ..open }, 121), Some(StuckCause::AttemptWithoutNode));
        assert_eq!(found(OpenRank { clean: true, ..open }, 121), Some(StuckCause::LogMissing));
        let unknown = OpenRank { unknown: true, ..open };
        assert_eq!((found(unknown, 120), found(unknown, 121)), (None, Some(StuckCause::UnknownOutcome)));
        assert_eq!(found(OpenRank { clean: true, ..unknown }, 121), Some(StuckCause::LogMissing));
        assert_eq!(found(OpenRank { over: false, connected: false, ..open }, 9_000), None, "its job says so");
    }
}
