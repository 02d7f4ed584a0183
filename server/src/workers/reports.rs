//! The parse of workers' reports about attempts and boards, with all bounds on their values and texts.

use berth_fleet::reports::{BoardReport, DriverProfile, GpuTaskResult, ReportedFault};
use berth_jobs::reports::{
    AttemptPhase, AttemptReport, DeviceLoss, LinkFigures, ReportedEvidence, ReportedLink,
};
use berth_proto as proto;
use berth_types::diagnosis::{Finding, FindingState, MAX_FINDING_CHARS, MAX_FINDINGS};
use berth_types::evidence::MemoryClearing;
use berth_types::health::{FabricState, GpuFabric, GpuFacts};
use berth_types::jobs::Failure;
use uuid::Uuid;

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

/// The largest number of a clearing: JSON in a browser has no exact numbers from 2⁵³ on.
const MAX_NUMBER: u64 = 1 << 53;

/// The most links of a rank.
const MAX_LINKS: usize = 8;

/// The most MIG profiles of a board, and the most starts of one.
const MAX_PROFILES: usize = 64;
const MAX_STARTS: usize = 16;
/// The most boards of a node that are reset together.
const MAX_RESET_GROUP: usize = 64;

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
        memory_clearing: evidence.memory_clearing.as_ref().map(to_memory_clearing),
    }
}

/// The proof of a clearing, with numbers that every client can read.
fn to_memory_clearing(clearing: &proto::MemoryClearing) -> MemoryClearing {
    let bounded = |n: u64| n.min(MAX_NUMBER);
    MemoryClearing {
        cleared_bytes: bounded(clearing.cleared_bytes),
        total_bytes: bounded(clearing.total_bytes),
        samples: bounded(clearing.samples),
        took_ms: bounded(clearing.took_ms),
    }
}

/// The link of a rank; `None` for a number beyond the range of the store.
fn to_link(link: &proto::LinkMeasurement) -> Option<ReportedLink> {
    let bounded = |n: u64| i64::try_from(n.min(MAX_NUMBER)).ok();
    let figures = LinkFigures { rtt_us: bounded(link.rtt_us)?, mib_per_s: bounded(link.mib_per_s)? };
    Some(ReportedLink { rank: i64::from(link.rank), figures: Some(figures).filter(|_| link.connected) })
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
        links: status.links.iter().take(MAX_LINKS).filter_map(to_link).collect(),
        ready: status.ready,
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
        reset_group: to_reset_group(&facts.reset_group),
        fabric: facts.fabric.as_ref().and_then(to_fabric),
        ecc_corrected: facts.ecc_corrected,
        ecc_uncorrected: facts.ecc_uncorrected,
        rows_corrected: facts.rows_corrected,
        rows_uncorrected: facts.rows_uncorrected,
        replacement_pending: facts.replacement_pending,
        replacement_failed: facts.replacement_failed,
        recovery: facts.recovery,
        // The table of the board's model decides about them later.
        mig_differences: Vec::new(),
    }
}

/// The boards of a group, without names that no board has.
fn to_reset_group(gpu_uuids: &[String]) -> Vec<String> {
    let is_uuid = |uuid: &&String| {
        (1..=MAX_UUID_CHARS).contains(&uuid.chars().count()) && !uuid.chars().any(char::is_control)
    };
    gpu_uuids.iter().take(MAX_RESET_GROUP).filter(is_uuid).cloned().collect()
}

/// The fabric of a board; `None` for a state that this portal does not know.
fn to_fabric(fabric: &proto::Fabric) -> Option<GpuFabric> {
    let state = match fabric.state() {
        proto::FabricState::NotStarted => FabricState::NotStarted,
        proto::FabricState::InProgress => FabricState::InProgress,
        proto::FabricState::Completed => FabricState::Completed,
        proto::FabricState::Unspecified => return None,
    };
    let cluster: Option<[u8; 16]> = fabric.cluster_uuid.as_slice().try_into().ok();
    Some(GpuFabric {
        state,
        status: fabric.status,
        clique: fabric.clique,
        cluster_uuid: cluster
            .filter(|bytes| *bytes != [0; 16])
            .map(|bytes| Uuid::from_bytes(bytes).to_string()),
        health_mask: fabric.health_mask,
    })
}

/// The MIG profiles of a board's driver, each with few starts.
fn to_profiles(facts: &proto::BoardFacts) -> Vec<DriverProfile> {
    let profile = |profile: &proto::MigProfile| DriverProfile {
        id: profile.id,
        name: clean_text(&profile.name, MAX_CODE_CHARS),
        size: profile.size,
        starts: profile.starts.iter().copied().take(MAX_STARTS).collect(),
        memory_mib: profile.memory_mib,
    };
    facts.mig_profiles.iter().take(MAX_PROFILES).map(profile).collect()
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
        mig_profiles: board.facts.as_ref().map(to_profiles).unwrap_or_default(),
        gpu_uuid: board.gpu_uuid,
    }
}

/// The reports about the boards of a node.
pub(super) fn board_reports(health: proto::Health) -> Vec<BoardReport> {
    health.boards.into_iter().map(board_report).collect()
}

