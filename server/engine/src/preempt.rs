//! Preemption: the choice of attempts that stop for a job of a higher class.
//!
//! Victims are preemptible attempts of a lower class, for a replica also those that borrow nodes for inference. The
//! engine takes the cheapest set that suffices, by the lost work, and only if the job then fits. For a replica the
//! attempts that give their devices back soonest are the cheapest.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use berth_types::ids::JobId;
use berth_types::time::Timestamp;

use super::facts::Claim;
use super::held::Basis;
use super::hold::{self, StartEstimate};
use super::node_pools::PreemptionRight;
use super::place::{self, Candidate, Limits};
use super::{Decision, Engine, Span, decide, run_end};
use berth_placement::calendar::Exclusions;
use berth_placement::cluster::{BookingId, NodeIx, Owner, View};
use berth_placement::pools::Work;
use berth_placement::request::Ask;

/// The largest number of candidates of which every set is tried.
const MAX_EXACT: usize = 10;

/// The number of nodes that a pass searches for one job.
const SCANNED_PER_JOB: usize = 32;

/// The number of nodes that a pass searches for all jobs; after that each job gets one node.
const SCANNED_PER_PASS: usize = 512;

/// The largest number of kept searches.
const MAX_SCANS: usize = 512;

/// The cost of a set of victims, compared in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct VictimCost {
    /// The longest time in ms in which they give their devices back; counted for replicas alone.
    back_ms: i64,
    lost_work: i64,
}

impl VictimCost {
    fn new(engine: &Engine, owners: &[Owner], right: PreemptionRight, now: Timestamp) -> Self {
        let back_ms = if right.replica { engine.claims.gives_back_ms(owners) } else { 0 };
        Self { back_ms, lost_work: engine.claims.lost_work(owners, now) }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            back_ms: self.back_ms.max(other.back_ms),
            lost_work: self.lost_work.saturating_add(other.lost_work),
        }
    }
}

/// A search for victims, node by node, for jobs of one class and ask.
#[derive(Debug, Clone)]
struct VictimScan {
    /// The first node that is not searched yet.
    next: usize,
    changes: u64,
    /// The length of the run in µs and the ignored bookings; another job may differ in both.
    length: i64,
    excluded: Vec<BookingId>,
    bookings: u64,
    /// The nodes with bookings at the last search.
    booked: BTreeSet<NodeIx>,
    /// The begin of the run: runs that end by then were no obstacle.
    from: Timestamp,
    /// The victims on each node.
    found: BTreeMap<NodeIx, Vec<Owner>>,
    /// The pass of the last use.
    last_use: u64,
}

/// The searches for victims, by ask and class.
#[derive(Debug, Clone, Default)]
pub(super) struct VictimScans {
    scans: HashMap<(Ask, i64), VictimScan>,
    /// The number of nodes that the searches of this pass may still visit.
    budget: usize,
    /// The number of passes so far.
    passes: u64,
}

/// The largest number of nodes of a cluster in which every waiting job may preempt.
const MOST_SEARCHED: usize = 256;

/// True in a cluster so small that every waiting job may preempt.
pub(super) fn is_searched(engine: &Engine) -> bool {
    engine.cluster.nodes().len() <= MOST_SEARCHED
}

/// A job that may preempt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Preemptor<'a> {
    pub class: i64,
    pub ask: Ask,
    pub now: Timestamp,
    /// The span of its run, after the graces of all runs that it may preempt.
    pub span: Span,
    /// Bookings that are no obstacle to the job.
    pub excluded: &'a [BookingId],
}

/// The result of a search for victims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum VictimSearch {
    /// The job fits after the end of these attempts; none if enough runs end by themselves as soon.
    Found(Vec<Owner>),
    /// The search continues in the next pass.
    Unfinished,
    /// No set of victims suffices.
    Impossible,
}

impl Preemptor<'_> {
    fn right(&self) -> PreemptionRight {
        PreemptionRight::new(&self.ask, self.class)
    }

    /// The length of its run in µs.
    fn length(&self) -> i64 {
        self.span.1.micros() - self.span.0.micros()
    }
}

impl VictimScan {
    fn new(preemptor: &Preemptor<'_>, changes: u64, bookings: u64, booked: BTreeSet<NodeIx>) -> Self {
        let (length, excluded) = (preemptor.length(), preemptor.excluded.to_vec());
        let (from, found) = (preemptor.span.0, BTreeMap::new());
        Self { next: 0, changes, length, excluded, bookings, booked, from, found, last_use: 0 }
    }
}

