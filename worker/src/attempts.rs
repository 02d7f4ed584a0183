//! One attempt on this host: its directory, how it stands, and the steps that end and clean it. `preparing`
//! has those before its start.
//!
//! Everything known is in the directory, so a daemon that starts again reads it and goes on. Blocking:
//! call it off the async threads. It decides nothing; `agent` does.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use berth_proto::{Assignment, Slot};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::agent::{Cleaning, Key, Seen};
use crate::cgroups::Group;
use crate::confinement;
use crate::daemon::Host;
use crate::evidence::Tally;
use crate::files::{find_json, put_json, put_new_json};
use crate::images::{Image, registry};
use crate::keeping::Keep;
use crate::life::EVIDENCE;
use crate::secrets;
use crate::shim::{self, Exit, Launch, Notice, Records, Start};
use crate::ward;

const RECORD: &str = "attempt.json";
/// There once an attempt is clean that made no device.
const CLEAN: &str = "clean.json";

/// A device of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    pub gpu_uuid: String,
    /// Profile and start; `None`: the board without MIG.
    pub instance: Option<(u32, u32)>,
    /// Thousandths of a board that others of its organization share.
    #[serde(default)]
    pub share_milli: Option<u32>,
    /// Known once the instance was made.
    pub mig_uuid: Option<String>,
    /// The instance is this attempt's own, so it is destroyed with it.
    #[serde(default)]
    pub made: bool,
    /// MiB that were in use on a whole board before anything was started on it.
    #[serde(default)]
    pub idle_mib: Option<u64>,
}

impl Device {
    pub fn from_slot(slot: &Slot) -> Self {
        Self {
            gpu_uuid: slot.gpu_uuid.clone(),
            instance: slot.instance.map(|i| (i.profile_id, i.start)),
            share_milli: Some(slot.share_milli).filter(|n| *n > 0),
            mig_uuid: None,
            made: false,
            idle_mib: None,
        }
    }

    /// What `CUDA_VISIBLE_DEVICES` calls it.
    pub fn visible(&self) -> &str {
        self.mig_uuid.as_deref().unwrap_or(&self.gpu_uuid)
    }
}

/// What the daemon itself remembers of an attempt.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    pub job: String,
    pub number: u32,
    pub devices: Vec<Device>,
    pub limit_ms: i64,
    /// It ended without the shim's word: code and sentence.
    pub failure: Option<(String, String)>,
    /// A board failed under it, so it is ended: code and sentence.
    #[serde(default)]
    pub device_fault: Option<(String, String)>,
    pub stop_asked: bool,
    pub clean: bool,
    /// Whom its files belong to; nobody else gets this user while they are there.
    #[serde(default)]
    pub uid: Option<u32>,
    /// What holds its processes.
    #[serde(default)]
    pub group: Group,
    /// Whose it is; empty when an earlier daemon recorded it.
    #[serde(default)]
    pub organization: String,
    /// What of it outlives it.
    #[serde(default)]
    pub keep: Keep,
    /// The image that it runs in.
    #[serde(default)]
    pub image: Option<Image>,
    /// A container may be there, which is removed with it.
    #[serde(default)]
    pub contained: bool,
    /// Where its files with secrets lie until it is clean.
    #[serde(default)]
    pub secrets: Option<PathBuf>,
}

/// An attempt as it stands.
#[derive(Debug, Clone)]
pub struct Attempt {
    pub dir: PathBuf,
    pub record: Record,
    pub start: Option<Start>,
    pub exit: Option<Exit>,
    pub cleaning: Cleaning,
    /// Why the last try to prove it clean failed.
    pub unclean: Option<String>,
    /// What was seen of its process and devices.
    pub tally: Tally,
    /// How far its preparation is, in a sentence.
    pub progress: String,
}

/// Whether the daemon has recorded that this attempt failed, so that nothing may be started any more.
pub fn given_up(dir: &Path) -> bool {
    find_json::<Record>(&dir.join(RECORD)).is_some_and(|record| record.failure.is_some())
}

