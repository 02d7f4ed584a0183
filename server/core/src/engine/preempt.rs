//! Who must make room for a job that outranks them.
//!
//! Only preemptible attempts of a lower class; the cheapest set that is enough, where the cost is the
//! work that would be lost; and only when the job then really fits.

use std::collections::BTreeMap;

use berth_types::ids::JobId;
use berth_types::time::Timestamp;

use super::{Decision, Engine};
use crate::calendar::But;
use crate::cluster::{Cluster, NodeIx, Owner, View};
use crate::request::Ask;

/// Up to so many candidates on a node every set of them is tried.
const EXACT: usize = 10;

/// As many nodes are looked at in one pass.
const SCANNED: usize = 32;

/// Who could make room for a job on each node, found little by little.
#[derive(Debug, Clone)]
pub(super) struct Scan {
    /// Up to this node.
    next: usize,
    changes: u64,
    found: BTreeMap<NodeIx, Vec<Owner>>,
}

impl Scan {
    pub(super) fn is_unfinished(&self, cluster: &Cluster) -> bool {
        self.next < cluster.nodes().len()
    }
}

impl Engine {
    /// Whether a search goes on in the next pass, which should follow soon.
    pub fn unfinished(&self) -> bool {
        self.victims_unfinished() || self.holds_unfinished()
    }

    fn victims_unfinished(&self) -> bool {
        self.memory.victims.values().any(|s| s.next < self.cluster.nodes().len())
    }

    /// Decides who makes room for a job, and takes them as told. Nobody has to when the job starts
    /// as soon without it, which is also how those that were told already are not told again.
    pub(super) fn preempt(
        &mut self,
        job: JobId,
        starts: Option<Timestamp>,
        now: Timestamp,
        out: &mut Vec<Decision>,
    ) -> bool {
        let changes = self.cluster.changes();
        if self.memory.no_victims.get(&job) == Some(&changes) {
            return false;
        }
        let Some(waiting) = self.jobs.get(&job) else { return false };
        let (Some(lane), Some(ask)) = (waiting.lane, waiting.ask) else { return false };
        let until = self.ends(now, waiting.facts.max_duration_s);
        let found = self.victims((job, lane.group.class), &ask, now, until).filter(|victims| {
            let graces = victims.iter().filter_map(|v| self.claims.get(v)?.preemptible);
            let grace = graces.max().unwrap_or(0).max(super::hold::LATE_S);
            starts.is_none_or(|at| at > self.ends(now, grace))
        });
        match found {
            None => {
                if self.memory.victims.get(&job).is_none_or(|s| s.next >= self.cluster.nodes().len()) {
                    self.memory.no_victims.insert(job, changes);
                }
                false
            }
            Some(victims) => {
                for victim in victims {
                    let Some(claim) = self.claims.get(&victim) else { continue };
                    let mut told = claim.clone();
                    let grace = told.preemptible.take().unwrap_or(0);
                    told.ends_by = Some(self.ends(now, grace));
                    self.put_claim(told, now);
                    out.push(Decision::Preempt { victim, for_job: job });
                }
                true
            }
        }
    }

    /// The cheapest set whose end makes room; empty sets are never answered, since then it fits anyway.
    fn victims(
        &mut self,
        (job, class): (JobId, i64),
        ask: &Ask,
        now: Timestamp,
        until: Timestamp,
    ) -> Option<Vec<Owner>> {
        self.scan(job, class, ask, now, until);
        let scan = self.memory.victims.get(&job).filter(|s| s.next >= self.cluster.nodes().len())?;
        let mut nodes: Vec<(i64, Vec<Owner>, NodeIx)> = Vec::new();
        for (node, owners) in &scan.found {
            nodes.push((self.lost(owners, now), owners.clone(), *node));
        }
        nodes.sort();
        // The best of them exactly.
        for entry in nodes.iter_mut().take(EXACT) {
            if let Some(better) = self.victims_on(entry.2, ask, class, now, until, true) {
                (entry.0, entry.1) = (self.lost(&better, now), better);
            }
        }
        nodes.sort();
        let offers = nodes.iter().enumerate().filter_map(|(rank, (_, owners, node))| {
            let view = self.without(*node, owners, now, until)?;
            Some((rank as u64, *node, self.finder.offer(&self.cluster, &view, &ask.shape)?))
        });
        let some = if ask.nodes == 1 { offers.take(1).collect() } else { offers.collect() };
        let chosen = self.gather(ask, some)?;
        let mut all: Vec<Owner> = nodes
            .into_iter()
            .filter(|(.., node)| chosen.iter().any(|(_, n, _)| n == node))
            .flat_map(|(_, owners, _)| owners)
            .collect();
        all.sort_unstable();
        all.dedup();
        (!all.is_empty()).then_some(all)
    }

