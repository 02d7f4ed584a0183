//! One look at the queue: who starts, who makes room, who waits in vain.
//!
//! A pass costs what changed. For each pool (a set of board models) the first in line is placed, or a
//! start is held for it; then others are placed around what is held.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use berth_types::ids::JobId;
use berth_types::jobs::{Condition, DependsOn};
use berth_types::time::Timestamp;

use super::facts::{Claim, ClaimBill, ClaimRank};
use super::{Decision, Engine};
use crate::calendar::Place;
use crate::cluster::{Models, NodeIx, Owner};
use crate::queue::{Group, Stuck, Turn};
use crate::request::Ask;

/// What is known while others are started around what is held.
struct Around {
    pool: u64,
    now: Timestamp,
    /// For each ask: runs of this length and longer did not fit.
    too_long: BTreeMap<Ask, u32>,
    most: BTreeMap<Ask, u32>,
    /// The ask that stands for each, as long as nobody was started.
    alike: HashMap<Ask, Ask>,
}

/// The first of each group who could be started with one ask.
struct Line {
    ask: Ask,
    firsts: BinaryHeap<Reverse<(Turn, Group)>>,
}

enum Tried {
    /// The next of the group.
    Next(Option<Turn>),
    /// There is no room at all any more for what is asked.
    Full,
}

impl Engine {
    /// Decides, and takes every decision as done.
    pub fn pass(&mut self, now: Timestamp) -> Vec<Decision> {
        let mut out = Vec::new();
        self.calendar.forget_until(now);
        self.orphans(&mut out);
        self.inside_bookings(now, &mut out);
        // What the first of them are given may unsettle others, so those are looked at after them.
        let (settled, open): (Vec<u64>, Vec<u64>) =
            self.queue.pools().into_iter().partition(|pool| self.is_settled(*pool, now));
        self.look_at(&open, now, &mut out);
        self.look_at(&settled, now, &mut out);
        out
    }

    /// Looks at pools in the order of the turn of their first.
    fn look_at(&mut self, pools: &[u64], now: Timestamp, out: &mut Vec<Decision>) {
        let unsettled = pools.iter().filter(|pool| !self.is_settled(**pool, now));
        let mut heads: Vec<(Turn, u64)> =
            unsettled.filter_map(|pool| Some((self.queue.head(*pool, self.turns(now))?, *pool))).collect();
        heads.sort_unstable();
        for (_, pool) in heads {
            self.heads(pool, now, out);
            if self.backfill {
                self.backfill(pool, now, out);
            }
            let bookings = self.calendar.version(Models(pool));
            self.memory.looked.insert(pool, (self.cluster.changes(), self.queue.version(pool), bookings));
        }
    }

