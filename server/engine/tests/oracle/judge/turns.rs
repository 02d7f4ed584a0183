//! The turns of jobs, promises to other jobs, limits, and the runs that a job may preempt.

use super::*;
use berth_types::node_pools::NodePool;

impl Judge<'_> {
    /// The held starts of other jobs that count for a job: those with an earlier turn, and those with
    /// preemptions.
    pub(super) fn held_for_others(&self, job: usize, at_once: bool) -> Vec<Promise> {
        let mine = self.turn(job);
        let held = self.world.engine.held_starts().filter_map(|(other, booking)| {
            let n = self.world.number(other);
            let same = self.job(n).inside == self.job(job).inside;
            let counts = same
                && n != job
                && (self.keeps_room(n, job, at_once)
                    || before(&self.turn(n), &mine) != Some(Ordering::Greater));
            let promise = self.world.promise(booking, self.job(n).org);
            counts.then(|| Promise { cpus: self.job(n).cpus, ..promise })
        });
        held.collect()
    }

    /// True if the held start of job `n` has preemptions and counts for `job`. It gives way only to a job of
    /// a higher class that starts at once.
    pub(super) fn keeps_room(&self, n: usize, job: usize, at_once: bool) -> bool {
        let higher = at_once && self.may_go_before(job, n) && self.job(n).inside.is_none();
        is_firm(self.world, n) && !higher
    }

    /// All promises to other jobs that count for a job.
    pub(super) fn promises(&self, job: usize, at_once: bool) -> Vec<Promise> {
        let own = self.job(job).inside.map(crate::world::booking_id);
        let booked = self.world.booked.iter().flatten().filter(|p| Some(p.id) != own).cloned();
        booked.chain(self.held_for_others(job, at_once)).collect()
    }

    /// The reservation of a job, if it exists.
    pub(super) fn within(&self, job: usize) -> Option<&Promise> {
        self.world.booked.get(self.job(job).inside?)?.as_ref()
    }

    /// True if a job could run from a time on, without the runs of the jobs `gone`.
    pub(super) fn could_run(&self, job: usize, from: i64, gone: &[usize], promises: &[Promise]) -> bool {
        let until = self.world.run_end(job, from);
        let powered = self.job(job).inside.is_none();
        let query = Query { job, from, until, gone, promises, powered };
        match self.job(job).inside {
            None => self.fits(&query, None),
            Some(_) => self.within(job).is_some_and(|w| {
                w.org == self.job(job).org && w.from <= from && until <= w.until && self.fits(&query, Some(w))
            }),
        }
    }

    /// The use of an organization divided by its weight, which is 1 here.
    pub(super) fn share(&self, org: u8) -> f64 {
        let running: i64 =
            self.world.used.iter().filter(|u| u.org == org && u.until.is_none()).map(|u| u.milli).sum();
        if running < self.world.guarantees[usize::from(org)] * 1_000 {
            return 0.0;
        }
        self.world.past_use(org) + running as f64 * 3_600.0
    }

    pub(super) fn turn(&self, job: usize) -> Turn {
        let state = &self.world.jobs[job];
        let class = i64::from(state.spec.class) + (self.world.now - state.queued_at) / CLASS_STEP_S;
        let class = class.min(3);
        let share = if class == 3 { 0.0 } else { self.share(state.spec.org) };
        let behind_replicas = class < 3 && !state.spec.replica;
        Turn { class, behind_replicas, share, age: (state.queued_at, job) }
    }

    /// True if the limit of the organization allows the job to run.
    pub(super) fn is_admitted(&self, job: usize) -> bool {
        let spec = self.job(job);
        let Some(most) = self.world.quotas[usize::from(spec.org)].filter(|_| spec.inside.is_none()) else {
            return true;
        };
        let running = self.world.jobs.iter().filter(|j| {
            matches!(j.state, State::Running(_)) && j.spec.org == spec.org && j.spec.inside.is_none()
        });
        running.map(|j| milli(&j.spec)).sum::<i64>() + milli(spec) <= most * 1_000
    }

    /// True if a job takes part in the queue now.
    pub(super) fn takes_part(&self, job: usize) -> bool {
        let ends = self.world.run_end(job, self.world.now);
        let inside = self.job(job).inside.is_none() || self.within(job).is_some_and(|w| ends <= w.until);
        self.world.waits(job) && self.world.is_released(job) && self.is_admitted(job) && inside
    }

    pub(super) fn waiting(&self) -> Vec<usize> {
        (0..self.world.jobs.len()).filter(|n| self.takes_part(*n)).collect()
    }

    /// The jobs whose runs a job may preempt.
    pub(super) fn eligible(&self, job: usize) -> Vec<usize> {
        let below = |n: &usize| {
            let State::Running(run) = &self.world.jobs[*n].state else { return false };
            run.preemptible && self.job(*n).inside == self.job(job).inside && self.may_preempt(job, *n, run)
        };
        (0..self.world.jobs.len()).filter(below).collect()
    }

    /// True if a job may preempt the run of job `n`, which is preemptible: by the classes; a replica each other job on a
    /// host for inference, but no other job a replica there.
    fn may_preempt(&self, job: usize, n: usize, run: &Run) -> bool {
        let for_inference = |host: &usize| self.world.pools[*host] == NodePool::Inference;
        let on_inference = self.job(n).inside.is_none() && run.ranks.iter().any(|(h, _)| for_inference(h));
        match (on_inference, self.job(job).replica, self.job(n).replica) {
            (true, true, false) => true,
            (true, false, true) => false,
            _ => self.job(n).class < self.job(job).class,
        }
    }

    /// True if some host is not for all work.
    pub(super) fn has_pools(&self) -> bool {
        self.world.pools.iter().any(|pool| *pool != NodePool::Both)
    }

    /// True if a run is preempted for job `n`.
    pub(super) fn makes_room(&self, n: usize) -> bool {
        let preempted = |run: &Run| run.stopped_for == Some(n);
        self.world.jobs.iter().any(|j| matches!(&j.state, State::Running(run) if preempted(run)))
    }

    /// True if a job may start in the room that preemptions made for job `n`: by the classes, and with pools in that of a
    /// replica only as a replica.
    pub(super) fn may_go_before(&self, job: usize, n: usize) -> bool {
        let keeps = self.has_pools() && self.job(n).replica && !self.job(job).replica;
        self.job(job).class > self.job(n).class && !keeps
    }

    /// The longest grace of jobs, in seconds.
    pub(super) fn longest_grace_s(&self, jobs: &[usize]) -> i64 {
        jobs.iter().map(|n| self.job(*n).grace_s).max().unwrap_or(0)
    }

    /// The seconds that a job may wait for runs that end by themselves before it preempts. For a job outside
    /// the line, also runs count that are stopped already or have ended.
    pub(super) fn max_wait_s(&self, job: usize) -> i64 {
        let spec = self.job(job);
        let lower = |n: &usize| {
            let other = self.job(*n);
            // The run may have been on a host for inference.
            let borrows = self.has_pools() && spec.replica && !other.replica;
            other.preemptible
                && (other.class < spec.class || borrows)
                && other.inside == spec.inside
                && self.world.has_run(*n)
        };
        let counts: Vec<usize> = match is_aside(self.world, job) {
            true => (0..self.world.jobs.len()).filter(lower).collect(),
            false => self.eligible(job),
        };
        self.longest_grace_s(&counts).max(SOON_S)
    }

    /// The time of a job's held start.
    pub(super) fn held(&self, job: usize) -> Option<i64> {
        self.world.engine.held_starts().find(|(other, _)| *other == job_id(job)).map(|(_, b)| seconds(b.from))
    }
}

/// The order of two turns; `None` if the shares are too close for an order.
pub(super) fn before(a: &Turn, b: &Turn) -> Option<Ordering> {
    if a.class != b.class {
        return Some(b.class.cmp(&a.class));
    }
    if a.behind_replicas != b.behind_replicas {
        return Some(a.behind_replicas.cmp(&b.behind_replicas));
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
