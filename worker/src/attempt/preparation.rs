//! The steps before an attempt starts: its files, its image, its devices, its confinement, its shim.
//!
//! Each resource is recorded before its creation, so a restarted daemon finds it. Blocking.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use berth_clearing::{ClearFailure, Device};
use berth_gpu::{GpuError, hold_driver};
use berth_images::Podman;
use berth_isolation::sandbox::{self, with_deferred_variables};
use berth_isolation::secret_files;
use berth_job_files::inputs::{checkpoint, volumes};
use berth_job_files::transfer::tree::change_owner;
use berth_proto::Spec;
use berth_shim::forker::ForkedShim;
use berth_shim::lease::{self, StartingLease};
use berth_shim::model::{JobFailure, job_failure, start_failure};
use berth_shim::{Launch, ShimSecrets};
use berth_system::files::{join_inside, put_json};
use berth_types::paths::SCRIPT;

use super::confinement;
use super::directory::Attempt;
use super::environment::environment;
use super::host::Host;
use super::rdma::rdma_access;

/// The connection of a preparation to the daemon.
pub struct PreparationControl<'a> {
    /// The reason to give up: the attempt is not wanted any more, or its lease has ended.
    pub given_up: &'a dyn Fn() -> Option<JobFailure>,
    /// Receives the progress as a sentence.
    pub progress: &'a dyn Fn(String),
    /// The lease, which the daemon renews until the shim takes over.
    pub lease: &'a StartingLease,
}

fn unwritable(error: io::Error) -> JobFailure {
    job_failure("worker.io", format!("The worker cannot write the files of the job: {error}."))
}

fn podman(host: &Host) -> Result<&Podman, JobFailure> {
    let off =
        |why: &String| start_failure("image.unavailable", format!("This node cannot run images: {why}"));
    host.images.as_ref().map_err(off)
}

/// A free port of the loopback. The program of the replica is the next to use it.
fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Writes a script, and returns the command that runs it.
fn write_script(work: &Path, text: &str) -> io::Result<Vec<String>> {
    let file = work.join(SCRIPT);
    std::fs::write(&file, text)?;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755))?;
    Ok(if text.starts_with("#!") {
        vec![format!("./{SCRIPT}")]
    } else {
        vec!["/bin/sh".to_owned(), SCRIPT.to_owned()]
    })
}

/// Makes devices and files, and starts the shim. After an error the attempt has failed.
pub fn prepare(
    attempt: &mut Attempt,
    spec: &Spec,
    host: &Host,
    control: &PreparationControl<'_>,
) -> Option<ForkedShim> {
    let result = Preparation { attempt: &mut *attempt, spec, host, control }.run();
    match result {
        Ok(shim) => Some(shim),
        Err(failure) => {
            attempt.fail(failure);
            None
        }
    }
}

struct Preparation<'a> {
    attempt: &'a mut Attempt,
    spec: &'a Spec,
    host: &'a Host,
    control: &'a PreparationControl<'a>,
}

