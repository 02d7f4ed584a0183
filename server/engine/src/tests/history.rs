//! Random histories: facts in any order, twice and late.

mod conflicts;

use std::collections::BTreeMap;

use proptest::prelude::*;

use conflicts::{check_bookings, fault, shares_a_board};

use super::quotas::org_facts;
use super::*;
use berth_placement::calendar::{Booking, BookingKind, NodeSlots};
use berth_placement::quotas::EngineLimits;

/// The true state, as a database would have it.
#[derive(Default)]
struct Store {
    nodes: BTreeMap<u128, NodeFacts>,
    waiting: BTreeMap<JobId, JobFacts>,
    claims: BTreeMap<Owner, Claim>,
    bookings: BTreeMap<BookingId, Booking>,
    ended: BTreeMap<JobId, bool>,
    orgs: BTreeMap<u8, OrgFacts>,
    version: i64,
    jobs: u128,
}

impl Store {
    fn next(&mut self) -> i64 {
        self.version += 1;
        self.version
    }

    /// The whole state as facts.
    fn facts(&self) -> Vec<Fact> {
        let version = self.version;
        let mut out: Vec<Fact> =
            self.nodes.values().map(|n| Fact::Node { version, facts: n.clone() }).collect();
        out.extend(self.orgs.values().cloned().map(Fact::Org));
        out.extend(self.claims.values().map(|c| Fact::Claim { version, claim: c.clone() }));
        out.extend(self.bookings.values().map(|b| Fact::Booked { version, booking: b.clone() }));
        out.extend(self.waiting.values().map(|j| Fact::Waits { version, facts: j.clone() }));
        out.extend(
            self.ended.iter().map(|(job, succeeded)| Fact::Ended { job: *job, succeeded: *succeeded }),
        );
        out
    }

    /// The limit that one more claim would exceed.
    fn beyond_limits(&self, claim: &Claim) -> Option<String> {
        let limits = &self.orgs.values().find(|o| o.org == claim.org)?.limits;
        let of_org = || self.claims.values().filter(|c| c.org == claim.org).chain([claim]);
        let boards: i64 = of_org().map(|c| c.milli).sum();
        let jobs = i64::try_from(of_org().count()).unwrap();
        let exceeded = limits.boards_milli.is_some_and(|most| boards > most)
            || limits.running_jobs.is_some_and(|most| jobs > most);
        exceeded.then(|| format!("{boards} thousandths and {jobs} jobs, {limits:?}"))
    }

    /// Carries out a decision or refuses it, and returns the resulting facts.
    fn commit(
        &mut self,
        decision: &Decision,
        engine: &Engine,
        now: Timestamp,
        accept: bool,
    ) -> Result<Vec<Fact>, String> {
        match decision {
            Decision::Start { job, generation, attempt, ranks } => {
                let owner = Owner { job: *job, attempt: *attempt };
                let facts = self.waiting.get(job).filter(|j| j.generation == *generation && accept).cloned();
                let (Some(facts), Some(claim)) = (facts, engine.claims.get(owner).cloned()) else {
                    let version = self.next();
                    let freed = match self.claims.get(&owner).cloned() {
                        Some(claim) => Fact::Claim { version, claim },
                        None => Fact::Freed { version, owner },
                    };
                    let version = self.next();
                    let again = self.waiting.get(job).cloned().map(|facts| Fact::Waits { version, facts });
                    return Ok(std::iter::once(freed).chain(again).collect());
                };
                assert_eq!(ranks.len(), facts.request.nodes as usize, "all ranks or none");
                assert!(ranks.iter().all(|(_, slots)| slots.len() == facts.request.count as usize));
                if let Some(fault) = fault(self.claims.values().chain([&claim]), &self.nodes) {
                    return Err(fault);
                }
                for booking in self.bookings.values().filter(|b| facts.inside != Some(b.id)) {
                    let ends = claim.ends_by.unwrap();
                    if booking.from < ends && now < booking.until && shares_a_board(booking, &claim, engine) {
                        return Err(format!("{job} runs into a booking"));
                    }
                }
                if let Some(fault) = self.beyond_limits(&claim) {
                    return Err(fault);
                }
                self.waiting.remove(job);
                self.claims.insert(owner, claim.clone());
                let version = self.next();
                Ok(vec![Fact::Left { version, job: *job }, Fact::Claim { version, claim }])
            }
            Decision::Preempt { victim, .. } => {
                let version = self.next();
                let is_preemptible = |c: &&mut Claim| accept && c.preemptible.is_some();
                let Some(claim) = self.claims.get_mut(victim).filter(is_preemptible) else {
                    let claim = self.claims.get(victim).cloned();
                    return Ok(claim.map(|claim| Fact::Claim { version, claim }).into_iter().collect());
                };
                claim.preemptible = None;
                claim.ends_by = Some(now.plus_seconds(60));
                Ok(vec![Fact::Claim { version, claim: claim.clone() }])
            }
            Decision::Orphan { job, .. } => {
                self.waiting.remove(job);
                let version = self.next();
                Ok(vec![Fact::Left { version, job: *job }])
            }
        }
    }
}

