//! What one attempt is shut in with and limited to, put together from its specification and its host;
//! and what a host says of that in words. It must not start anything.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use berth_proto::Spec;

use crate::attempts::Record;
use crate::capacity;
use crate::cgroups::{Allowance, Controller};
use crate::daemon::Host;
use crate::device_nodes::Places;
use crate::images::{Podman, cdi, container};
use crate::sandbox::{Confined, Terms};
use crate::shim::{Container, Limits};
use crate::volumes;

/// A code and a sentence.
type Failure = (String, String);

fn failed(code: &str, detail: impl Into<String>) -> Failure {
    (code.to_owned(), detail.into())
}

/// The device nodes of an attempt. Simulated boards have none.
fn nodes(record: &Record, host: &Host) -> Result<Vec<PathBuf>, Failure> {
    let mut all = Vec::new();
    if host.simulated {
        return Ok(all);
    }
    let missing = |why: String| failed("device.unavailable", format!("The device cannot be used: {why}."));
    let places = Places::default();
    for device in &record.devices {
        let start = device.instance.map(|(_, start)| start);
        let wanted = host.gpus.node(&device.gpu_uuid, start).map_err(|e| missing(e.to_string()))?;
        all.extend(places.nodes(wanted).map_err(missing)?);
    }
    all.sort();
    all.dedup();
    Ok(all)
}

/// The devices of an attempt as podman is asked for them: by the Container Device Interface where that offers
/// all of them, else node by node.
fn asked_for(record: &Record, host: &Host) -> Result<Vec<String>, Failure> {
    let places = cdi::PLACES.map(PathBuf::from);
    let named: Option<Vec<String>> = record.devices.iter().map(|d| cdi::find(&places, d.visible())).collect();
    match named.filter(|_| !host.simulated) {
        Some(names) => Ok(names),
        None => Ok(nodes(record, host)?.iter().map(|node| node.display().to_string()).collect()),
    }
}

/// What an attempt in an image is started with.
pub struct Contained {
    pub confined: Confined,
    /// Of the command that holds on to the container; the job's own is in the container.
    pub env: Vec<(String, String)>,
    pub container: Container,
}

/// The limits of an attempt in an image, and the cgroup below which its container's own is made. Its cgroups
/// are made.
pub fn contained_limits(
    record: &Record,
    spec: &Spec,
    host: &Host,
    work: &Path,
) -> Result<(Limits, String), Failure> {
    let allowance = Allowance {
        cpu_milli: spec.cpu_milli,
        memory_mib: spec.memory_mib,
        pids: host.job_pids,
        devices: Vec::new(),
    };
    let (group, cgroup) = host
        .cgroups
        .create_nested(&container_name(record), &allowance)
        .map_err(|e| failed("worker.isolation", format!("The job's limits cannot be set: {e}.")))?;
    let disk = Some((work.to_owned(), host.job_disk_mib));
    let volumes = volumes::directories(work.parent().unwrap_or(work), spec);
    let (memory_mib, pids) = (spec.memory_mib, host.job_pids);
    Ok((Limits { group, memory_mib, pids, disk, volumes, nested: true }, cgroup))
}

