//! The confinement of one attempt from its specification and its host: sandbox or container, cgroups, device nodes
//! and disk limit. This module starts no process of the job.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use berth_proto::Spec;

use super::host::Host;
use super::record::AttemptRecord;
use crate::images::container::ContainerSpec;
use crate::images::{Podman, cdi};
use crate::inputs::volumes;
use crate::isolation::cgroups::Allowance;
use crate::isolation::device_nodes::DeviceTree;
use crate::isolation::sandbox::{ConfinedCommand, SandboxSpec};
use crate::model::{JobFailure, job_failure, start_failure};
use crate::shim::{Container, Limits};
use crate::system::capacity;

/// The device nodes of an attempt. Simulated boards have none.
fn device_nodes(record: &AttemptRecord, host: &Host) -> Result<Vec<PathBuf>, JobFailure> {
    let mut all = Vec::new();
    if host.simulated {
        return Ok(all);
    }
    let missing =
        |why: String| start_failure("device.unavailable", format!("The device is unavailable: {why}"));
    let tree = DeviceTree::default();
    for device in &record.devices {
        let start = device.instance.map(|(_, start)| start);
        let numbers =
            host.gpus.device_numbers(&device.gpu_uuid, start).map_err(|e| missing(e.to_string()))?;
        all.extend(tree.nodes(numbers.minor, numbers.gpu_instance).map_err(missing)?);
    }
    all.sort();
    all.dedup();
    Ok(all)
}

/// The devices of an attempt in podman's form: names of the Container Device Interface if that offers all of them,
/// else nodes.
fn container_devices(record: &AttemptRecord, host: &Host) -> Result<Vec<String>, JobFailure> {
    let dirs = cdi::SPECIFICATION_DIRS.map(PathBuf::from);
    let names = record.devices.iter().map(|d| cdi::find(&dirs, d.visible_name()));
    let named: Option<Vec<String>> = names.collect();
    match named.filter(|_| !host.simulated) {
        Some(names) => Ok(names),
        None => Ok(device_nodes(record, host)?.iter().map(|node| node.display().to_string()).collect()),
    }
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
    let allowance = Allowance {
        cpu_milli: spec.cpu_milli,
        memory_mib: spec.memory_mib,
        pids: host.job_pids,
        devices: Vec::new(),
    };
    let (group, cgroup) = host.cgroups.create_nested(&record.container_name(), &allowance).map_err(|e| {
        start_failure("worker.isolation", format!("The limits of the job cannot be set: {e}"))
    })?;
    let disk = Some((work.to_owned(), host.job_disk_mib));
    let volumes = volumes::directories(work.parent().unwrap_or(work), spec);
    let (memory_mib, pids) = (spec.memory_mib, host.job_pids);
    Ok((Limits { group, memory_mib, pids, disk, volumes, nested: true }, cgroup))
}

/// Creates the container of an attempt below `cgroup`. Its shim starts it.
pub fn contain(
    record: &AttemptRecord,
    spec: &Spec,
    (host, podman): (&Host, &Podman),
    (dir, work): (&Path, &Path),
    cgroup: &str,
    env: &[(String, String)],
    command: &[String],
) -> Result<ContainedCommand, JobFailure> {
    let (Some(image), Some(uid)) = (&record.image, record.uid) else {
        return Err(no_user_left());
    };
    let devices = container_devices(record, host)?;
    let binds = volumes::bind_mounts(dir, spec);
    let container_spec = ContainerSpec {
        name: &record.container_name(),
        image,
        dir,
        work,
        uid,
        network: !spec.no_network,
        devices: &devices,
        secrets: record.secrets.as_deref(),
        scratch_mib: scratch_mib(spec, host),
        cgroup,
        pids: host.job_pids,
        volumes: &binds,
    };
    let (confined, env, container) = podman.create(&container_spec, env, command)?;
    Ok(ContainedCommand { confined, env, container })
}

fn no_user_left() -> JobFailure {
    start_failure("worker.isolation", "This node has no free user for the job")
}

/// The limit of each memory file system of a job, whose content counts as the job's memory.
fn scratch_mib(spec: &Spec, host: &Host) -> u64 {
    let memory_mib = if spec.memory_mib > 0 { spec.memory_mib } else { capacity::memory_mib() / 4 };
    memory_mib.clamp(1, host.job_disk_mib.max(1))
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
    spec: &Spec,
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
    let devices = device_nodes(record, host)?;
    let dir = work.parent().unwrap_or(work);
    let passwd = write_passwd(dir, record, host)?;
    let allowance = Allowance {
        cpu_milli: spec.cpu_milli,
        memory_mib: spec.memory_mib,
        pids: host.job_pids,
        devices: devices.clone(),
    };
    let group = host.cgroups.create(&record.container_name(), &allowance).map_err(|e| {
        start_failure("worker.isolation", format!("The limits of the job cannot be set: {e}"))
    })?;
    let binds = volumes::bind_mounts(dir, spec);
    let sandbox_spec = SandboxSpec {
        work,
        uid: record.uid.unwrap_or(0),
        network: !spec.no_network,
        devices: &devices,
        secrets: record.secrets.as_deref(),
        scratch_mib: scratch_mib(spec, host),
        passwd: passwd.as_deref(),
        volumes: &binds,
    };
    let limits = Limits {
        group,
        memory_mib: spec.memory_mib,
        pids: host.job_pids,
        disk: Some((work.to_owned(), host.job_disk_mib)),
        volumes: volumes::directories(dir, spec),
        nested: false,
    };
    Ok((host.sandbox.confine(&sandbox_spec, command), limits))
}
