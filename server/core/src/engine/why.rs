//! Why a job waits: everything that keeps it back, the smallest change that would not, and when it may start.

use std::sync::Arc;

use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::{Condition, DependsOn, Priority};
use berth_types::time::Timestamp;

use super::Engine;
use super::facts::{HeldVolume, JobFacts};
use super::hold::hold_id;
use super::place::Span;
use crate::calendar::{Booking, But};
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
    /// Its reservation does not take it now.
    Booking(BookingId, Closed),
    /// The cloud has no such boards, or not as many together: at most so many devices a node, nodes.
    None { count: u32, nodes: u32 },
    /// So many boards would do in the other MIG mode, which only a reset changes.
    Mode { boards: u32 },
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

/// Why a reservation does not take a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    NotBegun {
        begins: Timestamp,
    },
    Over,
    /// The job's longest run would end after it.
    TooShort {
        left_s: i64,
    },
    /// It is another organization's.
    Foreign,
    /// Its boards have no place for the job even when nothing runs on them.
    TooSmall,
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
            // Where it could run then is looked at then.
            blockers.push(Blocker::Dependency(on));
            return Some(Why { blockers, changes: Vec::new(), earliest: None, fits: false });
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
        let seconds = facts.max_duration_s;
        let mut why = match facts.inside {
            Some(id) => self.why_inside(job, &ask, id, facts, now),
            None => self.why_open(job, &ask, facts, now),
        };
        blockers.append(&mut why.blockers);
        why.blockers = blockers;
        self.say_when(&mut why, job, seconds, now);
        Some(why)
    }

    /// Why a job waits that runs on whatever is free.
    fn why_open(&mut self, job: JobId, ask: &Ask, facts: &JobFacts, now: Timestamp) -> Why {
        let but = self.no_obstacles(job, true, now);
        let mut why = self.why_ask(ask, facts.org, facts.max_duration_s, &but, now);
        let ahead = self.turn(job, now).map_or(0, |turn| {
            let models = ask.shape.models;
            // Those who were taken out of the queue count as long as they may start.
            let held = self.holds.keys().copied().filter(|other| self.is_aside(*other));
            let aside = held.chain(self.impossible.iter().copied()).filter(|other| {
                let wants = self.jobs.get(other).and_then(|w| Some((w.lane?.group, w.ask?)));
                wants.is_some_and(|(group, ask)| {
                    ask.shape.models.0 & models.0 != 0 && self.turns(now).admits(group, &ask)
                }) && self.turn(*other, now).is_some_and(|t| t < turn)
            });
            let aside = aside.take(COUNTED).count();
            self.queue.ahead(models, turn, self.turns(now), COUNTED) + aside
        });
        if ahead > 0 {
            why.blockers.push(Blocker::Ahead { jobs: u32::try_from(ahead).unwrap_or(u32::MAX) });
        }
        why
    }

    /// Why a job of a reservation waits.
    fn why_inside(&self, job: JobId, ask: &Ask, id: BookingId, facts: &JobFacts, now: Timestamp) -> Why {
        let mut why = Why { blockers: Vec::new(), changes: Vec::new(), earliest: None, fits: false };
        let seconds = facts.max_duration_s;
        let closed = match self.calendar.get(id) {
            None => Some(Closed::Over),
            Some(b) if b.org != facts.org => Some(Closed::Foreign),
            Some(b) if self.ends(b.from.max(now), seconds) > b.until => {
                let left_s = (b.until.micros() - b.from.max(now).micros()) / 1_000_000;
                Some(Closed::TooShort { left_s })
            }
            Some(b) if b.from > now => Some(Closed::NotBegun { begins: b.from }),
            Some(_) => None,
        };
        if let Some(closed) = closed {
            if let Closed::TooShort { left_s } = closed
                && left_s > 0
                && self.place_inside_now(ask, id, (job, left_s), now, false).is_some()
            {
                why.changes.push(vec![Change::Seconds(left_s)]);
            }
            why.blockers.push(Blocker::Booking(id, closed));
            return why;
        }
        let place = |ask: &Ask, alone| self.place_inside_now(ask, id, (job, seconds), now, alone);
        why.fits = place(ask, false).is_some();
        if !why.fits {
            let nodes = ask.nodes;
            let mut plain = *ask;
            plain.shape.images = false;
            let promised = self.inside_begins(id, job);
            why.blockers.push(match promised {
                _ if ask.shape.images && place(&plain, false).is_some() => Blocker::Images { nodes },
                Some(begins) if place(ask, true).is_some() => Blocker::Promised { begins },
                _ => self.why_not_inside(ask, id, seconds, now),
            });
        }
        let turn = self.turn(job, now);
        let mut before = self.queue.inside(id, self.turns(now));
        // A job that does not fit into the rest of the reservation is in nobody's way.
        let fits = |job| self.calendar.get(id).is_some_and(|b| self.inside_job(job, b, now).is_some());
        before.retain(|t| Some(*t) < turn && fits(t.job));
        let before = before.len();
        if before > 0 {
            why.blockers.push(Blocker::Ahead { jobs: u32::try_from(before).unwrap_or(u32::MAX) });
        }
        why
    }

    /// Why the boards of a reservation have no place for a job, whoever else waits.
    fn why_not_inside(&self, ask: &Ask, id: BookingId, seconds: i64, now: Timestamp) -> Blocker {
        let places = self.calendar.get(id).map(|b| b.places.as_slice()).unwrap_or_default();
        let mut nodes: Vec<NodeIx> = places.iter().map(|p| p.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let of = |node: &NodeIx| self.cluster.node(*node);
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let away = nodes.iter().filter(|n| of(n).is_some_and(|n| !n.facts.open)).count();
        let booked = |uuid: &Arc<str>| places.iter().flat_map(|p| &p.slots).any(|s| s.gpu == *uuid);
        let gpus = nodes.iter().filter_map(of).flat_map(|n| &n.facts.gpus);
        let sick = gpus.filter(|g| !g.healthy && booked(&g.uuid)).count();
        if away > 0 {
            Blocker::Away { nodes: count(away) }
        } else if sick > 0 {
            Blocker::Quarantined { boards: count(sick) }
        } else if !self.could_hold_inside(ask, id, seconds, now) {
            Blocker::Booking(id, Closed::TooSmall)
        } else {
            Blocker::Busy { nodes: ask.nodes }
        }
    }

    /// Says when a job starts, as far as that is known, and that it starts now only if it does.
    fn say_when(&mut self, why: &mut Why, job: JobId, seconds: i64, now: Timestamp) {
        let held = self.held_starts().find(|(other, _)| *other == job).map(|(_, b)| b.from);
        let first = !why.blockers.iter().any(|b| matches!(b, Blocker::Ahead { .. }));
        (why.fits, why.earliest) = match self.foresee(job, now) {
            // A start that was foreseen a moment ago may be due.
            Some(at) => (at.is_some_and(|at| at <= now), at.map(|at| at.max(now))),
            None if why.fits && first => (true, Some(now)),
            None => (false, held),
        };
        if let Some(Blocker::Booking(id, Closed::NotBegun { .. })) = why.blockers.first()
            && let Some(begins) = self.calendar.get(*id).map(|b| b.from)
        {
            why.earliest = why.earliest.map(|at| at.max(begins));
        }
        if why.fits {
            why.blockers.clear();
            why.changes.clear();
        } else if why.blockers.is_empty() {
            // Somebody whose turn is before takes the place that is free now, or the power or the limit with it.
            let until = self.ends(now, seconds);
            let begins = self.promised_beside(job).filter(|b| b.from > now && b.from < until).map(|b| b.from);
            why.blockers.push(match begins.min() {
                Some(begins) => Blocker::Promised { begins },
                None => Blocker::Ahead { jobs: 1 },
            });
        }
    }

    /// The bookings of others that may be in the way of a job.
    fn promised_beside(&self, job: JobId) -> impl Iterator<Item = &Booking> {
        let models = self.jobs.get(&job).and_then(|w| w.ask).map_or(u64::MAX, |ask| ask.shape.models.0);
        let any = !self.racks.is_empty();
        let meets = move |b: &&Booking| any || b.ask.is_none_or(|ask| ask.shape.models.0 & models != 0);
        self.calendar.iter().filter(move |b| b.id != hold_id(job)).filter(meets)
    }

    /// What would become of a request if it were submitted now: why it would wait, or where it would
    /// start. An absurd one is refused.
    pub fn trial(
        &mut self,
        request: &Request,
        org: OrgId,
        priority: Priority,
        seconds: i64,
        now: Timestamp,
    ) -> Result<(Why, Vec<(NodeId, Vec<Slot>)>), Absurd> {
        let ask = Ask::of(request, org, &mut self.cluster)?;
        let why = match self.is_small() {
            true => self.why_if_submitted(request, org, priority, seconds, now),
            false => None,
        };
        let why = why.unwrap_or_else(|| self.why_ask(&ask, org, seconds, &[], now));
        let until = self.ends(now, seconds);
        let places = if why.fits { self.place(&ask, now, until, But::default()) } else { None };
        let places = places.unwrap_or_default();
        let named = places.into_iter().filter_map(|p| Some((self.node_id(p.node)?, p.slots)));
        Ok((why, named.collect()))
    }

    /// The same by a copy of the engine in which it waits.
    fn why_if_submitted(
        &self,
        request: &Request,
        org: OrgId,
        priority: Priority,
        max_duration_s: i64,
        now: Timestamp,
    ) -> Option<Why> {
        let facts = JobFacts {
            id: JobId::from_uuid(uuid::Uuid::max()),
            generation: 0,
            attempt: 0,
            org,
            request: request.clone(),
            priority,
            max_duration_s,
            preemptible: false,
            grace_s: 0,
            queued_at: now,
            depends_on: Vec::new(),
            inside: None,
            volume: None,
        };
        let (job, mut copy) = (facts.id, self.clone());
        copy.put_job(facts);
        copy.why(job, now)
    }

    /// Why a request has no place now, whoever else waits.
    fn why_ask(&mut self, ask: &Ask, org: OrgId, seconds: i64, own: &[BookingId], now: Timestamp) -> Why {
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
    fn why_place(&mut self, ask: &Ask, org: OrgIx, seconds: i64, own: &[BookingId], now: Timestamp) -> Why {
        let until = self.ends(now, seconds);
        let but = But { bookings: own, owners: &[], away: false };
        if self.place(ask, now, until, but).is_some() {
            return Why { blockers: Vec::new(), changes: Vec::new(), earliest: Some(now), fits: true };
        }
        if let Some(blocker) = self.why_power(ask, (now, until), but) {
            let changes = self.changes(ask, org, seconds, own, now);
            let blockers = vec![blocker];
            return Why { blockers, changes, earliest: None, fits: false };
        }
        let able = self.able(ask);
        let mut bare = *ask;
        (bare.shape.cpu_milli, bare.shape.memory_mib) = (0, 0);
        if let Some(blocker) = self.why_never(ask, &able) {
            let changes = match blocker {
                Blocker::None { .. } => self.changes(ask, org, seconds, own, now),
                _ => Vec::new(),
            };
            return Why { blockers: vec![blocker], changes, earliest: None, fits: false };
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
                begins = begins.max(self.first_in_the_way(*node, ask, (now, until), but));
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
            blockers.push(Blocker::Promised { begins });
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
        let earliest = self.earliest(ask, seconds, now, own).map(|(at, _)| at);
        Why { blockers, changes, earliest, fits: false }
    }

    /// When the first of what is booked on a node begins that a run now would be in the way of.
    fn first_in_the_way(&self, node: NodeIx, ask: &Ask, span: Span, but: But<'_>) -> Option<Timestamp> {
        let (now, until) = span;
        let others = self.calendar.on(node, now, until).filter(|b| !but.bookings.contains(&b.id));
        let mut begins: Vec<Timestamp> = others.map(|b| b.from.max(now)).collect();
        begins.sort_unstable();
        begins.dedup();
        begins.into_iter().find(|begin| {
            let view = self.calendar.view(&self.cluster, node, (now, begin.plus_seconds(1)), now, but);
            view.is_none_or(|view| self.finder.offer(&self.cluster, &view, &ask.shape).is_none())
        })
    }

    /// Every change after which it would start now; with a shorter run besides only when nothing else
    /// is enough.
    fn changes(
        &mut self,
        ask: &Ask,
        org: OrgIx,
        seconds: i64,
        own: &[BookingId],
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
        let promised = self.calendar.iter().filter(|b| !own.contains(&b.id));
        let but = But { bookings: own, owners: &[], away: false };
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
            if !change.is_empty() && !known && self.place(other, now, until, but).is_some() {
                out.push(change.clone());
            }
        }
        for (other, change) in others {
            if !change.is_empty() && !out.is_empty() {
                break;
            }
            let fits = shorter.iter().find(|s| {
                let until = self.ends(now, **s);
                self.place(&other, now, until, but).is_some()
            });
            out.extend(fits.map(|s| change.into_iter().chain([Change::Seconds(*s)]).collect()));
        }
        out
    }
}
