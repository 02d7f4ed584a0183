//! The scheduler: an engine that takes facts and returns decisions.
//!
//! [`Engine::apply`] takes a fact, the state of a node, a job, a claim or a booking. Facts of one item carry
//! a version, and an older fact changes nothing, so facts may come in any order, twice or late.
//! [`Engine::pass`] decides. A decision counts as done from the moment of its return. The caller carries it
//! out and applies the resulting facts; the unchanged facts undo a decision that was not carried out. An
//! engine that is built from the newest facts equals one that received all facts; a test compares the two.
//!
//! The engine must not read a clock or a store or send messages. No fact can make it panic.
//!
//! Terms of this module: a *pool* is a set of board models. The *line* of a pool is its waiting jobs in the
//! order of their turns. A job *aside* has left the line and waits for its held start.

mod apply;
mod backfill;
mod burst_reserve;
mod claims;
mod decide;
mod dependencies;
mod facts;
mod firm_holds;
mod forecast;
mod held;
mod hold;
mod impossible;
mod inside;
mod node_pools;
mod obstacles;
mod order;
mod pass;
mod place;
mod power;
mod preempt;
mod preemptions;
mod ready;
mod reason_text;
mod reasons;
mod reclaim;
mod reserve;
mod shortage;
mod trials;
mod why;

use std::collections::{BTreeSet, HashMap};

use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::time::Timestamp;

use crate::claims::{Claims, PreemptibleCounts, RunEnds};
use crate::dependencies::Dependencies;
use crate::held::HeldStarts;
use crate::preemptions::Preemptions;
use berth_placement::calendar::Calendar;
use berth_placement::cluster::{BookingId, Cluster, NodeIx, Owner, Slot};
use berth_placement::fair_share::FairShare;
use berth_placement::finder::Finder;
use berth_placement::queue::{Lane, Queue};
use berth_placement::quotas::{Quotas, UseTotals};
use berth_placement::request::Ask;
use berth_placement::scoring::Reach;

pub use burst_reserve::put_burst_reserve;
pub use facts::{Claim, ClaimBill, ClaimRank, Fact, HeldVolume, JobFacts, OrgFacts};
pub use held::Basis;
pub use obstacles::{Obstacle, Obstacles};
pub use reason_text::{RequestSummary, explanation, power_shortage_text};
pub use reasons::{Blocker, PowerShortage, ReservationBlocker, SuggestedChange, WaitReasons};
pub use reserve::{NamedSlots, Refusal, Window};
pub use trials::{Snapshot, Trial};
pub use why::waits_for_own_org;

/// A half open span of time.
type Span = (Timestamp, Timestamp);

/// A decision of a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Start {
        job: JobId,
        /// The generation of the job at the decision.
        generation: i64,
        attempt: u32,
        ranks: Vec<(NodeId, Vec<Slot>)>,
    },
    /// A running attempt stops for another job, or (`None`) for the reserve for bursts of inference.
    Preempt { victim: Owner, for_job: Option<JobId> },
    /// The job `on`, whose success is a dependency of `job`, did not succeed.
    Orphan { job: JobId, generation: i64, on: JobId },
}

/// A waiting job.
#[derive(Debug, Clone, PartialEq, Eq)]
struct WaitingJob {
    facts: JobFacts,
    /// Its lane in the queue; `None` while it waits for other jobs or a volume, or if its request is invalid.
    lane: Option<Lane>,
    /// Its own ask; the ask of the lane stands for all organizations.
    ask: Option<Ask>,
}

/// Results of searches, valid for a state of the cluster.
#[derive(Debug, Clone, Default)]
struct Caches {
    /// The earliest times at which nodes could take an ask.
    ready: HashMap<Ask, ready::ReadyTimes>,
    /// The last check of each pool.
    pool_checks: HashMap<u64, pass::PoolCheck>,
    inside_checks: HashMap<BookingId, inside::InsideCheck>,
    /// For each ask, true if empty nodes could hold it, with the `Cluster::equipment_version` of that answer.
    possible: HashMap<Ask, (u64, bool)>,
    /// The `Cluster::equipment_version` of the last check of the impossible jobs.
    equipped: u64,
    victim_scans: preempt::VictimScans,
    forecast: Option<forecast::Forecast>,
}

#[derive(Debug, Clone)]
pub struct Engine {
    cluster: Cluster,
    finder: Finder<Reach>,
    queue: Queue,
    shares: FairShare,
    quotas: Quotas,
    calendar: Calendar,
    jobs: HashMap<JobId, WaitingJob>,
    claims: Claims,
    /// Claims on nodes that are not known yet.
    unplaced: HashMap<NodeId, BTreeSet<Owner>>,
    dependencies: Dependencies,
    versions: facts::Versions,
    holds: HeldStarts,
    /// Jobs that the nodes could not hold even if they were empty; they are not in the queue.
    impossible: BTreeSet<JobId>,
    preemptible: PreemptibleCounts,
    preemptions: Preemptions,
    /// Attempts that started in this pass; they are preemptible from the next pass on.
    started: BTreeSet<Owner>,
    ends: RunEnds,
    caches: Caches,
    backfill: bool,
    racks: power::Racks,
    burst_reserve: burst_reserve::BurstReserve,
}

impl Default for Engine {
    fn default() -> Self {
        Self {
            cluster: Cluster::default(),
            finder: Finder::new(Reach),
            queue: Queue::default(),
            shares: FairShare::default(),
            quotas: Quotas::default(),
            calendar: Calendar::default(),
            jobs: HashMap::new(),
            claims: Claims::default(),
            unplaced: HashMap::new(),
            dependencies: Dependencies::default(),
            versions: facts::Versions::default(),
            holds: HeldStarts::default(),
            impossible: BTreeSet::new(),
            preemptible: PreemptibleCounts::default(),
            preemptions: Preemptions::default(),
            started: BTreeSet::new(),
            ends: RunEnds::default(),
            caches: Caches::default(),
            backfill: true,
            racks: power::Racks::default(),
            burst_reserve: burst_reserve::BurstReserve::default(),
        }
    }
}

impl Engine {
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub fn calendar(&self) -> &Calendar {
        &self.calendar
    }

    /// Turns backfill on (the default) or off. Without backfill the order is strictly first come, first
    /// served; that serves as a comparison.
    pub fn set_backfill(&mut self, backfill: bool) {
        self.backfill = backfill;
    }

    /// The number of waiting jobs.
    pub fn waiting(&self) -> usize {
        self.jobs.len()
    }

    /// The waiting jobs with their generations, for a comparison with the database.
    pub fn waiting_jobs(&self) -> impl Iterator<Item = (JobId, i64)> {
        self.jobs.iter().map(|(id, w)| (*id, w.facts.generation))
    }

    /// The owners of claims, for a comparison with the database.
    pub fn owners(&self) -> impl Iterator<Item = Owner> {
        self.claims.owners()
    }

    /// The present use of an organization, as its limits count it.
    pub fn used(&mut self, org: OrgId) -> UseTotals {
        self.quotas.used(self.shares.index(org))
    }
}

/// The time `seconds` after `now`, at most ten years ahead.
fn run_end(now: Timestamp, seconds: i64) -> Timestamp {
    now.plus_seconds(seconds.clamp(0, 10 * 366 * 86_400))
}

/// The id of a node of the cluster.
fn find_node_id(cluster: &Cluster, node: NodeIx) -> Option<NodeId> {
    cluster.node(node).map(|n| n.facts.id)
}

#[cfg(test)]
mod tests;
