//! The parse of workers' reports about attempts and boards, with all bounds on their values and texts.

use berth_fleet::reports::{BoardReport, GpuTaskResult, ReportedFault};
use berth_jobs::reports::{AttemptPhase, AttemptReport, DeviceLoss, ReportedEvidence};
use berth_proto as proto;
use berth_types::health::GpuFacts;
use berth_types::jobs::Failure;

use super::attempt_key;

/// Characters of the failure code of an attempt.
const MAX_CODE_CHARS: usize = 64;
/// Characters of the UUID of a board or a slice.
pub(super) const MAX_UUID_CHARS: usize = 256;
/// Characters of another text about an attempt.
const MAX_CHARS: usize = 4_000;
/// Characters of a text on one line: the progress of an attempt, or a text about a board.
const MAX_LINE_CHARS: usize = 500;
/// The most losses of devices that are stored for one rank, each with its time.
const MAX_LOSSES: usize = 64;

/// A text without control characters except for line breaks and tabs, cut to `most` characters. A failure may
/// quote foreign text, such as a registry's. Postgres accepts no NUL, and a worker sends a status again until
/// it is stored.
fn clean_text(text: &str, most: usize) -> String {
    let kept = |c: &char| matches!(c, '\n' | '\t') || !c.is_control();
    text.chars().filter(kept).take(most).collect()
}

/// A text without control characters, cut to [`MAX_LINE_CHARS`].
pub(super) fn clean_line(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_LINE_CHARS).collect()
}

/// A valid SHA-256 digest of an image; `None` for any other text.
fn parse_digest(text: &str) -> Option<String> {
    let hex = text.strip_prefix("sha256:")?;
    (hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit())).then(|| text.to_owned())
}

const fn to_phase(phase: proto::Phase) -> AttemptPhase {
    match phase {
        proto::Phase::Unspecified => AttemptPhase::Unknown,
        proto::Phase::Preparing => AttemptPhase::Preparing,
        proto::Phase::Running => AttemptPhase::Running,
        proto::Phase::Ended => AttemptPhase::Ended,
        proto::Phase::Clean => AttemptPhase::Clean,
    }
}

/// Evidence without negative times and without empty losses.
fn to_evidence(evidence: &proto::Evidence) -> ReportedEvidence {
    let losses = evidence.losses.iter().take(MAX_LOSSES);
    let losses = losses.map(|lost| DeviceLoss { from_ms: lost.from_ms.max(0), until_ms: lost.until_ms });
    ReportedEvidence {
        process_ms: evidence.process_ms.max(0),
        device_ms: evidence.device_ms.max(0),
        lost_ms: evidence.lost_ms.max(0),
        busy_ms: evidence.busy_ms.map(|ms| ms.max(0)),
        losses: losses.filter(|loss| loss.from_ms < loss.until_ms).collect(),
    }
}

/// The report in a status; `None` for a status without a valid attempt.
pub(super) fn attempt_report(status: &proto::Status) -> Option<AttemptReport> {
    let (job, attempt) = attempt_key(status.attempt.as_ref())?;
    Some(AttemptReport {
        job,
        attempt,
        // A phase of a newer worker is unspecified.
        phase: to_phase(status.phase()),
        metered_ms: status.metered_ms.max(0),
        mig_uuids: status.mig_uuids.iter().map(|uuid| clean_text(uuid, MAX_UUID_CHARS)).collect(),
        exit_code: status.exit_code,
        timed_out: status.timed_out,
        failure: status.failure.as_ref().map(|failure| Failure {
            code: clean_text(&failure.code, MAX_CODE_CHARS),
            detail: clean_text(&failure.detail, MAX_CHARS),
        }),
        log_bytes: status.log_bytes,
        unclean: status.unclean.as_deref().map(|reason| clean_text(reason, MAX_CHARS)),
        evidence: status.evidence.as_ref().map(to_evidence),
        saving: status.uploading,
        progress: Some(clean_line(&status.progress)).filter(|progress| !progress.is_empty()),
        image_digest: parse_digest(&status.image_digest),
        began: status.started,
    })
}

/// The facts about a board, without empty texts.
fn to_facts(facts: &proto::BoardFacts) -> GpuFacts {
    let text = |text: &Option<String>| text.as_deref().map(clean_line).filter(|t| !t.is_empty());
    GpuFacts {
        serial: text(&facts.serial),
        vbios: text(&facts.vbios),
        pci_bus_id: text(&facts.pci_bus_id),
        compute_capability: text(&facts.compute_capability),
        power_limit_watts: facts.power_limit_watts,
        ecc: facts.ecc,
        ecc_pending: facts.ecc_pending,
        mig: facts.mig,
        mig_pending: facts.mig_pending,
        nvlinks: facts.nvlinks,
        ecc_corrected: facts.ecc_corrected,
        ecc_uncorrected: facts.ecc_uncorrected,
        rows_corrected: facts.rows_corrected,
        rows_uncorrected: facts.rows_uncorrected,
        replacement_pending: facts.replacement_pending,
        replacement_failed: facts.replacement_failed,
        recovery: facts.recovery,
    }
}

