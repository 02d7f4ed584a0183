//! Rule (e): what a waiting job is told.

use super::*;

impl Judge<'_> {
    /// The start that a waiting job is told once a pass has settled.
    pub fn told(&self, job: usize) -> Result<Option<i64>, Fault> {
        let told = self.told_before_a_pass(job)?;
        match told {
            Told::StartsNow => fault("e", format!("job {job} waits and is told that it starts now")),
            Told::Earliest(at) => Ok(at),
        }
    }

    /// The start that a waiting job is told at any time.
    pub(super) fn told_before_a_pass(&self, job: usize) -> Result<Told, Fault> {
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

    pub(super) fn is_true(&self, job: usize, blocker: &Blocker) -> bool {
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
                // A moment is too long now already: what is promised for later is no reason.
                other.jobs[job].left = 1;
                // A held start that is due draws nothing yet while a run is late.
                let now_short = other.is_late() || !fits(&other, &[], &promises);
                other.budget = None;
                let otherwise = fits(&other, &[], &promises) || !self.is_admitted(job);
                self.world.budget.is_some() && now_short && otherwise
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
                    let shared = self.world.budget.is_some() || self.job(*n).org == of.org;
                    // A job whose room is late gets the first place that comes.
                    *n != job && (earlier && shared || self.is_room_late(*n))
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
