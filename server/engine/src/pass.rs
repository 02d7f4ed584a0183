//! One pass over the queue: starts, preemptions and orphaned jobs.
//!
//! The time of a pass depends on the number of changes. Jobs have their turns over all pools (sets of board
//! models). The first job of a pool that does not fit gets a held start. Then other jobs backfill around the
//! held starts.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use berth_types::ids::JobId;
use berth_types::time::Timestamp;

use super::backfill::{self, FIRST_PREEMPTORS, PoolPass};
use super::held::{Basis, HeldStart, hold_id, is_late_by_victim, is_overdue};
use super::hold::{self, StartEstimate};
use super::preempt::{self, VictimSearch};
use super::{
    Decision, Engine, decide, firm_holds, impossible, inside, order, place, power, ready, reclaim, run_end,
};
use berth_placement::calendar::{Booking, Exclusions};
use berth_placement::cluster::Models;
use berth_placement::queue::Turn;

/// The largest number of rounds of a pass; another round follows while a decision may lead to another one.
const ROUNDS: usize = 8;

/// The state at the last check of a pool. The pool is skipped until the state differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PoolCheck {
    changes: u64,
    queue: u64,
    /// The version of the order of the waiting jobs, and the first of them. `first` is `None` if the order
    /// behind the first job matters too.
    order: u64,
    first: Option<JobId>,
    bookings: u64,
    /// The time from which on more runs may end within a grace, or boards draw power for a booking.
    until: Timestamp,
    /// The longest graces at the begin of the check.
    graces_s: Vec<(i64, i64)>,
    /// True if no search continues in the next pass.
    pub(super) finished: bool,
}

impl Engine {
    /// Returns the decisions of a pass, each of which counts as done.
    pub fn pass(&mut self, now: Timestamp) -> Vec<Decision> {
        let mut out = Vec::new();
        preempt::forget_started(self);
        self.caches.victim_scans.begin_pass();
        impossible::put_possible_back(self);
        self.calendar.forget_until(now);
        decide::orphans(self, &mut out);
        firm_holds::restore(self, now);
        inside::run_all(self, now, &mut out);
        let waiting: BTreeSet<u64> = self.queue.pools().into_iter().collect();
        self.caches.pool_checks.retain(|pool, _| waiting.contains(pool));
        for round in 0..ROUNDS {
            let open = |pool: &u64| !is_settled(self, *pool, now) && (round == 0 || is_finished(self, *pool));
            let pools: Vec<u64> = pools(self).into_iter().filter(open).collect();
            if pools.is_empty() {
                break;
            }
            run_pools(self, &pools, now, &mut out);
        }
        reclaim::restore(self, now, &mut out);
        out
    }

    /// Returns true if a search continues in the next pass, which should follow soon.
    pub fn is_unfinished(&self) -> bool {
        self.caches.pool_checks.values().any(|l| !l.finished)
    }
}

/// The pools with waiting jobs or held starts.
fn pools(engine: &Engine) -> BTreeSet<u64> {
    let held = engine.holds.iter().map(|(_, h)| h.pool);
    engine.queue.pools().into_iter().chain(held).collect()
}

/// True if no search of a pool continues.
fn is_finished(engine: &Engine, pool: u64) -> bool {
    engine.caches.pool_checks.get(&pool).is_none_or(|l| l.finished)
}

