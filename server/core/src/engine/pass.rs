//! One look at the queue: who starts, who makes room, who waits in vain.
//!
//! A pass costs what changed. Jobs have their turns over all pools (sets of board models). The first of a
//! pool that does not fit gets a start that is held for it; then others are placed around what is held.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::ops::Bound;

use berth_types::ids::JobId;
use berth_types::jobs::{Condition, DependsOn};
use berth_types::time::Timestamp;

use super::backfill::{Around, FIRST_CLAIMANTS};
use super::facts::{Claim, ClaimBill, ClaimRank};
use super::hold::{Foreseen, hold_id, is_overdue, is_room_late};
use super::preempt::Room;
use super::{Basis, Decision, Engine};
use crate::calendar::{Booking, But, Place};
use crate::cluster::{BookingId, Models, NodeIx, Owner};
use crate::queue::{Group, Turn};
use crate::request::Ask;

/// As often all is looked at in a pass, as long as one decision may follow from another.
const ROUNDS: usize = 8;

/// What of a pool was looked at last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Looked {
    changes: u64,
    queue: u64,
    /// The order of those who wait, as of then, and the first of them. `None` where more than the first
    /// depends on it.
    order: u64,
    first: Option<JobId>,
    bookings: u64,
    /// From then on more may have ended by the time that others need to make room, or a board draws power
    /// anyway.
    until: Timestamp,
    /// The longest graces as of when the look began.
    graces_s: Vec<(i64, i64)>,
    /// No search goes on in the next pass.
    pub(super) finished: bool,
}

/// One pool in a pass.
pub(super) struct PoolPass {
    pub(super) pool: u64,
    /// Those of whom no start can be foreseen: they take nothing away from those behind them.
    pub(super) passed: BTreeSet<(Ask, Group)>,
    /// How many got no start at once, and were looked at for a later one.
    pub(super) looked_ahead: usize,
    /// Nothing changed but the order behind the first, and a search goes on in a large cluster.
    pub(super) searches: bool,
    /// Jobs of the pool that wait for a held start outside its line, and may start now or sooner.
    pub(super) aside: Vec<JobId>,
    /// `None` as long as the first that does not fit is looked for.
    pub(super) around: Option<Around>,
    /// The order of those who wait, and the first of them, when the first that does not fit was found.
    pub(super) order: u64,
    pub(super) first: Option<JobId>,
    /// The longest graces as of when the look began.
    graces_s: Vec<(i64, i64)>,
    pub(super) finished: bool,
    /// A promise was given back after others were looked at.
    pub(super) again: bool,
}

impl Engine {
    /// Decides, and takes every decision as done.
    pub fn pass(&mut self, now: Timestamp) -> Vec<Decision> {
        let mut out = Vec::new();
        self.forget_started();
        self.renew_looks();
        self.put_possible_back();
        self.calendar.forget_until(now);
        self.orphans(&mut out);
        self.restore_rooms(now);
        self.look_inside_all(now, &mut out);
        let waiting: BTreeSet<u64> = self.queue.pools().into_iter().collect();
        self.memory.looked.retain(|pool, _| waiting.contains(pool));
        for round in 0..ROUNDS {
            let open = |pool: &u64| !self.is_settled(*pool, now) && (round == 0 || self.is_finished(*pool));
            let pools: Vec<u64> = self.pools().into_iter().filter(open).collect();
            if pools.is_empty() {
                break;
            }
            self.look_at(&pools, now, &mut out);
        }
        out
    }

    /// The sets of models that somebody waits for.
    fn pools(&self) -> BTreeSet<u64> {
        let held = self.holds.values().map(|h| h.pool);
        self.queue.pools().into_iter().chain(held).collect()
    }

    /// Whether a search goes on in the next pass, which should follow soon.
    pub fn unfinished(&self) -> bool {
        self.memory.looked.values().any(|l| !l.finished)
    }

    fn is_finished(&self, pool: u64) -> bool {
        self.memory.looked.get(&pool).is_none_or(|l| l.finished)
    }

