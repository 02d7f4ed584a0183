//! Published placement policies as baselines of the benchmark. Only the benchmark uses them.

use super::{Policy, ScoredPlace, ScoringInput, free_boards, greedy, pack_cost};
use crate::cluster::{Model, View, WHOLE_MILLI};
use crate::shape::{Device, Shape};

fn offer(
    view: &View,
    shape: &Shape,
    cx: &ScoringInput<'_>,
    step: &dyn Fn(&View, &View, super::Pick) -> i64,
    cost: impl Fn(&View) -> u64,
) -> Option<ScoredPlace> {
    let (after, picks) = greedy(view, shape, cx.models, step)?;
    Some(ScoredPlace { cost: cost(&after), picks })
}

/// The first node, and the first board with its lowest start.
#[derive(Debug, Clone, Copy, Default)]
pub struct FirstFit;

impl Policy for FirstFit {
    fn offer(&self, view: &View, shape: &Shape, cx: &ScoringInput<'_>) -> Option<ScoredPlace> {
        let step = |_: &View, _: &View, pick: super::Pick| i64::from(pick.gpu) * 8 + i64::from(pick.start);
        offer(view, shape, cx, &step, |_| 0)
    }
}

/// A pseudo-random node that fits, by a hash of its state.
#[derive(Debug, Clone, Copy, Default)]
pub struct Random;

impl Policy for Random {
    fn offer(&self, view: &View, shape: &Shape, cx: &ScoringInput<'_>) -> Option<ScoredPlace> {
        let hash = |view: &View| {
            let seed = view.cpu_milli.unsigned_abs() ^ view.memory_mib.unsigned_abs() << 20;
            (seed ^ u64::from(view.free_milli()) << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 16
        };
        offer(view, shape, cx, &|_, _, _| 0, hash)
    }
}

/// The node, then the board, with the least free capacity afterwards.
#[derive(Debug, Clone, Copy, Default)]
pub struct BestFit;

impl Policy for BestFit {
    fn offer(&self, view: &View, shape: &Shape, cx: &ScoringInput<'_>) -> Option<ScoredPlace> {
        let step = |before: &View, _: &View, pick: super::Pick| {
            before.gpus().get(usize::from(pick.gpu)).map_or(0, |g| i64::from(g.free_milli))
        };
        offer(view, shape, cx, &step, |after| pack_cost(i64::from(after.free_milli()), 0))
    }
}

/// Boards in use before idle boards, and nodes in use before idle nodes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Packing;

impl Policy for Packing {
    fn offer(&self, view: &View, shape: &Shape, cx: &ScoringInput<'_>) -> Option<ScoredPlace> {
        let step = |before: &View, _: &View, pick: super::Pick| {
            before.gpus().get(usize::from(pick.gpu)).map_or(0, |g| i64::from(g.free_milli))
        };
        let idle = free_boards(view);
        offer(view, shape, cx, &step, |after| {
            let class = if free_boards(after) == idle {
                0
            } else if idle < view.gpus().len() {
                1
            } else {
                2
            };
            pack_cost(class, after.free_milli())
        })
    }
}

/// Fragmentation gradient descent (Weng et al., ATC 2023), with demand that is learned online as for
/// [`super::Reach`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Fgd;

/// The expected thousandths of a node that the next request cannot use.
fn fragmented(view: &View, cx: &ScoringInput<'_>) -> f64 {
    let all = f64::from(view.free_milli());
    cx.demand
        .classes()
        .iter()
        .map(|(class, q)| {
            let each = class.each_milli();
            let able = view.gpus().iter().filter(|g| g.free_milli >= each).count();
            let runs = class.count > 0 && view.cpu_milli >= class.cpu_milli && able >= class.count as usize;
            let rest =
                || view.gpus().iter().filter(|g| g.free_milli < each).map(|g| f64::from(g.free_milli)).sum();
            q * if runs { rest() } else { all }
        })
        .sum()
}

impl Policy for Fgd {
    fn offer(&self, view: &View, shape: &Shape, cx: &ScoringInput<'_>) -> Option<ScoredPlace> {
        let before = fragmented(view, cx);
        let step = |_: &View, after: &View, _: super::Pick| fragmented(after, cx) as i64;
        offer(view, shape, cx, &step, |after| {
            let more = fragmented(after, cx) - before;
            pack_cost((100.0 / (1.0 + (-more / 1_000.0).exp())).floor() as i64, 0)
        })
    }
}

/// MIG: the fullest board that fits, and on it the start after which the most sets of instances are possible.
#[derive(Debug, Clone, Copy, Default)]
pub struct Completions;

fn completions(view: &View, models: &[Model]) -> u32 {
    let of_gpu = |gpu: &crate::cluster::GpuView| {
        let tables = models.get(usize::from(gpu.model)).and_then(|m| berth_mig::masks(m.board?));
        tables.map_or(0, |t| t.completions(gpu.mask))
    };
    view.gpus().iter().map(of_gpu).sum()
}

impl Policy for Completions {
    fn offer(&self, view: &View, shape: &Shape, cx: &ScoringInput<'_>) -> Option<ScoredPlace> {
        let used = |view: &View| {
            let each = |g: &crate::cluster::GpuView| if g.sliced { g.mask.count_ones() } else { 0 };
            view.gpus().iter().map(each).sum::<u32>()
        };
        let step = |before: &View, after: &View, pick: super::Pick| {
            let full = before.gpus().get(usize::from(pick.gpu)).map_or(0, |g| g.mask.count_ones());
            let fullest = i64::from(8 - full.min(8)) << 40;
            fullest - i64::from(completions(after, cx.models)) * 8 - i64::from(pick.start)
        };
        let full = used(view);
        let whole = matches!(shape.device, Device::Board).then_some(u32::from(WHOLE_MILLI)).unwrap_or(0);
        offer(view, shape, cx, &step, |after| {
            let left = completions(after, cx.models);
            pack_cost(-i64::from(full), whole + (1 << 20) - left.min(1 << 20))
        })
    }
}
