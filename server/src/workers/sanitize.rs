//! Conversion of worker reports to storable values: labels, isolation and readings.

use std::collections::{BTreeMap, HashMap};

use berth_fleet::board_history::BoardValues;
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

/// The readings of a board for its charts, without the values that no board has.
pub(super) fn board_values(r: &proto::Reading) -> BoardValues {
    let values = BoardValues {
        utilization_percent: r.utilization_percent,
        memory_used_mib: r.memory_used_mib,
        power_watts: r.power_watts,
        temperature_celsius: r.temperature_celsius,
    };
    values.valid()
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
    fn a_hostile_reading_has_no_values() {
        for value in [f64::NAN, f64::INFINITY, -1e9, 1e300] {
            let reading = proto::Reading {
                utilization_percent: Some(value),
                memory_used_mib: Some(value),
                power_watts: Some(value),
                temperature_celsius: Some(value),
                ..Default::default()
            };
            assert_eq!(board_values(&reading), BoardValues::default(), "{value}");
        }
        let good = proto::Reading { power_watts: Some(612.5), ..Default::default() };
        assert_eq!(board_values(&good), BoardValues { power_watts: Some(612.5), ..BoardValues::default() });
    }
}
