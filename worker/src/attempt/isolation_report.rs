//! The isolation of jobs on this host, as text for the portal.

use std::collections::BTreeMap;

use super::host::Host;
use crate::images::Podman;
use crate::isolation::cgroups::Controller;

/// The longest value that the portal accepts.
pub const MOST_CHARS: usize = 120;

/// The kinds of isolation with their implementations here.
pub fn isolation_report(host: &Host) -> BTreeMap<String, String> {
    let (sandbox, cgroups) = (&host.sandbox, &host.cgroups);
    let limited = |controller| cgroups.version_text(controller).unwrap_or("not limited").to_owned();
    let pids = match cgroups.version_text(Controller::Pids) {
        Some(group) => group,
        // A limit per user works for root's jobs only if each has its own user.
        None if sandbox.isolated() => "rlimit",
        None => "not limited",
    };
    let devices = match (cgroups.version_text(Controller::Devices), sandbox.isolated()) {
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
        ("disk", format!("{} MiB, checked every 5 s", host.job_disk_mib)),
        ("images", images.chars().take(MOST_CHARS).collect()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}
