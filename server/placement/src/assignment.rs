//! Assignments against the boards as they are stored: the last check of a decision before its commit, and the
//! free devices of an offering. Must not choose placements: the engine does.

use berth_mig::{Board, Instance, Profile, legal, room_for};
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::node_pools::NodePool;

use crate::cluster::WHOLE_MILLI;
use crate::pools::{Work, takes};

/// A user of a board: an instance, a share, or the whole board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occupant {
    /// The MIG instance; `None`: the board without MIG.
    pub instance: Option<Instance>,
    /// The organization of a share, and its thousandths of the board; `None`: the whole board or instance.
    pub share: Option<(OrgId, u16)>,
}

/// One board of the cluster, as it is stored.
#[derive(Debug, Clone)]
pub struct BoardState {
    pub node: NodeId,
    pub uuid: String,
    pub model: String,
    /// The MIG table of the model; `None` for a model without slices.
    pub board: Option<&'static Board>,
    pub mig_enabled: bool,
    /// The node accepts new work.
    pub ready: bool,
    /// The only organization whose work the node takes.
    pub dedicated_to: Option<OrgId>,
    /// The work that the node is for.
    pub pool: NodePool,
    /// The whole board is in quarantine.
    pub quarantined: bool,
    pub occupants: Vec<Occupant>,
}

/// The device of an offering.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OfferingShape {
    /// A board model, such as `H100-80GB`.
    pub model: String,
    /// The name of a MIG profile; `None` for the whole board.
    pub profile: Option<String>,
    /// Number of devices, all on one node.
    pub count: u32,
}

/// One device of an assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssignedDevice {
    pub gpu_uuid: String,
    /// `None`: the whole board without MIG.
    pub instance: Option<Instance>,
    /// Thousandths of a shared board; `None`: not a share.
    pub share_milli: Option<u16>,
    /// Number of memory slices.
    pub size: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    pub job: JobId,
    pub org: OrgId,
    /// True if the organization uses only nodes that are dedicated to it.
    pub own_nodes_only: bool,
    /// The kind of the job, for pools of nodes.
    pub work: Work,
    /// The generation of the job at the decision; the commit compares it.
    pub generation: i64,
    pub attempt: u32,
    /// The devices on each node; the first entry is rank 0.
    pub ranks: Vec<(NodeId, Vec<AssignedDevice>)>,
}

impl BoardState {
    fn instances(&self) -> Vec<Instance> {
        self.occupants.iter().filter_map(|o| o.instance).collect()
    }

    /// True if this board could hold the shape when empty and healthy.
    fn can_hold(&self, shape: &OfferingShape) -> bool {
        self.model == shape.model
            && match &shape.profile {
                None => true,
                Some(name) => {
                    self.board.is_some_and(|board| board.profile_by_name(name).is_some())
                        && (self.mig_enabled || self.toggles_live())
                }
            }
    }

    /// True if the board can be used without an instance: it is not in MIG mode, or changes the mode without a
    /// reset.
    fn works_whole(&self) -> bool {
        !self.mig_enabled || self.toggles_live()
    }

    /// True if the board changes its MIG mode without a reset.
    fn toggles_live(&self) -> bool {
        self.board.is_some_and(|board| board.live_toggle)
    }

    /// True if a share fits beside the other shares of its organization.
    pub fn has_room_for_share(&self, org: OrgId, milli: u16) -> bool {
        let taken = self.occupants.iter().try_fold(0u32, |sum, o| match o.share {
            Some((other, share)) if other == org && o.instance.is_none() => Some(sum + u32::from(share)),
            _ => None,
        });
        self.works_whole() && taken.is_some_and(|taken| taken + u32::from(milli) <= u32::from(WHOLE_MILLI))
    }

    fn occupy(&mut self, slot: &AssignedDevice, org: OrgId) {
        if slot.instance.is_some() {
            self.mig_enabled = true;
        }
        let share = slot.share_milli.map(|milli| (org, milli));
        self.occupants.push(Occupant { instance: slot.instance, share });
    }

