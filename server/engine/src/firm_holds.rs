//! The firm held starts of jobs whose victims still stop, after a restart or a loss of their held starts.

use berth_types::time::Timestamp;

use super::facts::Claim;
use super::held::Basis;
use super::{Engine, hold, inside, order, place, ready};
use berth_placement::calendar::{HANGS_S, LATE_S};
use berth_placement::cluster::{BookingId, Models};
use berth_placement::queue::Turn;

/// Restores the firm holds of jobs with stopped runs. A new engine has none, and a closed node or a
/// reached limit of the organization drops them.
pub(super) fn restore(engine: &mut Engine, now: Timestamp) {
    let unheld = engine.preemptions.iter().filter(|(job, _)| !engine.holds.is_firm(*job));
    let mut turns: Vec<Turn> = unheld.filter_map(|(job, _)| order::turn(engine, job, now)).collect();
    turns.sort_unstable();
    for Turn { job, .. } in turns {
        let Some(waiting) = engine.jobs.get(&job) else { continue };
        let (Some(lane), Some(ask)) = (waiting.lane, waiting.ask) else { continue };
        let (pool, seconds) = (ask.shape.models.0, waiting.facts.max_duration_s);
        let Some(last_end) = last_victim_end(engine, pool, lane.inside, now) else { continue };
        if let Some(id) = lane.inside {
            inside::restore_firm_hold(engine, id, job, last_end, now);
        } else if order::turns(engine, now).admits(lane.group, &ask) {
            // A later start would not use the devices of the victims.
            ready::sync(engine, &ask, ready::SCANNED);
            let excluded = hold::excluded_bookings(engine, job, false, now);
            let found = ready::earliest_known(engine, &ask, seconds, now, &excluded);
            if found.is_some_and(|(at, _)| at <= last_end) {
                hold::hold_start(engine, pool, job, Basis::Stopped, now);
            }
        }
    }
}

/// The last expected end of the stopped runs on boards of a pool, inside a booking or (`None`) outside all of
/// them. Two jobs may get the boards in another order than before, so the victims of all jobs count.
fn last_victim_end(
    engine: &Engine,
    pool: u64,
    inside: Option<BookingId>,
    now: Timestamp,
) -> Option<Timestamp> {
    let is_relevant = |claim: &Claim| {
        let mut nodes = claim.ranks.iter().filter_map(|rank| engine.cluster.find_node(rank.node));
        let any_node = !engine.racks.is_empty();
        claim.inside == inside
            && (any_node || nodes.any(|node| place::has_board_of(engine, node, Models(pool))))
    };
    let runs =
        engine.preemptions.iter().flat_map(|(_, victims)| victims).filter_map(|run| engine.claims.get(*run));
    let ends = runs.filter(|claim| is_relevant(claim)).filter_map(|claim| claim.ends_by);
    let end = ends.filter(|end| now <= end.plus_seconds(HANGS_S)).max()?;
    Some(end.max(now.plus_seconds(LATE_S)))
}
