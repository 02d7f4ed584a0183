//! An attempt with its directory.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use berth_isolation::cgroups::AttemptCgroups;
use berth_job_files::outputs::OutputTask;
use berth_job_files::transfer::volumes_directory;
use berth_proto::Assignment;
use berth_shim::model::{AttemptKey, JobFailure, job_failure};
use berth_shim::{ATTEMPT_RECORD, CommandExit, CommandStart, Launch, ShimRecords, StopNotice};
use berth_system::clock::{boot_id, boottime_ms};
use berth_system::files::{find_json, put_json, put_new_json};
use berth_system::removal::remove_tree;
use nix::sys::signal::Signal;

use super::record::AttemptRecord;
use super::state::{AttemptState, CleaningState};
use super::tally::{DeviceObservation, EvidenceTally, TALLY};

/// The mark of a clean attempt that created no device.
pub(super) const CLEAN: &str = "clean.json";
/// The age of a process from which its evidence is saved: most shorter ones end before it is of use.
const SAVED_FROM_MS: i64 = 1_000;

/// An attempt.
#[derive(Debug, Clone)]
pub struct Attempt {
    pub dir: PathBuf,
    pub record: AttemptRecord,
    pub start: Option<CommandStart>,
    pub exit: Option<CommandExit>,
    pub cleaning: CleaningState,
    /// The reason why the last proof of cleanness failed.
    pub unclean: Option<String>,
    /// The observations of its process and devices.
    pub tally: EvidenceTally,
    /// The progress of its preparation, as a sentence.
    pub progress: String,
    /// The replica answered its last probes.
    pub ready: bool,
}

/// Attempts by key.
pub type AttemptMap = BTreeMap<AttemptKey, Attempt>;

/// The directory of an attempt.
pub fn directory(root: &Path, key: &AttemptKey) -> PathBuf {
    root.join(format!("{}-{}", key.job, key.number))
}