/// The report about one board. A fault or a result with a number beyond the range of the store is left out.
fn board_report(board: proto::BoardHealth) -> BoardReport {
    let fault = board.fault.and_then(|fault| {
        Some(ReportedFault {
            serial: i64::try_from(fault.serial).ok()?,
            code: clean_line(&fault.code),
            detail: clean_line(&fault.detail),
        })
    });
    let done = board.task_result.and_then(|done| {
        let number = i64::try_from(done.number).ok()?;
        Some(GpuTaskResult { number, good: done.succeeded, message: clean_line(&done.message) })
    });
    BoardReport {
        silent: board.silent.as_deref().map(clean_line),
        fault,
        done,
        facts: board.facts.as_ref().map(to_facts),
        gpu_uuid: board.gpu_uuid,
    }
}

/// The reports about the boards of a node.
pub(super) fn board_reports(health: proto::Health) -> Vec<BoardReport> {
    health.boards.into_iter().map(board_report).collect()
}

#[cfg(test)]
mod tests {
    use berth_proto::Message as _;
    use proptest::prelude::*;

    use super::*;

    fn status() -> proto::Status {
        let attempt = Some(proto::AttemptId::new("job_00000000000000000000000009", 3));
        proto::Status { attempt, ..proto::Status::default() }
    }

    #[test]
    fn the_texts_of_a_report_can_be_stored() {
        let detail = format!("a\u{0}b\nc\u{1b}[0m{}", "x".repeat(10_000));
        let failure = Some(proto::Failure { code: "image\u{0}.pull".to_owned(), detail });
        let unclean = Some("held by \u{0}7".to_owned());
        let mig_uuids = vec!["MIG\u{0}-1".to_owned()];
        let progress = format!("Pulling\n {}", "x".repeat(9_000));
        let report =
            attempt_report(&proto::Status { failure, unclean, mig_uuids, progress, ..status() }).unwrap();
        let failure = report.failure.unwrap();
        assert_eq!((failure.code.as_str(), failure.detail.len()), ("image.pull", MAX_CHARS));
        assert!(failure.detail.starts_with("ab\nc[0mx"), "{}", failure.detail);
        assert_eq!(
            (report.unclean.as_deref(), report.mig_uuids),
            (Some("held by 7"), vec!["MIG-1".to_owned()])
        );
        let progress = report.progress.unwrap();
        assert!(progress.starts_with("Pulling xx") && progress.len() == MAX_LINE_CHARS, "{progress}");
    }

    fn text() -> impl Strategy<Value = String> {
        prop_oneof![
            4 => "(?s).{0,40}",
            1 => Just("\u{0}\u{e9}\n".repeat(2_500)),
            1 => Just(format!("sha256:{}", "0f".repeat(32))),
        ]
    }

    /// Any status, often of an attempt.
    fn any_status() -> impl Strategy<Value = proto::Status> {
        let job = prop_oneof![3 => Just("job_00000000000000000000000009".to_owned()), 1 => text()];
        let attempt = prop::option::of((job, any::<u32>()));
        let failure = prop::option::of((text(), text()));
        let texts = (text(), text(), prop::option::of(text()), prop::collection::vec(text(), 0..4));
        let losses = prop::collection::vec((any::<i64>(), any::<i64>()), 0..80);
        let numbers = (any::<i32>(), any::<i64>(), any::<i64>());
        (attempt, failure, texts, losses, numbers).prop_map(|(attempt, failure, texts, losses, numbers)| {
            let (progress, image_digest, unclean, mig_uuids) = texts;
            let (phase, metered_ms, process_ms) = numbers;
            let losses = losses
                .into_iter()
                .map(|(from_ms, until_ms)| proto::DeviceLoss { from_ms, until_ms })
                .collect();
            let (device_ms, lost_ms, busy_ms) = (metered_ms, process_ms, Some(metered_ms));
            proto::Status {
                attempt: attempt.map(|(job, number)| proto::AttemptId::new(job, number)),
                phase,
                metered_ms,
                mig_uuids,
                failure: failure.map(|(code, detail)| proto::Failure { code, detail }),
                unclean,
                evidence: Some(proto::Evidence { process_ms, device_ms, lost_ms, busy_ms, losses }),
                progress,
                image_digest,
                ..proto::Status::default()
            }
        })
    }

    /// True if the text can be stored.
    fn is_clean(text: &str, most: usize) -> bool {
        text.chars().count() <= most && !text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\t'))
    }

