//! Conversion of worker reports to storable values: labels, isolation and readings.

use std::collections::{BTreeMap, HashMap};

use berth_proto as proto;
use berth_types::health::GpuReading;

/// The labels of a host, without those that are too long or too many.
pub(super) fn short_labels(labels: HashMap<String, String>) -> BTreeMap<String, String> {
    const MOST: usize = 64;
    let short = |text: &str| (1..=63).contains(&text.len()) && !text.chars().any(char::is_control);
    let labels: BTreeMap<String, String> = labels.into_iter().filter(|(k, v)| short(k) && short(v)).collect();
    labels.into_iter().take(MOST).collect()
}

/// The isolation of a host, without entries that are too long or too many.
pub(super) fn short_isolation(entries: HashMap<String, String>) -> BTreeMap<String, String> {
    let short = |text: &str| (1..=127).contains(&text.len()) && !text.chars().any(char::is_control);
    let entries = entries.into_iter().filter(|(k, v)| short(k) && short(v));
    let entries: BTreeMap<String, String> = entries.collect();
    entries.into_iter().take(32).collect()
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
