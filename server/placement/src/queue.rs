//! The queue of waiting jobs, in the order of priority class, fair share and age. Replicas of services come first in
//! their class.
//!
//! Jobs with equal requests, class, organization and time limit share a lane and are ordered by age. Every
//! [`AGE_STEP_S`] of waiting raises a job by one class. Above the highest class only age counts, so no job
//! waits for ever.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::Bound;

use berth_types::ids::JobId;
use berth_types::time::Timestamp;

use crate::cluster::{BookingId, Cluster, Models};
use crate::fair_share::{FairShare, OrgIx};
use crate::quotas::Quotas;
use crate::request::Ask;

/// The waiting time that raises a job by one class.
pub const AGE_STEP_S: i64 = 12 * 3_600;
/// The class above the highest priority class: only age counts in it.
const AGED_CLASS: i64 = 3;

/// A priority class, its replicas or its other jobs, and an organization: the turns of a group differ by age alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    pub class: i64,
    /// True for replicas of services.
    pub replica: bool,
    pub org: OrgIx,
}

/// The common attributes of the jobs in a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lane {
    pub ask: Ask,
    pub group: Group,
    /// The time limit in seconds: a short job does not queue behind a long one.
    pub seconds: i64,
    /// The only booking inside which the jobs may run.
    pub inside: Option<BookingId>,
}

/// The position of a job in the order of the queue: a lesser turn comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn {
    pub class: Reverse<i64>,
    /// True behind the replicas of its class.
    pub after_replicas: bool,
    pub share: u64,
    pub queued_at: Timestamp,
    pub job: JobId,
}

/// The inputs of a turn besides the queue.
#[derive(Clone, Copy)]
pub struct Turns<'a> {
    pub shares: &'a FairShare,
    pub quotas: &'a Quotas,
    pub cluster: &'a Cluster,
    pub now: Timestamp,
}

impl Turns<'_> {
    /// The present turn of a job.
    pub fn turn(&self, group: Group, queued_at: Timestamp, job: JobId) -> Turn {
        let waited_s = (self.now.micros() - queued_at.micros()).max(0) / 1_000_000;
        let raised = (group.class + waited_s / AGE_STEP_S).clamp(0, AGED_CLASS);
        let is_aged = raised >= AGED_CLASS;
        let share = if is_aged { 0 } else { self.shares.share(group.org, self.now) };
        Turn { class: Reverse(raised), after_replicas: !is_aged && !group.replica, share, queued_at, job }
    }

    fn limits(&self, group: Group) -> bool {
        self.quotas.is_limited(group.org)
    }

    /// Returns true if the limits of the group's organization admit a start of this request.
    pub fn admits(&self, group: Group, ask: &Ask) -> bool {
        !self.limits(group) || self.quotas.admits(group.org, &ask.need(self.cluster))
    }
}

/// The record that runs of at least `seconds` had no place in a state of the cluster and the calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailedSearch {
    pub seconds: i64,
    pub changes: u64,
    pub bookings: u64,
}

/// Jobs in the order of their age, each with its time limit in seconds.
type Jobs = BTreeMap<(Timestamp, JobId), i64>;
/// A job by its age, with its time limit in seconds.
type AgedJob = ((Timestamp, JobId), i64);

/// The jobs of one ask and group, in buckets by the logarithm of their time limits. So the oldest short job
/// is found without a scan of the long jobs.
#[derive(Debug, Clone, Default)]
struct GroupJobs {
    buckets: BTreeMap<u32, Jobs>,
    first: Option<AgedJob>,
}

fn length_bucket(seconds: i64) -> u32 {
    seconds.max(1).ilog2()
}

fn oldest(jobs: &Jobs) -> Option<AgedJob> {
    jobs.first_key_value().map(|(place, seconds)| (*place, *seconds))
}

impl GroupJobs {
    /// The oldest job with a time limit below `seconds`.
    fn first_shorter(&self, seconds: i64) -> Option<AgedJob> {
        if self.first.is_none_or(|(_, own)| own < seconds) {
            return self.first;
        }
        let last = length_bucket(seconds);
        let shorter = self.buckets.range(..last).filter_map(|(_, jobs)| oldest(jobs));
        let same_bucket = self.buckets.get(&last).into_iter().flatten();
        let same_bucket = same_bucket.map(|(place, own)| (*place, *own)).find(|(_, own)| *own < seconds);
        shorter.chain(same_bucket).min()
    }

