//! The doctor: checks a GPU host for a worker, and names the next command for each fault.
//!
//! It changes nothing. It reads files below the root of a [`Host`] and asks programs through [`Commands`], so tests
//! run it on recorded hosts. It knows no attempt, and of a portal only the address.

mod boards;
mod command;
mod commands;
mod driver;
mod finding;
mod host;
mod kernel;
mod limits;
mod network;
mod programs;
mod report;
mod settings;
mod storage;
#[cfg(test)]
mod tests;
mod watch;

use berth_gpu::{BoardCondition, GpuError, Gpus};

pub use command::{DoctorArgs, run};
pub use commands::{CommandError, Commands, HostCommands};
pub use finding::{CODES, Finding, FindingState, MAX_TEXT_CHARS, has_problem};
pub use host::{Host, NvmlStart};
pub use report::report_text;
pub use settings::Settings;
pub use watch::watch;

/// NVML's answer to the start of `gpus`.
fn nvml_start(gpus: Result<&Gpus, GpuError>) -> NvmlStart {
    match gpus.and_then(Gpus::driver_version) {
        Ok(version) => NvmlStart::Started(version),
        Err(error) => NvmlStart::Failed(error.to_string()),
    }
}

/// The number of whole boards without a complete registration with their NVLink fabric. Slices need none.
fn count_unregistered(gpus: &Gpus) -> usize {
    if gpus.known_boards().is_empty() && gpus.inventory().is_err() {
        return 0;
    }
    let conditions = gpus.conditions();
    let is_unready = |condition: &BoardCondition| {
        let description = &condition.description;
        description.mig != Some(true) && description.fabric.as_ref().is_some_and(|fabric| !fabric.is_ready())
    };
    conditions.iter().filter(|(_, condition)| is_unready(condition)).count()
}

/// Checks a host, in the order of [`CODES`]. Blocking, for some seconds at most: each program has two seconds.
///
/// A host with simulated boards has no findings about the driver and the boards. A host without the address of a
/// portal has none about it.
pub fn examine(host: &Host) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !host.simulated {
        findings.extend(driver::findings(host));
        findings.extend(boards::findings(host));
    }
    findings.extend(programs::findings(host));
    findings.extend(kernel::findings(host));
    findings.extend(limits::findings(host));
    findings.extend(storage::findings(host));
    findings.extend(network::findings(host));
    findings
}
