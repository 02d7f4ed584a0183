//! An upper bound of the allocation that any rule reaches, also one that knows all arrivals and may refuse
//! tasks that fit.
//!
//! The relaxation: each node has a mixture of contents in place of one content, and processors and memory
//! suffice for the nodes of a kind together, not on each node. Boards are exact: a content has parts that fit
//! on its boards, and a task with several boards has all of them on one node. Each real placement is also a
//! relaxed one, so the best relaxed placement is a bound.
//!
//! The linear program of the relaxation has a column for each content of a node. Columns are made one by one:
//! for given prices the best content is a knapsack problem. Prices of zero or more give a bound by
//! themselves (Lagrange): the value of all arrived tasks at their prices, and for each node its best content
//! with its processors and memory. So the bound holds wherever the search for prices ends.

use std::collections::BTreeMap;

use berth_placement::cluster::{Cluster, MAX_GPUS, ModelIx, WHOLE_MILLI};
use berth_placement::shape::{Device, Shape};

use crate::simplex::{Column, Simplex};

/// The search ends at this distance between a bound and a relaxed placement, as a part of the capacity.
const GAP: f64 = 1e-5;
/// Greatest number of columns. The traces need some hundreds.
const MAX_COLUMNS: usize = 10_000;

/// Nodes with the same model, number of boards, processors and memory.
struct Kind {
    model: ModelIx,
    boards: usize,
    cpu: f64,
    memory: f64,
    nodes: f64,
}

impl Kind {
    /// The parts of a node's processors and memory that a task on it needs.
    fn parts(&self, shape: &Shape) -> (f64, f64) {
        let fraction = |need: i64, all: f64| if all > 0.0 { need as f64 / all } else { 0.0 };
        (fraction(shape.cpu_milli, self.cpu), fraction(shape.memory_mib, self.memory))
    }
}

/// Tasks of one shape.
struct Class {
    shape: Shape,
    /// Thousandths of a board of one task.
    value: f64,
    arrived: f64,
}

impl Class {
    fn fits(&self, kind: &Kind) -> bool {
        self.shape.models.has(kind.model)
            && self.shape.count as usize <= kind.boards
            && self.shape.cpu_milli as f64 <= kind.cpu
            && self.shape.memory_mib as f64 <= kind.memory
    }
}

/// A candidate for a knapsack.
struct Item {
    class: usize,
    size: usize,
    value: f64,
}

/// The greatest value of items, each any number of times, in this room, and the classes of these items.
fn fill(items: &[Item], room: usize) -> (f64, Vec<usize>) {
    let mut best: Vec<(f64, Option<&Item>)> = vec![(0.0, None)];
    for size in 1..=room {
        let value = |size: usize| best.get(size).map_or(0.0, |(value, _)| *value);
        let mut here = (value(size - 1), None);
        for item in items.iter().filter(|i| i.size <= size) {
            let with = value(size - item.size) + item.value;
            if with > here.0 {
                here = (with, Some(item));
            }
        }
        best.push(here);
    }
    let (mut chosen, mut left) = (Vec::new(), room);
    while left > 0 {
        match best.get(left).and_then(|(_, item)| *item) {
            Some(item) => {
                chosen.push(item.class);
                left -= item.size;
            }
            None => left -= 1,
        }
    }
    (best.last().map_or(0.0, |(value, _)| *value), chosen)
}

/// The prices of the resources of the linear program, in its order. Prices below zero count as zero, except
/// those of nodes.
struct Prices<'a> {
    tasks: &'a [f64],
    nodes: &'a [f64],
    cpu: &'a [f64],
    memory: &'a [f64],
}

impl<'a> Prices<'a> {
    fn new(all: &'a [f64], classes: usize, kinds: usize) -> Option<Self> {
        let (tasks, rest) = all.split_at_checked(classes)?;
        let (nodes, rest) = rest.split_at_checked(kinds)?;
        let (cpu, memory) = rest.split_at_checked(kinds)?;
        Some(Self { tasks, nodes, cpu, memory })
    }
}

