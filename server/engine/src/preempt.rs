//! Preemption: the choice of attempts that stop for a job of a higher class.
//!
//! Victims are preemptible attempts of a lower class. The engine takes the cheapest set that suffices, by the
//! lost work, and only if the job then fits.

use std::collections::{BTreeMap, BTreeSet};

use berth_types::ids::JobId;
use berth_types::jobs::Priority;
use berth_types::time::Timestamp;

use super::Span;
use super::hold::StartEstimate;
use super::place::Candidate;
use super::{Basis, Decision, Engine};
use berth_placement::calendar::Exclusions;
use berth_placement::cluster::{BookingId, NodeIx, Owner, View};
use berth_placement::request::Ask;

/// No run is stopped for a job that starts within these seconds by itself.
pub(super) const SOON_S: i64 = 30;

/// The largest number of candidates of which every set is tried.
const MAX_EXACT: usize = 10;

/// The number of nodes that a pass searches for one job.
const SCANNED_PER_JOB: usize = 32;

/// The number of nodes that a pass searches for all jobs; after that each job gets one node.
const SCANNED_PER_PASS: usize = 512;

/// The largest number of kept searches.
const MAX_SCANS: usize = 512;

/// A search for victims, node by node, for jobs of one class and ask.
#[derive(Debug, Clone)]
pub(super) struct VictimScan {
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

impl Engine {
    /// Begins a pass: resets the number of nodes that its searches may visit.
    pub(super) fn reset_search_budget(&mut self) {
        self.caches.search_budget = SCANNED_PER_PASS;
        self.caches.passes += 1;
    }

    /// The lowest class of preemptible attempts, inside a booking or (`None`) outside all of them.
    pub(super) fn lowest_preemptible(&self, inside: Option<BookingId>) -> Option<i64> {
        let from = self.preemptible.range((inside, i64::MIN, i64::MIN)..);
        from.take_while(|((scope, ..), _)| *scope == inside).map(|((_, class, _), _)| *class).next()
    }

    /// For each class of attempts that some class may preempt, the longest grace up to that class in seconds.
    pub(super) fn graces_s(&self, inside: Option<BookingId>) -> Vec<(i64, i64)> {
        let from = (inside, i64::MIN, i64::MIN);
        let to = (inside, Priority::High.rank(), i64::MIN);
        let mut out: Vec<(i64, i64)> = Vec::new();
        for (_, class, grace_s) in self.preemptible.range(from..to).map(|(key, _)| *key) {
            let longest_s = out.last().map_or(0, |(_, longest_s)| *longest_s).max(grace_s);
            match out.last_mut().filter(|(last, _)| *last == class) {
                Some(last) => last.1 = longest_s,
                None => out.push((class, longest_s)),
            }
        }
        out
    }

    /// The longest grace of the attempts that a class may preempt, in seconds.
    pub(super) fn longest_grace_s(&self, inside: Option<BookingId>, class: i64) -> i64 {
        let graces = self.preemptible.range((inside, i64::MIN, i64::MIN)..(inside, class, i64::MIN));
        graces.map(|((.., grace_s), _)| *grace_s).max().unwrap_or(0)
    }

    /// Counts a preemptible attempt (`sign` 1), or one that has ended or stops (`sign` −1).
    pub(super) fn count_preemptible(&mut self, claim: &super::Claim, sign: i64) {
        let Some(grace_s) = claim.preemptible else { return };
        let key = (claim.inside, claim.priority.rank(), grace_s);
        let count = self.preemptible.entry(key).or_default();
        *count += sign;
        if *count <= 0 {
            self.preemptible.remove(&key);
        }
    }

    /// The longest grace of these victims, but at least [`SOON_S`]: no run is stopped for a start within
    /// these seconds.
    pub(super) fn wait_threshold_s(&self, victims: &[Owner]) -> i64 {
        let graces = victims.iter().filter_map(|v| self.claims.get(v)?.preemptible);
        graces.max().unwrap_or(0).max(SOON_S)
    }

    /// Stops attempts for a job: adds the decisions, and counts the attempts as stopping.
    pub(super) fn preempt(
        &mut self,
        victims: Vec<Owner>,
        for_job: JobId,
        now: Timestamp,
        out: &mut Vec<Decision>,
    ) {
        for victim in victims {
            let Some(claim) = self.claims.get(&victim) else { continue };
            let mut stopped = claim.clone();
            let grace = stopped.preemptible.take().unwrap_or(0);
            stopped.ends_by = Some(self.run_end(now, grace));
            (stopped.stops, stopped.stopped_for, stopped.requeues) = (true, Some(for_job), true);
            self.put_claim(stopped, now);
            out.push(Decision::Preempt { victim, for_job });
        }
    }

