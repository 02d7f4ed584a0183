//! Backfill: starts around the held starts of a pool, and preemptions for the other waiting jobs.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};

use berth_types::ids::JobId;
use berth_types::time::Timestamp;

use super::burst_reserve::Lendable;
use super::claims::LowestClasses;
use super::held::{Basis, hold_id};
use super::node_pools::PreemptionRight;
use super::preempt::{self, Preemptor, VictimSearch};
use super::{Decision, Engine, decide, hold, order, place, power, run_end};
use berth_placement::calendar::Exclusions;
use berth_placement::cluster::{BookingId, NodeIx};
use berth_placement::queue::{FailedSearch, Group, Turn};
use berth_placement::request::Ask;

/// The number of jobs of a pool, the first in turn, that may get a later start and preempt in a larger
/// cluster.
pub(super) const FIRST_PREEMPTORS: usize = 16;

/// The state of the backfill of a pool.
pub(super) struct Backfill {
    /// For each ask and (where it matters) class the seconds from which on runs do not fit.
    fits_below: BTreeMap<(Ask, i64), i64>,
    /// True if a class may take devices that are reserved from lower classes, by preemptions under way.
    by_class: bool,
    /// The representative of each ask, until the next start.
    representatives: HashMap<Ask, Ask>,
    /// For each ask and class the seconds from which on runs find no victims.
    victims_below: HashMap<(Ask, i64), i64>,
    /// The lowest classes of preemptible runs.
    lowest: LowestClasses,
    lines: Vec<BackfillLine>,
    order: BinaryHeap<Reverse<(Turn, usize)>>,
}

/// The first job of each group with one ask.
struct BackfillLine {
    ask: Ask,
    /// The seconds from which on runs of any organization do not fit.
    below: i64,
    /// True if no board is free, regardless of bookings.
    full: bool,
    /// The least time limit in the line, in seconds.
    shortest: i64,
    firsts: BinaryHeap<Reverse<(Turn, Group)>>,
}

impl Backfill {
    /// The seconds from which on runs of a line do not fit (`.0`) and find no victims (`.1`).
    fn bound(&mut self, line: usize, own: &Ask, representative: &Ask, class: i64) -> (i64, i64) {
        let below = self.lines.get(line).map_or(0, |l| l.below);
        let fits = self
            .fits_below
            .get(&self.fits_key(representative, class))
            .copied()
            .unwrap_or(i64::MAX)
            .min(below);
        let victims = match class > self.lowest.for_ask(own) {
            true => self.victims_below.get(&(*own, class)).copied().unwrap_or(i64::MAX),
            false => 0,
        };
        (fits, victims)
    }

    fn fits_key(&self, representative: &Ask, class: i64) -> (Ask, i64) {
        (*representative, if self.by_class { class } else { 0 })
    }

    /// The next turn of all lines.
    pub(super) fn next(&self) -> Option<Turn> {
        self.order.peek().map(|Reverse((turn, _))| *turn)
    }

    fn queue_line(&mut self, line: usize) {
        let lowest = self.lowest;
        let open = |l: &&BackfillLine| l.shortest < l.below || lowest.for_ask(&l.ask) < i64::MAX;
        let first = self.lines.get(line).filter(open).and_then(|l| l.firsts.peek());
        if let Some(Reverse((turn, _))) = first {
            self.order.push(Reverse((*turn, line)));
        }
    }
}

/// The state of one pool in a pass.
pub(super) struct PoolPass {
    pub(super) pool: u64,
    /// Asks and groups without an estimate of their start: they delay no job behind them.
    pub(super) passed: BTreeSet<(Ask, Group)>,
    /// The number of jobs without a start at once that were tried for a later start.
    pub(super) tried_later: usize,
    /// True if only the order behind the first job changed, and a search in a large cluster continues.
    pub(super) only_searches: bool,
    /// Jobs aside that may start now, or earlier than before.
    pub(super) aside: Vec<JobId>,
    /// The backfill; `None` until the first job that does not fit is found.
    pub(super) backfill: Option<Backfill>,
    /// The version of the order of the waiting jobs, and the first of them, at the begin of the backfill.
    pub(super) order: u64,
    pub(super) first: Option<JobId>,
    /// The longest graces at the begin of the check.
    pub(super) graces_s: Vec<(i64, i64)>,
    pub(super) finished: bool,
    /// True if a held start was dropped or moved after other jobs were tried.
    pub(super) again: bool,
    /// The changes of the cluster and of the calendar at the begin of the check.
    pub(super) began: (u64, u64),
}

