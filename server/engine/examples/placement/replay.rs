//! A replay of arrivals and departures: the same jobs with backfill, and first come first served without it.
//! The calendar has some reservations.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use berth_engine::{Decision, Engine, Fact, JobFacts, Window};
use berth_placement::calendar::{Booking, BookingKind};
use berth_placement::cluster::{BookingId, Owner};
use berth_placement::networks::NetworkNeed;
use berth_placement::request::{DeviceRequest, Nearness, Request};
use berth_types::ids::{JobId, OrgId};
use berth_types::jobs::Priority;
use berth_types::time::Timestamp;
use uuid::Uuid;

use crate::trace::{Random, node};

const NODES: u32 = 32;
const JOBS: usize = 5_000;
/// Offered load: requested board-seconds divided by available board-seconds.
const LOAD: f64 = 0.85;

struct Job {
    facts: JobFacts,
    arrives_s: i64,
    runs_s: i64,
}

fn board(count: u32, nodes: u32) -> Request {
    Request {
        device: DeviceRequest::Board,
        count,
        nodes,
        models: vec!["H100-80GB".into()],
        cpu_milli: 0,
        memory_mib: 0,
        topology: Nearness::Any,
        offering: None,
        nano_per_second: 0,
        nvlink: false,
        images: false,
        rdma: false,
        network: NetworkNeed::Any,
        storage: Vec::new(),
        work: berth_placement::pools::Work::Training,
    }
}

fn start() -> Timestamp {
    Timestamp::from_micros(1_800_000_000_000_000)
}

/// Many small and short jobs, and some large and long ones. The limits are one to four times the real
/// lengths.
fn jobs(seed: u64) -> Vec<Job> {
    let mut random = Random(seed);
    let mut out = Vec::new();
    let mut at = 0.0;
    let mean_work = 2.9 * 3_000.0;
    let between = mean_work / (f64::from(NODES) * 8.0 * LOAD);
    for n in 0..JOBS {
        at += random.exponential(between);
        let count: u32 = random.pick(&[1, 1, 1, 1, 2, 2, 4, 8]);
        let nodes = if count == 8 && random.below(3) == 0 { 2 } else { 1 };
        let runs = random.exponential(3_000.0).clamp(30.0, 40_000.0) as i64;
        let limit = (runs as f64 * 3.0f64.mul_add(random.unit(), 1.0)) as i64 + 60;
        out.push(Job {
            facts: JobFacts {
                id: JobId::from_uuid(Uuid::from_u128(n as u128 + 1)),
                generation: 1,
                attempt: 0,
                org: OrgId::from_uuid(Uuid::from_u128(1)),
                request: board(count, nodes),
                priority: Priority::Normal,
                max_duration_s: limit,
                preemptible: false,
                grace_s: 10,
                gives_back_ms: None,
                queued_at: start().plus_seconds(at as i64),
                depends_on: Vec::new(),
                inside: None,
                volume: None,
            },
            arrives_s: at as i64,
            runs_s: runs,
        });
    }
    out
}

struct Outcome {
    waits_s: Vec<f64>,
    violated: u32,
    booked: u32,
}

