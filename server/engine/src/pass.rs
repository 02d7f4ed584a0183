//! One pass over the queue: starts, preemptions and orphaned jobs.
//!
//! The time of a pass depends on the number of changes. Jobs have their turns over all pools (sets of board
//! models). The first job of a pool that does not fit gets a held start. Then other jobs backfill around the
//! held starts.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::ops::Bound;

use berth_types::ids::JobId;
use berth_types::jobs::{Condition, DependsOn};
use berth_types::time::Timestamp;

use super::backfill::{FIRST_PREEMPTORS, PoolPass};
use super::facts::{Claim, ClaimBill, ClaimRank};
use super::hold::{StartEstimate, hold_id, is_late_by_victim, is_overdue};
use super::preempt::VictimSearch;
use super::{Basis, Decision, Engine};
use crate::queue::Turn;
use berth_placement::calendar::{Booking, Exclusions, NodeSlots};
use berth_placement::cluster::{BookingId, Models, NodeIx, Owner};

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
        self.forget_started();
        self.reset_search_budget();
        self.put_possible_back();
        self.calendar.forget_until(now);
        self.orphans(&mut out);
        self.restore_firm_holds(now);
        self.run_inside_all(now, &mut out);
        let waiting: BTreeSet<u64> = self.queue.pools().into_iter().collect();
        self.caches.pool_checks.retain(|pool, _| waiting.contains(pool));
        for round in 0..ROUNDS {
            let open = |pool: &u64| !self.is_settled(*pool, now) && (round == 0 || self.is_finished(*pool));
            let pools: Vec<u64> = self.pools().into_iter().filter(open).collect();
            if pools.is_empty() {
                break;
            }
            self.run_pools(&pools, now, &mut out);
        }
        out
    }

    /// The pools with waiting jobs or held starts.
    fn pools(&self) -> BTreeSet<u64> {
        let held = self.holds.values().map(|h| h.pool);
        self.queue.pools().into_iter().chain(held).collect()
    }

    /// Returns true if a search continues in the next pass, which should follow soon.
    pub fn is_unfinished(&self) -> bool {
        self.caches.pool_checks.values().any(|l| !l.finished)
    }

    fn is_finished(&self, pool: u64) -> bool {
        self.caches.pool_checks.get(&pool).is_none_or(|l| l.finished)
    }

    /// Tries the jobs of some pools, in the order of their turns over all these pools.
    fn run_pools(&mut self, pools: &[u64], now: Timestamp, out: &mut Vec<Decision>) {
        let mut order: BinaryHeap<Reverse<(Turn, usize)>> = BinaryHeap::new();
        let mut passes: Vec<PoolPass> = Vec::new();
        self.drop_unpowered_holds(now);
        for (index, pool) in pools.iter().enumerate() {
            self.drop_limited_hold(*pool, now);
            let only_searches = !self.is_searched() && self.is_unchanged(*pool, now);
            let mut aside = self.aside(*pool);
            aside.retain(|job| !only_searches || self.is_searching(&[*job]) || self.meets_others(*job, now));
            let pass = PoolPass {
                pool: *pool,
                passed: BTreeSet::new(),
                tried_later: 0,
                only_searches,
                aside,
                backfill: None,
                order: self.queue.order_version(*pool),
                first: None,
                graces_s: self.graces_s(None),
                finished: true,
                again: false,
            };
            match self.next(&pass, now) {
                Some(turn) => order.push(Reverse((turn, index))),
                None => self.remember_check(&pass, now),
            }
            passes.push(pass);
        }
        while let Some(Reverse((known_turn, index))) = order.pop() {
            let Some(pass) = passes.get_mut(index) else { continue };
            // A start of the same organization may have moved the job behind others.
            if let Some(turn) = self.next(pass, now).filter(|turn| *turn > known_turn) {
                order.push(Reverse((turn, index)));
                continue;
            }
            self.step(pass, known_turn, now, out);
            self.backfill_if_all_passed(pass, now, out);
            match self.next(pass, now) {
                Some(turn) => order.push(Reverse((turn.max(known_turn), index))),
                None => self.remember_check(pass, now),
            }
        }
    }

    /// Drops the held start of a pool's first job if its organization is at a limit.
    fn drop_limited_hold(&mut self, pool: u64, now: Timestamp) {
        if let Some(job) = self.find_limited_hold(pool, now) {
            self.drop_hold(job);
        }
    }

    /// The job with the first held start of a pool, if the limits of its organization do not admit it now.
    fn find_limited_hold(&self, pool: u64, now: Timestamp) -> Option<JobId> {
        let job = self.first_held(pool)?;
        let request = self.jobs.get(&job).and_then(|w| Some((w.lane?, w.ask?)));
        let admitted = request.is_some_and(|(lane, ask)| self.turns(now).admits(lane.group, &ask));
        (!admitted).then_some(job)
    }

    /// The next turn in a pool.
    fn next(&self, pass: &PoolPass, now: Timestamp) -> Option<Turn> {
        self.next_aside(pass, now).into_iter().chain(self.next_in_line(pass, now)).min()
    }

    /// The next turn in the line of a pool.
    fn next_in_line(&self, pass: &PoolPass, now: Timestamp) -> Option<Turn> {
        match &pass.backfill {
            Some(backfill) => backfill.next(),
            None => self.queue.head(pass.pool, self.turns(now), &pass.passed),
        }
    }

    /// The next turn of a pool's jobs aside. A job with a late victim is the first of its class.
    fn next_aside(&self, pass: &PoolPass, now: Timestamp) -> Option<Turn> {
        let is_late = |h: &super::HeldStart| is_overdue(h.basis, h.due, now);
        let first = |turn| Turn { share: 0, queued_at: Timestamp::from_micros(i64::MIN), ..turn };
        let turns = pass.aside.iter().filter_map(|job| Some((job, self.turn(*job, now)?)));
        turns
            .map(|(job, turn)| if self.holds.get(job).is_some_and(is_late) { first(turn) } else { turn })
            .min()
    }

    /// Records the check of a pool. A first held start is dropped if its job has left the queue.
    fn remember_check(&mut self, pass: &PoolPass, now: Timestamp) {
        if pass.backfill.is_none()
            && let Some(job) = self.first_held(pass.pool)
        {
            self.drop_hold(job);
        }
        // A start of this pass may have used up a limit of the held start's organization.
        if pass.again || self.find_limited_hold(pass.pool, now).is_some() {
            self.caches.pool_checks.remove(&pass.pool);
            return;
        }
        // A start of this pass may have changed turns. In a large cluster only another first job counts at
        // once.
        let (order, first) = match self.is_searched() {
            true => (pass.order, self.first_alone(pass)),
            false => (self.queue.order_version(pass.pool), self.head(pass.pool, now)),
        };
        let check = PoolCheck {
            changes: self.cluster.changes(),
            queue: self.queue.version(pass.pool),
            order,
            first,
            bookings: self.bookings_version(pass.pool),
            until: self.next_within_grace(None, now).min(self.next_power_begin(now)),
            graces_s: pass.graces_s.clone(),
            finished: pass.finished,
        };
        self.caches.pool_checks.insert(pass.pool, check);
    }

    /// The first job of a pool, if the order of the other jobs changes no held start.
    fn first_alone(&self, pass: &PoolPass) -> Option<JobId> {
        let mut met = self.holds.values().filter(|h| self.meets(h, pass.pool));
        let own = |h: &super::HeldStart| h.pool == pass.pool && h.basis == Basis::First;
        let one = met.next().is_none_or(own) && met.next().is_none();
        pass.first.filter(|_| one && pass.passed.is_empty())
    }

    /// The first job of a pool, which may be one that is passed over.
    fn head(&self, pool: u64, now: Timestamp) -> Option<JobId> {
        self.queue.head(pool, self.turns(now), &BTreeSet::new()).map(|turn| turn.job)
    }

    /// True if a new order of the waiting jobs changes nothing: a job without a place finds none in another
    /// turn either.
    fn is_order_settled(&self, pool: u64, check: &PoolCheck, now: Timestamp) -> bool {
        self.queue.order_version(pool) == check.order
            || check.first.is_some_and(|first| self.head(pool, now) == Some(first))
    }

    fn step(&mut self, pass: &mut PoolPass, known_turn: Turn, now: Timestamp, out: &mut Vec<Decision>) {
        let line = self.next_in_line(pass, now);
        let aside = self.next_aside(pass, now).filter(|turn| *turn <= known_turn);
        let aside = aside.filter(|turn| line.is_none_or(|line| *turn <= line));
        match (aside, pass.backfill.is_some()) {
            (Some(turn), _) => {
                pass.aside.retain(|job| *job != turn.job);
                let begins = |engine: &Self| engine.holds.get(&turn.job).map(|held| held.at);
                let before = begins(self);
                self.start_aside(pass.pool, turn.job, now, out);
                pass.finished &= !self.is_searching(&[turn.job]);
                // Held starts behind it begin later or sooner with it.
                pass.again |= !self.is_aside(turn.job) || begins(self) != before;
            }
            (None, true) => self.backfill_next(pass, now, out),
            (None, false) => self.start_or_hold_first(pass, now, out),
        }
    }

    /// True if no change could let a job of a pool start. In a large cluster a change of the order behind the
    /// first job does not count.
    fn is_settled(&self, pool: u64, now: Timestamp) -> bool {
        self.is_finished(pool) && self.is_unchanged(pool, now)
    }

    /// The same for a pool whose search may continue.
    fn is_unchanged(&self, pool: u64, now: Timestamp) -> bool {
        let Some(check) = self.caches.pool_checks.get(&pool) else { return false };
        let unchanged = self.cluster.changed_since(check.changes).is_some_and(|nodes| {
            nodes.len() < 256 && !nodes.iter().any(|node| self.is_of(*node, Models(pool)))
        });
        let due = self.holds.values().any(|h| h.pool == pool && h.at <= now);
        unchanged
            && !due
            && now < check.until
            && self.graces_s(None) == check.graces_s
            && self.queue.version(pool) == check.queue
            && self.is_order_settled(pool, check, now)
            && self.bookings_version(pool) == check.bookings
    }

    /// A number that grows with each change of bookings that affects a pool. If racks have budgets, every
    /// booking does.
    pub(super) fn bookings_version(&self, pool: u64) -> u64 {
        if self.racks.is_empty() {
            self.calendar.version(Models(pool))
        } else {
            self.calendar.total_version()
        }
    }

    /// The latest ends of attempts after a time, in order.
    pub(super) fn ends_after(&self, at: Timestamp) -> impl Iterator<Item = (Timestamp, Owner)> {
        let after = (at, Owner { job: JobId::from_uuid(uuid::Uuid::max()), attempt: u32::MAX });
        self.ends.range((Bound::Excluded(after), Bound::Unbounded)).copied()
    }

    /// The next time at which an end of a run or booking comes within a grace of preemptible runs.
    pub(super) fn next_within_grace(&self, inside: Option<BookingId>, now: Timestamp) -> Timestamp {
        let mut graces_s: Vec<i64> = self.graces_s(inside).into_iter().map(|(_, grace_s)| grace_s).collect();
        graces_s.dedup();
        let next = graces_s.into_iter().filter_map(|grace_s| {
            let soon = self.run_end(now, grace_s);
            let ends = self.ends_after(soon).map(|(end, _)| end).next();
            let booked = self.calendar.iter().map(|b| b.until).filter(|end| *end > soon).min();
            Some(ends.into_iter().chain(booked).min()?.plus_seconds(-grace_s))
        });
        next.min().unwrap_or(Timestamp::from_micros(i64::MAX))
    }

    /// Returns true if a node has a board of one of these models.
    pub(super) fn is_of(&self, node: NodeIx, models: Models) -> bool {
        let Some(node) = self.cluster.node(node) else { return false };
        (0..node.facts.gpus.len()).any(|index| models.has(node.model_ix(index)))
    }

    /// Removes the jobs that depend on the success of a job without success.
    fn orphans(&mut self, out: &mut Vec<Decision>) {
        let mut orphaned = Vec::new();
        for (on, waiting) in &self.dependents {
            if self.outcomes.get(on) != Some(&false) {
                continue;
            }
            for job in waiting {
                let Some(waiting) = self.jobs.get(job) else { continue };
                let is_unmet = |d: &DependsOn| d.job == *on && d.condition == Condition::Succeeded;
                if waiting.facts.depends_on.iter().any(is_unmet) {
                    orphaned.push((*job, waiting.facts.generation, *on));
                }
            }
        }
        orphaned.sort_unstable();
        orphaned.dedup_by_key(|(job, ..)| *job);
        for (job, generation, on) in orphaned {
            self.remove_job(job);
            out.push(Decision::Orphan { job, generation, on });
        }
    }

    /// Starts the first job of a pool or holds a start for it. A job without an estimate of its start is
    /// passed over.
    fn start_or_hold_first(&mut self, pass: &mut PoolPass, now: Timestamp, out: &mut Vec<Decision>) {
        // A start of this pass may have used up a limit of the held start's organization.
        self.drop_limited_hold(pass.pool, now);
        let Some(head) = self.queue.head(pass.pool, self.turns(now), &pass.passed) else { return };
        let Some((lane, ask, seconds)) = self
            .jobs
            .get(&head.job)
            .and_then(|waiting| Some((waiting.lane?, waiting.ask?, waiting.facts.max_duration_s)))
        else {
            return;
        };
        let excluded = self.excluded_bookings(head.job, true, now);
        let excluded = Exclusions { bookings: &excluded, owners: &[], ..Exclusions::default() };
        if let Some(places) = self.find_places(&ask, now, self.run_end(now, seconds), excluded) {
            self.start(head.job, &places, now, out);
            return;
        }
        if !self.is_possible(&ask) {
            self.set_aside(head.job);
            self.impossible.insert(head.job);
            return;
        }
        let before = self.first_held(pass.pool).filter(|job| *job != head.job);
        let estimate = self.hold(pass.pool, head.job, Basis::First, now);
        let starts = match estimate {
            StartEstimate::At(at) => Some(at),
            _ => None,
        };
        let search = self.preempt_for(pass.pool, head.job, starts, now, out);
        pass.finished &= estimate != StartEstimate::Unfinished && search != VictimSearch::Unfinished;
        let searching = self.is_searching(&[head.job]);
        pass.finished &= !searching;
        if self.is_aside(head.job) {
            return;
        }
        pass.tried_later += 1;
        let may_pass_over = self.is_searched() || pass.tried_later < FIRST_PREEMPTORS;
        if may_pass_over && estimate == StartEstimate::Unknown && !matches!(search, VictimSearch::Found(_)) {
            pass.passed.insert((ask.for_anybody(), lane.group));
            return;
        }
        if let Some(before) = before {
            self.drop_hold(before);
        }
        self.begin_backfill(pass, now, out);
    }

    /// Begins the backfill if all jobs are passed over: shorter runs of them may fit.
    fn backfill_if_all_passed(&mut self, pass: &mut PoolPass, now: Timestamp, out: &mut Vec<Decision>) {
        let all = !pass.passed.is_empty()
            && pass.backfill.is_none()
            && self.queue.head(pass.pool, self.turns(now), &pass.passed).is_none();
        if all {
            if let Some(job) = self.first_held(pass.pool) {
                self.drop_hold(job);
            }
            self.begin_backfill(pass, now, out);
        }
    }

    /// Starts a job aside, on its held boards or on any others. A late victim extends its held start for a
    /// while.
    fn start_aside(&mut self, pool: u64, job: JobId, now: Timestamp, out: &mut Vec<Decision>) {
        let Some((lane, ask, seconds)) = self
            .jobs
            .get(&job)
            .and_then(|waiting| Some((waiting.lane?, waiting.ask?, waiting.facts.max_duration_s)))
        else {
            return;
        };
        if !self.turns(now).admits(lane.group, &ask) {
            return self.drop_hold(job);
        }
        let bookings = self.excluded_bookings(job, true, now);
        let excluded = Exclusions { bookings: &bookings, owners: &[], ..Exclusions::default() };
        let until = self.run_end(now, seconds);
        let held = self.calendar.get(hold_id(job)).map(|b| Booking { from: now, until, ..b.clone() });
        let places = match held.filter(|b| self.is_free_for(b, &ask, now, excluded)) {
            Some(held) => Some(held.places),
            None => self.find_places(&ask, now, until, excluded),
        };
        if let Some(places) = places {
            return self.start(job, &places, now, out);
        }
        let Some(held) = self.holds.get(&job) else { return };
        let (basis, before, due) = (held.basis, held.at, held.due);
        match self.hold(pool, job, basis, now) {
            StartEstimate::At(at) if at <= before || is_late_by_victim(basis, due, at, now) => {}
            // The expected end is late: the job returns to its line and may preempt again.
            _ => self.drop_hold(job),
        }
    }

    /// Starts a job on these places: adds the decision, and replaces the waiting job by a claim.
    pub(super) fn start(
        &mut self,
        job: JobId,
        places: &[NodeSlots],
        now: Timestamp,
        out: &mut Vec<Decision>,
    ) {
        let Some(waiting) = self.jobs.get(&job) else { return };
        let Some(ask) = waiting.ask else { return };
        let facts = waiting.facts.clone();
        let attempt = facts.attempt.saturating_add(1);
        let ranks: Vec<ClaimRank> = places
            .iter()
            .filter_map(|place| {
                Some(ClaimRank {
                    node: self.node_id(place.node)?,
                    slots: place.slots.clone(),
                    cpu_milli: ask.shape.cpu_milli,
                    memory_mib: ask.shape.memory_mib,
                })
            })
            .collect();
        out.push(Decision::Start {
            job,
            generation: facts.generation,
            attempt,
            ranks: ranks.iter().map(|r| (r.node, r.slots.clone())).collect(),
        });
        self.remove_job(job);
        let claim = Claim {
            owner: Owner { job, attempt },
            org: facts.org,
            ranks,
            milli: self.milli(&ask),
            since: now,
            ends_by: Some(self.run_end(now, facts.max_duration_s)),
            priority: facts.priority,
            stops: false,
            stopped_for: None,
            requeues: false,
            models: facts.request.models.clone(),
            preemptible: facts.preemptible.then_some(facts.grace_s),
            saved_at: None,
            inside: facts.inside,
            bill: ClaimBill {
                offering: facts.request.offering.clone(),
                devices_milli: ask.need(&self.cluster).devices_milli,
                nano_per_second: facts.request.nano_per_second,
            },
        };
        self.started.insert(claim.owner);
        self.put_claim(claim, now);
    }
}