/// Begins the backfill of a pool.
pub(super) fn begin(engine: &mut Engine, pass: &mut PoolPass, now: Timestamp, out: &mut Vec<Decision>) {
    let lowest = match preempt::is_searched(engine) {
        true => LowestClasses::new(&engine.preemptible),
        false => LowestClasses::NONE,
    };
    let mut backfill = Backfill {
        fits_below: BTreeMap::new(),
        by_class: engine.holds.iter().any(|(_, h)| h.basis == Basis::Stopped),
        representatives: HashMap::new(),
        victims_below: HashMap::new(),
        lowest,
        lines: Vec::new(),
        order: BinaryHeap::new(),
    };
    if engine.backfill && !pass.only_searches {
        for (ask, below, shortest) in open_asks(engine, pass, lowest, now) {
            let firsts = engine.queue.firsts(&ask, i64::MAX, order::turns(engine, now));
            let least = lowest.for_ask(&ask);
            let firsts = firsts.filter(|(_, group)| below > 0 || group.class > least).map(Reverse);
            backfill.lines.push(BackfillLine { ask, below, full: false, shortest, firsts: firsts.collect() });
        }
        (0..backfill.lines.len()).for_each(|line| backfill.queue_line(line));
    }
    let is_over = backfill.order.is_empty();
    pass.backfill = Some(backfill);
    pass.order = engine.queue.order_version(pass.pool);
    pass.first = engine.queue.head(pass.pool, order::turns(engine, now), &pass.passed).map(|turn| turn.job);
    if is_over && !preempt::is_searched(engine) {
        preempt_for_first(engine, pass, now, out);
    }
}

/// Tries the next job: it starts, preempts or keeps waiting.
pub(super) fn run_next(engine: &mut Engine, pass: &mut PoolPass, now: Timestamp, out: &mut Vec<Decision>) {
    let Some(backfill) = pass.backfill.as_mut() else { return };
    let Some(Reverse((_, index))) = backfill.order.pop() else { return };
    let Some(line) = backfill.lines.get_mut(index) else { return };
    let ask = line.ask;
    if let Some(Reverse((known_turn, group))) = line.firsts.pop() {
        let stopped = out.len();
        let (next, finished) =
            try_next(engine, pass.pool, backfill, index, &ask, (known_turn, group), now, out);
        pass.finished &= finished;
        // Jobs that were tried before may start earlier after a preemption.
        let decided = out.get(stopped..).unwrap_or_default();
        pass.again |= decided.iter().any(|d| matches!(d, Decision::Preempt { .. }));
        if let (Some(turn), Some(line)) = (next, backfill.lines.get_mut(index)) {
            line.firsts.push(Reverse((turn, group)));
        }
    }
    backfill.queue_line(index);
    if backfill.order.is_empty() {
        remember_failures(engine, pass.pool, backfill);
        if !preempt::is_searched(engine) {
            preempt_for_first(engine, pass, now, out);
        }
    }
}

/// Preempts for the first jobs of a pool in a large cluster.
fn preempt_for_first(engine: &mut Engine, pass: &mut PoolPass, now: Timestamp, out: &mut Vec<Decision>) {
    if !engine.backfill {
        return;
    }
    let held = engine.holds.first(pass.pool);
    // For each ask and class the seconds from which on runs find no victims.
    let mut impossible: HashMap<(Ask, i64), i64> = HashMap::new();
    for turn in engine.queue.first_turns(pass.pool, order::turns(engine, now), FIRST_PREEMPTORS) {
        let lowest = LowestClasses::new(&engine.preemptible);
        let Some((key, seconds)) = preemptor_key(engine, turn.job) else { continue };
        if held == Some(turn.job) || key.1 <= lowest.for_ask(&key.0) {
            continue;
        }
        // A longer run with the same ask and a later turn finds no more.
        if impossible.get(&key).is_some_and(|shorter| *shorter <= seconds) {
            continue;
        }
        let search = preempt::for_job(engine, pass.pool, turn.job, None, now, out);
        pass.finished &= search != VictimSearch::Unfinished;
        match search {
            VictimSearch::Found(_) => pass.again = true,
            VictimSearch::Impossible => _ = impossible.insert(key, seconds),
            VictimSearch::Unfinished => {}
        }
    }
}