fn run(seed: u64, backfill: bool) -> Outcome {
    let mut engine = Engine::default();
    engine.set_backfill(backfill);
    for n in 0..NODES {
        let facts = node(n, "H100-80GB", 8, false);
        engine.apply(Fact::Node { version: 1, facts }, start());
    }
    // A two-node reservation every eight hours, for two hours.
    let mut windows = Vec::new();
    for n in 0..12u128 {
        let from = start().plus_seconds(28_800 * (i64::try_from(n).unwrap_or(0) + 1));
        let window = Window { from, until: from.plus_seconds(7_200) };
        let org = OrgId::from_uuid(Uuid::from_u128(2));
        if let Ok((ask, places, moved)) = engine.quote(&board(8, 2), org, window, start()) {
            let id = BookingId(Uuid::from_u128(1_000_000 + n));
            let Window { from, until } = window;
            let kind = BookingKind::Reservation;
            engine
                .book(Booking { id, kind, org, ask: Some(ask), from, until, places: places.clone() }, moved);
            windows.push((id, window, places));
        }
    }
    let jobs = jobs(seed);
    let runs: BTreeMap<JobId, (i64, i64)> =
        jobs.iter().map(|j| (j.facts.id, (j.runs_s, j.arrives_s))).collect();
    let mut arrivals = jobs.into_iter().peekable();
    let mut ends: BinaryHeap<Reverse<(i64, JobId)>> = BinaryHeap::new();
    let mut waits = Vec::new();
    // The use of each board, from a time until a time, for the comparison with the reservations.
    let mut held: Vec<(String, i64, i64)> = Vec::new();
    let mut version = 1;
    loop {
        let next_arrival = arrivals.peek().map(|j| j.arrives_s);
        let next_end = ends.peek().map(|Reverse((at, _))| *at);
        let Some(now_s) = [next_arrival, next_end].into_iter().flatten().min() else { break };
        let now = start().plus_seconds(now_s);
        while arrivals.peek().is_some_and(|j| j.arrives_s <= now_s) {
            if let Some(job) = arrivals.next() {
                engine.apply(Fact::Waits { version: 1, facts: job.facts }, now);
            }
        }
        while let Some(Reverse((at, job))) = ends.peek().copied() {
            if at > now_s {
                break;
            }
            ends.pop();
            version += 1;
            engine.apply(Fact::Freed { version, owner: Owner { job, attempt: 1 } }, now);
        }
        for decision in engine.pass(now) {
            let Decision::Start { job, ranks, .. } = decision else { continue };
            let Some((runs_s, arrived_s)) = runs.get(&job) else { continue };
            waits.push((now_s - arrived_s) as f64);
            ends.push(Reverse((now_s + runs_s, job)));
            let slots = ranks.iter().flat_map(|(_, slots)| slots);
            held.extend(slots.map(|s| (s.gpu.to_string(), now_s, now_s + runs_s)));
        }
    }
    let mut violated = 0;
    for (_, window, places) in &windows {
        let from = (window.from.micros() - start().micros()) / 1_000_000;
        let until = (window.until.micros() - start().micros()) / 1_000_000;
        for slot in places.iter().flat_map(|p| &p.slots) {
            let runs = held.iter().filter(|(gpu, ..)| *gpu == *slot.gpu);
            violated += u32::try_from(runs.filter(|(_, a, b)| *a < until && from < *b).count()).unwrap_or(0);
        }
    }
    waits.sort_by(f64::total_cmp);
    Outcome { waits_s: waits, violated, booked: u32::try_from(windows.len()).unwrap_or(0) }
}

pub fn compare(seeds: u64) {
    let mut sums = [[0.0; 3]; 2];
    let (mut violated, mut booked) = (0, 0);
    for seed in 1..=seeds {
        for (sum, backfill) in sums.iter_mut().zip([true, false]) {
            let outcome = run(seed, backfill);
            let n = outcome.waits_s.len();
            let mean = outcome.waits_s.iter().sum::<f64>() / n as f64;
            let p99 = outcome.waits_s.get(n * 99 / 100).copied().unwrap_or(0.0);
            for (slot, value) in sum.iter_mut().zip([mean, p99, n as f64]) {
                *slot += value / seeds as f64;
            }
            violated += outcome.violated;
            booked += outcome.booked;
        }
    }
    let [[mean, p99, started], [fcfs_mean, fcfs_p99, _]] = sums;
    println!(
        "{{\"seeds\": {seeds}, \"jobs\": {started:.0}, \"mean_wait_s\": {mean:.0}, \"p99_wait_s\": {p99:.0}, \
         \"fcfs_mean_wait_s\": {fcfs_mean:.0}, \"fcfs_p99_wait_s\": {fcfs_p99:.0}, \"ratio\": {:.3}, \
         \"reservations\": {booked}, \"violated\": {violated}}}",
        mean / fcfs_mean
    );
}
