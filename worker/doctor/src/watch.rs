//! The examinations of the host of a running daemon, as messages.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use berth_gpu::{Gpus, find_persistence, hold_driver};
use berth_proto::{Diagnosis, FindingState as SentState};

use super::finding::{Finding, FindingState};
use super::host::{Host, NvmlStart};
use super::{count_unregistered, examine, nvml_start};

/// The time between two examinations.
const EXAMINE_EVERY: Duration = Duration::from_secs(600);
/// The most findings of a message.
const MAX_FINDINGS: usize = 64;

/// Examines this host now and every ten minutes in a thread of its own, until `report` returns false. The session of
/// the daemon proves the address of the portal, so it is not checked.
pub fn watch(
    data: PathBuf,
    gpus: Arc<Gpus>,
    simulated: bool,
    host_mounts: Vec<(String, PathBuf)>,
    device_filter_refusal: Option<String>,
    mut report: impl FnMut(Diagnosis) -> bool + Send + 'static,
) {
    let examinations = move || {
        loop {
            // NVML is closed during a reset, and nvidia-smi in its place would hold the boards against the reset.
            drop(hold_driver(&gpus));
            let nvml = if simulated { NvmlStart::Untried } else { nvml_start(Ok(&*gpus)) };
            let persistence = if simulated { None } else { find_persistence(&gpus) };
            let unregistered_boards = if simulated { 0 } else { count_unregistered(&gpus) };
            let host_mounts = host_mounts.clone();
            let device_filter_refusal = device_filter_refusal.clone();
            let local = Host::local(data.clone(), nvml);
            let host = Host {
                simulated,
                host_mounts,
                persistence,
                unregistered_boards,
                device_filter_refusal,
                ..local
            };
            if !report(diagnosis(examine(&host))) {
                return;
            }
            thread::sleep(EXAMINE_EVERY);
        }
    };
    if let Err(error) = thread::Builder::new().name("doctor".to_owned()).spawn(examinations) {
        tracing::error!(%error, "the host is not examined");
    }
}

fn diagnosis(findings: Vec<Finding>) -> Diagnosis {
    Diagnosis { findings: findings.into_iter().take(MAX_FINDINGS).map(message).collect() }
}

fn message(finding: Finding) -> berth_proto::Finding {
    let state = match finding.state {
        FindingState::Ok => SentState::Ok,
        FindingState::Warning => SentState::Warning,
        FindingState::Problem => SentState::Problem,
        FindingState::Unknown => SentState::Unknown,
    };
    berth_proto::Finding {
        code: finding.code.to_owned(),
        state: state.into(),
        found: finding.found,
        next: finding.next.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::CODES;
    use super::*;

    #[test]
    fn each_state_reaches_the_message() {
        let findings = vec![
            Finding::ok("driver.module", "Good."),
            Finding::warning("driver.caps", "Bad.", "modprobe nvidia"),
            Finding::problem("driver.nodes", "Bad.", "modprobe nvidia"),
            Finding::unknown("kernel.clock", "Bad.", "modprobe nvidia"),
        ];
        let sent = diagnosis(findings).findings;
        let states: Vec<SentState> = sent.iter().map(berth_proto::Finding::state).collect();
        assert_eq!(states, [SentState::Ok, SentState::Warning, SentState::Problem, SentState::Unknown]);
        let next: Vec<&str> = sent.iter().map(|finding| finding.next.as_str()).collect();
        assert_eq!(next, ["", "modprobe nvidia", "modprobe nvidia", "modprobe nvidia"]);
        assert!(CODES.len() <= MAX_FINDINGS);
    }
}
