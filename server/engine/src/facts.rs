//! The facts of the engine, and their application.

use std::sync::Arc;

use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::{Condition, DependsOn, Priority};
use berth_types::time::Timestamp;

use super::{Basis, Engine, WaitingJob};
use crate::queue::{Group, Lane};
use berth_placement::calendar::Booking;
use berth_placement::cluster::{BookingId, NodeFacts, Owner, Rank, Slot};
use berth_placement::fair_share::OrgIx;
use berth_placement::quotas::{Limits, Need};
use berth_placement::request::{Ask, Request};

/// The facts of a waiting job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFacts {
    pub id: JobId,
    pub generation: i64,
    /// The number of its last attempt; 0 before the first attempt.
    pub attempt: u32,
    pub org: OrgId,
    pub request: Request,
    pub priority: Priority,
    /// The time limit of a further run, in seconds.
    pub max_duration_s: i64,
    pub preemptible: bool,
    /// The seconds between its stop signal and SIGKILL, for saving its state.
    pub grace_s: i64,
    pub queued_at: Timestamp,
    pub depends_on: Vec<DependsOn>,
    /// The only booking inside which it may run.
    pub inside: Option<BookingId>,
    /// A volume to which the job would write and another job writes now.
    pub volume: Option<HeldVolume>,
}

/// A volume with its writing job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldVolume {
    pub name: String,
    pub job: JobId,
    /// True if the attempt has ended and its files are being handed over.
    pub saving: bool,
}

/// The devices, processors and memory of an attempt on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRank {
    pub node: NodeId,
    pub slots: Vec<Slot>,
    pub cpu_milli: i64,
    pub memory_mib: i64,
}

/// The claim of an attempt on devices, until they are proved clean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub owner: Owner,
    pub org: OrgId,
    pub ranks: Vec<ClaimRank>,
    /// Thousandths of boards on all nodes.
    pub milli: i64,
    pub since: Timestamp,
    /// Its latest end; `None` if that is unknown (its node is silent, or its devices are unclean).
    pub ends_by: Option<Timestamp>,
    pub priority: Priority,
    /// True if the attempt was stopped, or has ended and is being cleaned up.
    pub stops: bool,
    /// The job for which the attempt was preempted, set until the devices are proved clean, whatever ends the
    /// attempt.
    pub stopped_for: Option<JobId>,
    /// True if its job returns to the queue after its end.
    pub requeues: bool,
    /// The accepted board models of its job.
    pub models: Vec<Arc<str>>,
    /// The grace in seconds of a running attempt that may be preempted.
    pub preemptible: Option<i64>,
    /// The time up to which its work is saved.
    pub saved_at: Option<Timestamp>,
    /// The booking inside which it runs.
    pub inside: Option<BookingId>,
    pub bill: ClaimBill,
}

/// The use of a claim against limits, besides boards.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClaimBill {
    pub offering: Option<Arc<str>>,
    /// Thousandths of devices.
    pub devices_milli: i64,
    pub nano_per_second: i64,
}

/// The facts of an organization.
#[derive(Debug, Clone, PartialEq)]
pub struct OrgFacts {
    pub org: OrgId,
    /// The weight for fair share; 1 by default.
    pub weight: f64,
    /// The use so far in thousandths of a board × seconds; `None` keeps the present value.
    pub used: Option<f64>,
    /// While fewer thousandths of boards run, its use counts as zero.
    pub guaranteed_milli: i64,
    pub limits: Limits,
}

/// The state of one item. A greater version is newer.
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
    /// A job does not wait: it runs or has ended.
    Left {
        version: i64,
        job: JobId,
    },
    /// A job has ended.
    Ended {
        job: JobId,
        succeeded: bool,
    },
    Claim {
        version: i64,
        claim: Claim,
    },
    /// The claim of an attempt has ended.
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

/// The item of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum VersionedItem {
    Node(NodeId),
    Job(JobId),
    Claim(Owner),
    Booking(BookingId),
}

/// The largest number of kept versions; beyond it all versions are dropped.
const MAX_VERSIONS: usize = 1 << 20;
/// The number of kept job ends, beyond which the ends without dependent jobs are dropped.
const MAX_OUTCOMES: usize = 1 << 17;

