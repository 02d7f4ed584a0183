//! Runs any number of small worlds before the judge of `tests/oracle`: `oracle [WORLDS] [FROM] [SEED]`.
//! Prints the number of worlds and the smallest form of each world that breaks a rule.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unreachable,
    reason = "a judge of small worlds that it makes itself"
)]

#[path = "../tests/oracle/cases.rs"]
mod cases;
#[path = "../tests/oracle/judge/mod.rs"]
mod judge;
#[path = "../tests/oracle/regressions.rs"]
mod regressions;
#[path = "../tests/oracle/world/mod.rs"]
mod world;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use cases::{
    ENUMERATED, ENUMERATED_DEDICATED, ENUMERATED_INSIDE, ENUMERATED_POOLS, ENUMERATED_RESERVE, check,
    enumerated, enumerated_dedicated, enumerated_inside, enumerated_pools, enumerated_reserve, models,
    random, shrink,
};
use regressions::regressions;

/// Number of faults that are printed in full.
const PRINTED_IN_FULL: u64 = 5;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|a| a.parse::<u64>().unwrap());
    let worlds = arguments.next().unwrap_or(1_000_000);
    let from = arguments.next().unwrap_or(0);
    let seed = arguments.next().unwrap_or(1_000_000);
    let several = std::env::var_os("SEVERAL_MODELS").is_some();
    let models: Vec<_> = models().into_iter().chain(regressions()).collect();
    let inside = ENUMERATED + ENUMERATED_INSIDE;
    let dedicated = inside + ENUMERATED_DEDICATED;
    let pools = dedicated + ENUMERATED_POOLS;
    let reserve = pools + ENUMERATED_RESERVE;
    let fixed = reserve + models.len() as u64;
    let case = |n: u64| match n {
        n if n < ENUMERATED => enumerated(n),
        n if n < inside => enumerated_inside(n - ENUMERATED),
        n if n < dedicated => enumerated_dedicated(n - inside),
        n if n < pools => enumerated_pools(n - dedicated),
        n if n < reserve => enumerated_reserve(n - pools),
        n if n < fixed => models[(n - reserve) as usize].clone(),
        n => random(seed + n, several),
    };
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let (next, faults, steps) = (AtomicU64::new(from), AtomicU64::new(0), AtomicU64::new(0));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= worlds {
                        return;
                    }
                    let case = case(n);
                    steps.fetch_add(case.steps.len() as u64, Ordering::Relaxed);
                    let Err(fault) = check(&case) else { continue };
                    println!("world {n}: rule {}: {}", fault.rule, fault.text);
                    if faults.fetch_add(1, Ordering::Relaxed) < PRINTED_IN_FULL {
                        let small = shrink(&case, fault.rule);
                        println!("smallest form of world {n}: {:?}\n{small:?}", check(&small));
                    }
                }
            });
        }
    });
    println!("{:>12} {:>12} {:>12} {:>8} {:>8}", "worlds", "enumerated", "steps", "faults", "seconds");
    println!(
        "{worlds:>12} {:>12} {:>12} {:>8} {:>8.0}",
        fixed.min(worlds),
        steps.into_inner(),
        faults.load(Ordering::Relaxed),
        began.elapsed().as_secs_f64()
    );
    std::process::exit(i32::from(faults.into_inner() > 0));
}
