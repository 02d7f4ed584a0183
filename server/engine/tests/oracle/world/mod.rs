//! A small world: the true state of hosts and jobs, apart from the engine. Decisions are carried out exactly.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_engine::{Claim, ClaimBill, ClaimRank, Engine, Fact, JobFacts, OrgFacts, Window};
use berth_placement::calendar::{Booking, BookingKind, NodeSlots};
use berth_placement::cluster::{GpuFacts, NodeFacts, Owner, Slot};
use berth_placement::networks::NodeNetworks;
use berth_placement::quotas::EngineLimits;
use berth_types::jobs::{Condition, DependsOn};
use berth_types::node_pools::NodePool;

mod case;
mod decisions;
mod settings;
mod state;

pub use case::*;
pub use state::*;

#[derive(Clone)]
pub struct World {
    pub engine: Engine,
    pub now: i64,
    pub hosts: Vec<Host>,
    pub open: Vec<bool>,
    pub healthy: Vec<bool>,
    /// The organization of each dedicated host.
    pub dedicated: Vec<Option<u8>>,
    pub pools: Vec<NodePool>,
    pub jobs: Vec<JobState>,
    pub booked: Vec<Option<Promise>>,
    /// The request of each reservation.
    booked_for: Vec<Job>,
    pub quotas: [Option<i64>; 3],
    pub guarantees: [i64; 3],
    pub own_only: [bool; 3],
    pub budget: Option<i64>,
    /// The reserve for bursts: boards of each model on hosts for inference.
    pub reserve: u32,
    pub used: Vec<Use>,
    /// True if a job was queued again, or was released by the end of another, during the last step.
    pub queue_grew: bool,
    /// The jobs for which others are preempted, each with the time at which the others must have ended.
    pub room_made: BTreeMap<usize, i64>,
    version: i64,
}

impl World {
    pub fn new(case: &Case) -> Self {
        let count = case.hosts.len();
        let mut world = Self {
            engine: Engine::default(),
            now: 0,
            hosts: case.hosts.clone(),
            open: vec![true; count],
            healthy: vec![true; count],
            dedicated: vec![None; count],
            pools: vec![NodePool::Both; count],
            jobs: Vec::new(),
            booked: Vec::new(),
            booked_for: Vec::new(),
            quotas: [None; 3],
            guarantees: [0; 3],
            own_only: [false; 3],
            budget: None,
            reserve: 0,
            used: Vec::new(),
            queue_grew: false,
            room_made: BTreeMap::new(),
            version: 0,
        };
        (0..count).for_each(|host| world.send_host(host));
        world
    }

    fn next_version(&mut self) -> i64 {
        self.version += 1;
        self.version
    }

    fn host_facts(&self, host: usize) -> NodeFacts {
        let spec = self.hosts[host];
        let gpu = |board| GpuFacts {
            uuid: uuid(host, board),
            model: spec.model.into(),
            mig_enabled: spec.mig,
            // Only the first board of a host becomes unhealthy.
            healthy: board > 0 || self.healthy[host],
            island: 0,
            limit_watts: None,
            foreign: Vec::new(),
        };
        NodeFacts {
            id: node_id(host),
            open: self.open[host],
            away: false,
            awaited: false,
            lost: false,
            drains_by: None,
            images: false,
            rdma_boards: 0,
            networks: NodeNetworks::ALL,
            storage: Vec::new(),
            cpu_milli: spec.cpus,
            memory_mib: 1,
            switch: None,
            rack: Some(format!("rack-{}", spec.rack).into()),
            dedicated_to: self.dedicated[host].map(org_id),
            pool: self.pools[host],
            gpus: (0..spec.boards).map(gpu).collect(),
        }
    }

    fn send(&mut self, fact: Fact) {
        self.engine.apply(fact, at(self.now));
    }

    fn send_host(&mut self, host: usize) {
        let (version, facts) = (self.next_version(), self.host_facts(host));
        self.send(Fact::Node { version, facts });
    }

    fn job_facts(&self, n: usize) -> JobFacts {
        let job = &self.jobs[n];
        let depends = |on: usize| DependsOn { job: job_id(on), condition: Condition::Succeeded };
        JobFacts {
            id: job_id(n),
            generation: job.generation,
            attempt: job.attempt,
            org: org_id(job.spec.org),
            request: request(&job.spec),
            priority: priority(job.spec.class),
            max_duration_s: job.left,
            preemptible: job.spec.preemptible,
            grace_s: job.spec.grace_s,
            gives_back_ms: None,
            queued_at: at(job.queued_at),
            depends_on: job.spec.after.into_iter().map(depends).collect(),
            inside: job.spec.inside.map(booking_id),
            volume: None,
        }
    }

