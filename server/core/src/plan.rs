//! Who runs where next, and why the others wait.
//!
//! [`plan`] takes the cluster as it is and the queue, and returns assignments; it changes nothing.
//! On MIG boards the exact start is decided here by the completion rule of `berth-mig`; among boards
//! the fullest that fits is taken, so that empty boards stay empty for those who need them whole.

use std::collections::HashSet;

use berth_mig::{Board, Instance, choose, legal, room_for};
use berth_types::ids::{JobId, NodeId};
use berth_types::jobs::{Blocker, Explanation, Priority};
use berth_types::time::{Timestamp, duration_text};

/// What occupies slices of a board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occupant {
    /// `None`: the whole board without MIG.
    pub instance: Option<Instance>,
    /// When its job must have ended; `None` when that is unknown (quarantined).
    pub ends_by: Option<Timestamp>,
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    pub job: JobId,
    /// The generation that an assignment is based on; the commit compares it.
    pub generation: i64,
    pub shape: Shape,
    pub priority: Priority,
    pub queued_at: Timestamp,
}

#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    pub gpus: Vec<Gpu>,
    pub queue: Vec<Waiting>,
}

/// One device of an assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    pub gpu_uuid: String,
    /// `None`: the whole board without MIG.
    pub instance: Option<Instance>,
    /// Memory slices it takes.
    pub size: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    pub job: JobId,
    pub generation: i64,
    pub node: NodeId,
    pub slots: Vec<Slot>,
}

impl Gpu {
    fn instances(&self) -> Vec<Instance> {
        self.occupants.iter().filter_map(|o| o.instance).collect()
    }

