//! The replay of a day: requests at a gateway, the rule for the number of replicas, and the pool with its engine.

use std::collections::{BTreeMap, VecDeque};

use berth_autoscaling::scaling::{self, Fleet, Policy, Report, Scaler, replicas_to_drain};
use berth_autoscaling::{GatewayId, ReplicaId};
use berth_types::ids::JobId;

use crate::day::{DAY_MS, Request};
use crate::pool::{BOARDS, Borrowed, Event, Events, GRACE_S, Pool, at};

/// The requests for each replica that the rule aims at, and the most that a replica answers at the same time.
pub const TARGET: u32 = 8;
const CONCURRENCY: u32 = 16;
/// The time from the place of a replica until it is ready.
const READY_MS: i64 = 8_000;
/// The interval of the gateway's reports. The loop of services runs after a report with a waiting request.
const REPORT_MS: i64 = 1_000;
/// The interval of the loop of services without such a report: a tick.
const LOOP_MS: i64 = 5_000;
/// A replica is late if it has no board after the grace of a job and one tick.
const LATE_MS: i64 = GRACE_S * 1_000 + LOOP_MS;
const SEED: u64 = 1;

struct Replica {
    asked_ms: i64,
    placed_ms: Option<i64>,
    ready: bool,
    draining: bool,
    in_flight: u32,
}

impl Replica {
    const fn has_room(&self) -> bool {
        self.ready && !self.draining && self.in_flight < CONCURRENCY
    }
}

/// The figures of a replay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The time of each request until its answer begins.
    pub waits_ms: Vec<i64>,
    /// The time of each replica from its submission until it is ready, sorted.
    pub delays_ms: Vec<i64>,
    /// Late replicas.
    pub late: u32,
    /// Milliseconds of a board of all replicas, from the place to the end.
    pub replica_ms: i64,
    pub borrowed: Borrowed,
}

struct Replay<'a> {
    requests: &'a [Request],
    pool: Pool,
    events: Events,
    replicas: BTreeMap<JobId, Replica>,
    /// Requests that wait at the gateway.
    queue: VecDeque<usize>,
    scaler: Scaler,
    policy: Policy,
    wanted: u32,
    out: Outcome,
}

/// Replays a day. With `lends` the idle boards beyond the reserve for bursts go to jobs.
pub fn run(requests: &[Request], lends: bool, reserve: u32) -> Outcome {
    let mut replay = Replay::new(requests, reserve);
    replay.begin(lends);
    let mut next = 0;
    while let Some(due_ms) = replay.events.next_at() {
        if let Some(request) = requests.get(next).filter(|request| request.at_ms <= due_ms) {
            replay.queue.push_back(next);
            next += 1;
            replay.dispatch(request.at_ms);
        } else if due_ms < DAY_MS {
            replay.step(due_ms);
        } else {
            break;
        }
    }
    replay.close()
}

impl<'a> Replay<'a> {
    fn new(requests: &'a [Request], reserve: u32) -> Self {
        // The defaults of a service, with the target, the step and the concurrency of the documents.
        let policy = Policy {
            target: TARGET,
            floor: 1,
            ceiling: BOARDS,
            up_delay_s: 10,
            down_delay_s: 120,
            idle_s: 600,
            step: 2,
            schedule: Vec::new(),
            shadow: false,
        };
        let out = Outcome { waits_ms: vec![0; requests.len()], ..Outcome::default() };
        Self {
            requests,
            pool: Pool::new(SEED, reserve),
            events: Events::default(),
            replicas: BTreeMap::new(),
            queue: VecDeque::new(),
            scaler: Scaler::default(),
            policy,
            wanted: 0,
            out,
        }
    }

    /// Begins the day with ready replicas for its first ten minutes, before the first job.
    fn begin(&mut self, lends: bool) {
        let first = self.requests.iter().take_while(|request| request.at_ms < 600_000);
        let busy_ms: i64 = first.map(|request| request.serve_ms).sum();
        let needed = busy_ms / 600_000 / i64::from(TARGET) + 1;
        self.wanted = u32::try_from(needed).unwrap_or(BOARDS).min(BOARDS);
        self.submit_replicas(self.wanted, 0);
        for id in self.pool.pass(0, &mut self.events) {
            if let Some(replica) = self.replicas.get_mut(&id) {
                (replica.placed_ms, replica.ready) = (Some(0), true);
            }
        }
        if lends {
            self.pool.lend();
        }
        self.events.push(0, Event::Tick);
    }