fn price(prices: &[f64], at: usize) -> f64 {
    prices.get(at).copied().unwrap_or(0.0)
}

struct Problem {
    kinds: Vec<Kind>,
    classes: Vec<Class>,
    /// The greatest common divisor of all parts of a board.
    grain: u16,
    capacity: f64,
}

fn common_divisor(a: u16, b: u16) -> u16 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

impl Problem {
    /// The nodes have boards of one model each, as in the traces. Slices have no value here.
    fn new(cluster: &Cluster, arrived: &BTreeMap<Shape, f64>) -> Self {
        let mut kinds: BTreeMap<(ModelIx, usize, i64, i64), f64> = BTreeMap::new();
        for node in cluster.nodes() {
            let boards = node.facts.gpus.len().min(MAX_GPUS);
            let key = (node.model_ix(0), boards, node.facts.cpu_milli, node.facts.memory_mib);
            *kinds.entry(key).or_default() += 1.0;
        }
        let kinds: Vec<Kind> = kinds
            .into_iter()
            .filter(|((_, boards, ..), _)| *boards > 0)
            .map(|((model, boards, cpu, memory), nodes)| Kind {
                model,
                boards,
                cpu: cpu as f64,
                memory: memory as f64,
                nodes,
            })
            .collect();
        let counts = arrived.iter().filter(|(shape, _)| {
            shape.count > 0 && matches!(shape.device, Device::Board | Device::Share { .. })
        });
        let classes: Vec<Class> = counts
            .map(|(shape, arrived)| Class {
                shape: *shape,
                value: f64::from(shape.milli(cluster.models())),
                arrived: *arrived,
            })
            .collect();
        let parts = classes.iter().map(|c| part(&c.shape));
        let grain = parts.fold(WHOLE_MILLI, common_divisor);
        let capacity = kinds.iter().map(|k| k.nodes * k.boards as f64 * f64::from(WHOLE_MILLI)).sum();
        Self { kinds, classes, grain, capacity }
    }

    /// The limits of the linear program: the arrived tasks of each class, then the nodes of each kind, their
    /// processors and their memory, both counted in nodes.
    fn limits(&self) -> Vec<f64> {
        let tasks = self.classes.iter().map(|c| c.arrived);
        let nodes = self.kinds.iter().map(|k| k.nodes);
        tasks.chain(nodes.clone()).chain(nodes.clone()).chain(nodes).collect()
    }

    /// The greatest value above its price of a content of one node, and the classes of its tasks.
    fn best_content(&self, at: usize, kind: &Kind, prices: &Prices<'_>) -> (f64, Vec<usize>) {
        let (cpu, memory) = (price(prices.cpu, at).max(0.0), price(prices.memory, at).max(0.0));
        // Of classes with the same devices only the one with the greatest value counts.
        let mut best: BTreeMap<(u32, u16), Item> = BTreeMap::new();
        for (index, class) in self.classes.iter().enumerate().filter(|(_, c)| c.fits(kind)) {
            let count = class.shape.count;
            let own = price(prices.tasks, index).max(0.0);
            let (of_cpu, of_memory) = kind.parts(&class.shape);
            let value = class.value - own - cpu * of_cpu - memory * of_memory;
            let milli = part(&class.shape);
            let size = if count == 1 { usize::from(milli / self.grain) } else { count as usize };
            let known = best.get(&(count, milli)).map_or(0.0, |item| item.value);
            if value > known && size > 0 {
                best.insert((count, milli), Item { class: index, size, value });
            }
        }
        let (on_board, mut items): (Vec<((u32, u16), Item)>, Vec<_>) =
            best.into_iter().partition(|((count, _), _)| *count == 1);
        let on_board: Vec<Item> = on_board.into_iter().map(|(_, item)| item).collect();
        let (value, parts) = fill(&on_board, usize::from(WHOLE_MILLI / self.grain));
        // A board with parts is an item as well, under a number that no class has.
        let shared = self.classes.len();
        items.push(((1, WHOLE_MILLI), Item { class: shared, size: 1, value }));
        let items: Vec<Item> = items.into_iter().map(|(_, item)| item).collect();
        let (value, chosen) = fill(&items, kind.boards);
        let content = chosen.into_iter().flat_map(|c| if c == shared { parts.clone() } else { vec![c] });
        (value, content.collect())
    }

