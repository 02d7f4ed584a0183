//! Rule (e): the forecast start and the blockers of a waiting job.

use super::*;
use berth_types::node_pools::NodePool;

impl Judge<'_> {
    /// The forecast start of a waiting job after the passes of a step; `None` if the engine names no time.
    ///
    /// # Errors
    /// A [`Fault`] if the engine says that a job that waits starts now.
    pub fn expected_start(&self, job: usize) -> Result<Option<i64>, Fault> {
        match self.forecast(job)? {
            StartForecast::StartsNow => fault("e", format!("job {job} waits and is told that it starts now")),
            StartForecast::Earliest(at) => Ok(at),
        }
    }

    /// The forecast start of a waiting job at any time.
    pub(super) fn forecast(&self, job: usize) -> Result<StartForecast, Fault> {
        let now = self.world.now;
        let mut engine = self.world.engine.clone();
        let Some(why) = engine.why(job_id(job), at(now)) else {
            return fault("e", format!("job {job} waits and nothing is known of it"));
        };
        if why.fits {
            return Ok(StartForecast::StartsNow);
        }
        if why.blockers.is_empty() {
            return fault("e", format!("job {job} waits and is told {why:?}"));
        }
        for blocker in &why.blockers {
            if !self.is_true(job, blocker) {
                return fault("e", format!("job {job} is told {blocker:?}"));
            }
        }
        Ok(StartForecast::Earliest(why.earliest.map(seconds)))
    }

    /// True if so many waiting jobs are ahead of a job.
    fn are_ahead(&self, job: usize, jobs: u32) -> bool {
        let spec = self.job(job);
        let overlap = |n: &usize| {
            self.job(*n).inside == spec.inside && self.job(*n).models.iter().any(|m| spec.models.contains(m))
        };
        // An earlier job may use the power of the rack, or the limit of the organization, on other
        // boards.
        let takes = |n: &usize| {
            let earlier = before(&self.turn(*n), &self.turn(job)) != Some(Ordering::Greater);
            let shared = self.world.budget.is_some() || self.job(*n).org == spec.org;
            // Preempted runs make room for their job alone. A job whose preempted runs are late gets the first placement
            // that becomes free.
            let keeps_room = self.makes_room(*n) && !self.may_go_before(job, *n);
            *n != job && (earlier && shared || keeps_room || self.is_room_late(*n))
        };
        if jobs == 1 && self.waiting().iter().any(takes) {
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
        !clear || count == jobs as usize
    }

    /// True if the world confirms a blocker of a waiting job.
    pub(super) fn is_true(&self, job: usize, blocker: &Blocker) -> bool {
        let (spec, now) = (self.job(job), self.world.now);
        let promises = self.promises(job, true);
        let fits = |world: &World, gone: &[usize], promises: &[Promise]| {
            Judge { world }.could_run(job, now, gone, promises)
        };
        let running: Vec<usize> = (0..self.world.jobs.len()).collect();
        let mut other = self.world.clone();
        match blocker {
            Blocker::Dependency(on) => on.iter().all(|j| spec.after == Some(self.world.number(*j))),
            Blocker::Quota(_) => !self.is_admitted(job),
            Blocker::Away { .. } => self.world.open.contains(&false),
            Blocker::SetAside { .. } => false,
            Blocker::Quarantined { .. } => self.world.healthy.contains(&false),
            Blocker::Busy { .. } | Blocker::Host { temporary: true, .. } => {
                self.world.jobs.iter().any(|j| matches!(j.state, State::Running(_)))
            }
            Blocker::Promised { begins } => promises.iter().any(|p| {
                let budgeted = self.world.budget.is_some();
                let suits = |host: &usize| budgeted || spec.models.contains(&self.world.hosts[*host].model);
                p.from.max(now) == seconds(*begins) && p.parts.iter().any(|(host, ..)| suits(host))
            }),
            Blocker::Power(_) => {
                // The shortest run is tried, so that a promise for later is no reason.
                other.jobs[job].left = 1;
                // A held start that is due uses no power yet while a run is late.
                let now_short = other.is_late() || !fits(&other, &[], &promises);
                other.budget = None;
                let otherwise = fits(&other, &[], &promises) || !self.is_admitted(job);
                self.world.budget.is_some() && now_short && otherwise
            }
            Blocker::Ahead { jobs } => self.are_ahead(job, *jobs),
            Blocker::Booking(..) => spec.inside.is_some(),
            Blocker::None { .. } | Blocker::Mode { .. } | Blocker::Host { temporary: false, .. } => {
                other.open.fill(true);
                other.healthy.fill(true);
                other.budget = None;
                !fits(&other, &running, &[])
            }
            Blocker::InvalidRequest(_) => {
                let known = |m: &&str| self.world.hosts.iter().any(|h| h.model == *m);
                !spec.models.iter().any(known) || matches!(spec.device, DeviceKind::Slice(_))
            }
            Blocker::OwnNodes { busy } => {
                other.open.fill(true);
                other.healthy.fill(true);
                let runs = || self.world.jobs.iter().any(|j| matches!(j.state, State::Running(_)));
                let reason = if *busy > 0 { runs() } else { !fits(&other, &running, &[]) };
                self.world.own_only[usize::from(spec.org)] && reason
            }
            Blocker::Pool { boards, replica } => {
                other.pools.fill(NodePool::Both);
                if *boards == 0 {
                    other.open.fill(true);
                    other.healthy.fill(true);
                    other.budget = None;
                }
                let gone: &[usize] = if *boards == 0 { &running } else { &[] };
                let others: &[Promise] = if *boards == 0 { &[] } else { &promises };
                self.has_pools() && *replica == spec.replica && fits(&other, gone, others)
            }
            Blocker::BurstReserve { boards } => {
                // A lack of power may come first without the reserve.
                (other.reserve, other.budget) = (0, None);
                *boards == self.world.reserve && self.borrows(job) && fits(&other, &[], &promises)
            }
            Blocker::Volume(_)
            | Blocker::Images { .. }
            | Blocker::Network { .. }
            | Blocker::Rdma { .. }
            | Blocker::Storage { .. } => false,
        }
    }
}
