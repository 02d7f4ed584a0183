//! Writes small worlds as scripts for a running portal: `oracle_script COUNT [SEED]` prints COUNT JSON
//! objects, one a line.
//!
//! A script has the steps and the true state after each step. The state is that of the world in this process,
//! which the judge of `tests/oracle` checked. Steps that REST does not have, or that the portal refuses, are
//! left out.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unreachable,
    reason = "a judge of small worlds that it makes itself"
)]

#[path = "../tests/oracle/cases.rs"]
#[expect(dead_code, reason = "this program uses a part of it")]
mod cases;
#[path = "../tests/oracle/judge/mod.rs"]
mod judge;
#[path = "../tests/oracle/reported.rs"]
#[expect(dead_code, reason = "who runs at the end is in the script")]
mod reported;
#[path = "../tests/oracle/world/mod.rs"]
mod world;

use std::collections::{BTreeMap, BTreeSet};

use berth_engine::{RequestSummary, explanation};
use berth_placement::cluster::Part;
use cases::{ENUMERATED, ENUMERATED_INSIDE, check, enumerated, enumerated_inside, random};
use judge::Judge;
use judge::play::pass;
use reported::reported;
use serde_json::{Value, json};
use world::{
    Case, DeviceKind, Host, Job, Promise, Run, State, Step, World, at, job_id, milli, org_id, request, table,
};

/// The shortest time limit. The worker ends a job at its limit by a real clock, which the script does not
/// move.
const SHORTEST_S: i64 = 60;
/// The least number of entries of a script. A shorter script tests too little.
const LEAST_ENTRIES: usize = 6;
/// The greatest time that a worker meters before a preemption, by its real clock.
const METERED_S: i64 = 10;

/// The processors of each host, equal to the count of its worker.
fn processors() -> i64 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as i64)
}

fn adapted_job(job: Job) -> Job {
    let cpus = match job.cpus {
        0 => 0,
        few if few < 10_000 => 1_000,
        _ => processors() * 1_000,
    };
    Job { cpus, seconds: job.seconds.max(SHORTEST_S), ..job }
}

/// Adapts a case to simulated hosts and to REST. Time passes after each submission, because ids order equal
/// times.
fn adapted(case: &Case) -> Case {
    let host = |host: &Host| {
        // Simulated boards that change the MIG mode by a reset only are in MIG mode; the others are not.
        let mig = table(host.model).is_some_and(|board| !board.live_toggle);
        Host { mig, cpus: processors() * 1_000, ..*host }
    };
    let hosts: Vec<Host> = case.hosts.iter().map(host).collect();
    // A simulated A100 reports a power limit that differs from that of its model.
    let odd_power = hosts.iter().any(|h| h.model.starts_with("A100"));
    let steps = case.steps.iter().flat_map(|step| match *step {
        Step::Unclean(_) | Step::Late { .. } | Step::Healthy { .. } => vec![],
        Step::Budget(_) if odd_power => vec![],
        Step::Submit(job) => vec![Step::Submit(adapted_job(job)), Step::Sleep(1)],
        Step::Book { job, from_s, .. } => {
            // A reservation has no processors.
            let job = Job { cpus: 0, ..adapted_job(job) };
            vec![Step::Book { job, from_s, maintenance: false }, Step::Sleep(1)]
        }
        other => vec![other],
    });
    Case { steps: steps.collect(), hosts }
}

fn profile(job: &Job, index: usize) -> &'static str {
    table(job.models[0]).expect("a board with slices").profiles[index].name.as_str()
}

fn offering(job: &Job) -> String {
    let board = job.models[0].to_lowercase();
    match job.device {
        DeviceKind::Slice(index) => format!("{board}.{}", profile(job, index)),
        _ => board,
    }
}

fn topology(job: &Job) -> &'static str {
    if job.near { "same_rack" } else { "any" }
}

/// The body of a submission, without the command and without ids.
fn body(job: &Job) -> Value {
    let priority = ["low", "normal", "high"][usize::from(job.class)];
    let mut body = json!({
        "offering": offering(job), "count": job.count, "nodes": job.nodes, "max_duration_s": job.seconds,
        "priority": priority, "preemptible": job.preemptible,
        "topology": topology(job), "checkpoint": {"grace_s": job.grace_s},
    });
    if let DeviceKind::Share(milli) = job.device {
        body["gpu_milli"] = milli.into();
    }
    if job.cpus > 0 {
        body["cpus"] = (job.cpus / 1_000).into();
    }
    body
}

fn end(job: usize, succeeded: bool) -> Value {
    json!({"job": job, "succeeded": succeeded})
}

/// A world during its play, with the entries of its script.
#[derive(Clone)]
struct Player {
    world: World,
    /// The request of each reservation.
    booked_for: Vec<Job>,
    /// The time limit of each job in seconds.
    limits: Vec<i64>,
    entries: Vec<Value>,
}

