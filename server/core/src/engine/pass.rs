//! One look at the queue: who starts, who makes room, who waits in vain.
//!
//! A pass costs what changed. For each pool (a set of board models) the first in line is placed, or a
//! start is held for it; then others are placed around what is held.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use berth_types::ids::JobId;
use berth_types::time::Timestamp;

use super::facts::{Claim, ClaimRank};
use super::{Condition, Decision, Engine};
use crate::calendar::Place;
use crate::cluster::Owner;
use crate::queue::{Lane, Turn, turn};
use crate::request::Ask;

impl Engine {
    /// Decides, and takes every decision as done.
    pub fn pass(&mut self, now: Timestamp) -> Vec<Decision> {
        let mut out = Vec::new();
        self.orphans(&mut out);
        self.inside_bookings(now, &mut out);
        let mut pools: Vec<(Turn, u64)> = self
            .queue
            .pools()
            .into_iter()
            .filter_map(|pool| Some((self.queue.head(pool, &self.shares, now)?, pool)))
            .collect();
        pools.sort_unstable();
        for (_, pool) in pools {
            self.heads(pool, now, &mut out);
            self.backfill(pool, now, &mut out);
        }
        out
    }

    fn orphans(&mut self, out: &mut Vec<Decision>) {
        let mut lost = Vec::new();
        for (on, waiting) in &self.dependents {
            if self.outcomes.get(on) != Some(&false) {
                continue;
            }
            for job in waiting {
                let Some(waiting) = self.jobs.get(job) else { continue };
                let in_vain = |d: &super::Dependency| d.job == *on && d.condition == Condition::Succeeded;
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

    /// Starts the first of a pool for as long as they fit; the one that does not gets a start held.
    fn heads(&mut self, pool: u64, now: Timestamp, out: &mut Vec<Decision>) {
        while let Some(head) = self.queue.head(pool, &self.shares, now) {
            let own = self.holds.get(&pool).filter(|h| h.job == head.job).map(|h| h.booking);
            if own.is_none() {
                self.drop_hold(pool);
            }
            let Some(waiting) = self.jobs.get(&head.job) else { return };
            let Some(lane) = waiting.lane else { return };
            let until = self.ends(now, waiting.facts.max_duration_s);
            if let Some(places) = self.place(&lane.ask, now, until, own) {
                self.start(head.job, &places, now, out);
                continue;
            }
            let at = self.hold(pool, head.job, now);
            if self.preempt(head.job, at, now, out) {
                self.drop_hold(pool);
                self.hold(pool, head.job, now);
            }
            return;
        }
        self.drop_hold(pool);
    }

    /// Starts whoever fits around what is held, in turn.
    fn backfill(&mut self, pool: u64, now: Timestamp, out: &mut Vec<Decision>) {
        let asks: Vec<Ask> = self.queue.asks_of(pool).copied().collect();
        // For each ask: runs of this length and longer did not fit.
        let mut too_long: BTreeMap<Ask, u32> = BTreeMap::new();
        let mut heap: BinaryHeap<Reverse<(Turn, Lane)>> = BinaryHeap::new();
        for ask in asks {
            self.finder.sync(&self.cluster, &ask.shape);
            if self.finder.best(&ask.shape, &|_| true).is_some() {
                let lanes = self.queue.lanes(&ask).filter(|l| l.inside.is_none());
                heap.extend(lanes.filter_map(|lane| Some(Reverse((self.turn_of(lane, now)?, *lane)))));
            }
        }
        while let Some(Reverse((seen, lane))) = heap.pop() {
            let Some(turn) = self.turn_of(&lane, now) else { continue };
            if turn > seen {
                // Its organization got something meanwhile.
                heap.push(Reverse((turn, lane)));
                continue;
            }
            if too_long.get(&lane.ask).is_some_and(|length| lane.length >= *length) {
                continue;
            }
            let Some(waiting) = self.jobs.get(&turn.job) else { continue };
            let until = self.ends(now, waiting.facts.max_duration_s);
            let own = self.holds.get(&pool).filter(|h| h.job == turn.job).map(|h| h.booking);
            match self.place(&lane.ask, now, until, own) {
                Some(places) => {
                    self.start(turn.job, &places, now, out);
                    if let Some(next) = self.turn_of(&lane, now) {
                        heap.push(Reverse((next, lane)));
                    }
                }
                None => {
                    let least = too_long.entry(lane.ask).or_insert(lane.length);
                    *least = (*least).min(lane.length);
                }
            }
        }
    }

    fn turn_of(&self, lane: &Lane, now: Timestamp) -> Option<Turn> {
        let (queued_at, job) = self.queue.first(lane)?;
        Some(turn(lane.class, lane.org, queued_at, job, &self.shares, now))
    }

    fn inside_bookings(&mut self, now: Timestamp, out: &mut Vec<Decision>) {
        for lane in self.queue.lanes_inside() {
            while let Some((_, job)) = self.queue.first(&lane) {
                let Some(waiting) = self.jobs.get(&job) else { break };
                let until = self.ends(now, waiting.facts.max_duration_s);
                let booking = lane.inside.and_then(|id| self.calendar.get(id));
                let open =
                    booking.is_some_and(|b| b.org == waiting.facts.org && b.from <= now && until <= b.until);
                let Some(places) =
                    lane.inside.filter(|_| open).and_then(|id| self.place_inside(&lane.ask, id))
                else {
                    break;
                };
                self.start(job, &places, now, out);
            }
        }
    }

    fn start(&mut self, job: JobId, places: &[Place], now: Timestamp, out: &mut Vec<Decision>) {
        let Some(waiting) = self.jobs.get(&job) else { return };
        let Some(ask) = waiting.lane.map(|l| l.ask) else { return };
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
            preemptible: facts.preemptible.then_some(facts.grace_s),
            saved_at: None,
            inside: facts.inside,
        };
        self.put_claim(claim, now);
    }
}
