//! The decisions of the engine, carried out in a small world.

use berth_engine::Decision;
use berth_placement::cluster::Slot;
use berth_types::ids::{JobId, NodeId};

use super::{Run, State, Use, World, job_id, milli, node_id, uuid};

impl World {
    /// The end of a run of a job that begins then. The end of the reservation cuts a later attempt.
    pub fn run_end(&self, n: usize, from: i64) -> i64 {
        let (job, end) = (&self.jobs[n], from + self.jobs[n].left);
        match job.spec.inside.and_then(|booked| self.booked.get(booked)?.as_ref()) {
            Some(booked) if job.attempt > 0 && from + 60 <= booked.until => end.min(booked.until),
            _ => end,
        }
    }

    /// Carries out the decision to start a job.
    pub fn start(&mut self, n: usize, ranks: &[(NodeId, Vec<Slot>)]) {
        let places = ranks.iter().map(|(node, slots)| {
            let host = (0..self.hosts.len()).find(|h| node_id(*h) == *node).expect("a host");
            let part = |slot: &Slot| {
                let board =
                    (0..self.hosts[host].boards).find(|b| uuid(host, *b) == slot.gpu).expect("a board");
                (board, slot.part)
            };
            (host, slots.iter().map(part).collect())
        });
        let ranks = places.collect();
        let ends = self.run_end(n, self.now);
        let (now, job) = (self.now, &mut self.jobs[n]);
        job.attempt += 1;
        let preemptible = job.spec.preemptible;
        job.state = State::Running(Run {
            ranks,
            since: now,
            ends: Some(ends),
            late_s: 0,
            preemptible,
            stopped_for: None,
            requeues: false,
            stops: false,
        });
        let spec = job.spec;
        self.used.push(Use { org: spec.org, job: n, milli: milli(&spec), from: now, until: None });
    }

    /// Stops a run for another job, or (`None`) for the reserve for bursts.
    pub fn stop(&mut self, n: usize, for_job: Option<usize>) {
        let (now, job) = (self.now, &mut self.jobs[n]);
        if let State::Running(run) = &mut job.state {
            let end = now + job.spec.grace_s;
            (run.preemptible, run.stopped_for, run.requeues, run.stops) = (false, for_job, true, true);
            run.ends = run.ends.map(|limit| limit.min(end));
        }
    }

    pub fn number(&self, job: JobId) -> usize {
        (0..self.jobs.len()).find(|n| job_id(*n) == job).expect("a job")
    }

    /// Sends the facts that follow from the decisions to the engine.
    pub fn acknowledge(&mut self, decisions: &[Decision]) {
        for decision in decisions {
            let job = match decision {
                Decision::Start { job, .. } => *job,
                Decision::Preempt { victim, .. } => victim.job,
                Decision::Orphan { job, .. } => {
                    let n = self.number(*job);
                    self.end_job(n, false);
                    continue;
                }
            };
            self.send_job(self.number(job));
        }
    }
}
