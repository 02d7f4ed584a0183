//! Who comes next: priority, then fair share, then age; and nobody waits for ever.
//!
//! Jobs that are alike in everything that placement looks at stand in one lane, first come first.
//! Waiting raises a job: every [`AGE_STEP_S`] by one class, and above the highest class only age
//! counts, so whatever arrives later comes after it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use berth_types::ids::JobId;
use berth_types::time::Timestamp;

use crate::cluster::{BookingId, Cluster};
use crate::fair_share::{FairShare, OrgIx};
use crate::quotas::Quotas;
use crate::request::Ask;

/// After so long in the queue a job counts as of the next class.
pub const AGE_STEP_S: i64 = 12 * 3_600;
/// Above the highest priority class: only age counts.
const OVERDUE: i64 = 3;

/// Whose turn depends on the same things: a priority class and an organization.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    pub class: i64,
    pub org: OrgIx,
}

/// What the jobs of a lane have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lane {
    pub ask: Ask,
    pub group: Group,
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

/// What turns depend on besides the queue itself.
#[derive(Clone, Copy)]
pub struct Turns<'a> {
    pub shares: &'a FairShare,
    pub quotas: &'a Quotas,
    pub cluster: &'a Cluster,
    pub now: Timestamp,
}

impl Turns<'_> {
    /// A job's turn now.
    pub fn of(&self, group: Group, queued_at: Timestamp, job: JobId) -> Turn {
        let waited_s = (self.now.micros() - queued_at.micros()).max(0) / 1_000_000;
        let raised = (group.class + waited_s / AGE_STEP_S).clamp(0, OVERDUE);
        let share = if raised >= OVERDUE { 0 } else { self.shares.share(group.org, self.now) };
        Turn { class: Reverse(raised), share, queued_at, job }
    }

    fn limits(&self, group: Group) -> bool {
        self.quotas.is_limited(group.org)
    }

    /// Whether the limits of its organization let somebody of this group start what is asked for.
    pub fn admits(&self, group: Group, ask: &Ask) -> bool {
        !self.limits(group) || self.quotas.admits(group.org, &ask.need(self.cluster))
    }
}

/// That runs of this length and longer had no place, as the cluster and the calendar were then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stuck {
    pub length: u32,
    pub changes: u64,
    pub bookings: u64,
}

type Jobs = BTreeSet<(Timestamp, JobId)>;

/// The jobs of one ask and group, by their length.
#[derive(Debug, Clone, Default)]
struct Row {
    lanes: BTreeMap<u32, Jobs>,
    /// The first of all of them, with its length.
    first: Option<((Timestamp, JobId), u32)>,
}

impl Row {
    fn first_below(&self, length: u32) -> Option<((Timestamp, JobId), u32)> {
        if self.first.is_none_or(|(_, own)| own < length) {
            return self.first;
        }
        let firsts = self.lanes.range(..length).filter_map(|(length, jobs)| Some((*jobs.first()?, *length)));
        firsts.min()
    }

    fn renew(&mut self) {
        self.first = self.lanes.iter().filter_map(|(length, jobs)| Some((*jobs.first()?, *length))).min();
    }
}

/// The jobs of one ask, whoever asks.
#[derive(Debug, Clone, Default)]
pub struct Lanes {
    groups: BTreeMap<Group, Row>,
    /// How many jobs of each length.
    lengths: BTreeMap<u32, u32>,
    /// What was found the last time.
    pub stuck: Option<Stuck>,
}

impl Lanes {
    /// The length of the shortest runs.
    pub fn shortest(&self) -> u32 {
        self.lengths.keys().next().copied().unwrap_or(u32::MAX)
    }
}

/// The jobs of one set of models and group, with what they ask for.
#[derive(Debug, Clone)]
struct Line {
    /// At hand, since it is asked for in every pass.
    first: (Timestamp, JobId),
    jobs: BTreeMap<(Timestamp, JobId), Ask>,
}