    fn claim(&self, n: usize) -> Option<Claim> {
        let job = &self.jobs[n];
        let State::Running(run) = &job.state else { return None };
        let ranks = run.ranks.iter().map(|(host, parts)| ClaimRank {
            node: node_id(*host),
            slots: parts.iter().map(|(board, part)| Slot { gpu: uuid(*host, *board), part: *part }).collect(),
            cpu_milli: job.spec.cpus,
            memory_mib: 0,
        });
        Some(Claim {
            owner: Owner { job: job_id(n), attempt: job.attempt },
            org: org_id(job.spec.org),
            ranks: ranks.collect(),
            milli: milli(&job.spec),
            since: at(run.since),
            ends_by: run.ends.map(at),
            priority: priority(job.spec.class),
            stops: run.stops,
            stopped_for: run.stopped_for.map(job_id),
            requeues: run.requeues,
            models: job.spec.models.iter().map(|model| (*model).into()).collect(),
            preemptible: run.preemptible.then_some(job.spec.grace_s),
            gives_back_ms: None,
            replica: job.spec.replica,
            saved_at: None,
            inside: job.spec.inside.map(booking_id),
            bill: ClaimBill { offering: None, devices_milli: devices(&job.spec), nano_per_second: 0 },
        })
    }

    fn send_job(&mut self, n: usize) {
        let version = self.next_version();
        let (job, attempt) = (job_id(n), self.jobs[n].attempt);
        match self.jobs[n].state.clone() {
            State::Waiting => {
                if attempt > 0 {
                    self.send(Fact::Freed { version, owner: Owner { job, attempt } });
                }
                let facts = self.job_facts(n);
                self.send(Fact::Waits { version, facts });
            }
            State::Running(_) => {
                self.send(Fact::Left { version, job });
                if let Some(claim) = self.claim(n) {
                    self.send(Fact::Claim { version, claim });
                }
            }
            State::Over { succeeded } => {
                self.send(Fact::Left { version, job });
                self.send(Fact::Freed { version, owner: Owner { job, attempt } });
                self.send(Fact::Ended { job, succeeded });
            }
        }
    }

    /// The use of an organization until now, with its weight by age: thousandths of a board × seconds.
    pub fn past_use(&self, org: u8) -> f64 {
        let now = self.now as f64;
        let faded = |t: f64| ((t - now) / HALF_LIFE_S).exp2() * HALF_LIFE_S / std::f64::consts::LN_2;
        let during =
            |from: i64, until: Option<i64>| faded(until.map_or(now, |t| t as f64)) - faded(from as f64);
        let own = self.used.iter().filter(|u| u.org == org);
        own.map(|u| u.milli as f64 * during(u.from, u.until)).sum()
    }

    /// Sends the limits of an organization, and its past use if the engine is new.
    fn send_org(&mut self, org: u8, used: Option<f64>) {
        let limits = EngineLimits {
            boards_milli: self.quotas[usize::from(org)].map(|n| n * 1_000),
            ..EngineLimits::default()
        };
        let guaranteed_milli = self.guarantees[usize::from(org)] * 1_000;
        let own_nodes_only = self.own_only[usize::from(org)];
        let org = org_id(org);
        let facts = OrgFacts {
            org,
            weight: 1.0,
            used,
            guaranteed_milli,
            own_nodes_only,
            egress_policy: false,
            limits,
        };
        self.send(Fact::Org(facts));
    }

    /// The same world with a new engine that gets all facts again.
    pub fn rebuilt(&self) -> Self {
        let mut other = Self { engine: Engine::default(), ..self.clone() };
        (0..self.hosts.len()).for_each(|host| other.send_host(host));
        (0..3).for_each(|org| other.send_org(org, Some(self.past_use(org))));
        other.send_racks();
        other.set_reserve(self.reserve);
        for (n, booked) in self.booked.iter().enumerate() {
            if let Some(booking) = booked.as_ref().and_then(|_| self.engine.calendar().get(booking_id(n))) {
                let version = other.next_version();
                other.send(Fact::Booked { version, booking: booking.clone() });
            }
        }
        (0..self.jobs.len()).for_each(|n| other.send_job(n));
        other
    }

    fn send_racks(&mut self) {
        let racks = self.hosts.iter().map(|h| format!("rack-{}", h.rack).into());
        let budgets: BTreeMap<Arc<str>, i64> =
            self.budget.map(|watts| racks.map(|rack| (rack, watts)).collect()).unwrap_or_default();
        self.engine.put_racks(budgets);
    }