    /// One node of a kind with these tasks, as a column.
    fn column(&self, at: usize, kind: &Kind, content: &[usize]) -> Column {
        let (classes, kinds) = (self.classes.len(), self.kinds.len());
        let mut column = Column { value: 0.0, uses: vec![0.0; classes + 3 * kinds] };
        let mut add = |row: usize, amount: f64| {
            if let Some(used) = column.uses.get_mut(row) {
                *used += amount;
            }
        };
        add(classes + at, 1.0);
        for (index, class) in content.iter().filter_map(|i| Some((*i, self.classes.get(*i)?))) {
            add(index, 1.0);
            let (cpu, memory) = kind.parts(&class.shape);
            add(classes + kinds + at, cpu);
            add(classes + 2 * kinds + at, memory);
        }
        column.value = content.iter().filter_map(|i| self.classes.get(*i)).map(|c| c.value).sum();
        column
    }

    /// The bound at these prices, and the column with the greatest value above its price, if one has any.
    fn relaxed(&self, prices: &[f64]) -> (f64, Option<Column>) {
        let rows = prices.len();
        let Some(by_kind) = Prices::new(prices, self.classes.len(), self.kinds.len()) else {
            return (self.capacity, None);
        };
        let tasks = self.classes.iter().zip(by_kind.tasks);
        let mut bound: f64 = tasks.map(|(class, price)| class.arrived * price.max(0.0)).sum();
        // A price below zero: the slack of the resource comes back.
        let slack = prices.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1));
        let mut gain = slack.map_or(0.0, |(_, price)| -price).max(self.capacity * 1e-12);
        let mut entering = slack.filter(|(_, price)| -**price >= gain).map(|(row, _)| {
            let uses = (0..rows).map(|at| if at == row { 1.0 } else { 0.0 }).collect();
            Column { value: 0.0, uses }
        });
        for (at, kind) in self.kinds.iter().enumerate() {
            let (value, content) = self.best_content(at, kind, &by_kind);
            let (cpu, memory) = (price(by_kind.cpu, at).max(0.0), price(by_kind.memory, at).max(0.0));
            bound += kind.nodes * (value + cpu + memory);
            let above = value - price(by_kind.nodes, at);
            if above > gain {
                gain = above;
                entering = Some(self.column(at, kind, &content));
            }
        }
        (bound, entering)
    }
}

/// Thousandths of a board of one device.
const fn part(shape: &Shape) -> u16 {
    match shape.device {
        Device::Share { milli, .. } => milli,
        Device::Board | Device::Slice { .. } => WHOLE_MILLI,
    }
}

/// True for a shape of the traces: whole boards, one share, or no device.
fn is_of_trace(shape: &Shape) -> bool {
    match shape.device {
        Device::Board => true,
        Device::Share { .. } => shape.count <= 1,
        Device::Slice { .. } => shape.count == 0,
    }
}

/// No rule allocates more thousandths of a board to these numbers of tasks on an empty cluster. That holds for tasks with
/// whole boards or one share only: several shares would take whole boards here, and slices would have no value.
pub fn bound(cluster: &Cluster, arrived: &BTreeMap<Shape, f64>) -> f64 {
    debug_assert!(arrived.keys().all(is_of_trace), "a task has several shares, or slices");
    let problem = Problem::new(cluster, arrived);
    let mut simplex = Simplex::new(&problem.limits());
    let mut least = problem.capacity;
    for _ in 0..MAX_COLUMNS {
        let (bound, entering) = problem.relaxed(&simplex.prices());
        least = least.min(bound);
        let near = least - simplex.value() <= GAP * problem.capacity;
        if near || entering.is_none_or(|column| !simplex.enter(&column)) {
            break;
        }
    }
    least
}

