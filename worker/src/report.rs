//! What the portal is told of an attempt.
//!
//! Reads only what is known already; it looks at no process and no device.

use berth_proto::{AttemptId, Failure, LOG_LIMIT, Phase, Status};

use crate::agent::{Cleaning, Seen};
use crate::attempts::Attempt;
use crate::shim::{self, Exit};

fn log_full() -> Failure {
    Failure {
        code: "log.full".to_owned(),
        detail: format!(
            "Its log grew past {} MiB, so it was stopped; write large output to files.",
            LOG_LIMIT >> 20
        ),
    }
}

/// The limit that an attempt outgrew, if it ended for that.
fn outgrown(exit: &Exit) -> Option<Failure> {
    let found = exit.failure.clone().map(|(code, detail)| Failure { code, detail });
    found.or_else(|| exit.log_full.then(log_full))
}

impl Attempt {
    /// The report for the portal.
    pub fn status(&self, seq: u64) -> Status {
        let phase = match self.seen() {
            Seen::Preparing => Phase::Preparing,
            Seen::Running { .. } => Phase::Running,
            Seen::Ended(Cleaning::Done) => Phase::Clean,
            Seen::Ended(_) if self.unclean.is_some() => Phase::Clean,
            Seen::Ended(_) => Phase::Ended,
        };
        let ended = matches!(phase, Phase::Ended | Phase::Clean);
        let length = || std::fs::metadata(self.dir.join(shim::LOG)).map_or(0, |m| m.len());
        Status {
            seq,
            attempt: Some(AttemptId::new(&self.record.job, self.record.number)),
            phase: phase.into(),
            metered_ms: self.metered_ms(),
            mig_uuids: self.record.devices.iter().filter_map(|d| d.mig_uuid.clone()).collect(),
            exit_code: self.exit.as_ref().map(|e| e.code),
            timed_out: self.exit.as_ref().is_some_and(|e| e.timed_out),
            failure: self
                .record
                .failure
                .as_ref()
                .filter(|_| self.exit.is_none())
                // Whatever the process made of it: what it computed there cannot be trusted.
                .or(self.record.device_fault.as_ref().filter(|_| ended))
                .map(|(code, detail)| Failure { code: code.clone(), detail: detail.clone() })
                .or_else(|| self.exit.as_ref().and_then(outgrown)),
            log_bytes: ended.then(|| self.exit.as_ref().map_or_else(length, |e| e.log_bytes).min(LOG_LIMIT)),
            unclean: self.unclean.clone(),
            evidence: self.evidence(),
            saving: ended && self.saves(),
            progress: if phase == Phase::Preparing { self.progress.clone() } else { String::new() },
            image_digest: self.record.image.as_ref().map_or_else(String::new, |i| i.digest.clone()),
            began: self.start.is_some(),
        }
    }
}
