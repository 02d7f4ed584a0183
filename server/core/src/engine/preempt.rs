//! Who must make room for a job that outranks them.
//!
//! Only preemptible attempts of a lower class; the cheapest set that is enough, where the cost is the
//! work that would be lost; and only when the job then really fits.

use std::collections::{BTreeMap, BTreeSet};

use berth_types::ids::JobId;
use berth_types::jobs::Priority;
use berth_types::time::Timestamp;

use super::hold::Foreseen;
use super::place::{Candidate, Span};
use super::{Basis, Decision, Engine};
use crate::calendar::But;
use crate::cluster::{BookingId, NodeIx, Owner, View};
use crate::request::Ask;

/// Nobody is stopped for a job that starts within so many seconds anyway.
pub(super) const SOON_S: i64 = 30;

/// Up to so many candidates every set of them is tried.
const EXACT: usize = 10;

/// For one job as many nodes are looked at in one pass.
const SCANNED: usize = 32;

/// For all jobs as many nodes are looked at in one pass, after which each gets one node.
const SCANNED_IN_ALL: usize = 512;

/// Searches that are kept.
const SCANS: usize = 512;

/// The attempts that could make room on each node for jobs of one class and ask, found node by node.
#[derive(Debug, Clone)]
pub(super) struct Scan {
    /// Up to this node.
    next: usize,
    changes: u64,
    /// For runs of so long (µs), with what is booked but for these; other jobs may run longer, and have other
    /// obstacles.
    length: i64,
    but: Vec<BookingId>,
    bookings: u64,
    /// The nodes where something was booked.
    booked: BTreeSet<NodeIx>,
    /// What has ended by then was not in the way.
    from: Timestamp,
    found: BTreeMap<NodeIx, Vec<Owner>>,
    /// The pass in which it was called for last.
    called: u64,
}

/// A job for which others may make room.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claimant<'a> {
    pub class: i64,
    pub ask: Ask,
    pub now: Timestamp,
    /// When it would run: once all have ended who may be told to.
    pub span: Span,
    /// Bookings that are no obstacle to it.
    pub but: &'a [BookingId],
}

/// What a search for room came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Room {
    /// There would be room without these.
    Without(Vec<Owner>),
    /// Not all nodes were looked at yet.
    NotYet,
    None,
}

impl Claimant<'_> {
    /// How long it would run, in µs.
    fn length(&self) -> i64 {
        self.span.1.micros() - self.span.0.micros()
    }
}

impl Scan {
    fn new(claimant: &Claimant<'_>, changes: u64, bookings: u64, booked: BTreeSet<NodeIx>) -> Self {
        let (length, but) = (claimant.length(), claimant.but.to_vec());
        let (from, found) = (claimant.span.0, BTreeMap::new());
        Self { next: 0, changes, length, but, bookings, booked, from, found, called: 0 }
    }
}

impl Engine {
    /// Gives all searches of a pass their nodes to look at.
    pub(super) fn renew_looks(&mut self) {
        self.memory.looks = SCANNED_IN_ALL;
        self.memory.passes += 1;
    }

    /// The lowest class of attempts that may be told to make room, in the open or inside a booking.
    pub(super) fn lowest_preemptible(&self, inside: Option<BookingId>) -> Option<i64> {
        let from = self.preemptible.range((inside, i64::MIN, i64::MIN)..);
        from.take_while(|((scope, ..), _)| *scope == inside).map(|((_, class, _), _)| *class).next()
    }

    /// For each class of attempts that some class may tell to make room: the longest grace up to that class, in
    /// seconds.
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

    /// The longest grace of those whom a class may tell to make room, in seconds.
    pub(super) fn longest_grace_s(&self, inside: Option<BookingId>, class: i64) -> i64 {
        let of = self.preemptible.range((inside, i64::MIN, i64::MIN)..(inside, class, i64::MIN));
        of.map(|((.., grace_s), _)| *grace_s).max().unwrap_or(0)
    }