    proptest! {
        #[test]
        fn every_report_can_be_stored(
            status in any_status(),
            at in any::<prop::sample::Index>(),
            byte in prop::option::of(any::<u8>()),
        ) {
            let mut bytes = status.encode_to_vec();
            prop_assert_eq!(proto::Status::decode(bytes.as_slice()).ok(), Some(status));
            let length = bytes.len();
            if let Some(byte) = byte.filter(|_| length > 0) {
                bytes[at.index(length)] = byte;
            }
            let Ok(damaged) = proto::Status::decode(bytes.as_slice()) else { return Ok(()) };
            let Some(report) = attempt_report(&damaged) else { return Ok(()) };
            let (failure, evidence) = (report.failure, report.evidence);
            prop_assert!(failure.iter().all(|f| is_clean(&f.code, MAX_CODE_CHARS) && is_clean(&f.detail, MAX_CHARS)));
            prop_assert!(report.mig_uuids.iter().all(|uuid| is_clean(uuid, MAX_UUID_CHARS)));
            prop_assert!(report.unclean.iter().all(|text| is_clean(text, MAX_CHARS)));
            prop_assert!(report.progress.iter().all(|text| is_clean(text, MAX_LINE_CHARS) && !text.contains('\n')));
            prop_assert!(report.image_digest.iter().all(|digest| digest.len() == 71));
            prop_assert!(report.metered_ms >= 0);
            if let Some(evidence) = evidence {
                prop_assert!(evidence.process_ms.min(evidence.device_ms).min(evidence.lost_ms) >= 0);
                prop_assert!(evidence.losses.len() <= MAX_LOSSES);
                prop_assert!(evidence.losses.iter().all(|loss| 0 <= loss.from_ms && loss.from_ms < loss.until_ms));
            }
        }
    }

    #[test]
    fn a_status_without_an_attempt_or_values_is_no_more_than_that() {
        let strange = proto::AttemptId::new("../../etc", 1);
        for attempt in [None, Some(strange)] {
            assert_eq!(attempt_report(&proto::Status { attempt, ..proto::Status::default() }), None);
        }
        let (job, number) = attempt_key(status().attempt.as_ref()).unwrap();
        let empty = AttemptReport::new(job, number, AttemptPhase::Unknown);
        assert_eq!(attempt_report(&status()), Some(empty.clone()));
        // A phase of a newer worker version.
        let strange = proto::Status {
            phase: 77,
            metered_ms: -5,
            progress: "\n".to_owned(),
            image_digest: "not one".to_owned(),
            ..status()
        };
        assert_eq!(attempt_report(&strange), Some(empty));
        let name = format!("sha256:{}", "0f".repeat(32));
        let report = attempt_report(&proto::Status { image_digest: name.clone(), ..status() }).unwrap();
        assert_eq!(report.image_digest, Some(name));
    }

    #[test]
    fn evidence_has_no_negative_times_and_few_losses() {
        let lost = |from_ms: i64, until_ms: i64| proto::DeviceLoss { from_ms, until_ms };
        let evidence = proto::Evidence {
            process_ms: -1,
            device_ms: 5,
            lost_ms: -2,
            busy_ms: Some(-3),
            losses: vec![lost(-4, 6), lost(7, 7), lost(-9, -8)],
        };
        let report = attempt_report(&proto::Status { evidence: Some(evidence), ..status() }).unwrap();
        let losses = vec![DeviceLoss { from_ms: 0, until_ms: 6 }];
        let expected = ReportedEvidence { process_ms: 0, device_ms: 5, lost_ms: 0, busy_ms: Some(0), losses };
        assert_eq!(report.evidence, Some(expected));
        let many = proto::Evidence { losses: vec![lost(1, 2); 70], ..proto::Evidence::default() };
        assert_eq!(to_evidence(&many).losses.len(), MAX_LOSSES);
    }

    #[test]
    fn the_report_of_a_board_can_be_stored() {
        let fault = |serial| proto::BoardFault { serial, code: "gpu\n.xid".to_owned(), ..Default::default() };
        let done = |number| proto::TaskResult { number, message: "a\u{0}b".to_owned(), ..Default::default() };
        let facts = proto::BoardFacts {
            serial: Some("\u{0}".to_owned()),
            vbios: Some("x".repeat(900)),
            ..proto::BoardFacts::default()
        };
        let board = proto::BoardHealth {
            gpu_uuid: "GPU-1".to_owned(),
            silent: Some("no\nanswer".to_owned()),
            fault: Some(fault(7)),
            task_result: Some(done(8)),
            facts: Some(facts),
        };
        let report = board_report(board.clone());
        assert_eq!((report.gpu_uuid.as_str(), report.silent.as_deref()), ("GPU-1", Some("noanswer")));
        assert_eq!(report.fault.map(|f| (f.serial, f.code)), Some((7, "gpu.xid".to_owned())));
        assert_eq!(report.done.map(|d| (d.number, d.message)), Some((8, "ab".to_owned())));
        let facts = report.facts.unwrap();
        assert_eq!((facts.serial, facts.vbios.unwrap().len()), (None, MAX_LINE_CHARS));
        let (fault, task_result) = (Some(fault(u64::MAX)), Some(done(u64::MAX)));
        let report = board_report(proto::BoardHealth { fault, task_result, ..board });
        assert_eq!((report.fault, report.done), (None, None));
    }
}
