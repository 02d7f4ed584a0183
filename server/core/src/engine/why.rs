//! Why a job waits: everything that keeps it back, the smallest change that would not, and when it may start.

use std::sync::Arc;

use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::{Condition, DependsOn};
use berth_types::time::Timestamp;

use super::Engine;
use super::facts::HeldVolume;
use crate::cluster::{BookingId, NodeIx, Rank, Slot};
use crate::fair_share::OrgIx;
use crate::quotas::Exceeded;
use crate::request::{Absurd, Ask, Request, Topology};

/// As many jobs before one are counted.
const COUNTED: usize = 1_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Blocker {
    /// No cluster could ever give that.
    Absurd(Absurd),
    /// Jobs that have not ended yet, or not as they had to.
    Dependency(Vec<JobId>),
    /// Another job writes to a volume that this one would write to.
    Volume(HeldVolume),
    /// Its booking is over, not begun, not its organization's or too short.
    Booking(BookingId),
    /// The cloud has no such boards, or not as many together: at most so many devices a node, nodes.
    None { count: u32, nodes: u32 },
    /// So many suitable nodes have no room now.
    Busy { nodes: u32 },
    /// On so many nodes there are boards, but not the processors or the memory beside them: not now, or
    /// not at all.
    Host { nodes: u32, ever: bool },
    /// So many nodes would do, but run no images.
    Images { nodes: u32 },
    /// So many suitable nodes take no work.
    Away { nodes: u32 },
    /// A rack has power left for less than this needs.
    Power(Short),
    /// So many suitable boards are in quarantine.
    Quarantined { boards: u32 },
    /// It would still run when something that is promised begins.
    Promised { begins: Timestamp },
    /// So many are before it.
    Ahead { jobs: u32 },
    /// Its organization would go beyond a limit.
    Quota(Exceeded),
}

/// A rack that cannot feed something beside what else draws there; in watts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Short {
    pub rack: Arc<str>,
    pub left: i64,
    pub budget: i64,
    pub need: i64,
}

/// A change of the request after which it could start now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Run at most so many seconds.
    Seconds(i64),
    /// Ask for so many devices a node.
    Count(u32),
    /// Ask for so many nodes.
    Nodes(u32),
    /// Let the nodes be anywhere.
    Anywhere,
    /// Let the devices be without NVLink.
    WithoutNvlink,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Why {
    pub blockers: Vec<Blocker>,
    /// Each of them is enough; what they hold is needed together.
    pub changes: Vec<Vec<Change>>,
    pub earliest: Option<Timestamp>,
    /// It fits now: the next pass starts it.
    pub fits: bool,
}

