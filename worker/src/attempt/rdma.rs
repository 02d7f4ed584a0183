//! The RDMA devices of an attempt that asks for them: their nodes, the variables for NCCL, the network, and the check of
//! their links.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};
use std::path::PathBuf;

use berth_gpu::BoardInfo;
use berth_network::preflight::{CheckedPort, MOST_PORTS, Preflight, RdmaPlan, TOKEN_BYTES};
use berth_proto::{LinkPeer, RdmaCheck, Spec};
use berth_shim::model::{JobFailure, start_failure};
use berth_system::pci::PciPlace;
use berth_system::rdma::{RdmaDevice, RdmaPort, nccl_ports};

use super::host::Host;
use super::record::AttemptRecord;
use crate::devices::AttemptDevice;

/// The code of a failure. It is a fault of the host, not of a board.
const CODE: &str = "worker.rdma";
/// The most ranks of a gang.
const MOST_RANKS: u32 = 64;

/// The access of an attempt to the RDMA devices of its host.
#[derive(Debug, PartialEq, Eq)]
pub struct RdmaAccess {
    /// The nodes of the devices. Simulated devices have none.
    pub nodes: Vec<PathBuf>,
    /// The ports for NCCL, such as `=mlx5_0:1,mlx5_1:1`.
    ports: String,
    /// The job has the network of the host.
    pub host_network: bool,
}

