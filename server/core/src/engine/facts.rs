//! What the engine is told, and how it takes it in.

use std::sync::Arc;

use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::{Condition, DependsOn, Priority};
use berth_types::time::Timestamp;

use super::{Basis, Engine, Waiting};
use crate::calendar::Booking;
use crate::cluster::{BookingId, NodeFacts, Owner, Rank, Slot};
use crate::fair_share::OrgIx;
use crate::queue::{Group, Lane};
use crate::quotas::{Limits, Need};
use crate::request::{Ask, Request};

/// A job that waits for a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFacts {
    pub id: JobId,
    pub generation: i64,
    /// The number of its last attempt; 0 before the first.
    pub attempt: u32,
    pub org: OrgId,
    pub request: Request,
    pub priority: Priority,
    /// Seconds until a run ends by itself at the latest, counted from now on.
    pub max_duration_s: i64,
    pub preemptible: bool,
    /// Seconds that it needs to save its state when it is told to stop.
    pub grace_s: i64,
    pub queued_at: Timestamp,
    pub depends_on: Vec<DependsOn>,
    /// It runs inside this booking only.
    pub inside: Option<BookingId>,
    /// A volume that it would write to and that another writes to now.
    pub volume: Option<HeldVolume>,
}

/// A volume with the job that writes to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldVolume {
    pub name: String,
    pub job: JobId,
    /// That attempt has ended, and what it wrote is being handed back.
    pub saving: bool,
}

/// What an attempt holds on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRank {
    pub node: NodeId,
    pub slots: Vec<Slot>,
    pub cpu_milli: i64,
    pub memory_mib: i64,
}

/// What an attempt holds, until it is proved clean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub owner: Owner,
    pub org: OrgId,
    pub ranks: Vec<ClaimRank>,
    pub milli: i64,
    pub since: Timestamp,
    /// When it must have ended; `None` when nobody knows (its node is silent, or it is unclean).
    pub ends_by: Option<Timestamp>,
    pub priority: Priority,
    /// It was told to end, or has ended and is cleaned up.
    pub stops: bool,
    /// The job for which it was told to make room. It keeps that until it is proved clean, whatever ends it.
    pub stopped_for: Option<JobId>,
    /// Its job is queued again when it has ended.
    pub requeues: bool,
    /// The board models that its job accepts.
    pub models: Vec<Arc<str>>,
    /// It runs, and may be told to make room: within so many seconds.
    pub preemptible: Option<i64>,
    /// What it did up to here is saved.
    pub saved_at: Option<Timestamp>,
    pub inside: Option<BookingId>,
    pub bill: ClaimBill,
}

/// What a claim counts for against limits, besides boards.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClaimBill {
    pub offering: Option<Arc<str>>,
    /// Thousandths of devices.
    pub devices_milli: i64,
    pub nano_per_second: i64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct OrgFacts {
    pub org: OrgId,
    /// Against others' for fair share; 1 by default.
    pub weight: f64,
    /// Use so far, thousandths of a board × seconds; `None` leaves it as it is.
    pub used: Option<f64>,
    /// Up to so much of it at once comes before all others, whatever was used.
    pub guaranteed_milli: i64,
    pub limits: Limits,
}

/// How something is. A greater version is newer.
#[derive(Debug, Clone, PartialEq)]
pub enum Fact {
    Node {
        version: i64,
        facts: NodeFacts,
    },
    /// A job waits.
    Waits {
        version: i64,
        facts: JobFacts,
    },
    /// A job does not wait (it runs, or is over).
    Left {
        version: i64,
        job: JobId,
    },
    /// A job ended; whether it succeeded.
    Ended {
        job: JobId,
        succeeded: bool,
    },
    Claim {
        version: i64,
        claim: Claim,
    },
    /// Nothing is held any more.
    Freed {
        version: i64,
        owner: Owner,
    },
    Booked {
        version: i64,
        booking: Booking,
    },
    Unbooked {
        version: i64,
        id: BookingId,
    },
    Org(OrgFacts),
}

/// What a version belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Thing {
    Node(NodeId),
    Job(JobId),
    Claim(Owner),
    Booking(BookingId),
}

/// Versions of things that are over are kept up to so many; then all of them are forgotten.
const REMEMBERED: usize = 1 << 20;
/// Ends of jobs are kept up to so many; then those for which nobody waits are forgotten.
const ENDS: usize = 1 << 17;

impl Engine {
    /// Whether this is news of the thing.
    fn is_news(&mut self, thing: Thing, version: i64) -> bool {
        if self.versions.len() > REMEMBERED {
            self.versions.clear();
        }
        match self.versions.get_mut(&thing) {
            Some(known) if *known > version => false,
            Some(known) => {
                *known = version;
                true
            }
            None => {
                self.versions.insert(thing, version);
                true
            }
        }
    }

