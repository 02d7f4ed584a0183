//! Requests for devices: the form with names, and the form with indices inside the engine.

use std::sync::Arc;

use berth_types::ids::OrgId;

use crate::cluster::{Cluster, Models, WHOLE_MILLI, network_need, present_work, storage_bits, tenancy};
use crate::networks::NetworkNeed;
use crate::pools::Work;
use crate::quotas::{Need, OfferingIx};
use crate::shape::{Device, Shape};
use crate::tenancy::Tenancy;

/// Greatest number of devices on one node.
pub const MAX_COUNT: u32 = 64;
/// Greatest number of nodes of one request.
pub const MAX_NODES: u32 = 1_024;

/// The kind of a requested device.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum DeviceRequest {
    Board,
    /// Thousandths of a board.
    Share(u16),
    /// The name of a MIG profile.
    Slice(Arc<str>),
}

/// The required nearness of a job's nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Nearness {
    #[default]
    Any,
    SameSwitch,
    SameRack,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Request {
    pub device: DeviceRequest,
    /// Devices on each node.
    pub count: u32,
    pub nodes: u32,
    /// Accepted board models; empty for any model.
    pub models: Vec<Arc<str>>,
    /// Thousandths of a processor on each node.
    pub cpu_milli: i64,
    /// MiB on each node.
    pub memory_mib: i64,
    pub topology: Nearness,
    pub nvlink: bool,
    /// True if the nodes must run images.
    pub images: bool,
    /// True if the nodes must have active RDMA ports, and the devices are all boards of each node.
    pub rdma: bool,
    /// The network that the nodes must give.
    pub network: NetworkNeed,
    /// The storage classes that each node must have.
    pub storage: Vec<Arc<str>>,
    /// The kind of the job, for pools of nodes.
    pub work: Work,
    /// The offering, for limits by offering.
    pub offering: Option<Arc<str>>,
    /// The rate of all devices together, for the limit on spending.
    pub nano_per_second: i64,
}

/// The reason for which a request is invalid in this cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequest {
    #[error("1 to {MAX_COUNT} devices per node are possible")]
    Count,
    #[error("1 to {MAX_NODES} nodes are possible")]
    Nodes,
    #[error("a share has 1 to 999 thousandths of one board on one node")]
    Share,
    #[error("processors and memory cannot be negative")]
    Negative,
    #[error("the cluster has no board model of this name")]
    Model,
    #[error("the board model has no such MIG profile")]
    Profile,
}

/// A request inside the engine. Equal requests have equal values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ask {
    pub shape: Shape,
    pub nodes: u32,
    pub topology: Nearness,
    pub bill: Bill,
}

/// The offering and the rate of a request, for limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Bill {
    pub offering: OfferingIx,
    pub nano_per_second: i64,
}

impl Ask {
    /// The first in the order of all requests.
    pub const LEAST: Self = Self {
        shape: Shape {
            device: Device::Board,
            count: 0,
            models: Models(0),
            cpu_milli: i64::MIN,
            memory_mib: i64::MIN,
            nvlink: false,
            images: false,
            rdma: false,
            network: NetworkNeed::Any,
            gang: false,
            storage: 0,
            tenancy: Tenancy::COMMON,
            work: Work::Training,
        },
        nodes: 0,
        topology: Nearness::Any,
        bill: Bill { offering: 0, nano_per_second: i64::MIN },
    };

    /// Resolves the names of a request to the indices of this cluster. Unknown models, organizations and
    /// offerings are added to the cluster.
    ///
    /// # Errors
    /// [`InvalidRequest`] with the first fault.
    pub fn from_request(
        request: &Request,
        org: OrgId,
        cluster: &mut Cluster,
    ) -> Result<Self, InvalidRequest> {
        if request.count == 0 || request.count > MAX_COUNT {
            return Err(InvalidRequest::Count);
        }
        if request.nodes == 0 || request.nodes > MAX_NODES {
            return Err(InvalidRequest::Nodes);
        }
        if request.cpu_milli < 0 || request.memory_mib < 0 {
            return Err(InvalidRequest::Negative);
        }
        let mut models = if request.models.is_empty() { Models::ANY } else { Models(0) };
        for name in &request.models {
            models.0 |= Models::only(cluster.model(name).ok_or(InvalidRequest::Model)?).0;
        }
        let device = match &request.device {
            DeviceRequest::Board => Device::Board,
            DeviceRequest::Share(milli) => {
                if *milli == 0 || *milli >= WHOLE_MILLI || request.count != 1 || request.nodes != 1 {
                    return Err(InvalidRequest::Share);
                }
                Device::Share { milli: *milli, sharer: cluster.org(org) }
            }
            DeviceRequest::Slice(name) => {
                let known = cluster.models().iter().enumerate();
                let of_models = known.filter(|(m, _)| u8::try_from(*m).is_ok_and(|m| models.has(m)));
                let index = |board: &berth_mig::Board| board.profiles.iter().position(|p| p.name == **name);
                let indices: Vec<usize> = of_models.filter_map(|(_, m)| m.mig()).filter_map(index).collect();
                // The profile must have the same index on all accepted models.
                match indices.as_slice() {
                    [first, rest @ ..] if rest.iter().all(|p| p == first) => {
                        Device::Slice { profile: u8::try_from(*first).map_err(|_| InvalidRequest::Profile)? }
                    }
                    _ => return Err(InvalidRequest::Profile),
                }
            }
        };
        let shape = Shape {
            device,
            count: request.count,
            models,
            cpu_milli: request.cpu_milli,
            memory_mib: request.memory_mib,
            nvlink: request.nvlink && request.count > 1,
            images: request.images,
            rdma: request.rdma,
            network: network_need(cluster, org, request.network),
            gang: request.nodes > 1,
            storage: storage_bits(cluster, &request.storage),
            tenancy: tenancy(cluster, org),
            work: present_work(cluster, request.work),
        };
        let bill = Bill {
            offering: cluster.offering(request.offering.as_ref()),
            nano_per_second: request.nano_per_second,
        };
        Ok(Self { shape, nodes: request.nodes, topology: request.topology, bill })
    }

    /// The same request, independent of the organization.
    #[must_use]
    pub fn for_anybody(&self) -> Self {
        Self { shape: self.shape.for_anybody(), ..*self }
    }

    /// The amounts that count against limits.
    pub fn need(&self, cluster: &Cluster) -> Need {
        let devices_milli = match self.shape.device {
            Device::Share { milli, .. } => i64::from(milli),
            _ => i64::from(self.shape.count) * i64::from(self.nodes) * 1_000,
        };
        let Bill { offering, nano_per_second } = self.bill;
        Need { boards_milli: self.milli(cluster), offering, devices_milli, nano_per_second }
    }

    /// Thousandths of a board over all nodes.
    pub fn milli(&self, cluster: &Cluster) -> i64 {
        i64::from(self.shape.milli(cluster.models())) * i64::from(self.nodes)
    }
}
