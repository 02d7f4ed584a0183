//! What workers say of their hosts and boards, as the portal keeps it. Must not keep anything itself.

use std::collections::{BTreeMap, HashMap};

use berth_proto as proto;
use berth_types::health::GpuReading;

/// Labels as they are stored; what is too long or too many is left out.
pub(super) fn node_labels(labels: HashMap<String, String>) -> String {
    const MOST: usize = 64;
    let short = |text: &str| (1..=63).contains(&text.len()) && !text.chars().any(char::is_control);
    let labels: BTreeMap<String, String> = labels.into_iter().filter(|(k, v)| short(k) && short(v)).collect();
    let labels: BTreeMap<_, _> = labels.into_iter().take(MOST).collect();
    serde_json::to_string(&labels).unwrap_or_else(|_| "{}".to_owned())
}

/// A worker's words about what keeps jobs apart, as they are stored; what is too long or too many is left out.
pub(super) fn isolation(words: HashMap<String, String>) -> String {
    let short = |text: &str| (1..=127).contains(&text.len()) && !text.chars().any(char::is_control);
    let words: BTreeMap<String, String> = words.into_iter().filter(|(k, v)| short(k) && short(v)).collect();
    let words: BTreeMap<_, _> = words.into_iter().take(32).collect();
    serde_json::to_string(&words).unwrap_or_else(|_| "{}".to_owned())
}

/// Of a worker's sentence, so many characters are kept.
const MOST_CHARS: usize = 4_000;

/// A report whose words can be kept. What failed may quote a stranger, such as a registry: Postgres takes no
/// NUL, and a report that cannot be kept would come again for ever.
pub(super) fn plain(mut status: proto::Status) -> proto::Status {
    let cut = |text: &str, most: usize| -> String {
        let kept = |c: &char| matches!(c, '\n' | '\t') || !c.is_control();
        text.chars().filter(kept).take(most).collect()
    };
    if let Some(failure) = &mut status.failure {
        failure.code = cut(&failure.code, 64);
        failure.detail = cut(&failure.detail, MOST_CHARS);
    }
    status.unclean = status.unclean.as_deref().map(|reason| cut(reason, MOST_CHARS));
    status.mig_uuids = status.mig_uuids.iter().map(|uuid| cut(uuid, 256)).collect();
    status
}

/// What only whole boards tell.
pub(super) fn whole_reading(r: &proto::Reading) -> GpuReading {
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
    fn the_words_of_a_report_can_be_kept() {
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
        let kept = plain(status);
        let failure = kept.failure.unwrap();
        assert_eq!((kept.seq, failure.code.as_str(), failure.detail.len()), (3, "image.pull", MOST_CHARS));
        assert!(failure.detail.starts_with("ab\nc[0mx"), "{}", failure.detail);
        assert_eq!((kept.unclean.as_deref(), kept.mig_uuids), (Some("held by 7"), vec!["MIG-1".to_owned()]));
        assert_eq!(plain(proto::Status::default()), proto::Status::default());
    }
}
