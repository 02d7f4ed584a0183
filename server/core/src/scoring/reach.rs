//! Berth's own rule: keep what is free within reach of the requests that come.
//!
//! Fragmentation gradient (Weng et al., "Beware of Fragmentation", ATC 2023) counts free capacity as
//! lost when the *next* request cannot use it. That punishes a rest which, with many requests still
//! to come, will almost surely be used. Here a rest counts as lost by the probability that none of
//! the next requests (a [`Horizon`]) can use it, for boards, shares and MIG slices alike.

use super::{Context, Offer, Pick, Picks, Policy, full_boards, greedy, rank};
use crate::cluster::{View, WHOLE_MILLI};
use crate::demand::Horizon;
use crate::shape::{Device, Shape};

/// Found by trial on traces of many mixes (`docs/placement.md`); flat around these values.
const HORIZON: Horizon = Horizon { boards: 8.0, shares: 3.2, slices: 3.2 };
/// Differences below this many thousandths of a board do not count; then the fuller node is better.
const GRAIN: f32 = 40.0;
/// Thousandths of a board that a place on a model costs which is asked for as much as it is there.
const PRESSURE: f64 = 400.0;

#[derive(Debug, Clone, Copy, Default)]
pub struct Reach;

/// What of a node is likely to stay unused.
fn lost(view: &View, cx: &Context<'_>) -> f32 {
    let full = full_boards(view);
    let mut row = (u8::MAX, 0);
    let mut sum = 0.0;
    for gpu in view.gpus() {
        if gpu.sliced {
            sum += cx.demand.sliced(gpu.model, gpu.mask);
        } else if gpu.free_milli > 0 {
            if row.0 != gpu.model {
                row = (gpu.model, cx.demand.row(gpu.model, view.cpu_milli));
            }
            sum += if gpu.free_milli == WHOLE_MILLI {
                cx.demand.full(gpu.model, row.1, full)
            } else {
                cx.demand.part(gpu.model, row.1, gpu.free_milli)
            };
        }
    }
    sum
}

fn finish(view: &View, shape: &Shape, more: f32, first: Option<Pick>, cx: &Context<'_>) -> u64 {
    let model = first.and_then(|p| view.gpus().get(usize::from(p.gpu))).map(|g| g.model);
    let pressed = model.map_or(0.0, |m| {
        PRESSURE * cx.demand.pressure(m) * f64::from(shape.milli(cx.models)) / f64::from(WHOLE_MILLI)
    });
    rank(((more + pressed as f32) / GRAIN).floor() as i64, view.free_milli())
}

/// The best single board, without copying the node for each.
fn one(view: &View, shape: &Shape, cx: &Context<'_>) -> Option<(f32, Pick)> {
    if view.cpu_milli < shape.cpu_milli || view.memory_mib < shape.memory_mib {
        return None;
    }
    let mut after = *view;
    after.cpu_milli -= shape.cpu_milli;
    let full = full_boards(&after);
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
                whole_now += cx.demand.full(gpu.model, row, full);
                whole_less += cx.demand.full(gpu.model, row, full.saturating_sub(1));
            }
            lost(&after, cx)
        });
        let row = cx.demand.row(gpu.model, after.cpu_milli);
        let rest = cx.demand.part(gpu.model, row, gpu.free_milli - need);
        let then = if gpu.free_milli == WHOLE_MILLI {
            now - whole_now + whole_less - cx.demand.full(gpu.model, row, full - 1) + rest
        } else {
            now - cx.demand.part(gpu.model, row, gpu.free_milli) + rest
        };
        if best.is_none_or(|(least, _)| then < least) {
            best = Some((then, Pick { gpu: u8::try_from(index).unwrap_or(u8::MAX), start: 0 }));
        }
    }
    best
}

impl Reach {
    fn place(view: &View, shape: &Shape, cx: &Context<'_>) -> Option<(f32, Option<Pick>, Option<Picks>)> {
        if shape.count == 1 && !matches!(shape.device, Device::Slice { .. }) {
            let (then, pick) = one(view, shape, cx)?;
            return Some((then, Some(pick), None));
        }
        let (after, picks) = greedy(view, shape, cx.models, &|_, after, pick| {
            // Equal losses: the highest start, which on a board strands least.
            (lost(after, cx) * 16.0) as i64 * 8 - i64::from(pick.start)
        })?;
        let first = picks.iter().next().copied();
        Some((lost(&after, cx), first, Some(picks)))
    }
}

impl Policy for Reach {
    fn offer(&self, view: &View, shape: &Shape, cx: &Context<'_>) -> Option<Offer> {
        let (then, first, picks) = Self::place(view, shape, cx)?;
        let picks = picks.unwrap_or_else(|| {
            let mut only = Picks::default();
            first.into_iter().for_each(|p| only.push(p));
            only
        });
        Some(Offer { cost: finish(view, shape, then - lost(view, cx), first, cx), picks })
    }

    fn cost(&self, view: &View, shape: &Shape, cx: &Context<'_>) -> Option<u64> {
        let (then, first, _) = Self::place(view, shape, cx)?;
        Some(finish(view, shape, then - lost(view, cx), first, cx))
    }

    fn horizon(&self) -> Horizon {
        HORIZON
    }
}