impl Preparation<'_> {
    fn run(&mut self) -> Result<ForkedShim, JobFailure> {
        let spec = self.spec;
        if let Some(why) = &spec.unusable {
            return Err(job_failure(&why.code, why.detail.clone()));
        }
        let work = self.attempt.dir.join("work");
        self.make_files(&work)?;
        if !spec.image.is_empty() {
            // Before the devices: a pull may take long and may fail.
            let (given_up, progress) = (self.control.given_up, self.control.progress);
            let image = podman(self.host)?.pull(spec, &self.attempt.dir, given_up, progress)?;
            self.attempt.record.image = Some(image);
        }
        for index in 0..self.attempt.record.devices.len() {
            self.make_device(index)?;
        }
        self.write_secret_files()?;
        self.choose_port()?;
        let command = match &spec.script {
            None => spec.command.clone(),
            Some(text) => write_script(&work, text).map_err(unwritable)?,
        };
        if let Some(uid) = self.attempt.record.uid {
            change_owner(&work, uid, true).map_err(unwritable)?;
            volumes::change_owner(&self.attempt.dir, spec, uid).map_err(unwritable)?;
        }
        let launch = if spec.image.is_empty() {
            self.sandboxed_launch(&work, command)?
        } else {
            self.contained_launch(&work, &command)?
        };
        self.start_shim(&launch)
    }

    /// Gives a replica on the network of the host a free port, because another replica can have the port of its revision.
    fn choose_port(&mut self) -> Result<(), JobFailure> {
        let spec = self.spec;
        let is_on_host = spec.host_network || (self.host.network.is_of_host() && !spec.no_network);
        let Some(replica) = self.attempt.record.replica.as_mut().filter(|_| is_on_host) else {
            return Ok(());
        };
        replica.port = free_port().map_err(unwritable)?;
        // A restarted daemon dials it too.
        self.attempt.save().map_err(unwritable)
    }

    /// Writes the job's files, its checkpoint, and the mount points of its volumes.
    fn make_files(&self, work: &Path) -> Result<(), JobFailure> {
        let (spec, dir) = (self.spec, &self.attempt.dir);
        std::fs::create_dir_all(work).map_err(unwritable)?;
        for (path, text) in &spec.files {
            let outside = || start_failure("worker.files", format!("The path {path:?} leads out of the job"));
            let to = join_inside(work, path).ok_or_else(outside)?;
            if let Some(parent) = to.parent() {
                std::fs::create_dir_all(parent).map_err(unwritable)?;
            }
            std::fs::write(to, text).map_err(unwritable)?;
        }
        checkpoint::restore(dir, spec).map_err(unwritable)?;
        let record = &self.attempt.record;
        let own_user = record.uid.is_some();
        volumes::link_host_volumes(dir, spec, &record.organization, &self.host.mounts, own_user)?;
        let isolated = self.host.sandbox.isolated() || !spec.image.is_empty();
        volumes::create_mount_points(dir, work, spec, isolated).map_err(unwritable)
    }

    /// Makes one device. It is recorded as the attempt's before: the cleanup destroys only recorded devices.
    fn make_device(&mut self, index: usize) -> Result<(), JobFailure> {
        let unavailable =
            |e: GpuError| start_failure("device.unavailable", format!("The device cannot be prepared: {e}"));
        let mode_refused = |e: GpuError| match e {
            GpuError::InUse => start_failure(
                "device.unavailable",
                "The MIG mode of the board stays unchanged, because a process, a monitor or an instance holds \
                 the board",
            ),
            other => unavailable(other),
        };
        let gpus = &self.host.gpus;
        let Some(device) = self.attempt.record.devices.get_mut(index) else { return Ok(()) };
        let gpu = device.gpu_uuid.clone();
        let Some((profile, start)) = device.instance else {
            gpus.set_mig(&gpu, false).map_err(mode_refused)?;
            // The memory in use on a shared board is of its neighbours and proves nothing later.
            if device.share_milli.is_none() {
                device.idle_mib = gpus.used_mib(&gpu).ok();
            }
            return self.clear_memory(index, None);
        };
        gpus.set_mig(&gpu, true).map_err(mode_refused)?;
        device.made = true;
        self.attempt.save().map_err(unwritable)?;
        let made = gpus.create_slice(&gpu, profile, start);
        let Some(device) = self.attempt.record.devices.get_mut(index) else { return Ok(()) };
        match made {
            Ok(slice) => {
                device.gpu_instance = Some(slice.gi);
                device.mig_uuid = slice.mig_uuid;
                self.clear_memory(index, Some((slice.start, slice.size)))
            }
            Err(error) => {
                device.made = !matches!(error, GpuError::InUse | GpuError::Insufficient);
                Err(unavailable(error))
            }
        }
    }

    /// Clears the memory of a made device unless its last attempt was of the same organization. `slices` are the first
    /// memory slice and the number of slices of an instance: the driver makes no promise about the memory of a new one.
    fn clear_memory(&mut self, index: usize, slices: Option<(u32, u32)>) -> Result<(), JobFailure> {
        let (host, control) = (self.host, self.control);
        let record = &mut self.attempt.record;
        let Some(device) = record.devices.get(index) else { return Ok(()) };
        // An instance without a name ends the attempt before its start.
        let Some(visible_name) = device.visible_name() else { return Ok(()) };
        let shared = device.share_milli.is_some();
        let device = Device { gpu_uuid: &device.gpu_uuid, visible_name, slices, shared };
        // CUDA neither starts during the reset of another board nor lets it begin.
        let driver = hold_driver(&host.gpus).map_err(|error| {
            start_failure("device.unavailable", format!("The memory of the GPU cannot be cleared: {error}"))
        })?;
        let given_up = || (control.given_up)().is_some();
        let cleared = host.clearing.before_start(&device, &record.organization, &given_up, &|step| {
            (control.progress)(step.text());
        });
        drop(driver);
        match cleared {
            Ok(None) => Ok(()),
            Ok(Some(cleared)) => {
                record.cleared = Some(record.cleared.map_or(cleared, |others| others.plus(cleared)));
                self.attempt.save().map_err(unwritable)
            }
            Err(ClearFailure::GivenUp) => Err((control.given_up)().unwrap_or_else(|| {
                job_failure("attempt.not_started", "The job was stopped before its start.")
            })),
            // The portal takes the board out of service, so no other job gets it with the data of the earlier one.
            Err(ClearFailure::NotCleared(why)) => {
                let slice = slices.map(|_| visible_name);
                let users = host.gpus.holders(device.gpu_uuid, slice).unwrap_or_default();
                // Tenants see the number only.
                tracing::warn!(device = visible_name, ?users, why, "the memory of a device is not cleared");
                Err(start_failure("device.unavailable", not_cleared_text(&why, users.len())))
            }
            Err(ClearFailure::Unwritable(error)) => Err(unwritable(error)),
        }
    }

    fn write_secret_files(&mut self) -> Result<(), JobFailure> {
        let attempt = &mut self.attempt;
        attempt.record.secrets = secret_files::directory(&attempt.dir, self.spec);
        if let Some(dir) = &attempt.record.secrets {
            // Recorded before the files exist, so they are removed in every case.
            attempt.save().map_err(unwritable)?;
            secret_files::write(dir, self.spec, attempt.record.uid).map_err(unwritable)?;
        }
        Ok(())
    }

    fn sandboxed_launch(&mut self, work: &Path, command: Vec<String>) -> Result<Launch, JobFailure> {
        let (spec, host) = (self.spec, self.host);
        let attempt = &mut self.attempt;
        let command = with_deferred_variables(&spec.env, command);
        let rdma = rdma_access(&attempt.record, spec, host)?;
        let granted = (spec, rdma.as_ref());
        let storage_group = confinement::storage_group(&attempt.record, spec, host);
        let (confined, limits) = confinement::confine(&attempt.record, granted, host, work, command)?;
        attempt.record.group = limits.group.clone();
        if attempt.record.made_devices() {
            // The cleanup needs the UUIDs of the new MIG devices.
            attempt.save().map_err(unwritable)?;
        }
        Ok(Launch {
            env: environment(attempt, spec, &confined.home, host.sandbox.isolated(), rdma.as_ref())?,
            argv: confined.argv,
            cwd: confined.cwd,
            limit_ms: attempt.record.limit_ms,
            grace_ms: host.grace_ms,
            sandbox_depth: confined.sandbox_depth,
            limits,
            has_secrets: !spec.secrets.is_empty(),
            secrets: attempt.record.secrets.clone(),
            lease: lease::lease_for_shim(self.control.lease, &host.root),
            container: None,
            storage_group,
        })
    }

    fn contained_launch(&mut self, work: &Path, command: &[String]) -> Result<Launch, JobFailure> {
        let (spec, host) = (self.spec, self.host);
        let attempt = &mut self.attempt;
        let podman = podman(host)?;
        let rdma = rdma_access(&attempt.record, spec, host)?;
        let storage_group = confinement::storage_group(&attempt.record, spec, host);
        let (limits, cgroup) = confinement::contained_limits(&attempt.record, spec, host, work)?;
        // Recorded before the first process of the cgroups and of the container, whose name follows from the
        // attempt's.
        attempt.record.group = limits.group.clone();
        attempt.record.contained = true;
        attempt.save().map_err(unwritable)?;
        let env = environment(attempt, spec, sandbox::HOME, true, rdma.as_ref())?;
        let (dirs, granted) = ((attempt.dir.as_path(), work), (spec, rdma.as_ref()));
        let made =
            confinement::contain(&attempt.record, granted, (host, podman), dirs, &cgroup, &env, command)?;
        Ok(Launch {
            env: made.env,
            argv: made.confined.argv,
            cwd: made.confined.cwd,
            limit_ms: attempt.record.limit_ms,
            grace_ms: host.grace_ms,
            sandbox_depth: made.confined.sandbox_depth,
            limits,
            has_secrets: !spec.secrets.is_empty(),
            secrets: attempt.record.secrets.clone(),
            lease: lease::lease_for_shim(self.control.lease, &host.root),
            container: Some(made.container),
            storage_group,
        })
    }

    fn start_shim(&self, launch: &Launch) -> Result<ForkedShim, JobFailure> {
        let (host, dir) = (self.host, &self.attempt.dir);
        // The file names the cgroups for a restarted daemon before their first process; cgroups without a file are
        // swept. Not synced: neither shim nor cgroups outlive the host, and the shim syncs its start before the
        // command runs.
        put_json(&dir.join(berth_shim::LAUNCH), launch, false).map_err(unwritable)?;
        let (reader, writer) = launch.has_secrets.then(io::pipe).transpose().map_err(unwritable)?.unzip();
        let shim = host.forker.fork_shim(dir, reader.map(OwnedFd::from)).map_err(unwritable)?;
        if let Some(pid) = shim.pid {
            host.sharers.set_shim(dir, pid);
        }
        // Sent after the start: a pipe has a limited capacity and needs a reader.
        if let Some(pipe) = writer {
            ShimSecrets::from_spec(self.spec).send(pipe);
        }
        Ok(shim)
    }
}

/// The sentences about a failed clearing. Processes on the device are the usual cause.
fn not_cleared_text(why: &str, users: usize) -> String {
    let text = format!("The memory of the GPU cannot be cleared of the data of the earlier job: {why}");
    match users {
        0 => text,
        1 => text + ". A process uses the GPU",
        users => format!("{text}. {users} processes use the GPU"),
    }
}
