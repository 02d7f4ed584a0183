//! Conversion of worker reports to storable values: boards, labels, isolation and readings.

use std::collections::{BTreeMap, HashMap};

use berth_core::approval::{MAX_NODE_LABELS, is_node_label};
use berth_core::volumes::is_name;
use berth_fleet::board_history::BoardValues;
use berth_proto as proto;
use berth_types::health::GpuReading;
use berth_types::nodes::HostMount;
use berth_types::rdma::{BoardDistance, RdmaPort};

use super::reports::{MAX_UUID_CHARS, clean_line};

/// The most boards of a hello.
const MAX_BOARDS: usize = 64;
/// The most RDMA ports of a hello.
const MAX_RDMA_PORTS: usize = 512;
/// The most network interfaces of an RDMA device.
const MAX_INTERFACES: usize = 8;
/// Bytes of the longest text about an RDMA port.
const MAX_PORT_TEXT_BYTES: usize = 64;
/// The most MIG instances from outside the portal on one board.
const MAX_FOREIGN_INSTANCES: usize = 64;

/// The most host mounts of a node.
const MAX_HOST_MOUNTS: usize = 32;

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

/// The labels of a host, without those that a node may not have and those that are too many.
pub(super) fn short_labels(labels: HashMap<String, String>) -> BTreeMap<String, String> {
    let labels = labels.into_iter().filter(|(k, v)| is_node_label(k, v));
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

/// True for a text about an RDMA port, such as a name.
fn is_port_text(text: &str) -> bool {
    (1..=MAX_PORT_TEXT_BYTES).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// A port of an RDMA device; `None` for a port without a valid device, state or link layer.
fn rdma_port(port: proto::RdmaPort) -> Option<RdmaPort> {
    let proto::RdmaPort { device, state, link_layer, mut interfaces, mut distances, .. } = port;
    if ![&device, &state, &link_layer].into_iter().all(|text| is_port_text(text)) {
        return None;
    }
    interfaces.retain(|name| is_port_text(name));
    interfaces.truncate(MAX_INTERFACES);
    distances.retain(|board| matches!(board.distance.as_str(), "PIX" | "PXB" | "PHB" | "NODE" | "SYS"));
    distances.truncate(MAX_BOARDS);
    let distance =
        |board: proto::BoardDistance| BoardDistance { gpu_index: board.index, distance: board.distance };
    Some(RdmaPort {
        device,
        port: port.port,
        state,
        rate_mbps: port.rate_mbps,
        link_layer,
        lid: Some(port.lid).filter(|lid| *lid > 0),
        numa_node: port.numa_node,
        pci_address: Some(port.pci_address).filter(|text| is_port_text(text)),
        interfaces,
        uverbs: Some(port.uverbs).filter(|text| is_port_text(text)),
        distances: distances.into_iter().map(distance).collect(),
    })
}

/// The RDMA ports of a host, without those that are invalid or too many.
pub(super) fn rdma_ports(ports: Vec<proto::RdmaPort>) -> Vec<RdmaPort> {
    ports.into_iter().take(MAX_RDMA_PORTS).filter_map(rdma_port).collect()
}

/// The host mounts of a node by name, without those whose name is no name of a storage class.
pub(super) fn short_host_mounts(mounts: Vec<proto::HostMount>) -> Vec<HostMount> {
    let named = mounts.into_iter().take(MAX_HOST_MOUNTS).filter(|mount| is_name(&mount.name));
    let mounts: BTreeMap<String, HostMount> = named
        .map(|mount| {
            let mount = HostMount {
                file_system: clean_line(&mount.file_system).chars().take(63).collect(),
                name: mount.name,
                total_bytes: mount.total_bytes,
                free_bytes: mount.free_bytes,
            };
            (mount.name.clone(), mount)
        })
        .collect();
    mounts.into_values().collect()
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
    fn host_mounts_are_few_and_have_names_of_classes() {
        let mount = |name: &str| proto::HostMount {
            name: name.to_owned(),
            file_system: "nfs4\n".to_owned(),
            ..proto::HostMount::default()
        };
        let names = |mounts: Vec<proto::HostMount>| {
            short_host_mounts(mounts).into_iter().map(|mount| mount.name).collect::<Vec<String>>()
        };
        assert_eq!(names(vec![mount("b"), mount("../x"), mount("a"), mount("b"), mount("")]), ["a", "b"]);
        assert_eq!(short_host_mounts(vec![mount("a")])[0].file_system, "nfs4");
        assert_eq!(names((0..100).map(|n| mount(&format!("m{n}"))).collect()).len(), MAX_HOST_MOUNTS);
    }

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
    fn the_rdma_ports_of_a_hello_have_limits() {
        let text = str::to_owned;
        let port = proto::RdmaPort {
            device: text("mlx5_0"),
            port: 1,
            state: text("ACTIVE"),
            rate_mbps: 400_000,
            link_layer: text("InfiniBand"),
            interfaces: vec![text("ib0"), "x".repeat(65), text("a b")],
            distances: ["PIX", "NEAR"]
                .map(|distance| proto::BoardDistance { index: 3, distance: text(distance) })
                .into(),
            ..proto::RdmaPort::default()
        };
        let kept = rdma_ports(vec![port.clone(); 600]);
        assert_eq!(kept.len(), MAX_RDMA_PORTS);
        assert_eq!((kept[0].interfaces.as_slice(), kept[0].lid), ([text("ib0")].as_slice(), None));
        assert_eq!(kept[0].distances, [BoardDistance { gpu_index: 3, distance: text("PIX") }]);
        assert_eq!((kept[0].pci_address.as_ref(), kept[0].is_active()), (None, true));
        for device in [String::new(), text("mlx5\n0"), "x".repeat(65)] {
            assert_eq!(rdma_ports(vec![proto::RdmaPort { device, ..port.clone() }]), []);
        }
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