    /// Preempts for a job that does not fit, unless its own start (`starts`) is about as soon. The devices of
    /// the victims are reserved for the job.
    pub(super) fn preempt_for(
        &mut self,
        pool: u64,
        job: JobId,
        starts: Option<Timestamp>,
        now: Timestamp,
        out: &mut Vec<Decision>,
    ) -> VictimSearch {
        let Some(waiting) = self.jobs.get(&job) else { return VictimSearch::Impossible };
        let (Some(lane), Some(ask)) = (waiting.lane, waiting.ask) else { return VictimSearch::Impossible };
        let (class, seconds) = (lane.group.class, waiting.facts.max_duration_s);
        let excluded = self.excluded_bookings(job, false, now);
        let span = self.span_after_grace(None, class, seconds, now);
        let preemptor = Preemptor { class, ask, now, span, excluded: &excluded };
        let search = self.search_victims(&preemptor);
        let VictimSearch::Found(victims) = &search else { return search };
        let soon = self.run_end(now, self.wait_threshold_s(victims));
        let starts = starts.or_else(|| match self.hold(pool, job, Basis::Soon, now) {
            StartEstimate::At(at) => Some(at),
            _ => None,
        });
        let stops = !victims.is_empty() && starts.is_none_or(|at| at > soon);
        if stops {
            self.preempt(victims.clone(), job, now, out);
        }
        self.hold(pool, job, if stops { Basis::Stopped } else { Basis::Soon }, now);
        search
    }

    /// The latest span of a run after the graces of its victims.
    pub(super) fn span_after_grace(
        &self,
        inside: Option<BookingId>,
        class: i64,
        seconds: i64,
        now: Timestamp,
    ) -> Span {
        let from = self.run_end(now, self.longest_grace_s(inside, class));
        (from, self.run_end(from, seconds))
    }

    /// The victims for a job; none of them could stay.
    fn search_victims(&mut self, preemptor: &Preemptor<'_>) -> VictimSearch {
        if self.lowest_preemptible(None).is_none_or(|lowest| lowest >= preemptor.class) {
            return VictimSearch::Impossible;
        }
        if !self.racks.is_empty() {
            let eligible = self.eligible(preemptor.class, None, preemptor.now);
            let all: Vec<NodeIx> = self.all_nodes().collect();
            let fits = |owners: &[Owner]| self.fits_without(preemptor, &all, owners).is_some();
            return cheapest_victims(eligible, &fits).map_or(VictimSearch::Impossible, VictimSearch::Found);
        }
        self.scan(preemptor);
        let all = self.cluster.nodes().len();
        match self.caches.scans.get(&(preemptor.ask, preemptor.class)) {
            Some(scan) if scan.next < all => VictimSearch::Unfinished,
            _ => self.victims(preemptor).map_or(VictimSearch::Impossible, VictimSearch::Found),
        }
    }

    /// Returns true if a run of this length would fit after the end of all preemptible attempts.
    pub(super) fn could_fit(&self, preemptor: &Preemptor<'_>) -> bool {
        let owners: Vec<Owner> =
            self.eligible(preemptor.class, None, preemptor.now).into_iter().map(|(_, owner)| owner).collect();
        let all: Vec<NodeIx> = self.all_nodes().collect();
        self.fits_without(preemptor, &all, &owners).is_some()
    }

    pub(super) fn all_nodes(&self) -> impl Iterator<Item = NodeIx> + use<> {
        (0..self.cluster.nodes().len()).filter_map(|n| u32::try_from(n).ok()).map(NodeIx)
    }

    /// Returns true if a class may preempt an attempt. An attempt that starts in this pass is not
    /// preemptible.
    fn is_preemptible_for(&self, claim: &super::Claim, class: i64) -> bool {
        claim.preemptible.is_some() && claim.priority.rank() < class && !self.started.contains(&claim.owner)
    }

    /// Makes the attempts that started in the last pass preemptible, by marking their nodes as changed.
    pub(super) fn forget_started(&mut self) {
        for owner in std::mem::take(&mut self.started) {
            let ranks = self.claims.get(&owner).filter(|c| c.preemptible.is_some()).map(|c| &c.ranks);
            let nodes: Vec<NodeIx> =
                ranks.into_iter().flatten().filter_map(|r| self.cluster.find_node(r.node)).collect();
            nodes.into_iter().for_each(|node| self.cluster.mark_changed(node));
        }
    }