/// The state that must be equal in an engine with a history and in a new one.
fn comparable_state(engine: &Engine, now: Timestamp) -> String {
    let mut nodes: Vec<String> = engine
        .cluster()
        .nodes()
        .iter()
        .map(|n| {
            let view = n.view();
            let gpus: Vec<_> = view
                .gpus()
                .iter()
                .zip(&n.facts.gpus)
                .map(|(g, f)| (f.uuid.clone(), g.free_milli, g.mask, g.groups, g.sliced, g.sharer > 0))
                .collect();
            format!("{} {} {} {gpus:?}", n.facts.id, view.cpu_milli, view.memory_mib)
        })
        .collect();
    nodes.sort();
    let mut jobs: Vec<_> =
        engine.jobs.values().map(|w| (w.facts.id, w.facts.generation, w.lane.is_some())).collect();
    jobs.sort_unstable();
    let mut claims: Vec<_> = engine.claims.iter().map(|c| format!("{c:?}")).collect();
    claims.sort();
    let booked: Vec<_> = engine
        .calendar()
        .iter()
        .filter(|b| b.kind != BookingKind::Hold && b.until > now)
        .map(|b| (b.id, b.from, b.until))
        .collect();
    let mut engine = engine.clone();
    let used: Vec<_> = (0..3).map(|o| engine.used(org(o + 1))).collect();
    // Jobs aside are not in the queue.
    let aside = engine.holds.iter().filter(|(_, h)| h.basis != Basis::First).count();
    let waiting = engine.queue.count() + aside + engine.impossible.len();
    format!("{nodes:#?}\n{jobs:?}\n{claims:#?}\n{booked:?}\n{waiting}\n{used:?}")
}

#[derive(Debug, Clone)]
enum Step {
    Submit { kind: u8, org: u8, class: u8, seconds: u16, after: Option<u8>, preemptible: bool },
    Cancel(u8),
    End { which: u8, succeeded: bool },
    Node { which: u8, open: bool, faulty: u8 },
    Foreign { which: u8, start: u8 },
    Limit { org: u8, boards: Option<u8>, jobs: Option<u8> },
    Book { kind: u8, from: u16, seconds: u16 },
    Unbook(u8),
    Pass { accept: u8 },
    Sleep(u16),
    Deliver(u8),
    Repeat(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (any::<u8>(), 0..3u8, 0..3u8, 1..5_000u16, proptest::option::weighted(0.2, any::<u8>()), any::<bool>())
            .prop_map(|(kind, org, class, seconds, after, preemptible)| Step::Submit { kind, org, class, seconds, after, preemptible }),
        1 => any::<u8>().prop_map(Step::Cancel),
        3 => (any::<u8>(), any::<bool>()).prop_map(|(which, succeeded)| Step::End { which, succeeded }),
        1 => (0..3u8, any::<bool>(), 0..8u8).prop_map(|(which, open, faulty)| Step::Node { which, open, faulty }),
        1 => (0..3u8, 0..8u8).prop_map(|(which, start)| Step::Foreign { which, start }),
        1 => (0..3u8, proptest::option::of(0..5u8), proptest::option::of(0..4u8))
            .prop_map(|(org, boards, jobs)| Step::Limit { org, boards, jobs }),
        1 => (any::<u8>(), 0..5_000u16, 1..5_000u16).prop_map(|(kind, from, seconds)| Step::Book { kind, from, seconds }),
        1 => any::<u8>().prop_map(Step::Unbook),
        4 => any::<u8>().prop_map(|accept| Step::Pass { accept }),
        2 => (0..3_000u16).prop_map(Step::Sleep),
        4 => any::<u8>().prop_map(Step::Deliver),
        1 => any::<u8>().prop_map(Step::Repeat),
    ]
}