    /// Whether nothing happened that could let anybody of a pool start.
    fn is_settled(&self, pool: u64, now: Timestamp) -> bool {
        let Some((changes, queue, bookings)) = self.memory.looked.get(&pool).copied() else { return false };
        let unchanged = self.cluster.changed_since(changes).is_some_and(|nodes| {
            let in_pool = |node: &NodeIx| {
                let gpus = self.cluster.node(*node).into_iter().flat_map(|n| n.view().gpus());
                gpus.into_iter().any(|g| Models(pool).has(g.model))
            };
            nodes.len() < 256 && !nodes.iter().any(in_pool)
        });
        let due = self.holds.get(&pool).is_none_or(|h| h.at <= now) || self.is_unfinished(pool);
        unchanged
            && !due
            && self.queue.version(pool) == queue
            && self.calendar.version(Models(pool)) == bookings
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

    /// Starts the first of a pool for as long as they fit; the one that does not gets a start held.
    fn heads(&mut self, pool: u64, now: Timestamp, out: &mut Vec<Decision>) {
        while let Some(head) = self.queue.head(pool, self.turns(now)) {
            let own = self.holds.get(&pool).filter(|h| h.job == head.job).map(|h| h.booking);
            if own.is_none() {
                self.drop_hold(pool);
            }
            let Some(waiting) = self.jobs.get(&head.job) else { return };
            let Some(ask) = waiting.ask else { return };
            let until = self.ends(now, waiting.facts.max_duration_s);
            if let Some(places) = self.place(&ask, now, until, own) {
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
        let (too_long, most) = (BTreeMap::new(), BTreeMap::new());
        let mut around = Around { pool, now, too_long, most, alike: HashMap::new() };
        let mut lines: Vec<Line> = Vec::new();
        for (ask, length) in self.roomy(pool, now) {
            around.most.insert(ask, length);
            let firsts = self.queue.firsts(&ask, length, self.turns(now)).map(Reverse).collect();
            lines.push(Line { ask, firsts });
        }
        let next = |lines: &[Line], index: usize| {
            let Reverse((turn, _)) = lines.get(index)?.firsts.peek()?;
            Some(Reverse((*turn, index)))
        };
        let mut order: BinaryHeap<Reverse<(Turn, usize)>> =
            (0..lines.len()).filter_map(|index| next(&lines, index)).collect();
        while let Some(Reverse((_, index))) = order.pop() {
            let Some(line) = lines.get_mut(index) else { continue };
            let Some(Reverse((seen, group))) = line.firsts.pop() else { continue };
            match self.fill(&mut around, &line.ask, group, seen, out) {
                Tried::Full => continue,
                Tried::Next(turn) => line.firsts.extend(turn.map(|turn| Reverse((turn, group)))),
            }
            order.extend(next(&lines, index));
        }
        let (changes, bookings) = (self.cluster.changes(), self.calendar.version(Models(pool)));
        for (ask, length) in around.too_long {
            // Of shares the boards that are shared already are not known to be without room.
            if ask == ask.for_anybody() {
                self.queue.stick(&ask, Stuck { length, changes, bookings });
            }
        }
    }

    /// Starts the first of a group who asks for this, if there is a place around what is held.
    fn fill(
        &mut self,
        around: &mut Around,
        ask: &Ask,
        group: Group,
        seen: Turn,
        out: &mut Vec<Decision>,
    ) -> Tried {
        let now = around.now;
        let Some(own) = self.jobs.get(&seen.job).and_then(|w| w.ask) else { return Tried::Next(None) };
        let alike = *around.alike.entry(own).or_insert_with(|| self.alike(&own));
        let most = around.most.get(ask).copied().unwrap_or(u32::MAX);
        let most = around.too_long.get(&alike).copied().unwrap_or(u32::MAX).min(most);
        let first = self.queue.first(ask, group, most, self.turns(now));
        let Some((turn, length)) = first else { return Tried::Next(None) };
        if turn > seen {
            // Its organization got something meanwhile, or its first is too long now.
            return Tried::Next(Some(turn));
        }
        let Some(waiting) = self.jobs.get(&turn.job) else { return Tried::Next(None) };
        let Some(asked) = waiting.ask else { return Tried::Next(None) };
        let until = self.ends(now, waiting.facts.max_duration_s);
        let own = self.holds.get(&around.pool).filter(|h| h.job == turn.job).map(|h| h.booking);
        match self.place(&asked, now, until, own) {
            Some(places) => {
                self.start(turn.job, &places, now, out);
                around.alike.clear();
            }
            None => {
                // The cluster only gets fuller in a pass, so this holds for all who ask alike.
                around.too_long.insert(alike, length);
                self.finder.sync(&self.cluster, &ask.shape);
                if self.finder.best(&self.cluster, &ask.shape, &|_| true).is_none() {
                    around.too_long.insert(*ask, 0);
                    return Tried::Full;
                }
            }
        }
        // What follows in the group is looked up when it is its turn.
        let next = self.queue.first(ask, group, u32::MAX, self.turns(now));
        Tried::Next(next.map(|(turn, _)| turn.max(seen)))
    }

    /// The ask that stands for all that find the same: those of organizations that share no board on
    /// which this one fits.
    fn alike(&self, ask: &Ask) -> Ask {
        if self.finder.fits_own(&self.cluster, &ask.shape) {
            return *ask;
        }
        Ask { shape: self.finder.kept(&self.cluster, &ask.shape), ..*ask }
    }

    /// What may fit somewhere, with the length from which on it is known not to. What found no place
    /// before is looked at again only on nodes that changed since.
    fn roomy(&mut self, pool: u64, now: Timestamp) -> Vec<(Ask, u32)> {
        let Self { cluster, queue, calendar, .. } = &mut *self;
        let (changes, bookings) = (cluster.changes(), calendar.version(Models(pool)));
        let mut open = Vec::new();
        for (ask, known) in queue.asks_of(pool) {
            let mut most = u32::MAX;
            if let Some(stuck) = known.stuck.as_mut() {
                let changed = cluster.changed_since(stuck.changes);
                let same = changed.is_some_and(|nodes| {
                    let mut views = nodes.iter().filter_map(|n| cluster.node(*n));
                    nodes.len() < 64 && !views.any(|n| ask.shape.may_fit(n.view(), cluster.models()))
                });
                // Without any place at all it does not matter what is booked.
                if same && (stuck.bookings == bookings || stuck.length == 0) {
                    (stuck.changes, most) = (changes, stuck.length);
                }
            }
            if known.shortest() < most {
                open.push((*ask, most, known.shortest()));
            }
        }
        let mut out = Vec::new();
        for (ask, most, shortest) in open {
            self.finder.sync(&self.cluster, &ask.shape);
            if self.finder.best(&self.cluster, &ask.shape, &|_| true).is_none() {
                self.queue.stick(&ask, Stuck { length: 0, changes, bookings });
                continue;
            }
            // A run of the shortest length at least must fit.
            let until = self.ends(now, 1i64 << shortest.min(40));
            if self.place(&ask, now, until, None).is_some() {
                out.push((ask, most));
            } else {
                self.queue.stick(&ask, Stuck { length: shortest, changes, bookings });
            }
        }
        out
    }

    fn inside_bookings(&mut self, now: Timestamp, out: &mut Vec<Decision>) {
        for lane in self.queue.inside() {
            while let Some(job) = self.queue.first_inside(&lane) {
                let Some(waiting) = self.jobs.get(&job) else { break };
                let until = self.ends(now, waiting.facts.max_duration_s);
                let booking = lane.inside.and_then(|id| self.calendar.get(id));
                let open =
                    booking.is_some_and(|b| b.org == waiting.facts.org && b.from <= now && until <= b.until);
                let asked = waiting.ask.filter(|_| open);
                let places = lane.inside.zip(asked).and_then(|(id, ask)| self.place_inside(&ask, id));
                let Some(places) = places else { break };
                self.start(job, &places, now, out);
            }
        }
    }

    fn start(&mut self, job: JobId, places: &[Place], now: Timestamp, out: &mut Vec<Decision>) {
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
            preemptible: facts.preemptible.then_some(facts.grace_s),
            saved_at: None,
            inside: facts.inside,
            bill: ClaimBill {
                offering: facts.request.offering.clone(),
                devices_milli: ask.need(&self.cluster).devices_milli,
                nano_per_second: facts.request.nano_per_second,
            },
        };
        self.put_claim(claim, now);
    }
}