#[cfg(test)]
pub mod tests {
    use berth_placement::cluster::{Models, NodeFacts};
    use berth_placement::networks::NetworkNeed;
    use berth_placement::tenancy::Tenancy;

    use super::*;
    use crate::trace::{Random, Task, Trace, node};

    const MODELS: [&str; 2] = ["P100", "T4"];

    /// A node of the model with this index.
    pub fn small(n: u32, model: usize, boards: u32, cpu_milli: i64, memory_mib: i64) -> NodeFacts {
        NodeFacts { cpu_milli, memory_mib, ..node(n, MODELS[model], boards, false) }
    }

    /// A trace of these tasks on three nodes with eight boards of two models.
    pub fn small_trace(shapes: impl IntoIterator<Item = Shape>) -> Trace {
        let nodes = vec![small(0, 0, 3, 8, 8), small(1, 1, 3, 6, 8), small(2, 0, 2, 8, 4)];
        let tasks = shapes.into_iter().map(|shape| Task { milli: shape.milli(&[]).into(), shape });
        Trace { cluster: cluster(nodes), tasks: tasks.collect(), capacity: 8 * u64::from(WHOLE_MILLI) }
    }

    pub fn cluster(nodes: Vec<NodeFacts>) -> Cluster {
        let mut cluster = Cluster::default();
        for name in MODELS {
            cluster.model(name).expect("a model");
        }
        for node in nodes {
            cluster.put_node(node);
        }
        cluster
    }

    /// A task with whole boards, or with a part of one.
    pub fn task(milli: u16, count: u32, models: u64, cpu_milli: i64, memory_mib: i64) -> Shape {
        let device = if milli < WHOLE_MILLI { Device::Share { milli, sharer: 1 } } else { Device::Board };
        Shape {
            device,
            count,
            models: Models(models),
            cpu_milli,
            memory_mib,
            nvlink: false,
            images: false,
            rdma: false,
            network: NetworkNeed::Any,
            gang: false,
            storage: 0,
            tenancy: Tenancy::COMMON,
            work: berth_placement::pools::Work::Training,
        }
    }

    fn bound_of(cluster: &Cluster, tasks: &[Shape]) -> f64 {
        let mut arrived: BTreeMap<Shape, f64> = BTreeMap::new();
        tasks.iter().for_each(|task| *arrived.entry(*task).or_default() += 1.0);
        bound(cluster, &arrived)
    }

    /// The free processors, memory and thousandths of each board of a node.
    #[derive(Clone)]
    struct Free {
        model: ModelIx,
        cpu: i64,
        memory: i64,
        boards: Vec<u16>,
    }

    /// The states of a node after the placement of a task, one for each choice of boards.
    fn placements(free: &Free, task: &Shape) -> Vec<Free> {
        if !task.models.has(free.model) || free.cpu < task.cpu_milli || free.memory < task.memory_mib {
            return Vec::new();
        }
        let part = if let Device::Share { milli, .. } = task.device { milli } else { WHOLE_MILLI };
        let sets = 0..1u32 << free.boards.len();
        let fitting = sets.filter(|set| {
            let mut chosen = free.boards.iter().enumerate().filter(|(i, _)| set >> i & 1 != 0);
            set.count_ones() == task.count && chosen.all(|(_, board)| *board >= part)
        });
        let after = |set: u32| {
            let left = |(i, board): (usize, &u16)| if set >> i & 1 == 0 { *board } else { board - part };
            Free {
                model: free.model,
                cpu: free.cpu - task.cpu_milli,
                memory: free.memory - task.memory_mib,
                boards: free.boards.iter().enumerate().map(left).collect(),
            }
        };
        fitting.map(after).collect()
    }