    /// Counts an attempt that may be told to make room, or (`sign` −1) is gone or was told.
    pub(super) fn count_preemptible(&mut self, claim: &super::Claim, sign: i64) {
        let Some(grace_s) = claim.preemptible else { return };
        let key = (claim.inside, claim.priority.rank(), grace_s);
        let count = self.preemptible.entry(key).or_default();
        *count += sign;
        if *count <= 0 {
            self.preemptible.remove(&key);
        }
    }

    /// Seconds that these need to end, and at least so many as a start may be away for which nobody is stopped.
    pub(super) fn patience_s(&self, victims: &[Owner]) -> i64 {
        let graces = victims.iter().filter_map(|v| self.claims.get(v)?.preemptible);
        graces.max().unwrap_or(0).max(SOON_S)
    }

    /// Tells attempts to make room, and takes them as told.
    pub(super) fn stop(
        &mut self,
        victims: Vec<Owner>,
        for_job: JobId,
        now: Timestamp,
        out: &mut Vec<Decision>,
    ) {
        for victim in victims {
            let Some(claim) = self.claims.get(&victim) else { continue };
            let mut told = claim.clone();
            let grace = told.preemptible.take().unwrap_or(0);
            told.ends_by = Some(self.ends(now, grace));
            (told.stops, told.stopped_for, told.requeues) = (true, Some(for_job), true);
            self.put_claim(told, now);
            out.push(Decision::Preempt { victim, for_job });
        }
    }

    /// Makes room for a job that does not fit, unless its start is known to be about as soon (`starts`). The room
    /// of those who are stopped is held for it alone.
    pub(super) fn make_room(
        &mut self,
        pool: u64,
        job: JobId,
        starts: Option<Timestamp>,
        now: Timestamp,
        out: &mut Vec<Decision>,
    ) -> Room {
        let Some(waiting) = self.jobs.get(&job) else { return Room::None };
        let (Some(lane), Some(ask)) = (waiting.lane, waiting.ask) else { return Room::None };
        let (class, seconds) = (lane.group.class, waiting.facts.max_duration_s);
        let but = self.no_obstacles(job, false, now);
        let span = self.span_after_grace(None, class, seconds, now);
        let claimant = Claimant { class, ask, now, span, but: &but };
        let room = self.room(&claimant);
        let Room::Without(victims) = &room else { return room };
        let soon = self.ends(now, self.patience_s(victims));
        let starts = starts.or_else(|| match self.hold(pool, job, Basis::Soon, now) {
            Foreseen::At(at) => Some(at),
            _ => None,
        });
        let stops = !victims.is_empty() && starts.is_none_or(|at| at > soon);
        if stops {
            self.stop(victims.clone(), job, now, out);
        }
        self.hold(pool, job, if stops { Basis::Stopped } else { Basis::Soon }, now);
        room
    }

    /// When a job could run at the latest for which others have to end first.
    pub(super) fn span_after_grace(
        &self,
        inside: Option<BookingId>,
        class: i64,
        seconds: i64,
        now: Timestamp,
    ) -> Span {
        let from = self.ends(now, self.longest_grace_s(inside, class));
        (from, self.ends(from, seconds))
    }

    /// Who would have to go for a job to fit; nobody of them could stay.
    fn room(&mut self, claimant: &Claimant<'_>) -> Room {
        if self.lowest_preemptible(None).is_none_or(|lowest| lowest >= claimant.class) {
            return Room::None;
        }
        if !self.racks.is_empty() {
            let eligible = self.eligible(claimant.class, None, claimant.now);
            let all: Vec<NodeIx> = self.all_nodes().collect();
            let fits = |owners: &[Owner]| self.fits_without(claimant, &all, owners).is_some();
            return fewest(eligible, &fits).map_or(Room::None, Room::Without);
        }
        self.scan(claimant);
        let all = self.cluster.nodes().len();
        match self.memory.scans.get(&(claimant.ask, claimant.class)) {
            Some(scan) if scan.next < all => Room::NotYet,
            _ => self.victims(claimant).map_or(Room::None, Room::Without),
        }
    }