impl Engine {
    /// Why a job that waits does not start. `None`: it does not wait.
    pub fn why(&mut self, job: JobId, now: Timestamp) -> Option<Why> {
        let waiting = self.jobs.get(&job)?.clone();
        let facts = &waiting.facts;
        let mut blockers = Vec::new();
        let open = |d: &&DependsOn| match self.outcomes.get(&d.job) {
            Some(succeeded) => !succeeded && d.condition == Condition::Succeeded,
            None => true,
        };
        let on: Vec<JobId> = facts.depends_on.iter().filter(open).map(|d| d.job).collect();
        if !on.is_empty() {
            blockers.push(Blocker::Dependency(on));
        }
        if let Some(held) = facts.volume.clone() {
            // Where it could run then is looked at then.
            blockers.push(Blocker::Volume(held));
            return Some(Why { blockers, changes: Vec::new(), earliest: None, fits: false });
        }
        let ask = match Ask::of(&facts.request, facts.org, &mut self.cluster) {
            Ok(ask) => ask,
            Err(absurd) => {
                blockers.push(Blocker::Absurd(absurd));
                return Some(Why { blockers, changes: Vec::new(), earliest: None, fits: false });
            }
        };
        if let Some(id) = facts.inside {
            let until = self.ends(now, facts.max_duration_s);
            let good = self
                .calendar
                .get(id)
                .is_some_and(|b| b.org == facts.org && b.from <= now && until <= b.until);
            if !good {
                blockers.push(Blocker::Booking(id));
            }
            let fits = good && self.place_inside(&ask, id).is_some();
            if good && !fits {
                let mut plain = ask;
                plain.shape.images = false;
                let images = ask.shape.images && self.place_inside(&plain, id).is_some();
                let nodes = ask.nodes;
                blockers.push(if images { Blocker::Images { nodes } } else { Blocker::Busy { nodes } });
            }
            let begins = self.calendar.get(id).map(|b| b.from).filter(|from| *from > now);
            return Some(Why { blockers, changes: Vec::new(), earliest: begins, fits });
        }
        let ahead = waiting.lane.map_or(0, |lane| {
            let turns = self.turns(now);
            let turn = turns.of(lane.group, facts.queued_at, job);
            self.queue.ahead(ask.shape.models.0, turn, turns, COUNTED)
        });
        let own = self.holds.values().find(|h| h.job == job).map(|h| (h.booking, h.at));
        let mut why = self.why_ask(&ask, facts.org, facts.max_duration_s, own.map(|(id, _)| id), now);
        blockers.append(&mut why.blockers);
        why.blockers = blockers;
        if ahead > 0 && !why.fits {
            why.blockers.push(Blocker::Ahead { jobs: u32::try_from(ahead).unwrap_or(u32::MAX) });
        }
        // A start that is held for want of power alone is due all the time.
        let short = why.blockers.iter().any(|b| matches!(b, Blocker::Power(_)));
        let soon = self.ends(now, super::hold::LATE_S);
        why.earliest = own.map(|(_, at)| at).filter(|at| !short || *at > soon).or(why.earliest);
        Some(why)
    }

    /// What would become of a request if it were submitted now: why it would wait, or where it would
    /// start. An absurd one is refused.
    pub fn trial(
        &mut self,
        request: &Request,
        org: OrgId,
        seconds: i64,
        now: Timestamp,
    ) -> Result<(Why, Vec<(NodeId, Vec<Slot>)>), Absurd> {
        let ask = Ask::of(request, org, &mut self.cluster)?;
        let why = self.why_ask(&ask, org, seconds, None, now);
        let until = self.ends(now, seconds);
        let places = if why.fits { self.place(&ask, now, until, None) } else { None };
        let places = places.unwrap_or_default();
        let named = places.into_iter().filter_map(|p| Some((self.node_id(p.node)?, p.slots)));
        Ok((why, named.collect()))
    }

    /// The same for a request that is not submitted.
    fn why_ask(
        &mut self,
        ask: &Ask,
        org: OrgId,
        seconds: i64,
        own: Option<BookingId>,
        now: Timestamp,
    ) -> Why {
        let org = self.shares.index(org);
        let need = ask.need(&self.cluster);
        let limits: Vec<Blocker> = self.quotas.beyond(org, &need).map(Blocker::Quota).collect();
        if limits.is_empty() {
            return self.why_place(ask, org, seconds, own, now);
        }
        let place = self.why_place(ask, org, seconds, own, now);
        let blockers = limits.into_iter().chain(place.blockers).collect();
        let changes = if place.fits { self.changes(ask, org, seconds, own, now) } else { place.changes };
        // When others of its organization end is not known to be when their limits say.
        Why { blockers, changes, earliest: None, fits: false }
    }

