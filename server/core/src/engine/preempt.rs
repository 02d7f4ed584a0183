//! Who must make room for a job that outranks them.
//!
//! Only preemptible attempts of a lower class; the cheapest set that is enough, where the cost is the
//! work that would be lost; and only when the job then really fits.

use berth_types::ids::JobId;
use berth_types::time::Timestamp;

use super::{Decision, Engine};
use crate::cluster::{NodeIx, Owner};
use crate::request::Ask;

/// Up to so many candidates on a node every set of them is tried.
const EXACT: usize = 10;

impl Engine {
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
        let Some(lane) = waiting.lane else { return false };
        let until = self.ends(now, waiting.facts.max_duration_s);
        let found = self.victims(&lane.ask, lane.class, now, until).filter(|victims| {
            let graces = victims.iter().filter_map(|v| self.claims.get(v)?.preemptible);
            let grace = graces.max().unwrap_or(0).max(super::hold::LATE_S);
            starts.is_none_or(|at| at > self.ends(now, grace))
        });
        match found {
            None => {
                self.memory.no_victims.insert(job, changes);
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
    fn victims(&self, ask: &Ask, class: i64, now: Timestamp, until: Timestamp) -> Option<Vec<Owner>> {
        let mut nodes = Vec::new();
        for index in 0..self.cluster.nodes().len() {
            let node = NodeIx(u32::try_from(index).ok()?);
            if let Some((cost, owners)) = self.victims_on(node, ask, class, now, until) {
                nodes.push((cost, owners, node));
            }
        }
        nodes.sort();
        let offers = nodes.iter().filter_map(|(_, owners, node)| {
            let view = self.without(*node, owners, now, until)?;
            Some((0, *node, self.finder.offer(&self.cluster, &view, &ask.shape)?))
        });
        // Nodes come cheapest first, and `gather` keeps the order of equal offers only by node: so
        // the costs are ranks here.
        let ranked = offers.enumerate().map(|(rank, (_, node, offer))| (rank as u64, node, offer));
        let chosen = self.gather(ask, ranked.collect())?;
        let mut all: Vec<Owner> = nodes
            .into_iter()
            .filter(|(.., node)| chosen.iter().any(|(_, n, _)| n == node))
            .flat_map(|(_, owners, _)| owners)
            .collect();
        all.sort_unstable();
        all.dedup();
        (!all.is_empty()).then_some(all)
    }

    fn without(
        &self,
        node: NodeIx,
        owners: &[Owner],
        now: Timestamp,
        until: Timestamp,
    ) -> Option<crate::cluster::View> {
        let mut trial = self.cluster.node(node)?.clone();
        trial.ranks.retain(|r| !owners.contains(&r.owner));
        self.calendar.view_of(&self.cluster, node, &trial, (now, until), now, None)
    }

    /// The cheapest set on one node, with its cost: thousandths of a board × seconds that are lost.
    fn victims_on(
        &self,
        node: NodeIx,
        ask: &Ask,
        class: i64,
        now: Timestamp,
        until: Timestamp,
    ) -> Option<(i64, Vec<Owner>)> {
        let of = self.cluster.node(node)?;
        let mut candidates: Vec<(i64, Owner)> = of
            .ranks
            .iter()
            .filter_map(|rank| {
                let claim = self.claims.get(&rank.owner)?;
                claim.preemptible.filter(|_| claim.priority.rank() < class)?;
                let since = claim.saved_at.unwrap_or(claim.since).max(claim.since);
                let seconds = (now.micros() - since.micros()).max(0) / 1_000_000;
                Some((claim.milli.saturating_mul(seconds.max(1)), rank.owner))
            })
            .collect();
        let fits = |owners: &[Owner]| {
            let view = self.without(node, owners, now, until);
            view.is_some_and(|v| self.finder.offer(&self.cluster, &v, &ask.shape).is_some())
        };
        if fits(&[]) {
            return Some((0, Vec::new()));
        }
        candidates.sort_unstable();
        let all: Vec<Owner> = candidates.iter().map(|(_, o)| *o).collect();
        if candidates.is_empty() || !fits(&all) {
            return None;
        }
        if candidates.len() <= EXACT {
            return cheapest(&candidates, &fits);
        }
        // Too many for every set: the cheapest first until it fits, then those that were not needed.
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
        Some((taken.iter().map(|(c, _)| c).sum(), taken.into_iter().map(|(_, o)| o).collect()))
    }
}

fn cheapest(candidates: &[(i64, Owner)], fits: &dyn Fn(&[Owner]) -> bool) -> Option<(i64, Vec<Owner>)> {
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
    best
}