    /// Looks at some more nodes, and again at those that changed.
    fn scan(&mut self, job: JobId, class: i64, ask: &Ask, now: Timestamp, until: Timestamp) {
        let changes = self.cluster.changes();
        let old = self.memory.victims.remove(&job);
        let changed =
            old.as_ref().and_then(|s| self.cluster.changed_since(s.changes)).map(<[NodeIx]>::to_vec);
        let (mut scan, changed) = match (old, changed) {
            (Some(scan), Some(changed)) => (scan, changed),
            _ => (Scan { next: 0, changes, found: BTreeMap::new() }, Vec::new()),
        };
        let end = (scan.next + SCANNED).min(self.cluster.nodes().len());
        let fresh = (scan.next..end).filter_map(|n| u32::try_from(n).ok()).map(NodeIx);
        for node in changed.into_iter().filter(|n| (n.0 as usize) < scan.next).chain(fresh) {
            match self.victims_on(node, ask, class, now, until, false) {
                Some(owners) => scan.found.insert(node, owners),
                None => scan.found.remove(&node),
            };
        }
        (scan.next, scan.changes) = (end, changes);
        self.memory.victims.insert(job, scan);
    }

    fn without(&self, node: NodeIx, owners: &[Owner], now: Timestamp, until: Timestamp) -> Option<View> {
        let but = But { owners, ..But::default() };
        self.calendar.view(&self.cluster, node, (now, until), now, but)
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
    fn victims_on(
        &self,
        node: NodeIx,
        ask: &Ask,
        class: i64,
        now: Timestamp,
        until: Timestamp,
        exact: bool,
    ) -> Option<Vec<Owner>> {
        let of = self.cluster.node(node)?;
        let mut candidates: Vec<(i64, Owner)> = of
            .ranks
            .iter()
            .filter_map(|rank| {
                let claim = self.claims.get(&rank.owner)?;
                claim.preemptible.filter(|_| claim.priority.rank() < class)?;
                Some((self.lost(&[rank.owner], now), rank.owner))
            })
            .collect();
        let fits = |owners: &[Owner]| {
            let view = self.without(node, owners, now, until);
            view.is_some_and(|v| self.finder.offer(&self.cluster, &v, &ask.shape).is_some())
        };
        if !of.view().gpus().iter().any(|g| ask.shape.models.has(g.model)) {
            return None;
        }
        if fits(&[]) {
            return Some(Vec::new());
        }
        candidates.sort_unstable();
        let all: Vec<Owner> = candidates.iter().map(|(_, o)| *o).collect();
        if candidates.is_empty() || !fits(&all) {
            return None;
        }
        if exact && candidates.len() <= EXACT {
            return cheapest(&candidates, &fits);
        }
        // The cheapest first until it fits, then those that were not needed.
        let mut taken: Vec<(i64, Owner)> = Vec::new();
        for candidate in candidates {
            taken.push(candidate);
            if fits(&taken.iter().map(|(_, o)| *o).collect::<Vec<_>>()) {
                break;
            }
        }
        for index in (0..taken.len()).rev() {
            let rest: Vec<Owner> =
                taken.iter().enumerate().filter(|(i, _)| *i != index).map(|(_, (_, o))| *o).collect();
            if fits(&rest) {
                taken.remove(index);
            }
        }
        Some(taken.into_iter().map(|(_, owner)| owner).collect())
    }
}

fn cheapest(candidates: &[(i64, Owner)], fits: &dyn Fn(&[Owner]) -> bool) -> Option<Vec<Owner>> {
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