/// The container of an attempt, made below `cgroup`; it starts with its shim.
pub fn contain(
    record: &Record,
    spec: &Spec,
    (host, podman): (&Host, &Podman),
    (dir, work): (&Path, &Path),
    cgroup: &str,
    env: &[(String, String)],
    command: &[String],
) -> Result<Contained, Failure> {
    let (Some(image), Some(uid)) = (&record.image, record.uid) else {
        return Err(failed("worker.isolation", "This node has no user left that no other job is."));
    };
    let devices = asked_for(record, host)?;
    let binds = volumes::binds(dir, spec);
    let terms = container::Terms {
        name: &container_name(record),
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
    let (confined, env, container) = podman.create(&terms, env, command)?;
    Ok(Contained { confined, env, container })
}

/// What podman calls the container of an attempt.
pub fn container_name(record: &Record) -> String {
    format!("{}-{}", record.job, record.number)
}

/// What is in memory counts as the job's memory.
fn scratch_mib(spec: &Spec, host: &Host) -> u64 {
    let memory_mib = if spec.memory_mib > 0 { spec.memory_mib } else { capacity::memory_mib() / 4 };
    memory_mib.clamp(1, host.job_disk_mib.max(1))
}

/// The list of users that an attempt sees, beside its directory; `None`: it sees the host's.
fn make_passwd(dir: &Path, record: &Record, host: &Host) -> Result<Option<PathBuf>, Failure> {
    let Some(text) = host.sandbox.passwd(record.uid) else { return Ok(None) };
    let file = dir.join("passwd");
    let made = std::fs::write(&file, text)
        .and_then(|()| std::fs::set_permissions(&file, Permissions::from_mode(0o644)));
    let why = |error| failed("worker.io", format!("The worker cannot write the job's files: {error}."));
    made.map(|()| Some(file)).map_err(why)
}

/// The command of an attempt as it is started, and its limits. Its cgroups are made; everything else only
/// when it starts.
pub fn confine(
    record: &Record,
    spec: &Spec,
    host: &Host,
    work: &Path,
    command: Vec<String>,
) -> Result<(Confined, Limits), Failure> {
    if spec.no_network && !host.sandbox.cuts_network() {
        let why = "This node cannot keep a job from the network, so it was not started.";
        return Err(failed("worker.isolation", why));
    }
    if host.sandbox.has_users() && record.uid.is_none() {
        return Err(failed("worker.isolation", "This node has no user left that no other job is."));
    }
    let devices = nodes(record, host)?;
    let dir = work.parent().unwrap_or(work);
    let passwd = make_passwd(dir, record, host)?;
    let allowance = Allowance {
        cpu_milli: spec.cpu_milli,
        memory_mib: spec.memory_mib,
        pids: host.job_pids,
        devices: devices.clone(),
    };
    let group = host
        .cgroups
        .create(&format!("{}-{}", record.job, record.number), &allowance)
        .map_err(|e| failed("worker.isolation", format!("The job's limits cannot be set: {e}.")))?;
    let binds = volumes::binds(dir, spec);
    let terms = Terms {
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
    Ok((host.sandbox.confine(&terms, command), limits))
}

/// The portal leaves out longer words.
pub const MOST_CHARS: usize = 120;

/// What keeps jobs apart on this host, in words.
pub fn words(host: &Host) -> BTreeMap<String, String> {
    let (sandbox, cgroups) = (&host.sandbox, &host.cgroups);
    let limited = |controller| cgroups.words(controller).unwrap_or("not limited").to_owned();
    let pids = match cgroups.words(Controller::Pids) {
        Some(group) => group,
        // A limit of a user counts for root's jobs only when each has its own.
        None if sandbox.isolated() => "rlimit",
        None => "not limited",
    };
    let devices = match (cgroups.words(Controller::Devices), sandbox.isolated()) {
        (Some(group), true) => format!("mount namespace, {group}"),
        (Some(group), false) => group.to_owned(),
        (None, true) => "mount namespace".to_owned(),
        (None, false) => "not limited".to_owned(),
    };
    let users = if sandbox.has_users() { "one for each job" } else { "the worker's, for all jobs" };
    let images = host.images.as_ref().map_or_else(|why| format!("off: {why}"), Podman::name);
    let network = if sandbox.cuts_network() { "the host's, or none" } else { "the host's" };
    [
        ("sandbox", sandbox.name()),
        ("seccomp", if sandbox.isolated() { "on" } else { "off" }.to_owned()),
        ("users", users.to_owned()),
        ("memory", limited(Controller::Memory)),
        ("cpu", limited(Controller::Cpu)),
        ("pids", pids.to_owned()),
        ("devices", devices),
        ("network", network.to_owned()),
        ("disk", format!("{} MiB, looked at every 5 s", host.job_disk_mib)),
        ("images", images.chars().take(MOST_CHARS).collect()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}
