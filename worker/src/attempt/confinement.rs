//! The confinement of one attempt from its specification and its host: sandbox or container, cgroups, device nodes
//! and disk limit. This module starts no process of the job.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use berth_gpu::{GpuError, hold_driver};
use berth_images::Podman;
use berth_images::cdi::AttemptDevices;
use berth_images::container::ContainerSpec;
use berth_isolation::cgroups::Allowance;
use berth_isolation::sandbox::{BindMount, ConfinedCommand, SandboxNetwork, SandboxSpec};
use berth_job_files::inputs::volumes;
use berth_proto::Spec;
use berth_shim::model::{JobFailure, job_failure, start_failure};
use berth_shim::{Container, Limits};
use berth_system::capacity;

use super::attempt_network::find_or_create_network;
use super::host::Host;
use super::rdma::RdmaAccess;
use super::record::AttemptRecord;
use crate::devices::AttemptDevice;

fn unavailable(error: GpuError) -> JobFailure {
    start_failure("device.unavailable", format!("The device is unavailable: {error}"))
}

/// The nodes of an attempt's boards. Simulated boards have none.
fn device_nodes(record: &AttemptRecord, host: &Host) -> Result<Vec<PathBuf>, JobFailure> {
    let mut all = Vec::new();
    if host.simulated {
        return Ok(all);
    }
    // A missing node is a fault of the host, and `device.unavailable` would take the board out of service.
    let missing = |why: String| start_failure("worker.isolation", why);
    for device in &record.devices {
        let start = device.instance.map(|(_, start)| start);
        let numbers = host.gpus.device_numbers(&device.gpu_uuid, start).map_err(unavailable)?;
        let nodes = host.device_tree.nodes(numbers.minor, numbers.gpu_instance, Instant::now());
        all.extend(nodes.map_err(missing)?);
    }
    all.sort();
    all.dedup();
    Ok(all)
}

/// The nodes of an attempt's boards, and the driver's files of this host. Simulated boards have none.
fn container_devices(
    record: &AttemptRecord,
    (host, podman): (&Host, &Podman),
    uuids: &[&str],
) -> Result<(Vec<PathBuf>, Vec<BindMount>), JobFailure> {
    let nodes = device_nodes(record, host)?;
    if nodes.is_empty() {
        return Ok((nodes, Vec::new()));
    }
    // No reset of a board begins while the toolkit has all boards open.
    let in_use = podman.has_toolkit().then(|| hold_driver(&host.gpus)).transpose().map_err(unavailable)?;
    let driver = podman.driver_files(uuids, Instant::now());
    drop(in_use);
    Ok((nodes, driver))
}

/// The group of the attempt's organization for its volumes on host mounts. `None`: it has no such volume, or no user
/// of its own.
pub fn storage_group(record: &AttemptRecord, spec: &Spec, host: &Host) -> Option<u32> {
    let mount = spec.volumes.iter().find(|mount| !mount.class.is_empty())?;
    host.mounts.group(mount.group).filter(|_| record.uid.is_some())
}

/// An attempt in a container, as its shim starts it.
pub struct ContainedCommand {
    pub confined: ConfinedCommand,
    /// The environment of the command that attaches to the container, not of the job.
    pub env: Vec<(String, String)>,
    pub container: Container,
}

/// Creates the cgroups of an attempt in an image. Returns its limits, and the parent of the container's cgroup.
pub fn contained_limits(
    record: &AttemptRecord,
    spec: &Spec,
    host: &Host,
    work: &Path,
) -> Result<(Limits, String), JobFailure> {
    let attempt = record.limits(&host.limits);
    let allowance = Allowance {
        cpu_milli: spec.cpu_milli,
        memory_mib: spec.memory_mib,
        pids: attempt.pids,
        devices: Vec::new(),
    };
    let (group, cgroup) = host.cgroups.create_nested(&record.container_name(), &allowance).map_err(|e| {
        start_failure("worker.isolation", format!("The limits of the job cannot be set: {e}"))
    })?;
    let (memory_mib, volumes) = (spec.memory_mib, volumes::directories(work.parent().unwrap_or(work), spec));
    Ok((Limits { group, memory_mib, volumes, nested: true, ..attempt.for_shim(work) }, cgroup))
}