    /// Looks at pools, everybody in their turn.
    fn look_at(&mut self, pools: &[u64], now: Timestamp, out: &mut Vec<Decision>) {
        let mut order: BinaryHeap<Reverse<(Turn, usize)>> = BinaryHeap::new();
        let mut passes: Vec<PoolPass> = Vec::new();
        self.drop_unfed_holds(now);
        for (index, pool) in pools.iter().enumerate() {
            self.drop_vain_hold(*pool, now);
            let searches = !self.is_searched() && self.is_unchanged(*pool, now);
            let mut aside = self.aside(*pool);
            aside.retain(|job| !searches || self.is_searching(&[*job]) || self.meets_others(*job, now));
            let pass = PoolPass {
                pool: *pool,
                passed: BTreeSet::new(),
                looked_ahead: 0,
                searches,
                aside,
                around: None,
                order: self.queue.order_version(*pool),
                first: None,
                graces_s: self.graces_s(None),
                finished: true,
                again: false,
            };
            match self.next(&pass, now) {
                Some(turn) => order.push(Reverse((turn, index))),
                None => self.looked(&pass, now),
            }
            passes.push(pass);
        }
        while let Some(Reverse((seen, index))) = order.pop() {
            let Some(pass) = passes.get_mut(index) else { continue };
            // What its organization got meanwhile may have put it behind others.
            if let Some(turn) = self.next(pass, now).filter(|turn| *turn > seen) {
                order.push(Reverse((turn, index)));
                continue;
            }
            self.step(pass, seen, now, out);
            self.enter_if_all_passed(pass, now, out);
            match self.next(pass, now) {
                Some(turn) => order.push(Reverse((turn.max(seen), index))),
                None => self.looked(pass, now),
            }
        }
    }

    /// Nothing is held for who may not start: others of its organization hold as much as they may.
    fn drop_vain_hold(&mut self, pool: u64, now: Timestamp) {
        if let Some(job) = self.vain_hold(pool, now) {
            self.drop_hold(job);
        }
    }

    /// The job of a pool for which a start is held, if its organization's limits keep it back now.
    fn vain_hold(&self, pool: u64, now: Timestamp) -> Option<JobId> {
        let job = self.first_held(pool)?;
        let wants = self.jobs.get(&job).and_then(|w| Some((w.lane?, w.ask?)));
        let admitted = wants.is_some_and(|(lane, ask)| self.turns(now).admits(lane.group, &ask));
        (!admitted).then_some(job)
    }

    /// Whose turn is next in a pool.
    fn next(&self, pass: &PoolPass, now: Timestamp) -> Option<Turn> {
        self.next_aside(pass, now).into_iter().chain(self.next_in_line(pass, now)).min()
    }

    /// The next turn in the line of a pool.
    fn next_in_line(&self, pass: &PoolPass, now: Timestamp) -> Option<Turn> {
        match &pass.around {
            Some(around) => around.next(),
            None => self.queue.head(pass.pool, self.turns(now), &pass.passed),
        }
    }

    /// The next turn of those who wait outside the line of a pool. A job whose room is late is the first of its class.
    fn next_aside(&self, pass: &PoolPass, now: Timestamp) -> Option<Turn> {
        let is_late = |h: &super::Held| is_overdue(h.basis, h.due, now);
        let first = |turn| Turn { share: 0, queued_at: Timestamp::from_micros(i64::MIN), ..turn };
        let turns = pass.aside.iter().filter_map(|job| Some((job, self.turn(*job, now)?)));
        turns
            .map(|(job, turn)| if self.holds.get(job).is_some_and(is_late) { first(turn) } else { turn })
            .min()
    }

    /// Remembers what was looked at. Nobody is held a start who is not in the queue any more.
    fn looked(&mut self, pass: &PoolPass, now: Timestamp) {
        if pass.around.is_none()
            && let Some(job) = self.first_held(pass.pool)
        {
            self.drop_hold(job);
        }
        // A start in this pass may have used up the limits of the organization that the held start is for.
        if pass.again || self.vain_hold(pass.pool, now).is_some() {
            self.memory.looked.remove(&pass.pool);
            return;
        }
        // A start meanwhile may have changed turns. In a large cluster only another first counts at once.
        let (order, first) = match self.is_searched() {
            true => (pass.order, self.first_alone(pass)),
            false => (self.queue.order_version(pass.pool), self.head(pass.pool, now)),
        };
        let looked = Looked {
            changes: self.cluster.changes(),
            queue: self.queue.version(pass.pool),
            order,
            first,
            bookings: self.bookings_version(pass.pool),
            until: self.next_within_grace(None, now).min(self.next_power_begin(now)),
            graces_s: pass.graces_s.clone(),
            finished: pass.finished,
        };
        self.memory.looked.insert(pass.pool, looked);
    }

    /// The first of a pool, when all others stay where they are whatever their order is.
    fn first_alone(&self, pass: &PoolPass) -> Option<JobId> {
        let mut met = self.holds.values().filter(|h| self.meets(h, pass.pool));
        let own = |h: &super::Held| h.pool == pass.pool && h.basis == Basis::First;
        let one = met.next().is_none_or(own) && met.next().is_none();
        pass.first.filter(|_| one && pass.passed.is_empty())
    }