    /// The run of a job; `None` if the job does not exist or does not run.
    fn running(&self, job: usize) -> Option<&Run> {
        match &self.jobs.get(job)?.state {
            State::Running(run) => Some(run),
            _ => None,
        }
    }

    /// True if a run is beyond its limit.
    pub fn is_late(&self) -> bool {
        (0..self.jobs.len())
            .any(|n| self.running(n).is_some_and(|r| r.ends.is_some_and(|end| end <= self.now)))
    }

    pub fn has_run(&self, job: usize) -> bool {
        self.jobs[job].attempt > 0
    }

    pub fn runs(&self, job: usize) -> bool {
        self.running(job).is_some()
    }

    pub fn waits(&self, job: usize) -> bool {
        self.jobs.get(job).is_some_and(|j| matches!(j.state, State::Waiting))
    }

    /// True if the dependency of a job is met.
    pub fn is_released(&self, job: usize) -> bool {
        let good = |on: usize| matches!(self.jobs[on].state, State::Over { succeeded: true });
        self.jobs[job].spec.after.is_none_or(good)
    }

    fn close_use(&mut self, job: usize) {
        let now = self.now;
        let open = self.used.iter_mut().filter(|u| u.job == job && u.until.is_none());
        open.for_each(|u| u.until = Some(now));
    }

    fn end_job(&mut self, job: usize, succeeded: bool) {
        self.close_use(job);
        self.jobs[job].state = State::Over { succeeded };
        self.send_job(job);
        self.queue_grew |= self.jobs.iter().any(|j| j.spec.after == Some(job));
    }

    pub fn step(&mut self, step: &Step) {
        // Such a step can delay the end of the preempted runs, or make their boards unusable.
        if let Step::Open { .. }
        | Step::Healthy { .. }
        | Step::Unclean(_)
        | Step::Extend { .. }
        | Step::Dedicate { .. }
        | Step::Pool { .. }
        | Step::OwnOnly { .. }
        | Step::Reserve(_)
        | Step::Budget(_) = step
        {
            self.room_made.clear();
        }
        match *step {
            Step::Submit(spec) => self.submit(spec),
            Step::Book { job, from_s, maintenance } => self.book(&job, from_s, maintenance),
            Step::Unbook(n) if self.booked.get(n).is_some_and(Option::is_some) => {
                self.booked[n] = None;
                let version = self.next_version();
                self.send(Fact::Unbooked { version, id: booking_id(n) });
            }
            Step::Next => {
                if let Some(next) = self.next_time() {
                    self.move_to(next);
                }
            }
            Step::Sleep(s) => {
                let until = self.now + s;
                while let Some(next) = self.next_end().filter(|next| *next <= until) {
                    self.move_to(next);
                }
                self.move_to(until);
            }
            Step::End { job, succeeded } if self.running(job).is_some() => self.end_job(job, succeeded),
            Step::Cancel(job) if self.waits(job) => self.end_job(job, false),
            Step::Cancel(job) if self.running(job).is_some() => self.end_within_grace(job, false),
            Step::Drain(job) if self.running(job).is_some_and(|r| !r.stops) => {
                self.end_within_grace(job, true)
            }
            Step::Extend { job, seconds } if self.running(job).is_some_and(|r| !r.stops) => {
                self.change_run(job, |run| run.ends = run.ends.map(|end| end + seconds));
            }
            Step::Late { job, seconds } => {
                if let Some(JobState { state: State::Running(run), .. }) = self.jobs.get_mut(job) {
                    run.late_s = seconds;
                }
            }
            Step::Unclean(job) if self.running(job).is_some() => {
                self.change_run(job, |run| (run.ends, run.preemptible) = (None, false));
            }
            Step::Open { host, open } if host < self.hosts.len() => {
                self.open[host] = open;
                self.send_host(host);
            }
            Step::Healthy { host, healthy } if host < self.hosts.len() => {
                self.healthy[host] = healthy;
                self.send_host(host);
            }
            Step::Quota { org, boards } => {
                self.quotas[usize::from(org)] = boards;
                self.send_org(org, None);
            }
            Step::Restart => *self = self.rebuilt(),
            Step::Guarantee { org, boards } => {
                self.guarantees[usize::from(org)] = boards;
                self.send_org(org, None);
            }
            Step::Dedicate { host, org } if host < self.hosts.len() => {
                self.dedicated[host] = org;
                self.send_host(host);
            }
            Step::Pool { host, pool } if host < self.hosts.len() => self.set_pool(host, pool),
            Step::OwnOnly { org, own_only } => self.restrict(org, own_only),
            Step::Reserve(boards) => self.set_reserve(boards),
            Step::Budget(watts) => self.set_budget(watts),
            _ => {}
        }
    }