/// Tries the jobs of some pools, in the order of their turns over all these pools.
fn run_pools(engine: &mut Engine, pools: &[u64], now: Timestamp, out: &mut Vec<Decision>) {
    let mut order: BinaryHeap<Reverse<(Turn, usize)>> = BinaryHeap::new();
    let mut passes: Vec<PoolPass> = Vec::new();
    hold::drop_unpowered_holds(engine, now);
    for (index, pool) in pools.iter().enumerate() {
        drop_limited_hold(engine, *pool, now);
        let only_searches = !preempt::is_searched(engine) && is_unchanged(engine, *pool, now);
        let mut aside = engine.holds.aside(*pool);
        aside.retain(|job| {
            !only_searches || ready::is_searching(engine, &[*job]) || hold::meets_others(engine, *job, now)
        });
        let pass = PoolPass {
            pool: *pool,
            passed: BTreeSet::new(),
            tried_later: 0,
            only_searches,
            aside,
            backfill: None,
            order: engine.queue.order_version(*pool),
            first: None,
            graces_s: engine.preemptible.graces_s(None),
            finished: true,
            again: false,
            began: state(engine),
        };
        match next(engine, &pass, now) {
            Some(turn) => order.push(Reverse((turn, index))),
            None => remember_check(engine, &pass, now),
        }
        passes.push(pass);
    }
    while let Some(Reverse((known_turn, index))) = order.pop() {
        let Some(pass) = passes.get_mut(index) else { continue };
        // A start of the same organization may have moved the job behind others.
        if let Some(turn) = next(engine, pass, now).filter(|turn| *turn > known_turn) {
            order.push(Reverse((turn, index)));
            continue;
        }
        step(engine, pass, known_turn, now, out);
        backfill_if_all_passed(engine, pass, now, out);
        match next(engine, pass, now) {
            Some(turn) => order.push(Reverse((turn.max(known_turn), index))),
            None => remember_check(engine, pass, now),
        }
    }
}

/// Drops the held start of a pool's first job if its organization is at a limit.
fn drop_limited_hold(engine: &mut Engine, pool: u64, now: Timestamp) {
    if let Some(job) = find_limited_hold(engine, pool, now) {
        hold::drop_hold(engine, job);
    }
}

/// The job with the first held start of a pool, if the limits of its organization do not admit it now.
fn find_limited_hold(engine: &Engine, pool: u64, now: Timestamp) -> Option<JobId> {
    let job = engine.holds.first(pool)?;
    let request = engine.jobs.get(&job).and_then(|w| Some((w.lane?, w.ask?)));
    let admitted = request.is_some_and(|(lane, ask)| order::turns(engine, now).admits(lane.group, &ask));
    (!admitted).then_some(job)
}

/// The changes of the cluster and of the calendar so far.
fn state(engine: &Engine) -> (u64, u64) {
    (engine.cluster.changes(), engine.calendar.total_version())
}

/// The next turn in a pool.
fn next(engine: &Engine, pass: &PoolPass, now: Timestamp) -> Option<Turn> {
    next_aside(engine, pass, now).into_iter().chain(next_in_line(engine, pass, now)).min()
}

/// The next turn in the line of a pool.
fn next_in_line(engine: &Engine, pass: &PoolPass, now: Timestamp) -> Option<Turn> {
    match &pass.backfill {
        Some(backfill) => backfill.next(),
        None => engine.queue.head(pass.pool, order::turns(engine, now), &pass.passed),
    }
}

/// The next turn of a pool's jobs aside. A job with a late victim is the first of its class.
fn next_aside(engine: &Engine, pass: &PoolPass, now: Timestamp) -> Option<Turn> {
    let is_late = |h: &HeldStart| is_overdue(h.basis, h.due, now);
    let first =
        |turn| Turn { after_replicas: false, share: 0, queued_at: Timestamp::from_micros(i64::MIN), ..turn };
    let turns = pass.aside.iter().filter_map(|job| Some((job, order::turn(engine, *job, now)?)));
    turns
        .map(|(job, turn)| if engine.holds.get(*job).is_some_and(is_late) { first(turn) } else { turn })
        .min()
}

/// Records the check of a pool. A first held start is dropped if its job has left the queue.
fn remember_check(engine: &mut Engine, pass: &PoolPass, now: Timestamp) {
    if pass.backfill.is_none()
        && let Some(job) = engine.holds.first(pass.pool)
    {
        hold::drop_hold(engine, job);
    }
    // Boards that later replicas use in this pass are missing in the reserve for earlier jobs.
    let is_reserve_moved = !engine.burst_reserve.is_empty() && pass.began != state(engine);
    // A start of this pass may have used up a limit of the held start's organization.
    if pass.again || is_reserve_moved || find_limited_hold(engine, pass.pool, now).is_some() {
        engine.caches.pool_checks.remove(&pass.pool);
        return;
    }
    // A start of this pass may have changed turns. In a large cluster only another first job counts at
    // once.
    let (order, first) = match preempt::is_searched(engine) {
        true => (pass.order, first_alone(engine, pass)),
        false => (engine.queue.order_version(pass.pool), head(engine, pass.pool, now)),
    };
    let next_power_begin = engine.racks.next_begin(&engine.cluster, &engine.calendar, now);
    let check = PoolCheck {
        changes: engine.cluster.changes(),
        queue: engine.queue.version(pass.pool),
        order,
        first,
        bookings: power::bookings_version(engine, pass.pool),
        until: preempt::next_within_grace(engine, None, now).min(next_power_begin),
        graces_s: pass.graces_s.clone(),
        finished: pass.finished,
    };
    engine.caches.pool_checks.insert(pass.pool, check);
}

