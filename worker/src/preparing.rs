//! The steps before an attempt starts: its files, its image, its devices, its confinement, its shim.
//!
//! Whatever is made is recorded before it is there, so that a daemon that starts again finds it. Blocking.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use berth_proto::Spec;
use berth_types::paths::SCRIPT;

use crate::attempts::{Attempt, Device};
use crate::confinement;
use crate::daemon::Host;
use crate::files::{inside, put_json};
use crate::forker::Ended;
use crate::gpu::{GpuError, Gpus};
use crate::images::Podman;
use crate::keeping;
use crate::lease::{self, Starting};
use crate::sandbox::{self, is_late, with_late};
use crate::secrets::{self, Given};
use crate::shim::{self, Launch};
use crate::volumes;

/// A code and a sentence.
type Failed = (String, String);

/// How a preparation hears from outside, and is heard.
pub struct Outside<'a> {
    /// Why it will not be started any more: it is not wanted, or its lease has ended.
    pub given_up: &'a dyn Fn() -> Option<Failed>,
    /// Takes a sentence about how far it is.
    pub tell: &'a dyn Fn(String),
    /// The portal's word that it may go on, renewed meanwhile; its shim takes it over.
    pub lease: &'a Starting,
}

fn failed(code: &str, detail: impl Into<String>) -> Failed {
    (code.to_owned(), detail.into())
}

fn unwritable(error: io::Error) -> Failed {
    failed("worker.io", format!("The worker cannot write the job's files: {error}."))
}

fn podman_of(host: &Host) -> Result<&Podman, Failed> {
    let off = |why: &String| failed("image.unavailable", format!("This node cannot run images: {why}."));
    host.images.as_ref().map_err(off)
}

/// Gives a directory and everything in it to a user.
fn give(path: &Path, uid: u32) -> io::Result<()> {
    std::os::unix::fs::lchown(path, Some(uid), Some(uid))?;
    if path.symlink_metadata()?.is_dir() {
        for entry in std::fs::read_dir(path)? {
            give(&entry?.path(), uid)?;
        }
    }
    Ok(())
}

/// Writes a script, and says how it is run.
fn written(work: &Path, text: &str) -> io::Result<Vec<String>> {
    let file = work.join(SCRIPT);
    std::fs::write(&file, text)?;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755))?;
    Ok(if text.starts_with("#!") {
        vec![format!("./{SCRIPT}")]
    } else {
        vec!["/bin/sh".to_owned(), SCRIPT.to_owned()]
    })
}

impl Attempt {
    /// Makes devices and files, and starts the shim. On an error the attempt has failed with it.
    pub fn prepare(&mut self, spec: &Spec, host: &Host, outside: &Outside<'_>) -> Option<Ended> {
        match self.try_prepare(spec, host, outside) {
            Ok(shim) => Some(shim),
            Err(failure) => {
                self.fail(failure);
                None
            }
        }
    }