    /// Whether a run of this length would fit now if everybody went who may be told to.
    pub(super) fn could_fit(&self, claimant: &Claimant<'_>) -> bool {
        let owners: Vec<Owner> =
            self.eligible(claimant.class, None, claimant.now).into_iter().map(|(_, owner)| owner).collect();
        let all: Vec<NodeIx> = self.all_nodes().collect();
        self.fits_without(claimant, &all, &owners).is_some()
    }

    pub(super) fn all_nodes(&self) -> impl Iterator<Item = NodeIx> + use<> {
        (0..self.cluster.nodes().len()).filter_map(|n| u32::try_from(n).ok()).map(NodeIx)
    }

    /// Whether an attempt may be told to make room for a class. One that starts in this pass is not.
    fn makes_room(&self, claim: &super::Claim, class: i64) -> bool {
        claim.preemptible.is_some() && claim.priority.rank() < class && !self.started.contains(&claim.owner)
    }

    /// Those who started in the last pass may be told to make room from now on.
    pub(super) fn forget_started(&mut self) {
        for owner in std::mem::take(&mut self.started) {
            let ranks = self.claims.get(&owner).filter(|c| c.preemptible.is_some()).map(|c| &c.ranks);
            let nodes: Vec<NodeIx> =
                ranks.into_iter().flatten().filter_map(|r| self.cluster.find_node(r.node)).collect();
            nodes.into_iter().for_each(|node| self.cluster.stir(node));
        }
    }

    /// The attempts that a class may tell to make room, the cheapest first.
    pub(super) fn eligible(
        &self,
        class: i64,
        inside: Option<BookingId>,
        now: Timestamp,
    ) -> Vec<(i64, Owner)> {
        let below =
            |c: &&super::Claim| c.preemptible.is_some() && c.priority.rank() < class && c.inside == inside;
        let mut all: Vec<(i64, Owner)> =
            self.claims.values().filter(below).map(|c| (self.lost(&[c.owner], now), c.owner)).collect();
        all.sort_unstable();
        all
    }

    fn fits_without(
        &self,
        claimant: &Claimant<'_>,
        nodes: &[NodeIx],
        owners: &[Owner],
    ) -> Option<Vec<Candidate>> {
        let but = But { owners, bookings: claimant.but, away: false };
        self.place_at(&claimant.ask, nodes, claimant.span, claimant.now, but)
    }

    /// The cheapest set whose end makes room; an empty one where enough ends by itself as soon.
    fn victims(&mut self, claimant: &Claimant<'_>) -> Option<Vec<Owner>> {
        let Claimant { ask, class, now, .. } = *claimant;
        let scan = self.memory.scans.get(&(ask, class))?;
        let mut nodes: Vec<(i64, Vec<Owner>, NodeIx)> = Vec::new();
        for (node, owners) in &scan.found {
            nodes.push((self.lost(owners, now), owners.clone(), *node));
        }
        nodes.sort();
        // The best of them exactly.
        for entry in nodes.iter_mut().take(EXACT) {
            if let Some(better) = self.victims_on(entry.2, claimant, true) {
                (entry.0, entry.1) = (self.lost(&better, now), better);
            }
        }
        nodes.sort();
        let offers = nodes.iter().enumerate().filter_map(|(rank, (_, owners, node))| {
            self.domain(*node, ask.topology)?;
            let view = self.without(*node, owners, claimant)?;
            Some((rank as u64, *node, self.finder.offer(&self.cluster, &view, &ask.shape)?))
        });
        let some = if ask.nodes == 1 { offers.take(1).collect() } else { offers.collect() };
        let chosen: Vec<NodeIx> = self.gather(&ask, some, None)?.iter().map(|(_, node, _)| *node).collect();
        let gone: BTreeSet<Owner> = nodes
            .iter()
            .filter(|(.., node)| chosen.contains(node))
            .flat_map(|(_, owners, _)| owners.iter().copied())
            .collect();
        let mut all: Vec<(i64, Owner)> = gone.iter().map(|o| (self.lost(&[*o], now), *o)).collect();
        all.sort_unstable();
        // One that runs on several nodes may make enough room for others to stay.
        let open = nodes.iter().filter(|(_, owners, _)| owners.iter().all(|o| gone.contains(o)));
        let open: Vec<NodeIx> = open.map(|(.., node)| *node).collect();
        let fits = |owners: &[Owner]| self.fits_without(claimant, &open, owners).is_some();
        Some(spare(all, &fits))
    }