/// The first job of a pool, if the order of the other jobs changes no held start.
fn first_alone(engine: &Engine, pass: &PoolPass) -> Option<JobId> {
    let mut met = engine.holds.iter().map(|(_, held)| held).filter(|h| hold::meets(engine, h, pass.pool));
    let own = |h: &HeldStart| h.pool == pass.pool && h.basis == Basis::First;
    let one = met.next().is_none_or(own) && met.next().is_none();
    pass.first.filter(|_| one && pass.passed.is_empty())
}

/// The first job of a pool, which may be one that is passed over.
fn head(engine: &Engine, pool: u64, now: Timestamp) -> Option<JobId> {
    engine.queue.head(pool, order::turns(engine, now), &BTreeSet::new()).map(|turn| turn.job)
}

/// True if a new order of the waiting jobs changes nothing: a job without a place finds none in another
/// turn either.
fn is_order_settled(engine: &Engine, pool: u64, check: &PoolCheck, now: Timestamp) -> bool {
    engine.queue.order_version(pool) == check.order
        || check.first.is_some_and(|first| head(engine, pool, now) == Some(first))
}

/// Tries the next job of a pool: a job aside, or the first of the line.
fn step(engine: &mut Engine, pass: &mut PoolPass, known_turn: Turn, now: Timestamp, out: &mut Vec<Decision>) {
    let line = next_in_line(engine, pass, now);
    let aside = next_aside(engine, pass, now).filter(|turn| *turn <= known_turn);
    let aside = aside.filter(|turn| line.is_none_or(|line| *turn <= line));
    match (aside, pass.backfill.is_some()) {
        (Some(turn), _) => {
            pass.aside.retain(|job| *job != turn.job);
            let begins = |engine: &Engine| engine.holds.get(turn.job).map(|held| held.at);
            let before = begins(engine);
            start_aside(engine, pass.pool, turn.job, now, out);
            pass.finished &= !ready::is_searching(engine, &[turn.job]);
            // Held starts behind it begin later or sooner with it.
            pass.again |= !engine.holds.is_aside(turn.job) || begins(engine) != before;
        }
        (None, true) => backfill::run_next(engine, pass, now, out),
        (None, false) => start_or_hold_first(engine, pass, now, out),
    }
}

/// True if no change could let a job of a pool start. In a large cluster a change of the order behind the
/// first job does not count.
fn is_settled(engine: &Engine, pool: u64, now: Timestamp) -> bool {
    is_finished(engine, pool) && is_unchanged(engine, pool, now)
}

/// The same for a pool whose search may continue.
fn is_unchanged(engine: &Engine, pool: u64, now: Timestamp) -> bool {
    let Some(check) = engine.caches.pool_checks.get(&pool) else { return false };
    let unchanged = engine.cluster.changed_since(check.changes).is_some_and(|nodes| {
        nodes.len() < 256 && !nodes.iter().any(|node| place::has_board_of(engine, *node, Models(pool)))
    });
    let due = engine.holds.iter().any(|(_, h)| h.pool == pool && h.at <= now);
    unchanged
        && !due
        && now < check.until
        && engine.preemptible.graces_s(None) == check.graces_s
        && engine.queue.version(pool) == check.queue
        && is_order_settled(engine, pool, check, now)
        && power::bookings_version(engine, pool) == check.bookings
}

