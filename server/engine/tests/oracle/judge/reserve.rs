//! Rule (r): the reserve for bursts, boards of hosts for inference that stay free of jobs that borrow.

use super::*;
use berth_types::node_pools::NodePool;

impl Judge<'_> {
    /// True if the reserve limits the places of a job.
    pub(super) fn borrows(&self, job: usize) -> bool {
        let spec = self.job(job);
        self.world.reserve > 0 && spec.preemptible && !spec.replica && spec.inside.is_none()
    }

    /// The usable boards of a model on hosts for inference, without those of held starts of replicas.
    fn reservable(&self, model: &str) -> BTreeSet<(usize, usize)> {
        let (engine, world) = (&self.world.engine, self.world);
        let held = engine.held_starts().filter(|(job, _)| self.job(world.number(*job)).replica);
        let held: Vec<(usize, usize)> = held
            .flat_map(|(_, booking)| world.promise(booking, 0).parts)
            .map(|(host, board, _)| (host, board))
            .collect();
        let hosts = (0..world.hosts.len()).filter(|h| {
            world.pools[*h] == NodePool::Inference && world.open[*h] && world.hosts[*h].model == model
        });
        hosts
            .flat_map(|h| (0..world.hosts[h].boards).map(move |board| (h, board)))
            .filter(|(h, board)| (*board > 0 || world.healthy[*h]) && !held.contains(&(*h, *board)))
            .collect()
    }

    /// True if so many boards of each model stay free beside a run of a job on these boards, at its begin and at each
    /// begin of a promise during it.
    pub(super) fn is_within_reserve(&self, boards: &BTreeSet<(usize, usize)>, query: &Query<'_>) -> bool {
        if !self.borrows(query.job) {
            return true;
        }
        let borrowed = boards.iter().filter(|(h, _)| self.world.pools[*h] == NodePool::Inference);
        let models: BTreeSet<&str> = borrowed.map(|(h, _)| self.world.hosts[*h].model).collect();
        let times = self.growth_times(query);
        models.into_iter().all(|model| {
            let all = self.reservable(model);
            times.iter().all(|at| {
                let Query { job, gone, promises, powered, .. } = *query;
                let moment = Query { job, from: *at, until: *at + 1, gone, promises, powered };
                let stays_free = |one: &&(usize, usize)| {
                    !boards.contains(*one) && self.used_parts(one.0, one.1, &moment).is_empty()
                };
                all.iter().filter(stays_free).count() >= self.world.reserve as usize
            })
        })
    }

    /// The jobs whose runs borrow and can be stopped.
    fn borrowing(&self) -> Vec<usize> {
        let for_inference = |host: &usize| self.world.pools[*host] == NodePool::Inference;
        let borrows = |n: &usize| {
            let State::Running(run) = &self.world.jobs[*n].state else { return false };
            let spec = self.job(*n);
            run.preemptible
                && !spec.replica
                && spec.inside.is_none()
                && run.ranks.iter().any(|(h, _)| for_inference(h))
        };
        (0..self.world.jobs.len()).filter(borrows).collect()
    }

    /// True if a run ends within 30 seconds or is being stopped, and does not hang.
    fn gives_back(&self, run: &Run) -> bool {
        let is_soon = |end: i64| run.stops || end <= self.world.now + SOON_S;
        run.ends.is_some_and(|end| self.world.now <= end + HANGS_S && is_soon(end))
    }

    /// The number of boards of a model that are free or on their way back without the runs of the jobs `gone`.
    fn back_without(&self, model: &str, gone: &[usize]) -> usize {
        let booked = self.world.booked.iter().flatten();
        let active: Vec<&Promise> =
            booked.filter(|p| p.from <= self.world.now && self.world.now < p.until).collect();
        let is_kept = |(host, board): &(usize, usize)| {
            let by_run = self.world.jobs.iter().enumerate().any(|(n, job)| {
                let State::Running(run) = &job.state else { return false };
                let mut parts = run.ranks.iter().filter(|(h, _)| h == host).flat_map(|(_, parts)| parts);
                !gone.contains(&n) && !self.gives_back(run) && parts.any(|(b, _)| b == board)
            });
            by_run || active.iter().any(|p| p.parts.iter().any(|(h, b, _)| (h, b) == (host, board)))
        };
        self.reservable(model).into_iter().filter(|one| !is_kept(one)).count()
    }

    /// True if the reserve is complete, or as complete as runs that borrow can make it, without the runs `gone`.
    fn is_complete_without(&self, gone: &[usize], borrowing: &[usize]) -> bool {
        let models: BTreeSet<&str> = self.world.hosts.iter().map(|host| host.model).collect();
        models.into_iter().all(|model| {
            let wanted = self.back_without(model, borrowing).min(self.world.reserve as usize);
            self.back_without(model, gone) >= wanted
        })
    }

    /// Checks that each run that stops for the reserve borrows, and that none of them could stay.
    pub fn check_reclaim(&self, victims: &[usize]) -> Result<(), Fault> {
        let borrowing = self.borrowing();
        if let Some(n) = victims.iter().find(|n| !borrowing.contains(n)) {
            return fault("r", format!("job {n} stops for the reserve and does not borrow"));
        }
        for stays in victims {
            let rest: Vec<usize> = victims.iter().copied().filter(|n| n != stays).collect();
            if self.is_complete_without(&rest, &borrowing) {
                return fault("r", format!("job {stays} could stay though {victims:?} stop for the reserve"));
            }
        }
        Ok(())
    }

    /// Checks that no further run that borrows could complete the reserve.
    pub(super) fn check_reserve(&self) -> Result<(), Fault> {
        let borrowing = self.borrowing();
        if self.world.reserve == 0 || self.is_complete_without(&[], &borrowing) {
            return Ok(());
        }
        fault("r", format!("the reserve is not complete at {} beside {borrowing:?}", self.world.now))
    }
}