    /// Looks at some more nodes, and again at those that changed.
    fn scan(&mut self, claimant: &Claimant<'_>) {
        let (key, changes) = ((claimant.ask, claimant.class), self.cluster.changes());
        let bookings = self.calendar.version(claimant.ask.shape.models);
        let old = self.memory.scans.remove(&key);
        let changed =
            old.as_ref().and_then(|s| self.cluster.changed_since(s.changes)).map(<[NodeIx]>::to_vec);
        let (mut scan, changed) = match (old, changed) {
            // A run that ends by a later time may not end by this one.
            (Some(scan), Some(changed)) if scan.from <= claimant.span.0 => (scan, changed),
            _ => {
                let booked = self.calendar.booked_nodes().collect();
                (Scan::new(claimant, changes, bookings, booked), Vec::new())
            }
        };
        // Time alone brings what is booked nearer and ends it, and ends what runs.
        let mut again = changed;
        if scan.length == claimant.length() && scan.but == claimant.but && scan.bookings == bookings {
            let ends = |node: &&NodeIx| {
                let mut booked = self.calendar.on(**node, scan.from, claimant.span.0);
                booked.any(|b| b.until <= claimant.span.0)
            };
            again.extend(scan.found.keys().filter(|node| !self.calendar.is_free(**node)));
            again.extend(scan.booked.iter().filter(ends));
        } else {
            let before = std::mem::replace(&mut scan.booked, self.calendar.booked_nodes().collect());
            again.extend(before.union(&scan.booked));
        }
        let ended = self.ends_after(scan.from).take_while(|(end, _)| *end <= claimant.span.0);
        let ranks = ended.filter_map(|(_, owner)| self.claims.get(&owner)).flat_map(|c| &c.ranks);
        again.extend(ranks.filter_map(|rank| self.cluster.find_node(rank.node)));
        again.retain(|node| (node.0 as usize) < scan.next);
        again.sort_unstable();
        again.dedup();
        let more = SCANNED.min(self.memory.looks.max(1));
        let end = (scan.next + more).min(self.cluster.nodes().len());
        let fresh = (scan.next..end).filter_map(|n| u32::try_from(n).ok()).map(NodeIx);
        self.memory.looks = self.memory.looks.saturating_sub(again.len() + end - scan.next);
        for node in again.into_iter().chain(fresh) {
            match self.victims_on(node, claimant, false) {
                Some(owners) => scan.found.insert(node, owners),
                None => scan.found.remove(&node),
            };
        }
        (scan.next, scan.changes, scan.from) = (end, changes, claimant.span.0);
        (scan.length, scan.bookings) = (claimant.length(), bookings);
        scan.but.clear();
        scan.but.extend_from_slice(claimant.but);
        let pass = self.memory.passes;
        scan.called = pass;
        if self.memory.scans.len() >= SCANS {
            self.memory.scans.retain(|_, scan| scan.called + 1 >= pass);
        }
        // Of too many searches in one pass those of the earlier turns go on.
        if self.memory.scans.len() < SCANS {
            self.memory.scans.insert(key, scan);
        }
    }

