//! The inflation experiment of "Beware of Fragmentation" (Weng et al., ATC 2023): tasks arrive until their
//! requests are 130 % of the cluster. No task departs, and no task is tried twice.

use std::collections::BTreeMap;
use std::time::Instant;

use berth_placement::cluster::{Cluster, NodeIx, Owner, Rank};
use berth_placement::finder::{Finder, slots};
use berth_placement::scoring::{BestFit, Fgd, FirstFit, Packing, Policy, Random as AnyFit, Reach};
use berth_placement::shape::Shape;
use berth_types::ids::{JobId, OrgId};
use uuid::Uuid;

use crate::bound::bound;
use crate::trace::{Random, Task, Trace};

/// Places one task and returns its node; `None` if the task does not fit.
pub fn place<P: Policy>(
    cluster: &mut Cluster,
    finder: &mut Finder<P>,
    shape: &Shape,
    number: u128,
) -> Option<NodeIx> {
    finder.sync(cluster, shape);
    let node = finder.best(cluster, shape, &|_| true)?;
    let view = *cluster.node(node)?.view();
    let offer = finder.offer(cluster, &view, shape)?;
    let slots = slots(cluster, node, shape, &offer);
    let rank = Rank {
        owner: Owner { job: JobId::from_uuid(Uuid::from_u128(number)), attempt: 1 },
        org: OrgId::from_uuid(Uuid::from_u128(1)),
        cpu_milli: shape.cpu_milli,
        memory_mib: shape.memory_mib,
        slots,
        ends_by: None,
        inside: None,
    };
    cluster.hold(node, rank);
    Some(node)
}

fn arrivals(trace: &Trace, seed: u64) -> Vec<&Task> {
    let mut random = Random(seed.wrapping_mul(7_919));
    let mut tasks: Vec<&Task> = trace.tasks.iter().collect();
    random.shuffle(&mut tasks);
    let mut sum: u64 = tasks.iter().map(|t| t.milli).sum();
    while sum * 10 < trace.capacity * 13 {
        let Some(task) = trace.tasks.get(random.below(trace.tasks.len())) else { break };
        sum += task.milli;
        tasks.push(task);
    }
    tasks
}

/// The source of a policy's mix of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Learned {
    /// The earlier requests.
    Online,
    /// The whole trace, as in the published figures.
    Known,
}

/// GPU allocation in percent, averaged over the arrivals whose sum rounds to 100 % of the cluster.
pub fn allocation<P: Policy>(trace: &Trace, policy: P, seed: u64, mix: Learned) -> f64 {
    let mut cluster = trace.cluster.clone();
    let mut finder = Finder::new(policy);
    if mix == Learned::Known {
        trace.tasks.iter().for_each(|task| finder.demand.observe(&task.shape));
        finder.demand.refresh(&cluster, finder.policy().horizon());
    }
    let (mut asked, mut used) = (0, 0);
    let (mut sum, mut count) = (0.0, 0.0);
    for (number, task) in arrivals(trace, seed).into_iter().enumerate() {
        asked += task.milli;
        if mix == Learned::Online {
            finder.observe(&task.shape, &cluster);
        }
        if place(&mut cluster, &mut finder, &task.shape, number as u128).is_some() {
            used += task.milli;
        }
        let percent = asked as f64 / trace.capacity as f64 * 100.0;
        if percent.round() == 100.0 {
            sum += used as f64 / trace.capacity as f64 * 100.0;
            count += 1.0;
        } else if percent > 101.0 {
            break;
        }
    }
    sum / count
}

/// The number of arrived tasks of each shape, averaged over the arrivals whose sum rounds to 100 % of the
/// cluster.
fn arrived(trace: &Trace, seed: u64) -> BTreeMap<Shape, f64> {
    let tasks = arrivals(trace, seed);
    let mut asked = 0;
    let mut window = 0..0;
    for (number, task) in tasks.iter().enumerate() {
        asked += task.milli;
        if (asked as f64 / trace.capacity as f64 * 100.0).round() == 100.0 {
            window = if window.is_empty() { number..number + 1 } else { window.start..number + 1 };
        }
    }
    let mut counts: BTreeMap<Shape, f64> = BTreeMap::new();
    for (number, task) in tasks.iter().enumerate().take(window.end) {
        let counted = window.end - number.max(window.start);
        *counts.entry(task.shape).or_default() += counted as f64 / window.len() as f64;
    }
    counts
}

