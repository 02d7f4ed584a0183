//! How long an attempt's first process existed, by the record of its start and end and by `/proc`, and
//! what the portal is told of it as evidence.
//!
//! The meter is the shim's; this stands beside it and must not be made from it.

use berth_proto::{Evidence, Lost};

use crate::agent::Seen;
use crate::attempts::Attempt;
use crate::evidence::Look;
use crate::files::put_json;
use crate::shim;

/// What was seen of the attempt so far, for a daemon that starts again.
pub const EVIDENCE: &str = "evidence.json";

/// What is known of a process that is younger is not kept: most short ones have ended before it could be of use.
const KEPT_FROM_MS: i64 = 1_000;

impl Attempt {
    /// Age of the process; `None` when it is not there.
    fn alive_ms(&self) -> Option<i64> {
        let start = self.start.as_ref()?;
        shim::exists(start).then(|| (shim::boottime_ms() - start.boottime_ms).max(0))
    }

    /// Age of a process whose end is not recorded: now, or when it was last seen.
    pub fn age_ms(&self) -> i64 {
        self.alive_ms().unwrap_or(0).max(self.tally.process_ms)
    }

    /// Notes that the process is there, and keeps what is known. Called all the time while it runs.
    pub fn observe(&mut self) {
        if !matches!(self.seen(), Seen::Running { .. }) {
            return;
        }
        self.tally.process_ms = self.age_ms();
        if self.tally.process_ms < KEPT_FROM_MS {
            return;
        }
        // Not synced: after a power cut it says less, which is never held against anybody.
        if let Err(error) = put_json(&self.dir.join(EVIDENCE), &self.tally, false) {
            tracing::warn!(dir = %self.dir.display(), %error, "evidence cannot be kept");
        }
    }

    /// Takes in what a look at its devices found. One that is told after its process has gone is about
    /// devices that may be cleaned already.
    pub fn handle_look(&mut self, at_ms: i64, look: Look) {
        if matches!(self.seen(), Seen::Running { .. }) && self.alive_ms().is_some() {
            self.tally.handle_reading(at_ms, look);
        }
    }

    /// What bears its meter out. `None` where how long the process existed is not known.
    pub fn evidence(&self) -> Option<Evidence> {
        let process_ms = match (&self.start, &self.exit, &self.record.failure) {
            (Some(start), Some(exit), _) => (exit.boottime_ms? - start.boottime_ms).max(0),
            (Some(_), None, None) => self.age_ms(),
            // Nobody saw its end; it existed for as long as it was seen.
            (Some(_), None, Some(_)) => Some(self.tally.process_ms).filter(|ms| *ms > 0)?,
            // The record itself was lost.
            (None, _, Some((code, _))) if code == "attempt.unknown_outcome" => return None,
            (None, ..) => 0,
        };
        let tally = &self.tally;
        let lost = self.start.as_ref().map_or_else(Vec::new, |start| {
            let age = |at_ms: i64| (at_ms - start.boottime_ms).max(0);
            let ages = |(from, until): &(i64, i64)| Lost { from_ms: age(*from), until_ms: age(*until) };
            tally.lost.iter().map(ages).collect()
        });
        Some(Evidence {
            lost,
            process_ms,
            device_ms: tally.device_ms,
            lost_ms: tally.lost_ms,
            busy_ms: tally.busy_ms,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Cleaning;
    use crate::attempts::Record;
    use crate::cgroups::Group;
    use crate::evidence::Tally;
    use crate::shim::{Exit, Start};

    fn attempt(dir: &std::path::Path) -> Attempt {
        Attempt {
            dir: dir.to_owned(),
            record: Record {
                job: "job".to_owned(),
                number: 1,
                devices: vec![],
                limit_ms: 600_000,
                failure: None,
                device_fault: None,
                stop_asked: false,
                clean: false,
                uid: None,
                group: Group::default(),
                organization: String::new(),
                keep: crate::keeping::Keep::default(),
                image: None,
                contained: false,
                secrets: None,
            },
            start: None,
            exit: None,
            cleaning: Cleaning::Due,
            unclean: None,
            tally: Tally::default(),
            progress: String::new(),
        }
    }

    /// The start of this very process, so long ago.
    fn started(ago_ms: i64) -> Start {
        let pid = std::process::id().cast_signed();
        Start {
            pid,
            start_ticks: 0,
            boot_id: shim::boot_id().to_owned(),
            boottime_ms: shim::boottime_ms() - ago_ms,
        }
    }

    #[test]
    fn a_process_counts_while_it_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let mut attempt = attempt(dir.path());
        assert_eq!(attempt.evidence().map(|e| e.process_ms), Some(0), "before it began");
        attempt.start = Some(started(10));
        attempt.observe();
        assert!(attempt.tally.process_ms >= 10 && !dir.path().join(EVIDENCE).exists(), "it is short so far");
        attempt.start = Some(started(7_000));
        attempt.observe();
        assert!((7_000..60_000).contains(&attempt.tally.process_ms), "{:?}", attempt.tally);
        assert!(attempt.metered_ms() >= attempt.tally.process_ms);
        attempt.handle_look(1_000, Look::Lost);
        attempt.handle_look(2_000, Look::Lost);
        // A process of the same number that began at another time is another one.
        attempt.start = Some(Start { start_ticks: 1, ..started(90_000) });
        attempt.handle_look(3_000, Look::Lost);
        let told = attempt.evidence().unwrap();
        assert_eq!((told.process_ms, told.lost_ms), (attempt.tally.process_ms, 1_000), "as last seen");
        assert_eq!(attempt.metered_ms(), told.process_ms, "and so stands the meter");
        // When it was lost is told by its age, whatever the clock of the host says.
        let began = shim::boottime_ms() - 7_000;
        attempt.start = Some(Start { boottime_ms: began, ..started(7_000) });
        attempt.tally.lost = vec![(began + 1_000, began + 2_000)];
        let lost = attempt.evidence().unwrap().lost;
        assert_eq!(lost, [Lost { from_ms: 1_000, until_ms: 2_000 }]);
        // A daemon that starts again goes on from what was kept.
        let kept: Tally = crate::files::find_json(&dir.path().join(EVIDENCE)).unwrap();
        assert_eq!(kept.process_ms, told.process_ms);
    }

    #[test]
    fn the_end_is_as_it_was_recorded_or_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let mut attempt = attempt(dir.path());
        attempt.start = Some(Start { boottime_ms: 10_000, ..started(0) });
        let exit = |boottime_ms: Option<i64>| {
            let (code, metered_ms, log_bytes) = (0, 4_900, 0);
            Some(Exit {
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
        assert_eq!(attempt.evidence().map(|e| e.process_ms), Some(5_000));
        attempt.exit = exit(None);
        assert_eq!(attempt.evidence(), None, "a shim of an older worker");
        attempt.exit = None;
        attempt.record.failure = Some(("attempt.unknown_outcome".to_owned(), String::new()));
        assert_eq!(attempt.evidence(), None, "never seen alive");
        attempt.tally.process_ms = 3_000;
        assert_eq!(attempt.evidence().map(|e| e.process_ms), Some(3_000), "for as long as it was seen");
        attempt.start = None;
        assert_eq!(attempt.evidence(), None, "the record is lost");
    }
}