impl VictimScans {
    /// Begins a pass: resets the number of nodes that its searches may visit.
    pub(super) fn begin_pass(&mut self) {
        self.budget = SCANNED_PER_PASS;
        self.passes += 1;
    }

    /// The number of further nodes that a search may visit now.
    fn next_nodes(&self) -> usize {
        SCANNED_PER_JOB.min(self.budget.max(1))
    }

    /// Subtracts visited nodes from the budget of the pass.
    fn spend(&mut self, nodes: usize) {
        self.budget = self.budget.saturating_sub(nodes);
    }

    fn get(&self, key: (Ask, i64)) -> Option<&VictimScan> {
        self.scans.get(&key)
    }

    fn remove(&mut self, key: (Ask, i64)) -> Option<VictimScan> {
        self.scans.remove(&key)
    }

    fn insert(&mut self, key: (Ask, i64), mut scan: VictimScan) {
        scan.last_use = self.passes;
        if self.scans.len() >= MAX_SCANS {
            self.scans.retain(|_, scan| scan.last_use + 1 >= self.passes);
        }
        // Of too many searches in one pass those of earlier turns continue.
        if self.scans.len() < MAX_SCANS {
            self.scans.insert(key, scan);
        }
    }
}

/// Preempts for a job that does not fit, unless its own start (`starts`) is about as soon. The devices of
/// the victims are reserved for the job.
pub(super) fn for_job(
    engine: &mut Engine,
    pool: u64,
    job: JobId,
    starts: Option<Timestamp>,
    now: Timestamp,
    out: &mut Vec<Decision>,
) -> VictimSearch {
    let Some(waiting) = engine.jobs.get(&job) else { return VictimSearch::Impossible };
    let (Some(lane), Some(ask)) = (waiting.lane, waiting.ask) else { return VictimSearch::Impossible };
    let (class, seconds) = (lane.group.class, waiting.facts.max_duration_s);
    let excluded = hold::excluded_bookings(engine, job, false, now);
    let span = span_after_grace(engine, None, PreemptionRight::new(&ask, class), seconds, now);
    let preemptor = Preemptor { class, ask, now, span, excluded: &excluded };
    let search = search_victims(engine, &preemptor);
    let VictimSearch::Found(victims) = &search else { return search };
    let soon = run_end(now, engine.claims.wait_threshold_s(victims));
    let starts = starts.or_else(|| match hold::hold_start(engine, pool, job, Basis::Soon, now) {
        StartEstimate::At(at) => Some(at),
        _ => None,
    });
    let stops = !victims.is_empty() && starts.is_none_or(|at| at > soon);
    if stops {
        decide::preempt(engine, victims.clone(), Some(job), now, out);
    }
    hold::hold_start(engine, pool, job, if stops { Basis::Stopped } else { Basis::Soon }, now);
    search
}

/// The latest span of a run after the graces of its victims.
pub(super) fn span_after_grace(
    engine: &Engine,
    inside: Option<BookingId>,
    right: PreemptionRight,
    seconds: i64,
    now: Timestamp,
) -> Span {
    let from = run_end(now, engine.preemptible.longest_grace_s(inside, right));
    (from, run_end(from, seconds))
}

/// The victims for a job; none of them could stay.
fn search_victims(engine: &mut Engine, preemptor: &Preemptor<'_>) -> VictimSearch {
    let lowest = engine.preemptible.lowest(None, preemptor.right().replica);
    if lowest.is_none_or(|lowest| lowest >= preemptor.class) {
        return VictimSearch::Impossible;
    }
    let mut preemptor = *preemptor;
    if engine.burst_reserve.binds(&preemptor.ask) && engine.racks.is_empty() && !is_searched(engine) {
        // Each set of victims would need a search of all nodes, so a job stops runs on nodes without a reserve only.
        preemptor.ask.shape.work = Work::Training;
    }
    let preemptor = &preemptor;
    // Power and the reserve count on all nodes together.
    if !engine.racks.is_empty() || engine.burst_reserve.binds(&preemptor.ask) {
        let eligible = eligible(engine, preemptor.right(), None, preemptor.now);
        let all: Vec<NodeIx> = place::all_nodes(engine).collect();
        let fits = |owners: &[Owner]| fits_without(engine, preemptor, &all, owners).is_some();
        return cheapest_victims(eligible, &fits).map_or(VictimSearch::Impossible, VictimSearch::Found);
    }
    scan(engine, preemptor);
    let all = engine.cluster.nodes().len();
    match engine.caches.victim_scans.get((preemptor.ask, preemptor.class)) {
        Some(scan) if scan.next < all => VictimSearch::Unfinished,
        _ => victims(engine, preemptor).map_or(VictimSearch::Impossible, VictimSearch::Found),
    }
}