fn request(kind: u8) -> Request {
    let profiles = ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb", "1g.10gb+me"];
    match kind % 12 {
        0 => boards(1, 1),
        1 => boards(2, 1),
        2 => boards(1, 2),
        3 => Request { topology: Nearness::SameSwitch, cpu_milli: 20_000, ..boards(1, 2) },
        4 => Request { device: DeviceRequest::Share(u16::from(kind) * 3 + 50), ..boards(1, 1) },
        n => Request { cpu_milli: i64::from(kind) * 100, ..slice(profiles[usize::from(n) - 5]) },
    }
}

/// The store, the engine and the facts on their way between them.
struct Play {
    store: Store,
    engine: Engine,
    pending: Vec<Fact>,
    past: Vec<Fact>,
    now: i64,
}

impl Play {
    fn new() -> Self {
        let mut play = Self {
            store: Store::default(),
            engine: Engine::default(),
            pending: Vec::new(),
            past: Vec::new(),
            now: 0,
        };
        for n in 0..3 {
            let facts = node(n, "H100-80GB", 2);
            play.store.nodes.insert(n, facts.clone());
            let version = play.store.next();
            play.pending.push(Fact::Node { version, facts });
        }
        play
    }

    fn deliver(&mut self, which: usize) {
        if !self.pending.is_empty() {
            let fact = self.pending.remove(which % self.pending.len());
            self.past.push(fact.clone());
            self.engine.apply(fact, at(self.now));
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        let now = at(self.now);
        match *step {
            Step::Submit { kind, org: o, class, seconds, after, preemptible } => {
                self.store.jobs += 1;
                let n = self.store.jobs;
                let depends_on = after
                    .map(|a| DependsOn {
                        job: job_id(u128::from(a) % n + 1),
                        condition: Condition::Succeeded,
                    })
                    .into_iter()
                    .collect();
                let facts = JobFacts {
                    org: org(u128::from(o) + 1),
                    priority: [Priority::Low, Priority::Normal, Priority::High][usize::from(class)],
                    max_duration_s: i64::from(seconds),
                    preemptible,
                    queued_at: now,
                    depends_on,
                    ..waits(n, request(kind))
                };
                for dependency in &facts.depends_on {
                    if let Some(succeeded) = self.store.ended.get(&dependency.job) {
                        self.pending.push(Fact::Ended { job: dependency.job, succeeded: *succeeded });
                    }
                }
                self.store.waiting.insert(facts.id, facts.clone());
                let version = self.store.next();
                self.pending.push(Fact::Waits { version, facts });
            }
            Step::Cancel(which) => {
                let ids: Vec<JobId> = self.store.waiting.keys().copied().collect();
                if let Some(job) = ids.get(usize::from(which) % ids.len().max(1)) {
                    self.store.waiting.remove(job);
                    self.end(*job, false);
                    let version = self.store.next();
                    self.pending.push(Fact::Left { version, job: *job });
                }
            }
            Step::End { which, succeeded } => {
                let owners: Vec<Owner> = self.store.claims.keys().copied().collect();
                if let Some(owner) = owners.get(usize::from(which) % owners.len().max(1)) {
                    self.store.claims.remove(owner);
                    self.end(owner.job, succeeded);
                    let version = self.store.next();
                    self.pending.push(Fact::Freed { version, owner: *owner });
                }
            }
            Step::Node { which, open, faulty } => self.node(which, |n| {
                n.open = open;
                for (i, gpu) in n.gpus.iter_mut().enumerate() {
                    gpu.healthy = faulty >> i & 1 == 0;
                }
            }),
            // Another program changed the layout of a board.
            Step::Foreign { which, start } => self.node(which, |n| {
                n.gpus[0].foreign = if start < 7 {
                    vec![berth_mig::Instance { profile_id: 19, start: u32::from(start) }]
                } else {
                    Vec::new()
                };
            }),
            Step::Limit { org: o, boards, jobs } => {
                let limits = EngineLimits {
                    boards_milli: boards.map(|n| i64::from(n) * 500),
                    running_jobs: jobs.map(i64::from),
                    ..EngineLimits::default()
                };
                let facts = org_facts(u128::from(o) + 1, limits);
                self.store.orgs.insert(o, facts.clone());
                self.engine.apply(Fact::Org(facts), now);
            }
            Step::Book { kind, from, seconds } if self.pending.is_empty() => {
                let from = self.now + i64::from(from);
                let when = window(from, from + i64::from(seconds));
                let request = request(kind);
                if let Ok((ask, places, moved)) = self.engine.quote(&request, org(9), when, now) {
                    let id = BookingId(Uuid::from_u128(1_000 + self.store.next() as u128));
                    let Window { from, until } = when;
                    let new = Booking {
                        id,
                        kind: BookingKind::Reservation,
                        org: org(9),
                        ask: Some(ask),
                        from,
                        until,
                        places,
                    };
                    for booking in moved.iter().chain([&new]) {
                        self.store.bookings.insert(booking.id, booking.clone());
                    }
                    self.engine.book(new, moved);
                    check_bookings(&self.store.bookings)?;
                }
            }
            Step::Unbook(which) => {
                let ids: Vec<BookingId> = self.store.bookings.keys().copied().collect();
                if let Some(id) = ids.get(usize::from(which) % ids.len().max(1)) {
                    self.store.bookings.remove(id);
                    let version = self.store.next();
                    self.pending.push(Fact::Unbooked { version, id: *id });
                }
            }
            Step::Pass { accept } => {
                let informed = self.pending.is_empty();
                let decided = self.engine.pass(now);
                for (index, decision) in decided.iter().enumerate() {
                    if let Decision::Preempt { victim, .. } = decision
                        && informed
                        && self.store.claims.get(victim).is_none_or(|c| c.preemptible.is_none())
                    {
                        return Err(format!("{decision:?}: the victim is not preemptible"));
                    }
                    let accept = accept >> (index % 8) & 1 != 0;
                    match self.store.commit(decision, &self.engine, now, accept) {
                        Ok(facts) => self.pending.extend(facts),
                        // An engine with pending facts may be wrong; the store then refuses.
                        Err(fault) if informed => return Err(format!("{decision:?}: {fault}")),
                        Err(_) => {
                            let facts = self.store.commit(decision, &self.engine, now, false)?;
                            self.pending.extend(facts);
                        }
                    }
                }
            }
            Step::Book { .. } => {}
            Step::Sleep(seconds) => self.now += i64::from(seconds),
            Step::Deliver(which) => self.deliver(usize::from(which)),
            Step::Repeat(which) => {
                if let Some(fact) = self.past.get(usize::from(which) % self.past.len().max(1)).cloned() {
                    self.engine.apply(fact, now);
                }
            }
        }
        Ok(())
    }

    fn end(&mut self, job: JobId, succeeded: bool) {
        self.store.ended.insert(job, succeeded);
        self.pending.push(Fact::Ended { job, succeeded });
    }

    fn node(&mut self, which: u8, change: impl FnOnce(&mut NodeFacts)) {
        let version = self.store.next();
        if let Some(node) = self.store.nodes.get_mut(&u128::from(which)) {
            change(node);
            self.pending.push(Fact::Node { version, facts: node.clone() });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn no_history_assigns_a_device_twice(steps in prop::collection::vec(step(), 1..80)) {
        let mut play = Play::new();
        for step in &steps {
            play.step(step).map_err(TestCaseError::fail)?;
        }
        // With all facts applied the engine equals a new one.
        while !play.pending.is_empty() {
            play.deliver(0);
        }
        let mut anew = Engine::default();
        for fact in play.store.facts() {
            anew.apply(fact, at(play.now));
        }
        let waiting = play.engine.waiting_jobs().map(|(job, _)| job).collect::<Vec<_>>();
        for job in waiting {
            // Every waiting job has a reason.
            let why = play.engine.clone().why(job, at(play.now)).unwrap();
            prop_assert!(why.fits || !why.blockers.is_empty(), "{why:?}");
        }
        let now = at(play.now);
        prop_assert_eq!(comparable_state(&play.engine, now), comparable_state(&anew, now));
        play.step(&Step::Pass { accept: u8::MAX }).map_err(TestCaseError::fail)?;
    }
}