    /// The devices that fit now, each with its number: the whole board (`None`), then the profiles from the
    /// smallest. A device that does not fit is absent.
    pub fn free_devices(&self) -> Vec<(Option<&'static str>, u32)> {
        let profiles: &'static [Profile] = self.board.map(|board| &*board.profiles).unwrap_or_default();
        let profiles = profiles.iter().map(|profile| Some(profile.name.as_str()));
        let room = |profile: Option<&'static str>| {
            let shape =
                OfferingShape { model: self.model.clone(), profile: profile.map(str::to_owned), count: 1 };
            (profile, self.room(&shape, false))
        };
        std::iter::once(None).chain(profiles).map(room).filter(|(_, count)| *count > 0).collect()
    }

    /// The number of devices of the shape that fit here: now, or on the empty board.
    fn room(&self, shape: &OfferingShape, empty: bool) -> u32 {
        if !self.can_hold(shape) || (!empty && (!self.ready || self.quarantined)) {
            return 0;
        }
        match &shape.profile {
            None => u32::from(self.works_whole() && (empty || self.occupants.is_empty())),
            Some(_) if !empty && self.occupants.iter().any(|o| o.instance.is_none()) => 0,
            Some(name) => {
                let live = if empty { Vec::new() } else { self.instances() };
                let room = |board: &Board| Some(room_for(board, &live, board.profile_by_name(name)?.id));
                self.board.and_then(room).unwrap_or(0)
            }
        }
    }
}

impl AssignedDevice {
    /// True if two devices overlap, so only one of them can be in use.
    pub fn collides(&self, other: &Self) -> bool {
        let cells = |slot: &Self| slot.instance.map(|i| (i.start, i.start + slot.size));
        self.gpu_uuid == other.gpu_uuid
            && match (cells(self), cells(other)) {
                (Some(a), Some(b)) => a.0 < b.1 && b.0 < a.1,
                _ => true,
            }
    }
}

/// True if an assignment fits the boards as they are stored.
pub fn still_fits(gpus: &[BoardState], assignment: &Assignment) -> bool {
    let on = |node: NodeId| assignment.ranks.iter().any(|(n, _)| *n == node);
    let mut gpus: Vec<BoardState> = gpus.iter().filter(|g| on(g.node)).cloned().collect();
    let mut slots = assignment.ranks.iter().flat_map(|(node, slots)| slots.iter().map(move |s| (*node, s)));
    let is_open_to = |dedicated_to: Option<OrgId>| {
        dedicated_to.map_or(!assignment.own_nodes_only, |org| org == assignment.org)
    };
    slots.all(|(node, slot)| {
        let Some(gpu) = gpus.iter_mut().find(|g| g.uuid == slot.gpu_uuid && g.node == node) else {
            return false;
        };
        let fits = gpu.ready
            && !gpu.quarantined
            && is_open_to(gpu.dedicated_to)
            && takes(gpu.pool, assignment.work)
            && match (slot.instance, slot.share_milli) {
                (None, None) => gpu.works_whole() && gpu.occupants.is_empty(),
                (None, Some(milli)) => gpu.has_room_for_share(assignment.org, milli),
                (Some(new), _) => {
                    gpu.occupants.iter().all(|o| o.instance.is_some())
                        && gpu.board.is_some_and(|board| legal(board, &gpu.instances(), new).is_ok())
                }
            };
        gpu.occupy(slot, assignment.org);
        fits
    })
}

/// Marks the devices of an assignment as occupied.
pub fn occupy(gpus: &mut [BoardState], assignment: &Assignment) {
    for slot in assignment.ranks.iter().flat_map(|(_, slots)| slots) {
        if let Some(gpu) = gpus.iter_mut().find(|g| g.uuid == slot.gpu_uuid) {
            gpu.occupy(slot, assignment.org);
        }
    }
}

/// The number of devices of a shape that fit now (`.0`) and on empty, healthy boards (`.1`).
pub fn availability(gpus: &[BoardState], shape: &OfferingShape) -> (u32, u32) {
    gpus.iter().fold((0, 0), |(now, all), g| (now + g.room(shape, false), all + g.room(shape, true)))
}

#[cfg(test)]
mod tests;
