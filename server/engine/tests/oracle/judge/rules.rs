//! The rules (a) to (d): for waiting jobs, starts and preemptions.

use berth_types::node_pools::NodePool;

use super::*;

impl Judge<'_> {
    /// Checks the rules (a) to (c) and (r) after the passes of a step.
    pub fn check_settled(&self) -> Result<(), Fault> {
        for job in self.waiting() {
            let promises = self.promises(job, false);
            let now = self.world.now;
            if self.could_run(job, now, &[], &self.promises(job, true)) {
                return fault("a", format!("job {job} fits now and waits"));
            }
            let eligible = self.eligible(job);
            let grace_s = self.longest_grace_s(&eligible);
            let soon = now + self.max_wait_s(job);
            if !eligible.is_empty()
                && self.held(job).is_none_or(|at| at > soon)
                && !self.could_run(job, now + grace_s, &[], &promises)
                && self.could_run(job, now + grace_s, &eligible, &promises)
            {
                return fault("b", format!("job {job} waits at {now} though {eligible:?} could make room"));
            }
        }
        self.check_reserve()?;
        self.check_held_starts()
    }

    /// The first time at which a job could run if all runs last until their limits.
    pub(super) fn earliest(&self, job: usize) -> Option<i64> {
        self.earliest_beside(job, &self.promises(job, false))
    }

    /// The same beside these promises.
    pub(super) fn earliest_beside(&self, job: usize, promises: &[Promise]) -> Option<i64> {
        self.earliest_without(job, promises, &[])
    }

    /// The same without the runs of the jobs `gone`.
    pub(super) fn earliest_without(&self, job: usize, promises: &[Promise], gone: &[usize]) -> Option<i64> {
        let now = self.world.now;
        let ends = (0..self.world.jobs.len()).filter_map(|n| self.expected_end(n));
        let mut times: Vec<i64> =
            ends.chain(promises.iter().map(|p| p.until)).chain([now + LATE_S]).collect();
        times.retain(|t| *t > now && *t < i64::MAX);
        times.sort_unstable();
        times.dedup();
        times.into_iter().find(|t| self.could_run(job, *t, gone, promises))
    }

    /// Checks that the first job of each pool has a held start, outside and inside reservations.
    pub(super) fn check_held_starts(&self) -> Result<(), Fault> {
        let waiting = self.waiting();
        let pool = |n: &usize| (self.job(*n).inside, self.job(*n).models);
        let pools: Vec<_> = waiting.iter().map(pool).collect();
        for current in pools {
            let mut line: Vec<usize> =
                waiting.iter().copied().filter(|n| pool(n) == current && !is_aside(self.world, *n)).collect();
            if current
                .0
                .is_some_and(|n| self.world.booked[n].as_ref().is_none_or(|b| b.from > self.world.now))
            {
                continue;
            }
            let Some(()) = self.sort(&mut line) else { continue };
            for job in line {
                let (held, truth) = (self.held(job), self.earliest(job));
                // A change of use alone moves a held start to another job only at the next event in its pool.
                let other = waiting.iter().any(|n| {
                    let same = pool(n) == current && !is_aside(self.world, *n);
                    let (a, b) = (self.turn(*n), self.turn(job));
                    same && a.class == b.class
                        && self.job(*n).org != self.job(job).org
                        && self.held(*n).is_some()
                        && self.held(*n) == self.earliest(*n)
                });
                if held.is_none() && other {
                    break;
                }
                // The end of a hanging run is estimated again only when the held start is due.
                let estimated = self.has_hanging_run() && held.is_some() && held < truth;
                if held != truth && !estimated {
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

    /// Sorts jobs by their turns; `None` if two shares are too close for an order.
    pub(super) fn sort(&self, line: &mut [usize]) -> Option<()> {
        let turns: Vec<(usize, Turn)> = line.iter().map(|n| (*n, self.turn(*n))).collect();
        let clear = |a: &(usize, Turn)| turns.iter().all(|b| a.0 == b.0 || before(&a.1, &b.1).is_some());
        turns.iter().all(clear).then_some(())?;
        line.sort_by(|a, b| before(&self.turn(*a), &self.turn(*b)).unwrap_or(Ordering::Equal));
        Some(())
    }

    /// Checks that a start is legal and that no job with an earlier turn could start instead.
    pub fn check_start(
        &self,
        job: usize,
        ranks: &[(usize, Parts)],
        held_before: &[HeldStart],
    ) -> Result<(), Fault> {
        let (now, spec) = (self.world.now, *self.job(job));
        if !self.takes_part(job) {
            return fault("d", format!("job {job} starts and must not"));
        }
        let own = spec.inside.map(crate::world::booking_id);
        let booked: Vec<Promise> =
            self.world.booked.iter().flatten().filter(|p| Some(p.id) != own).cloned().collect();
        let (until, powered) = (self.world.run_end(job, now), spec.inside.is_none());
        let query = Query { job, from: now, until, gone: &[], promises: &booked, powered };
        let within = spec.inside.map(|_| self.within(job));
        let boards: BTreeSet<(usize, usize)> =
            ranks.iter().flat_map(|(h, parts)| parts.iter().map(|(b, _)| (*h, *b))).collect();
        let racks: BTreeSet<u8> = ranks.iter().map(|(h, _)| self.world.hosts[*h].rack).collect();
        let legal = ranks.len() == spec.nodes as usize
            && (!spec.near || racks.len() == 1)
            && within
                .is_none_or(|w| w.is_some_and(|w| w.from <= now && until <= w.until && w.org == spec.org))
            && ranks.iter().all(|(host, parts)| {
                let sorted = |parts: &Parts| {
                    let mut parts = parts.clone();
                    parts.sort_by_key(|p| format!("{p:?}"));
                    parts
                };
                let choices = self.choices(*host, &query, within.flatten());
                choices.iter().any(|c| sorted(c) == sorted(parts))
            })
            && self.is_within_power(&boards, &query)
            && self.is_within_reserve(&boards, &query);
        if !legal {
            return fault("legal", format!("job {job} cannot run on {ranks:?}"));
        }
        let mine = self.turn(job);
        // The jobs of a reservation have a queue of their own.
        let same = |n: &usize| *n != job && self.job(*n).inside == spec.inside;
        for other in self.waiting().into_iter().filter(same) {
            let earlier = before(&self.turn(other), &mine) == Some(Ordering::Less);
            // The job starts in the room that preemptions made for it.
            let counts = |n: usize| spec.inside.is_some() || !self.may_go_before(other, n);
            let firm = held_before.iter().any(|k| k.firm && k.job == job) && counts(job);
            let mut promises = self.promises(other, true);
            // The held starts at the time of the decision; this start may have changed the turns since then.
            let stood = held_before.iter().filter(|k| {
                let waits = k.job != other && k.job != job && self.world.waits(k.job);
                let first = before(&self.turn(k.job), &self.turn(other)) != Some(Ordering::Greater);
                waits && if k.firm { counts(k.job) } else { first && self.job(k.job).inside == spec.inside }
            });
            promises.extend(stood.map(|k| k.promise.clone()));
            if earlier
                && !firm
                && self.could_run(other, now, &[], &promises)
                && !self.held_start_could_block(other, job, &promises, held_before)
            {
                return fault("d", format!("job {job} starts and job {other}, whose turn is before, could"));
            }
        }
        Ok(())
    }

    /// True if a run is beyond its limit for so long that it may hang.
    fn has_hanging_run(&self) -> bool {
        let hung = |end: i64| end + HANGS_S < self.world.now;
        let ends = self.world.jobs.iter().filter_map(|job| match &job.state {
            State::Running(run) => run.ends,
            _ => None,
        });
        ends.into_iter().any(hung)
    }

    /// True if the runs preempted for a job must have ended, and one of them may be late.
    pub(super) fn is_room_late(&self, job: usize) -> bool {
        let due = self.world.room_made.get(&job);
        due.is_some_and(|due| (*due..=due + HANGS_S).contains(&self.world.now))
    }

    /// Checks that a start takes nothing of the room that preemptions made for other jobs, also if a
    /// preempted run is late. Outside reservations a job of a higher class may take it. Returns the jobs
    /// whose room it takes.
    pub(super) fn check_room_taken(
        &self,
        job: usize,
        then: &World,
        held_before: &[HeldStart],
    ) -> Result<Vec<usize>, Fault> {
        let (now, spec) = (self.world.now, self.job(job));
        let after = Judge { world: then };
        let mut taken = Vec::new();
        for &other in self.world.room_made.keys() {
            let other_spec = self.job(other);
            // Before that time the engine can move the held start to other boards.
            let counts = self.is_room_late(other) && other_spec.inside == spec.inside;
            if other == job || !counts || !self.takes_part(other) {
                continue;
            }
            // Replicas use the reserve, so a job that borrows can lose its room on hosts for inference.
            let room = held_before.iter().find(|k| k.firm && k.job == other);
            let is_for_inference = |host: usize| self.world.pools[host] == NodePool::Inference;
            let is_borrowed =
                room.is_none_or(|k| k.promise.parts.iter().any(|(host, ..)| is_for_inference(*host)));
            if spec.replica && self.borrows(other) && is_borrowed {
                continue;
            }
            // The held starts at the time of the decision, including that of the job itself.
            let stood = held_before.iter().filter(|k| k.firm && k.job != other && self.world.waits(k.job));
            let mut promises = self.promises(other, true);
            promises.extend(stood.map(|k| k.promise.clone()));
            let could = self.could_run(other, now, &[], &promises);
            // The job runs in the place of its own held start.
            promises.retain(|p| p.id != BookingId(job_id(job).uuid()));
            if !could || after.could_run(other, now, &[], &promises) {
                continue;
            }
            if spec.inside.is_some() || !self.may_go_before(job, other) {
                return fault("c", format!("job {job} starts in the room that was made for {other}"));
            }
            taken.push(other);
        }
        Ok(taken)
    }

    /// True if a held start for a job with an earlier turn could have blocked a job during the pass. Such a
    /// held start may not exist at the end of the pass, because each start changes the turns.
    pub(super) fn held_start_could_block(
        &self,
        job: usize,
        started: usize,
        promises: &[Promise],
        held_before: &[HeldStart],
    ) -> bool {
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
            let firm = held_before.iter().filter(|k| k.firm && k.job != n && self.world.waits(k.job));
            let others: Vec<Promise> = booked.chain(firm.map(|k| &k.promise)).cloned().collect();
            let Some(from) = self.earliest_beside(n, &others) else { return false };
            let (org, cpus) = (self.job(n).org, self.job(n).cpus);
            let until = self.world.run_end(n, from);
            let powered = self.job(n).inside.is_none();
            let query = Query { job: n, from, until, gone: &[], promises: &others, powered };
            self.placements(&query, self.within(n)).into_iter().any(|parts| {
                let id = BookingId(job_id(n).uuid());
                let held = Promise { id, kind: BookingKind::Hold, org, from, until, cpus, parts };
                let all: Vec<Promise> = promises.iter().cloned().chain([held]).collect();
                !self.could_run(job, now, &[], &all)
            })
        })
    }

    /// Checks that each preemption for a job is necessary. `held_before` are the held starts before the pass.
    /// Those with preemptions are not moved to other boards to spare a victim.
    pub fn check_preemption(
        &self,
        victims: &[usize],
        job: usize,
        held_before: &[HeldStart],
    ) -> Result<(), Fault> {
        let mut promises = self.promises(job, false);
        // A job that starts in the same pass had its held start before.
        let starts = |k: &&HeldStart| {
            let waits = self.world.engine.waiting_jobs().any(|(id, _)| id == job_id(k.job));
            self.world.waits(k.job) && !waits
        };
        let own = |k: &&HeldStart| k.job == job || self.job(k.job).inside != self.job(job).inside;
        // With pools another job can take a room in the same pass that was closed to this one.
        let is_lost = |k: &&HeldStart| self.world.waits(k.job) && !is_firm(self.world, k.job);
        let stood = held_before.iter().filter(|k| k.firm && (starts(k) || is_lost(k)) && !own(k));
        let stood: Vec<Promise> = stood.map(|k| k.promise.clone()).collect();
        promises.extend(stood);
        let firm = |p: &Promise| held_before.iter().find(|k| k.firm && k.promise.id == p.id);
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
        // The reserve lacked the boards of a replica that starts, or whose held start moves, in the same pass.
        let is_changed = |n: &usize| {
            let engine = &self.world.engine;
            let before = held_before.iter().find(|k| k.job == *n).map(|k| k.promise.parts.clone());
            let booking = engine.held_starts().find(|(id, _)| *id == job_id(*n)).map(|(_, booking)| booking);
            let after = booking.map(|booking| self.world.promise(booking, 0).parts);
            before != after || !engine.waiting_jobs().any(|(id, _)| id == job_id(*n))
        };
        let is_beside_replica =
            self.borrows(job) && self.waiting().iter().any(|n| self.job(*n).replica && is_changed(n));
        for stays in victims.iter().filter(|_| !is_beside_replica) {
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

    /// True if a job could run from a time on while each held start among the promises keeps its time, on any
    /// boards. These may be boards of the runs that are preempted now.
    pub(super) fn could_all_run(
        &self,
        job: usize,
        from: i64,
        gone: &[usize],
        promises: Vec<Promise>,
    ) -> bool {
        let (held, fixed): (Vec<Promise>, Vec<Promise>) =
            promises.into_iter().partition(|p| p.kind == BookingKind::Hold);
        self.could_run_beside(job, from, gone, &held, fixed)
    }

    pub(super) fn could_run_beside(
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
}