    /// The attempts that a class may preempt, with the lost work, the cheapest first.
    pub(super) fn eligible(
        &self,
        class: i64,
        inside: Option<BookingId>,
        now: Timestamp,
    ) -> Vec<(i64, Owner)> {
        let below =
            |c: &&super::Claim| c.preemptible.is_some() && c.priority.rank() < class && c.inside == inside;
        let mut all: Vec<(i64, Owner)> =
            self.claims.values().filter(below).map(|c| (self.lost_work(&[c.owner], now), c.owner)).collect();
        all.sort_unstable();
        all
    }

    fn fits_without(
        &self,
        preemptor: &Preemptor<'_>,
        nodes: &[NodeIx],
        owners: &[Owner],
    ) -> Option<Vec<Candidate>> {
        let excluded = Exclusions { owners, bookings: preemptor.excluded, ..Exclusions::default() };
        self.find_places_at(&preemptor.ask, nodes, preemptor.span, preemptor.now, excluded)
    }

    /// The cheapest set of victims; an empty set if enough runs end by themselves as soon.
    fn victims(&mut self, preemptor: &Preemptor<'_>) -> Option<Vec<Owner>> {
        let Preemptor { ask, class, now, .. } = *preemptor;
        let scan = self.caches.scans.get(&(ask, class))?;
        let mut nodes: Vec<(i64, Vec<Owner>, NodeIx)> = Vec::new();
        for (node, owners) in &scan.found {
            nodes.push((self.lost_work(owners, now), owners.clone(), *node));
        }
        nodes.sort();
        // An exact search on the cheapest nodes.
        for entry in nodes.iter_mut().take(MAX_EXACT) {
            if let Some(better) = self.victims_on(entry.2, preemptor, true) {
                (entry.0, entry.1) = (self.lost_work(&better, now), better);
            }
        }
        nodes.sort();
        let offers = nodes.iter().enumerate().filter_map(|(rank, (_, owners, node))| {
            self.domain(*node, ask.topology)?;
            let view = self.view_without(*node, owners, preemptor)?;
            Some((rank as u64, *node, self.finder.offer(&self.cluster, &view, &ask.shape)?))
        });
        let offers = if ask.nodes == 1 { offers.take(1).collect() } else { offers.collect() };
        let chosen: Vec<NodeIx> = self.gather(&ask, offers, None)?.iter().map(|(_, node, _)| *node).collect();
        let victims: BTreeSet<Owner> = nodes
            .iter()
            .filter(|(.., node)| chosen.contains(node))
            .flat_map(|(_, owners, _)| owners.iter().copied())
            .collect();
        let mut all: Vec<(i64, Owner)> = victims.iter().map(|o| (self.lost_work(&[*o], now), *o)).collect();
        all.sort_unstable();
        // The end of an attempt on several nodes may let other victims stay.
        let open = nodes.iter().filter(|(_, owners, _)| owners.iter().all(|o| victims.contains(o)));
        let open: Vec<NodeIx> = open.map(|(.., node)| *node).collect();
        let fits = |owners: &[Owner]| self.fits_without(preemptor, &open, owners).is_some();
        Some(minimal_victims(all, &fits))
    }