/// Returns true if a run of this length would fit after the end of all preemptible attempts.
pub(super) fn could_fit(engine: &Engine, preemptor: &Preemptor<'_>) -> bool {
    let eligible = eligible(engine, preemptor.right(), None, preemptor.now);
    let owners: Vec<Owner> = eligible.into_iter().map(|(_, owner)| owner).collect();
    let all: Vec<NodeIx> = place::all_nodes(engine).collect();
    fits_without(engine, preemptor, &all, &owners).is_some()
}

/// The attempts inside a booking or (`None`) outside all of them that a job may preempt, the cheapest first.
pub(super) fn eligible(
    engine: &Engine,
    right: PreemptionRight,
    inside: Option<BookingId>,
    now: Timestamp,
) -> Vec<(VictimCost, Owner)> {
    let may = |claim: &&Claim| claim.inside == inside && right.covers(&engine.cluster, claim);
    let priced = |claim: &Claim| (VictimCost::new(engine, &[claim.owner], right, now), claim.owner);
    let mut all: Vec<(VictimCost, Owner)> = engine.claims.iter().filter(may).map(priced).collect();
    all.sort_unstable();
    all
}

/// Returns true if a job may preempt an attempt. An attempt that starts in this pass is not preemptible.
fn is_preemptible_for(engine: &Engine, claim: &Claim, right: PreemptionRight) -> bool {
    right.covers(&engine.cluster, claim) && !engine.started.contains(&claim.owner)
}

/// Makes the attempts that started in the last pass preemptible, by marking their nodes as changed.
pub(super) fn forget_started(engine: &mut Engine) {
    for owner in std::mem::take(&mut engine.started) {
        let ranks = engine.claims.get(owner).filter(|c| c.preemptible.is_some()).map(|c| &c.ranks);
        let nodes: Vec<NodeIx> =
            ranks.into_iter().flatten().filter_map(|r| engine.cluster.find_node(r.node)).collect();
        nodes.into_iter().for_each(|node| engine.cluster.mark_changed(node));
    }
}

/// The places of a job after the end of these attempts.
fn fits_without(
    engine: &Engine,
    preemptor: &Preemptor<'_>,
    nodes: &[NodeIx],
    owners: &[Owner],
) -> Option<Vec<Candidate>> {
    let excluded = Exclusions { owners, bookings: preemptor.excluded, ..Exclusions::default() };
    place::find_places_at(engine, &preemptor.ask, nodes, preemptor.span, preemptor.now, excluded)
}

/// The cheapest set of victims; an empty set if enough runs end by themselves as soon.
fn victims(engine: &Engine, preemptor: &Preemptor<'_>) -> Option<Vec<Owner>> {
    let Preemptor { ask, class, now, .. } = *preemptor;
    let scan = engine.caches.victim_scans.get((ask, class))?;
    let cost = |owners: &[Owner]| VictimCost::new(engine, owners, preemptor.right(), now);
    let mut nodes: Vec<(VictimCost, Vec<Owner>, NodeIx)> = Vec::new();
    for (node, owners) in &scan.found {
        nodes.push((cost(owners), owners.clone(), *node));
    }
    nodes.sort();
    // An exact search on the cheapest nodes.
    for entry in nodes.iter_mut().take(MAX_EXACT) {
        if let Some(better) = victims_on(engine, entry.2, preemptor, true) {
            (entry.0, entry.1) = (cost(&better), better);
        }
    }
    nodes.sort();
    let offers = nodes.iter().enumerate().filter_map(|(rank, (_, owners, node))| {
        place::domain(engine, *node, ask.topology)?;
        let view = view_without(engine, *node, owners, preemptor)?;
        Some((rank as u64, *node, engine.finder.offer(&engine.cluster, &view, &ask.shape)?))
    });
    let offers = if ask.nodes == 1 { offers.take(1).collect() } else { offers.collect() };
    let chosen: Vec<NodeIx> =
        place::gather(engine, &ask, offers, Limits::default())?.iter().map(|(_, node, _)| *node).collect();
    let victims: BTreeSet<Owner> = nodes
        .iter()
        .filter(|(.., node)| chosen.contains(node))
        .flat_map(|(_, owners, _)| owners.iter().copied())
        .collect();
    let mut all: Vec<(VictimCost, Owner)> = victims.iter().map(|o| (cost(&[*o]), *o)).collect();
    all.sort_unstable();
    // The end of an attempt on several nodes may let other victims stay.
    let open = nodes.iter().filter(|(_, owners, _)| owners.iter().all(|o| victims.contains(o)));
    let open: Vec<NodeIx> = open.map(|(.., node)| *node).collect();
    let fits = |owners: &[Owner]| fits_without(engine, preemptor, &open, owners).is_some();
    Some(minimal_victims(all, &fits))
}

