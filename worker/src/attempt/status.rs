//! The report of an attempt to the portal. It uses the known state and reads no process and no device.

use berth_contract::LOG_LIMIT;
use berth_proto::{Failure, Phase, Status};
use berth_shim::CommandExit;

use super::directory::Attempt;
use super::evidence::evidence;
use super::links::MeasuredLink;
use super::state::{AttemptState, CleaningState};

fn log_full() -> Failure {
    Failure {
        code: "log.full".to_owned(),
        detail: format!(
            "The log exceeded {} MiB, and the job was stopped. Write large output to files.",
            LOG_LIMIT >> 20
        ),
    }
}

/// The failure of an attempt that ended because of a limit.
fn limit_failure(exit: &CommandExit) -> Option<Failure> {
    let found = exit.failure.clone().map(|(code, detail)| Failure { code, detail });
    found.or_else(|| exit.log_full.then(log_full))
}

/// The report with this sequence number.
pub fn status(attempt: &Attempt, seq: u64) -> Status {
    let phase = match attempt.state() {
        AttemptState::Preparing => Phase::Preparing,
        AttemptState::Running { .. } => Phase::Running,
        AttemptState::Ended(CleaningState::Done) => Phase::Clean,
        AttemptState::Ended(_) if attempt.unclean.is_some() => Phase::Clean,
        AttemptState::Ended(_) => Phase::Ended,
    };
    let ended = matches!(phase, Phase::Ended | Phase::Clean);
    let length = || std::fs::metadata(attempt.dir.join(berth_shim::LOG)).map_or(0, |m| m.len());
    Status {
        seq,
        attempt: Some(attempt.key().id()),
        phase: phase.into(),
        metered_ms: attempt.metered_ms(),
        mig_uuids: attempt.record.devices.iter().filter_map(|d| d.mig_uuid.clone()).collect(),
        exit_code: attempt.exit.as_ref().map(|e| e.code),
        timed_out: attempt.exit.as_ref().is_some_and(|e| e.timed_out),
        failure: attempt
            .record
            .failure
            .as_ref()
            .filter(|_| attempt.exit.is_none())
            // After a failure of its board the result of the process cannot be trusted.
            .or(attempt.record.device_fault.as_ref().filter(|_| ended))
            .map(|(code, detail)| Failure { code: code.clone(), detail: detail.clone() })
            .or_else(|| attempt.exit.as_ref().and_then(limit_failure)),
        log_bytes: ended.then(|| attempt.exit.as_ref().map_or_else(length, |e| e.log_bytes).min(LOG_LIMIT)),
        unclean: attempt.unclean.clone(),
        evidence: evidence(attempt),
        uploading: ended && attempt.has_pending_outputs(),
        progress: if phase == Phase::Preparing { attempt.progress.clone() } else { String::new() },
        image_digest: attempt.record.image.as_ref().map_or_else(String::new, |i| i.digest.clone()),
        started: attempt.start.is_some(),
        links: attempt.record.links.iter().copied().map(MeasuredLink::to_message).collect(),
        ready: phase == Phase::Running && attempt.ready,
    }
}