/// The ask, the class as submitted and the seconds of a waiting job.
fn preemptor_key(engine: &Engine, job: JobId) -> Option<((Ask, i64), i64)> {
    let waiting = engine.jobs.get(&job)?;
    Some(((waiting.ask?, waiting.lane?.group.class), waiting.facts.max_duration_s))
}

/// Records the searches without a place until the state changes.
fn remember_failures(engine: &mut Engine, pool: u64, backfill: &Backfill) {
    let (changes, bookings) = (engine.cluster.changes(), power::bookings_version(engine, pool));
    let none = backfill.lines.iter().filter(|l| l.full).map(|l| (l.ask, 0));
    // A full line holds regardless of bookings. A higher class may find more than the class of a search.
    let none_fits = backfill.fits_below.iter().filter(|_| !backfill.by_class);
    for (ask, seconds) in none_fits.map(|((ask, _), s)| (*ask, (*s).max(1))).chain(none) {
        // The search for a share does not cover the boards that organizations share already. The held start of a replica
        // may have moved since the search of an ask that leaves the reserve.
        if ask == ask.for_anybody() && !engine.burst_reserve.binds(&ask) {
            engine.queue.remember_failure(&ask, FailedSearch { seconds, changes, bookings });
        }
    }
}

/// Starts the first job of a group with this ask if a place is free, or preempts for it. Returns the turn
/// of the group's next job, and true if no search continues.
#[expect(
    clippy::too_many_arguments,
    reason = "the pool, its backfill, the line, the ask, the turn, the time and the decisions"
)]
fn try_next(
    engine: &mut Engine,
    pool: u64,
    backfill: &mut Backfill,
    line: usize,
    ask: &Ask,
    (known_turn, group): (Turn, Group),
    now: Timestamp,
    out: &mut Vec<Decision>,
) -> (Option<Turn>, bool) {
    let Some((first, _)) = engine.queue.first(ask, group, i64::MAX, order::turns(engine, now)) else {
        return (None, true);
    };
    let Some(own) = engine.jobs.get(&first.job).and_then(|w| w.ask) else { return (None, true) };
    let representative = *backfill.representatives.entry(own).or_insert_with(|| representative(engine, &own));
    let (fits, victims) = backfill.bound(line, &own, &representative, group.class);
    let Some((turn, seconds)) = engine.queue.first(ask, group, fits.max(victims), order::turns(engine, now))
    else {
        return (None, true);
    };
    if turn > known_turn {
        // A start of its organization moved it back, or the first job is too long now.
        return (Some(turn), true);
    }
    let excluded = hold::excluded_bookings(engine, turn.job, true, now);
    let mut finished = true;
    let mut started = false;
    if seconds < fits {
        match hold::find_places_at_once(engine, (turn.job, &own, seconds), &excluded, now) {
            Some(places) => {
                decide::start(engine, turn.job, &places, now, out);
                backfill.representatives.clear();
                started = true;
            }
            None => {
                // The cluster only gets fuller in a pass, so this holds for all jobs with this
                // representative.
                let below = longest(engine, &own, seconds, now, &excluded);
                let key = backfill.fits_key(&representative, group.class);
                backfill.fits_below.insert(key, below);
                let by_class = backfill.by_class;
                engine.finder.sync(&engine.cluster, &ask.shape);
                let none = engine.finder.best(&engine.cluster, &ask.shape, &|_| true).is_none();
                if let Some(line) = backfill.lines.get_mut(line) {
                    // An organization with shared boards may find more.
                    let anybody = if own == own.for_anybody() && !by_class { below } else { i64::MAX };
                    line.full = none;
                    line.below = if none { 0 } else { line.below.min(anybody).max(1) };
                }
            }
        }
    }
    if !started && seconds < victims {
        let key = (own, group.class);
        match preempt::for_job(engine, pool, turn.job, None, now, out) {
            VictimSearch::Found(_) => {
                backfill.lowest = LowestClasses::new(&engine.preemptible);
                if !engine.holds.is_aside(turn.job) {
                    finished = false;
                    backfill.victims_below.insert(key, 0);
                }
            }
            VictimSearch::Unfinished => {
                finished = false;
                backfill.victims_below.insert(key, 0);
            }
            VictimSearch::Impossible => {
                let below = longest_with_victims(engine, turn.job, &own, group.class, seconds, now);
                backfill.victims_below.insert(key, below);
            }
        }
    }
    // The group's next job is looked up at its turn.
    let next = engine.queue.first(ask, group, i64::MAX, order::turns(engine, now));
    (next.map(|(turn, _)| turn.max(known_turn)), finished)
}

