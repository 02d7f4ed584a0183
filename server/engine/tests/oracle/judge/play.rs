//! The play of a case: each step, the passes after it, and the check of each decision.

use super::*;

/// The held starts and turns before a step, for the check of the state after it.
struct Snapshot {
    held: Vec<(usize, i64)>,
    waiting: Vec<usize>,
    turns: Vec<Turn>,
}

impl Snapshot {
    fn new(world: &World) -> Self {
        let judge = Judge { world };
        let held = (0..world.jobs.len()).filter_map(|n| Some((n, judge.held(n)?))).collect();
        let turns = (0..world.jobs.len()).map(|n| judge.turn(n)).collect();
        Self { held, waiting: judge.waiting(), turns }
    }
}

/// Plays all steps of a case.
///
/// # Errors
/// The first broken rule.
pub fn try_case(steps: &[Step], mut world: World) -> Result<World, Fault> {
    for step in steps {
        if let Step::Sleep(s) = step {
            let until = world.now + s;
            while world.next_time().is_some_and(|next| next < until) {
                play_step(&Step::Next, &mut world)?;
            }
            play_step(&Step::Sleep(until - world.now), &mut world)?;
        } else {
            play_step(step, &mut world)?;
        }
    }
    Ok(world)
}

/// Plays one step and the passes after it, and checks the forecasts.
fn play_step(step: &Step, world: &mut World) -> Result<(), Fault> {
    let known = Snapshot::new(world);
    let firm: Vec<usize> = (0..world.jobs.len()).filter(|n| is_firm(world, *n)).collect();
    world.queue_grew = false;
    // A board that draws more than the budget can be used until its run ends. An end before the limit turns the board
    // off, and a start that is held on it is lost.
    let may_turn_off = world.budget.is_some()
        && match *step {
            Step::End { job, .. } | Step::Cancel(job) => world.runs(job),
            _ => false,
        };
    world.step(step);
    let then = Snapshot::new(world);
    // A new engine has no forecasts before its first pass.
    let starts_now = if *step == Step::Restart { Vec::new() } else { starts_now(world)? };
    pass(world)?;
    if *step == Step::Restart {
        check_room_kept(world, &firm)?;
    }
    if let Some(job) = starts_now.into_iter().find(|job| world.waits(*job)) {
        return fault("e", format!("job {job} was told that it starts with the next pass"));
    }
    let judge = Judge { world };
    judge.check_settled()?;
    let quiet = matches!(step, Step::Next | Step::Sleep(_) | Step::End { .. } | Step::Cancel(_));
    if quiet && !world.queue_grew && !may_turn_off {
        check_no_later(world, &known, &then)?;
    }
    for job in (0..world.jobs.len()).filter(|n| world.waits(*n)) {
        judge.expected_start(job)?;
    }
    Ok(())
}

/// Checks that a new engine holds the room that runs make for jobs.
fn check_room_kept(world: &World, firm: &[usize]) -> Result<(), Fault> {
    let judge = Judge { world };
    let lost = |job: &&usize| {
        world.waits(**job) && judge.takes_part(**job) && judge.makes_room(**job) && !is_firm(world, **job)
    };
    match firm.iter().find(lost) {
        Some(job) => fault("c", format!("the room that was made for job {job} is lost by a restart")),
        None => Ok(()),
    }
}

/// The jobs with the forecast that they start in the next pass.
fn starts_now(world: &World) -> Result<Vec<usize>, Fault> {
    let judge = Judge { world };
    let mut out = Vec::new();
    for job in (0..world.jobs.len()).filter(|n| world.waits(*n)) {
        if matches!(judge.forecast(job)?, StartForecast::StartsNow) {
            out.push(job);
        }
    }
    Ok(out)
}

/// Runs passes until there are no more decisions, like the portal.
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