    fn used_slices(&self) -> u32 {
        let sizes = self.occupants.iter().map(|o| match o.instance {
            None => self.board.memory_slices,
            Some(i) => self.board.profile(i.profile_id).map_or(0, |p| p.size),
        });
        sizes.sum()
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

    /// Where one device of the shape goes on this board now: the slot, and the completions left.
    fn place(&self, shape: &Shape) -> Option<(Slot, u64)> {
        if !self.ready || self.quarantined || !self.could(shape) {
            return None;
        }
        let slot = |instance, size| Slot { gpu_uuid: self.uuid.clone(), instance, size };
        match &shape.profile {
            None if !self.occupants.is_empty() => None,
            // A board whose MIG mode cannot be switched live is lent whole as its largest instance.
            None if self.mig_enabled && !self.board.live_toggle => {
                let profile = self.board.full_profile()?;
                let start = *profile.starts.first()?;
                Some((slot(Some(Instance { profile_id: profile.id, start }), profile.size), 1))
            }
            None => Some((slot(None, self.board.memory_slices), 0)),
            Some(_) if self.occupants.iter().any(|o| o.instance.is_none()) => None,
            Some(name) => {
                let profile = self.board.profile_by_name(name)?;
                let (start, left) = choose(self.board, &self.instances(), profile.id)?;
                Some((slot(Some(Instance { profile_id: profile.id, start }), profile.size), left))
            }
        }
    }

    fn take(&mut self, slot: &Slot, ends_by: Option<Timestamp>) {
        if slot.instance.is_some() {
            self.mig_enabled = true;
        }
        self.occupants.push(Occupant { instance: slot.instance, ends_by });
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

/// Places every device of a shape on one node, or none.
fn place(gpus: &mut [Gpu], shape: &Shape) -> Option<(NodeId, Vec<Slot>)> {
    let mut seen = HashSet::new();
    let mut best: Option<(u32, NodeId, Vec<(usize, Slot)>)> = None;
    let nodes: Vec<NodeId> = gpus.iter().map(|g| g.node).filter(|n| seen.insert(*n)).collect();
    for node in nodes {
        let mut taken: Vec<(usize, Slot)> = Vec::new();
        let mut trial: Vec<(usize, Gpu)> = gpus
            .iter()
            .enumerate()
            .filter(|(_, g)| g.node == node && g.could(shape))
            .map(|(i, g)| (i, g.clone()))
            .collect();
        let mut fullness = 0;
        for _ in 0..shape.count {
            // The fullest board first; among equals the one that keeps most completions.
            let found = trial
                .iter_mut()
                .filter_map(|(i, g)| {
                    let (slot, left) = g.place(shape)?;
                    Some(((g.used_slices(), left, std::cmp::Reverse(*i)), *i, slot, g))
                })
                .max_by_key(|(score, ..)| *score);
            let Some(((used, ..), index, slot, gpu)) = found else { break };
            fullness += used;
            gpu.take(&slot, None);
            taken.push((index, slot));
        }
        let whole = u32::try_from(taken.len()).unwrap_or(0) == shape.count;
        if whole && best.as_ref().is_none_or(|(score, ..)| fullness > *score) {
            best = Some((fullness, node, taken));
        }
    }
    let (_, node, taken) = best?;
    for (index, slot) in &taken {
        if let Some(gpu) = gpus.get_mut(*index) {
            gpu.take(slot, None);
        }
    }
    Some((node, taken.into_iter().map(|(_, slot)| slot).collect()))
}

fn in_order(queue: &[Waiting]) -> Vec<&Waiting> {
    let mut order: Vec<&Waiting> = queue.iter().collect();
    order.sort_by_key(|w| (std::cmp::Reverse(w.priority.rank()), w.queued_at, w.job));
    order
}

/// Assigns as many waiting jobs as fit: by priority, then age.
///
/// A shape that found no place is not tried again in this pass, so a pass costs the number of
/// shapes and of placements, not the length of the queue.
pub fn plan(snapshot: &Snapshot) -> Vec<Assignment> {
    let mut gpus = snapshot.gpus.clone();
    let mut full: HashSet<&Shape> = HashSet::new();
    let mut out = Vec::new();
    for waiting in in_order(&snapshot.queue) {
        if full.contains(&waiting.shape) {
            continue;
        }
        match place(&mut gpus, &waiting.shape) {
            None => {
                full.insert(&waiting.shape);
            }
            Some((node, slots)) => {
                out.push(Assignment { job: waiting.job, generation: waiting.generation, node, slots });
            }
        }
    }
    out
}

/// Where a shape would go if it stood alone at the head of the queue.
pub fn trial(gpus: &[Gpu], shape: &Shape) -> Option<(NodeId, Vec<Slot>)> {
    place(&mut gpus.to_vec(), shape)
}

/// Whether an assignment still fits the boards as they are: the last look before a commit.
pub fn still_fits(gpus: &[Gpu], assignment: &Assignment) -> bool {
    let mut gpus: Vec<Gpu> = gpus.iter().filter(|g| g.node == assignment.node).cloned().collect();
    assignment.slots.iter().all(|slot| {
        let Some(gpu) = gpus.iter_mut().find(|g| g.uuid == slot.gpu_uuid) else { return false };
        let fits = gpu.ready
            && !gpu.quarantined
            && match slot.instance {
                None => gpu.occupants.is_empty(),
                Some(new) => {
                    gpu.occupants.iter().all(|o| o.instance.is_some())
                        && legal(gpu.board, &gpu.instances(), new).is_ok()
                }
            };
        gpu.take(slot, None);
        fits
    })
}

/// How many devices of a shape could be placed now (`.0`) and on an empty, healthy fleet (`.1`).
pub fn availability(gpus: &[Gpu], shape: &Shape) -> (u32, u32) {
    gpus.iter().fold((0, 0), |(now, all), g| (now + g.room(shape, false), all + g.room(shape, true)))
}

/// Why a shape does not start now, and when it may. `ahead` counts waiting jobs before it that want
/// the same boards.
pub fn explain(gpus: &[Gpu], shape: &Shape, ahead: usize, now: Timestamp) -> Explanation {
    let what = shape_text(shape);
    let blocker =
        |code: &str, detail: String, change: String| Blocker { code: code.to_owned(), detail, change };
    let mut blockers = Vec::new();
    let able: Vec<&Gpu> = gpus.iter().filter(|g| g.could(shape)).collect();
    let largest = largest_node(gpus, shape);
    if able.is_empty() || largest < shape.count {
        let detail = if able.is_empty() {
            format!("No node in this cloud has a board for {what}.")
        } else {
            format!("No single node holds {what}; the largest holds {largest}.")
        };
        let change = if able.is_empty() {
            "Choose another offering, or ask the operator to add such a board.".to_owned()
        } else {
            format!("Ask for {largest} devices or fewer.")
        };
        blockers.push(blocker("capacity.none", detail, change));
        let smallest_change = blockers.first().map(|b: &Blocker| b.change.clone()).unwrap_or_default();
        return Explanation {
            blockers,
            smallest_change,
            earliest_start: None,
            basis: "The present inventory.".to_owned(),
        };
    }
    let away = able.iter().filter(|g| !g.ready).count();
    let sick = able.iter().filter(|g| g.quarantined).count();
    let fits_now = trial(gpus, shape).is_some();
    if !fits_now {
        let busy = able.iter().filter(|g| g.ready && !g.quarantined && !g.occupants.is_empty()).count();
        if busy > 0 {
            let boards = if busy == 1 {
                "The board that could take it is".to_owned()
            } else {
                format!("The {busy} boards that could take it are")
            };
            blockers.push(blocker(
                "capacity.busy",
                format!("{boards} in use, with no place left for {what}."),
                "Wait for a running job to end, or stop one of your own.".to_owned(),
            ));
        }
        if away > 0 {
            blockers.push(blocker(
                "node.unavailable",
                format!(
                    "{away} suitable {} on a node that is cordoned or out of reach.",
                    plural(away, "board is", "boards are")
                ),
                "The operator can bring the node back.".to_owned(),
            ));
        }
        if sick > 0 {
            blockers.push(blocker(
                "health.quarantined",
                format!("{sick} suitable {} in quarantine.", plural(sick, "board is", "boards are")),
                "The operator can clear the quarantine.".to_owned(),
            ));
        }
    }
    if ahead > 0 && !fits_now {
        blockers.push(blocker(
            "queue.ahead",
            format!("{ahead} {} before it for the same boards.", plural(ahead, "job waits", "jobs wait")),
            "Raise its priority, or wait for its turn.".to_owned(),
        ));
    }
    let (earliest_start, basis) = if fits_now {
        (Some(now), "A place is free; it starts with the next pass of the scheduler.".to_owned())
    } else {
        earliest(gpus, shape, now)
    };
    let smallest_change = blockers.first().map(|b| b.change.clone()).unwrap_or_default();
    Explanation { blockers, smallest_change, earliest_start, basis }
}

fn plural<'a>(n: usize, one: &'a str, many: &'a str) -> &'a str {
    if n == 1 { one } else { many }
}

/// `2 × H100-80GB 1g.10gb`.
pub fn shape_text(shape: &Shape) -> String {
    let device = match &shape.profile {
        None => format!("a whole {}", shape.model),
        Some(profile) => format!("a {profile} slice of {}", shape.model),
    };
    if shape.count == 1 { device } else { format!("{} × {}", shape.count, device.trim_start_matches("a ")) }
}

fn largest_node(gpus: &[Gpu], shape: &Shape) -> u32 {
    let mut nodes: Vec<(NodeId, u32)> = Vec::new();
    for gpu in gpus {
        let room = gpu.room(shape, true);
        match nodes.iter_mut().find(|(node, _)| *node == gpu.node) {
            Some((_, sum)) => *sum += room,
            None => nodes.push((gpu.node, room)),
        }
    }
    nodes.into_iter().map(|(_, sum)| sum).max().unwrap_or(0)
}

/// The first time by which enough of what runs must have ended.
fn earliest(gpus: &[Gpu], shape: &Shape, now: Timestamp) -> (Option<Timestamp>, String) {
    let mut ends: Vec<Timestamp> = gpus
        .iter()
        .filter(|g| g.could(shape))
        .flat_map(|g| g.occupants.iter().filter_map(|o| o.ends_by))
        .collect();
    ends.sort_unstable();
    ends.dedup();
    for end in ends {
        let mut later = gpus.to_vec();
        for gpu in &mut later {
            gpu.occupants.retain(|o| o.ends_by.is_none_or(|e| e > end));
        }
        if trial(&later, shape).is_some() {
            let at = end.max(now);
            let basis = format!(
                "The jobs in its way reach their limits in {} at the latest.",
                duration_text(at.millis_since(now))
            );
            return (Some(at), basis);
        }
    }
    (None, "Nothing that runs now frees a suitable place by itself.".to_owned())
}

#[cfg(test)]
mod tests;
