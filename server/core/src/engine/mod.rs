//! The scheduler as a pure machine: facts in, decisions out.
//!
//! [`Engine::apply`] takes facts (how a node, a job, a claim or a booking *is*); facts of the same
//! thing carry a version, and an older one changes nothing, so they may come in any order, twice or
//! late. [`Engine::pass`] decides. A decision counts as done from the moment it is made; whoever
//! carries it out states the facts that came of it, and a decision that was not carried out is undone
//! by stating the facts as they still are. An engine that is built anew from the newest facts is equal
//! to one that lived through all of them; a test compares the two.
//!
//! Must not see a clock, a store or a message. Nothing that is stated can make it panic.

mod backfill;
mod facts;
mod forecast;
mod hold;
mod inside;
mod never;
mod pass;
mod place;
mod power;
mod preempt;
mod reserve;
mod rooms;
mod why;
mod words;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::time::Timestamp;

use crate::calendar::Calendar;
use crate::cluster::{BookingId, Cluster, NodeIx, Owner, Slot};
use crate::fair_share::FairShare;
use crate::finder::Finder;
use crate::queue::{Lane, Queue, Turns};
use crate::quotas::{Quotas, Used};
use crate::request::Ask;
use crate::scoring::Reach;

pub use facts::{Claim, ClaimBill, ClaimRank, Fact, HeldVolume, JobFacts, OrgFacts};
pub use reserve::{Named, Refusal, Window};
pub use why::{Blocker, Change, Closed, Short, Why};
pub use words::{Asked, explanation, short_text};

/// What a pass decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Start {
        job: JobId,
        /// The generation that it is based on.
        generation: i64,
        attempt: u32,
        ranks: Vec<(NodeId, Vec<Slot>)>,
    },
    /// A running attempt must make room.
    Preempt { victim: Owner, for_job: JobId },
    /// It waited for a job that did not end as it had to.
    Orphan { job: JobId, generation: i64, on: JobId },
}

/// A job that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Waiting {
    facts: JobFacts,
    /// Its place in the queue; `None` while it waits for other jobs, or asks for what cannot be.
    lane: Option<Lane>,
    /// What it asks for; its lane is for all who ask the same.
    ask: Option<Ask>,
}

/// Why a start is held for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Basis {
    /// It is the first of its pool, or of its reservation, that does not fit.
    First,
    /// Enough ends within the grace of those whom it may have stopped, or 30 seconds: nobody has to be stopped.
    Soon,
    /// Others are stopped for it: their room is for it alone.
    Stopped,
}

/// A start that is held for a job that does not fit now, by the set of models that it waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    pool: u64,
    at: Timestamp,
    basis: Basis,
    /// The time at which it was to begin when its basis was found: what it waits for may be late.
    due: Timestamp,
    /// Bookings that were no obstacle to it.
    but: Vec<BookingId>,
    /// Up to this change of the cluster and of what is booked it is right.
    changes: u64,
    bookings: u64,
}

/// What is known to be impossible as the cluster stands.
#[derive(Debug, Clone, Default)]
struct Memory {
    /// When each node could take an ask at the earliest.
    ready: HashMap<Ask, hold::Ready>,
    /// What of each pool was looked at.
    looked: HashMap<u64, pass::Looked>,
    looked_inside: HashMap<BookingId, inside::Looked>,
    /// For each ask, true if empty nodes could hold it, with the `Cluster::equipped` of that answer.
    possible: HashMap<Ask, (u64, bool)>,
    /// As of then the jobs that no nodes could hold were looked at.
    equipped: u64,
    /// The searches for attempts that could make room, by ask and class.
    scans: HashMap<(Ask, i64), preempt::Scan>,
    /// Nodes that the searches of this pass may still look at.
    looks: usize,
    /// So many passes were made.
    passes: u64,
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
    jobs: HashMap<JobId, Waiting>,
    claims: HashMap<Owner, Claim>,
    /// Claims that name a node which is not known yet.
    homeless: HashMap<NodeId, BTreeSet<Owner>>,
    /// How jobs ended.
    outcomes: HashMap<JobId, bool>,
    dependents: BTreeMap<JobId, BTreeSet<JobId>>,
    versions: HashMap<facts::Thing, i64>,
    holds: BTreeMap<JobId, Held>,
    /// Jobs that no nodes could hold if nothing ran on them; they are not in the queue.
    impossible: BTreeSet<JobId>,
    inside: BTreeMap<BookingId, Vec<inside::HeldInside>>,
    /// How many attempts may be told to make room, by the booking that they run in, class and grace.
    preemptible: BTreeMap<(Option<BookingId>, i64, i64), i64>,
    /// The runs that are stopped for a job.
    rooms: rooms::Rooms,
    /// Who started in this pass, and may be told to make room in the next one.
    started: BTreeSet<Owner>,
    /// Who must have ended when.
    ends: BTreeSet<(Timestamp, Owner)>,
    memory: Memory,
    backfill: bool,
    /// Watts that racks can feed.
    racks: BTreeMap<Arc<str>, i64>,
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
            claims: HashMap::new(),
            homeless: HashMap::new(),
            outcomes: HashMap::new(),
            dependents: BTreeMap::new(),
            versions: HashMap::new(),
            holds: BTreeMap::new(),
            impossible: BTreeSet::new(),
            inside: BTreeMap::new(),
            preemptible: BTreeMap::new(),
            rooms: rooms::Rooms::default(),
            started: BTreeSet::new(),
            ends: BTreeSet::new(),
            memory: Memory::default(),
            backfill: true,
            racks: BTreeMap::new(),
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

    /// Whether others run around the start that is held for the first in line, as they do by default.
    /// Without it jobs are strictly first come first served, for comparison.
    pub fn set_backfill(&mut self, backfill: bool) {
        self.backfill = backfill;
    }

    pub fn waiting(&self) -> usize {
        self.jobs.len()
    }

    /// The jobs that wait, for whoever compares with what is stored.
    pub fn waiting_jobs(&self) -> impl Iterator<Item = (JobId, i64)> {
        self.jobs.iter().map(|(id, w)| (*id, w.facts.generation))
    }

    /// Who holds something, likewise.
    pub fn owners(&self) -> impl Iterator<Item = Owner> {
        self.claims.keys().copied()
    }

    /// What an organization holds, as its limits count it.
    pub fn used(&mut self, org: OrgId) -> Used {
        self.quotas.used(self.shares.index(org))
    }

    /// The turns of those who wait, as of now.
    fn turns(&self, now: Timestamp) -> Turns<'_> {
        Turns { shares: &self.shares, quotas: &self.quotas, cluster: &self.cluster, now }
    }

    fn milli(&self, ask: &Ask) -> i64 {
        ask.milli(&self.cluster)
    }

    fn ends(&self, now: Timestamp, seconds: i64) -> Timestamp {
        now.plus_seconds(seconds.clamp(0, 10 * 366 * 86_400))
    }

    fn node_id(&self, node: NodeIx) -> Option<NodeId> {
        self.cluster.node(node).map(|n| n.facts.id)
    }
}

#[cfg(test)]
mod tests;