/// Runs one pass, and checks and carries out each decision in order.
fn one_pass(world: &mut World) -> Result<Vec<Decision>, Fault> {
    let held_before: Vec<HeldStart> = world
        .engine
        .held_starts()
        .map(|(job, booking)| {
            let n = world.number(job);
            let spec = world.jobs[n].spec;
            let promise = Promise { cpus: spec.cpus, ..world.promise(booking, spec.org) };
            HeldStart { job: n, firm: is_firm(world, n), promise }
        })
        .collect();
    // A job that the limit of its organization blocks takes no part in the queue, and keeps no room.
    let blocked: Vec<usize> = (0..world.jobs.len()).filter(|n| !Judge { world }.is_admitted(*n)).collect();
    world.room_made.retain(|job, _| !blocked.contains(job));
    let decisions = world.engine.pass(at(world.now));
    let mut index = 0;
    while let Some(decision) = decisions.get(index) {
        match decision {
            Decision::Start { job, ranks, .. } => {
                let n = world.number(*job);
                let mut then = world.clone();
                then.start(n, ranks);
                let State::Running(run) = &then.jobs[n].state else { unreachable!("it was started") };
                Judge { world }.check_start(n, &run.ranks, &held_before)?;
                let taken = Judge { world }.check_room_taken(n, &then, &held_before)?;
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
                let for_job = for_job.map(|job| world.number(job));
                match for_job {
                    Some(job) => {
                        Judge { world }.check_preemption(&group, job, &held_before)?;
                        let grace_s = group.iter().map(|n| world.jobs[*n].spec.grace_s).max().unwrap_or(0);
                        world.room_made.insert(job, world.now + grace_s);
                    }
                    None => Judge { world }.check_reclaim(&group)?,
                }
                group.iter().for_each(|n| world.stop(*n, for_job));
                index += group.len();
            }
            Decision::Orphan { .. } => index += 1,
        }
    }
    world.acknowledge(&decisions);
    Ok(decisions)
}

/// The first time at which a job could run without the starts of the pass.
fn earliest_before_the_starts(judge: &Judge<'_>, job: usize, then: &Snapshot) -> Option<i64> {
    let started: Vec<usize> = then.waiting.iter().copied().filter(|n| !judge.world.waits(*n)).collect();
    judge.earliest_without(job, &judge.promises(job, false), &started)
}

/// Checks that no held start becomes later, except for a job with an earlier turn.
fn check_no_later(world: &World, known: &Snapshot, then: &Snapshot) -> Result<(), Fault> {
    let judge = Judge { world };
    // Starts in the pass also change turns.
    let after = Snapshot::new(world);
    for (job, at) in known.held.iter().filter(|(job, _)| judge.takes_part(*job)) {
        let order = |at: &Snapshot, n: usize| before(&at.turns[n], &at.turns[*job]);
        let excused = then.waiting.iter().any(|n| {
            let changed = order(known, *n) != order(then, *n)
                || order(then, *n) != order(&after, *n)
                || order(then, *n).is_none();
            let first = order(then, *n) == Some(Ordering::Less);
            let got = !world.waits(*n) || judge.held(*n).is_some();
            n != job && (changed || first && got)
        });
        // Replicas use boards on which the held start of a job that borrows relied.
        let is_replica = |n: &usize| world.jobs[*n].spec.replica;
        let excused = excused || judge.borrows(*job) && then.waiting.iter().any(is_replica);
        match judge.held(*job) {
            // A late run is the reason, and the starts of the pass are not.
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

/// Plays on without further steps, and checks that each forecast start comes true.
pub fn try_future(mut world: World, steps: usize) -> Result<(), Fault> {
    let waiting: Vec<usize> = (0..world.jobs.len()).filter(|n| world.waits(*n)).collect();
    let mut forecasts: Vec<(usize, Option<i64>)> = Vec::new();
    for job in waiting {
        forecasts.push((job, Judge { world: &world }.expected_start(job)?));
    }
    // The forecasts do not know late runs, or jobs that are released later.
    let surprising = world.jobs.iter().any(|j| j.spec.after.is_some())
        || world.jobs.iter().any(|j| matches!(&j.state, State::Running(run) if run.late_s > 0));
    // The forecasts do not know later preemptions.
    let mut stopped = false;
    for _ in 0..steps {
        for decision in pass(&mut world)? {
            stopped |= matches!(decision, Decision::Preempt { .. });
            if let Decision::Start { job, .. } = decision {
                let n = world.number(job);
                let early =
                    forecasts.iter().find(|(j, _)| *j == n).filter(|(_, t)| t.is_some_and(|t| t < world.now));
                if let Some((_, at)) = early.filter(|_| !surprising && !stopped) {
                    return fault("e", format!("job {n} was told {at:?} and starts at {}", world.now));
                }
                forecasts.retain(|(j, _)| *j != n);
            }
        }
        if world.engine.waiting() == 0 {
            return Ok(());
        }
        world.step(&Step::Next);
    }
    if let Some((job, at)) =
        forecasts.iter().find(|(j, at)| at.is_some_and(|t| t < world.now) && world.waits(*j))
        && !surprising
        && !stopped
    {
        return fault("e", format!("job {job} was told {at:?} and still waits at {}", world.now));
    }
    Ok(())
}

/// Checks that a new engine with the present facts decides by the same rules.
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
