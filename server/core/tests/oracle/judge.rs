//! The judge: says by brute force whether decisions follow the documented order of the queue.
//!
//! It shares no code with the engine but the tables of boards. Slow and obvious on purpose.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use berth_core::calendar::Kind;
use berth_core::cluster::{BookingId, Part};
use berth_core::engine::{Blocker, Decision};
use berth_core::power::counted_watts;
use berth_mig::Instance;

use crate::world::{
    Host, Job, LATE_S, Promise, SOON_S, State, Step, What, World, at, job_id, keeps_mig, milli, seconds,
    table,
};

const CLASS_STEP_S: i64 = 12 * 3_600;

/// A rule that was broken, by its letter, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct Fault {
    pub rule: &'static str,
    pub text: String,
}

fn fault<T>(rule: &'static str, text: String) -> Result<T, Fault> {
    Err(Fault { rule, text })
}

/// A job's turn: class, share, age.
#[derive(Debug, Clone, Copy)]
struct Turn {
    class: i64,
    share: f64,
    age: (i64, usize),
}

/// What is asked of a place.
struct Query<'a> {
    job: usize,
    from: i64,
    until: i64,
    /// Attempts that are thought away.
    gone: &'a [usize],
    promises: &'a [Promise],
    powered: bool,
}

/// A start that was held for a job before a pass.
pub struct Kept {
    job: usize,
    /// Others were stopped for it.
    firm: bool,
    promise: Promise,
}

enum Told {
    StartsNow,
    Earliest(Option<i64>),
}

type Parts = Vec<(usize, Part)>;

/// Whether a part can stand beside what is on a board.
fn stands(host: &Host, there: &[(Part, u8)], part: Part, org: u8) -> bool {
    let table = table(host.model);
    match part {
        Part::Whole => there.is_empty() && !keeps_mig(host),
        Part::Share(milli) => {
            let shared = there.iter().map(|(p, o)| match p {
                Part::Share(m) if *o == org => i64::from(*m),
                _ => 10_000,
            });
            !keeps_mig(host) && shared.sum::<i64>() + i64::from(milli) <= 1_000
        }
        Part::Slice(new) => {
            let Some(board) = table.filter(|b| host.mig || b.live_toggle) else { return false };
            let Some(profile) = board.profile(new.profile_id) else { return false };
            let span = |i: &Instance, size: u32| (i.start, i.start + size);
            let (from, until) = span(&new, profile.size);
            profile.starts.contains(&new.start)
                && there.iter().all(|(p, _)| match p {
                    Part::Slice(old) => board.profile(old.profile_id).is_some_and(|q| {
                        let (a, b) = span(old, q.size);
                        (until <= a || b <= from) && (profile.group.is_none() || q.group != profile.group)
                    }),
                    _ => false,
                })
        }
    }
}

/// The forms in which one device can be lent on a board.
fn forms(host: &Host, job: &Job) -> Vec<Part> {
    match job.what {
        What::Share(milli) => vec![Part::Share(milli)],
        What::Board if keeps_mig(host) => {
            let full = table(host.model).and_then(|b| b.full_profile());
            let slice = |p: &berth_mig::Profile| Instance { profile_id: p.id, start: p.starts[0] };
            full.map(|p| Part::Slice(slice(p))).into_iter().collect()
        }
        What::Board => vec![Part::Whole],
        What::Slice(index) => {
            let name = &table(job.models[0]).expect("slices").profiles[index].name;
            let profile = table(host.model).and_then(|b| b.profile_by_name(name));
            let slice = |start: &u32, id| Part::Slice(Instance { profile_id: id, start: *start });
            profile.into_iter().flat_map(|p| p.starts.iter().map(move |s| slice(s, p.id))).collect()
        }
    }
}

pub struct Judge<'a> {
    pub world: &'a World,
}

