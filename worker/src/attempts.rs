//! One attempt on this host: its directory, how it stands, and the steps that prepare, end and clean it.
//!
//! Everything known is in the directory, so a daemon that starts again reads it and goes on. Blocking:
//! call it off the async threads. It decides nothing; `agent` does.

mod files;

use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use berth_proto::{Assignment, AttemptId, Failure, LOG_LIMIT, Phase, Slot, Spec, Status};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::agent::{Cleaning, Key, Seen};
use crate::cgroups::Group;
use crate::confinement;
use crate::daemon::Host;
use crate::evidence::Tally;
use crate::files::{find_json, put_json};
use crate::gpu::{GpuError, Gpus};
use crate::keeping::Keep;
use crate::lease::{self, Starting};
use crate::life::EVIDENCE;
use crate::sandbox::{is_late, with_late};
use crate::secrets::{self, Given};
use crate::shim::{self, Exit, Launch, Notice, Start};
use crate::volumes;

const RECORD: &str = "attempt.json";

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
}

impl Device {
    pub fn from_slot(slot: &Slot) -> Self {
        Self {
            gpu_uuid: slot.gpu_uuid.clone(),
            instance: slot.instance.map(|i| (i.profile_id, i.start)),
            share_milli: Some(slot.share_milli).filter(|n| *n > 0),
            mig_uuid: None,
            made: false,
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
}

/// Whether the daemon has recorded that this attempt failed, so that nothing may be started any more.
pub fn given_up(dir: &Path) -> bool {
    find_json::<Record>(&dir.join(RECORD)).is_some_and(|record| record.failure.is_some())
}

/// Whom the processes of the attempt in this directory belong to, when that is not this worker.
pub fn user_of(dir: &Path) -> Option<u32> {
    find_json::<Record>(&dir.join(RECORD)).and_then(|record| record.uid)
}

pub fn directory(root: &Path, key: &Key) -> PathBuf {
    root.join(format!("{}-{}", key.job, key.number))
}

fn log_full() -> Failure {
    Failure {
        code: "log.full".to_owned(),
        detail: format!(
            "Its log grew past {} MiB, so it was stopped; write large output to files.",
            LOG_LIMIT >> 20
        ),
    }
}

/// The limit that an attempt outgrew, if it ended for that.
fn outgrown(exit: &Exit) -> Option<Failure> {
    let found = exit.failure.clone().map(|(code, detail)| Failure { code, detail });
    found.or_else(|| exit.log_full.then(log_full))
}

fn failed(code: &str, detail: impl Into<String>) -> (String, String) {
    (code.to_owned(), detail.into())
}

impl Attempt {
    pub fn key(&self) -> Key {
        Key { job: self.record.job.clone(), number: self.record.number }
    }

    fn new(dir: PathBuf, record: Record, tally: Tally) -> Self {
        Self { dir, record, start: None, exit: None, cleaning: Cleaning::Due, unclean: None, tally }
    }

    pub(crate) fn save(&self) -> io::Result<()> {
        put_json(&self.dir.join(RECORD), &self.record, true)
    }

    /// Makes the directory of a new attempt.
    pub fn create(root: &Path, key: &Key, assignment: &Assignment) -> io::Result<Self> {
        let dir = directory(root, key);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        let record = Record {
            job: key.job.clone(),
            number: key.number,
            devices: assignment.slots.iter().map(Device::from_slot).collect(),
            limit_ms: assignment.limit_ms,
            failure: None,
            stop_asked: false,
            clean: false,
            uid: None,
            group: Group::default(),
            organization: assignment.organization.clone(),
            keep: assignment.spec.as_ref().map(Keep::of).unwrap_or_default(),
            secrets: None,
        };
        let attempt = Self::new(dir, record, Tally::default());
        attempt.save()?;
        Ok(attempt)
    }

    /// Every attempt that a former daemon left in `root`.
    pub fn load_all(root: &Path) -> io::Result<Vec<Self>> {
        let mut out = Vec::new();
        for entry in std::fs::read_dir(root)? {
            let dir = entry?.path();
            let Some(record) = find_json::<Record>(&dir.join(RECORD)) else { continue };
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
        self.start = self.start.take().or_else(|| find_json(&self.dir.join(shim::START)));
        self.exit = self.exit.take().or_else(|| find_json(&self.dir.join(shim::EXIT)));
    }

    /// Finds out what became of an attempt whose end is not recorded. A shim that is alive goes on.
    pub fn adopt(&mut self) {
        // Held while it is decided: a shim that comes late finds the decision, and starts nothing.
        let Ok(_lock) = shim::lock(&self.dir) else { return };
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

    /// Whether they hold shares of the same board.
    pub fn shares_with(&self, other: &Self) -> bool {
        let shares = |d: &&Device| d.share_milli.is_some();
        let mut mine = self.record.devices.iter().filter(shares);
        mine.any(|d| other.record.devices.iter().filter(shares).any(|o| o.gpu_uuid == d.gpu_uuid))
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

    /// The report for the portal.
    pub fn status(&self, seq: u64) -> Status {
        let phase = match self.seen() {
            Seen::Preparing => Phase::Preparing,
            Seen::Running { .. } => Phase::Running,
            Seen::Ended(Cleaning::Done) => Phase::Clean,
            Seen::Ended(_) if self.unclean.is_some() => Phase::Clean,
            Seen::Ended(_) => Phase::Ended,
        };
        let ended = matches!(phase, Phase::Ended | Phase::Clean);
        let length = || std::fs::metadata(self.dir.join(shim::LOG)).map_or(0, |m| m.len());
        Status {
            seq,
            attempt: Some(AttemptId::new(&self.record.job, self.record.number)),
            phase: phase.into(),
            metered_ms: self.metered_ms(),
            mig_uuids: self.record.devices.iter().filter_map(|d| d.mig_uuid.clone()).collect(),
            exit_code: self.exit.as_ref().map(|e| e.code),
            timed_out: self.exit.as_ref().is_some_and(|e| e.timed_out),
            failure: self
                .record
                .failure
                .as_ref()
                .filter(|_| self.exit.is_none())
                .map(|(code, detail)| Failure { code: code.clone(), detail: detail.clone() })
                .or_else(|| self.exit.as_ref().and_then(outgrown)),
            log_bytes: ended.then(|| self.exit.as_ref().map_or_else(length, |e| e.log_bytes).min(LOG_LIMIT)),
            unclean: self.unclean.clone(),
            evidence: self.evidence(),
            saving: ended && self.saves(),
        }
    }

    /// Makes devices and files, and starts the shim. On an error the attempt has failed with it.
    pub fn prepare(&mut self, spec: &Spec, host: &Host, starting: &Starting) -> Option<Child> {
        match self.try_prepare(spec, host, starting) {
            Ok(child) => Some(child),
            Err(failure) => {
                self.fail(failure);
                None
            }
        }
    }

    /// Makes one device. That it is this attempt's is recorded first: only what it made is destroyed.
    fn make_device(&mut self, index: usize, gpus: &Gpus) -> Result<(), (String, String)> {
        let unavailable =
            |e: GpuError| failed("device.unavailable", format!("The device could not be made: {e}."));
        let Some(device) = self.record.devices.get_mut(index) else { return Ok(()) };
        let gpu = device.gpu_uuid.clone();
        let Some((profile, start)) = device.instance else {
            return gpus.set_mig(&gpu, false).map_err(unavailable);
        };
        gpus.set_mig(&gpu, true).map_err(unavailable)?;
        device.made = true;
        self.save()
            .map_err(|e| failed("worker.io", format!("The worker cannot write the job's files: {e}.")))?;
        let made = gpus.create_slice(&gpu, profile, start);
        let Some(device) = self.record.devices.get_mut(index) else { return Ok(()) };
        match made {
            Ok(slice) => device.mig_uuid = slice.mig_uuid,
            Err(error) => {
                device.made = !matches!(error, GpuError::InUse | GpuError::Insufficient);
                return Err(unavailable(error));
            }
        }
        Ok(())
    }

    fn try_prepare(
        &mut self,
        spec: &Spec,
        host: &Host,
        starting: &Starting,
    ) -> Result<Child, (String, String)> {
        if let Some(why) = &spec.unusable {
            return Err(failed(&why.code, why.detail.clone()));
        }
        let gpus = &host.gpus;
        let io = |e: io::Error| failed("worker.io", format!("The worker cannot write the job's files: {e}."));
        let work = self.dir.join("work");
        files::fill(&self.dir, &work, spec, host.sandbox.isolated())?;
        for index in 0..self.record.devices.len() {
            self.make_device(index, gpus)?;
        }
        // Known before they are there, so that they are removed whatever happens.
        self.record.secrets = secrets::place(&self.dir, spec);
        self.save().map_err(io)?;
        if let Some(place) = &self.record.secrets {
            secrets::write(place, spec, self.record.uid).map_err(io)?;
        }
        let command = match &spec.script {
            None => spec.command.clone(),
            Some(text) => {
                let file = work.join(".berth-script");
                std::fs::write(&file, text).map_err(io)?;
                std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).map_err(io)?;
                if text.starts_with("#!") {
                    vec!["./.berth-script".to_owned()]
                } else {
                    vec!["/bin/sh".to_owned(), ".berth-script".to_owned()]
                }
            }
        };
        let command = with_late(&spec.env, command);
        if let Some(uid) = self.record.uid {
            files::give(&self.dir, &work, spec, uid).map_err(io)?;
        }
        let (confined, limits) = confinement::confine(&self.record, spec, host, &work, command)?;
        // Known before anything can be in it; what was made and not recorded is swept at the next start.
        self.record.group = limits.group.clone();
        self.save().map_err(io)?;
        let launch = Launch {
            env: self.environment(spec, &confined.home, host.sandbox.isolated()),
            argv: confined.argv,
            cwd: confined.cwd,
            limit_ms: self.record.limit_ms,
            grace_ms: host.grace_ms,
            sandbox_depth: confined.sandbox_depth,
            limits,
            told: !spec.secrets.is_empty(),
            secrets: self.record.secrets.clone(),
            lease: lease::handed_over(starting, &host.root),
        };
        put_json(&self.dir.join(shim::LAUNCH), &launch, true).map_err(io)?;
        let this = std::env::current_exe().map_err(io)?;
        let mut shim = Command::new(this)
            .arg("shim")
            .arg(&self.dir)
            .env_clear()
            .stdin(if launch.told { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(io)?;
        Given::of(spec).tell(&mut shim);
        Ok(shim)
    }

    fn environment(&self, spec: &Spec, home: &str, isolated: bool) -> Vec<(String, String)> {
        let devices: Vec<&str> = self.record.devices.iter().map(Device::visible).collect();
        let base = [
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
            ("LANG", "C.UTF-8"),
            ("PYTHONUNBUFFERED", "1"),
        ];
        let mut env: Vec<(String, String)> = base.map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec();
        env.extend(volumes::variables(&self.dir.join("work"), spec, isolated));
        env.retain(|(name, _)| !spec.env.contains_key(name));
        let early = spec.env.iter().filter(|(name, _)| !is_late(name));
        env.extend(early.map(|(k, v)| (k.clone(), v.clone())));
        // These say what is, so a job cannot set them otherwise.
        let fixed = [
            ("HOME", home.to_owned()),
            ("CUDA_VISIBLE_DEVICES", devices.join(",")),
            ("NVIDIA_VISIBLE_DEVICES", devices.join(",")),
            // A hint to the driver's own sharing service, where one runs; it limits nothing by itself.
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", self.thread_percentage()),
            ("BERTH_JOB_ID", self.record.job.clone()),
            ("BERTH_ATTEMPT", self.record.number.to_string()),
            (secrets::PLACE, secrets::seen_at(self.record.secrets.as_deref(), isolated)),
        ];
        env.retain(|(k, _)| fixed.iter().all(|(f, _)| f != k));
        env.extend(fixed.map(|(k, v)| (k.to_owned(), v)).into_iter().filter(|(_, v)| !v.is_empty()));
        env
    }

    /// Its share of a board in percent; empty when it shares none.
    fn thread_percentage(&self) -> String {
        let share = self.record.devices.iter().find_map(|d| d.share_milli);
        share.map_or_else(String::new, |milli| (milli / 10).clamp(1, 100).to_string())
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
    /// `neighbours` are the directories of attempts that share boards with it.
    pub fn clean(&mut self, gpus: &Gpus, neighbours: &[PathBuf]) -> Result<(), String> {
        shim::wait_gone(&self.dir).map_err(|e| e.to_string())?;
        crate::enter::turn_out(&self.dir).map_err(|e| e.to_string())?;
        if let Some(place) = &self.record.secrets {
            secrets::remove(place).map_err(|e| format!("its files with secrets are still there: {e}"))?;
        }
        // The shim leaves nothing; one that was killed could not see to that.
        self.record.group.end()?;
        for device in &self.record.devices {
            let name = device.mig_uuid.as_deref().unwrap_or(&device.gpu_uuid);
            // A device that was never made holds nobody.
            let held = match gpus.holders(name) {
                Ok(pids) => pids,
                Err(GpuError::NotFound(_)) => Vec::new(),
                Err(error) => return Err(error.to_string()),
            };
            let started = device.instance.is_none() || device.mig_uuid.is_some();
            let theirs: Vec<u32> = match device.share_milli {
                Some(_) if !held.is_empty() => {
                    neighbours.iter().flat_map(|dir| shim::processes(dir)).collect()
                }
                _ => Vec::new(),
            };
            let held: Vec<u32> = held.into_iter().filter(|pid| !theirs.contains(pid)).collect();
            if started && !held.is_empty() {
                return Err(format!("processes are still on it: {held:?}"));
            }
            if let Some((profile, start)) = device.instance.filter(|_| device.made) {
                gpus.destroy_slice(&device.gpu_uuid, profile, start).map_err(|e| e.to_string())?;
            }
        }
        // Only the log is kept until the portal has all of it, and what outlives the attempt.
        if !self.saves() {
            self.remove_work();
        }
        self.record.clean = true;
        self.save().map_err(|e| e.to_string())
    }
}
