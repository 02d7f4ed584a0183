//! MIG requests on 100 boards. They arrive at random, stay for an exponential time, and are refused if they
//! do not fit on arrival. At the offered load 1 the average demand equals the number of slices.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use berth_mig::{Board, board_by_name};
use berth_placement::cluster::{Cluster, Models, NodeIx, Owner};
use berth_placement::finder::Finder;
use berth_placement::networks::NetworkNeed;
use berth_placement::scoring::{Completions, FirstFit, Policy, Reach};
use berth_placement::shape::{Device, Shape};
use berth_placement::tenancy::Tenancy;
use berth_types::ids::JobId;
use uuid::Uuid;

use crate::inflate::place;
use crate::trace::{Random, node};

const BOARDS: u32 = 100;
const REQUESTS: u32 = 20_000;
/// Number of first requests that do not count, while the boards fill.
const WARM_UP: u32 = 4_000;

const PROFILES: [&str; 6] = ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"];

/// Weights of the profiles, as in the mixes that studies of MIG placement use.
const MIXES: [(&str, [f64; 6]); 4] = [
    ("uniform", [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
    ("small", [4.0, 1.0, 3.0, 1.0, 0.5, 0.5]),
    ("large", [0.5, 0.5, 1.0, 3.0, 2.0, 3.0]),
    ("bimodal", [4.0, 0.5, 0.5, 0.5, 0.5, 4.0]),
];

fn cluster(boards: u32) -> Cluster {
    let mut cluster = Cluster::default();
    for n in 0..boards {
        cluster.put_node(node(n, "H100-80GB", 1, true));
    }
    cluster
}

fn shape(board: &Board, models: Models, name: &str) -> Option<(Shape, u32)> {
    let index = board.profiles.iter().position(|p| p.name == name)?;
    let device = Device::Slice { profile: u8::try_from(index).ok()? };
    let shape = Shape {
        device,
        count: 1,
        models,
        cpu_milli: 0,
        memory_mib: 0,
        nvlink: false,
        images: false,
        rdma: false,
        network: NetworkNeed::Any,
        gang: false,
        storage: 0,
        tenancy: Tenancy::COMMON,
        work: berth_placement::pools::Work::Training,
    };
    Some((shape, board.profiles.get(index)?.size))
}

/// The accepted requests in percent.
fn accepted<P: Policy>(policy: P, weights: &[f64; 6], seed: u64) -> Option<f64> {
    let board = board_by_name("H100-80GB")?;
    let mut cluster = cluster(BOARDS);
    let models = Models::only(cluster.find_model("H100-80GB")?);
    let shapes: Vec<(Shape, u32)> = PROFILES.iter().filter_map(|n| shape(board, models, n)).collect();
    let sum: f64 = weights.iter().sum();
    let mean_size: f64 = shapes.iter().zip(weights).map(|((_, size), w)| f64::from(*size) * w / sum).sum();
    // Load = arrivals a second x mean stay x mean size / slices.
    let stay = 1_000.0;
    let between = stay * mean_size / (f64::from(BOARDS) * f64::from(board.memory_slices));
    let mut random = Random(seed);
    let mut finder = Finder::new(policy);
    let mut ends: BinaryHeap<Reverse<(u64, u128, NodeIx)>> = BinaryHeap::new();
    let (mut now, mut fit, mut all) = (0.0, 0u32, 0u32);
    for number in 0..REQUESTS {
        now += random.exponential(between);
        while let Some(Reverse((at, job, node))) = ends.peek().copied() {
            if at as f64 > now * 1e3 {
                break;
            }
            ends.pop();
            cluster.release(node, Owner { job: JobId::from_uuid(Uuid::from_u128(job)), attempt: 1 });
        }
        let mut at = random.unit() * sum;
        let pick = weights.iter().position(|w| {
            at -= w;
            at <= 0.0
        });
        let (shape, _) = shapes.get(pick.unwrap_or(0))?;
        let until = now + random.exponential(stay);
        finder.observe(shape, &cluster);
        let placed = place(&mut cluster, &mut finder, shape, u128::from(number));
        if let Some(node) = placed {
            ends.push(Reverse(((until * 1e3) as u64, u128::from(number), node)));
        }
        if number >= WARM_UP {
            all += 1;
            fit += u32::from(placed.is_some());
        }
    }
    Some(f64::from(fit) / f64::from(all) * 100.0)
}

pub fn run(seeds: u64) {
    for (mix, weights) in &MIXES {
        let mean = |f: &dyn Fn(u64) -> Option<f64>| (1..=seeds).filter_map(f).sum::<f64>() / seeds as f64;
        println!(
            "{{\"mix\": \"{mix}\", \"seeds\": {seeds}, \"first_fit\": {:.2}, \"completions\": {:.2}, \"reach\": {:.2}}}",
            mean(&|seed| accepted(FirstFit, weights, seed)),
            mean(&|seed| accepted(Completions, weights, seed)),
            mean(&|seed| accepted(Reach, weights, seed)),
        );
    }
}
