//! Types of RDMA: the ports of nodes, and the grant of an organization.

use serde::{Deserialize, Serialize};

/// A port of an RDMA device of a node (InfiniBand or RoCE), as the worker reported it when it connected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RdmaPort {
    /// The name of the device, such as `mlx5_0`.
    pub device: String,
    /// The number of the port, from 1.
    pub port: u32,
    /// The state in the words of the kernel, such as `ACTIVE`, `INIT` or `DOWN`.
    pub state: String,
    /// The rate in megabits a second; 0 if unknown.
    pub rate_mbps: u64,
    /// The link layer: `InfiniBand`, or `Ethernet` for RoCE.
    pub link_layer: String,
    /// The local identifier that the subnet manager gave; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lid: Option<u32>,
    /// The NUMA node of the device; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// The PCI address of the device; absent for a device that is not on PCI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<String>,
    /// The names of the device's network interfaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<String>,
    /// The name of the device node for jobs, such as `uverbs0`; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uverbs: Option<String>,
    /// The distances to the boards of the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub distances: Vec<BoardDistance>,
}

impl RdmaPort {
    /// True if the port has a link.
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }
}

/// The distance between a board and an RDMA device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BoardDistance {
    /// The number of the board on its node, from 0.
    pub gpu_index: u32,
    /// The word of `nvidia-smi topo`, from the nearest: `PIX` (one switch), `PXB` (several switches), `PHB` (one
    /// host bridge), `NODE` (one NUMA node) or `SYS`.
    pub distance: String,
}

/// The grant of RDMA to an organization by an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RdmaGrant {
    /// True if jobs of the organization may have `rdma`.
    pub granted: bool,
}