impl Judge<'_> {
    fn job(&self, n: usize) -> &Job {
        &self.world.jobs[n].spec
    }

    /// Until when an attempt is expected to be there, at the latest; for ever if nobody knows.
    fn end(&self, n: usize) -> Option<i64> {
        let State::Running(run) = &self.world.jobs[n].state else { return Some(i64::MIN) };
        Some(match run.ends {
            None => i64::MAX,
            Some(end) if end <= self.world.now => self.world.now + LATE_S,
            Some(end) => end,
        })
    }

    fn is_there(&self, n: usize, at: i64, query: &Query<'_>) -> bool {
        let runs = matches!(self.world.jobs[n].state, State::Running(_));
        runs && !query.gone.contains(&n) && (at <= self.world.now || self.end(n).is_some_and(|end| end > at))
    }

    /// What is on a board, or promised on it, during a time.
    fn on_board(&self, host: usize, board: usize, query: &Query<'_>) -> Vec<(Part, u8)> {
        let mut out = Vec::new();
        for (n, job) in self.world.jobs.iter().enumerate() {
            let State::Running(run) = &job.state else { continue };
            if self.is_there(n, query.from, query) {
                let here = run.ranks.iter().filter(|(h, _)| *h == host).flat_map(|(_, parts)| parts);
                out.extend(here.filter(|(b, _)| *b == board).map(|(_, part)| (*part, job.spec.org)));
            }
        }
        for promise in self.met(query) {
            let here = promise.parts.iter().filter(|(h, b, _)| (*h, *b) == (host, board));
            out.extend(here.map(|(.., part)| (*part, promise.org)));
        }
        out
    }

    fn met<'q>(&self, query: &'q Query<'_>) -> impl Iterator<Item = &'q Promise> + use<'q> {
        query.promises.iter().filter(|p| p.from < query.until && query.from < p.until)
    }

    /// The times at which more is in use than before.
    fn points(&self, query: &Query<'_>) -> Vec<i64> {
        self.met(query).map(|p| p.from).filter(|f| *f > query.from).chain([query.from]).collect()
    }

    fn cpus_left(&self, host: usize, query: &Query<'_>, within: Option<&Promise>) -> i64 {
        if let Some(booked) = within.filter(|w| w.cpus > 0) {
            return self
                .points(query)
                .into_iter()
                .map(|at| self.cpus_inside(host, booked, at, query))
                .min()
                .unwrap_or(0);
        }
        let left = self.points(query).into_iter().map(|at| {
            let active: Vec<&Promise> = self.met(query).filter(|p| p.from <= at && at < p.until).collect();
            let here = |p: &&Promise| p.parts.iter().any(|(h, ..)| *h == host);
            let mut left = self.world.hosts[host].cpus;
            let mut inside: Vec<(BookingId, i64)> = Vec::new();
            for (n, job) in self.world.jobs.iter().enumerate() {
                let State::Running(run) = &job.state else { continue };
                if !self.is_there(n, at, query) || !run.ranks.iter().any(|(h, _)| *h == host) {
                    continue;
                }
                let id = job.spec.inside.map(crate::world::booking_id);
                match id.filter(|id| active.iter().any(|p| p.id == *id)) {
                    Some(id) => inside.push((id, job.spec.cpus)),
                    None => left -= job.spec.cpus,
                }
            }
            for promise in active.into_iter().filter(here) {
                let used = inside.iter().filter(|(id, _)| *id == promise.id).map(|(_, c)| c).sum::<i64>();
                left -= promise.cpus.max(used);
            }
            left
        });
        left.min().unwrap_or(0)
    }

    /// Processors that a reservation has left on a host at a time.
    fn cpus_inside(&self, host: usize, booked: &Promise, at: i64, query: &Query<'_>) -> i64 {
        let runs = |n: &usize| {
            let State::Running(run) = &self.world.jobs[*n].state else { return false };
            self.job(*n).inside.map(crate::world::booking_id) == Some(booked.id)
                && run.ranks.iter().any(|(h, _)| *h == host)
                && self.is_there(*n, at, query)
        };
        let used: i64 = (0..self.world.jobs.len()).filter(runs).map(|n| self.job(n).cpus).sum();
        let held = self.met(query).filter(|p| p.kind == Kind::Hold && p.from <= at && at < p.until);
        let held: i64 = held.filter(|p| p.parts.iter().any(|(h, ..)| *h == host)).map(|p| p.cpus).sum();
        booked.cpus - used - held
    }

    /// Every choice of devices of a host that a job could have.
    fn choices(&self, host: usize, query: &Query<'_>, within: Option<&Promise>) -> Vec<Parts> {
        let (of, job) = (self.world.hosts[host], *self.job(query.job));
        if !self.world.open[host]
            || !job.models.contains(&of.model)
            || self.cpus_left(host, query, within) < job.cpus
        {
            return Vec::new();
        }
        let mut done: Vec<Parts> = vec![Vec::new()];
        for _ in 0..job.count {
            let mut next: Vec<Parts> = Vec::new();
            for chosen in &done {
                for board in chosen.last().map_or(0, |(b, _)| *b)..of.boards {
                    if board == 0 && !self.world.healthy[host] {
                        continue;
                    }
                    for part in forms(&of, &job) {
                        let mut there = self.on_board(host, board, query);
                        there.extend(chosen.iter().filter(|(b, _)| *b == board).map(|(_, p)| (*p, job.org)));
                        let free = stands(&of, &there, part, job.org);
                        if free && within.is_none_or(|w| allows(&of, w, host, board, part)) {
                            next.push(chosen.iter().copied().chain([(board, part)]).collect());
                        }
                    }
                }
            }
            next.sort_by_key(|parts| format!("{parts:?}"));
            next.dedup();
            done = next;
        }
        done
    }

    /// Boards that draw power at a time.
    fn drawing(&self, at: i64, query: &Query<'_>) -> BTreeSet<(usize, usize)> {
        let mut out = BTreeSet::new();
        for (n, job) in self.world.jobs.iter().enumerate() {
            if let State::Running(run) = &job.state
                && self.is_there(n, at, query)
            {
                out.extend(run.ranks.iter().flat_map(|(h, parts)| parts.iter().map(|(b, _)| (*h, *b))));
            }
        }
        for promise in self.met(query).filter(|p| p.from <= at && at < p.until && p.kind != Kind::Maintenance)
        {
            out.extend(promise.parts.iter().map(|(h, b, _)| (*h, *b)));
        }
        out
    }

    fn is_fed(&self, boards: &BTreeSet<(usize, usize)>, query: &Query<'_>) -> bool {
        let Some(budget) = self.world.budget.filter(|_| query.powered) else { return true };
        self.points(query).into_iter().all(|at| {
            let before = self.drawing(at, query);
            let mut racks: BTreeSet<u8> = boards.iter().map(|(h, _)| self.world.hosts[*h].rack).collect();
            // In other racks than those of what begins then, nothing more begins to draw.
            let begins = |rack: &u8| {
                let mut begun = self.met(query).filter(|p| p.from == at);
                at == query.from
                    || begun.any(|p| p.parts.iter().any(|(h, ..)| self.world.hosts[*h].rack == *rack))
            };
            racks.retain(begins);
            racks.into_iter().all(|rack| {
                let watts = |set: &BTreeSet<(usize, usize)>| {
                    let here = set.iter().filter(|(h, _)| self.world.hosts[*h].rack == rack);
                    here.map(|(h, _)| counted_watts(self.world.hosts[*h].model, None)).sum::<i64>()
                };
                let after: BTreeSet<(usize, usize)> = before.union(boards).copied().collect();
                watts(&after) <= budget || watts(&after) == watts(&before)
            })
        })
    }

    /// The hosts that could have a rank of a job, each with every choice of devices.
    fn host_choices(&self, query: &Query<'_>, within: Option<&Promise>) -> Vec<(usize, Vec<Parts>)> {
        (0..self.world.hosts.len())
            .filter(|h| within.is_none_or(|w| w.parts.iter().any(|(host, ..)| host == h)))
            .map(|host| (host, self.choices(host, query, within)))
            .filter(|(_, choices)| !choices.is_empty())
            .collect()
    }

    /// The sets of these hosts that are as many, and as near to each other, as a job wants.
    fn groups(&self, job: usize, choices: &[(usize, Vec<Parts>)]) -> Vec<Vec<usize>> {
        let job = self.job(job);
        let all: BTreeSet<usize> = choices.iter().map(|(h, _)| *h).collect();
        let mut groups = subsets(&all, job.nodes as usize);
        groups.retain(|hosts| {
            let racks: BTreeSet<u8> = hosts.iter().map(|h| self.world.hosts[*h].rack).collect();
            !job.near || racks.len() <= 1
        });
        groups
    }

    /// Whether there is a place for all of a job, all the time.
    fn fits(&self, query: &Query<'_>, within: Option<&Promise>) -> bool {
        let choices = self.host_choices(query, within);
        let boards = |host: usize, parts: &Parts| -> BTreeSet<(usize, usize)> {
            parts.iter().map(|(b, _)| (host, *b)).collect()
        };
        self.groups(query.job, &choices).into_iter().any(|hosts| {
            let mut sets: Vec<BTreeSet<(usize, usize)>> = vec![BTreeSet::new()];
            for (host, choices) in choices.iter().filter(|(h, _)| hosts.contains(h)) {
                let own: BTreeSet<BTreeSet<(usize, usize)>> =
                    choices.iter().map(|parts| boards(*host, parts)).collect();
                sets = sets
                    .iter()
                    .flat_map(|s| own.iter().map(move |o| s.union(o).copied().collect()))
                    .collect();
            }
            sets.iter().any(|set| self.is_fed(set, query))
        })
    }

    /// Every place for all of a job, all the time.
    fn placements(&self, query: &Query<'_>, within: Option<&Promise>) -> Vec<Vec<(usize, usize, Part)>> {
        let choices = self.host_choices(query, within);
        let mut out: Vec<Vec<(usize, usize, Part)>> = Vec::new();
        for hosts in self.groups(query.job, &choices) {
            let mut all: Vec<Vec<(usize, usize, Part)>> = vec![Vec::new()];
            for (host, choices) in choices.iter().filter(|(h, _)| hosts.contains(h)) {
                let named = |parts: &Parts| -> Vec<(usize, usize, Part)> {
                    parts.iter().map(|(b, part)| (*host, *b, *part)).collect()
                };
                all = all
                    .iter()
                    .flat_map(|a| choices.iter().map(move |c| a.iter().copied().chain(named(c)).collect()))
                    .collect();
            }
            out.extend(all);
        }
        out.retain(|parts| self.is_fed(&parts.iter().map(|(h, b, _)| (*h, *b)).collect(), query));
        out
    }

    /// Starts that are held for others whose turn is before a job's own, or for whom others made room.
    fn held_for_others(&self, job: usize, at_once: bool) -> Vec<Promise> {
        let mine = self.turn(job);
        let held = self.world.engine.held_starts().filter_map(|(other, booking)| {
            let n = self.world.number(other);
            let same = self.job(n).inside == self.job(job).inside;
            let counts = same
                && n != job
                && (self.keeps_room(other, n, job, at_once)
                    || before(&self.turn(n), &mine) != Some(Ordering::Greater));
            let promise = self.world.promise(booking, self.job(n).org);
            counts.then(|| Promise { cpus: self.job(n).cpus, ..promise })
        });
        held.collect()
    }

    /// Whether others made room for a job, which gives way only to a higher class that starts at once.
    fn keeps_room(&self, id: berth_types::ids::JobId, n: usize, job: usize, at_once: bool) -> bool {
        let higher = at_once && self.job(job).class > self.job(n).class && self.job(n).inside.is_none();
        self.world.engine.is_firm(id) && !higher
    }

    /// All that is promised to others than a job.
    fn promises(&self, job: usize, at_once: bool) -> Vec<Promise> {
        let own = self.job(job).inside.map(crate::world::booking_id);
        let booked = self.world.booked.iter().flatten().filter(|p| Some(p.id) != own).cloned();
        booked.chain(self.held_for_others(job, at_once)).collect()
    }

    fn within(&self, job: usize) -> Option<&Promise> {
        self.world.booked.get(self.job(job).inside?)?.as_ref()
    }

    /// Whether a job could run from a time on.
    fn could_run(&self, job: usize, from: i64, gone: &[usize], promises: &[Promise]) -> bool {
        let until = from + self.world.jobs[job].left;
        let powered = self.job(job).inside.is_none();
        let query = Query { job, from, until, gone, promises, powered };
        match self.job(job).inside {
            None => self.fits(&query, None),
            Some(_) => self.within(job).is_some_and(|w| {
                w.org == self.job(job).org && w.from <= from && until <= w.until && self.fits(&query, Some(w))
            }),
        }
    }

    /// Use against weight, which is 1 here.
    fn share(&self, org: u8) -> f64 {
        let running: i64 =
            self.world.used.iter().filter(|u| u.org == org && u.until.is_none()).map(|u| u.milli).sum();
        if running < self.world.guarantees[usize::from(org)] * 1_000 {
            return 0.0;
        }
        self.world.past_use(org) + running as f64 * 3_600.0
    }

    fn turn(&self, job: usize) -> Turn {
        let of = &self.world.jobs[job];
        let class = i64::from(of.spec.class) + (self.world.now - of.queued_at) / CLASS_STEP_S;
        let class = class.min(3);
        let share = if class == 3 { 0.0 } else { self.share(of.spec.org) };
        Turn { class, share, age: (of.queued_at, job) }
    }

    fn is_admitted(&self, job: usize) -> bool {
        let of = self.job(job);
        let Some(most) = self.world.quotas[usize::from(of.org)].filter(|_| of.inside.is_none()) else {
            return true;
        };
        let running = self.world.jobs.iter().filter(|j| {
            matches!(j.state, State::Running(_)) && j.spec.org == of.org && j.spec.inside.is_none()
        });
        running.map(|j| milli(&j.spec)).sum::<i64>() + milli(of) <= most * 1_000
    }

    /// Whether a job takes part in the queue now.
    fn takes_part(&self, job: usize) -> bool {
        let ends = self.world.now + self.world.jobs[job].left;
        let inside = self.job(job).inside.is_none() || self.within(job).is_some_and(|w| ends <= w.until);
        self.world.waits(job) && self.world.is_released(job) && self.is_admitted(job) && inside
    }

    fn waiting(&self) -> Vec<usize> {
        (0..self.world.jobs.len()).filter(|n| self.takes_part(*n)).collect()
    }

    /// Attempts that a job may have stopped.
    fn eligible(&self, job: usize) -> Vec<usize> {
        let below = |n: &usize| {
            let State::Running(run) = &self.world.jobs[*n].state else { return false };
            run.preemptible
                && self.job(*n).class < self.job(job).class
                && self.job(*n).inside == self.job(job).inside
        };
        (0..self.world.jobs.len()).filter(below).collect()
    }

    /// The longest grace of attempts, in seconds.
    fn longest_grace_s(&self, of: &[usize]) -> i64 {
        of.iter().map(|n| self.job(*n).grace_s).max().unwrap_or(0)
    }

    /// How long a job may wait for what ends by itself, in seconds. A job that waits outside the line goes on to wait
    /// when the run with the longest grace is stopped or has ended.
    fn patience_s(&self, job: usize) -> i64 {
        let of = self.job(job);
        let lower = |n: &usize| {
            let other = self.job(*n);
            other.preemptible && other.class < of.class && other.inside == of.inside && self.world.has_run(*n)
        };
        let counts: Vec<usize> = match self.world.engine.is_aside(job_id(job)) {
            true => (0..self.world.jobs.len()).filter(lower).collect(),
            false => self.eligible(job),
        };
        self.longest_grace_s(&counts).max(SOON_S)
    }

    fn held(&self, job: usize) -> Option<i64> {
        self.world.engine.held_starts().find(|(other, _)| *other == job_id(job)).map(|(_, b)| seconds(b.from))
    }

    /// Rules (a) to (c) and what is said, once a pass has settled.
    pub fn settled(&self) -> Result<(), Fault> {
        for job in self.waiting() {
            let promises = self.promises(job, false);
            let now = self.world.now;
            if self.could_run(job, now, &[], &self.promises(job, true)) {
                return fault("a", format!("job {job} fits now and waits"));
            }
            let eligible = self.eligible(job);
            let grace_s = self.longest_grace_s(&eligible);
            let soon = now + self.patience_s(job);
            if !eligible.is_empty()
                && self.held(job).is_none_or(|at| at > soon)
                && !self.could_run(job, now + grace_s, &[], &promises)
                && self.could_run(job, now + grace_s, &eligible, &promises)
            {
                return fault("b", format!("job {job} waits at {now} though {eligible:?} could make room"));
            }
        }
        self.firsts()
    }

    /// The first time at which a job could run when all runs take their limits.
    fn earliest(&self, job: usize) -> Option<i64> {
        self.earliest_beside(job, &self.promises(job, false))
    }

    fn earliest_beside(&self, job: usize, promises: &[Promise]) -> Option<i64> {
        self.earliest_without(job, promises, &[])
    }

    /// The same if some runs were not there.
    fn earliest_without(&self, job: usize, promises: &[Promise], gone: &[usize]) -> Option<i64> {
        let now = self.world.now;
        let ends = (0..self.world.jobs.len()).filter_map(|n| self.end(n));
        let mut times: Vec<i64> =
            ends.chain(promises.iter().map(|p| p.until)).chain([now + LATE_S]).collect();
        times.retain(|t| *t > now && *t < i64::MAX);
        times.sort_unstable();
        times.dedup();
        times.into_iter().find(|t| self.could_run(job, *t, gone, promises))
    }

    /// A start is held for the first of each pool, in the open and inside reservations.
    fn firsts(&self) -> Result<(), Fault> {
        let waiting = self.waiting();
        let pool = |n: &usize| (self.job(*n).inside, self.job(*n).models);
        let pools: Vec<_> = waiting.iter().map(pool).collect();
        for of in pools {
            let mut line: Vec<usize> = waiting
                .iter()
                .copied()
                .filter(|n| pool(n) == of && !self.world.engine.is_aside(job_id(*n)))
                .collect();
            if of.0.is_some_and(|n| self.world.booked[n].as_ref().is_none_or(|b| b.from > self.world.now)) {
                continue;
            }
            let Some(()) = self.sort(&mut line) else { continue };
            for job in line {
                let (held, truth) = (self.held(job), self.earliest(job));
                // A held start changes hands by use alone only when something happens in its pool.
                let other = waiting.iter().any(|n| {
                    let same = pool(n) == of && !self.world.engine.is_aside(job_id(*n));
                    let (a, b) = (self.turn(*n), self.turn(job));
                    same && a.class == b.class
                        && self.job(*n).org != self.job(job).org
                        && self.held(*n).is_some()
                        && self.held(*n) == self.earliest(*n)
                });
                if held.is_none() && other {
                    break;
                }
                if held != truth {
                    return fault(
                        "c",
                        format!(
                            "job {job} at {}: held for {held:?}, and {truth:?} is the first time",
                            self.world.now
                        ),
                    );
                }
                if truth.is_some() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// By turns; `None` where shares are too near each other to say.
    fn sort(&self, line: &mut [usize]) -> Option<()> {
        let turns: Vec<(usize, Turn)> = line.iter().map(|n| (*n, self.turn(*n))).collect();
        let clear = |a: &(usize, Turn)| turns.iter().all(|b| a.0 == b.0 || before(&a.1, &b.1).is_some());
        turns.iter().all(clear).then_some(())?;
        line.sort_by(|a, b| before(&self.turn(*a), &self.turn(*b)).unwrap_or(Ordering::Equal));
        Some(())
    }

    /// Whether a start that was decided is legal, and in turn.
    pub fn may_start(&self, job: usize, ranks: &[(usize, Parts)], kept: &[Kept]) -> Result<(), Fault> {
        let (now, of) = (self.world.now, *self.job(job));
        if !self.takes_part(job) {
            return fault("d", format!("job {job} starts and must not"));
        }
        let own = of.inside.map(crate::world::booking_id);
        let booked: Vec<Promise> =
            self.world.booked.iter().flatten().filter(|p| Some(p.id) != own).cloned().collect();
        let (until, powered) = (now + self.world.jobs[job].left, of.inside.is_none());
        let query = Query { job, from: now, until, gone: &[], promises: &booked, powered };
        let within = of.inside.map(|_| self.within(job));
        let boards: BTreeSet<(usize, usize)> =
            ranks.iter().flat_map(|(h, parts)| parts.iter().map(|(b, _)| (*h, *b))).collect();
        let racks: BTreeSet<u8> = ranks.iter().map(|(h, _)| self.world.hosts[*h].rack).collect();
        let legal = ranks.len() == of.nodes as usize
            && (!of.near || racks.len() == 1)
            && within.is_none_or(|w| w.is_some_and(|w| w.from <= now && until <= w.until && w.org == of.org))
            && ranks.iter().all(|(host, parts)| {
                let sorted = |parts: &Parts| {
                    let mut parts = parts.clone();
                    parts.sort_by_key(|p| format!("{p:?}"));
                    parts
                };
                let choices = self.choices(*host, &query, within.flatten());
                choices.iter().any(|c| sorted(c) == sorted(parts))
            })
            && self.is_fed(&boards, &query);
        if !legal {
            return fault("legal", format!("job {job} cannot run on {ranks:?}"));
        }
        let mine = self.turn(job);
        // Jobs of a reservation and others do not stand in one line.
        let same = |n: &usize| *n != job && self.job(*n).inside == of.inside;
        for other in self.waiting().into_iter().filter(same) {
            let earlier = before(&self.turn(other), &mine) == Some(Ordering::Less);
            // Room that was made for it was held for it.
            let counts = |n: usize| of.inside.is_some() || self.job(other).class <= self.job(n).class;
            let firm = kept.iter().any(|k| k.firm && k.job == job) && counts(job);
            let mut promises = self.promises(other, true);
            // Held starts that stood when it was decided, though this start may have changed turns since.
            let stood = kept.iter().filter(|k| {
                let waits = k.job != other && k.job != job && self.world.waits(k.job);
                let first = before(&self.turn(k.job), &self.turn(other)) != Some(Ordering::Greater);
                waits && if k.firm { counts(k.job) } else { first && self.job(k.job).inside == of.inside }
            });
            promises.extend(stood.map(|k| k.promise.clone()));
            if earlier
                && !firm
                && self.could_run(other, now, &[], &promises)
                && !self.a_first_could_bar(other, job, &promises, kept)
            {
                return fault("d", format!("job {job} starts and job {other}, whose turn is before, could"));
            }
        }
        Ok(())
    }

    /// Whether a start that was held in the pass for somebody with an earlier turn could have been in the way of
    /// a job. Such a held start may be gone at the end of the pass, since each start changes turns.
    fn a_first_could_bar(&self, job: usize, started: usize, promises: &[Promise], kept: &[Kept]) -> bool {
        let now = self.world.now;
        let first = |n: &usize| {
            *n != job
                && *n != started
                && self.job(*n).inside == self.job(job).inside
                && before(&self.turn(*n), &self.turn(job)) != Some(Ordering::Greater)
                && !self.could_run(*n, now, &[], &self.promises(*n, true))
        };
        self.waiting().into_iter().filter(first).any(|n| {
            let own = self.job(n).inside.map(crate::world::booking_id);
            let booked = self.world.booked.iter().flatten().filter(|p| Some(p.id) != own);
            let firm = kept.iter().filter(|k| k.firm && k.job != n && self.world.waits(k.job));
            let others: Vec<Promise> = booked.chain(firm.map(|k| &k.promise)).cloned().collect();
            let Some(from) = self.earliest_beside(n, &others) else { return false };
            let (org, cpus) = (self.job(n).org, self.job(n).cpus);
            let until = from + self.world.jobs[n].left;
            let powered = self.job(n).inside.is_none();
            let query = Query { job: n, from, until, gone: &[], promises: &others, powered };
            self.placements(&query, self.within(n)).into_iter().any(|parts| {
                let id = BookingId(job_id(n).uuid());
                let held = Promise { id, kind: Kind::Hold, org, from, until, cpus, parts };
                let all: Vec<Promise> = promises.iter().cloned().chain([held]).collect();
                !self.could_run(job, now, &[], &all)
            })
        })
    }

    /// Whether those who are told to make room have to. `kept` are the held starts before the pass for which
    /// others were stopped: they are not moved to other boards to let somebody stay.
    pub fn may_stop(&self, victims: &[usize], job: usize, kept: &[Kept]) -> Result<(), Fault> {
        let mut promises = self.promises(job, false);
        // Who starts in the same pass had its room before.
        let starts = |k: &&Kept| {
            let waits = self.world.engine.waiting_jobs().any(|(id, _)| id == job_id(k.job));
            self.world.waits(k.job) && !waits
        };
        let own = |k: &&Kept| k.job == job || self.job(k.job).inside != self.job(job).inside;
        let stood = kept.iter().filter(|k| k.firm && starts(k) && !own(k));
        let stood: Vec<Promise> = stood.map(|k| k.promise.clone()).collect();
        promises.extend(stood);
        let firm = |p: &Promise| kept.iter().find(|k| k.firm && k.promise.id == p.id);
        let unmoved = |p: &Promise| firm(p).map_or(p, |k| &k.promise).clone();
        let before: Vec<Promise> = promises.iter().map(unmoved).collect();
        let eligible = self.eligible(job);
        let then = self.world.now + self.longest_grace_s(&eligible);
        if let Some(n) = victims.iter().find(|n| !eligible.contains(n)) {
            return fault("b", format!("job {n} is told to make room for {job} and need not"));
        }
        if !self.could_run(job, then, victims, &promises)
            && !self.could_all_run(job, then, victims, promises.clone())
        {
            return fault("b", format!("job {job} does not fit without {victims:?}"));
        }
        for stays in victims {
            let rest: Vec<usize> = victims.iter().copied().filter(|n| n != stays).collect();
            if self.could_run(job, then, &rest, &promises)
                && self.could_run(job, then, &rest, &before)
                && self.could_all_run(job, then, &rest, promises.clone())
            {
                return fault("b", format!("job {stays} could stay though {job} is to start"));
            }
        }
        Ok(())
    }

    /// Whether a job could run from a time on while each held start among the promises keeps its time, on
    /// whatever boards. The held starts may be on boards of those who are stopped just now.
    fn could_all_run(&self, job: usize, from: i64, gone: &[usize], promises: Vec<Promise>) -> bool {
        let (held, fixed): (Vec<Promise>, Vec<Promise>) =
            promises.into_iter().partition(|p| p.kind == Kind::Hold);
        self.could_run_beside(job, from, gone, &held, fixed)
    }

    fn could_run_beside(
        &self,
        job: usize,
        from: i64,
        gone: &[usize],
        held: &[Promise],
        fixed: Vec<Promise>,
    ) -> bool {
        let Some((first, others)) = held.split_first() else {
            return self.could_run(job, from, gone, &fixed);
        };
        let n = (0..self.world.jobs.len()).find(|n| job_id(*n).uuid() == first.id.0).expect("a job");
        let powered = self.job(n).inside.is_none();
        let (held_from, until) = (first.from, first.until);
        let query = Query { job: n, from: held_from, until, gone, promises: &fixed, powered };
        self.placements(&query, self.within(n)).into_iter().any(|parts| {
            let promise = Promise { parts, ..first.clone() };
            let fixed = fixed.iter().cloned().chain([promise]).collect();
            self.could_run_beside(job, from, gone, others, fixed)
        })
    }

    /// The start that a waiting job is told once a pass has settled.
    pub fn told(&self, job: usize) -> Result<Option<i64>, Fault> {
        let told = self.told_before_a_pass(job)?;
        match told {
            Told::StartsNow => fault("e", format!("job {job} waits and is told that it starts now")),
            Told::Earliest(at) => Ok(at),
        }
    }

    /// The start that a waiting job is told at any time.
    fn told_before_a_pass(&self, job: usize) -> Result<Told, Fault> {
        let now = self.world.now;
        let mut engine = self.world.engine.clone();
        let Some(why) = engine.why(job_id(job), at(now)) else {
            return fault("e", format!("job {job} waits and nothing is known of it"));
        };
        if why.fits {
            return Ok(Told::StartsNow);
        }
        if why.blockers.is_empty() {
            return fault("e", format!("job {job} waits and is told {why:?}"));
        }
        for blocker in &why.blockers {
            if !self.is_true(job, blocker) {
                return fault("e", format!("job {job} is told {blocker:?}"));
            }
        }
        Ok(Told::Earliest(why.earliest.map(seconds)))
    }

    fn is_true(&self, job: usize, blocker: &Blocker) -> bool {
        let (of, now) = (self.job(job), self.world.now);
        let promises = self.promises(job, true);
        let fits = |open: &World, gone: &[usize], promises: &[Promise]| {
            Judge { world: open }.could_run(job, now, gone, promises)
        };
        let running: Vec<usize> = (0..self.world.jobs.len()).collect();
        let mut other = self.world.clone();
        match blocker {
            Blocker::Dependency(on) => on.iter().all(|j| of.after == Some(self.world.number(*j))),
            Blocker::Quota(_) => !self.is_admitted(job),
            Blocker::Away { .. } => self.world.open.contains(&false),
            Blocker::Quarantined { .. } => self.world.healthy.contains(&false),
            Blocker::Busy { .. } | Blocker::Host { ever: true, .. } => {
                self.world.jobs.iter().any(|j| matches!(j.state, State::Running(_)))
            }
            Blocker::Promised { begins } => promises.iter().any(|p| {
                let fed = self.world.budget.is_some();
                let suits = |host: &usize| fed || of.models.contains(&self.world.hosts[*host].model);
                p.from.max(now) == seconds(*begins) && p.parts.iter().any(|(host, ..)| suits(host))
            }),
            Blocker::Power(_) => {
                other.budget = None;
                self.world.budget.is_some() && (fits(&other, &[], &promises) || !self.is_admitted(job))
            }
            Blocker::Ahead { jobs } => {
                let overlap = |n: &usize| {
                    self.job(*n).inside == of.inside
                        && self.job(*n).models.iter().any(|m| of.models.contains(m))
                };
                // Somebody before it may take the power of its rack, or what its organization may hold, on other
                // boards.
                let takes = |n: &usize| {
                    let earlier = before(&self.turn(*n), &self.turn(job)) != Some(Ordering::Greater);
                    *n != job && earlier && (self.world.budget.is_some() || self.job(*n).org == of.org)
                };
                if *jobs == 1 && self.waiting().iter().any(takes) {
                    return true;
                }
                let (mine, mut clear) = (self.turn(job), true);
                let ahead = self.waiting().into_iter().filter(|n| *n != job && overlap(n));
                let ahead = ahead.filter(|n| match before(&self.turn(*n), &mine) {
                    Some(order) => order == Ordering::Less,
                    None => {
                        clear = false;
                        false
                    }
                });
                let count = ahead.count();
                !clear || count == *jobs as usize
            }
            Blocker::Booking(..) => of.inside.is_some(),
            Blocker::None { .. } | Blocker::Mode { .. } | Blocker::Host { ever: false, .. } => {
                other.open.fill(true);
                other.healthy.fill(true);
                other.budget = None;
                !fits(&other, &running, &[])
            }
            Blocker::Absurd(_) => {
                let known = |m: &&str| self.world.hosts.iter().any(|h| h.model == *m);
                !of.models.iter().any(known) || matches!(of.what, What::Slice(_))
            }
            Blocker::Volume(_) | Blocker::Images { .. } => false,
        }
    }
}

/// What part of a board a reservation lets its jobs use.
fn allows(host: &Host, within: &Promise, at: usize, board: usize, part: Part) -> bool {
    let full = table(host.model).filter(|b| !b.live_toggle).and_then(|b| b.full_profile()).map(|p| p.id);
    let span = |i: &Instance| {
        let size = table(host.model).and_then(|b| b.profile(i.profile_id)).map_or(0, |p| p.size);
        i.start..i.start + size
    };
    let own: Vec<Part> =
        within.parts.iter().filter(|(h, b, _)| (*h, *b) == (at, board)).map(|(.., part)| *part).collect();
    let whole = own.iter().any(|p| match p {
        Part::Whole => true,
        Part::Slice(i) => Some(i.profile_id) == full,
        Part::Share(_) => false,
    });
    let slices: BTreeSet<u32> =
        own.iter().flat_map(|p| if let Part::Slice(i) = p { span(i) } else { 0..0 }).collect();
    whole || matches!(part, Part::Slice(i) if span(&i).all(|s| slices.contains(&s)))
}

/// Which turn is before; `None` where shares are too near each other to say.
fn before(a: &Turn, b: &Turn) -> Option<Ordering> {
    if a.class != b.class {
        return Some(b.class.cmp(&a.class));
    }
    let near = (a.share - b.share).abs() <= 2.0 + 1e-6 * a.share.max(b.share);
    if near && a.share != b.share {
        return None;
    }
    if a.share != b.share {
        return a.share.partial_cmp(&b.share);
    }
    Some(a.age.cmp(&b.age))
}

fn subsets(of: &BTreeSet<usize>, size: usize) -> Vec<Vec<usize>> {
    let mut out: Vec<Vec<usize>> = vec![Vec::new()];
    for _ in 0..size {
        out = out
            .iter()
            .flat_map(|s| {
                let after = of.iter().filter(|n| s.last().is_none_or(|last| *n > last));
                after.map(|n| s.iter().copied().chain([*n]).collect::<Vec<_>>())
            })
            .collect();
    }
    out
}

/// What was true before a step, for what must not get worse.
struct Before {
    held: Vec<(usize, i64)>,
    waiting: Vec<usize>,
    turns: Vec<Turn>,
}

impl Before {
    fn new(world: &World) -> Self {
        let judge = Judge { world };
        let held = (0..world.jobs.len()).filter_map(|n| Some((n, judge.held(n)?))).collect();
        let turns = (0..world.jobs.len()).map(|n| judge.turn(n)).collect();
        Self { held, waiting: judge.waiting(), turns }
    }
}

/// Lives through a case; the first rule that is broken.
pub fn try_case(steps: &[Step], mut world: World) -> Result<World, Fault> {
    for step in steps {
        if let Step::Sleep(s) = step {
            let until = world.now + s;
            while world.next_time().is_some_and(|next| next < until) {
                live(&Step::Next, &mut world)?;
            }
            live(&Step::Sleep(until - world.now), &mut world)?;
        } else {
            live(step, &mut world)?;
        }
    }
    Ok(world)
}

/// One step, the pass that follows, and what is told then.
fn live(step: &Step, world: &mut World) -> Result<(), Fault> {
    let known = Before::new(world);
    world.came = false;
    world.step(step);
    let then = Before::new(world);
    let starts_now = starts_now(world)?;
    pass(world)?;
    if let Some(job) = starts_now.into_iter().find(|job| world.waits(*job)) {
        return fault("e", format!("job {job} was told that it starts with the next pass"));
    }
    let judge = Judge { world };
    judge.settled()?;
    let quiet = matches!(step, Step::Next | Step::Sleep(_) | Step::End { .. } | Step::Cancel(_));
    if quiet && !world.came {
        no_later(world, &known, &then)?;
    }
    for job in (0..world.jobs.len()).filter(|n| world.waits(*n)) {
        judge.told(job)?;
    }
    Ok(())
}

/// The jobs that are told before a pass that it starts them.
fn starts_now(world: &World) -> Result<Vec<usize>, Fault> {
    let judge = Judge { world };
    let mut out = Vec::new();
    for job in (0..world.jobs.len()).filter(|n| world.waits(*n)) {
        if matches!(judge.told_before_a_pass(job)?, Told::StartsNow) {
            out.push(job);
        }
    }
    Ok(out)
}

/// Passes until nothing more is decided, as the portal makes them.
pub fn pass(world: &mut World) -> Result<Vec<Decision>, Fault> {
    let mut all = Vec::new();
    for _ in 0..6 {
        let decisions = one_pass(world)?;
        if decisions.is_empty() {
            return Ok(all);
        }
        all.extend(decisions);
    }
    fault("settled", format!("no end of decisions: {all:?}"))
}

/// A pass, each decision judged and carried out in its order.
fn one_pass(world: &mut World) -> Result<Vec<Decision>, Fault> {
    let kept: Vec<Kept> = world
        .engine
        .held_starts()
        .map(|(job, booking)| {
            let n = world.number(job);
            let of = world.jobs[n].spec;
            let promise = Promise { cpus: of.cpus, ..world.promise(booking, of.org) };
            Kept { job: n, firm: world.engine.is_firm(job), promise }
        })
        .collect();
    let decisions = world.engine.pass(at(world.now));
    let mut index = 0;
    while let Some(decision) = decisions.get(index) {
        match decision {
            Decision::Start { job, ranks, .. } => {
                let n = world.number(*job);
                let mut then = world.clone();
                then.start(n, ranks);
                let State::Running(run) = &then.jobs[n].state else { unreachable!("it was started") };
                Judge { world }.may_start(n, &run.ranks, &kept)?;
                *world = then;
                index += 1;
            }
            Decision::Preempt { for_job, .. } => {
                let same = |d: &&Decision| matches!(d, Decision::Preempt { for_job: f, .. } if f == for_job);
                let group: Vec<usize> = decisions[index..]
                    .iter()
                    .take_while(same)
                    .filter_map(|d| match d {
                        Decision::Preempt { victim, .. } => Some(world.number(victim.job)),
                        _ => None,
                    })
                    .collect();
                Judge { world }.may_stop(&group, world.number(*for_job), &kept)?;
                group.iter().for_each(|n| world.stop(*n));
                index += group.len();
            }
            Decision::Orphan { .. } => index += 1,
        }
    }
    world.acknowledge(&decisions);
    Ok(decisions)
}

/// The first time at which a job could run as if nobody had started in the pass.
fn earliest_before_the_starts(judge: &Judge<'_>, job: usize, then: &Before) -> Option<i64> {
    let started: Vec<usize> = then.waiting.iter().copied().filter(|n| !judge.world.waits(*n)).collect();
    judge.earliest_without(job, &judge.promises(job, false), &started)
}

/// A start that is held does not become later, unless for somebody whose turn is before.
fn no_later(world: &World, known: &Before, then: &Before) -> Result<(), Fault> {
    let judge = Judge { world };
    // Starts in the pass change turns too.
    let after = Before::new(world);
    for (job, at) in known.held.iter().filter(|(job, _)| judge.takes_part(*job)) {
        let order = |of: &Before, n: usize| before(&of.turns[n], &of.turns[*job]);
        let excused = then.waiting.iter().any(|n| {
            let changed = order(known, *n) != order(then, *n)
                || order(then, *n) != order(&after, *n)
                || order(then, *n).is_none();
            let first = order(then, *n) == Some(Ordering::Less);
            let got = !world.waits(*n) || judge.held(*n).is_some();
            n != job && (changed || first && got)
        });
        match judge.held(*job) {
            // A run is late, and nobody who started in the pass is in the way besides.
            Some(now) if world.is_late() && earliest_before_the_starts(&judge, *job, then) >= Some(now) => {}
            Some(now) if now > *at && !excused => {
                return fault("c", format!("job {job} was promised {at} and is promised {now}"));
            }
            None if !excused => {
                return fault("c", format!("job {job} was promised {at} and is promised nothing"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Lives on without further steps: what each job was told comes true.
pub fn try_future(mut world: World, steps: usize) -> Result<(), Fault> {
    let waiting: Vec<usize> = (0..world.jobs.len()).filter(|n| world.waits(*n)).collect();
    let mut told: Vec<(usize, Option<i64>)> = Vec::new();
    for job in waiting {
        told.push((job, Judge { world: &world }.told(job)?));
    }
    // What comes back into the queue comes like any other job.
    let surprising = world.jobs.iter().any(|j| j.spec.after.is_some())
        || world.jobs.iter().any(|j| matches!(&j.state, State::Running(run) if run.told || run.late_s > 0));
    world.came = false;
    for _ in 0..steps {
        for decision in pass(&mut world)? {
            if let Decision::Start { job, .. } = decision {
                let n = world.number(job);
                let early =
                    told.iter().find(|(j, _)| *j == n).filter(|(_, t)| t.is_some_and(|t| t < world.now));
                if let Some((_, at)) = early.filter(|_| !surprising && !world.came) {
                    return fault("e", format!("job {n} was told {at:?} and starts at {}", world.now));
                }
                told.retain(|(j, _)| *j != n);
            }
        }
        if world.engine.waiting() == 0 {
            return Ok(());
        }
        world.step(&Step::Next);
    }
    if let Some((job, at)) = told.iter().find(|(j, at)| at.is_some_and(|t| t < world.now) && world.waits(*j))
        && !surprising
        && !world.came
    {
        return fault("e", format!("job {job} was told {at:?} and still waits at {}", world.now));
    }
    Ok(())
}

/// An engine that knows only the newest facts decides by the same rules.
pub fn try_rebuilt(world: &World) -> Result<(), Fault> {
    let mut other = world.rebuilt();
    pass(&mut other)?;
    let judge = Judge { world: &other };
    for job in judge.waiting() {
        if judge.could_run(job, other.now, &[], &judge.promises(job, true)) {
            return fault("a", format!("job {job} fits now and waits, after a restart"));
        }
    }
    Ok(())
}
