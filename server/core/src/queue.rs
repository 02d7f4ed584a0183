//! Who comes next: priority, then fair share, then age; and nobody waits for ever.
//!
//! Jobs that are alike in everything that placement looks at stand in one lane, first come first.
//! Waiting raises a job: every [`AGE_STEP_S`] by one class, and above the highest class only age
//! counts, so whatever arrives later comes after it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use berth_types::ids::{JobId, OrgId};
use berth_types::time::Timestamp;

use crate::cluster::BookingId;
use crate::fair_share::FairShare;
use crate::request::Ask;

/// After so long in the queue a job counts as of the next class.
pub const AGE_STEP_S: i64 = 12 * 3_600;
/// Above the highest priority class: only age counts.
const OVERDUE: i64 = 3;

/// What the jobs of a lane have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane {
    pub ask: Ask,
    /// The rank of the priority class.
    pub class: i64,
    pub org: OrgId,
    /// The logarithm of the longest run, so that short jobs do not stand behind long ones.
    pub length: u32,
    /// They run inside this booking only.
    pub inside: Option<BookingId>,
}

/// Where a job stands: less is sooner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn {
    class: Reverse<i64>,
    share: u64,
    queued_at: Timestamp,
    pub job: JobId,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Queue {
    lanes: HashMap<Lane, BTreeSet<(Timestamp, JobId)>>,
    /// The lanes of each ask.
    asks: BTreeMap<Ask, BTreeSet<Lane>>,
    /// The oldest first, for each set of models, class and organization; those inside bookings are not here.
    order: BTreeMap<(u64, i64, OrgId), BTreeSet<(Timestamp, JobId)>>,
    /// Lanes of jobs that run inside bookings.
    inside: BTreeSet<Lane>,
    count: usize,
}

impl Queue {
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn insert(&mut self, lane: Lane, queued_at: Timestamp, job: JobId) {
        let place = (queued_at, job);
        if self.lanes.entry(lane).or_default().insert(place) {
            self.asks.entry(lane.ask).or_default().insert(lane);
            if lane.inside.is_some() {
                self.inside.insert(lane);
            } else {
                self.order.entry((lane.ask.shape.models.0, lane.class, lane.org)).or_default().insert(place);
            }
            self.count += 1;
        }
    }

    pub fn remove(&mut self, lane: Lane, queued_at: Timestamp, job: JobId) {
        let place = (queued_at, job);
        let Some(jobs) = self.lanes.get_mut(&lane) else { return };
        if !jobs.remove(&place) {
            return;
        }
        self.count -= 1;
        if jobs.is_empty() {
            self.lanes.remove(&lane);
            self.inside.remove(&lane);
            if let Some(lanes) = self.asks.get_mut(&lane.ask) {
                lanes.remove(&lane);
                if lanes.is_empty() {
                    self.asks.remove(&lane.ask);
                }
            }
        }
        let key = (lane.ask.shape.models.0, lane.class, lane.org);
        if let Some(jobs) = self.order.get_mut(&key) {
            jobs.remove(&place);
            if jobs.is_empty() {
                self.order.remove(&key);
            }
        }
    }

    /// What is asked for by somebody.
    pub fn asks(&self) -> impl Iterator<Item = &Ask> {
        self.asks.keys()
    }

    /// What is asked for of this set of models.
    pub fn asks_of(&self, pool: u64) -> impl Iterator<Item = &Ask> {
        self.asks.keys().filter(move |ask| ask.shape.models.0 == pool)
    }

    /// The lanes of jobs that run inside bookings.
    pub fn lanes_inside(&self) -> Vec<Lane> {
        self.inside.iter().copied().collect()
    }

    pub fn lanes(&self, ask: &Ask) -> impl Iterator<Item = &Lane> {
        self.asks.get(ask).into_iter().flatten()
    }

    /// The first job of a lane.
    pub fn first(&self, lane: &Lane) -> Option<(Timestamp, JobId)> {
        self.lanes.get(lane)?.first().copied()
    }

    /// The sets of models that somebody waits for.
    pub fn pools(&self) -> Vec<u64> {
        let mut pools: Vec<u64> = self.order.keys().map(|(models, ..)| *models).collect();
        pools.dedup();
        pools
    }

    /// The first turn among those who wait for this set of models.
    pub fn head(&self, pool: u64, shares: &FairShare, now: Timestamp) -> Option<Turn> {
        let of_pool = self.order.range((pool, i64::MIN, OrgId::from_uuid(uuid::Uuid::nil()))..);
        let heads =
            of_pool.take_while(|((models, ..), _)| *models == pool).filter_map(|((_, class, org), jobs)| {
                let (queued_at, job) = jobs.first().copied()?;
                Some(turn(*class, *org, queued_at, job, shares, now))
            });
        heads.min()
    }

    /// How many of this pool have their turn before this one; counts to a limit.
    pub fn ahead(&self, pool: u64, turn_of: Turn, shares: &FairShare, now: Timestamp, limit: usize) -> usize {
        let of_pool = self.order.range((pool, i64::MIN, OrgId::from_uuid(uuid::Uuid::nil()))..);
        let mut before = 0;
        for ((_, class, org), jobs) in of_pool.take_while(|((models, ..), _)| *models == pool) {
            for (queued_at, job) in jobs {
                if before >= limit || turn(*class, *org, *queued_at, *job, shares, now) >= turn_of {
                    break;
                }
                before += 1;
            }
        }
        before
    }
}

/// A job's turn now.
pub fn turn(
    class: i64,
    org: OrgId,
    queued_at: Timestamp,
    job: JobId,
    shares: &FairShare,
    now: Timestamp,
) -> Turn {
    let waited_s = (now.micros() - queued_at.micros()).max(0) / 1_000_000;
    let raised = (class + waited_s / AGE_STEP_S).clamp(0, OVERDUE);
    let share = if raised >= OVERDUE { 0 } else { shares.share(org, now) };
    Turn { class: Reverse(raised), share, queued_at, job }
}