    /// The first of a pool, also one that is passed over.
    fn head(&self, pool: u64, now: Timestamp) -> Option<JobId> {
        self.queue.head(pool, self.turns(now), &BTreeSet::new()).map(|turn| turn.job)
    }

    /// True if a new order of the waiting jobs changes nothing: a job that found no place finds none in another turn.
    fn is_order_settled(&self, pool: u64, looked: &Looked, now: Timestamp) -> bool {
        self.queue.order_version(pool) == looked.order
            || looked.first.is_some_and(|first| self.head(pool, now) == Some(first))
    }

    fn step(&mut self, pass: &mut PoolPass, seen: Turn, now: Timestamp, out: &mut Vec<Decision>) {
        let line = self.next_in_line(pass, now);
        let aside = self.next_aside(pass, now).filter(|turn| *turn <= seen);
        let aside = aside.filter(|turn| line.is_none_or(|line| *turn <= line));
        match (aside, pass.around.is_some()) {
            (Some(turn), _) => {
                pass.aside.retain(|job| *job != turn.job);
                let begins = |engine: &Self| engine.holds.get(&turn.job).map(|held| held.at);
                let before = begins(self);
                self.start_aside(pass.pool, turn.job, now, out);
                pass.finished &= !self.is_searching(&[turn.job]);
                // Starts that are held behind a room that is late begin later.
                pass.again |= !self.is_aside(turn.job) || begins(self) > before;
            }
            (None, true) => self.fill(pass, now, out),
            (None, false) => self.lead(pass, now, out),
        }
    }

    /// True if nothing happened that could let a job of a pool start, but for another order behind the first job
    /// of a large cluster.
    fn is_settled(&self, pool: u64, now: Timestamp) -> bool {
        self.is_finished(pool) && self.is_unchanged(pool, now)
    }

    /// The same, while a search goes on.
    fn is_unchanged(&self, pool: u64, now: Timestamp) -> bool {
        let Some(looked) = self.memory.looked.get(&pool) else { return false };
        let unchanged = self.cluster.changed_since(looked.changes).is_some_and(|nodes| {
            nodes.len() < 256 && !nodes.iter().any(|node| self.is_of(*node, Models(pool)))
        });
        let due = self.holds.values().any(|h| h.pool == pool && h.at <= now);
        unchanged
            && !due
            && now < looked.until
            && self.graces_s(None) == looked.graces_s
            && self.queue.version(pool) == looked.queue
            && self.is_order_settled(pool, looked, now)
            && self.bookings_version(pool) == looked.bookings
    }

    /// Grows with every booking that a pool may meet: where racks have budgets, any.
    pub(super) fn bookings_version(&self, pool: u64) -> u64 {
        if self.racks.is_empty() {
            self.calendar.version(Models(pool))
        } else {
            self.calendar.total_version()
        }
    }

    /// What must have ended after a time, the first first.
    pub(super) fn ends_after(&self, at: Timestamp) -> impl Iterator<Item = (Timestamp, Owner)> {
        let after = (at, Owner { job: JobId::from_uuid(uuid::Uuid::max()), attempt: u32::MAX });
        self.ends.range((Bound::Excluded(after), Bound::Unbounded)).copied()
    }

    /// When something next ends within the grace of those who may be told to make room.
    pub(super) fn next_within_grace(&self, inside: Option<BookingId>, now: Timestamp) -> Timestamp {
        let mut graces_s: Vec<i64> = self.graces_s(inside).into_iter().map(|(_, grace_s)| grace_s).collect();
        graces_s.dedup();
        let next = graces_s.into_iter().filter_map(|grace_s| {
            let soon = self.ends(now, grace_s);
            let ends = self.ends_after(soon).map(|(end, _)| end).next();
            let booked = self.calendar.iter().map(|b| b.until).filter(|end| *end > soon).min();
            Some(ends.into_iter().chain(booked).min()?.plus_seconds(-grace_s))
        });
        next.min().unwrap_or(Timestamp::from_micros(i64::MAX))
    }

    /// Whether a node has a board of one of these models.
    pub(super) fn is_of(&self, node: NodeIx, models: Models) -> bool {
        let Some(of) = self.cluster.node(node) else { return false };
        (0..of.facts.gpus.len()).any(|index| models.has(of.model_ix(index)))
    }

