//! Who comes next: priority, then fair share, then age; and nobody waits for ever.
//!
//! Jobs that are alike in everything that placement looks at stand in one lane, first come first.
//! Waiting raises a job: every [`AGE_STEP_S`] by one class, and above the highest class only age
//! counts, so whatever arrives later comes after it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::Bound;

use berth_types::ids::JobId;
use berth_types::time::Timestamp;

use crate::cluster::{BookingId, Cluster, Models};
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
    /// The longest run, so that short jobs do not stand behind long ones.
    pub seconds: i64,
    /// They run inside this booking only.
    pub inside: Option<BookingId>,
}

/// Where a job stands: less is sooner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn {
    pub class: Reverse<i64>,
    pub share: u64,
    pub queued_at: Timestamp,
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

/// That runs of so many seconds and longer had no place, as the cluster and the calendar were then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stuck {
    pub seconds: i64,
    pub changes: u64,
    pub bookings: u64,
}

/// Jobs in the order of their age, each with its longest run in seconds.
type Jobs = BTreeMap<(Timestamp, JobId), i64>;
/// A job by its age, and its longest run in seconds.
type Aged = ((Timestamp, JobId), i64);

/// The jobs of one ask and group. Runs of like length (by the logarithm of their seconds) stand together,
/// so that the oldest of the short ones is found without a look at all the long ones.
#[derive(Debug, Clone, Default)]
struct Row {
    octaves: BTreeMap<u32, Jobs>,
    first: Option<Aged>,
}

fn octave(seconds: i64) -> u32 {
    seconds.max(1).ilog2()
}

fn oldest(jobs: &Jobs) -> Option<Aged> {
    jobs.first_key_value().map(|(place, seconds)| (*place, *seconds))
}

impl Row {
    /// The oldest job whose longest run is shorter than this.
    fn first_below(&self, seconds: i64) -> Option<Aged> {
        if self.first.is_none_or(|(_, own)| own < seconds) {
            return self.first;
        }
        let last = octave(seconds);
        let shorter = self.octaves.range(..last).filter_map(|(_, jobs)| oldest(jobs));
        let alike = self.octaves.get(&last).into_iter().flatten();
        let alike = alike.map(|(place, own)| (*place, *own)).find(|(_, own)| *own < seconds);
        shorter.chain(alike).min()
    }

    fn insert(&mut self, place: (Timestamp, JobId), seconds: i64) -> bool {
        let new = self.octaves.entry(octave(seconds)).or_default().insert(place, seconds).is_none();
        self.renew();
        new
    }

    fn remove(&mut self, place: &(Timestamp, JobId), seconds: i64) -> bool {
        let Some(jobs) = self.octaves.get_mut(&octave(seconds)) else { return false };
        let there = jobs.remove(place).is_some();
        if jobs.is_empty() {
            self.octaves.remove(&octave(seconds));
        }
        self.renew();
        there
    }

    fn renew(&mut self) {
        self.first = self.octaves.values().filter_map(oldest).min();
    }
}

/// The jobs of one ask, whoever asks.
#[derive(Debug, Clone, Default)]
pub struct Lanes {
    groups: BTreeMap<Group, Row>,
    /// How many jobs of each length in seconds.
    lengths: BTreeMap<i64, u32>,
    /// What was found the last time.
    pub stuck: Option<Stuck>,
}

impl Lanes {
    /// Seconds of the shortest run.
    pub fn shortest(&self) -> i64 {
        self.lengths.keys().next().copied().unwrap_or(i64::MAX)
    }

