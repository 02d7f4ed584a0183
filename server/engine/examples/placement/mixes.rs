//! Mixes of requests drawn from a trace: the distance of the rule from the best rival on each of them.

use berth_placement::cluster::Cluster;
use berth_placement::scoring::{BestFit, Fgd, FirstFit, Packing, Reach};
use berth_placement::shape::{Device, Shape};

use crate::inflate::{Learned, allocation};
use crate::trace::{Random, Task, Trace};

/// The greatest exponent of two of the weight of a class in a mix; the least one is its negative.
const SPREAD: f64 = 3.0;
/// Orders of arrival of each mix.
const ORDERS: u64 = 4;

/// The classes whose weights differ from mix to mix. A task can belong to several.
const CLASSES: [&str; 5] = ["sharing", "several_boards", "no_board", "model", "processors"];

/// The properties of the cluster by which tasks belong to classes.
struct ClassBounds {
    /// All board models.
    models: u64,
    /// Processors for each board that half of the boards have.
    cpu_milli: i64,
}

impl ClassBounds {
    fn new(cluster: &Cluster) -> Self {
        let each = cluster.nodes().iter().flat_map(|node| {
            let boards = node.facts.gpus.len();
            let cpu = node.facts.cpu_milli / i64::try_from(boards.max(1)).unwrap_or(1);
            std::iter::repeat_n(cpu, boards)
        });
        let mut each: Vec<i64> = each.collect();
        each.sort_unstable();
        let models = (1 << cluster.models().len()) - 1;
        Self { models, cpu_milli: each.get(each.len() / 2).copied().unwrap_or(0) }
    }

    /// For each of [`CLASSES`], whether a task belongs to it.
    fn classes(&self, shape: &Shape) -> [bool; CLASSES.len()] {
        [
            matches!(shape.device, Device::Share { .. }),
            shape.count > 1,
            shape.count == 0,
            shape.models.0 & self.models != self.models,
            shape.count > 0 && shape.cpu_milli > self.cpu_milli * i64::from(shape.count),
        ]
    }
}

/// Draws as many tasks as the trace has, each with a probability by the weights of its classes.
fn draw(trace: &Trace, weights: &[f64; CLASSES.len()], random: &mut Random) -> Trace {
    let bounds = ClassBounds::new(&trace.cluster);
    let mut sum = 0.0;
    let weight = |task: &Task| {
        let classes = bounds.classes(&task.shape);
        classes.iter().zip(weights).filter(|(has, _)| **has).map(|(_, weight)| weight).product::<f64>()
    };
    let sums: Vec<f64> = trace
        .tasks
        .iter()
        .map(|task| {
            sum += weight(task);
            sum
        })
        .collect();
    let drawn = (0..trace.tasks.len()).filter_map(|_| {
        let at = random.unit() * sum;
        let task = trace.tasks.get(sums.partition_point(|until| *until < at))?;
        Some(Task { shape: task.shape, milli: task.milli })
    });
    Trace { tasks: drawn.collect(), cluster: trace.cluster.clone(), capacity: trace.capacity }
}

/// The mean, and its standard error.
fn mean(values: &[f64]) -> (f64, f64) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0).max(1.0) / count).sqrt())
}

/// The distance of the rule from a rival over the same arrivals: the mean, and its standard error.
fn ahead(ours: &[f64], rival: &[f64]) -> (f64, f64) {
    mean(&ours.iter().zip(rival).map(|(a, b)| a - b).collect::<Vec<_>>())
}

/// The distances from the best rivals: the least one, the number below zero by more than two standard errors, and
/// the sum.
struct Summary {
    worst: f64,
    below: u32,
    sum: f64,
}

/// The weights of the classes in a mix, and its tasks.
fn mix(trace: &Trace, seed: u64) -> ([f64; CLASSES.len()], Trace) {
    let mut random = Random(seed.wrapping_mul(104_729));
    let weights = [(); CLASSES.len()].map(|()| (random.unit() * 2.0 - 1.0) * SPREAD).map(f64::exp2);
    (weights, draw(trace, &weights, &mut random))
}

