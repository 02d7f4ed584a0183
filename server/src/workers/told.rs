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