    /// The highest class of those who ask for this.
    pub fn highest_class(&self) -> i64 {
        // Groups are in the order of their classes.
        self.groups.keys().next_back().map_or(i64::MIN, |group| group.class)
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
    inside: BTreeMap<BookingId, BTreeMap<(Timestamp, JobId), Group>>,
    /// Grows when somebody comes or goes, for each set of models.
    versions: BTreeMap<u64, u64>,
    /// Grows when the turns are others, for each set of models.
    orders: BTreeMap<u64, u64>,
    /// When somebody came or went last inside each booking, by `version`.
    inside_versions: BTreeMap<BookingId, u64>,
    /// Grows when somebody comes or goes, wherever that is.
    version: u64,
    count: usize,
}

/// The first job of a group after a given one that the limits of its organization admit.
fn following(
    line: &Line,
    group: Group,
    turns: Turns<'_>,
    after: Option<(Timestamp, JobId)>,
) -> Option<(Timestamp, JobId)> {
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    let mut jobs = line.jobs.range((from, Bound::Unbounded));
    jobs.find(|(_, ask)| turns.admits(group, ask)).map(|(place, _)| *place)
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
        self.version += 1;
        if let Some(id) = lane.inside {
            self.inside_versions.insert(id, self.version);
            let jobs = self.inside.entry(id).or_default();
            self.count += usize::from(jobs.insert(place, lane.group).is_none());
            return;
        }
        let pool = lane.ask.shape.models.0;
        let lanes = self.asks.entry((pool, lane.ask)).or_default();
        if lanes.groups.entry(lane.group).or_default().insert(place, lane.seconds) {
            *lanes.lengths.entry(lane.seconds).or_default() += 1;
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
        self.version += 1;
        if let Some(id) = lane.inside {
            let Some(jobs) = self.inside.get_mut(&id) else { return };
            self.count -= usize::from(jobs.remove(&place).is_some());
            self.inside_versions.insert(id, self.version);
            if jobs.is_empty() {
                self.inside.remove(&id);
                self.inside_versions.remove(&id);
            }
            return;
        }
        let pool = lane.ask.shape.models.0;
        let Some(lanes) = self.asks.get_mut(&(pool, lane.ask)) else { return };
        let Some(row) = lanes.groups.get_mut(&lane.group) else { return };
        if !row.remove(&place, lane.seconds) {
            return;
        }
        if row.octaves.is_empty() {
            lanes.groups.remove(&lane.group);
        }
        if let Some(count) = lanes.lengths.get_mut(&lane.seconds) {
            *count -= 1;
            if *count == 0 {
                lanes.lengths.remove(&lane.seconds);
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

    /// Something changed that lets others of an organization start, or (where it has no limits) only the
    /// order of those who wait.
    pub fn stir(&mut self, org: OrgIx, limited: bool) {
        self.version += 1;
        let versions = if limited { &mut self.versions } else { &mut self.orders };
        for (pool, _) in self.order.keys().filter(|(_, group)| group.org == org) {
            *versions.entry(*pool).or_default() += 1;
        }
    }

    /// The same in one pool.
    pub fn stir_pool(&mut self, pool: u64, limited: bool) {
        self.version += 1;
        let versions = if limited { &mut self.versions } else { &mut self.orders };
        *versions.entry(pool).or_default() += 1;
    }

    /// Grows when somebody of this pool comes, goes or may start.
    pub fn version(&self, pool: u64) -> u64 {
        self.versions.get(&pool).copied().unwrap_or(0)
    }

    /// Grows when the turns of a pool are others.
    pub fn order_version(&self, pool: u64) -> u64 {
        self.orders.get(&pool).copied().unwrap_or(0)
    }

    /// What is asked for of this set of models, with what is known of each.
    pub fn asks_of(&mut self, pool: u64) -> impl Iterator<Item = (&Ask, &mut Lanes)> {
        let from = (Bound::Included((pool, Ask::LEAST)), Bound::Unbounded);
        let of_pool = self.asks.range_mut(from).take_while(move |((models, _), _)| *models == pool);
        of_pool.map(|((_, ask), lanes)| (ask, lanes))
    }

    /// The first turn of each group that asks for this, may have it and runs for less than `seconds`.
    pub fn firsts(&self, ask: &Ask, seconds: i64, turns: Turns<'_>) -> impl Iterator<Item = (Turn, Group)> {
        let groups = self.asks.get(&(ask.shape.models.0, *ask)).into_iter().flat_map(|a| &a.groups);
        groups.filter_map(move |(group, row)| {
            let ((queued_at, job), _) = row.first_below(seconds)?;
            turns.admits(*group, ask).then(|| (turns.of(*group, queued_at, job), *group))
        })
    }

    /// The first of a group who may have this and runs for less than `seconds`, and for how long.
    pub fn first(&self, ask: &Ask, group: Group, seconds: i64, turns: Turns<'_>) -> Option<(Turn, i64)> {
        let row = self.asks.get(&(ask.shape.models.0, *ask))?.groups.get(&group)?;
        let ((queued_at, job), seconds) = row.first_below(seconds)?;
        turns.admits(group, ask).then(|| (turns.of(group, queued_at, job), seconds))
    }

    /// Remembers that runs of so many seconds and longer found no place.
    pub fn stick(&mut self, ask: &Ask, stuck: Stuck) {
        if let Some(lanes) = self.asks.get_mut(&(ask.shape.models.0, *ask)) {
            lanes.stuck = Some(stuck);
        }
    }

    /// The bookings inside which somebody waits.
    pub fn bookings(&self) -> Vec<BookingId> {
        self.inside.keys().copied().collect()
    }

    /// The turns of those who wait inside a booking, the first first.
    pub fn inside(&self, id: BookingId, turns: Turns<'_>) -> Vec<Turn> {
        let jobs = self.inside.get(&id).into_iter().flatten();
        let mut all: Vec<Turn> =
            jobs.map(|((queued_at, job), group)| turns.of(*group, *queued_at, *job)).collect();
        all.sort_unstable();
        all
    }

    /// Grows when somebody comes or goes inside a booking.
    pub fn inside_version(&self, id: BookingId) -> u64 {
        self.inside_versions.get(&id).copied().unwrap_or(0)
    }

    /// Grows with every coming and going.
    pub fn total_version(&self) -> u64 {
        self.version
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

    /// The first turn among those who wait for this set of models, may have what they ask for, and are not
    /// passed over.
    pub fn head(&self, pool: u64, turns: Turns<'_>, passed: &BTreeSet<(Ask, Group)>) -> Option<Turn> {
        let good = |ask: &Ask, group: Group| {
            turns.admits(group, ask) && (passed.is_empty() || !passed.contains(&(*ask, group)))
        };
        let heads = self.of_pool(pool).filter_map(|(group, line)| {
            let free = passed.is_empty() && !turns.limits(group);
            if free || line.jobs.get(&line.first).is_some_and(|ask| good(ask, group)) {
                return Some(turns.of(group, line.first.0, line.first.1));
            }
            // Others of the group may ask for less.
            let from = (Bound::Included((pool, Ask::LEAST)), Bound::Unbounded);
            let of_pool = self.asks.range(from).take_while(|((models, _), _)| *models == pool);
            let rows = of_pool.filter_map(|((_, ask), lanes)| Some((ask, lanes.groups.get(&group)?)));
            let firsts = rows.filter(|(ask, _)| good(ask, group)).filter_map(|(_, row)| Some(row.first?.0));
            let (queued_at, job) = firsts.min()?;
            Some(turns.of(group, queued_at, job))
        });
        heads.min()
    }

    /// The first turns among those who wait for this set of models and may have what they ask for.
    pub fn first_turns(&self, pool: u64, turns: Turns<'_>, limit: usize) -> Vec<Turn> {
        let lines: Vec<(Group, &Line)> = self.of_pool(pool).collect();
        // Most groups are never among the first, so only their first job is looked at.
        let first = |(index, (group, line)): (usize, &(Group, &Line))| {
            let first = (!turns.limits(*group)).then_some(line.first);
            let first = first.or_else(|| following(line, *group, turns, None))?;
            Some(Reverse((turns.of(*group, first.0, first.1), index)))
        };
        let mut next: BinaryHeap<Reverse<(Turn, usize)>> =
            lines.iter().enumerate().filter_map(first).collect();
        let mut out = Vec::new();
        while out.len() < limit
            && let Some(Reverse((turn, index))) = next.pop()
        {
            out.push(turn);
            let Some((group, line)) = lines.get(index) else { continue };
            let place = following(line, *group, turns, Some((turn.queued_at, turn.job)));
            next.extend(place.map(|(at, job)| Reverse((turns.of(*group, at, job), index))));
        }
        out
    }

    /// How many may start who wait for any of these models and have their turn before this one; counts to
    /// a limit.
    pub fn ahead(&self, models: Models, mine: Turn, turns: Turns<'_>, limit: usize) -> usize {
        let mut before = 0;
        for ((_, group), line) in self.order.iter().filter(|((pool, _), _)| pool & models.0 != 0) {
            for ((queued_at, job), ask) in &line.jobs {
                if before >= limit || turns.of(*group, *queued_at, *job) >= mine {
                    break;
                }
                before += usize::from(turns.admits(*group, ask));
            }
        }
        before
    }
}