    fn insert(&mut self, place: (Timestamp, JobId), seconds: i64) -> bool {
        let new = self.buckets.entry(length_bucket(seconds)).or_default().insert(place, seconds).is_none();
        self.renew();
        new
    }

    fn remove(&mut self, place: &(Timestamp, JobId), seconds: i64) -> bool {
        let Some(jobs) = self.buckets.get_mut(&length_bucket(seconds)) else { return false };
        let was_present = jobs.remove(place).is_some();
        if jobs.is_empty() {
            self.buckets.remove(&length_bucket(seconds));
        }
        self.renew();
        was_present
    }

    fn renew(&mut self) {
        self.first = self.buckets.values().filter_map(oldest).min();
    }
}

/// The jobs of one ask, of all groups.
#[derive(Debug, Clone, Default)]
pub struct AskJobs {
    groups: BTreeMap<Group, GroupJobs>,
    /// The number of jobs by time limit in seconds.
    lengths: BTreeMap<i64, u32>,
    /// The last search without a place.
    pub failed_search: Option<FailedSearch>,
}

impl AskJobs {
    /// The least time limit of these jobs, in seconds.
    pub fn shortest(&self) -> i64 {
        self.lengths.keys().next().copied().unwrap_or(i64::MAX)
    }

    /// The highest class of these jobs.
    pub fn highest_class(&self) -> i64 {
        // Groups are in the order of their classes.
        self.groups.keys().next_back().map_or(i64::MIN, |group| group.class)
    }
}

/// The jobs of one pool (set of models) and group, with their asks.
#[derive(Debug, Clone)]
struct PoolLine {
    /// The oldest job, kept here because every pass reads it.
    first: (Timestamp, JobId),
    jobs: BTreeMap<(Timestamp, JobId), Ask>,
}

#[derive(Debug, Clone, Default)]
pub struct Queue {
    /// The jobs by pool and ask.
    asks: BTreeMap<(u64, Ask), AskJobs>,
    /// The jobs by pool and group, the oldest first.
    order: BTreeMap<(u64, Group), PoolLine>,
    /// Jobs for the inside of a booking; they are in no other list.
    inside: BTreeMap<BookingId, BTreeMap<(Timestamp, JobId), Group>>,
    /// Grows with each insertion and removal, for each pool.
    versions: BTreeMap<u64, u64>,
    /// Grows with each change of turns, for each pool.
    orders: BTreeMap<u64, u64>,
    /// The `version` of the last insertion or removal for each booking.
    inside_versions: BTreeMap<BookingId, u64>,
    /// Grows with each insertion and removal.
    version: u64,
}

/// The first job of a group after a given one that its organization's limits admit.
fn next_admitted(
    line: &PoolLine,
    group: Group,
    turns: Turns<'_>,
    after: Option<(Timestamp, JobId)>,
) -> Option<(Timestamp, JobId)> {
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    let mut jobs = line.jobs.range((from, Bound::Unbounded));
    jobs.find(|(_, ask)| turns.admits(group, ask)).map(|(place, _)| *place)
}

impl Queue {
    /// The number of waiting jobs.
    pub fn count(&self) -> usize {
        let open = self.order.values().map(|line| line.jobs.len());
        open.chain(self.inside.values().map(BTreeMap::len)).sum()
    }

    pub fn insert(&mut self, lane: Lane, queued_at: Timestamp, job: JobId) {
        let place = (queued_at, job);
        self.version += 1;
        if let Some(id) = lane.inside {
            self.inside_versions.insert(id, self.version);
            let jobs = self.inside.entry(id).or_default();
            jobs.insert(place, lane.group);
            return;
        }
        let pool = lane.ask.shape.models.0;
        let ask_jobs = self.asks.entry((pool, lane.ask)).or_default();
        if ask_jobs.groups.entry(lane.group).or_default().insert(place, lane.seconds) {
            *ask_jobs.lengths.entry(lane.seconds).or_default() += 1;
            *self.versions.entry(pool).or_default() += 1;
            let new = || PoolLine { first: place, jobs: BTreeMap::new() };
            let line = self.order.entry((pool, lane.group)).or_insert_with(new);
            line.first = line.first.min(place);
            line.jobs.insert(place, lane.ask);
        }
    }