    fn submit(&mut self, spec: Job) {
        // A reservation accepts only jobs of its organization and its model.
        let own =
            |n: &usize| self.booked_for.get(*n).is_some_and(|b| b.org == spec.org && b.models == spec.models);
        let inside = spec.inside.filter(own);
        let after = spec.after.filter(|n| *n < self.jobs.len());
        let n = self.jobs.len();
        self.jobs.push(JobState {
            spec: Job { inside, after, ..spec },
            queued_at: self.now,
            left: spec.seconds,
            state: State::Waiting,
            generation: 1,
            attempt: 0,
        });
        self.send_job(n);
    }

    fn change_run(&mut self, job: usize, change: impl FnOnce(&mut Run)) {
        if let State::Running(run) = &mut self.jobs[job].state {
            change(run);
        }
        self.send_job(job);
    }

    /// Stops a run within its grace. A second stop gives no new grace.
    fn end_within_grace(&mut self, job: usize, requeues: bool) {
        let end = self.now + self.jobs[job].spec.grace_s;
        self.change_run(job, |run| {
            (run.preemptible, run.requeues, run.stops) = (false, requeues, true);
            run.ends = run.ends.map(|limit| limit.min(end));
        });
    }

    fn book(&mut self, job: &Job, from_s: i64, maintenance: bool) {
        let (from, until) = (self.now + from_s, self.now + from_s + job.seconds);
        let (org, when) = (org_id(job.org), Window { from: at(from), until: at(until) });
        let n = self.booked.len();
        self.booked_for.push(*job);
        // A reservation counts as training.
        let booked = request(&Job { preemptible: false, replica: false, ..*job });
        let Ok((ask, places, moved)) = self.engine.quote(&booked, org, when, at(self.now)) else {
            self.booked.push(None);
            return;
        };
        let kind = if maintenance { BookingKind::Maintenance } else { BookingKind::Reservation };
        let (id, ask) = (booking_id(n), Some(ask).filter(|_| !maintenance));
        let booking = Booking { id, kind, org, ask, from: when.from, until: when.until, places };
        for booking in moved.iter().chain([&booking]) {
            let place = (0..=n).find(|i| booking_id(*i) == booking.id).expect("a booking that was made");
            let promise = Promise {
                cpus: if booking.ask.is_some() { job.cpus } else { 0 },
                ..self.promise(booking, job.org)
            };
            match self.booked.get_mut(place) {
                Some(known) => known.iter_mut().for_each(|p| p.parts.clone_from(&promise.parts)),
                None => self.booked.push(Some(promise)),
            }
        }
        self.engine.book(booking, moved);
    }

    /// A booking of the engine as a promise of this world.
    pub fn promise(&self, booking: &Booking, org: u8) -> Promise {
        let mut parts = Vec::new();
        for NodeSlots { node, slots } in &booking.places {
            let node = self.engine.cluster().node(*node).expect("a node").facts.id;
            let host = (0..self.hosts.len()).find(|h| node_id(*h) == node).expect("a host");
            for slot in slots {
                let board =
                    (0..self.hosts[host].boards).find(|b| uuid(host, *b) == slot.gpu).expect("a board");
                parts.push((host, board, slot.part));
            }
        }
        let (from, until) = (seconds(booking.from), seconds(booking.until));
        Promise { id: booking.id, kind: booking.kind, org, from, until, cpus: 0, parts }
    }

    fn next_end(&self) -> Option<i64> {
        (0..self.jobs.len()).filter_map(|n| self.running(n)?.truly_ends()).filter(|end| *end > self.now).min()
    }

    pub fn next_time(&self) -> Option<i64> {
        let booked = self.booked.iter().flatten().flat_map(|b| [b.from, b.until]);
        let held = self.engine.held_starts().map(|(_, b)| seconds(b.from));
        booked.chain(held).chain(self.next_end()).filter(|at| *at > self.now).min()
    }

    fn move_to(&mut self, now: i64) {
        self.now = now;
        for n in 0..self.jobs.len() {
            let Some(run) = self.running(n).filter(|r| r.truly_ends().is_some_and(|end| end <= now)).cloned()
            else {
                continue;
            };
            if !run.requeues {
                self.end_job(n, !run.stops);
                continue;
            }
            self.close_use(n);
            let job = &mut self.jobs[n];
            job.left = (job.left - (now - run.since)).max(1);
            job.generation += 1;
            job.state = State::Waiting;
            self.queue_grew = true;
            self.send_job(n);
        }
        for n in 0..self.booked.len() {
            if self.booked[n].as_ref().is_some_and(|b| b.until <= now) {
                self.booked[n] = None;
            }
        }
    }
}