#[derive(Debug, Clone, Default)]
pub struct Queue {
    /// By set of models.
    asks: BTreeMap<(u64, Ask), Lanes>,
    /// The oldest first, for each set of models and group.
    order: BTreeMap<(u64, Group), Line>,
    /// Jobs that run inside bookings are nowhere else.
    inside: BTreeMap<Lane, Jobs>,
    /// Grows when somebody comes or goes, for each set of models.
    versions: BTreeMap<u64, u64>,
    count: usize,
}

/// Removes from a set in a map, and the set when it is empty.
fn take<K: Ord>(map: &mut BTreeMap<K, Jobs>, key: &K, place: &(Timestamp, JobId)) -> bool {
    let Some(jobs) = map.get_mut(key) else { return false };
    let there = jobs.remove(place);
    if jobs.is_empty() {
        map.remove(key);
    }
    there
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
        if lane.inside.is_some() {
            self.count += usize::from(self.inside.entry(lane).or_default().insert(place));
            return;
        }
        let pool = lane.ask.shape.models.0;
        let lanes = self.asks.entry((pool, lane.ask)).or_default();
        let row = lanes.groups.entry(lane.group).or_default();
        if row.lanes.entry(lane.length).or_default().insert(place) {
            row.renew();
            *lanes.lengths.entry(lane.length).or_default() += 1;
            *self.versions.entry(pool).or_default() += 1;
            let new = || Line { first: place, jobs: BTreeMap::new() };
            let line = self.order.entry((pool, lane.group)).or_insert_with(new);
            line.first = line.first.min(place);
            line.jobs.insert(place, lane.ask);
            self.count += 1;
        }
    }

    pub fn remove(&mut self, lane: Lane, queued_at: Timestamp, job: JobId) {
        let place = (queued_at, job);
        if lane.inside.is_some() {
            self.count -= usize::from(take(&mut self.inside, &lane, &place));
            return;
        }
        let pool = lane.ask.shape.models.0;
        let Some(lanes) = self.asks.get_mut(&(pool, lane.ask)) else { return };
        let Some(group) = lanes.groups.get_mut(&lane.group) else { return };
        if !take(&mut group.lanes, &lane.length, &place) {
            return;
        }
        group.renew();
        if group.lanes.is_empty() {
            lanes.groups.remove(&lane.group);
        }
        if let Some(count) = lanes.lengths.get_mut(&lane.length) {
            *count -= 1;
            if *count == 0 {
                lanes.lengths.remove(&lane.length);
            }
        }
        if lanes.groups.is_empty() {
            self.asks.remove(&(pool, lane.ask));
        }
        if let Some(line) = self.order.get_mut(&(pool, lane.group)) {
            line.jobs.remove(&place);
            match line.jobs.first_key_value() {
                Some((first, _)) => line.first = *first,
                None => _ = self.order.remove(&(pool, lane.group)),
            }
        }
        *self.versions.entry(pool).or_default() += 1;
        self.count -= 1;
    }

    /// Something changed that lets others of an organization start.
    pub fn stir(&mut self, org: OrgIx) {
        let pools = self.order.keys().filter(|(_, group)| group.org == org).map(|(pool, _)| *pool);
        for pool in pools {
            *self.versions.entry(pool).or_default() += 1;
        }
    }

    /// Grows when somebody of this pool comes, goes or may start.
    pub fn version(&self, pool: u64) -> u64 {
        self.versions.get(&pool).copied().unwrap_or(0)
    }

    /// What is asked for of this set of models, with what is known of each.
    pub fn asks_of(&mut self, pool: u64) -> impl Iterator<Item = (&Ask, &mut Lanes)> {
        let from = (Bound::Included((pool, Ask::LEAST)), Bound::Unbounded);
        let of_pool = self.asks.range_mut(from).take_while(move |((models, _), _)| *models == pool);
        of_pool.map(|((_, ask), lanes)| (ask, lanes))
    }

    /// The first turn of each group that asks for this, may have it and runs shorter than `length`.
    pub fn firsts(&self, ask: &Ask, length: u32, turns: Turns<'_>) -> impl Iterator<Item = (Turn, Group)> {
        let groups = self.asks.get(&(ask.shape.models.0, *ask)).into_iter().flat_map(|a| &a.groups);
        groups.filter_map(move |(group, row)| {
            let ((queued_at, job), _) = row.first_below(length)?;
            turns.admits(*group, ask).then(|| (turns.of(*group, queued_at, job), *group))
        })
    }

    /// The first of a group who may have this and runs shorter than `length`, and how long.
    pub fn first(&self, ask: &Ask, group: Group, length: u32, turns: Turns<'_>) -> Option<(Turn, u32)> {
        let row = self.asks.get(&(ask.shape.models.0, *ask))?.groups.get(&group)?;
        let ((queued_at, job), length) = row.first_below(length)?;
        turns.admits(group, ask).then(|| (turns.of(group, queued_at, job), length))
    }

    /// Remembers that runs of some length and longer found no place.
    pub fn stick(&mut self, ask: &Ask, stuck: Stuck) {
        if let Some(lanes) = self.asks.get_mut(&(ask.shape.models.0, *ask)) {
            lanes.stuck = Some(stuck);
        }
    }

    /// The lanes of jobs that run inside bookings, each with its first job.
    pub fn inside(&self) -> Vec<Lane> {
        self.inside.keys().copied().collect()
    }

    pub fn first_inside(&self, lane: &Lane) -> Option<JobId> {
        self.inside.get(lane)?.first().map(|(_, job)| *job)
    }

    /// The sets of models that somebody waits for.
    pub fn pools(&self) -> Vec<u64> {
        let mut pools: Vec<u64> = self.order.keys().map(|(models, _)| *models).collect();
        pools.dedup();
        pools
    }

    fn of_pool(&self, pool: u64) -> impl Iterator<Item = (Group, &Line)> {
        let least = Group { class: i64::MIN, org: OrgIx(0) };
        let from = self.order.range((pool, least)..);
        from.take_while(move |((models, _), _)| *models == pool).map(|((_, group), line)| (*group, line))
    }

    /// The first turn among those who wait for this set of models and may have what they ask for.
    pub fn head(&self, pool: u64, turns: Turns<'_>) -> Option<Turn> {
        let heads = self.of_pool(pool).filter_map(|(group, line)| {
            if !turns.limits(group) || line.jobs.get(&line.first).is_some_and(|ask| turns.admits(group, ask))
            {
                return Some(turns.of(group, line.first.0, line.first.1));
            }
            // Others of the group may ask for less.
            let (queued_at, job) = self.first_admitted(pool, group, turns)?;
            Some(turns.of(group, queued_at, job))
        });
        heads.min()
    }

    fn first_admitted(&self, pool: u64, group: Group, turns: Turns<'_>) -> Option<(Timestamp, JobId)> {
        let from = (Bound::Included((pool, Ask::LEAST)), Bound::Unbounded);
        let of_pool = self.asks.range(from).take_while(move |((models, _), _)| *models == pool);
        let rows = of_pool.filter_map(|((_, ask), lanes)| Some((ask, lanes.groups.get(&group)?)));
        rows.filter(|(ask, _)| turns.admits(group, ask)).filter_map(|(_, row)| Some(row.first?.0)).min()
    }

    /// How many of this pool may start and have their turn before this one; counts to a limit.
    pub fn ahead(&self, pool: u64, mine: Turn, turns: Turns<'_>, limit: usize) -> usize {
        let mut before = 0;
        for (group, line) in self.of_pool(pool) {
            for ((queued_at, job), ask) in &line.jobs {
                if before >= limit || turns.of(group, *queued_at, *job) >= mine {
                    break;
                }
                before += usize::from(turns.admits(group, ask));
            }
        }
        before
    }
}