    pub fn remove(&mut self, lane: Lane, queued_at: Timestamp, job: JobId) {
        let place = (queued_at, job);
        self.version += 1;
        if let Some(id) = lane.inside {
            let Some(jobs) = self.inside.get_mut(&id) else { return };
            jobs.remove(&place);
            self.inside_versions.insert(id, self.version);
            if jobs.is_empty() {
                self.inside.remove(&id);
                self.inside_versions.remove(&id);
            }
            return;
        }
        let pool = lane.ask.shape.models.0;
        let Some(ask_jobs) = self.asks.get_mut(&(pool, lane.ask)) else { return };
        let Some(group_jobs) = ask_jobs.groups.get_mut(&lane.group) else { return };
        if !group_jobs.remove(&place, lane.seconds) {
            return;
        }
        if group_jobs.buckets.is_empty() {
            ask_jobs.groups.remove(&lane.group);
        }
        if let Some(count) = ask_jobs.lengths.get_mut(&lane.seconds) {
            *count -= 1;
            if *count == 0 {
                ask_jobs.lengths.remove(&lane.seconds);
            }
        }
        if ask_jobs.groups.is_empty() {
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
    }

    /// Marks the pools of an organization as changed. For a `limited` organization other jobs may start now;
    /// for one without limits only the order of the queue may differ.
    pub fn mark_changed(&mut self, org: OrgIx, limited: bool) {
        self.version += 1;
        let versions = if limited { &mut self.versions } else { &mut self.orders };
        for (pool, _) in self.order.keys().filter(|(_, group)| group.org == org) {
            *versions.entry(*pool).or_default() += 1;
        }
    }

    /// Marks one pool as changed, likewise.
    pub fn mark_pool_changed(&mut self, pool: u64, limited: bool) {
        self.version += 1;
        let versions = if limited { &mut self.versions } else { &mut self.orders };
        *versions.entry(pool).or_default() += 1;
    }

    /// The version of a pool's jobs: it grows with each insertion, removal and new admissibility.
    pub fn version(&self, pool: u64) -> u64 {
        self.versions.get(&pool).copied().unwrap_or(0)
    }

    /// The version of a pool's order: it grows with each change of turns.
    pub fn order_version(&self, pool: u64) -> u64 {
        self.orders.get(&pool).copied().unwrap_or(0)
    }

    /// The asks of a pool with their jobs.
    pub fn pool_asks(&mut self, pool: u64) -> impl Iterator<Item = (&Ask, &mut AskJobs)> {
        let from = (Bound::Included((pool, Ask::LEAST)), Bound::Unbounded);
        let in_pool = self.asks.range_mut(from).take_while(move |((models, _), _)| *models == pool);
        in_pool.map(|((_, ask), ask_jobs)| (ask, ask_jobs))
    }

    /// For each group the first turn of an admitted job with this ask and a time limit below `seconds`.
    pub fn firsts(&self, ask: &Ask, seconds: i64, turns: Turns<'_>) -> impl Iterator<Item = (Turn, Group)> {
        let groups = self.asks.get(&(ask.shape.models.0, *ask)).into_iter().flat_map(|a| &a.groups);
        groups.filter_map(move |(group, group_jobs)| {
            let ((queued_at, job), _) = group_jobs.first_shorter(seconds)?;
            turns.admits(*group, ask).then(|| (turns.turn(*group, queued_at, job), *group))
        })
    }

    /// The turn and the time limit of a group's first admitted job with this ask and a time limit below
    /// `seconds`.
    pub fn first(&self, ask: &Ask, group: Group, seconds: i64, turns: Turns<'_>) -> Option<(Turn, i64)> {
        let group_jobs = self.asks.get(&(ask.shape.models.0, *ask))?.groups.get(&group)?;
        let ((queued_at, job), seconds) = group_jobs.first_shorter(seconds)?;
        turns.admits(group, ask).then(|| (turns.turn(group, queued_at, job), seconds))
    }

    /// Records a search without a place.
    pub fn remember_failure(&mut self, ask: &Ask, failed_search: FailedSearch) {
        if let Some(ask_jobs) = self.asks.get_mut(&(ask.shape.models.0, *ask)) {
            ask_jobs.failed_search = Some(failed_search);
        }
    }

    /// The bookings with waiting jobs.
    pub fn bookings(&self) -> Vec<BookingId> {
        self.inside.keys().copied().collect()
    }

    /// The turns of the jobs that wait inside a booking, in order.
    pub fn inside(&self, id: BookingId, turns: Turns<'_>) -> Vec<Turn> {
        let jobs = self.inside.get(&id).into_iter().flatten();
        let mut all: Vec<Turn> =
            jobs.map(|((queued_at, job), group)| turns.turn(*group, *queued_at, *job)).collect();
        all.sort_unstable();
        all
    }

    /// A number that grows with each insertion and removal inside a booking.
    pub fn inside_version(&self, id: BookingId) -> u64 {
        self.inside_versions.get(&id).copied().unwrap_or(0)
    }

    /// A number that grows with every change of the queue.
    pub fn total_version(&self) -> u64 {
        self.version
    }

    /// The sets of models with waiting jobs.
    pub fn pools(&self) -> Vec<u64> {
        let mut pools: Vec<u64> = self.order.keys().map(|(models, _)| *models).collect();
        pools.dedup();
        pools
    }

    fn groups_of_pool(&self, pool: u64) -> impl Iterator<Item = (Group, &PoolLine)> {
        let least = Group { class: i64::MIN, replica: false, org: OrgIx(0) };
        let from = self.order.range((pool, least)..);
        from.take_while(move |((models, _), _)| *models == pool).map(|((_, group), line)| (*group, line))
    }

    /// The first turn in a pool among admitted jobs, without the asks and groups in `passed`.
    pub fn head(&self, pool: u64, turns: Turns<'_>, passed: &BTreeSet<(Ask, Group)>) -> Option<Turn> {
        let is_candidate = |ask: &Ask, group: Group| {
            turns.admits(group, ask) && (passed.is_empty() || !passed.contains(&(*ask, group)))
        };
        let heads = self.groups_of_pool(pool).filter_map(|(group, line)| {
            let free = passed.is_empty() && !turns.limits(group);
            if free || line.jobs.get(&line.first).is_some_and(|ask| is_candidate(ask, group)) {
                return Some(turns.turn(group, line.first.0, line.first.1));
            }
            // Other jobs of the group may have smaller requests.
            let from = (Bound::Included((pool, Ask::LEAST)), Bound::Unbounded);
            let in_pool = self.asks.range(from).take_while(|((models, _), _)| *models == pool);
            let rows = in_pool.filter_map(|((_, ask), ask_jobs)| Some((ask, ask_jobs.groups.get(&group)?)));
            let firsts = rows
                .filter(|(ask, _)| is_candidate(ask, group))
                .filter_map(|(_, group_jobs)| Some(group_jobs.first?.0));
            let (queued_at, job) = firsts.min()?;
            Some(turns.turn(group, queued_at, job))
        });
        heads.min()
    }

    /// The first turns in a pool among admitted jobs.
    pub fn first_turns(&self, pool: u64, turns: Turns<'_>, limit: usize) -> Vec<Turn> {
        let lines: Vec<(Group, &PoolLine)> = self.groups_of_pool(pool).collect();
        // Most groups have no job among the first, so a group contributes one job at a time.
        let first = |(index, (group, line)): (usize, &(Group, &PoolLine))| {
            let first = (!turns.limits(*group)).then_some(line.first);
            let first = first.or_else(|| next_admitted(line, *group, turns, None))?;
            Some(Reverse((turns.turn(*group, first.0, first.1), index)))
        };
        let mut next: BinaryHeap<Reverse<(Turn, usize)>> =
            lines.iter().enumerate().filter_map(first).collect();
        let mut out = Vec::new();
        while out.len() < limit
            && let Some(Reverse((turn, index))) = next.pop()
        {
            out.push(turn);
            let Some((group, line)) = lines.get(index) else { continue };
            let place = next_admitted(line, *group, turns, Some((turn.queued_at, turn.job)));
            next.extend(place.map(|(at, job)| Reverse((turns.turn(*group, at, job), index))));
        }
        out
    }

    /// The number of admitted jobs for any of these models with a turn before `own`, at most `limit`.
    pub fn count_ahead(&self, models: Models, own: Turn, turns: Turns<'_>, limit: usize) -> usize {
        let mut before = 0;
        for ((_, group), line) in self.order.iter().filter(|((pool, _), _)| pool & models.0 != 0) {
            for ((queued_at, job), ask) in &line.jobs {
                if before >= limit || turns.turn(*group, *queued_at, *job) >= own {
                    break;
                }
                before += usize::from(turns.admits(*group, ask));
            }
        }
        before
    }
}