/// Creates an attempt's directory, for the worker's own user only.
fn make_directory(dir: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

impl Attempt {
    pub fn key(&self) -> AttemptKey {
        AttemptKey { job: self.record.job.clone(), number: self.record.number }
    }

    fn new(dir: PathBuf, record: AttemptRecord, tally: EvidenceTally) -> Self {
        Self {
            dir,
            record,
            start: None,
            exit: None,
            cleaning: CleaningState::Due,
            unclean: None,
            tally,
            progress: String::new(),
            ready: false,
        }
    }

    /// Saves the record for the first time.
    pub fn save_new(&self) -> io::Result<()> {
        // Created first, so one sync of the directory covers both names.
        berth_shim::create_record_file(&self.dir)?;
        put_new_json(&self.dir.join(ATTEMPT_RECORD), &self.record)
    }

    pub fn save(&self) -> io::Result<()> {
        match put_json(&self.dir.join(ATTEMPT_RECORD), &self.record, true) {
            // The directory could not be created when the attempt came.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_directory(&self.dir)?;
                put_json(&self.dir.join(ATTEMPT_RECORD), &self.record, true)
            }
            result => result,
        }
    }

    /// Creates the directory of a new attempt and saves its record.
    pub fn create(root: &Path, key: &AttemptKey, assignment: &Assignment) -> io::Result<Self> {
        let attempt = Self::begin(root, key, assignment)?;
        attempt.save_new()?;
        Ok(attempt)
    }

    /// Creates the directory of a new attempt. The caller saves the record before any report and any other step.
    pub fn begin(root: &Path, key: &AttemptKey, assignment: &Assignment) -> io::Result<Self> {
        let attempt = Self::from_assignment(root, key, assignment);
        make_directory(&attempt.dir)?;
        Ok(attempt)
    }

    /// A failed attempt whose record cannot be saved. It exists in memory only, and nothing of it is done. It is
    /// clean once its record can be saved.
    pub fn without_record(root: &Path, key: &AttemptKey, assignment: &Assignment, why: &str) -> Self {
        let mut attempt = Self::from_assignment(root, key, assignment);
        let detail = format!("The worker cannot write the files of the job: {why}.");
        attempt.record.failure = Some(job_failure("worker.io", detail));
        attempt
    }

    fn from_assignment(root: &Path, key: &AttemptKey, assignment: &Assignment) -> Self {
        let record = AttemptRecord::new(key, assignment);
        Self::new(directory(root, key), record, EvidenceTally::default())
    }

    /// All attempts that earlier daemons left in `root`.
    pub fn load_all(root: &Path) -> io::Result<Vec<Self>> {
        let mut out = Vec::new();
        for entry in std::fs::read_dir(root)? {
            let dir = entry?.path();
            let Some(mut record) = find_json::<AttemptRecord>(&dir.join(ATTEMPT_RECORD)) else { continue };
            if record.group == AttemptCgroups::default() {
                let launch = find_json::<Launch>(&dir.join(berth_shim::LAUNCH));
                record.group = launch.map(|launch| launch.limits.group).unwrap_or_default();
            }
            record.clean |= dir.join(CLEAN).exists();
            let tally = find_json(&dir.join(TALLY)).unwrap_or_default();
            let mut attempt = Self::new(dir, record, tally);
            attempt.refresh();
            // The signal may not have reached the shim, so it is sent again.
            attempt.record.stop_asked = false;
            if attempt.record.clean {
                attempt.cleaning = CleaningState::Done;
            } else if attempt.exit.is_none() && attempt.record.failure.is_none() {
                attempt.adopt();
            }
            out.push(attempt);
        }
        Ok(out)
    }

    /// Reads the records of the shim.
    pub fn refresh(&mut self) {
        if self.exit.is_none() {
            let known = ShimRecords::read(&self.dir);
            self.start = self.start.take().or(known.start);
            self.exit = known.exit;
        }
    }

    /// Determines the outcome of an attempt without a recorded end. An attempt with a living shim goes on.
    pub fn adopt(&mut self) {
        // Held during the decision: a shim that comes late finds the failure and starts nothing.
        let lock = berth_shim::try_lock(&self.dir);
        if let Err(error) = &lock {
            // An unreadable disk hides the lock of a shim, but not its process.
            let gone = self.start.as_ref().is_some_and(|start| !start.is_running());
            if error.kind() == io::ErrorKind::WouldBlock || !gone {
                return;
            }
        }
        // The shim may have ended since the last read.
        self.refresh();
        if self.exit.is_some() {
            return;
        }
        let failure = if self.start.is_none() {
            job_failure(
                "attempt.not_started",
                "The worker stopped before the start of the job. Nothing was charged.",
            )
        } else {
            job_failure(
                "attempt.unknown_outcome",
                "The host or its worker stopped during the run, and the end of the job is unknown. The job was not started again.",
            )
        };
        self.fail(failure);
    }

    /// Records a failure.
    pub fn fail(&mut self, failure: JobFailure) {
        self.record.failure = Some(failure);
        if let Err(error) = self.save() {
            tracing::error!(dir = %self.dir.display(), %error, "an attempt cannot be recorded");
        }
    }

    pub fn state(&self) -> AttemptState {
        if self.exit.is_some() || self.record.failure.is_some() {
            AttemptState::Ended(self.cleaning)
        } else if self.start.is_some() {
            AttemptState::Running { stop_asked: self.record.stop_asked, limit_ms: self.record.limit_ms }
        } else {
            AttemptState::Preparing
        }
    }

    /// The metered time so far, by the boot clock.
    pub fn metered_ms(&self) -> i64 {
        match (&self.exit, &self.start) {
            (Some(exit), _) => exit.metered_ms,
            // The time after the end of the process, while its children are being ended, is not metered.
            (None, Some(_)) if self.record.failure.is_none() => self.age_ms().clamp(0, self.record.limit_ms),
            _ => 0,
        }
    }

    /// Makes the shim end the attempt, in the way of the portal's notice if there is one.
    pub fn stop(&mut self, notice: Option<StopNotice>) {
        self.record.stop_asked = true;
        if let Some(notice) = notice
            && let Err(error) = put_json(&self.dir.join(berth_shim::NOTICE), &notice, true)
        {
            tracing::error!(%error, "a stop notice cannot be recorded; the attempt gets the default one");
        }
        if let Err(error) = self.save() {
            tracing::error!(%error, "a stop cannot be recorded");
        }
        berth_shim::send_signal(&self.dir, Signal::SIGTERM);
    }

    /// Gives the shim a new time limit.
    pub fn set_limit(&mut self, limit_ms: i64) -> io::Result<()> {
        put_json(&self.dir.join(berth_shim::LIMIT), &limit_ms, true)?;
        berth_shim::send_signal(&self.dir, Signal::SIGUSR1);
        self.record.limit_ms = limit_ms;
        self.save()
    }

    /// The age of the process. `None`: it does not run.
    fn running_ms(&self) -> Option<i64> {
        let start = self.start.as_ref()?;
        start.is_running().then(|| (boottime_ms() - start.boottime_ms).max(0))
    }

    /// The age of a process without a recorded end: now, or at its last observation.
    pub fn age_ms(&self) -> i64 {
        self.running_ms().unwrap_or(0).max(self.tally.process_ms)
    }

    /// Observes the running process, and saves the tally. The daemon calls this every second.
    pub fn observe_process(&mut self) {
        if !matches!(self.state(), AttemptState::Running { .. }) {
            return;
        }
        self.tally.process_ms = self.age_ms();
        if self.tally.process_ms < SAVED_FROM_MS {
            return;
        }
        // Not synced: after a power cut the tally is lower, to nobody's harm.
        if let Err(error) = put_json(&self.dir.join(TALLY), &self.tally, false) {
            tracing::warn!(dir = %self.dir.display(), %error, "evidence cannot be saved");
        }
    }

    /// Adds an observation of the devices. After the end of the process the devices may be cleaned already, so such
    /// an observation does not count.
    pub fn observe_devices(&mut self, at_ms: i64, observation: DeviceObservation) {
        if matches!(self.state(), AttemptState::Running { .. }) && self.running_ms().is_some() {
            self.tally.add(at_ms, observation);
        }
    }

    /// True if the attempt has outputs, now or at its end, that the portal has not. An attempt that never ran has
    /// none, and after a crash of the host its files may be torn.
    pub fn has_pending_outputs(&self) -> bool {
        !self.record.outputs.done
            && !self.record.outputs.is_empty()
            && self.start.as_ref().is_some_and(|start| start.boot_id == boot_id())
    }

    /// The hand-over of the outputs.
    pub fn output_task(&self, over: bool, most_bytes: u64) -> OutputTask {
        OutputTask {
            key: self.key(),
            dir: self.dir.clone(),
            plan: self.record.outputs.clone(),
            uid: self.record.uid,
            over,
            most_bytes,
        }
    }

    /// Records that the portal has all outputs. `false`: the record cannot be saved, and the files must stay; a
    /// hand-over of partly removed files would replace the complete ones.
    pub fn set_outputs_done(&mut self) -> bool {
        self.record.outputs.done = true;
        let saved = self.save();
        if let Err(error) = &saved {
            tracing::error!(dir = %self.dir.display(), %error, "an attempt cannot be recorded; its files are requested again");
        }
        saved.is_ok()
    }

    /// Removes the job's directory and its volumes.
    pub fn remove_files(&self) {
        for place in [self.dir.join("work"), volumes_directory(&self.dir)] {
            if let Err(error) = remove_tree(&place)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(dir = %self.dir.display(), %error, "files of a job cannot be removed; trying again later");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_daemon_that_starts_again_knows_what_stands_beside_the_record() {
        let root = tempfile::tempdir().unwrap();
        let load = || Attempt::load_all(root.path()).unwrap();
        let key = AttemptKey { job: "job_x".to_owned(), number: 1 };
        let attempt = Attempt::begin(root.path(), &key, &Assignment::default()).unwrap();
        assert!(load().is_empty(), "it is not recorded");
        attempt.save().unwrap();
        assert_eq!(load().remove(0).record.group, AttemptCgroups::default());
        let group = json!({"places": [{"dir": "/x", "unified": true, "controllers": ["pids"]}]});
        let launch = json!({
            "argv": ["true"], "env": [], "cwd": "/", "limit_ms": 1, "grace_ms": 1, "sandbox_depth": 0,
            "limits": {"group": group, "memory_mib": 0, "pids": 1, "disk": null},
        });
        put_json(&attempt.dir.join(berth_shim::LAUNCH), &launch, false).unwrap();
        let known = load().remove(0);
        assert_eq!(serde_json::to_value(&known.record.group).unwrap()["places"], group["places"]);
        assert_eq!((known.cleaning, known.record.clean), (CleaningState::Due, false));
        put_json(&attempt.dir.join(CLEAN), &true, false).unwrap();
        let known = load().remove(0);
        assert_eq!((known.cleaning, known.record.clean), (CleaningState::Done, true));
    }
}