/// The seconds from which on runs find no place, after a run of `seconds` found none.
fn longest(engine: &mut Engine, ask: &Ask, seconds: i64, now: Timestamp, excluded: &[BookingId]) -> i64 {
    let shorter = begins_within(engine, seconds, now, excluded);
    let fits = |engine: &mut Engine, seconds: i64| {
        let until = run_end(now, seconds);
        let exclusions = Exclusions { bookings: excluded, owners: &[], ..Exclusions::default() };
        place::find_places(engine, ask, now, until, exclusions).is_some()
    };
    first_below(engine, &shorter, fits)
}

/// The seconds from which on runs find no victims, after a run of `seconds` found none.
fn longest_with_victims(
    engine: &mut Engine,
    job: JobId,
    ask: &Ask,
    class: i64,
    seconds: i64,
    now: Timestamp,
) -> i64 {
    let excluded = &hold::excluded_bookings(engine, job, false, now);
    let right = PreemptionRight::new(ask, class);
    let (from, _) = preempt::span_after_grace(engine, None, right, seconds, now);
    let shorter = begins_within(engine, seconds, from, excluded);
    let fits = |engine: &mut Engine, seconds: i64| {
        let span = preempt::span_after_grace(engine, None, right, seconds, now);
        preempt::could_fit(engine, &Preemptor { class, ask: *ask, now, span, excluded })
    };
    first_below(engine, &shorter, fits)
}

/// The seconds after which bookings begin within a run of `seconds`, ascending. All lengths between two
/// of them meet the same bookings.
fn begins_within(engine: &Engine, seconds: i64, now: Timestamp, excluded: &[BookingId]) -> Vec<i64> {
    let booked = engine.calendar.iter().filter(|b| !excluded.contains(&b.id));
    let mut all: Vec<i64> = booked.map(|b| (b.from.micros() - now.micros()) / 1_000_000).collect();
    all.retain(|s| *s > 0 && *s < seconds);
    all.sort_unstable();
    all.dedup();
    all
}

/// The bound from which on runs do not fit, by a binary search in the begins of bookings.
fn first_below(engine: &mut Engine, shorter: &[i64], mut fits: impl FnMut(&mut Engine, i64) -> bool) -> i64 {
    let (mut low, mut high) = (0, shorter.len());
    while low < high {
        let half = (low + high) / 2;
        match shorter.get(half) {
            Some(seconds) if fits(engine, *seconds) => low = half + 1,
            _ => high = half,
        }
    }
    // A run that ends at the begin of the next booking still fits. If no such run fits, no run does.
    match low.checked_sub(1).and_then(|last| shorter.get(last)) {
        Some(longest) => longest + 1,
        None => 0,
    }
}

/// The ask for all asks with the same places: organizations without a shared board on which their ask
/// fits have one representative.
fn representative(engine: &Engine, ask: &Ask) -> Ask {
    if engine.finder.fits_beside_own(&engine.cluster, &ask.shape) {
        return *ask;
    }
    Ask { shape: engine.finder.cache_key(&engine.cluster, &ask.shape), ..*ask }
}

