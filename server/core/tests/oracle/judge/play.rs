//! Plays cases: each step, the passes after it, and the judgement of each decision.

use super::*;

/// The state before a step, against which the state after it is judged.
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
    let firm: Vec<usize> = (0..world.jobs.len()).filter(|n| world.engine.is_firm(job_id(*n))).collect();
    world.came = false;
    world.step(step);
    let then = Before::new(world);
    // An engine that was built anew is asked after its first pass.
    let starts_now = if *step == Step::Restart { Vec::new() } else { starts_now(world)? };
    pass(world)?;
    if *step == Step::Restart {
        keeps_room(world, &firm)?;
    }
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

/// Room that runs make for jobs is held for them by an engine that was built anew.
fn keeps_room(world: &World, firm: &[usize]) -> Result<(), Fault> {
    let judge = Judge { world };
    let makes_room = |job: usize| {
        let for_it = |run: &Run| run.told_for == Some(job);
        world.jobs.iter().any(|j| matches!(&j.state, State::Running(run) if for_it(run)))
    };
    let lost = |job: &&usize| {
        world.waits(**job)
            && judge.takes_part(**job)
            && makes_room(**job)
            && !world.engine.is_firm(job_id(**job))
    };
    match firm.iter().find(lost) {
        Some(job) => fault("c", format!("the room that was made for job {job} is lost by a restart")),
        None => Ok(()),
    }
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
    // A job that its organization's limit keeps back takes no part, and keeps no room.
    let kept_back: Vec<usize> = (0..world.jobs.len()).filter(|n| !Judge { world }.is_admitted(*n)).collect();
    world.room_made.retain(|job, _| !kept_back.contains(job));
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
                let taken = Judge { world }.leaves_room(n, &then, &kept)?;
                *world = then;
                world.room_made.retain(|job, _| *job != n && !taken.contains(job));
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
                let grace_s = group.iter().map(|n| world.jobs[*n].spec.grace_s).max().unwrap_or(0);
                world.room_made.insert(world.number(*for_job), world.now + grace_s);
                let for_job = world.number(*for_job);
                group.iter().for_each(|n| world.stop(*n, for_job));
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
    // A job that was not known then may come first.
    let surprising = world.jobs.iter().any(|j| j.spec.after.is_some())
        || world.jobs.iter().any(|j| matches!(&j.state, State::Running(run) if run.late_s > 0));
    // Runs that are stopped later were not foreseen.
    let mut stopped = false;
    for _ in 0..steps {
        for decision in pass(&mut world)? {
            stopped |= matches!(decision, Decision::Preempt { .. });
            if let Decision::Start { job, .. } = decision {
                let n = world.number(job);
                let early =
                    told.iter().find(|(j, _)| *j == n).filter(|(_, t)| t.is_some_and(|t| t < world.now));
                if let Some((_, at)) = early.filter(|_| !surprising && !stopped) {
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
        && !stopped
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