    fn orphans(&mut self, out: &mut Vec<Decision>) {
        let mut lost = Vec::new();
        for (on, waiting) in &self.dependents {
            if self.outcomes.get(on) != Some(&false) {
                continue;
            }
            for job in waiting {
                let Some(waiting) = self.jobs.get(job) else { continue };
                let in_vain = |d: &DependsOn| d.job == *on && d.condition == Condition::Succeeded;
                if waiting.facts.depends_on.iter().any(in_vain) {
                    lost.push((*job, waiting.facts.generation, *on));
                }
            }
        }
        lost.sort_unstable();
        lost.dedup_by_key(|(job, ..)| *job);
        for (job, generation, on) in lost {
            self.remove_job(job);
            out.push(Decision::Orphan { job, generation, on });
        }
    }

    /// Starts the first of a pool, or holds a start for it. Who has none to hold is passed over.
    fn lead(&mut self, pass: &mut PoolPass, now: Timestamp, out: &mut Vec<Decision>) {
        // A start in this pass may have used up the limits of the organization that the held start is for.
        self.drop_vain_hold(pass.pool, now);
        let Some(head) = self.queue.head(pass.pool, self.turns(now), &pass.passed) else { return };
        let Some((lane, ask, seconds)) = self
            .jobs
            .get(&head.job)
            .and_then(|waiting| Some((waiting.lane?, waiting.ask?, waiting.facts.max_duration_s)))
        else {
            return;
        };
        let but = self.no_obstacles(head.job, true, now);
        let but = But { bookings: &but, owners: &[], away: false };
        if let Some(places) = self.place(&ask, now, self.ends(now, seconds), but) {
            self.start(head.job, &places, now, out);
            return;
        }
        if !self.is_possible(&ask) {
            self.set_aside(head.job);
            self.impossible.insert(head.job);
            return;
        }
        let before = self.first_held(pass.pool).filter(|job| *job != head.job);
        let foreseen = self.hold(pass.pool, head.job, Basis::First, now);
        let starts = match foreseen {
            Foreseen::At(at) => Some(at),
            _ => None,
        };
        let room = self.make_room(pass.pool, head.job, starts, now, out);
        pass.finished &= foreseen != Foreseen::NotYet && room != Room::NotYet;
        let searching = self.is_searching(&[head.job]);
        pass.finished &= !searching;
        if self.is_aside(head.job) {
            return;
        }
        pass.looked_ahead += 1;
        let goes_on = self.is_searched() || pass.looked_ahead < FIRST_CLAIMANTS;
        if goes_on && foreseen == Foreseen::Never && !matches!(room, Room::Without(_)) {
            pass.passed.insert((ask.for_anybody(), lane.group));
            return;
        }
        if let Some(before) = before {
            self.drop_hold(before);
        }
        self.enter(pass, now, out);
    }

    /// Of those who were passed over, shorter runs may fit.
    fn enter_if_all_passed(&mut self, pass: &mut PoolPass, now: Timestamp, out: &mut Vec<Decision>) {
        let all = !pass.passed.is_empty()
            && pass.around.is_none()
            && self.queue.head(pass.pool, self.turns(now), &pass.passed).is_none();
        if all {
            if let Some(job) = self.first_held(pass.pool) {
                self.drop_hold(job);
            }
            self.enter(pass, now, out);
        }
    }

    /// Starts a job that waits outside its line, on the boards that are held for it or on any others. What is
    /// late is waited for a little longer.
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
        let bookings = self.no_obstacles(job, true, now);
        let but = But { bookings: &bookings, owners: &[], away: false };
        let until = self.ends(now, seconds);
        let held = self.calendar.get(hold_id(job)).map(|b| Booking { from: now, until, ..b.clone() });
        let places = match held.filter(|b| self.is_free_throughout(b, &ask, now, but)) {
            Some(held) => Some(held.places),
            None => self.place(&ask, now, until, but),
        };
        if let Some(places) = places {
            return self.start(job, &places, now, out);
        }
        let Some(held) = self.holds.get(&job) else { return };
        let (basis, before, due) = (held.basis, held.at, held.due);
        match self.hold(pool, job, basis, now) {
            Foreseen::At(at) if at <= before || is_room_late(basis, due, at, now) => {}
            // What it waited for is late: it may ask others for room again.
            _ => self.drop_hold(job),
        }
    }

    pub(super) fn start(&mut self, job: JobId, places: &[Place], now: Timestamp, out: &mut Vec<Decision>) {
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
            ends_by: Some(self.ends(now, facts.max_duration_s)),
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
