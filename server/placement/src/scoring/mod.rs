//! The scoring of placements: policies behind one interface.
//!
//! A policy gets one node and one shape at a time and returns the cost of placing the shape there. The least
//! cost wins, and on a tie the first node. Must not know queues, times or owners.

mod baselines;
mod reach;

use berth_mig::Instance;

use crate::cluster::{Model, Part, View, WHOLE_MILLI, occupy};
use crate::demand::{DemandTables, Horizon};
use crate::shape::{Device, Shape, starts};

pub use baselines::{BestFit, Completions, Fgd, FirstFit, Packing, Random};
pub use reach::Reach;

/// The further input of a policy, besides the node and the shape.
#[derive(Debug, Clone, Copy)]
pub struct ScoringInput<'a> {
    pub models: &'a [Model],
    pub demand: &'a DemandTables,
}

/// One chosen device of a node: the index of the board, and the start of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pick {
    pub gpu: u8,
    pub start: u8,
}

/// The cost of placing a shape on a node, and the chosen devices. A lower cost is better.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScoredPlace {
    pub cost: u64,
    pub picks: Picks,
}

/// At most [`MAX_GPUS`](crate::cluster::MAX_GPUS) boards, each with at most eight instances.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Picks(smallvec::SmallVec<[Pick; 8]>);

impl Picks {
    pub fn push(&mut self, pick: Pick) {
        self.0.push(pick);
    }

    pub fn iter(&self) -> impl Iterator<Item = &Pick> {
        self.0.iter()
    }
}

pub trait Policy {
    /// The cheapest placement of the shape on this node; `None` if it does not fit.
    fn offer(&self, view: &View, shape: &Shape, cx: &ScoringInput<'_>) -> Option<ScoredPlace>;

    /// The cost of the cheapest placement, without the devices.
    fn cost(&self, view: &View, shape: &Shape, cx: &ScoringInput<'_>) -> Option<u64> {
        self.offer(view, shape, cx).map(|o| o.cost)
    }

    /// The number of coming requests that the demand model looks at.
    fn horizon(&self) -> Horizon {
        Horizon { boards: 1.0, shares: 1.0, slices: 1.0 }
    }
}

/// Marks one chosen device as occupied in a view.
pub fn occupy_pick(view: &mut View, shape: &Shape, pick: Pick, models: &[Model]) {
    let Some(gpu) = view.gpu_mut(usize::from(pick.gpu)) else { return };
    let model = models.get(usize::from(gpu.model));
    let (part, sharer) = match shape.device {
        Device::Board => (Part::Whole, 0),
        Device::Share { milli, sharer } => (Part::Share(milli), sharer),
        Device::Slice { profile } => {
            let id = model
                .and_then(Model::mig)
                .and_then(|b| b.profiles.get(usize::from(profile)))
                .map_or(u32::MAX, |p| p.id);
            (Part::Slice(Instance { profile_id: id, start: u32::from(pick.start) }), 0)
        }
    };
    occupy(gpu, model.and_then(|m| m.board), part, sharer);
}

/// All choices for one device of the shape. Of boards in equal states only the first is a choice.
pub fn choices(
    view: &View,
    shape: &Shape,
    models: &[Model],
    island: Option<u8>,
) -> smallvec::SmallVec<[Pick; 16]> {
    let mut out = smallvec::SmallVec::new();
    let gpus = view.gpus();
    for (index, gpu) in gpus.iter().enumerate() {
        if island.is_some_and(|i| i != gpu.island)
            || gpus.get(..index).is_some_and(|before| before.contains(gpu))
            || !shape.fits_gpu(gpu, models)
        {
            continue;
        }
        let pick = |start| Pick { gpu: u8::try_from(index).unwrap_or(u8::MAX), start };
        match shape.device {
            Device::Slice { profile } => {
                let starts = starts(gpu, usize::from(profile), models);
                out.extend((0..8).filter(|s| starts >> s & 1 != 0).map(pick));
            }
            _ => out.push(pick(0)),
        }
    }
    out
}

/// Places the devices one after the other, each at the choice with the least cost by `step`.
pub fn greedy(
    view: &View,
    shape: &Shape,
    models: &[Model],
    step: &dyn Fn(&View, &View, Pick) -> i64,
) -> Option<(View, Picks)> {
    if view.cpu_milli < shape.cpu_milli || view.memory_mib < shape.memory_mib {
        return None;
    }
    if !shape.nvlink || shape.count < 2 {
        return greedy_within(view, shape, models, step, None);
    }
    // The island with the least free capacity that holds the shape.
    let mut islands: smallvec::SmallVec<[(u32, u8); 4]> = smallvec::SmallVec::new();
    for gpu in view.gpus() {
        let free = u32::from(gpu.free_milli);
        match islands.iter_mut().find(|(_, island)| *island == gpu.island) {
            Some((sum, _)) => *sum += free,
            None => islands.push((free, gpu.island)),
        }
    }
    islands.sort_unstable();
    islands.iter().find_map(|(_, island)| greedy_within(view, shape, models, step, Some(*island)))
}

fn greedy_within(
    view: &View,
    shape: &Shape,
    models: &[Model],
    step: &dyn Fn(&View, &View, Pick) -> i64,
    island: Option<u8>,
) -> Option<(View, Picks)> {
    let mut now = *view;
    now.cpu_milli -= shape.cpu_milli;
    now.memory_mib -= shape.memory_mib;
    let mut picks = Picks::default();
    for _ in 0..shape.count {
        let choices = choices(&now, shape, models, island);
        let best = choices.iter().map(|pick| {
            let mut after = now;
            occupy_pick(&mut after, shape, *pick, models);
            (step(&now, &after, *pick), *pick, after)
        });
        let Some((_, pick, after)) = best.min_by_key(|(cost, ..)| *cost) else {
            return lowest_first(view, shape, models, island);
        };
        picks.push(pick);
        now = after;
    }
    Some((now, picks))
}

/// Places instances of one profile at the lowest starts, which leaves room for the greatest number of them.
/// It finds a placement, if there is one, also where the cheapest starts exclude each other.
fn lowest_first(view: &View, shape: &Shape, models: &[Model], island: Option<u8>) -> Option<(View, Picks)> {
    if shape.count < 2 || !matches!(shape.device, Device::Slice { .. }) {
        return None;
    }
    let mut now = *view;
    now.cpu_milli -= shape.cpu_milli;
    now.memory_mib -= shape.memory_mib;
    let mut picks = Picks::default();
    for _ in 0..shape.count {
        let pick = choices(&now, shape, models, island).into_iter().min_by_key(|p| (p.gpu, p.start))?;
        occupy_pick(&mut now, shape, pick, models);
        picks.push(pick);
    }
    Some((now, picks))
}

/// Packs a signed amount, and a second amount for ties, into one cost.
pub fn pack_cost(first: i64, second: u32) -> u64 {
    let first = u64::try_from(first.clamp(-(1 << 30), 1 << 30) + (1 << 30)).unwrap_or(0);
    first << 32 | u64::from(second)
}

/// The number of boards that are free as a whole.
pub fn free_boards(view: &View) -> usize {
    view.gpus().iter().filter(|g| g.free_milli == WHOLE_MILLI).count()
}
