//! The isolation of jobs on this host, as text for the portal.

use std::collections::BTreeMap;

use berth_images::Podman;
use berth_isolation::cgroups::{Cgroups, Controller};

use super::host::Host;

/// The longest value that the portal accepts.
pub const MOST_CHARS: usize = 120;

/// The addition for a kernel that refuses the filter of device nodes; empty on other hosts.
fn unfiltered(cgroups: &Cgroups) -> String {
    cgroups.device_filter_refusal().map_or_else(String::new, |why| format!("; no BPF filter: {why}"))
}

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
        (None, true) => format!("mount namespace{}", unfiltered(cgroups)),
        (None, false) => format!("not limited{}", unfiltered(cgroups)),
    };
    let users = if sandbox.has_users() { "one for each job" } else { "the worker's, for all jobs" };
    let images = host.images.as_ref().map_or_else(|why| format!("off: {why}"), Podman::name);
    let or_none = if sandbox.cuts_network() { ", or none" } else { "" };
    [
        ("sandbox", sandbox.name()),
        ("seccomp", if sandbox.isolated() { "on" } else { "off" }.to_owned()),
        ("users", users.to_owned()),
        ("memory", limited(Controller::Memory)),
        ("cpu", limited(Controller::Cpu)),
        ("pids", pids.to_owned()),
        ("devices", devices.chars().take(MOST_CHARS).collect()),
        ("network", format!("{}{or_none}", host.network.description())),
        ("gang_network", host.network.gang_description()),
        ("disk", format!("{} MiB a board, checked every 5 s", host.limits.disk_mib)),
        ("gpu_memory", host.clearing.description().chars().take(MOST_CHARS).collect()),
        ("images", images.chars().take(MOST_CHARS).collect()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}