/// The asks that may fit on some node, each with the seconds from which on runs do not fit and the
/// seconds of its shortest run; also asks that do not fit, of classes above the lowest preemptible one.
/// After a search without a place only changed nodes are searched again.
fn open_asks(
    engine: &mut Engine,
    pass: &PoolPass,
    lowest: LowestClasses,
    now: Timestamp,
) -> Vec<(Ask, i64, i64)> {
    let pool = pass.pool;
    let (yielding, stopped) = yielding_holds(engine, pass);
    let (changes, bookings) = (engine.cluster.changes(), power::bookings_version(engine, pool));
    let settled = yielding.is_empty() && stopped.is_empty() && engine.racks.is_empty();
    let reserve = engine.burst_reserve;
    let Engine { cluster, queue, .. } = &mut *engine;
    let mut open = Vec::new();
    for (ask, known) in queue.pool_asks(pool) {
        let mut below = i64::MAX;
        if let Some(failed) = known.failed_search.as_mut() {
            // A board that is free again on a node for inference may complete the reserve.
            let may_help = |node: &NodeIx| {
                let host = cluster.node(*node);
                host.is_some_and(|host| ask.shape.may_fit(host.view(), cluster.models()))
                    || reserve.binds(ask) && Lendable::counts(cluster, *node)
            };
            let changed = cluster.changed_since(failed.changes);
            let same = changed.is_some_and(|nodes| nodes.len() < 64 && !nodes.iter().any(may_help));
            // Without any place bookings do not matter. With power budgets they always do: a job on
            // boards of a booking adds no power after its begin.
            let booked = failed.bookings == bookings && settled;
            if same && (booked || failed.seconds == 0) {
                (failed.changes, below) = (changes, failed.seconds);
            }
        }
        let least = lowest.for_ask(ask);
        let outranks = least < i64::MAX && known.highest_class() > least;
        if known.shortest() < below || outranks {
            open.push((*ask, below, known.shortest(), known.highest_class(), outranks));
        }
    }
    let mut out = Vec::new();
    for (ask, below, shortest, highest, outranks) in open {
        let lower = stopped.iter().filter(|(class, _)| *class < highest).map(|(_, id)| *id);
        let excluded: Vec<BookingId> = yielding.iter().copied().chain(lower).collect();
        let fits = shortest < below && shortest_fits(engine, &ask, shortest, &excluded, now);
        if fits || outranks {
            out.push((ask, if fits { below } else { 0 }, shortest));
        }
    }
    out
}

/// The held starts of a pool that give way: to jobs with earlier turns (`.0`), and to jobs of a class above
/// the given one (`.1`).
fn yielding_holds(engine: &Engine, pass: &PoolPass) -> (Vec<BookingId>, Vec<(i64, BookingId)>) {
    let (mut yielding, mut stopped) = (Vec::new(), Vec::new());
    for (job, held) in engine.holds.iter() {
        match held.basis {
            _ if !hold::meets(engine, held, pass.pool) => {}
            // A job that was passed over has an earlier turn than the first job.
            Basis::First if held.pool == pass.pool && pass.passed.is_empty() => {}
            Basis::First | Basis::Soon => yielding.push(hold_id(job)),
            Basis::Stopped => stopped.extend(order::class(engine, job).map(|class| (class, hold_id(job)))),
        }
    }
    (yielding, stopped)
}

/// Returns true if a run of the shortest length fits; a search without a place is recorded.
fn shortest_fits(
    engine: &mut Engine,
    ask: &Ask,
    shortest: i64,
    excluded: &[BookingId],
    now: Timestamp,
) -> bool {
    let (changes, bookings) = (engine.cluster.changes(), power::bookings_version(engine, ask.shape.models.0));
    engine.finder.sync(&engine.cluster, &ask.shape);
    if engine.finder.best(&engine.cluster, &ask.shape, &|_| true).is_none() {
        engine.queue.remember_failure(ask, FailedSearch { seconds: 0, changes, bookings });
        return false;
    }
    let until = run_end(now, shortest);
    let exclusions = Exclusions { bookings: excluded, owners: &[], ..Exclusions::default() };
    let fits = place::find_places(engine, ask, now, until, exclusions).is_some();
    if !fits {
        engine.queue.remember_failure(ask, FailedSearch { seconds: shortest, changes, bookings });
    }
    fits
}