    /// Continues a search: visits further nodes, and changed nodes again.
    fn scan(&mut self, preemptor: &Preemptor<'_>) {
        let (key, changes) = ((preemptor.ask, preemptor.class), self.cluster.changes());
        let bookings = self.calendar.version(preemptor.ask.shape.models);
        let old = self.caches.scans.remove(&key);
        let changed =
            old.as_ref().and_then(|s| self.cluster.changed_since(s.changes)).map(<[NodeIx]>::to_vec);
        let (mut scan, changed) = match (old, changed) {
            // A run that ends by a later time may not end by this one.
            (Some(scan), Some(changed)) if scan.from <= preemptor.span.0 => (scan, changed),
            _ => {
                let booked = self.calendar.booked_nodes().collect();
                (VictimScan::new(preemptor, changes, bookings, booked), Vec::new())
            }
        };
        // With time bookings come nearer and end, and runs end.
        let mut again = changed;
        if scan.length == preemptor.length()
            && scan.excluded == preemptor.excluded
            && scan.bookings == bookings
        {
            let ends = |node: &&NodeIx| {
                let mut booked = self.calendar.on(**node, scan.from, preemptor.span.0);
                booked.any(|b| b.until <= preemptor.span.0)
            };
            again.extend(scan.found.keys().filter(|node| !self.calendar.is_free(**node)));
            again.extend(scan.booked.iter().filter(ends));
        } else {
            let before = std::mem::replace(&mut scan.booked, self.calendar.booked_nodes().collect());
            again.extend(before.union(&scan.booked));
        }
        let ended = self.ends_after(scan.from).take_while(|(end, _)| *end <= preemptor.span.0);
        let ranks = ended.filter_map(|(_, owner)| self.claims.get(&owner)).flat_map(|c| &c.ranks);
        again.extend(ranks.filter_map(|rank| self.cluster.find_node(rank.node)));
        again.retain(|node| (node.0 as usize) < scan.next);
        again.sort_unstable();
        again.dedup();
        let more = SCANNED_PER_JOB.min(self.caches.search_budget.max(1));
        let end = (scan.next + more).min(self.cluster.nodes().len());
        let fresh = (scan.next..end).filter_map(|n| u32::try_from(n).ok()).map(NodeIx);
        self.caches.search_budget = self.caches.search_budget.saturating_sub(again.len() + end - scan.next);
        for node in again.into_iter().chain(fresh) {
            match self.victims_on(node, preemptor, false) {
                Some(owners) => scan.found.insert(node, owners),
                None => scan.found.remove(&node),
            };
        }
        (scan.next, scan.changes, scan.from) = (end, changes, preemptor.span.0);
        (scan.length, scan.bookings) = (preemptor.length(), bookings);
        scan.excluded.clear();
        scan.excluded.extend_from_slice(preemptor.excluded);
        let pass = self.caches.passes;
        scan.last_use = pass;
        if self.caches.scans.len() >= MAX_SCANS {
            self.caches.scans.retain(|_, scan| scan.last_use + 1 >= pass);
        }
        // Of too many searches in one pass those of earlier turns continue.
        if self.caches.scans.len() < MAX_SCANS {
            self.caches.scans.insert(key, scan);
        }
    }

    fn view_without(&self, node: NodeIx, owners: &[Owner], preemptor: &Preemptor<'_>) -> Option<View> {
        let excluded = Exclusions { owners, bookings: preemptor.excluded, ..Exclusions::default() };
        self.calendar.view(&self.cluster, node, preemptor.span, preemptor.now, excluded)
    }

    /// The work that would be lost with these attempts, in thousandths of a board × seconds.
    fn lost_work(&self, owners: &[Owner], now: Timestamp) -> i64 {
        let each = |owner: &Owner| {
            let claim = self.claims.get(owner)?;
            let since = claim.saved_at.unwrap_or(claim.since).max(claim.since);
            let seconds = (now.micros() - since.micros()).max(0) / 1_000_000;
            Some(claim.milli.saturating_mul(seconds.max(1)))
        };
        owners.iter().filter_map(each).fold(0, i64::saturating_add)
    }

    /// Victims on one node, none of which could stay; the cheapest set if `exact`.
    fn victims_on(&self, node: NodeIx, preemptor: &Preemptor<'_>, exact: bool) -> Option<Vec<Owner>> {
        let host = self.cluster.node(node)?;
        let ask = &preemptor.ask;
        if !host.view().gpus().iter().any(|g| ask.shape.models.has(g.model)) {
            return None;
        }
        let fits = |owners: &[Owner]| {
            let view = self.view_without(node, owners, preemptor);
            view.is_some_and(|v| self.finder.offer(&self.cluster, &v, &ask.shape).is_some())
        };
        if fits(&[]) {
            return Some(Vec::new());
        }
        let eligible = |owner: &Owner| {
            let claim = self.claims.get(owner)?;
            let below = claim.inside.is_none() && self.is_preemptible_for(claim, preemptor.class);
            below.then(|| (self.lost_work(&[*owner], preemptor.now), *owner))
        };
        let mut candidates: Vec<(i64, Owner)> =
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
}

/// The cheapest set of candidates that suffices, which may be empty. Of more than [`MAX_EXACT`] candidates it
/// is a set without a spare member. `None` if all candidates together do not suffice.
pub(super) fn cheapest_victims(
    candidates: Vec<(i64, Owner)>,
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
    let mut best: Option<(i64, Vec<Owner>)> = None;
    for set in 1u32..1 << candidates.len().min(MAX_EXACT) {
        let chosen = || candidates.iter().enumerate().filter(|(i, _)| set >> i & 1 != 0).map(|(_, c)| c);
        let cost = chosen().fold(0i64, |sum, (c, _)| sum.saturating_add(*c));
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
fn minimal_victims(candidates: Vec<(i64, Owner)>, fits: &dyn Fn(&[Owner]) -> bool) -> Vec<Owner> {
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