impl Player {
    fn new(case: &Case) -> Self {
        Self { world: World::new(case), booked_for: Vec::new(), limits: Vec::new(), entries: Vec::new() }
    }

    fn run(&self, job: usize) -> Option<&Run> {
        match &self.world.jobs.get(job)?.state {
            State::Running(run) => Some(run),
            _ => None,
        }
    }

    fn runs(&self) -> impl Iterator<Item = (usize, &Run)> {
        (0..self.world.jobs.len()).filter_map(|n| Some((n, self.run(n)?)))
    }

    fn booked(&self, n: usize) -> Option<&Promise> {
        self.world.booked.get(n)?.as_ref()
    }

    /// Plays a step. `None` if the script ends before or with this step.
    fn play(&mut self, step: &Step) -> Option<()> {
        match *step {
            Step::Next => self.world.next_time().map_or(Some(()), |next| self.forward(next)),
            Step::Sleep(seconds) => {
                let until = self.world.now + seconds;
                while let Some(next) = self.world.next_time().filter(|next| *next < until) {
                    self.forward(next)?;
                }
                self.forward(until)
            }
            Step::Submit(job) => self.submit(job),
            Step::Book { job, from_s, .. } => self.book(job, from_s),
            _ => self.request_for(step).map_or(Some(()), |done| {
                self.carry_out(step);
                self.settle(done)
            }),
        }
    }

    /// Moves the time. Runs that end by then end first.
    fn forward(&mut self, until: i64) -> Option<()> {
        let ends: Vec<(usize, bool)> = self
            .runs()
            .filter(|(_, run)| run.ends.is_some_and(|ends| ends <= until))
            .map(|(n, run)| (n, run.stopped_for.is_some()))
            .collect();
        let ended: Vec<Value> = ends.iter().map(|(n, _)| end(*n, true)).collect();
        let done = json!({"do": "move", "ended": ended});
        let mut sooner = self.clone();
        self.move_to(until, 0);
        self.settle(done.clone())?;
        if !ends.iter().any(|(_, preempted)| *preempted) {
            return Some(());
        }
        // The metered time of a preempted run is unknown here. So the script ends here, and has this step
        // only if the metered time makes no difference.
        sooner.move_to(until, METERED_S);
        let same = sooner.settle(done).is_some() && self.merge_last_entry(&sooner);
        if !same {
            self.entries.pop();
        }
        None
    }

    /// Moves the time. A preempted run that ends by then has its whole limit left except `metered` seconds,
    /// because the clock of its worker is not moved.
    fn move_to(&mut self, until: i64, metered: i64) {
        let back: Vec<(usize, i64)> = self
            .runs()
            .filter(|(_, run)| run.stopped_for.is_some() && run.ends.is_some_and(|ends| ends <= until))
            .map(|(n, run)| (n, until - run.since))
            .collect();
        for (n, passed) in back {
            self.world.jobs[n].left = self.limits[n] - metered + passed;
        }
        self.world.step(&Step::Sleep(until - self.world.now));
        self.cancel_unstartable();
    }

    /// Cancels the jobs that wait in a reservation that has ended: they never start.
    fn cancel_unstartable(&mut self) {
        for n in 0..self.world.jobs.len() {
            let inside = self.world.jobs[n].spec.inside;
            if inside.is_some_and(|booking| self.booked(booking).is_none()) && self.world.waits(n) {
                self.world.step(&Step::Cancel(n));
            }
        }
    }

    /// Merges the last entry of another player into the last entry. Returns true if the two differ only in
    /// the forecasts of waiting jobs.
    fn merge_last_entry(&mut self, other: &Self) -> bool {
        let (Some(entry), Some(other)) = (self.entries.last_mut(), other.entries.last()) else {
            return false;
        };
        let (jobs, others) = (entry["jobs"].as_array_mut().unwrap(), other["jobs"].as_array().unwrap());
        jobs.iter_mut().zip(others).all(|(job, other)| {
            if job["is"] == "waits" && other["is"] == "waits" {
                job["or_earliest"] = other["earliest"].clone();
                if job["blockers"] != other["blockers"] {
                    job["blockers"] = Value::Null;
                }
                return true;
            }
            job["is"] == other["is"] && job["ranks"] == other["ranks"]
        })
    }

    fn submit(&mut self, job: Job) -> Option<()> {
        let own =
            |n: &usize| self.booked_for.get(*n).is_some_and(|b| b.org == job.org && b.models == job.models);
        // A job can depend on jobs of its own organization only.
        let known = |n: &usize| self.world.jobs.get(*n).is_some_and(|other| other.spec.org == job.org);
        let job = Job { inside: job.inside.filter(own), after: job.after.filter(known), ..job };
        if self.is_refused(&job) {
            return Some(());
        }
        let n = self.world.jobs.len();
        self.world.step(&Step::Submit(job));
        self.limits.push(job.seconds);
        self.settle(json!({
            "do": "submit", "job": n, "org": job.org, "after": job.after, "inside": job.inside, "body": body(&job),
        }))
    }