/// Continues a search: visits further nodes, and changed nodes again.
fn scan(engine: &mut Engine, preemptor: &Preemptor<'_>) {
    let (key, changes) = ((preemptor.ask, preemptor.class), engine.cluster.changes());
    let bookings = engine.calendar.version(preemptor.ask.shape.models);
    let old = engine.caches.victim_scans.remove(key);
    let changed = old.as_ref().and_then(|s| engine.cluster.changed_since(s.changes)).map(<[NodeIx]>::to_vec);
    let (mut scan, changed) = match (old, changed) {
        // A run that ends by a later time may not end by this one.
        (Some(scan), Some(changed)) if scan.from <= preemptor.span.0 => (scan, changed),
        _ => {
            let booked = engine.calendar.booked_nodes().collect();
            (VictimScan::new(preemptor, changes, bookings, booked), Vec::new())
        }
    };
    // With time bookings come nearer and end, and runs end.
    let mut again = changed;
    if scan.length == preemptor.length() && scan.excluded == preemptor.excluded && scan.bookings == bookings {
        let ends = |node: &&NodeIx| {
            let mut booked = engine.calendar.on(**node, scan.from, preemptor.span.0);
            booked.any(|b| b.until <= preemptor.span.0)
        };
        again.extend(scan.found.keys().filter(|node| !engine.calendar.is_free(**node)));
        again.extend(scan.booked.iter().filter(ends));
    } else {
        let before = std::mem::replace(&mut scan.booked, engine.calendar.booked_nodes().collect());
        again.extend(before.union(&scan.booked));
    }
    let ended = engine.ends.after(scan.from).take_while(|(end, _)| *end <= preemptor.span.0);
    let ranks = ended.filter_map(|(_, owner)| engine.claims.get(owner)).flat_map(|c| &c.ranks);
    again.extend(ranks.filter_map(|rank| engine.cluster.find_node(rank.node)));
    again.retain(|node| (node.0 as usize) < scan.next);
    again.sort_unstable();
    again.dedup();
    let end = (scan.next + engine.caches.victim_scans.next_nodes()).min(engine.cluster.nodes().len());
    let fresh = (scan.next..end).filter_map(|n| u32::try_from(n).ok()).map(NodeIx);
    engine.caches.victim_scans.spend(again.len() + end - scan.next);
    for node in again.into_iter().chain(fresh) {
        match victims_on(engine, node, preemptor, false) {
            Some(owners) => scan.found.insert(node, owners),
            None => scan.found.remove(&node),
        };
    }
    (scan.next, scan.changes, scan.from) = (end, changes, preemptor.span.0);
    (scan.length, scan.bookings) = (preemptor.length(), bookings);
    scan.excluded.clear();
    scan.excluded.extend_from_slice(preemptor.excluded);
    engine.caches.victim_scans.insert(key, scan);
}

/// The view of a node for a job after the end of these attempts.
fn view_without(engine: &Engine, node: NodeIx, owners: &[Owner], preemptor: &Preemptor<'_>) -> Option<View> {
    let excluded = Exclusions { owners, bookings: preemptor.excluded, ..Exclusions::default() };
    engine.calendar.view(&engine.cluster, node, preemptor.span, preemptor.now, excluded)
}

