//! Benchmarks of placement. Each prints JSON objects, one a line.
//!
//! `placement inflate NODES.csv TASKS.csv [SEEDS]`: the inflation experiment for each policy, and a bound
//! for all of them.
//! `placement mixes NODES.csv TASKS.csv NUMBER SEED`: the allocation on mixes drawn from the tasks, one for each
//! seed from this one on, beside that of the best rival.
//! `placement mig [SEEDS]`: the accepted MIG requests on 100 boards at load 1, for four mixes.
//! `placement replay [SEEDS]`: the waits with and without backfill, and the violated reservations.
//! `placement passes`: the time of a pass at 10,000 nodes and 100,000 queued jobs.
//! `placement quotes`: the time of a quote on 1,000 boards with 10,000 bookings.
//! `placement rate NODES.csv TASKS.csv`: decisions a second with a full queue.

mod bound;
mod inflate;
mod mig;
mod mixes;
mod passes;
mod quotes;
mod replay;
mod simplex;
mod trace;

/// The value of a sorted list below which this fraction of the values lies.
fn percentile(sorted: &[f64], part: f64) -> f64 {
    sorted.get((sorted.len() as f64 * part) as usize).or(sorted.last()).copied().unwrap_or(0.0)
}

fn main() -> Result<(), String> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["inflate", nodes, tasks, rest @ ..] => {
            let seeds = rest.first().map_or(Ok(10), |s| s.parse()).map_err(|e| format!("seeds: {e}"))?;
            inflate::run(&trace::read(nodes, tasks)?, seeds);
            Ok(())
        }
        ["mixes", nodes, tasks, number, seed] => {
            let number = number.parse().map_err(|e| format!("mixes: {e}"))?;
            let seed = seed.parse().map_err(|e| format!("seed: {e}"))?;
            mixes::run(&trace::read(nodes, tasks)?, number, seed);
            Ok(())
        }
        ["rate", nodes, tasks] => {
            inflate::rate(&trace::read(nodes, tasks)?);
            Ok(())
        }
        ["replay", rest @ ..] => {
            let seeds = rest.first().map_or(Ok(5), |s| s.parse()).map_err(|e| format!("seeds: {e}"))?;
            replay::compare(seeds);
            Ok(())
        }
        ["quotes"] => {
            quotes::run();
            Ok(())
        }
        ["passes"] => {
            passes::run();
            Ok(())
        }
        ["mig", rest @ ..] => {
            let seeds = rest.first().map_or(Ok(10), |s| s.parse()).map_err(|e| format!("seeds: {e}"))?;
            mig::run(seeds);
            Ok(())
        }
        _ => {
            Err("usage: placement inflate|rate NODES.csv TASKS.csv [SEEDS], or placement mixes NODES.csv TASKS.csv NUMBER SEED, or placement mig [SEEDS], or placement passes|replay|quotes"
                .to_owned())
        }
    }
}