    /// Makes one device. That it is this attempt's is recorded first: only what it made is destroyed.
    fn make_device(&mut self, index: usize, gpus: &Gpus) -> Result<(), Failed> {
        let unavailable =
            |e: GpuError| failed("device.unavailable", format!("The device could not be made: {e}."));
        let Some(device) = self.record.devices.get_mut(index) else { return Ok(()) };
        let gpu = device.gpu_uuid.clone();
        let Some((profile, start)) = device.instance else {
            gpus.set_mig(&gpu, false).map_err(unavailable)?;
            // What is in use on a shared board is its neighbours', and nothing is told from it later.
            if device.share_milli.is_none() {
                device.idle_mib = gpus.used_mib(&gpu).ok();
            }
            return Ok(());
        };
        gpus.set_mig(&gpu, true).map_err(unavailable)?;
        device.made = true;
        self.save().map_err(unwritable)?;
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

    fn try_prepare(&mut self, spec: &Spec, host: &Host, outside: &Outside<'_>) -> Result<Ended, Failed> {
        if let Some(why) = &spec.unusable {
            return Err(failed(&why.code, why.detail.clone()));
        }
        let work = self.dir.join("work");
        std::fs::create_dir_all(&work).map_err(unwritable)?;
        for (path, text) in &spec.files {
            let to = inside(&work, path)
                .ok_or_else(|| failed("worker.files", format!("{path:?} is not a path inside the job.")))?;
            if let Some(parent) = to.parent() {
                std::fs::create_dir_all(parent).map_err(unwritable)?;
            }
            std::fs::write(to, text).map_err(unwritable)?;
        }
        keeping::restore(&self.dir, spec).map_err(unwritable)?;
        let isolated = host.sandbox.isolated() || !spec.image.is_empty();
        volumes::place(&self.dir, &work, spec, isolated).map_err(unwritable)?;
        if !spec.image.is_empty() {
            // Before its devices are touched: a pull may take long, and may fail.
            let image = podman_of(host)?.fetch(spec, &self.dir, outside.given_up, outside.tell)?;
            self.record.image = Some(image);
        }
        for index in 0..self.record.devices.len() {
            self.make_device(index, &host.gpus)?;
        }
        self.record.secrets = secrets::place(&self.dir, spec);
        if let Some(place) = &self.record.secrets {
            // Known before they are there, so that they are removed whatever happens.
            self.save().map_err(unwritable)?;
            secrets::write(place, spec, self.record.uid).map_err(unwritable)?;
        }
        let command = match &spec.script {
            None => spec.command.clone(),
            Some(text) => written(&work, text).map_err(unwritable)?,
        };
        if let Some(uid) = self.record.uid {
            give(&work, uid).map_err(unwritable)?;
            for volume in volumes::directories(&self.dir, spec) {
                give(&volume, uid).map_err(unwritable)?;
            }
        }
        let launch = if spec.image.is_empty() {
            self.sandboxed(spec, host, &work, command, outside.lease)?
        } else {
            self.contained(spec, host, &work, &command, outside.lease)?
        };
        // It tells a daemon that starts again of the group before anything can be in it; a group that was made
        // and is in none is swept then. Not synced: neither shim nor group outlives the host, and nothing has
        // begun before the shim recorded that, which it syncs.
        put_json(&self.dir.join(shim::LAUNCH), &launch, false).map_err(unwritable)?;
        let (hears, tells) = launch.told.then(io::pipe).transpose().map_err(unwritable)?.unzip();
        let shim = host.forker.shim(&self.dir, hears.map(OwnedFd::from)).map_err(unwritable)?;
        if let Some(pid) = shim.pid {
            host.sharers.started(&self.dir, pid);
        }
        // Only now: a pipe holds no more than some, and somebody must take it out.
        if let Some(pipe) = tells {
            Given::of(spec).tell(pipe);
        }
        Ok(shim)
    }

    fn sandboxed(
        &mut self,
        spec: &Spec,
        host: &Host,
        work: &Path,
        command: Vec<String>,
        lease: &Starting,
    ) -> Result<Launch, Failed> {
        let command = with_late(&spec.env, command);
        let (confined, limits) = confinement::confine(&self.record, spec, host, work, command)?;
        self.record.group = limits.group.clone();
        if self.made_devices() {
            // By what the driver calls them they are looked at when they are cleaned.
            self.save().map_err(unwritable)?;
        }
        Ok(Launch {
            env: self.environment(spec, &confined.home, host.sandbox.isolated()),
            argv: confined.argv,
            cwd: confined.cwd,
            limit_ms: self.record.limit_ms,
            grace_ms: host.grace_ms,
            sandbox_depth: confined.sandbox_depth,
            limits,
            told: !spec.secrets.is_empty(),
            secrets: self.record.secrets.clone(),
            lease: lease::handed_over(lease, &host.root),
            container: None,
        })
    }

    fn contained(
        &mut self,
        spec: &Spec,
        host: &Host,
        work: &Path,
        command: &[String],
        lease: &Starting,
    ) -> Result<Launch, Failed> {
        let podman = podman_of(host)?;
        let (limits, cgroup) = confinement::contained_limits(&self.record, spec, host, work)?;
        // Known before anything can be in it; so is the container, whose name follows from the attempt's.
        self.record.group = limits.group.clone();
        self.record.contained = true;
        self.save().map_err(unwritable)?;
        let env = self.environment(spec, sandbox::HOME, true);
        let dirs = (self.dir.as_path(), work);
        let made = confinement::contain(&self.record, spec, (host, podman), dirs, &cgroup, &env, command)?;
        Ok(Launch {
            env: made.env,
            argv: made.confined.argv,
            cwd: made.confined.cwd,
            limit_ms: self.record.limit_ms,
            grace_ms: host.grace_ms,
            sandbox_depth: made.confined.sandbox_depth,
            limits,
            told: !spec.secrets.is_empty(),
            secrets: self.record.secrets.clone(),
            lease: lease::handed_over(lease, &host.root),
            container: Some(made.container),
        })
    }

    /// The job's variables. Without an image what made its sandbox starts with them too, so what is not for that
    /// comes later; in one they are podman's to hand on, secret ones with them.
    fn environment(&self, spec: &Spec, home: &str, isolated: bool) -> Vec<(String, String)> {
        let devices: Vec<&str> = self.record.devices.iter().map(Device::visible).collect();
        let base = [
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
            ("LANG", "C.UTF-8"),
            ("PYTHONUNBUFFERED", "1"),
            ("USER", sandbox::USER),
            ("LOGNAME", sandbox::USER),
        ];
        // Without a sandbox the user is the worker's own.
        let known = |(_, value): &(&str, &str)| isolated || *value != sandbox::USER;
        // An image says itself where its programs are, and in what language.
        let of_host = |(name, _): &(&str, &str)| spec.image.is_empty() || *name == "PYTHONUNBUFFERED";
        let base = base.into_iter().filter(of_host).filter(known);
        let mut env: Vec<(String, String)> = base.map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        env.extend(volumes::variables(&self.dir.join("work"), spec, isolated));
        env.retain(|(name, _)| !spec.env.contains_key(name));
        let early = spec.env.iter().filter(|(name, _)| !spec.image.is_empty() || !is_late(name));
        env.extend(early.map(|(k, v)| (k.clone(), v.clone())));
        if !spec.image.is_empty() {
            env.extend(secrets::variables(spec));
        }
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
}