    /// Takes in how something is.
    pub fn apply(&mut self, fact: Fact, now: Timestamp) {
        match fact {
            Fact::Node { version, facts } => {
                if self.is_news(Thing::Node(facts.id), version) {
                    self.put_node(facts);
                }
            }
            Fact::Waits { version, facts } => {
                if self.is_news(Thing::Job(facts.id), version) {
                    self.put_job(facts);
                }
            }
            Fact::Left { version, job } => {
                if self.is_news(Thing::Job(job), version) {
                    self.remove_job(job);
                }
            }
            Fact::Ended { job, succeeded } => self.ended(job, succeeded),
            Fact::Claim { version, claim } => {
                if self.is_news(Thing::Claim(claim.owner), version) {
                    self.put_claim(claim, now);
                }
            }
            Fact::Freed { version, owner } => {
                if self.is_news(Thing::Claim(owner), version) {
                    self.remove_claim(owner, now);
                }
            }
            Fact::Booked { version, booking } => {
                if self.is_news(Thing::Booking(booking.id), version) {
                    self.calendar.put(&self.cluster, booking);
                }
            }
            Fact::Unbooked { version, id } => {
                if self.is_news(Thing::Booking(id), version) {
                    self.calendar.remove(id);
                }
            }
            Fact::Org(facts) => self.put_org(facts, now),
        }
    }

    fn put_org(&mut self, facts: OrgFacts, now: Timestamp) {
        self.shares.put(facts.org, facts.weight, facts.guaranteed_milli, facts.used, now);
        let org = self.shares.index(facts.org);
        let Self { quotas, cluster, queue, .. } = self;
        quotas.put(org, facts.limits, |name| cluster.offering(Some(name)));
        queue.stir(org, true);
        self.stir_aside(org, true);
    }

    /// Counts what a claim holds, or holds no more. What runs in a booking is limited by that.
    fn count(&mut self, claim: &Claim, sign: i64, now: Timestamp) {
        self.count_preemptible(claim, sign);
        match claim.ends_by.map(|end| (end, claim.owner)) {
            Some(end) if sign > 0 => _ = self.ends.insert(end),
            Some(end) => _ = self.ends.remove(&end),
            None => {}
        }
        self.shares.running(claim.org, sign * claim.milli, now);
        let org = self.shares.index(claim.org);
        let offering = self.cluster.offering(claim.bill.offering.as_ref());
        let ClaimBill { devices_milli, nano_per_second, .. } = claim.bill;
        let need = match claim.inside {
            Some(_) => Need { boards_milli: 0, offering: 0, devices_milli: 0, nano_per_second: 0 },
            None => Need { boards_milli: claim.milli, offering, devices_milli, nano_per_second },
        };
        self.quotas.count(org, &need, sign);
        // Its turns are others now, in every pool.
        let limited = self.quotas.is_limited(org);
        self.queue.stir(org, limited);
        self.stir_aside(org, limited);
    }

    /// Jobs that wait for a held start of their own are in no line of the queue: their turns are others now, and
    /// those of this organization may start or not.
    fn stir_aside(&mut self, org: OrgIx, limited: bool) {
        for (job, held) in self.holds.iter().filter(|(_, h)| h.basis != Basis::First) {
            let own = self.jobs.get(job).and_then(|w| w.lane).is_some_and(|lane| lane.group.org == org);
            self.queue.stir_pool(held.pool, limited && own);
        }
    }

    fn put_node(&mut self, facts: NodeFacts) {
        let id = facts.id;
        let before = self.cluster.changes();
        let index = self.cluster.put_node(facts);
        if self.cluster.changes() != before {
            self.calendar.renew(&self.cluster, index);
            // Its boards may count for less than before.
            self.stir_rack(index);
        }
        for owner in self.homeless.remove(&id).unwrap_or_default() {
            let Some(claim) = self.claims.get(&owner) else { continue };
            for rank in claim.ranks.iter().filter(|r| r.node == id) {
                let rank = held(claim, rank);
                self.cluster.hold(index, rank);
            }
        }
    }

    pub(super) fn put_job(&mut self, facts: JobFacts) {
        let id = facts.id;
        if self.jobs.get(&id).is_some_and(|known| known.facts == facts) {
            return;
        }
        let seen = self.jobs.contains_key(&id);
        self.remove_job(id);
        for dependency in &facts.depends_on {
            self.dependents.entry(dependency.job).or_default().insert(id);
        }
        self.jobs.insert(id, Waiting { facts, lane: None, ask: None });
        self.enqueue(id);
        if !seen && let Some(ask) = self.jobs.get(&id).and_then(|w| w.ask) {
            self.finder.observe(&ask.shape, &self.cluster);
        }
    }

