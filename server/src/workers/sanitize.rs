//! Conversion of worker reports to storable values: labels, isolation, statuses and readings.

use std::collections::{BTreeMap, HashMap};

use berth_proto as proto;
use berth_types::health::GpuReading;

/// Labels as stored JSON, without those that are too long or too many.
pub(super) fn labels_json(labels: HashMap<String, String>) -> String {
    const MOST: usize = 64;
    let short = |text: &str| (1..=63).contains(&text.len()) && !text.chars().any(char::is_control);
    let labels: BTreeMap<String, String> = labels.into_iter().filter(|(k, v)| short(k) && short(v)).collect();
    let labels: BTreeMap<_, _> = labels.into_iter().take(MOST).collect();
    serde_json::to_string(&labels).unwrap_or_else(|_| "{}".to_owned())
}

/// The isolation of a host as stored JSON, without entries that are too long or too many.
pub(super) fn isolation_json(entries: HashMap<String, String>) -> String {
    let short = |text: &str| (1..=127).contains(&text.len()) && !text.chars().any(char::is_control);
    let entries = entries.into_iter().filter(|(k, v)| short(k) && short(v));
    let entries: BTreeMap<String, String> = entries.collect();
    let entries: BTreeMap<_, _> = entries.into_iter().take(32).collect();
    serde_json::to_string(&entries).unwrap_or_else(|_| "{}".to_owned())
}

/// Characters of a stored text of a worker.
const MAX_CHARS: usize = 4_000;

/// Removes control characters from the texts of a status and shortens them. A failure may quote foreign text,
/// such as a registry's. Postgres accepts no NUL, and a worker sends a status again until it is stored.
pub(super) fn sanitize_status(mut status: proto::Status) -> proto::Status {
    let cut = |text: &str, most: usize| -> String {
        let kept = |c: &char| matches!(c, '\n' | '\t') || !c.is_control();
        text.chars().filter(kept).take(most).collect()
    };
    if let Some(failure) = &mut status.failure {
        failure.code = cut(&failure.code, 64);
        failure.detail = cut(&failure.detail, MAX_CHARS);
    }
    status.unclean = status.unclean.as_deref().map(|reason| cut(reason, MAX_CHARS));
    status.mig_uuids = status.mig_uuids.iter().map(|uuid| cut(uuid, 256)).collect();
    status
}

/// The readings that only whole boards have.
pub(super) fn gpu_reading(r: &proto::Reading) -> GpuReading {
    GpuReading {
        sm_clock_mhz: r.sm_clock_mhz,
        memory_clock_mhz: r.memory_clock_mhz,
        throttle_reasons: r.throttle_reasons,
        pcie_received_kb_s: r.pcie_received_kb_s,
        pcie_sent_kb_s: r.pcie_sent_kb_s,
        nvlink_received_kib_s: r.nvlink_received_kib_s,
        nvlink_sent_kib_s: r.nvlink_sent_kib_s,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sanitized_status_can_be_stored() {
        let detail = format!("a\u{0}b\nc\u{1b}[0m{}", "x".repeat(10_000));
        let failure = Some(proto::Failure { code: "image\u{0}.pull".to_owned(), detail });
        let unclean = Some("held by \u{0}7".to_owned());
        let status = proto::Status {
            seq: 3,
            failure,
            unclean,
            mig_uuids: vec!["MIG\u{0}-1".to_owned()],
            ..proto::Status::default()
        };
        let kept = sanitize_status(status);
        let failure = kept.failure.unwrap();
        assert_eq!((kept.seq, failure.code.as_str(), failure.detail.len()), (3, "image.pull", MAX_CHARS));
        assert!(failure.detail.starts_with("ab\nc[0mx"), "{}", failure.detail);
        assert_eq!((kept.unclean.as_deref(), kept.mig_uuids), (Some("held by 7"), vec!["MIG-1".to_owned()]));
        assert_eq!(sanitize_status(proto::Status::default()), proto::Status::default());
    }
}
