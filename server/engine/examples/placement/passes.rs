//! The time of a pass of the whole engine at 10,000 nodes and 100,000 queued jobs: without changes, and after
//! the end of one job.

use std::time::Instant;

use berth_engine::{Decision, Engine, Fact, JobFacts};
use berth_placement::cluster::{NodeFacts, Owner};
use berth_placement::networks::NetworkNeed;
use berth_placement::request::{DeviceRequest, Nearness, Request};
use berth_types::ids::{JobId, OrgId};
use berth_types::jobs::Priority;
use berth_types::time::Timestamp;
use uuid::Uuid;

use crate::percentile;
use crate::trace::{Random, node};

const NODES: u32 = 10_000;
const QUEUED: usize = 100_000;
const ORGS: usize = 100;
const MODELS: [&str; 3] = ["H100-80GB", "A100-80GB", "L40S"];

fn job(random: &mut Random, number: u128, now: Timestamp) -> JobFacts {
    let model = random.pick(&MODELS);
    let mut request = Request {
        device: DeviceRequest::Board,
        count: random.pick(&[1, 1, 1, 2, 4, 8]),
        nodes: if random.below(50) == 0 { 4 } else { 1 },
        models: vec![model.into()],
        cpu_milli: random.pick(&[0, 4_000, 8_000]),
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
    };
    match random.below(4) {
        0 if model != "L40S" => {
            (request.count, request.nodes) = (1, 1);
            request.device =
                DeviceRequest::Slice(if model == "H100-80GB" { "1g.10gb" } else { "3g.40gb" }.into());
        }
        1 => {
            (request.count, request.nodes) = (1, 1);
            request.device = DeviceRequest::Share(random.pick(&[100, 250, 500]));
        }
        _ => {}
    }
    JobFacts {
        id: JobId::from_uuid(Uuid::from_u128(number)),
        generation: 1,
        attempt: 0,
        org: OrgId::from_uuid(Uuid::from_u128(random.below(ORGS) as u128)),
        request,
        priority: random.pick(&[Priority::Low, Priority::Normal, Priority::High]),
        max_duration_s: 600 << random.below(8),
        preemptible: random.below(3) == 0,
        grace_s: 60,
        gives_back_ms: None,
        queued_at: now,
        depends_on: Vec::new(),
        inside: None,
        volume: None,
    }
}

fn resident_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmRSS"));
    let kib = line.and_then(|l| l.split_whitespace().nth(1)).and_then(|n| n.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1_024.0
}

/// Carries out decisions; preempted runs end at once. Returns the number of starts.
fn carry_out(engine: &mut Engine, running: &mut Vec<Owner>, decided: &[Decision], now: Timestamp) -> usize {
    let before = running.len();
    let mut left = 0;
    for decision in decided {
        match decision {
            Decision::Start { job, attempt, .. } => running.push(Owner { job: *job, attempt: *attempt }),
            Decision::Preempt { victim, .. } => {
                left += running.len();
                running.retain(|owner| owner != victim);
                left -= running.len();
                engine.apply(Fact::Freed { version: 2, owner: *victim }, now);
            }
            Decision::Orphan { .. } => {}
        }
    }
    running.len() + left - before
}

pub fn run() {
    let mut random = Random(7);
    let mut engine = Engine::default();
    let mut now = Timestamp::from_micros(1_800_000_000_000_000);
    for n in 0..NODES {
        let model = random.pick(&MODELS);
        let facts = NodeFacts { cpu_milli: 128_000, ..node(n, model, 8, true) };
        engine.apply(Fact::Node { version: 1, facts }, now);
    }
    let mut number = 0;
    let mut running: Vec<Owner> = Vec::new();
    let mut submit = |engine: &mut Engine, random: &mut Random, now: Timestamp| {
        while engine.waiting() < QUEUED {
            number += 1;
            engine.apply(Fact::Waits { version: 1, facts: job(random, number, now) }, now);
        }
    };
    let began = Instant::now();
    let mut started = 0u32;
    // Fills the cluster and then the queue, until the engine has no unfinished search.
    loop {
        submit(&mut engine, &mut random, now);
        let decided = engine.pass(now);
        started += u32::try_from(carry_out(&mut engine, &mut running, &decided, now)).unwrap_or(0);
        if decided.is_empty() && !engine.is_unfinished() {
            break;
        }
    }
    let filled = began.elapsed().as_secs_f64();
    let mut measure =
        |engine: &mut Engine, now: Timestamp, change: &mut dyn FnMut(&mut Engine, &mut Vec<Owner>)| {
            let mut times: Vec<f64> = (0..1_000)
                .map(|_| {
                    change(engine, &mut running);
                    let began = Instant::now();
                    let decided = engine.pass(now);
                    let took = began.elapsed().as_secs_f64() * 1e3;
                    carry_out(engine, &mut running, &decided, now);
                    took
                })
                .collect();
            times.sort_by(f64::total_cmp);
            times
        };
    let idle = measure(&mut engine, now, &mut |_, _| {});
    now = now.plus_seconds(30);
    let mut version = 2;
    let one = measure(&mut engine, now, &mut |engine, running| {
        version += 1;
        if !running.is_empty() {
            let owner = running.swap_remove(random.below(running.len()));
            engine.apply(Fact::Freed { version, owner }, now);
        }
    });
    println!(
        "{{\"nodes\": {NODES}, \"queued\": {}, \"started\": {started}, \"fill_s\": {filled:.2}, \
         \"idle_p50_ms\": {:.4}, \"idle_p99_ms\": {:.4}, \"one_p50_ms\": {:.4}, \"one_p99_ms\": {:.4}, \
         \"one_max_ms\": {:.4}, \"resident_mb\": {:.0}}}",
        engine.waiting(),
        percentile(&idle, 0.5),
        percentile(&idle, 0.99),
        percentile(&one, 0.5),
        percentile(&one, 0.99),
        one.last().copied().unwrap_or(0.0),
        resident_mb(),
    );
}
