//! The hello: the description of this host at the begin of a session.

use std::collections::{HashMap, HashSet};

use berth_gpu::{BoardInfo, Gpus};
use berth_proto::{Board, BoardDistance, GangPorts, Hello, HostMount, Instance, RdmaPort};
use berth_shim::model::AttemptKey;
use berth_system::capacity;
use berth_system::pci::PciPlace;
use berth_system::rdma::RdmaTree;

use crate::attempt::{AttemptMap, Host, MOST_CHARS, isolation_report};

/// The operator's description of this node.
pub struct NodeDescription {
    /// The address for other nodes.
    pub address: String,
    /// Labels such as the rack.
    pub labels: HashMap<String, String>,
    /// The port for gateways; 0 without one.
    pub inference_port: u16,
}

/// `NAME=VALUE`, both of 1 to 63 bytes of printable characters.
pub fn parse_label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE, such as rack=r12")?;
    let good = |part: &str| (1..=63).contains(&part.len()) && !part.chars().any(char::is_control);
    if good(name) && good(value) {
        Ok((name.to_owned(), value.to_owned()))
    } else {
        Err("the name and the value of a label have 1 to 63 bytes of printable characters".to_owned())
    }
}

/// Slices of this worker's attempts, by board and start.
pub(super) type OwnSlices = HashSet<(String, u32)>;

/// The boards for a hello.
#[derive(Debug, Default)]
pub(super) struct ListedBoards {
    pub driver_version: String,
    pub boards: Vec<BoardInfo>,
    pub rdma_ports: Vec<RdmaPort>,
    /// The reason for missing boards, if they could not be listed.
    pub missing: Option<String>,
    /// The host mounts that answered.
    pub host_mounts: Vec<HostMount>,
}

/// The ports of the host's RDMA devices, with the distances to these boards.
fn list_rdma_ports(tree: &RdmaTree, boards: &[BoardInfo]) -> Vec<RdmaPort> {
    let place =
        |board: &BoardInfo| Some((board.index, PciPlace::find(&tree.sys, board.pci_bus_id.as_deref()?)?));
    let placed: Vec<(u32, PciPlace)> = boards.iter().filter_map(place).collect();
    let mut ports = Vec::new();
    for device in tree.devices() {
        let mut distances = Vec::new();
        if let Some(place) = &device.place {
            distances.extend(placed.iter().map(|(index, board)| BoardDistance {
                index: *index,
                distance: place.distance(board).name().to_owned(),
            }));
        }
        ports.extend(device.ports.iter().map(|port| RdmaPort {
            device: device.name.clone(),
            port: port.number,
            state: port.state.clone(),
            rate_mbps: port.rate_mbps,
            link_layer: port.link_layer.clone(),
            lid: port.lid,
            numa_node: device.place.as_ref().and_then(|place| place.numa_node),
            pci_address: device.place.as_ref().map(|place| place.address().to_owned()).unwrap_or_default(),
            interfaces: device.interfaces.clone(),
            uverbs: device.uverbs.clone().unwrap_or_default(),
            distances: distances.clone(),
        }));
    }
    ports
}

/// Lists the boards with their slices, the RDMA ports and the host mounts. Blocking, for a few seconds at most; silent
/// boards have their last answer.
pub(super) fn list_host(host: &Host) -> ListedBoards {
    ListedBoards { host_mounts: host.mounts.describe(), ..list_boards(&host.gpus, &host.rdma) }
}

fn list_boards(gpus: &Gpus, rdma: &RdmaTree) -> ListedBoards {
    match gpus.inventory() {
        // A missing driver version does not stop a session.
        Ok(boards) => {
            let driver_version = gpus.driver_version().unwrap_or_default();
            let rdma_ports = list_rdma_ports(rdma, &boards);
            ListedBoards { driver_version, boards, rdma_ports, ..ListedBoards::default() }
        }
        Err(_) if !gpus.has_started() => ListedBoards::without("NVML has not started yet"),
        Err(error) => ListedBoards::without(&format!("the boards cannot be listed: {error}")),
    }
}

impl ListedBoards {
    /// No boards, for a reason.
    pub fn without(why: &str) -> Self {
        tracing::error!(why, "the worker continues without boards until they answer");
        Self { missing: Some(why.to_owned()), ..Self::default() }
    }

    /// The UUIDs of the boards that answered.
    pub fn answered(&self) -> impl Iterator<Item = &str> {
        self.boards.iter().filter(|board| board.silent.is_none()).map(|board| board.uuid.as_str())
    }
}

/// The slices of attempts that are not clean yet.
pub(super) fn own_slices(attempts: &AttemptMap) -> OwnSlices {
    attempts
        .values()
        .filter(|a| !a.record.clean)
        .flat_map(|a| &a.record.devices)
        .filter_map(|d| d.instance.map(|(_, start)| (d.gpu_uuid.clone(), start)))
        .collect()
}

/// The first message of a session, without the names of daemon and connection. `ours` are the slices of this worker,
/// now or at the time of the listing.
pub(super) fn hello(
    host: &Host,
    node: &NodeDescription,
    attempts: &AttemptMap,
    listed: ListedBoards,
    ours: &OwnSlices,
) -> Hello {
    let boards = listed
        .boards
        .into_iter()
        .map(|b| Board {
            foreign_instances: b
                .slices
                .iter()
                .filter(|s| !ours.contains(&(b.uuid.clone(), s.start)))
                .map(|s| Instance { profile_id: s.profile_id, start: s.start, size: s.size })
                .collect(),
            index: b.index,
            uuid: b.uuid,
            name: b.name,
            memory_mib: b.memory_mib,
            mig_enabled: b.mig_enabled,
            nvlink_island: b.nvlink_island,
        })
        .collect();
    let mut isolation = isolation_report(host);
    isolation.extend(
        listed.missing.map(|why| ("boards".to_owned(), why.chars().take(MOST_CHARS).collect::<String>())),
    );
    Hello {
        worker_version: env!("CARGO_PKG_VERSION").to_owned(),
        driver_version: listed.driver_version,
        simulated: host.simulated,
        unisolated: !host.sandbox.isolated(),
        boards,
        cpu_milli: capacity::cpu_milli(),
        memory_mib: capacity::memory_mib(),
        address: node.address.clone(),
        labels: node.labels.clone(),
        isolation: isolation.into_iter().collect(),
        supports_images: host.images.is_ok(),
        supports_leases: true,
        gang_ports: host.network.gang_ports().map(|(first, plain)| GangPorts {
            first: u32::from(first),
            plain,
            checks: true,
        }),
        supports_egress: host.network.is_own(),
        supports_host_network: true,
        host_mounts: listed.host_mounts,
        attempts: attempts.keys().map(AttemptKey::id).collect(),
        rdma_ports: listed.rdma_ports,
        checks_rdma_links: host.rdma_program.is_some(),
        inference_port: u32::from(node.inference_port),
        ..Hello::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_names_with_values() {
        assert_eq!(parse_label("rack=r=1"), Ok(("rack".to_owned(), "r=1".to_owned())));
        for bad in ["rack", "=r1", "rack=", "a\nb=c"] {
            assert!(parse_label(bad).is_err(), "{bad:?}");
        }
    }
}