const fn to_finding_state(state: proto::FindingState) -> FindingState {
    match state {
        proto::FindingState::Ok => FindingState::Ok,
        proto::FindingState::Warning => FindingState::Warning,
        proto::FindingState::Problem => FindingState::Problem,
        // A state of a newer worker is unspecified.
        proto::FindingState::Unspecified | proto::FindingState::Unknown => FindingState::Unknown,
    }
}

/// The finding of one check; `None` without a code of lower-case letters, digits and points.
fn to_finding(finding: &proto::Finding) -> Option<Finding> {
    let code = &finding.code;
    let is_code = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_');
    if !(1..=MAX_CODE_CHARS).contains(&code.len()) || !code.bytes().all(is_code) {
        return None;
    }
    let line =
        |text: &str| -> String { text.chars().filter(|c| !c.is_control()).take(MAX_FINDING_CHARS).collect() };
    Some(Finding {
        code: code.clone(),
        state: to_finding_state(finding.state()),
        found: line(&finding.found),
        next: Some(line(&finding.next)).filter(|next| !next.is_empty()),
    })
}

/// The first findings of a diagnosis, at most [`MAX_FINDINGS`], without those that have no valid code.
pub(super) fn findings(diagnosis: &proto::Diagnosis) -> Vec<Finding> {
    diagnosis.findings.iter().take(MAX_FINDINGS).filter_map(to_finding).collect()
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
    fn the_findings_of_a_hostile_worker_are_bounded() {
        let finding = |code: &str, state: i32| proto::Finding {
            code: code.to_owned(),
            state,
            found: format!("a\u{0}b\n<b>{}", "x".repeat(1_000)),
            next: String::new(),
        };
        let sent = vec![
            finding("driver.module", proto::FindingState::Problem.into()),
            finding("Driver module", 1),
            finding("", 1),
            finding(&"d".repeat(65), 1),
            finding("kernel.new", 99),
        ];
        let kept = findings(&proto::Diagnosis { findings: sent });
        let states: Vec<(&str, FindingState)> = kept.iter().map(|f| (f.code.as_str(), f.state)).collect();
        let expected = [("driver.module", FindingState::Problem), ("kernel.new", FindingState::Unknown)];
        assert_eq!(states, expected);
        assert!(kept[0].found.starts_with("ab<b>x") && kept[0].found.len() == MAX_FINDING_CHARS);
        assert_eq!(kept[0].next, None);
        let many = proto::Diagnosis { findings: vec![finding("driver.module", 1); 1_000] };
        assert_eq!(findings(&many).len(), MAX_FINDINGS);
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
                evidence: Some(proto::Evidence {
                    process_ms,
                    device_ms,
                    lost_ms,
                    busy_ms,
                    losses,
                    memory_clearing: None,
                }),
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
    fn evidence_has_no_negative_times_few_losses_and_bounded_numbers() {
        let lost = |from_ms: i64, until_ms: i64| proto::DeviceLoss { from_ms, until_ms };
        let evidence = proto::Evidence {
            process_ms: -1,
            device_ms: 5,
            lost_ms: -2,
            busy_ms: Some(-3),
            losses: vec![lost(-4, 6), lost(7, 7), lost(-9, -8)],
            memory_clearing: Some(proto::MemoryClearing {
                cleared_bytes: u64::MAX,
                total_bytes: 6,
                samples: 7,
                took_ms: 8,
            }),
        };
        let report = attempt_report(&proto::Status { evidence: Some(evidence), ..status() }).unwrap();
        let losses = vec![DeviceLoss { from_ms: 0, until_ms: 6 }];
        let clearing = MemoryClearing { cleared_bytes: MAX_NUMBER, total_bytes: 6, samples: 7, took_ms: 8 };
        let expected = ReportedEvidence {
            process_ms: 0,
            device_ms: 5,
            lost_ms: 0,
            busy_ms: Some(0),
            losses,
            memory_clearing: Some(clearing),
        };
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
            mig_profiles: vec![proto::MigProfile { starts: vec![0; 900], ..Default::default() }; 900],
            reset_group: [["GPU-1", "", "a\nb"].map(str::to_owned).to_vec(), vec!["x".repeat(900); 900]]
                .concat(),
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
        let starts: Vec<usize> = report.mig_profiles.iter().map(|profile| profile.starts.len()).collect();
        assert_eq!(starts, [MAX_STARTS; MAX_PROFILES]);
        let facts = report.facts.unwrap();
        assert_eq!((facts.serial, facts.vbios.unwrap().len()), (None, MAX_LINE_CHARS));
        assert_eq!(facts.reset_group, ["GPU-1"]);
        assert_eq!(to_reset_group(&vec!["GPU-2".to_owned(); 900]).len(), MAX_RESET_GROUP);
        let (fault, task_result) = (Some(fault(u64::MAX)), Some(done(u64::MAX)));
        let report = board_report(proto::BoardHealth { fault, task_result, ..board });
        assert_eq!((report.fault, report.done), (None, None));
    }
}
