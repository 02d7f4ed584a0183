//! Conversion of worker reports to storable values: boards, labels, isolation and readings.

use std::collections::{BTreeMap, HashMap};

use berth_core::approval::{MAX_NODE_LABELS, is_label_text};
use berth_fleet::board_history::BoardValues;
use berth_proto as proto;
use berth_types::health::GpuReading;

use super::reports::MAX_UUID_CHARS;

/// The most boards of a hello.
const MAX_BOARDS: usize = 64;
/// The most MIG instances from outside the portal on one board.
const MAX_FOREIGN_INSTANCES: usize = 64;

/// Checks the boards of a hello before any work for it.
///
/// # Errors
/// The reason as a sentence: too many boards, an invalid UUID, or too many instances on a board.
pub(super) fn check_boards(boards: &[proto::Board]) -> Result<(), &'static str> {
    if boards.len() > MAX_BOARDS {
        return Err("The worker reports more than 64 boards. No board was recorded.");
    }
    let is_uuid = |uuid: &str| {
        (1..=MAX_UUID_CHARS).contains(&uuid.chars().count()) && !uuid.chars().any(char::is_control)
    };
    if !boards.iter().all(|board| is_uuid(&board.uuid)) {
        return Err(
            "The worker reports a board whose UUID does not have 1 to 256 printable characters. No board was recorded.",
        );
    }
    if boards.iter().any(|board| board.foreign_instances.len() > MAX_FOREIGN_INSTANCES) {
        return Err("The worker reports more than 64 MIG instances on one board. No board was recorded.");
    }
    Ok(())
}

/// The labels of a host, without those that are too long or too many.
pub(super) fn short_labels(labels: HashMap<String, String>) -> BTreeMap<String, String> {
    let labels = labels.into_iter().filter(|(k, v)| is_label_text(k) && is_label_text(v));
    let labels: BTreeMap<String, String> = labels.collect();
    labels.into_iter().take(MAX_NODE_LABELS).collect()
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
    fn the_boards_of_a_hello_have_limits() {
        let board = |uuid: String| proto::Board { uuid, ..proto::Board::default() };
        let boards = |count: usize| (0..count).map(|n| board(format!("GPU-{n}"))).collect::<Vec<_>>();
        assert_eq!(check_boards(&boards(64)), Ok(()));
        assert!(check_boards(&boards(65)).is_err());
        assert_eq!(check_boards(&[board("ü".repeat(256))]), Ok(()));
        for uuid in [String::new(), "g".repeat(257), "GPU-\0".to_owned(), "GPU-1\n".to_owned()] {
            assert!(check_boards(&[board(uuid.clone())]).is_err(), "{uuid:?}");
        }
        let full = |count| {
            let foreign_instances = vec![proto::Instance::default(); count];
            proto::Board { foreign_instances, ..board("GPU-1".to_owned()) }
        };
        assert_eq!(check_boards(&[full(64)]), Ok(()));
        assert!(check_boards(&[full(65)]).is_err());
    }

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
