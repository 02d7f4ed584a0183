//! The rules (a) to (d): about what waits, what starts and what is stopped.

use super::*;

impl Judge<'_> {
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
    pub(super) fn earliest(&self, job: usize) -> Option<i64> {
        self.earliest_beside(job, &self.promises(job, false))
    }

    pub(super) fn earliest_beside(&self, job: usize, promises: &[Promise]) -> Option<i64> {
        self.earliest_without(job, promises, &[])
    }

    /// The same if some runs were not there.
    pub(super) fn earliest_without(&self, job: usize, promises: &[Promise], gone: &[usize]) -> Option<i64> {
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
    pub(super) fn firsts(&self) -> Result<(), Fault> {
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
                // The end of a run that hangs is guessed anew only once the held start is due.
                let guessed = self.hangs() && held.is_some() && held < truth;
                if held != truth && !guessed {
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
    pub(super) fn sort(&self, line: &mut [usize]) -> Option<()> {
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

    /// True if a run is past its end for so long that it may hang.
    fn hangs(&self) -> bool {
        let hung = |end: i64| end + HANGS_S < self.world.now;
        let ends = self.world.jobs.iter().filter_map(|job| match &job.state {
            State::Running(run) => run.ends,
            _ => None,
        });
        ends.into_iter().any(hung)
    }

    /// True if the room that was made for a job is due, and a stopped run may still be there.
    pub(super) fn is_room_late(&self, job: usize) -> bool {
        let due = self.world.room_made.get(&job);
        due.is_some_and(|due| (*due..=due + HANGS_S).contains(&self.world.now))
    }

    /// Whether a start takes nothing of the room for which others were stopped, also where one of them is late.
    /// Outside reservations a higher class may: gives the jobs whose room it took.
    pub(super) fn leaves_room(&self, job: usize, then: &World, kept: &[Kept]) -> Result<Vec<usize>, Fault> {
        let (now, of) = (self.world.now, self.job(job));
        let after = Judge { world: then };
        let mut taken = Vec::new();
        for &other in self.world.room_made.keys() {
            let theirs = self.job(other);
            // Before its time its held start is kept on other boards.
            let counts = self.is_room_late(other) && theirs.inside == of.inside;
            if other == job || !counts || !self.takes_part(other) {
                continue;
            }
            // Held starts that stood when it was decided, the job's own among them.
            let stood = kept.iter().filter(|k| k.firm && k.job != other && self.world.waits(k.job));
            let mut promises = self.promises(other, true);
            promises.extend(stood.map(|k| k.promise.clone()));
            let could = self.could_run(other, now, &[], &promises);
            // It runs where its own start was held.
            promises.retain(|p| p.id != BookingId(job_id(job).uuid()));
            if !could || after.could_run(other, now, &[], &promises) {
                continue;
            }
            if of.inside.is_some() || of.class <= theirs.class {
                return fault("c", format!("job {job} starts in the room that was made for {other}"));
            }
            taken.push(other);
        }
        Ok(taken)
    }

    /// Whether a start that was held in the pass for somebody with an earlier turn could have been in the way of
    /// a job. Such a held start may be gone at the end of the pass, since each start changes turns.
    pub(super) fn a_first_could_bar(
        &self,
        job: usize,
        started: usize,
        promises: &[Promise],
        kept: &[Kept],
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
    pub(super) fn could_all_run(
        &self,
        job: usize,
        from: i64,
        gone: &[usize],
        promises: Vec<Promise>,
    ) -> bool {
        let (held, fixed): (Vec<Promise>, Vec<Promise>) =
            promises.into_iter().partition(|p| p.kind == Kind::Hold);
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
