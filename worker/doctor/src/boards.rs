//! The services beside the boards: persistence, the fabric, monitors.

use super::commands::CommandError;
use super::finding::Finding;
use super::host::Host;

const PERSISTENCE: &str = "boards.persistence";
const FABRIC: &str = "boards.fabric";
const MONITORS: &str = "boards.monitors";

/// Monitors that hold boards, with the commands that stop them. The kernel cuts names after 15 bytes.
const HOLDERS: [(&str, &str); 4] = [
    ("nv-hostengine", "systemctl stop nvidia-dcgm"),
    ("dcgm-exporter", "systemctl stop dcgm-exporter"),
    ("dcgmi", "Stop dcgmi"),
    ("nvtop", "Stop nvtop"),
];

/// The checks of the services beside the boards.
pub(crate) fn findings(host: &Host) -> Vec<Finding> {
    let processes = host.processes();
    vec![persistence(host, &processes), fabric(host, &processes), monitors(&processes)]
}

/// True if a process with this name runs.
fn runs(processes: &[(u32, String)], name: &str) -> bool {
    // The name of a process has at most 15 bytes.
    let cut = name.get(..15).unwrap_or(name);
    processes.iter().any(|(_, known)| known == cut)
}

fn persistence(host: &Host, processes: &[(u32, String)]) -> Finding {
    let next = "systemctl enable --now nvidia-persistenced. Without this unit: nvidia-smi -pm 1";
    if runs(processes, "nvidia-persistenced") {
        return Finding::ok(PERSISTENCE, "nvidia-persistenced runs.");
    }
    let ask = || -> Result<bool, CommandError> {
        let modes = host.ask("nvidia-smi", &["--query-gpu=persistence_mode", "--format=csv,noheader"])?;
        Ok(!modes.trim().is_empty() && modes.lines().all(|mode| mode.trim() == "Enabled"))
    };
    // nvidia-smi holds the boards while it runs, and a board that is held keeps its MIG mode. So a daemon does not run
    // it beside the starts of jobs.
    match host.persistence.map_or_else(ask, Ok) {
        Err(error) => Finding::unknown(
            PERSISTENCE,
            format!("nvidia-persistenced does not run, and nvidia-smi gives no answer: {error}."),
            next,
        ),
        Ok(true) => Finding::ok(PERSISTENCE, "The persistence mode of all boards is on."),
        Ok(false) => Finding::warning(
            PERSISTENCE,
            "The driver unloads boards without a process: jobs start seconds later, and Hopper boards lose their MIG mode.",
            next,
        ),
    }
}

fn fabric(host: &Host, processes: &[(u32, String)]) -> Finding {
    let switches = host.names("/proc/driver/nvidia-nvswitch/devices").len();
    if switches == 0 {
        return Finding::ok(FABRIC, "The host has no NVSwitch.");
    }
    if runs(processes, "nv-fabricmanager") && host.unregistered_boards > 0 {
        return Finding::problem(
            FABRIC,
            format!(
                "nv-fabricmanager runs. CUDA does not start on boards without a complete registration with the NVLink fabric: {}.",
                host.unregistered_boards
            ),
            "systemctl status nvidia-fabricmanager. After an error: systemctl restart nvidia-fabricmanager",
        );
    }
    if runs(processes, "nv-fabricmanager") {
        return Finding::ok(FABRIC, format!("nv-fabricmanager runs for {switches} NVSwitch devices."));
    }
    Finding::problem(
        FABRIC,
        "The host has NVSwitch and nv-fabricmanager does not run, so CUDA does not start on its boards.",
        "systemctl enable --now nvidia-fabricmanager. Without this unit: install the package nvidia-fabricmanager of the driver's version",
    )
}

fn monitors(processes: &[(u32, String)]) -> Finding {
    let found: Vec<(&(u32, String), &str)> = processes
        .iter()
        .filter_map(|process| {
            let (_, stop) = HOLDERS.iter().find(|(name, _)| *name == process.1)?;
            Some((process, *stop))
        })
        .collect();
    if found.is_empty() {
        return Finding::ok(MONITORS, "No known monitor holds the boards.");
    }
    let names: Vec<String> = found.iter().map(|((id, name), _)| format!("{name} (process {id})")).collect();
    let mut commands: Vec<&str> = found.iter().map(|(_, stop)| *stop).collect();
    commands.dedup();
    Finding::warning(
        MONITORS,
        format!(
            "Monitors can hold boards, so changes of MIG slices and of MIG modes can fail: {}.",
            names.join(", ")
        ),
        commands.join("; "),
    )
}
