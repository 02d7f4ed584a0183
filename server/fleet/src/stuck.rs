//! Stuck work: jobs, slices and boards that wait for a person, and the remedy.
//!
//! Must not act: it names the cause and the action, and somebody decides.

use berth_types::jobs::JobState;
use berth_types::operations::{StuckCause, StuckHelp};
use berth_types::time::Timestamp;

/// Seconds after which something counts as stuck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Between a place and a running process.
    pub start_s: i64,
    /// Beyond its grace, while it stops.
    pub stop_s: i64,
    /// Since its node was heard.
    pub silent_s: i64,
}

/// A job that has a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    pub state: JobState,
    /// Since when it is in this state.
    pub since: Timestamp,
    /// Seconds that it gets to stop.
    pub grace_s: i64,
    /// The last message of the node that is silent longest; `None` when all of them speak.
    pub silent_since: Option<Timestamp>,
}

/// A rank of an attempt that is not closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Open {
    /// The job has ended, or waits for another attempt or is at one.
    pub over: bool,
    /// Its process is known to have ended.
    pub ended: bool,
    /// Its devices were proved clean.
    pub clean: bool,
    pub connected: bool,
    /// Something of it is held and could not be proved clean.
    pub unclean: bool,
    /// Nobody knows how its process ended.
    pub unknown: bool,
    pub since: Timestamp,
}

/// A finding: its cause, its begin and the remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    pub cause: StuckCause,
    pub since: Timestamp,
    pub help: StuckHelp,
}

fn beyond(since: Timestamp, seconds: i64, now: Timestamp) -> bool {
    now.millis_since(since) > seconds.saturating_mul(1_000)
}

/// Finds that a job with devices is stuck. A silent node is the cause of whatever else is late.
pub fn job(placed: &Placed, patience: &Patience, now: Timestamp) -> Option<Found> {
    let runs = matches!(
        placed.state,
        JobState::Assigned | JobState::Starting | JobState::Running | JobState::Stopping
    );
    if let Some(since) = placed.silent_since.filter(|at| runs && beyond(*at, patience.silent_s, now)) {
        return Some(Found { cause: StuckCause::NodeSilent, since, help: StuckHelp::SeeNode });
    }
    let found = |cause, help| Some(Found { cause, since: placed.since, help });
    match placed.state {
        JobState::Assigned | JobState::Starting if beyond(placed.since, patience.start_s, now) => {
            found(StuckCause::NeverStarts, StuckHelp::StopJob)
        }
        JobState::Stopping if beyond(placed.since, placed.grace_s + patience.stop_s, now) => {
            found(StuckCause::NeverStops, StuckHelp::DrainNode)
        }
        _ => None,
    }
}

/// Finds that a rank of an attempt is left over: its job has ended or moved on, and its node cannot close it.
pub fn attempt(open: &Open, patience: &Patience, now: Timestamp) -> Option<Found> {
    if open.unclean {
        return Some(Found {
            cause: StuckCause::SliceUnclean,
            since: open.since,
            help: StuckHelp::DrainNode,
        });
    }
    let late = beyond(open.since, patience.silent_s, now);
    let found = |cause| Some(Found { cause, since: open.since, help: StuckHelp::SeeNode });
    match (open.over, open.connected) {
        (true, false) if late => found(StuckCause::AttemptWithoutNode),
        (true, true) if late && open.unknown && !open.clean => found(StuckCause::UnknownOutcome),
        // Its end and its clean devices are known; what is missing is the rest of its log.
        (true, true) if late && open.ended && open.clean => found(StuckCause::LogMissing),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience { start_s: 600, stop_s: 60, silent_s: 120 };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(0).plus_seconds(seconds)
    }

    fn placed(state: JobState, silent_since: Option<i64>) -> Placed {
        Placed { state, since: at(0), grace_s: 30, silent_since: silent_since.map(at) }
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
            // Lateness on a silent node has that cause.
            (Stopping, Some(10), 1_000, Some(StuckCause::NodeSilent)),
            (Queued, Some(10), 1_000, None),
            (Failed, Some(10), 1_000, None),
        ] {
            let found = job(&placed(state, silent), &PATIENCE, at(now));
            assert_eq!(found.map(|f| f.cause), cause, "{state:?} {silent:?} {now}");
        }
        let silent = job(&placed(Running, Some(10)), &PATIENCE, at(500)).unwrap();
        assert_eq!((silent.since, silent.help), (at(10), StuckHelp::SeeNode));
    }

    #[test]
    fn what_is_left_of_attempts_is_told() {
        let open = Open {
            over: true,
            ended: true,
            clean: false,
            connected: true,
            unclean: false,
            unknown: false,
            since: at(0),
        };
        let found = |open: Open, now| attempt(&open, &PATIENCE, at(now)).map(|f| f.cause);
        assert_eq!(found(open, 9_000), None, "it is being cleaned up");
        assert_eq!(found(Open { unclean: true, ..open }, 0), Some(StuckCause::SliceUnclean));
        assert_eq!(found(Open { connected: false, ..open }, 120), None);
        assert_eq!(found(Open { connected: false, ..open }, 121), Some(StuckCause::AttemptWithoutNode));
        assert_eq!(found(Open { clean: true, ..open }, 121), Some(StuckCause::LogMissing));
        let unknown = Open { unknown: true, ..open };
        assert_eq!((found(unknown, 120), found(unknown, 121)), (None, Some(StuckCause::UnknownOutcome)));
        assert_eq!(found(Open { clean: true, ..unknown }, 121), Some(StuckCause::LogMissing));
        assert_eq!(found(Open { over: false, connected: false, ..open }, 9_000), None, "its job says so");
    }
}
