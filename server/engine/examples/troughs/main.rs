//! A replayed day of inference demand on nodes for inference, whose idle boards go to preemptible jobs: the rule of
//! services decides the number of replicas, and the engine places replicas and jobs. Prints one JSON object.
//!
//! `troughs [TRACE.csv [DAY]]`: a day of a trace (`day::read`), without a trace a generated one (`day::generated`).
//! `TROUGHS_RESERVE` is the reserve for bursts in boards (0 when absent).
//!
//! - *Idle* are the seconds of all boards minus those of replicas, from the place of a replica to its end.
//! - *Used* are the idle seconds between the start of a job and its end or stop. The seconds in which a stopped job gives
//!   its board back are idle and not used.
//! - A *miss* is a request that waits more than a second longer for the begin of its answer than in the same replay
//!   without jobs.
//! - A *late* replica has no board after the grace of the jobs and one tick of the loop of services.
//! - The *delay* of a replica is the time from its submission until it is ready.

mod day;
mod pool;
mod replay;

use day::{DAY_MS, busiest_minute, generated, read, scaled};
use pool::BOARDS;
use replay::{Outcome, TARGET, run};

const SEED: u64 = 1;
/// A request that waits longer by more than this time is a miss.
const MISS_MS: i64 = 1_000;

/// The value of a sorted list below which this fraction of the values lies, in seconds.
fn percentile_s(sorted_ms: &[i64], part: f64) -> f64 {
    let at = (sorted_ms.len() as f64 * part) as usize;
    sorted_ms.get(at).or(sorted_ms.last()).map_or(0.0, |ms| *ms as f64 / 1e3)
}

fn percent(part_ms: i64, whole_ms: i64) -> f64 {
    part_ms as f64 / (whole_ms as f64).max(1.0) * 100.0
}

/// The misses, and the time in seconds by which their requests wait longer.
fn misses(lent: &Outcome, alone: &Outcome) -> (usize, f64) {
    let longer = lent.waits_ms.iter().zip(&alone.waits_ms).map(|(lent, alone)| lent - alone);
    let missed: Vec<i64> = longer.filter(|ms| *ms > MISS_MS).collect();
    (missed.len(), missed.iter().sum::<i64>() as f64 / 1e3)
}

/// The reserve for bursts in boards.
fn reserve() -> Result<u32, String> {
    let Some(text) = std::env::var_os("TROUGHS_RESERVE").filter(|text| !text.is_empty()) else {
        return Ok(0);
    };
    let boards = text.to_str().and_then(|text| text.parse::<u32>().ok()).filter(|boards| *boards <= BOARDS);
    boards.ok_or_else(|| format!("TROUGHS_RESERVE is no number of boards from 0 to {BOARDS}"))
}

fn main() -> Result<(), String> {
    let reserve = reserve()?;
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (source, unscaled) = match args.as_slice() {
        [] => ("generated", generated(SEED)),
        [path] => ("trace", read(path, 1)?),
        [path, day] => ("trace", read(path, day.parse::<u32>().map_err(|e| format!("day: {e}"))?)?),
        _ => return Err("usage: troughs [TRACE.csv [DAY]]".to_owned()),
    };
    // The busiest minute needs three quarters of the boards.
    let requests = scaled(&unscaled, 0.75 * f64::from(BOARDS * TARGET), SEED)?;
    let (alone, lent) = (run(&requests, false, reserve), run(&requests, true, reserve));
    let idle_ms = i64::from(BOARDS) * DAY_MS - lent.replica_ms;
    let (missed, missed_s) = misses(&lent, &alone);
    println!(
        "{{\"source\": \"{source}\", \"boards\": {BOARDS}, \"reserve\": {reserve}, \"requests\": {}, \"peak_boards\": {:.1}, \
         \"idle_percent\": {:.2}, \"used_percent\": {:.2}, \"misses\": {missed}, \"missed_s\": {missed_s:.1}, \
         \"late\": {}, \"late_alone\": {}, \"delay_p50_s\": {:.2}, \"delay_p99_s\": {:.2}, \
         \"alone_p50_s\": {:.2}, \"alone_p99_s\": {:.2}, \"preempted\": {}, \"lost_percent\": {:.3}, \
         \"lost_unsaved_percent\": {:.3}}}",
        requests.len(),
        busiest_minute(&requests) / f64::from(TARGET),
        percent(idle_ms, i64::from(BOARDS) * DAY_MS),
        percent(lent.borrowed.used_ms, idle_ms),
        lent.late,
        alone.late,
        percentile_s(&lent.delays_ms, 0.5),
        percentile_s(&lent.delays_ms, 0.99),
        percentile_s(&alone.delays_ms, 0.5),
        percentile_s(&alone.delays_ms, 0.99),
        lent.borrowed.preempted,
        percent(lent.borrowed.lost_ms, lent.borrowed.used_ms),
        percent(lent.borrowed.lost_unsaved_ms, lent.borrowed.used_ms),
    );
    Ok(())
}