    /// The most thousandths that any choice of tasks and places allocates, by exhaustive search.
    fn most(nodes: &[Free], tasks: &[Shape]) -> u32 {
        let Some((task, rest)) = tasks.split_first() else { return 0 };
        let mut best = most(nodes, rest);
        for (at, free) in nodes.iter().enumerate() {
            for after in placements(free, task) {
                let mut nodes = nodes.to_vec();
                nodes[at] = after;
                best = best.max(task.milli(&[]) + most(&nodes, rest));
            }
        }
        best
    }

    fn exhaustive(cluster: &Cluster, tasks: &[Shape]) -> f64 {
        let free = cluster.nodes().iter().map(|node| Free {
            model: node.model_ix(0),
            cpu: node.facts.cpu_milli,
            memory: node.facts.memory_mib,
            boards: vec![WHOLE_MILLI; node.facts.gpus.len()],
        });
        f64::from(most(&free.collect::<Vec<_>>(), tasks))
    }

    #[test]
    fn the_bound_is_at_least_the_best_placement_of_small_worlds() {
        let mut equal = 0;
        for seed in 0..2_000 {
            let mut random = Random(seed);
            let nodes = (0..=random.below(2) as u32).map(|n| {
                let (model, boards) = (random.below(2), 1 + random.below(3) as u32);
                small(n, model, boards, random.pick(&[2, 4, 8]), random.pick(&[4, 8]))
            });
            let cluster = cluster(nodes.collect());
            let tasks = (0..1 + random.below(5)).map(|_| {
                let milli = random.pick(&[200, 330, 500, 810, 1_000, 1_000]);
                let count = if milli == WHOLE_MILLI { random.pick(&[1, 1, 2, 3]) } else { 1 };
                task(
                    milli,
                    count,
                    random.pick(&[1, 2, 3, 3]),
                    random.pick(&[0, 1, 2, 4]),
                    random.pick(&[0, 1, 4]),
                )
            });
            let tasks: Vec<Shape> = tasks.collect();
            let (bound, most) = (bound_of(&cluster, &tasks), exhaustive(&cluster, &tasks));
            assert!(bound >= most - 1e-3, "seed {seed}: {bound} is less than {most}");
            equal += u32::from(bound <= most + 1.0);
        }
        assert!(equal >= 1_000, "the bound is exact in {equal} worlds of 2,000 only");
    }

    #[test]
    fn several_shares_and_slices_are_no_tasks_of_a_trace() {
        let share = task(500, 1, 3, 0, 0);
        let slice = Device::Slice { profile: 0 };
        for (shape, expected) in [
            (task(1_000, 8, 3, 0, 0), true),
            (share, true),
            (Shape { count: 2, ..share }, false),
            (Shape { device: slice, ..share }, false),
            (Shape { device: slice, count: 0, ..share }, true),
        ] {
            assert_eq!(is_of_trace(&shape), expected, "{shape:?}");
        }
    }

    #[test]
    fn each_resource_bounds_the_allocation() {
        let boards = |boards| cluster(vec![small(0, 0, boards, 8, 8)]);
        let is = |cluster: &Cluster, tasks: &[Shape], expected: f64| {
            let bound = bound_of(cluster, tasks);
            assert!((bound - expected).abs() < 1.0, "{bound}, not {expected}");
        };
        is(&boards(2), &[task(600, 1, 3, 0, 0); 3], 1_200.0);
        is(&boards(2), &[task(300, 1, 3, 0, 0)], 300.0);
        is(&boards(2), &[task(1_000, 1, 3, 8, 0); 2], 1_000.0);
        is(&boards(2), &[task(1_000, 1, 3, 0, 8); 2], 1_000.0);
        is(&boards(2), &[task(1_000, 1, 3, 9, 0); 2], 0.0);
        let two = cluster(vec![small(0, 0, 1, 8, 8), small(1, 1, 1, 8, 8)]);
        is(&two, &[task(1_000, 1, 1, 0, 0); 2], 1_000.0);
        is(&two, &[task(1_000, 1, 3, 0, 0); 3], 2_000.0);
        is(&two, &[task(1_000, 2, 3, 0, 0)], 0.0);
        is(&boards(0), &[task(1_000, 1, 3, 0, 0)], 0.0);
    }
}
