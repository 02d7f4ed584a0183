//! The evidence of an attempt for the portal: the life of its first process by the records of its start and end and
//! by `/proc`, apart from the meter of the shim.

use berth_clearing::Cleared;
use berth_proto::{DeviceLoss, Evidence, MemoryClearing};

use super::directory::Attempt;

/// The evidence beside the meter. `None`: the life of the process is unknown.
pub(super) fn evidence(attempt: &Attempt) -> Option<Evidence> {
    let process_ms = match (&attempt.start, &attempt.exit, &attempt.record.failure) {
        (Some(start), Some(exit), _) => (exit.boottime_ms? - start.boottime_ms).max(0),
        (Some(_), None, None) => attempt.age_ms(),
        // Without a recorded end the process counts up to its last observation.
        (Some(_), None, Some(_)) => Some(attempt.tally.process_ms).filter(|ms| *ms > 0)?,
        // The record was lost.
        (None, _, Some((code, _))) if code == "attempt.unknown_outcome" => return None,
        (None, ..) => 0,
    };
    let tally = &attempt.tally;
    let losses = attempt.start.as_ref().map_or_else(Vec::new, |start| {
        let age = |at_ms: i64| (at_ms - start.boottime_ms).max(0);
        let ages = |(from, until): &(i64, i64)| DeviceLoss { from_ms: age(*from), until_ms: age(*until) };
        tally.lost.iter().map(ages).collect()
    });
    Some(Evidence {
        losses,
        process_ms,
        device_ms: tally.device_ms,
        lost_ms: tally.lost_ms,
        busy_ms: tally.busy_ms,
        memory_clearing: attempt.record.cleared.map(memory_clearing),
    })
}

/// The proof of a clearing, for the portal.
const fn memory_clearing(cleared: Cleared) -> MemoryClearing {
    let Cleared { cleared_bytes, total_bytes, samples, took_ms } = cleared;
    MemoryClearing { cleared_bytes, total_bytes, samples, took_ms }
}

#[cfg(test)]
mod tests {
    use berth_proto::Assignment;

    use super::super::tally::{DeviceObservation, EvidenceTally, TALLY};
    use super::*;
    use berth_shim::model::AttemptKey;
    use berth_shim::{CommandExit, CommandStart};
    use berth_system::clock::{boot_id, boottime_ms};

    fn attempt(root: &std::path::Path) -> Attempt {
        let key = AttemptKey { job: "job".to_owned(), number: 1 };
        let assignment = Assignment { limit_ms: 600_000, ..Assignment::default() };
        Attempt::begin(root, &key, &assignment).unwrap()
    }

    /// The start of this process, moved back by this time.
    fn started(ago_ms: i64) -> CommandStart {
        let pid = std::process::id().cast_signed();
        CommandStart {
            pid,
            start_ticks: 0,
            boot_id: boot_id().to_owned(),
            boottime_ms: boottime_ms() - ago_ms,
        }
    }

    #[test]
    fn a_process_counts_while_it_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let mut attempt = attempt(dir.path());
        attempt.record.cleared = Some(Cleared { cleared_bytes: 5, total_bytes: 6, samples: 7, took_ms: 8 });
        let before = evidence(&attempt).unwrap();
        let clearing = MemoryClearing { cleared_bytes: 5, total_bytes: 6, samples: 7, took_ms: 8 };
        assert_eq!((before.process_ms, before.memory_clearing), (0, Some(clearing)), "before it began");
        attempt.start = Some(started(10));
        attempt.observe_process();
        assert!(attempt.tally.process_ms >= 10 && !attempt.dir.join(TALLY).exists(), "it is short so far");
        attempt.start = Some(started(7_000));
        attempt.observe_process();
        assert!((7_000..60_000).contains(&attempt.tally.process_ms), "{:?}", attempt.tally);
        assert!(attempt.metered_ms() >= attempt.tally.process_ms);
        attempt.observe_devices(1_000, DeviceObservation::Lost);
        attempt.observe_devices(2_000, DeviceObservation::Lost);
        // A process with the same number and another start is a different one.
        attempt.start = Some(CommandStart { start_ticks: 1, ..started(90_000) });
        attempt.observe_devices(3_000, DeviceObservation::Lost);
        let sent = evidence(&attempt).unwrap();
        assert_eq!((sent.process_ms, sent.lost_ms), (attempt.tally.process_ms, 1_000), "as last seen");
        assert_eq!(attempt.metered_ms(), sent.process_ms, "and so stands the meter");
        // The time of a loss is the age of the process, independent of the host's clock.
        let began = boottime_ms() - 7_000;
        attempt.start = Some(CommandStart { boottime_ms: began, ..started(7_000) });
        attempt.tally.lost = vec![(began + 1_000, began + 2_000)];
        let losses = evidence(&attempt).unwrap().losses;
        assert_eq!(losses, [DeviceLoss { from_ms: 1_000, until_ms: 2_000 }]);
        // A restarted daemon goes on with the saved tally.
        let kept: EvidenceTally = berth_system::files::find_json(&attempt.dir.join(TALLY)).unwrap();
        assert_eq!(kept.process_ms, sent.process_ms);
    }

    #[test]
    fn the_end_is_as_it_was_recorded_or_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let mut attempt = attempt(dir.path());
        attempt.start = Some(CommandStart { boottime_ms: 10_000, ..started(0) });
        let exit = |boottime_ms: Option<i64>| {
            let (code, metered_ms, log_bytes) = (0, 4_900, 0);
            Some(CommandExit {
                code,
                timed_out: false,
                metered_ms,
                log_bytes,
                log_full: false,
                boottime_ms,
                failure: None,
            })
        };
        attempt.exit = exit(Some(15_000));
        assert_eq!(evidence(&attempt).map(|e| e.process_ms), Some(5_000));
        attempt.exit = exit(None);
        assert_eq!(evidence(&attempt), None, "a shim of an older worker");
        attempt.exit = None;
        attempt.record.failure = Some(("attempt.unknown_outcome".to_owned(), String::new()));
        assert_eq!(evidence(&attempt), None, "never seen alive");
        attempt.tally.process_ms = 3_000;
        assert_eq!(evidence(&attempt).map(|e| e.process_ms), Some(3_000), "for as long as it was seen");
        attempt.start = None;
        assert_eq!(evidence(&attempt), None, "the record is lost");
    }
}