    /// True if the portal refuses a job, because it could never start.
    fn is_refused(&self, job: &Job) -> bool {
        let failed = |n: usize| matches!(self.world.jobs[n].state, State::Over { succeeded: false });
        if job.after.is_some_and(failed) {
            return true;
        }
        if let Some(n) = job.inside {
            return self.is_refused_inside(job, n);
        }
        let most = self.world.quotas[usize::from(job.org)];
        let beyond = most.is_some_and(|boards| milli(job) > boards * 1_000);
        beyond
            || !matches!(self.world.engine.clone().why_impossible(&request(job), org_id(job.org)), Ok(None))
    }

    fn is_refused_inside(&self, job: &Job, n: usize) -> bool {
        let Some(booked) = self.booked(n) else { return true };
        let reserved = self.booked_for[n];
        let same = reserved.device == job.device;
        let offered =
            (same || reserved.device == DeviceKind::Board) && !matches!(job.device, DeviceKind::Share(_));
        let larger = job.nodes > reserved.nodes || (same && job.count > reserved.count);
        let most_s = booked.until - booked.from.max(self.world.now);
        !offered || larger || job.seconds >= most_s
    }

    fn book(&mut self, job: Job, from_s: i64) -> Option<()> {
        let (n, from) = (self.world.booked.len(), self.world.now + from_s);
        self.world.step(&Step::Book { job, from_s, maintenance: false });
        self.booked_for.push(job);
        let quote = json!({
            "offering": offering(&job), "nodes": job.nodes, "gpus_per_node": job.count, "topology": topology(&job),
        });
        let refused = self.booked(n).is_none();
        self.settle(json!({
            "do": "book", "booking": n, "org": job.org, "from": from, "until": from + job.seconds, "quote": quote,
            "refused": refused,
        }))
    }

    /// The REST request of a step; `None` if it changes nothing or would be refused.
    fn request_for(&self, step: &Step) -> Option<Value> {
        let goes_on = |job: usize| self.run(job).filter(|run| run.stopped_for.is_none());
        Some(match *step {
            Step::Unbook(n) => {
                self.booked(n)?;
                let ended: Vec<Value> = self.inside(n).into_iter().map(|job| end(job, false)).collect();
                json!({"do": "unbook", "booking": n, "org": self.booked_for[n].org, "ended": ended})
            }
            Step::End { job, succeeded } => {
                goes_on(job)?;
                json!({"do": "end", "ended": [end(job, succeeded)]})
            }
            Step::Cancel(job) if self.world.waits(job) => json!({"do": "cancel", "job": job}),
            Step::Extend { job, seconds } => {
                let ends = goes_on(job)?.ends?;
                if self.is_promised(job, ends, ends + seconds) {
                    return None;
                }
                json!({"do": "extend", "job": job, "max_duration_s": self.limits[job] + seconds})
            }
            Step::Open { host, open } if *self.world.open.get(host)? != open => {
                json!({"do": "open", "host": host, "open": open})
            }
            Step::Quota { org, boards } => {
                self.quota_entry(org, boards, self.world.guarantees[usize::from(org)])
            }
            Step::Guarantee { org, boards } => {
                self.quota_entry(org, self.world.quotas[usize::from(org)], boards)
            }
            Step::Budget(watts) if watts != self.world.budget => {
                let racks: BTreeMap<_, _> = self.world.hosts.iter().map(|h| (rack(h), watts)).collect();
                json!({"do": "budget", "racks": racks})
            }
            _ => return None,
        })
    }

    /// The entry that sets the limits of an organization.
    fn quota_entry(&self, org: u8, boards: Option<i64>, guaranteed: i64) -> Value {
        let limits = json!({
            "boards_milli": boards.map(|n| n * 1_000), "guaranteed_boards_milli": guaranteed * 1_000,
        });
        json!({"do": "quota", "org": org, "limits": limits})
    }

    /// The jobs that run in a reservation.
    fn inside(&self, n: usize) -> Vec<usize> {
        self.runs().map(|(job, _)| job).filter(|job| self.world.jobs[*job].spec.inside == Some(n)).collect()
    }

    /// True if a reservation can conflict with a job in this time. The boards are not compared: a reservation
    /// on other boards counts too, which is rare.
    fn is_promised(&self, job: usize, from: i64, until: i64) -> bool {
        let own = self.world.jobs[job].spec.inside;
        let booked = self.world.booked.iter().enumerate();
        booked.filter_map(|(n, b)| Some((n, b.as_ref()?))).any(|(n, b)| match own == Some(n) {
            true => until > b.until,
            false => b.from < until && from < b.until,
        })
    }