    /// The same as far as places go.
    fn why_place(
        &mut self,
        ask: &Ask,
        org: OrgIx,
        seconds: i64,
        own: Option<BookingId>,
        now: Timestamp,
    ) -> Why {
        let until = self.ends(now, seconds);
        if self.place(ask, now, until, own).is_some() {
            return Why { blockers: Vec::new(), changes: Vec::new(), earliest: Some(now), fits: true };
        }
        if let Some(short) = self.short_of_power(ask, (now, until), own) {
            let changes = self.changes(ask, org, seconds, own, now);
            let blockers = vec![Blocker::Power(short)];
            return Why { blockers, changes, earliest: None, fits: false };
        }
        let able = self.able(ask);
        let mut bare = *ask;
        (bare.shape.cpu_milli, bare.shape.memory_mib) = (0, 0);
        if let Some(blocker) = self.why_unable(ask, &able) {
            return Why { blockers: vec![blocker], changes: Vec::new(), earliest: None, fits: false };
        }
        let most = self.most(ask, &able);
        if most.0 < ask.shape.count || most.1 < ask.nodes {
            let blockers = vec![Blocker::None { count: most.0, nodes: most.1 }];
            return Why {
                blockers,
                changes: self.changes(ask, org, seconds, own, now),
                earliest: None,
                fits: false,
            };
        }
        let mut blockers = Vec::new();
        let (mut busy, mut away, mut sick, mut host) = (0, 0, 0, 0);
        let mut begins: Option<Timestamp> = None;
        for node in &able {
            let Some(of) = self.cluster.node(*node) else { continue };
            if !of.facts.open {
                away += 1;
                continue;
            }
            let fits = |view| self.finder.offer(&self.cluster, &view, &ask.shape).is_some();
            if fits(*of.view()) {
                let soon =
                    self.calendar.on(*node, now, until).filter(|b| Some(b.id) != own).map(|b| b.from).min();
                begins = begins.max(soon);
                continue;
            }
            let boards = |view| self.finder.offer(&self.cluster, &view, &bare.shape).is_some();
            if boards(*of.view()) {
                host += 1;
            } else if self.cluster.view_with(*node, |_: &Rank| false).is_some_and(fits) {
                busy += 1;
            }
            let unhealthy = of.facts.gpus.iter().filter(|g| !g.healthy);
            let suits = |g: &&crate::cluster::GpuFacts| {
                self.cluster.find_model(&g.model).is_some_and(|m| ask.shape.models.has(m))
            };
            sick += u32::try_from(unhealthy.filter(suits).count()).unwrap_or(0);
        }
        if busy > 0 {
            blockers.push(Blocker::Busy { nodes: busy });
        }
        if host > 0 {
            blockers.push(Blocker::Host { nodes: host, ever: true });
        }
        if let Some(begins) = begins {
            blockers.push(Blocker::Promised { begins: begins.max(now) });
        }
        if away > 0 {
            blockers.push(Blocker::Away { nodes: away });
        }
        if sick > 0 {
            blockers.push(Blocker::Quarantined { boards: sick });
        }
        if blockers.is_empty() {
            // There is room on enough nodes, but not together.
            blockers.push(Blocker::Busy { nodes: u32::try_from(able.len()).unwrap_or(u32::MAX) });
        }
        let changes = self.changes(ask, org, seconds, own, now);
        let earliest = self.earliest(ask, seconds, now).map(|(at, _)| at);
        Why { blockers, changes, earliest, fits: false }
    }

    /// What of a request besides boards no node could give, when that keeps all of them out.
    fn why_unable(&self, ask: &Ask, able: &[NodeIx]) -> Option<Blocker> {
        let count = |other: &Ask| u32::try_from(self.able(other).len()).unwrap_or(u32::MAX);
        let mut plain = *ask;
        plain.shape.images = false;
        // Too few for a job on several nodes is as good as none.
        if ask.shape.images && able.len() < ask.nodes as usize {
            let nodes = count(&plain);
            if nodes >= ask.nodes {
                return Some(Blocker::Images {
                    nodes: nodes.saturating_sub(u32::try_from(able.len()).unwrap_or(0)),
                });
            }
        }
        let mut bare = *ask;
        (bare.shape.cpu_milli, bare.shape.memory_mib) = (0, 0);
        let nodes = if able.is_empty() && bare != *ask { count(&bare) } else { 0 };
        (nodes > 0).then_some(Blocker::Host { nodes, ever: false })
    }