    fn step(&mut self, now_ms: i64) {
        match self.events.pop() {
            Some(Event::Done(owner)) => self.pool.finish(owner, now_ms),
            Some(Event::Back(owner)) => self.pool.give_back(owner, now_ms),
            Some(Event::Ready(id)) => self.make_ready(id, now_ms),
            Some(Event::Answered(id)) => self.complete(id, now_ms),
            Some(Event::Tick) => {
                self.scale(now_ms);
                self.pool.changed = true;
                self.events.push(now_ms + REPORT_MS, Event::Tick);
            }
            None => {}
        }
        if self.pool.changed {
            for id in self.pool.pass(now_ms, &mut self.events) {
                self.place(id, now_ms);
            }
        }
    }

    fn submit_replicas(&mut self, count: u32, now_ms: i64) {
        for _ in 0..count {
            let id = self.pool.submit_replica(now_ms);
            let replica =
                Replica { asked_ms: now_ms, placed_ms: None, ready: false, draining: false, in_flight: 0 };
            self.replicas.insert(id, replica);
        }
    }

    fn place(&mut self, id: JobId, now_ms: i64) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        replica.placed_ms = Some(now_ms);
        self.out.late += u32::from(now_ms - replica.asked_ms > LATE_MS);
        self.events.push(now_ms + READY_MS, Event::Ready(id));
    }

    fn make_ready(&mut self, id: JobId, now_ms: i64) {
        // A replica that is not needed any more has ended before.
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        replica.ready = true;
        self.out.delays_ms.push(now_ms - replica.asked_ms);
        self.dispatch(now_ms);
    }

    /// Sends the waiting requests to the replicas with the fewest requests, as long as one has room.
    fn dispatch(&mut self, now_ms: i64) {
        while let Some(index) = self.queue.front().copied() {
            let Some(request) = self.requests.get(index).copied() else { return };
            let open = self.replicas.iter_mut().filter(|(_, replica)| replica.has_room());
            let Some((id, replica)) = open.min_by_key(|(_, replica)| replica.in_flight) else { return };
            replica.in_flight += 1;
            let id = *id;
            self.queue.pop_front();
            self.events.push(now_ms + request.serve_ms, Event::Answered(id));
            self.record_wait(index, now_ms);
        }
    }

    fn record_wait(&mut self, index: usize, now_ms: i64) {
        let arrived_ms = self.requests.get(index).map_or(now_ms, |request| request.at_ms);
        if let Some(wait_ms) = self.out.waits_ms.get_mut(index) {
            *wait_ms = now_ms - arrived_ms;
        }
    }

    fn complete(&mut self, id: JobId, now_ms: i64) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        replica.in_flight = replica.in_flight.saturating_sub(1);
        if replica.draining && replica.in_flight == 0 {
            self.end(id, now_ms);
        }
        self.dispatch(now_ms);
    }

    fn end(&mut self, id: JobId, now_ms: i64) {
        let Some(replica) = self.replicas.remove(&id) else { return };
        self.count_end(&replica, now_ms);
        self.pool.end_replica(id, replica.placed_ms.is_some(), now_ms);
    }

    /// Counts the boards of a replica at its end, or its lateness if it never had a board.
    fn count_end(&mut self, replica: &Replica, now_ms: i64) {
        match replica.placed_ms {
            Some(placed_ms) => self.out.replica_ms += now_ms - placed_ms,
            None => self.out.late += u32::from(now_ms - replica.asked_ms > LATE_MS),
        }
    }

    /// Reports the requests, and decides the number of replicas when the loop of services runs.
    fn scale(&mut self, now_ms: i64) {
        let in_flight: u32 = self.replicas.values().map(|replica| replica.in_flight).sum();
        let waiting = u32::try_from(self.queue.len()).unwrap_or(u32::MAX);
        self.scaler.report(GatewayId(1), Report { in_flight, waiting, begun: false, at: at(now_ms) });
        if waiting == 0 && now_ms % LOOP_MS != 0 {
            return;
        }
        let ready = self.replicas.values().filter(|replica| replica.ready && !replica.draining).count();
        let ready = u32::try_from(ready).unwrap_or(u32::MAX).min(self.wanted);
        let fleet = Fleet { replicas: self.wanted, ready };
        self.wanted = self.scaler.decide(&self.policy, fleet, at(now_ms), 0).replicas;
        self.balance(now_ms);
    }

    /// Submits missing replicas, and drains surplus ones.
    fn balance(&mut self, now_ms: i64) {
        let kept: Vec<JobId> = self.replicas.iter().filter(|(_, r)| !r.draining).map(|(id, _)| *id).collect();
        let missing = self.wanted.saturating_sub(u32::try_from(kept.len()).unwrap_or(u32::MAX));
        self.submit_replicas(missing, now_ms);
        let choice = |(n, id): (u64, &JobId)| {
            let replica = self.replicas.get(id)?;
            let created = at(replica.asked_ms);
            Some(scaling::Replica { id: ReplicaId(n), ready: replica.ready, created, outstanding: 0 })
        };
        let choices: Vec<scaling::Replica> = (0..).zip(&kept).filter_map(choice).collect();
        for ReplicaId(n) in replicas_to_drain(&choices, self.wanted, 0) {
            let Some(id) = usize::try_from(n).ok().and_then(|n| kept.get(n)).copied() else { continue };
            let Some(replica) = self.replicas.get_mut(&id) else { continue };
            replica.draining = true;
            if replica.in_flight == 0 {
                self.end(id, now_ms);
            }
        }
    }

    /// Counts the waiting requests, the replicas and the jobs at the end of the day.
    fn close(mut self) -> Outcome {
        for index in std::mem::take(&mut self.queue) {
            self.record_wait(index, DAY_MS);
        }
        for replica in std::mem::take(&mut self.replicas).into_values() {
            self.count_end(&replica, DAY_MS);
        }
        self.pool.close();
        self.out.delays_ms.sort_unstable();
        Outcome { borrowed: self.pool.borrowed, ..self.out }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_without_requests_lends_all_boards_but_one() {
        let out = run(&[], true, 0);
        let borrowed = Borrowed { used_ms: i64::from(BOARDS - 1) * DAY_MS, ..Borrowed::default() };
        assert_eq!(out, Outcome { replica_ms: DAY_MS, borrowed, ..Outcome::default() });
        assert_eq!(run(&[], false, 0), Outcome { replica_ms: DAY_MS, ..Outcome::default() });
    }

    /// From noon on 100 requests are in flight, for an hour.
    fn rise() -> Vec<Request> {
        let noon_ms = DAY_MS / 2;
        (0..36_000).map(|n| Request { at_ms: noon_ms + n * 100, serve_ms: 10_000 }).collect()
    }

    #[test]
    fn the_reserve_is_idle_without_requests() {
        let out = run(&[], true, 4);
        let borrowed = Borrowed { used_ms: i64::from(BOARDS - 1 - 4) * DAY_MS, ..Borrowed::default() };
        assert_eq!(out, Outcome { replica_ms: DAY_MS, borrowed, ..Outcome::default() });
    }

    #[test]
    fn a_large_reserve_serves_a_rise_at_once_and_comes_back() {
        let requests = rise();
        let (alone, lent) = (run(&requests, false, 32), run(&requests, true, 32));
        assert_eq!((lent.waits_ms, lent.delays_ms), (alone.waits_ms, alone.delays_ms));
        // Jobs stop for the reserve that the replicas use.
        assert!(lent.borrowed.preempted >= 8, "{:?}", lent.borrowed);
    }

    #[test]
    fn boards_come_back_for_a_rise_in_the_time_in_which_jobs_give_them_back() {
        let requests = rise();
        let (alone, lent) = (run(&requests, false, 0), run(&requests, true, 0));
        assert!(alone.delays_ms.len() >= 12 && alone.delays_ms.iter().all(|ms| *ms == READY_MS));
        assert_eq!((alone.late, alone.borrowed), (0, Borrowed::default()));
        assert_eq!(lent, run(&requests, true, 0));
        assert_eq!(lent.late, 0);
        // The time limits of jobs are too late for a wait, so each replica waits for a stopped job or the end of one.
        let preempted = lent.borrowed.preempted;
        assert!(preempted >= 8 && lent.delays_ms.len() >= 12, "{preempted}: {:?}", lent.delays_ms);
        let (first_ms, last_ms) = (lent.delays_ms[0], lent.delays_ms[lent.delays_ms.len() - 1]);
        assert!(first_ms >= READY_MS && last_ms > READY_MS + 1_000, "{:?}", lent.delays_ms);
        assert!(last_ms <= READY_MS + GRACE_S * 1_000, "{:?}", lent.delays_ms);
        // Boards are unused from a stop to the return alone.
        let unused_ms = i64::from(BOARDS) * DAY_MS - lent.replica_ms - lent.borrowed.used_ms;
        let longest_ms = i64::from(preempted) * GRACE_S * 1_000;
        assert!((1..=longest_ms).contains(&unused_ms), "{unused_ms} of {longest_ms}");
        assert!((1..=lent.borrowed.lost_unsaved_ms).contains(&lent.borrowed.lost_ms));
    }
}