/// Creates the container of an attempt below `cgroup`. Its shim starts it.
pub fn contain(
    record: &AttemptRecord,
    (spec, rdma): (&Spec, Option<&RdmaAccess>),
    (host, podman): (&Host, &Podman),
    (dir, work): (&Path, &Path),
    cgroup: &str,
    env: &[(String, String)],
    command: &[String],
) -> Result<ContainedCommand, JobFailure> {
    let (Some(image), Some(uid)) = (&record.image, record.uid) else {
        return Err(no_user_left());
    };
    let uuids: Vec<&str> = record.devices.iter().filter_map(AttemptDevice::visible_name).collect();
    let (nodes, driver) = container_devices(record, (host, podman), &uuids)?;
    let binds = volumes::bind_mounts(dir, spec);
    let namespace = find_or_create_network(record, spec, host, (dir, rdma))?;
    let limits = record.limits(&host.limits);
    let container_spec = ContainerSpec {
        name: &record.container_name(),
        image,
        dir,
        work,
        uid,
        network: SandboxNetwork::new(namespace.as_ref(), spec.no_network),
        devices: AttemptDevices { uuids: &uuids, nodes: &nodes, driver: &driver },
        rdma: rdma.map(|rdma| rdma.nodes.as_slice()).unwrap_or_default(),
        secrets: record.secrets.as_deref(),
        scratch_mib: scratch_mib(spec, limits.disk_mib),
        cgroup,
        pids: limits.pids,
        open_files: limits.open_files,
        locked_memory: limits.locked_memory,
        volumes: &binds,
        storage_group: storage_group(record, spec, host),
    };
    let (confined, env, container) = podman.create(&container_spec, env, command)?;
    Ok(ContainedCommand { confined, env, container })
}

fn no_user_left() -> JobFailure {
    start_failure("worker.isolation", "This node has no free user for the job")
}

/// The limit of each memory file system of a job, whose content counts as the job's memory.
fn scratch_mib(spec: &Spec, disk_mib: u64) -> u64 {
    let memory_mib = if spec.memory_mib > 0 { spec.memory_mib } else { capacity::memory_mib() / 4 };
    memory_mib.clamp(1, disk_mib.max(1))
}

/// Writes the `/etc/passwd` of an attempt. `None`: it sees the host's.
fn write_passwd(dir: &Path, record: &AttemptRecord, host: &Host) -> Result<Option<PathBuf>, JobFailure> {
    let Some(text) = host.sandbox.passwd(record.uid) else { return Ok(None) };
    let file = dir.join("passwd");
    let written = std::fs::write(&file, text)
        .and_then(|()| std::fs::set_permissions(&file, Permissions::from_mode(0o644)));
    let why =
        |error| job_failure("worker.io", format!("The worker cannot write the files of the job: {error}."));
    written.map(|()| Some(file)).map_err(why)
}

/// Creates the cgroups of an attempt in the sandbox. Returns the command line that starts it, and its limits.
pub fn confine(
    record: &AttemptRecord,
    (spec, rdma): (&Spec, Option<&RdmaAccess>),
    host: &Host,
    work: &Path,
    command: Vec<String>,
) -> Result<(ConfinedCommand, Limits), JobFailure> {
    if spec.no_network && !host.sandbox.cuts_network() {
        let why = "This node cannot separate a job from the network";
        return Err(start_failure("worker.isolation", why));
    }
    if host.sandbox.has_users() && record.uid.is_none() {
        return Err(no_user_left());
    }
    let mut devices = device_nodes(record, host)?;
    devices.extend(rdma.into_iter().flat_map(|rdma| rdma.nodes.iter().cloned()));
    let dir = work.parent().unwrap_or(work);
    let passwd = write_passwd(dir, record, host)?;
    let namespace = find_or_create_network(record, spec, host, (dir, rdma))?;
    let attempt = record.limits(&host.limits);
    let allowance = Allowance {
        cpu_milli: spec.cpu_milli,
        memory_mib: spec.memory_mib,
        pids: attempt.pids,
        devices: devices.clone(),
    };
    let group = host.cgroups.create(&record.container_name(), &allowance).map_err(|e| {
        start_failure("worker.isolation", format!("The limits of the job cannot be set: {e}"))
    })?;
    let binds = volumes::bind_mounts(dir, spec);
    let sandbox_spec = SandboxSpec {
        work,
        uid: record.uid.unwrap_or(0),
        network: SandboxNetwork::new(namespace.as_ref(), spec.no_network),
        devices: &devices,
        secrets: record.secrets.as_deref(),
        scratch_mib: scratch_mib(spec, attempt.disk_mib),
        passwd: passwd.as_deref(),
        volumes: &binds,
        storage_group: storage_group(record, spec, host),
    };
    let (memory_mib, volumes) = (spec.memory_mib, volumes::directories(dir, spec));
    let limits = Limits { group, memory_mib, volumes, ..attempt.for_shim(work) };
    Ok((host.sandbox.confine(&sandbox_spec, command), limits))
}
