//! A job's request as it is stated from outside, and its form inside the engine.

use std::sync::Arc;

use berth_types::ids::OrgId;

use crate::cluster::{Cluster, Models, WHOLE_MILLI};
use crate::quotas::{Need, OfferingIx};
use crate::shape::{Device, Shape};

/// Devices a node may be asked for, and nodes a job may span.
pub const MAX_COUNT: u32 = 64;
pub const MAX_NODES: u32 = 1_024;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Wanted {
    Board,
    /// Thousandths of a board.
    Share(u16),
    /// A profile's name.
    Slice(Arc<str>),
}

/// How near each other the nodes of a job must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Topology {
    #[default]
    Any,
    SameSwitch,
    SameRack,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Request {
    pub wanted: Wanted,
    /// Devices on each node.
    pub count: u32,
    pub nodes: u32,
    /// Board models, any of which will do; empty for any model at all.
    pub models: Vec<Arc<str>>,
    /// On each node.
    pub cpu_milli: i64,
    pub memory_mib: i64,
    pub topology: Topology,
    pub nvlink: bool,
    /// Its nodes run images.
    pub images: bool,
    /// What was ordered, for limits by offering.
    pub offering: Option<Arc<str>>,
    /// What all of it costs, for a limit of spending.
    pub nano_per_second: i64,
}

/// A request that no cluster can ever meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Absurd {
    #[error("ask for 1 to {MAX_COUNT} devices a node")]
    Count,
    #[error("ask for 1 to {MAX_NODES} nodes")]
    Nodes,
    #[error("a share is 1 to 999 thousandths of one board on one node")]
    Share,
    #[error("processors and memory cannot be negative")]
    Negative,
    #[error("no board model of this cloud has that name")]
    Model,
    #[error("the board model has no such MIG profile")]
    Profile,
}

/// A request inside the engine: what equal requests are recognised by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ask {
    pub shape: Shape,
    pub nodes: u32,
    pub topology: Topology,
    pub bill: Bill,
}

/// What limits look at besides devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Bill {
    pub offering: OfferingIx,
    pub nano_per_second: i64,
}

impl Ask {
    /// Before every other in order.
    pub(crate) const LEAST: Self = Self {
        shape: Shape {
            device: Device::Board,
            count: 0,
            models: Models(0),
            cpu_milli: i64::MIN,
            memory_mib: i64::MIN,
            nvlink: false,
            images: false,
        },
        nodes: 0,
        topology: Topology::Any,
        bill: Bill { offering: 0, nano_per_second: i64::MIN },
    };

    /// A request in the terms of this cluster.
    pub fn of(request: &Request, org: OrgId, cluster: &mut Cluster) -> Result<Self, Absurd> {
        if request.count == 0 || request.count > MAX_COUNT {
            return Err(Absurd::Count);
        }
        if request.nodes == 0 || request.nodes > MAX_NODES {
            return Err(Absurd::Nodes);
        }
        if request.cpu_milli < 0 || request.memory_mib < 0 {
            return Err(Absurd::Negative);
        }
        let mut models = if request.models.is_empty() { Models::ANY } else { Models(0) };
        for name in &request.models {
            models.0 |= Models::only(cluster.model(name).ok_or(Absurd::Model)?).0;
        }
        let device = match &request.wanted {
            Wanted::Board => Device::Board,
            Wanted::Share(milli) => {
                if *milli == 0 || *milli >= WHOLE_MILLI || request.count != 1 || request.nodes != 1 {
                    return Err(Absurd::Share);
                }
                Device::Share { milli: *milli, sharer: cluster.org(org) }
            }
            Wanted::Slice(name) => {
                let known = cluster.models().iter().enumerate();
                let of_models = known.filter(|(m, _)| u8::try_from(*m).is_ok_and(|m| models.has(m)));
                let place = |board: &berth_mig::Board| board.profiles.iter().position(|p| p.name == **name);
                let places: Vec<usize> = of_models.filter_map(|(_, m)| m.mig()).filter_map(place).collect();
                // Several models may stand for one offering only if the profile means the same on each.
                match places.as_slice() {
                    [first, rest @ ..] if rest.iter().all(|p| p == first) => {
                        Device::Slice { profile: u8::try_from(*first).map_err(|_| Absurd::Profile)? }
                    }
                    _ => return Err(Absurd::Profile),
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
        };
        let bill = Bill {
            offering: cluster.offering(request.offering.as_ref()),
            nano_per_second: request.nano_per_second,
        };
        Ok(Self { shape, nodes: request.nodes, topology: request.topology, bill })
    }

    /// The same for whichever organization.
    #[must_use]
    pub fn for_anybody(&self) -> Self {
        Self { shape: self.shape.for_anybody(), ..*self }
    }

    /// What it counts for against limits.
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