    /// The most devices a node, and nodes with as many as asked, that an empty cluster would give.
    fn most(&self, ask: &Ask, able: &[NodeIx]) -> (u32, u32) {
        let offers = able.iter().filter_map(|node| {
            let view = self.cluster.view_empty(*node)?;
            Some((0, *node, self.finder.offer(&self.cluster, &view, &ask.shape)?))
        });
        let offers: Vec<_> = offers.collect();
        if !offers.is_empty() {
            let fits = |nodes: u32| self.gather(&Ask { nodes, ..*ask }, offers.clone()).is_some();
            let nodes = (1..=ask.nodes).rev().find(|n| fits(*n)).unwrap_or(0);
            return (ask.shape.count, nodes);
        }
        let less = (1..ask.shape.count).rev().find(|count| {
            let mut smaller = *ask;
            smaller.shape.count = *count;
            !self.able(&smaller).is_empty()
        });
        (less.unwrap_or(0), ask.nodes)
    }

    /// Every change after which it would start now; with a shorter run besides only when nothing else
    /// is enough.
    fn changes(
        &mut self,
        ask: &Ask,
        org: OrgIx,
        seconds: i64,
        own: Option<BookingId>,
        now: Timestamp,
    ) -> Vec<Vec<Change>> {
        let mut others: Vec<(Ask, Vec<Change>)> = vec![(*ask, Vec::new())];
        if ask.shape.nvlink {
            let mut other = *ask;
            other.shape.nvlink = false;
            others.push((other, vec![Change::WithoutNvlink]));
        }
        if ask.topology != Topology::Any {
            others.push((Ask { topology: Topology::Any, ..*ask }, vec![Change::Anywhere]));
        }
        for count in (1..ask.shape.count).rev() {
            let mut other = *ask;
            other.shape.count = count;
            other.shape.nvlink &= count > 1;
            others.push((other, vec![Change::Count(count)]));
        }
        for nodes in (1..ask.nodes).rev().take(COUNTED) {
            others.push((Ask { nodes, ..*ask }, vec![Change::Nodes(nodes)]));
        }
        // The longest runs that end before something that is promised begins.
        let promised = self.calendar.iter().filter(|b| Some(b.id) != own);
        let mut shorter: Vec<i64> = promised.map(|b| (b.from.micros() - now.micros()) / 1_000_000).collect();
        shorter.retain(|s| *s > 0 && *s < seconds);
        shorter.sort_unstable_by(|a, b| b.cmp(a));
        shorter.dedup();
        shorter.truncate(COUNTED);
        // Fewer devices cost less, but a rate is known for those that are asked for only.
        let per_device = ask.bill.nano_per_second / i64::from(ask.shape.count * ask.nodes).max(1);
        for (other, _) in &mut others {
            let devices = i64::from(other.shape.count) * i64::from(other.nodes);
            other.bill.nano_per_second = per_device.saturating_mul(devices);
        }
        others.retain(|(other, _)| self.quotas.admits(org, &other.need(&self.cluster)));
        let mut out: Vec<Vec<Change>> = Vec::new();
        let kind = |change: &Change| std::mem::discriminant(change);
        for (other, change) in &others {
            // One of a kind is enough: the first is the smallest.
            let known = out.iter().flatten().any(|c| change.first().is_some_and(|d| kind(c) == kind(d)));
            let until = self.ends(now, seconds);
            if !change.is_empty() && !known && self.place(other, now, until, own).is_some() {
                out.push(change.clone());
            }
        }
        for (other, change) in others {
            if !change.is_empty() && !out.is_empty() {
                break;
            }
            let fits = shorter.iter().find(|s| {
                let until = self.ends(now, **s);
                self.place(&other, now, until, own).is_some()
            });
            out.extend(fits.map(|s| change.into_iter().chain([Change::Seconds(*s)]).collect()));
        }
        out
    }
}