    fn without(&self, node: NodeIx, owners: &[Owner], claimant: &Claimant<'_>) -> Option<View> {
        let but = But { owners, bookings: claimant.but, away: false };
        self.calendar.view(&self.cluster, node, claimant.span, claimant.now, but)
    }

    /// The work that is lost with these: thousandths of a board × seconds.
    fn lost(&self, owners: &[Owner], now: Timestamp) -> i64 {
        let each = |owner: &Owner| {
            let claim = self.claims.get(owner)?;
            let since = claim.saved_at.unwrap_or(claim.since).max(claim.since);
            let seconds = (now.micros() - since.micros()).max(0) / 1_000_000;
            Some(claim.milli.saturating_mul(seconds.max(1)))
        };
        owners.iter().filter_map(each).fold(0, i64::saturating_add)
    }

    /// A set on one node that is enough, none of whom could stay; the cheapest when `exact`.
    fn victims_on(&self, node: NodeIx, claimant: &Claimant<'_>, exact: bool) -> Option<Vec<Owner>> {
        let of = self.cluster.node(node)?;
        let ask = &claimant.ask;
        if !of.view().gpus().iter().any(|g| ask.shape.models.has(g.model)) {
            return None;
        }
        let fits = |owners: &[Owner]| {
            let view = self.without(node, owners, claimant);
            view.is_some_and(|v| self.finder.offer(&self.cluster, &v, &ask.shape).is_some())
        };
        if fits(&[]) {
            return Some(Vec::new());
        }
        let eligible = |owner: &Owner| {
            let claim = self.claims.get(owner)?;
            let below = claim.inside.is_none() && self.makes_room(claim, claimant.class);
            below.then(|| (self.lost(&[*owner], claimant.now), *owner))
        };
        let mut candidates: Vec<(i64, Owner)> =
            of.ranks.iter().filter_map(|rank| eligible(&rank.owner)).collect();
        candidates.sort_unstable();
        if exact {
            return fewest(candidates, &fits);
        }
        let all: Vec<Owner> = candidates.iter().map(|(_, o)| *o).collect();
        if all.is_empty() || !fits(&all) {
            return None;
        }
        Some(spare(candidates, &fits))
    }
}

/// The cheapest set that is enough, which may be nobody; of many candidates one that is enough and of whom nobody could stay.
/// `None` where all of them are not enough.
pub(super) fn fewest(candidates: Vec<(i64, Owner)>, fits: &dyn Fn(&[Owner]) -> bool) -> Option<Vec<Owner>> {
    let all: Vec<Owner> = candidates.iter().map(|(_, o)| *o).collect();
    if fits(&[]) {
        return Some(Vec::new());
    }
    if all.is_empty() || !fits(&all) {
        return None;
    }
    if candidates.len() > EXACT {
        return Some(spare(candidates, fits));
    }
    let mut best: Option<(i64, Vec<Owner>)> = None;
    for set in 1u32..1 << candidates.len().min(EXACT) {
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

/// Of candidates (the cheapest first) who are enough together, those who must go: first as few of the
/// cheapest as are enough, then without those who were not needed, the dearest of them first.
fn spare(candidates: Vec<(i64, Owner)>, fits: &dyn Fn(&[Owner]) -> bool) -> Vec<Owner> {
    let all: Vec<Owner> = candidates.into_iter().map(|(_, o)| o).collect();
    let (mut few, mut many) = (0, all.len());
    while few < many {
        let half = (few + many) / 2;
        if fits(all.get(..half).unwrap_or(&[])) { many = half } else { few = half + 1 }
    }
    let mut stays: Vec<Owner> = all.get(..many).unwrap_or(&[]).to_vec();
    for index in (0..stays.len()).rev() {
        let mut rest = stays.clone();
        rest.remove(index);
        if fits(&rest) {
            stays = rest;
        }
    }
    stays
}