    /// Puts a job into the queue as soon as nothing else keeps it back.
    pub(super) fn enqueue(&mut self, id: JobId) {
        let Some(waiting) = self.jobs.get_mut(&id).filter(|w| w.lane.is_none()) else { return };
        let facts = &waiting.facts;
        let met = |d: &DependsOn| match (self.outcomes.get(&d.job), d.condition) {
            (Some(succeeded), Condition::Succeeded) => *succeeded,
            (Some(_), Condition::Finished) => true,
            (None, _) => false,
        };
        if !facts.depends_on.iter().all(met) || facts.volume.is_some() {
            return;
        }
        // What can never be placed stays out of the queue; its reason is said by `why`.
        let Ok(ask) = Ask::of(&facts.request, facts.org, &mut self.cluster) else { return };
        let seconds = facts.max_duration_s;
        let group = Group { class: facts.priority.rank(), org: self.shares.index(facts.org) };
        let lane = Lane { ask: ask.for_anybody(), group, seconds, inside: facts.inside };
        (waiting.lane, waiting.ask) = (Some(lane), Some(ask));
        self.queue.insert(lane, facts.queued_at, id);
    }

    pub(super) fn remove_job(&mut self, id: JobId) {
        self.drop_hold(id);
        self.drop_hold_inside(id);
        self.impossible.remove(&id);
        let Some(old) = self.jobs.remove(&id) else { return };
        if let Some(lane) = old.lane {
            self.queue.remove(lane, old.facts.queued_at, id);
        }
        for dependency in &old.facts.depends_on {
            if let Some(waiting) = self.dependents.get_mut(&dependency.job) {
                waiting.remove(&id);
                if waiting.is_empty() {
                    self.dependents.remove(&dependency.job);
                }
            }
        }
    }

    fn ended(&mut self, job: JobId, succeeded: bool) {
        if self.outcomes.len() > ENDS {
            self.outcomes.retain(|job, _| self.dependents.contains_key(job));
        }
        // Kept even if nobody waits for it yet: the news of who does may come later.
        self.outcomes.insert(job, succeeded);
        for id in self.dependents.get(&job).cloned().unwrap_or_default() {
            self.enqueue(id);
        }
    }

    pub(super) fn put_claim(&mut self, mut claim: Claim, now: Timestamp) {
        let owner = claim.owner;
        // The time to end counts from the first word of it, and does not go beyond the limit.
        let before = self.claims.get(&owner).and_then(|old| old.ends_by).filter(|_| claim.stops);
        claim.ends_by = claim.ends_by.map(|end| before.map_or(end, |before| before.min(end)));
        if self.claims.get(&owner) == Some(&claim) {
            return;
        }
        // What moved away is released; what stayed is only stated anew.
        if let Some(old) = self.claims.remove(&owner) {
            self.rooms.remove(&old);
            self.count(&old, -1, now);
            for rank in old.ranks.iter().filter(|r| !claim.ranks.iter().any(|n| n.node == r.node)) {
                self.forget_rank(rank.node, owner);
            }
            self.stir_racks_of(&old);
        }
        self.rooms.insert(&claim);
        self.count(&claim, 1, now);
        for rank in &claim.ranks {
            match self.cluster.find_node(rank.node) {
                Some(index) => self.cluster.hold(index, held(&claim, rank)),
                None => {
                    self.homeless.entry(rank.node).or_default().insert(owner);
                }
            }
        }
        self.stir_racks_of(&claim);
        self.claims.insert(owner, claim);
    }

    fn forget_rank(&mut self, node: NodeId, owner: Owner) {
        match self.cluster.find_node(node) {
            Some(index) => self.cluster.release(index, owner),
            None => {
                if let Some(owners) = self.homeless.get_mut(&node) {
                    owners.remove(&owner);
                }
            }
        }
    }

    pub(super) fn remove_claim(&mut self, owner: Owner, now: Timestamp) {
        let Some(old) = self.claims.remove(&owner) else { return };
        self.rooms.remove(&old);
        self.count(&old, -1, now);
        for rank in &old.ranks {
            self.forget_rank(rank.node, owner);
        }
        self.stir_racks_of(&old);
    }

    fn stir_racks_of(&mut self, claim: &Claim) {
        for rank in &claim.ranks {
            if let Some(index) = self.cluster.find_node(rank.node) {
                self.stir_rack(index);
            }
        }
    }
}

fn held(claim: &Claim, rank: &ClaimRank) -> Rank {
    Rank {
        owner: claim.owner,
        org: claim.org,
        cpu_milli: rank.cpu_milli,
        memory_mib: rank.memory_mib,
        slots: rank.slots.clone(),
        ends_by: claim.ends_by,
        inside: claim.inside,
    }
}
