//! Tests of the engine in small worlds. A judge checks each decision by the documented order of the queue. It
//! does not use the code of the engine. `cargo run --release -p berth-core --example oracle` tries many more
//! worlds.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unreachable,
    reason = "a judge of small worlds that it makes itself"
)]

mod cases;
mod judge;
mod liveness;
mod partial_liveness;
mod regressions;
mod reported;
mod world;

use cases::{
    ENUMERATED, ENUMERATED_DEDICATED, ENUMERATED_INSIDE, ENUMERATED_POOLS, ENUMERATED_RESERVE, check,
    enumerated, enumerated_dedicated, enumerated_inside, enumerated_pools, enumerated_reserve, models,
    random, shrink,
};
use judge::play::try_case;
use regressions::regressions;
use reported::{Reported, reported};
use world::{Case, State, World};

/// Tries cases on all processors. Panics with the smallest form of the first case that breaks a rule.
fn try_all(count: u64, case: impl Fn(u64) -> Case + Sync) {
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let case = &case;
    std::thread::scope(|scope| {
        for worker in 0..workers {
            scope.spawn(move || {
                for number in (worker..count).step_by(workers as usize) {
                    let case = case(number);
                    if let Err(fault) = check(&case) {
                        let small = shrink(&case, fault.rule);
                        let now = check(&small).expect_err("it still breaks the rule");
                        panic!("world {number}: {now:?}\n{small:?}");
                    }
                }
            });
        }
    });
}

#[test]
fn every_model_in_both_modes_runs_what_its_table_allows() {
    let cases = models();
    try_all(cases.len() as u64, |n| cases[n as usize].clone());
}

#[test]
fn those_run_at_the_end_who_should() {
    for Reported { name, case, run, wait } in reported() {
        let world =
            try_case(&case.steps, World::new(&case)).unwrap_or_else(|fault| panic!("{name}: {fault:?}"));
        for job in run {
            assert!(matches!(world.jobs[job].state, State::Running(_)), "{name}: job {job} does not run");
        }
        for job in wait {
            assert!(world.waits(job), "{name}: job {job} does not wait");
        }
    }
}

#[test]
fn what_broke_a_rule_once_breaks_none() {
    let cases = regressions();
    try_all(cases.len() as u64, |n| cases[n as usize].clone());
}

#[test]
fn enumerated_worlds_follow_the_order_of_the_queue() {
    // With a prime stride the numbers have all digits in each position.
    let count = 10_000;
    try_all(count, |n| enumerated(n * 7_919 % ENUMERATED));
}

#[test]
fn enumerated_worlds_inside_a_reservation_follow_it() {
    try_all(ENUMERATED_INSIDE, enumerated_inside);
}

#[test]
fn enumerated_worlds_with_dedicated_nodes_follow_it() {
    // As above, with a prime stride.
    try_all(6_000, |n| enumerated_dedicated(n * 7_919 % ENUMERATED_DEDICATED));
}

#[test]
fn enumerated_worlds_with_pools_follow_it() {
    try_all(ENUMERATED_POOLS, enumerated_pools);
}

#[test]
fn enumerated_worlds_with_a_reserve_for_bursts_follow_it() {
    try_all(ENUMERATED_RESERVE, enumerated_reserve);
}

#[test]
fn random_worlds_follow_it() {
    try_all(7_500, |seed| random(seed, seed % 8 == 0));
}