impl Engine {
    /// Returns true if a version is not older than the known version of an item, and records it.
    fn is_newer(&mut self, item: VersionedItem, version: i64) -> bool {
        if self.versions.len() > MAX_VERSIONS {
            self.versions.clear();
        }
        match self.versions.get_mut(&item) {
            Some(known) if *known > version => false,
            Some(known) => {
                *known = version;
                true
            }
            None => {
                self.versions.insert(item, version);
                true
            }
        }
    }

    /// Applies a fact; an older version of an item changes nothing.
    pub fn apply(&mut self, fact: Fact, now: Timestamp) {
        match fact {
            Fact::Node { version, facts } => {
                if self.is_newer(VersionedItem::Node(facts.id), version) {
                    self.put_node(facts);
                }
            }
            Fact::Waits { version, facts } => {
                if self.is_newer(VersionedItem::Job(facts.id), version) {
                    self.put_job(facts);
                }
            }
            Fact::Left { version, job } => {
                if self.is_newer(VersionedItem::Job(job), version) {
                    self.remove_job(job);
                }
            }
            Fact::Ended { job, succeeded } => self.put_outcome(job, succeeded),
            Fact::Claim { version, claim } => {
                if self.is_newer(VersionedItem::Claim(claim.owner), version) {
                    self.put_claim(claim, now);
                }
            }
            Fact::Freed { version, owner } => {
                if self.is_newer(VersionedItem::Claim(owner), version) {
                    self.remove_claim(owner, now);
                }
            }
            Fact::Booked { version, booking } => {
                if self.is_newer(VersionedItem::Booking(booking.id), version) {
                    self.calendar.put(&self.cluster, booking);
                }
            }
            Fact::Unbooked { version, id } => {
                if self.is_newer(VersionedItem::Booking(id), version) {
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
        queue.mark_changed(org, true);
        self.mark_aside_changed(org, true);
    }

    /// Adds the use of a claim (`sign` 1), or subtracts it (`sign` −1). A run inside a booking counts against
    /// no limit, since its booking bounds it.
    fn count(&mut self, claim: &Claim, sign: i64, now: Timestamp) {
        self.count_preemptible(claim, sign);
        match claim.ends_by.map(|end| (end, claim.owner)) {
            Some(end) if sign > 0 => _ = self.ends.insert(end),
            Some(end) => _ = self.ends.remove(&end),
            None => {}
        }
        self.shares.add_running(claim.org, sign * claim.milli, now);
        let org = self.shares.index(claim.org);
        let offering = self.cluster.offering(claim.bill.offering.as_ref());
        let ClaimBill { devices_milli, nano_per_second, .. } = claim.bill;
        let need = match claim.inside {
            Some(_) => Need { boards_milli: 0, offering: 0, devices_milli: 0, nano_per_second: 0 },
            None => Need { boards_milli: claim.milli, offering, devices_milli, nano_per_second },
        };
        self.quotas.count(org, &need, sign);
        // The turns of the organization change in every pool.
        let limited = self.quotas.is_limited(org);
        self.queue.mark_changed(org, limited);
        self.mark_aside_changed(org, limited);
    }

    /// Marks the pools of jobs aside as changed after a change of an organization. These jobs are in no line;
    /// their order may differ, and the limits may now admit or refuse those of the organization.
    fn mark_aside_changed(&mut self, org: OrgIx, limited: bool) {
        for (job, held) in self.holds.iter().filter(|(_, h)| h.basis != Basis::First) {
            let own = self.jobs.get(job).and_then(|w| w.lane).is_some_and(|lane| lane.group.org == org);
            self.queue.mark_pool_changed(held.pool, limited && own);
        }
    }

    pub(super) fn put_node(&mut self, facts: NodeFacts) {
        let id = facts.id;
        let before = self.cluster.changes();
        let index = self.cluster.put_node(facts);
        if self.cluster.changes() != before {
            self.calendar.recount_node(&self.cluster, index);
            // The new boards may draw less power than the old ones.
            self.mark_rack_changed(index);
        }
        for owner in self.unplaced.remove(&id).unwrap_or_default() {
            let Some(claim) = self.claims.get(&owner) else { continue };
            for rank in claim.ranks.iter().filter(|r| r.node == id) {
                let rank = cluster_rank(claim, rank);
                self.cluster.hold(index, rank);
            }
        }
    }

    pub(super) fn put_job(&mut self, facts: JobFacts) {
        let id = facts.id;
        if self.jobs.get(&id).is_some_and(|known| known.facts == facts) {
            return;
        }
        let was_known = self.jobs.contains_key(&id);
        self.remove_job(id);
        for dependency in &facts.depends_on {
            self.dependents.entry(dependency.job).or_default().insert(id);
        }
        self.jobs.insert(id, WaitingJob { facts, lane: None, ask: None });
        self.enqueue(id);
        if !was_known && let Some(ask) = self.jobs.get(&id).and_then(|w| w.ask) {
            self.finder.observe(&ask.shape, &self.cluster);
        }
    }

    /// Puts a job into the queue if no dependency or volume blocks it.
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
        // An invalid request stays out of the queue; `why` returns the reason.
        let Ok(ask) = Ask::from_request(&facts.request, facts.org, &mut self.cluster) else { return };
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

    fn put_outcome(&mut self, job: JobId, succeeded: bool) {
        if self.outcomes.len() > MAX_OUTCOMES {
            self.outcomes.retain(|job, _| self.dependents.contains_key(job));
        }
        // Kept without a dependent job too: its fact may come later.
        self.outcomes.insert(job, succeeded);
        for id in self.dependents.get(&job).cloned().unwrap_or_default() {
            self.enqueue(id);
        }
    }

    pub(super) fn put_claim(&mut self, mut claim: Claim, now: Timestamp) {
        let owner = claim.owner;
        // The grace counts from the first fact of the stop, and never extends the limit.
        let before = self.claims.get(&owner).and_then(|old| old.ends_by).filter(|_| claim.stops);
        claim.ends_by = claim.ends_by.map(|end| before.map_or(end, |before| before.min(end)));
        if self.claims.get(&owner) == Some(&claim) {
            return;
        }
        // Ranks on nodes that the new claim omits are released; the others are updated.
        if let Some(old) = self.claims.remove(&owner) {
            self.preemptions.remove(&old);
            self.count(&old, -1, now);
            for rank in old.ranks.iter().filter(|r| !claim.ranks.iter().any(|n| n.node == r.node)) {
                self.forget_rank(rank.node, owner);
            }
            self.mark_racks_changed(&old);
        }
        self.preemptions.insert(&claim);
        self.count(&claim, 1, now);
        for rank in &claim.ranks {
            match self.cluster.find_node(rank.node) {
                Some(index) => self.cluster.hold(index, cluster_rank(&claim, rank)),
                None => {
                    self.unplaced.entry(rank.node).or_default().insert(owner);
                }
            }
        }
        self.mark_racks_changed(&claim);
        self.claims.insert(owner, claim);
    }

    fn forget_rank(&mut self, node: NodeId, owner: Owner) {
        match self.cluster.find_node(node) {
            Some(index) => self.cluster.release(index, owner),
            None => {
                if let Some(owners) = self.unplaced.get_mut(&node) {
                    owners.remove(&owner);
                }
            }
        }
    }

    pub(super) fn remove_claim(&mut self, owner: Owner, now: Timestamp) {
        let Some(old) = self.claims.remove(&owner) else { return };
        self.preemptions.remove(&old);
        self.count(&old, -1, now);
        for rank in &old.ranks {
            self.forget_rank(rank.node, owner);
        }
        self.mark_racks_changed(&old);
    }

    fn mark_racks_changed(&mut self, claim: &Claim) {
        for rank in &claim.ranks {
            if let Some(index) = self.cluster.find_node(rank.node) {
                self.mark_rack_changed(index);
            }
        }
    }
}

/// The rank of a claim in the form of the cluster.
fn cluster_rank(claim: &Claim, rank: &ClaimRank) -> Rank {
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