impl RdmaAccess {
    /// The variables for NCCL. A job may have its own values.
    pub fn variables(&self) -> [(String, String); 2] {
        // Without the choice of a network NCCL would continue over TCP after a fault.
        [("NCCL_IB_HCA", self.ports.as_str()), ("NCCL_NET", "IB")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
    }
}

/// True if an attempt has all boards of its host, each whole. Its processes can then reach no device of another job
/// through a network adapter.
fn has_all_boards(devices: &[AttemptDevice], known: &[BoardInfo]) -> bool {
    let is_own = |board: &BoardInfo| {
        devices.iter().any(|device| device.is_whole_board() && device.gpu_uuid == board.uuid)
    };
    !devices.is_empty() && known.iter().all(is_own)
}

/// The access of an attempt to RDMA devices. `None`: it does not ask for RDMA.
///
/// # Errors
/// The attempt has only some boards of the host, or the host has no active port or no node of a device.
pub fn rdma_access(
    record: &AttemptRecord,
    spec: &Spec,
    host: &Host,
) -> Result<Option<RdmaAccess>, JobFailure> {
    if !spec.rdma {
        return Ok(None);
    }
    let known = host.gpus.known_boards();
    if !has_all_boards(&record.devices, &known) {
        return Err(start_failure(
            CODE,
            "RDMA needs all boards of the node, and the job has only some of them",
        ));
    }
    let devices = host.rdma.job_devices();
    if devices.is_empty() {
        return Err(start_failure(CODE, "No RDMA port of this node is active now"));
    }
    let nodes = match host.rdma.is_of_host() {
        true => host.rdma.nodes(&devices).map_err(|why| start_failure(CODE, why))?,
        false => Vec::new(),
    };
    let place = |device: &AttemptDevice| {
        let board = known.iter().find(|board| board.uuid == device.gpu_uuid)?;
        PciPlace::find(&host.rdma.sys, board.pci_bus_id.as_deref()?)
    };
    let boards: Vec<PciPlace> = record.devices.iter().filter_map(place).collect();
    let ports = nccl_ports(&devices, &boards);
    Ok(Some(RdmaAccess { nodes, ports, host_network: host.rdma.needs_host_network(&devices) }))
}

/// An address of a node in the network of IP version 4, which perftest needs.
fn address_of_node(peer: &LinkPeer) -> Result<Ipv4Addr, JobFailure> {
    let failed = |why: &dyn fmt::Display| {
        let text = format!("The address {} of the node of rank {}: {why}", peer.address, peer.rank);
        start_failure(CODE, text)
    };
    let found = (peer.address.as_str(), 0).to_socket_addrs().map_err(|error| failed(&error))?;
    let mut found = found.filter_map(|address| match address.ip() {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(address) => address.to_ipv4_mapped(),
    });
    found.next().ok_or_else(|| failed(&"it is none of IP version 4, which the measurement of RDMA needs. An operator sets --address or --rdma-check false on the nodes"))
}

/// The check of the RDMA links of a rank.
///
/// # Errors
/// The attempt has no access to RDMA devices, perftest is absent, or the plan of the portal is invalid.
pub(super) fn rdma_check_plan(
    record: &AttemptRecord,
    spec: &Spec,
    host: &Host,
    check: &RdmaCheck,
) -> Result<Preflight, JobFailure> {
    let invalid = || start_failure(CODE, "The portal sent no valid check of the RDMA links");
    let token: [u8; TOKEN_BYTES] = check.token.as_slice().try_into().map_err(|_| invalid())?;
    let absent = || start_failure(CODE, "This worker does not measure RDMA links since its last start");
    rdma_access(record, spec, host)?.ok_or_else(invalid)?;
    let program = host.rdma_program.clone().ok_or_else(absent)?;
    let ranks = u32::try_from(check.peers.len() + 1).ok().filter(|ranks| *ranks <= MOST_RANKS);
    let ranks = ranks.filter(|ranks| check.rank < *ranks).ok_or_else(invalid)?;
    let (mut minima, mut addresses) = (Vec::new(), Vec::new());
    for rank in 0..ranks {
        let peer = check.peers.iter().find(|peer| peer.rank == rank);
        if peer.is_some() == (rank == check.rank) {
            return Err(invalid());
        }
        minima.push(peer.map_or(0, |peer| peer.min_mib_per_s));
        addresses.push(peer.map_or(Ok(Ipv4Addr::UNSPECIFIED), address_of_node)?);
    }
    let port = |device: &RdmaDevice, port: &RdmaPort| CheckedPort {
        device: device.name.clone(),
        number: port.number,
        rate_mbps: port.rate_mbps,
        gid_index: host.rdma.roce_address_index(&device.name, port.number),
    };
    let devices = host.rdma.job_devices();
    let ports = devices.iter().flat_map(|device| device.ports.iter().map(move |own| port(device, own)));
    let rdma = RdmaPlan { program, ports: ports.take(MOST_PORTS).collect(), addresses };
    Ok(Preflight { rank: check.rank, ranks, token, minima, rdma: Some(rdma) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(uuid: &str, share_milli: Option<u32>) -> AttemptDevice {
        AttemptDevice {
            gpu_uuid: uuid.to_owned(),
            instance: None,
            share_milli,
            mig_uuid: None,
            made: false,
            gpu_instance: None,
            idle_mib: None,
        }
    }

    fn board(uuid: &str) -> BoardInfo {
        BoardInfo {
            index: 0,
            uuid: uuid.to_owned(),
            name: "NVIDIA H100 80GB HBM3".to_owned(),
            memory_mib: 81_559,
            mig_enabled: false,
            nvlink_island: 1,
            pci_bus_id: None,
            slices: Vec::new(),
            silent: None,
        }
    }

    #[test]
    fn rdma_needs_all_boards_of_the_host() {
        let host = [board("GPU-1"), board("GPU-2")];
        let (first, second) = (device("GPU-1", None), device("GPU-2", None));
        assert!(has_all_boards(&[second.clone(), first.clone()], &host));
        assert!(!has_all_boards(std::slice::from_ref(&first), &host));
        assert!(!has_all_boards(&[first, device("GPU-2", Some(500))], &host));
        assert!(!has_all_boards(&[], &[]));
    }

    #[test]
    fn nccl_gets_the_ports_and_no_other_network() {
        let access =
            RdmaAccess { nodes: Vec::new(), ports: "=mlx5_0:1,mlx5_1:1".to_owned(), host_network: false };
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let expected = [pair("NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1"), pair("NCCL_NET", "IB")];
        assert_eq!(access.variables(), expected);
    }
}