/// The bound of the allocation in percent. It is linear in the numbers of tasks for fixed prices, so that of
/// the averaged numbers bounds the averaged allocation.
fn bound_percent(trace: &Trace, seed: u64) -> f64 {
    bound(&trace.cluster, &arrived(trace, seed)) / trace.capacity as f64 * 100.0
}

fn mean<P: Policy + Copy>(trace: &Trace, policy: P, name: &str, seeds: u64, mix: Learned) {
    print_mean(name, seeds, |seed| allocation(trace, policy, seed, mix));
}

fn print_mean(name: &str, seeds: u64, percent: impl Fn(u64) -> f64) {
    let all: Vec<f64> = (42..42 + seeds).map(percent).collect();
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    let least = all.iter().copied().fold(f64::MAX, f64::min);
    println!("{{\"policy\": \"{name}\", \"seeds\": {seeds}, \"mean\": {mean:.3}, \"least\": {least:.3}}}");
}

pub fn run(trace: &Trace, seeds: u64) {
    mean(trace, AnyFit, "any-fit", seeds, Learned::Online);
    mean(trace, FirstFit, "first-fit", seeds, Learned::Online);
    mean(trace, BestFit, "best-fit", seeds, Learned::Online);
    mean(trace, Packing, "packing", seeds, Learned::Online);
    mean(trace, Fgd, "fgd", seeds, Learned::Online);
    mean(trace, Fgd, "fgd, mix known", seeds, Learned::Known);
    mean(trace, Reach, "reach", seeds, Learned::Online);
    print_mean("bound", seeds, |seed| bound_percent(trace, seed));
}

/// Measures decisions a second: places the whole trace, one decision after the other.
pub fn rate(trace: &Trace) {
    let (mut decided, mut placed) = (0u32, 0u32);
    let mut finder = Finder::new(Reach);
    let tasks = arrivals(trace, 42);
    for task in &tasks {
        finder.observe(&task.shape, &trace.cluster);
    }
    let began = Instant::now();
    for _ in 0..5 {
        let mut cluster = trace.cluster.clone();
        for (number, task) in tasks.iter().enumerate() {
            decided += 1;
            placed += u32::from(place(&mut cluster, &mut finder, &task.shape, number as u128).is_some());
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{{\"decisions\": {decided}, \"placed\": {placed}, \"seconds\": {seconds:.3}, \"per_second\": {:.0}}}",
        f64::from(decided) / seconds
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound::tests::{small_trace, task};

    /// Tasks of 10.5 boards for eight.
    fn full_trace() -> Trace {
        small_trace([
            task(300, 1, 3, 1, 0),
            task(700, 1, 3, 0, 1),
            task(500, 1, 1, 1, 1),
            task(1_000, 1, 3, 2, 1),
            task(1_000, 2, 3, 1, 2),
            task(200, 1, 2, 0, 0),
            task(400, 1, 3, 1, 0),
            task(600, 1, 3, 0, 0),
            task(1_000, 3, 3, 2, 1),
            task(900, 1, 1, 1, 0),
            task(100, 1, 3, 0, 0),
            task(800, 1, 2, 1, 1),
        ])
    }

    #[test]
    fn no_rule_is_above_the_bound_of_its_arrivals() {
        let trace = full_trace();
        let mut compared = 0;
        for seed in 0..300 {
            let reached = [
                allocation(&trace, FirstFit, seed, Learned::Online),
                allocation(&trace, Packing, seed, Learned::Online),
                allocation(&trace, Fgd, seed, Learned::Known),
                allocation(&trace, Reach, seed, Learned::Online),
            ];
            // Without a sum of exactly 100 % there is nothing to average.
            if reached.iter().any(|percent| percent.is_nan()) {
                continue;
            }
            let bound = bound_percent(&trace, seed);
            for percent in reached {
                assert!(percent <= bound + 1e-6, "seed {seed}: {percent} is above {bound}");
            }
            compared += 1;
        }
        assert!(compared >= 10, "only {compared} orders of arrival have a sum of 100 %");
    }
}