/// Why an attempt ends that was told to by somebody other than the daemon, which records it before it does: when a
/// host goes down its init tells every process.
pub fn told_by_host(dir: &Path) -> Option<(String, String)> {
    let by_daemon = find_json::<Record>(&dir.join(RECORD)).is_none_or(|record| record.stop_asked);
    let detail = "Its host was shut down, or somebody there told it to end.";
    (!by_daemon).then(|| failed("node.shutdown", detail))
}

/// Whom the processes of the attempt in this directory belong to, when that is not this worker.
pub fn user_of(dir: &Path) -> Option<u32> {
    find_json::<Record>(&dir.join(RECORD)).and_then(|record| record.uid)
}

pub fn directory(root: &Path, key: &Key) -> PathBuf {
    root.join(format!("{}-{}", key.job, key.number))
}

/// Makes an attempt's directory, for the worker's own user alone.
fn make(dir: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

fn failed(code: &str, detail: impl Into<String>) -> (String, String) {
    (code.to_owned(), detail.into())
}

impl Attempt {
    pub fn key(&self) -> Key {
        Key { job: self.record.job.clone(), number: self.record.number }
    }

    fn new(dir: PathBuf, record: Record, tally: Tally) -> Self {
        Self {
            dir,
            record,
            start: None,
            exit: None,
            cleaning: Cleaning::Due,
            unclean: None,
            tally,
            progress: String::new(),
        }
    }

    /// Records one that is not recorded yet.
    pub(crate) fn save_new(&self) -> io::Result<()> {
        // First, so that its name is synced with that of the record.
        shim::make(&self.dir)?;
        put_new_json(&self.dir.join(RECORD), &self.record)
    }

    pub(crate) fn save(&self) -> io::Result<()> {
        match put_json(&self.dir.join(RECORD), &self.record, true) {
            // There was no room for it when the attempt came.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make(&self.dir)?;
                put_json(&self.dir.join(RECORD), &self.record, true)
            }
            result => result,
        }
    }

    /// Makes the directory of a new attempt and records it.
    pub fn create(root: &Path, key: &Key, assignment: &Assignment) -> io::Result<Self> {
        let attempt = Self::begin(root, key, assignment)?;
        attempt.save_new()?;
        Ok(attempt)
    }

    /// Makes the directory of a new attempt. Nobody may be told of it, and nothing of it be done, before
    /// it is recorded.
    pub fn begin(root: &Path, key: &Key, assignment: &Assignment) -> io::Result<Self> {
        let attempt = Self::of(root, key, assignment);
        make(&attempt.dir)?;
        Ok(attempt)
    }

    /// One that cannot be recorded here: it is known in memory only, and nothing of it is done. It is clean
    /// when it can be recorded after all.
    pub fn without_record(root: &Path, key: &Key, assignment: &Assignment, why: &str) -> Self {
        let mut attempt = Self::of(root, key, assignment);
        let failure = failed("worker.io", format!("The worker cannot write the job's files: {why}."));
        attempt.record.failure = Some(failure);
        attempt
    }

    fn of(root: &Path, key: &Key, assignment: &Assignment) -> Self {
        let record = Record {
            job: key.job.clone(),
            number: key.number,
            devices: assignment.slots.iter().map(Device::from_slot).collect(),
            limit_ms: assignment.limit_ms,
            failure: None,
            device_fault: None,
            stop_asked: false,
            clean: false,
            uid: None,
            group: Group::default(),
            organization: assignment.organization.clone(),
            keep: assignment.spec.as_ref().map(Keep::of).unwrap_or_default(),
            image: None,
            contained: false,
            secrets: None,
        };
        Self::new(directory(root, key), record, Tally::default())
    }

    /// Every attempt that a former daemon left in `root`.
    pub fn load_all(root: &Path) -> io::Result<Vec<Self>> {
        let mut out = Vec::new();
        for entry in std::fs::read_dir(root)? {
            let dir = entry?.path();
            let Some(mut record) = find_json::<Record>(&dir.join(RECORD)) else { continue };
            if record.group == Group::default() {
                let launch = find_json::<Launch>(&dir.join(shim::LAUNCH));
                record.group = launch.map(|launch| launch.limits.group).unwrap_or_default();
            }
            record.clean |= dir.join(CLEAN).exists();
            let tally = find_json(&dir.join(EVIDENCE)).unwrap_or_default();
            let mut attempt = Self::new(dir, record, tally);
            attempt.refresh();
            // Whether the shim was really told is not known: it is told again.
            attempt.record.stop_asked = false;
            if attempt.record.clean {
                attempt.cleaning = Cleaning::Done;
            } else if attempt.exit.is_none() && attempt.record.failure.is_none() {
                attempt.adopt();
            }
            out.push(attempt);
        }
        Ok(out)
    }

    /// Reads what the shim wrote.
    pub fn refresh(&mut self) {
        if self.exit.is_none() {
            let known = Records::read(&self.dir);
            self.start = self.start.take().or(known.start);
            self.exit = known.exit;
        }
    }

    /// Finds out what became of an attempt whose end is not recorded. A shim that is alive goes on.
    pub fn adopt(&mut self) {
        // Held while it is decided: a shim that comes late finds the decision, and starts nothing.
        let lock = shim::lock(&self.dir);
        if let Err(error) = &lock {
            // A disk that cannot be read hides a shim, but not its process.
            let gone = self.start.as_ref().is_some_and(|start| !shim::exists(start));
            if error.kind() == io::ErrorKind::WouldBlock || !gone {
                return;
            }
        }
        // The shim may have ended between the two looks.
        self.refresh();
        if self.exit.is_some() {
            return;
        }
        let failure = if self.start.is_none() {
            failed(
                "attempt.not_started",
                "The worker stopped before the job was started; nothing was charged.",
            )
        } else {
            failed(
                "attempt.unknown_outcome",
                "The host or its worker went down while the job ran, and nobody saw how it ended. It was not run again.",
            )
        };
        self.fail(failure);
    }

    pub fn fail(&mut self, failure: (String, String)) {
        self.record.failure = Some(failure);
        if let Err(error) = self.save() {
            tracing::error!(dir = %self.dir.display(), %error, "an attempt cannot be recorded");
        }
    }

    /// As the agent sees it.
    pub fn seen(&self) -> Seen {
        if self.exit.is_some() || self.record.failure.is_some() {
            Seen::Ended(self.cleaning)
        } else if self.start.is_some() {
            Seen::Running { stop_asked: self.record.stop_asked, limit_ms: self.record.limit_ms }
        } else {
            Seen::Preparing
        }
    }

    /// Use so far, by the clock that never jumps.
    pub fn metered_ms(&self) -> i64 {
        match (&self.exit, &self.start) {
            (Some(exit), _) => exit.metered_ms,
            // A process that has gone costs nothing while what it left behind is being ended.
            (None, Some(_)) if self.record.failure.is_none() => self.age_ms().clamp(0, self.record.limit_ms),
            _ => 0,
        }
    }

    /// Asks the shim to end it, in this way when the portal chose one.
    pub fn stop(&mut self, notice: Option<Notice>) {
        self.record.stop_asked = true;
        if let Some(notice) = notice
            && let Err(error) = put_json(&self.dir.join(shim::NOTICE), &notice, true)
        {
            tracing::error!(%error, "a notice cannot be recorded; it gets the usual one");
        }
        if let Err(error) = self.save() {
            tracing::error!(%error, "a stop cannot be recorded");
        }
        shim::tell(&self.dir, Signal::SIGTERM);
    }

    /// Gives the shim a new limit.
    pub fn set_limit(&mut self, limit_ms: i64) -> io::Result<()> {
        put_json(&self.dir.join(shim::LIMIT), &limit_ms, true)?;
        shim::tell(&self.dir, Signal::SIGUSR1);
        self.record.limit_ms = limit_ms;
        self.save()
    }

    /// Proves that nothing of it is left on its devices, and destroys its instances. The reason when
    /// that cannot be proved.
    pub fn clean(&mut self, host: &Host) -> Result<(), String> {
        let gpus = &host.gpus;
        shim::wait_gone(&self.dir).map_err(|e| e.to_string())?;
        // First, so that nothing else that fails keeps them there.
        if let Some(place) = &self.record.secrets {
            secrets::remove(place).map_err(|e| format!("its files with secrets are still there: {e}"))?;
        }
        // A daemon that ended while it pulled an image left them.
        registry::remove(&self.dir)
            .map_err(|e| format!("its credentials for a registry are still there: {e}"))?;
        crate::enter::turn_out(&self.dir).map_err(|e| e.to_string())?;
        // The shim leaves nothing; one that was killed could not see to that.
        host.cgroups.end(&self.record.group)?;
        if self.record.contained {
            // By now there is nothing to end, for podman may fail at that: where a container lost what stood
            // over it, and where AppArmor keeps the signals of podman's runtime from it.
            let podman = host.images.as_ref().map_err(|why| format!("its container needs podman: {why}"))?;
            podman.remove(&confinement::container_name(&self.record))?;
        }
        for device in &self.record.devices {
            let held = ward::left_on(gpus, device, &host.sharers, &self.dir)?;
            let started = device.instance.is_none() || device.mig_uuid.is_some();
            if started && !held.is_empty() {
                return Err(format!("processes are still on it: {held:?}"));
            }
            ward::given_back(gpus, device)?;
            if let Some((profile, start)) = device.instance.filter(|_| device.made) {
                gpus.destroy_slice(&device.gpu_uuid, profile, start).map_err(|e| e.to_string())?;
            }
        }
        // Only the log is kept until the portal has all of it, and what outlives the attempt.
        if !self.saves() {
            self.remove_work();
        }
        self.record.clean = true;
        let noted = match self.made_devices() || !self.dir.join(RECORD).exists() {
            // Never destroyed twice: by then another's may be in their place.
            true => self.save(),
            // A file of its own and not synced: the record is not put at risk, and to prove it clean once more
            // after the host went down takes nothing from anybody.
            false => self.note_clean(),
        };
        noted.map_err(|e| e.to_string())
    }

    /// By the file that said how to start it, which nobody needs any more: to make one is more work.
    fn note_clean(&self) -> io::Result<()> {
        let clean = self.dir.join(CLEAN);
        match std::fs::rename(self.dir.join(shim::LAUNCH), &clean) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => std::fs::File::create(clean).map(|_| ()),
            renamed => renamed,
        }
    }

    /// Whether a device is this attempt's own work.
    pub(crate) fn made_devices(&self) -> bool {
        self.record.devices.iter().any(|device| device.made)
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
        let key = Key { job: "job_x".to_owned(), number: 1 };
        let attempt = Attempt::begin(root.path(), &key, &Assignment::default()).unwrap();
        assert!(load().is_empty(), "it is not recorded");
        attempt.save().unwrap();
        assert_eq!(load().remove(0).record.group, Group::default());
        let group = json!({"places": [{"dir": "/x", "unified": true, "controllers": ["pids"]}]});
        let launch = json!({
            "argv": ["true"], "env": [], "cwd": "/", "limit_ms": 1, "grace_ms": 1, "sandbox_depth": 0,
            "limits": {"group": group, "memory_mib": 0, "pids": 1, "disk": null},
        });
        put_json(&attempt.dir.join(shim::LAUNCH), &launch, false).unwrap();
        let known = load().remove(0);
        assert_eq!(serde_json::to_value(&known.record.group).unwrap()["places"], group["places"]);
        assert_eq!((known.cleaning, known.record.clean), (Cleaning::Due, false));
        put_json(&attempt.dir.join(CLEAN), &true, false).unwrap();
        let known = load().remove(0);
        assert_eq!((known.cleaning, known.record.clean), (Cleaning::Done, true));
    }
}
