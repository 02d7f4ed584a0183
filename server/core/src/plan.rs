//! The last look before a decision is kept: whether it still fits the boards as they are stored; and
//! how much of an offering is free. Must not decide who runs where: that is the engine's.

use berth_mig::{Board, Instance, legal, room_for};
use berth_types::ids::{JobId, NodeId, OrgId};

use crate::cluster::WHOLE_MILLI;

/// What occupies slices of a board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occupant {
    /// `None`: the board without MIG.
    pub instance: Option<Instance>,
    /// Whose share of the board, and how many thousandths; `None`: all of it.
    pub share: Option<(OrgId, u16)>,
}

/// One board of the cluster.
#[derive(Debug, Clone)]
pub struct Gpu {
    pub node: NodeId,
    pub uuid: String,
    pub board: &'static Board,
    pub mig_enabled: bool,
    /// Its node takes new work.
    pub ready: bool,
    /// Whole-board quarantine.
    pub quarantined: bool,
    pub occupants: Vec<Occupant>,
}

/// What is asked for on each device.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Shape {
    /// A board model, such as `H100-80GB`.
    pub model: String,
    /// A profile's name; `None` for the whole board.
    pub profile: Option<String>,
    /// Devices, all on one node.
    pub count: u32,
}

/// One device of an assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    pub gpu_uuid: String,
    /// `None`: the whole board without MIG.
    pub instance: Option<Instance>,
    /// Thousandths of a board that is shared; `None`: all of it.
    pub share_milli: Option<u16>,
    /// Memory slices it takes.
    pub size: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    pub job: JobId,
    pub org: OrgId,
    /// What the decision is based on; the commit compares it.
    pub generation: i64,
    pub attempt: u32,
    /// What it gets on each node; the first is rank 0.
    pub ranks: Vec<(NodeId, Vec<Slot>)>,
}

impl Gpu {
    fn instances(&self) -> Vec<Instance> {
        self.occupants.iter().filter_map(|o| o.instance).collect()
    }

    /// Whether this board could ever hold the shape, were it empty and healthy.
    fn could(&self, shape: &Shape) -> bool {
        self.board.model == shape.model
            && match &shape.profile {
                None => true,
                Some(name) => {
                    self.board.profile_by_name(name).is_some() && (self.mig_enabled || self.board.live_toggle)
                }
            }
    }

    /// Whether a share fits beside those of the same organization.
    fn fits_share(&self, org: OrgId, milli: u16) -> bool {
        let taken = self.occupants.iter().try_fold(0u32, |sum, o| match o.share {
            Some((other, share)) if other == org && o.instance.is_none() => Some(sum + u32::from(share)),
            _ => None,
        });
        (!self.mig_enabled || self.board.live_toggle)
            && taken.is_some_and(|taken| taken + u32::from(milli) <= u32::from(WHOLE_MILLI))
    }

    fn take(&mut self, slot: &Slot, org: OrgId) {
        if slot.instance.is_some() {
            self.mig_enabled = true;
        }
        let share = slot.share_milli.map(|milli| (org, milli));
        self.occupants.push(Occupant { instance: slot.instance, share });
    }

    /// How many devices of the shape fit here, now or were it empty.
    fn room(&self, shape: &Shape, empty: bool) -> u32 {
        if !self.could(shape) || (!empty && (!self.ready || self.quarantined)) {
            return 0;
        }
        match &shape.profile {
            None => u32::from(empty || self.occupants.is_empty()),
            Some(_) if !empty && self.occupants.iter().any(|o| o.instance.is_none()) => 0,
            Some(name) => {
                let live = if empty { Vec::new() } else { self.instances() };
                self.board.profile_by_name(name).map_or(0, |p| room_for(self.board, &live, p.id))
            }
        }
    }
}

impl Slot {
    /// Whether two devices cannot be given away at the same time.
    pub fn collides(&self, other: &Self) -> bool {
        let cells = |slot: &Self| slot.instance.map(|i| (i.start, i.start + slot.size));
        self.gpu_uuid == other.gpu_uuid
            && match (cells(self), cells(other)) {
                (Some(a), Some(b)) => a.0 < b.1 && b.0 < a.1,
                _ => true,
            }
    }
}

/// Whether an assignment still fits the boards as they are: the last look before a commit.
pub fn still_fits(gpus: &[Gpu], assignment: &Assignment) -> bool {
    let on = |node: NodeId| assignment.ranks.iter().any(|(n, _)| *n == node);
    let mut gpus: Vec<Gpu> = gpus.iter().filter(|g| on(g.node)).cloned().collect();
    let mut slots = assignment.ranks.iter().flat_map(|(node, slots)| slots.iter().map(move |s| (*node, s)));
    slots.all(|(node, slot)| {
        let Some(gpu) = gpus.iter_mut().find(|g| g.uuid == slot.gpu_uuid && g.node == node) else {
            return false;
        };
        let fits = gpu.ready
            && !gpu.quarantined
            && match (slot.instance, slot.share_milli) {
                (None, None) => gpu.occupants.is_empty(),
                (None, Some(milli)) => gpu.fits_share(assignment.org, milli),
                (Some(new), _) => {
                    gpu.occupants.iter().all(|o| o.instance.is_some())
                        && legal(gpu.board, &gpu.instances(), new).is_ok()
                }
            };
        gpu.take(slot, assignment.org);
        fits
    })
}

/// Marks what an assignment takes.
pub fn take(gpus: &mut [Gpu], assignment: &Assignment) {
    for slot in assignment.ranks.iter().flat_map(|(_, slots)| slots) {
        if let Some(gpu) = gpus.iter_mut().find(|g| g.uuid == slot.gpu_uuid) {
            gpu.take(slot, assignment.org);
        }
    }
}

/// How many devices of a shape could be placed now (`.0`) and on an empty, healthy fleet (`.1`).
pub fn availability(gpus: &[Gpu], shape: &Shape) -> (u32, u32) {
    gpus.iter().fold((0, 0), |(now, all), g| (now + g.room(shape, false), all + g.room(shape, true)))
}

#[cfg(test)]
mod tests;