/// Victims on one node, none of which could stay; the cheapest set if `exact`.
fn victims_on(engine: &Engine, node: NodeIx, preemptor: &Preemptor<'_>, exact: bool) -> Option<Vec<Owner>> {
    let host = engine.cluster.node(node)?;
    let ask = &preemptor.ask;
    if !host.view().gpus().iter().any(|g| ask.shape.models.has(g.model)) {
        return None;
    }
    let fits = |owners: &[Owner]| {
        let view = view_without(engine, node, owners, preemptor);
        view.is_some_and(|v| engine.finder.offer(&engine.cluster, &v, &ask.shape).is_some())
    };
    if fits(&[]) {
        return Some(Vec::new());
    }
    let eligible = |owner: &Owner| {
        let claim = engine.claims.get(*owner)?;
        let right = preemptor.right();
        let may = claim.inside.is_none() && is_preemptible_for(engine, claim, right);
        may.then(|| (VictimCost::new(engine, &[*owner], right, preemptor.now), *owner))
    };
    let mut candidates: Vec<(VictimCost, Owner)> =
        host.ranks.iter().filter_map(|rank| eligible(&rank.owner)).collect();
    candidates.sort_unstable();
    if exact {
        return cheapest_victims(candidates, &fits);
    }
    let all: Vec<Owner> = candidates.iter().map(|(_, o)| *o).collect();
    if all.is_empty() || !fits(&all) {
        return None;
    }
    Some(minimal_victims(candidates, &fits))
}

/// The next time at which an end of a run or booking comes within a grace of preemptible runs.
pub(super) fn next_within_grace(engine: &Engine, inside: Option<BookingId>, now: Timestamp) -> Timestamp {
    let mut graces_s: Vec<i64> =
        engine.preemptible.graces_s(inside).into_iter().map(|(_, grace_s)| grace_s).collect();
    graces_s.dedup();
    let next = graces_s.into_iter().filter_map(|grace_s| {
        let soon = run_end(now, grace_s);
        let ends = engine.ends.after(soon).map(|(end, _)| end).next();
        let booked = engine.calendar.iter().map(|b| b.until).filter(|end| *end > soon).min();
        Some(ends.into_iter().chain(booked).min()?.plus_seconds(-grace_s))
    });
    next.min().unwrap_or(Timestamp::from_micros(i64::MAX))
}

/// The cheapest set of candidates that suffices, which may be empty. Of more than [`MAX_EXACT`] candidates it
/// is a set without a spare member. `None` if all candidates together do not suffice.
pub(super) fn cheapest_victims(
    candidates: Vec<(VictimCost, Owner)>,
    fits: &dyn Fn(&[Owner]) -> bool,
) -> Option<Vec<Owner>> {
    let all: Vec<Owner> = candidates.iter().map(|(_, o)| *o).collect();
    if fits(&[]) {
        return Some(Vec::new());
    }
    if all.is_empty() || !fits(&all) {
        return None;
    }
    if candidates.len() > MAX_EXACT {
        return Some(minimal_victims(candidates, fits));
    }
    let mut best: Option<(VictimCost, Vec<Owner>)> = None;
    for set in 1u32..1 << candidates.len().min(MAX_EXACT) {
        let chosen = || candidates.iter().enumerate().filter(|(i, _)| set >> i & 1 != 0).map(|(_, c)| c);
        let cost = chosen().fold(VictimCost::default(), |sum, (cost, _)| sum.plus(*cost));
        if best.as_ref().is_some_and(|(least, _)| cost >= *least) {
            continue;
        }
        let owners: Vec<Owner> = chosen().map(|(_, o)| *o).collect();
        if fits(&owners) {
            best = Some((cost, owners));
        }
    }
    best.map(|(_, owners)| owners)
}

/// A set without a spare member from candidates (the cheapest first) that suffice together: the shortest
/// prefix that suffices, then without its unneeded members, the dearest first.
fn minimal_victims(candidates: Vec<(VictimCost, Owner)>, fits: &dyn Fn(&[Owner]) -> bool) -> Vec<Owner> {
    let all: Vec<Owner> = candidates.into_iter().map(|(_, o)| o).collect();
    let (mut low, mut high) = (0, all.len());
    while low < high {
        let half = (low + high) / 2;
        if fits(all.get(..half).unwrap_or(&[])) { high = half } else { low = half + 1 }
    }
    let mut victims: Vec<Owner> = all.get(..high).unwrap_or(&[]).to_vec();
    for index in (0..victims.len()).rev() {
        let mut rest = victims.clone();
        rest.remove(index);
        if fits(&rest) {
            victims = rest;
        }
    }
    victims
}
