//! Berth's own policy: free capacity stays usable for the coming requests.
//!
//! Fragmentation gradient descent (Weng et al., "Beware of Fragmentation", ATC 2023) counts free capacity as
//! lost if the *next* request cannot use it. That is too strict for a rest that one of many coming requests
//! almost surely uses. Here a rest counts as lost by the probability that none of the next requests (a
//! [`Horizon`]) can use it, for boards, shares and MIG slices alike.

use super::{Pick, Picks, Policy, ScoredPlace, ScoringInput, free_boards, greedy, pack_cost};
use crate::cluster::{View, WHOLE_MILLI};
use crate::demand::Horizon;
use crate::shape::{Device, Shape};

/// Chosen by experiments on traces of many mixes (`docs/placement.md`). The result changes little around
/// these values.
const HORIZON: Horizon = Horizon { boards: 8.0, shares: 3.2, slices: 3.2 };
/// Differences below this number of thousandths of a board do not count; then the fuller node wins.
const GRAIN: f32 = 40.0;
/// The cost, in thousandths of a board, of a board whose model has pressure 1.
const PRESSURE: f64 = 400.0;

#[derive(Debug, Clone, Copy, Default)]
pub struct Reach;

/// The expected thousandths of a node that stay unused.
fn expected_loss(view: &View, cx: &ScoringInput<'_>) -> f32 {
    let full = free_boards(view);
    let mut row = (u8::MAX, 0);
    let mut sum = 0.0;
    for gpu in view.gpus() {
        if gpu.sliced {
            sum += cx.demand.unusable_sliced(gpu.model, gpu.mask);
        } else if gpu.free_milli > 0 {
            if row.0 != gpu.model {
                row = (gpu.model, cx.demand.row(gpu.model, view.cpu_milli));
            }
            sum += if gpu.free_milli == WHOLE_MILLI {
                cx.demand.unusable_empty(gpu.model, row.1, full)
            } else {
                cx.demand.unusable_shared(gpu.model, row.1, gpu.free_milli)
            };
        }
    }
    sum
}

/// The cost of a placement with `more` additional expected loss.
fn placement_cost(view: &View, shape: &Shape, more: f32, first: Option<Pick>, cx: &ScoringInput<'_>) -> u64 {
    let model = first.and_then(|p| view.gpus().get(usize::from(p.gpu))).map(|g| g.model);
    let pressed = model.map_or(0.0, |m| {
        PRESSURE * cx.demand.pressure(m) * f64::from(shape.milli(cx.models)) / f64::from(WHOLE_MILLI)
    });
    pack_cost(((more + pressed as f32) / GRAIN).floor() as i64, view.free_milli())
}

/// The best choice for a single board or share. It does not copy the node for each choice.
fn best_single(view: &View, shape: &Shape, cx: &ScoringInput<'_>) -> Option<(f32, Pick)> {
    if view.cpu_milli < shape.cpu_milli || view.memory_mib < shape.memory_mib {
        return None;
    }
    let mut after = *view;
    after.cpu_milli -= shape.cpu_milli;
    let full = free_boards(&after);
    let need = match shape.device {
        Device::Share { milli, .. } => milli,
        _ => WHOLE_MILLI,
    };
    let mut best: Option<(f32, Pick)> = None;
    let mut loss_now: Option<f32> = None;
    let (mut whole_now, mut whole_less) = (0.0, 0.0);
    for (index, gpu) in view.gpus().iter().enumerate() {
        if !shape.fits_gpu(gpu, cx.models)
            || view.gpus().get(..index).is_some_and(|before| before.contains(gpu))
        {
            continue;
        }
        let now = *loss_now.get_or_insert_with(|| {
            for gpu in after.gpus().iter().filter(|g| g.free_milli == WHOLE_MILLI) {
                let row = cx.demand.row(gpu.model, after.cpu_milli);
                whole_now += cx.demand.unusable_empty(gpu.model, row, full);
                whole_less += cx.demand.unusable_empty(gpu.model, row, full.saturating_sub(1));
            }
            expected_loss(&after, cx)
        });
        let row = cx.demand.row(gpu.model, after.cpu_milli);
        let rest = cx.demand.unusable_shared(gpu.model, row, gpu.free_milli - need);
        let then = if gpu.free_milli == WHOLE_MILLI {
            now - whole_now + whole_less - cx.demand.unusable_empty(gpu.model, row, full - 1) + rest
        } else {
            now - cx.demand.unusable_shared(gpu.model, row, gpu.free_milli) + rest
        };
        if best.is_none_or(|(least, _)| then < least) {
            best = Some((then, Pick { gpu: u8::try_from(index).unwrap_or(u8::MAX), start: 0 }));
        }
    }
    best
}

impl Reach {
    fn place(
        view: &View,
        shape: &Shape,
        cx: &ScoringInput<'_>,
    ) -> Option<(f32, Option<Pick>, Option<Picks>)> {
        if shape.count == 1 && !matches!(shape.device, Device::Slice { .. }) {
            let (then, pick) = best_single(view, shape, cx)?;
            return Some((then, Some(pick), None));
        }
        let (after, picks) = greedy(view, shape, cx.models, &|_, after, pick| {
            // On equal losses the highest start wins: it leaves the most room on the board.
            (expected_loss(after, cx) * 16.0) as i64 * 8 - i64::from(pick.start)
        })?;
        let first = picks.iter().next().copied();
        Some((expected_loss(&after, cx), first, Some(picks)))
    }
}

impl Policy for Reach {
    fn offer(&self, view: &View, shape: &Shape, cx: &ScoringInput<'_>) -> Option<ScoredPlace> {
        let (then, first, picks) = Self::place(view, shape, cx)?;
        let picks = picks.unwrap_or_else(|| {
            let mut only = Picks::default();
            first.into_iter().for_each(|p| only.push(p));
            only
        });
        Some(ScoredPlace {
            cost: placement_cost(view, shape, then - expected_loss(view, cx), first, cx),
            picks,
        })
    }

    fn cost(&self, view: &View, shape: &Shape, cx: &ScoringInput<'_>) -> Option<u64> {
        let (then, first, _) = Self::place(view, shape, cx)?;
        Some(placement_cost(view, shape, then - expected_loss(view, cx), first, cx))
    }

    fn horizon(&self) -> Horizon {
        HORIZON
    }
}