/// Draws a mix for each of the seeds from `first` on, and prints the allocation of the rule, that of the best rival
/// and the distance, in percent of the cluster.
pub fn run(trace: &Trace, mixes: u64, first: u64) {
    let mut summary = Summary { worst: f64::MAX, below: 0, sum: 0.0 };
    for seed in (first..).take(usize::try_from(mixes).unwrap_or(usize::MAX)) {
        let (weights, mix) = mix(trace, seed);
        let all = |rule: &dyn Fn(u64) -> f64| (0..ORDERS).map(rule).collect::<Vec<f64>>();
        let ours = all(&|seed| allocation(&mix, Reach, seed, Learned::Online));
        let rivals = [
            ("first-fit", all(&|seed| allocation(&mix, FirstFit, seed, Learned::Online))),
            ("best-fit", all(&|seed| allocation(&mix, BestFit, seed, Learned::Online))),
            ("packing", all(&|seed| allocation(&mix, Packing, seed, Learned::Online))),
            ("fgd", all(&|seed| allocation(&mix, Fgd, seed, Learned::Online))),
            ("fgd, mix known", all(&|seed| allocation(&mix, Fgd, seed, Learned::Known))),
        ];
        let best = rivals.iter().max_by(|a, b| mean(&a.1).0.total_cmp(&mean(&b.1).0));
        let Some((name, rival)) = best else { continue };
        let (distance, error) = ahead(&ours, rival);
        summary.worst = summary.worst.min(distance);
        summary.below += u32::from(distance < -2.0 * error);
        summary.sum += distance;
        let shown = CLASSES.iter().zip(weights).map(|(class, weight)| format!("\"{class}\": {weight:.2}"));
        println!(
            "{{\"mix\": {seed}, \"weights\": {{{}}}, \"reach\": {:.3}, \"best\": \"{name}\", \"rival\": {:.3}, \"ahead\": {distance:.3}, \"error\": {error:.3}}}",
            shown.collect::<Vec<_>>().join(", "),
            mean(&ours).0,
            mean(rival).0,
        );
    }
    println!(
        "{{\"mixes\": {mixes}, \"orders\": {ORDERS}, \"mean_ahead\": {:.3}, \"worst\": {:.3}, \"below_by_two_errors\": {}}}",
        summary.sum / mixes.max(1) as f64,
        summary.worst,
        summary.below
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound::tests::{small_trace, task};

    /// A task of each class.
    fn one_of_each() -> Trace {
        small_trace([
            task(300, 1, 3, 1, 0),
            task(1_000, 2, 3, 1, 0),
            Shape { count: 0, ..task(1_000, 1, 3, 1, 0) },
            task(1_000, 1, 1, 1, 0),
            task(1_000, 1, 3, 3, 0),
        ])
    }

    #[test]
    fn each_task_has_the_classes_of_its_request() {
        let trace = one_of_each();
        let bounds = ClassBounds::new(&trace.cluster);
        for (index, task) in trace.tasks.iter().enumerate() {
            let mut own = [false; CLASSES.len()];
            own[index] = true;
            assert_eq!(bounds.classes(&task.shape), own, "{:?}", task.shape);
        }
    }

    #[test]
    fn tasks_are_drawn_by_the_weights_of_their_classes() {
        let mut trace = one_of_each();
        trace.tasks = (0..4_000).flat_map(|_| one_of_each().tasks).collect();
        let weights = [1.0, 2.0, 0.5, 4.0, 0.0];
        let drawn = draw(&trace, &weights, &mut Random(7));
        assert_eq!(drawn.tasks.len(), trace.tasks.len());
        let bounds = ClassBounds::new(&trace.cluster);
        for (class, weight) in weights.iter().enumerate() {
            let of_class = drawn.tasks.iter().filter(|t| bounds.classes(&t.shape)[class]).count();
            let expected = trace.tasks.len() as f64 * weight / weights.iter().sum::<f64>();
            assert!((of_class as f64 - expected).abs() <= expected * 0.05, "{}: {of_class}", CLASSES[class]);
        }
    }

    #[test]
    fn the_distance_is_over_the_same_arrivals() {
        assert_eq!(ahead(&[90.0, 80.0], &[89.0, 79.0]), (1.0, 0.0));
        assert_eq!(ahead(&[90.0, 80.0], &[89.0, 81.0]), (0.0, 1.0));
    }
}