    fn carry_out(&mut self, step: &Step) {
        if let Step::Unbook(n) = *step {
            for job in self.inside(n) {
                self.world.step(&Step::End { job, succeeded: false });
            }
        }
        self.world.step(step);
        if let Step::Extend { job, seconds } = *step {
            self.limits[job] += seconds;
        }
        self.cancel_unstartable();
    }

    /// Runs the passes, and adds an entry with the step and the new state. `None` if the judge finds a fault,
    /// or a node could not carry out the step.
    fn settle(&mut self, mut done: Value) -> Option<()> {
        pass(&mut self.world).ok()?;
        Judge { world: &self.world }.check_settled().ok()?;
        // A node cannot stop a run that it has not begun.
        if self.runs().any(|(_, run)| run.stopped_for.is_some() && run.since == self.world.now) {
            return None;
        }
        let jobs: Option<Vec<Value>> = (0..self.world.jobs.len()).map(|n| self.state(n)).collect();
        done["now"] = self.world.now.into();
        done["jobs"] = jobs?.into();
        self.entries.push(done);
        Some(())
    }

    fn state(&self, n: usize) -> Option<Value> {
        Some(match &self.world.jobs[n].state {
            State::Waiting => {
                let earliest = Judge { world: &self.world }.expected_start(n).ok()?;
                json!({"is": "waits", "earliest": earliest, "blockers": self.blockers(n)?})
            }
            State::Running(run) if run.stopped_for.is_some() => json!({"is": "stopping"}),
            State::Running(run) => {
                let rank = |(host, parts): &(usize, Vec<(usize, Part)>)| {
                    let boards: Vec<usize> = parts.iter().map(|(board, _)| *board).collect();
                    json!({"host": host, "boards": boards})
                };
                let ranks: Vec<Value> = run.ranks.iter().map(rank).collect();
                json!({"is": "runs", "ranks": ranks, "ends": run.ends})
            }
            State::Over { succeeded } => json!({"is": "over", "succeeded": succeeded}),
        })
    }

    /// The codes of a waiting job's blockers.
    fn blockers(&self, n: usize) -> Option<BTreeSet<String>> {
        let (spec, now) = (&self.world.jobs[n].spec, at(self.world.now));
        let why = self.world.engine.clone().why(job_id(n), now)?;
        let asked = RequestSummary {
            model: spec.models[0].to_owned(),
            device: request(spec).device,
            count: spec.count,
        };
        Some(explanation(&why, &asked, now).blockers.into_iter().map(|b| b.code).collect())
    }
}

fn rack(host: &Host) -> String {
    format!("rack-{}", host.rack)
}

/// The script of a case, up to the first step that cannot be played; `None` if it is too short.
fn script(name: &str, case: &Case) -> Option<Value> {
    let mut player = Player::new(case);
    for step in &case.steps {
        if player.play(step).is_none() {
            break;
        }
    }
    let host = |h: &Host| json!({"model": h.model, "boards": h.boards, "rack": rack(h)});
    let hosts: Vec<Value> = case.hosts.iter().map(host).collect();
    (player.entries.len() >= LEAST_ENTRIES)
        .then(|| json!({"world": name, "hosts": hosts, "steps": player.entries}))
}

/// A case after those from reports of users: two of five are enumerated, one is enumerated inside a
/// reservation, two are random.
fn candidate(kind: u64, number: u64) -> (String, Case) {
    // The primes divide neither count, so each range of numbers has all kinds of cases.
    let (case, inside) =
        (number.wrapping_mul(7_919) % ENUMERATED, number.wrapping_mul(101) % ENUMERATED_INSIDE);
    match kind % 5 {
        0 | 3 => (format!("enumerated {case}"), enumerated(case)),
        1 => (format!("inside {inside}"), enumerated_inside(inside)),
        _ => (format!("random {number}"), random(number, false)),
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|a| a.parse::<u64>().unwrap());
    let count = arguments.next().expect("how many");
    let seed = arguments.next().unwrap_or(1);
    let mut from_reports = reported().into_iter().map(|r| (r.name, r.case));
    let (mut printed, mut tried) = (0, 0);
    while printed < count {
        let (name, case) =
            from_reports.next().unwrap_or_else(|| candidate(printed, seed.wrapping_mul(1_000_000) + tried));
        tried += 1;
        let case = adapted(&case);
        if let Err(fault) = check(&case) {
            eprintln!("left out {name}: rule {}: {}", fault.rule, fault.text);
        } else if let Some(script) = script(&name, &case) {
            println!("{script}");
            printed += 1;
        }
    }
}