/// Starts the first job of a pool or holds a start for it. A job without an estimate of its start is
/// passed over.
fn start_or_hold_first(engine: &mut Engine, pass: &mut PoolPass, now: Timestamp, out: &mut Vec<Decision>) {
    // A start of this pass may have used up a limit of the held start's organization.
    drop_limited_hold(engine, pass.pool, now);
    let Some(head) = engine.queue.head(pass.pool, order::turns(engine, now), &pass.passed) else { return };
    let Some((lane, ask, seconds)) = engine
        .jobs
        .get(&head.job)
        .and_then(|waiting| Some((waiting.lane?, waiting.ask?, waiting.facts.max_duration_s)))
    else {
        return;
    };
    let excluded = hold::excluded_bookings(engine, head.job, true, now);
    if let Some(places) = hold::find_places_at_once(engine, (head.job, &ask, seconds), &excluded, now) {
        decide::start(engine, head.job, &places, now, out);
        return;
    }
    if !impossible::is_possible(engine, &ask) {
        // A node of its held start may take it no more.
        hold::drop_hold(engine, head.job);
        order::set_aside(engine, head.job);
        engine.impossible.insert(head.job);
        return;
    }
    let before = engine.holds.first(pass.pool).filter(|job| *job != head.job);
    let estimate = hold::hold_start(engine, pass.pool, head.job, Basis::First, now);
    let starts = match estimate {
        StartEstimate::At(at) => Some(at),
        _ => None,
    };
    let search = preempt::for_job(engine, pass.pool, head.job, starts, now, out);
    pass.finished &= estimate != StartEstimate::Unfinished && search != VictimSearch::Unfinished;
    let searching = ready::is_searching(engine, &[head.job]);
    pass.finished &= !searching;
    if engine.holds.is_aside(head.job) {
        return;
    }
    pass.tried_later += 1;
    let may_pass_over = preempt::is_searched(engine) || pass.tried_later < FIRST_PREEMPTORS;
    if may_pass_over && estimate == StartEstimate::Unknown && !matches!(search, VictimSearch::Found(_)) {
        pass.passed.insert((ask.for_anybody(), lane.group));
        return;
    }
    if let Some(before) = before {
        hold::drop_hold(engine, before);
    }
    backfill::begin(engine, pass, now, out);
}

/// Begins the backfill if all jobs are passed over: shorter runs of them may fit.
fn backfill_if_all_passed(engine: &mut Engine, pass: &mut PoolPass, now: Timestamp, out: &mut Vec<Decision>) {
    let all = !pass.passed.is_empty()
        && pass.backfill.is_none()
        && engine.queue.head(pass.pool, order::turns(engine, now), &pass.passed).is_none();
    if all {
        if let Some(job) = engine.holds.first(pass.pool) {
            hold::drop_hold(engine, job);
        }
        backfill::begin(engine, pass, now, out);
    }
}

/// Starts a job aside, on its held boards or on any others. A late victim extends its held start for a
/// while.
fn start_aside(engine: &mut Engine, pool: u64, job: JobId, now: Timestamp, out: &mut Vec<Decision>) {
    let Some((lane, ask, seconds)) = engine
        .jobs
        .get(&job)
        .and_then(|waiting| Some((waiting.lane?, waiting.ask?, waiting.facts.max_duration_s)))
    else {
        return;
    };
    if !order::turns(engine, now).admits(lane.group, &ask) {
        return hold::drop_hold(engine, job);
    }
    let bookings = hold::excluded_bookings(engine, job, true, now);
    let excluded = Exclusions { bookings: &bookings, owners: &[], ..Exclusions::default() };
    let until = run_end(now, seconds);
    let held = engine.calendar.get(hold_id(job)).map(|b| Booking { from: now, until, ..b.clone() });
    let places = match held.filter(|b| place::is_free_for(engine, b, &ask, now, excluded)) {
        Some(held) => Some(held.places),
        None => hold::find_places_at_once(engine, (job, &ask, seconds), &bookings, now),
    };
    if let Some(places) = places {
        return decide::start(engine, job, &places, now, out);
    }
    let Some(held) = engine.holds.get(job) else { return };
    let (basis, before, due) = (held.basis, held.at, held.due);
    match hold::hold_start(engine, pool, job, basis, now) {
        StartEstimate::At(at) if at <= before || is_late_by_victim(basis, due, at, now) => {}
        // The expected end is late: the job returns to its line and may preempt again.
        _ => hold::drop_hold(engine, job),
    }
}
