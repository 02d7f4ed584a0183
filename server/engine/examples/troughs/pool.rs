//! The pool of nodes for inference: the engine with its facts, and the jobs that borrow idle boards.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use berth_engine::{Decision, Engine, Fact, JobFacts, put_burst_reserve};
use berth_placement::cluster::{GpuFacts, NodeFacts, Owner};
use berth_placement::pools::Work;
use berth_placement::request::{DeviceRequest, Nearness, Request};
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::Priority;
use berth_types::node_pools::NodePool;
use berth_types::time::Timestamp;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;
use uuid::Uuid;

use crate::day::{DAY_MS, exponential, unit};

#[expect(dead_code, reason = "the program uses a part of it")]
#[path = "../../tests/small/mod.rs"]
mod small;

const NODES: u32 = 8;
const BOARDS_OF_A_NODE: u32 = 8;
pub const BOARDS: u32 = NODES * BOARDS_OF_A_NODE;
/// The least number of waiting jobs: the demand for training has no end.
const BACKLOG: usize = 64;
/// The grace of the jobs.
pub const GRACE_S: i64 = 30;
/// The time in which a job loads its program and its saved state, at the begin of each attempt.
const LOAD_MS: i64 = 20_000;
/// The interval of saves of jobs that save nothing at their stop.
const SAVE_MS: i64 = 600_000;
/// The time limit of a replica.
const REPLICA_S: i64 = 7 * 86_400;
/// The most passes at one time.
const MAX_PASSES: usize = 64;

/// A time of the day as a time of the engine.
pub fn at(ms: i64) -> Timestamp {
    small::at(0).plus_millis(ms)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// A job has done its work.
    Done(Owner),
    /// A stopped job gives its board back.
    Back(Owner),
    /// A replica has loaded its model.
    Ready(JobId),
    /// A replica has answered a request.
    Answered(JobId),
    /// The gateway reports.
    Tick,
}

/// The coming events in the order of their times, those of one time in the order of their additions.
#[derive(Default)]
pub struct Events {
    heap: BinaryHeap<Reverse<(i64, u64, Event)>>,
    added: u64,
}

impl Events {
    pub fn push(&mut self, at_ms: i64, event: Event) {
        self.added += 1;
        self.heap.push(Reverse((at_ms, self.added, event)));
    }

    pub fn next_at(&self) -> Option<i64> {
        self.heap.peek().map(|Reverse((at_ms, ..))| *at_ms)
    }

    pub fn pop(&mut self) -> Option<Event> {
        self.heap.pop().map(|Reverse((.., event))| event)
    }
}

/// The use of boards by jobs, in milliseconds of a board.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Borrowed {
    /// From each start to the end or to the stop. The time between a stop and the return of the board is no use.
    pub used_ms: i64,
    /// The part that a further attempt repeats: the load of the program, because jobs save their work in their grace.
    pub lost_ms: i64,
    /// The same for jobs that save their work every ten minutes only.
    pub lost_unsaved_ms: i64,
    pub preempted: u32,
}

struct Job {
    facts: JobFacts,
    work_ms: i64,
    gives_back_ms: i64,
    /// The begin of its run; absent while it waits or gives its board back.
    since_ms: Option<i64>,
}

pub struct Pool {
    engine: Engine,
    version: i64,
    random: ChaCha20Rng,
    jobs: BTreeMap<JobId, Job>,
    /// Jobs and replicas so far.
    count: u128,
    lends: bool,
    /// True after a fact that no pass has seen.
    pub changed: bool,
    pub borrowed: Borrowed,
}

/// The facts of a new job or replica on one board.
fn facts(number: u128, work: Work, max_duration_s: i64, now_ms: i64) -> JobFacts {
    let preemptible = work == Work::Preemptible;
    JobFacts {
        org: small::org(if preemptible { 2 } else { 1 }),
        max_duration_s,
        preemptible,
        grace_s: GRACE_S,
        queued_at: at(now_ms),
        ..small::waits(number, Request { work, ..small::boards(1, 1) })
    }
}

impl Pool {
    /// A pool in which so many boards stay free of jobs.
    pub fn new(seed: u64, reserve: u32) -> Self {
        let mut engine = Engine::default();
        put_burst_reserve(&mut engine, reserve);
        for n in 1..=NODES {
            let node = small::node(u128::from(n), "H100-80GB", BOARDS_OF_A_NODE as usize);
            let facts = NodeFacts { pool: NodePool::Inference, ..node };
            engine.apply(Fact::Node { version: 1, facts }, at(0));
        }
        Self {
            engine,
            version: 1,
            random: ChaCha20Rng::seed_from_u64(seed),
            jobs: BTreeMap::new(),
            count: 0,
            lends: false,
            changed: false,
            borrowed: Borrowed::default(),
        }
    }

    /// Admits jobs from the next pass on.
    pub fn lend(&mut self) {
        (self.lends, self.changed) = (true, true);
    }

    fn apply(&mut self, now_ms: i64, fact: impl FnOnce(i64) -> Fact) {
        self.version += 1;
        self.engine.apply(fact(self.version), at(now_ms));
        self.changed = true;
    }

    fn submit(&mut self, facts: JobFacts, now_ms: i64) {
        self.apply(now_ms, |version| Fact::Waits { version, facts });
    }

    fn free(&mut self, owner: Owner, now_ms: i64) {
        self.apply(now_ms, |version| Fact::Freed { version, owner });
    }

    /// Submits a replica.
    pub fn submit_replica(&mut self, now_ms: i64) -> JobId {
        self.count += 1;
        let facts = facts(self.count, Work::Replica, REPLICA_S, now_ms);
        let id = facts.id;
        self.submit(facts, now_ms);
        id
    }

    /// Ends a replica. Each has one attempt; `placed` is false before it.
    pub fn end_replica(&mut self, job: JobId, placed: bool, now_ms: i64) {
        match placed {
            true => self.free(Owner { job, attempt: 1 }, now_ms),
            false => self.apply(now_ms, |version| Fact::Left { version, job }),
        }
    }

    /// Submits jobs until enough wait. They need an hour on average, and their limit is twice their work and ten minutes.
    /// Each gives its board back in a time of its own, 1 to 20 seconds.
    fn fill_backlog(&mut self, now_ms: i64) {
        while self.lends && self.engine.waiting() < BACKLOG {
            self.count += 1;
            let work_ms = exponential(&mut self.random, 3.6e6).clamp(3e5, 2.88e7) as i64;
            let gives_back_ms = 19_000.0f64.mul_add(unit(&mut self.random), 1_000.0) as i64;
            let facts = facts(self.count, Work::Preemptible, work_ms / 500 + 600, now_ms);
            self.jobs.insert(facts.id, Job { facts: facts.clone(), work_ms, gives_back_ms, since_ms: None });
            self.submit(facts, now_ms);
        }
    }

    /// Runs passes until one decides nothing, and carries the decisions out. Returns the replicas that have a board now.
    pub fn pass(&mut self, now_ms: i64, events: &mut Events) -> Vec<JobId> {
        let mut placed = Vec::new();
        for _ in 0..MAX_PASSES {
            self.fill_backlog(now_ms);
            let decided = self.engine.pass(at(now_ms));
            if decided.is_empty() && !self.engine.is_unfinished() {
                break;
            }
            for decision in decided {
                match decision {
                    Decision::Start { job, attempt, .. } => match self.jobs.get_mut(&job) {
                        Some(started) => {
                            (started.facts.attempt, started.since_ms) = (attempt, Some(now_ms));
                            let done_ms = now_ms + LOAD_MS + started.work_ms;
                            events.push(done_ms, Event::Done(Owner { job, attempt }));
                        }
                        None => placed.push(job),
                    },
                    Decision::Preempt { victim, .. } => self.stop(victim, now_ms, events),
                    Decision::Orphan { .. } => {}
                }
            }
        }
        self.changed = false;
        placed
    }

    fn stop(&mut self, victim: Owner, now_ms: i64, events: &mut Events) {
        let Some(job) = self.jobs.get_mut(&victim.job) else { return };
        let Some(since_ms) = job.since_ms.take() else { return };
        let ran_ms = now_ms - since_ms;
        let worked_ms = (ran_ms - LOAD_MS).max(0);
        job.work_ms -= worked_ms;
        let least_s = (LOAD_MS + job.work_ms) / 1_000 + 1;
        job.facts.max_duration_s = (job.facts.max_duration_s - ran_ms / 1_000).max(least_s);
        self.borrowed.used_ms += ran_ms;
        self.borrowed.lost_ms += ran_ms - worked_ms;
        self.borrowed.lost_unsaved_ms += ran_ms - worked_ms + worked_ms % SAVE_MS;
        self.borrowed.preempted += 1;
        events.push(now_ms + job.gives_back_ms, Event::Back(victim));
    }

    /// Returns the board of a stopped job, which waits again with the learned time.
    pub fn give_back(&mut self, owner: Owner, now_ms: i64) {
        self.free(owner, now_ms);
        let Some(job) = self.jobs.get_mut(&owner.job) else { return };
        job.facts.generation += 1;
        job.facts.gives_back_ms = Some(job.gives_back_ms);
        let facts = job.facts.clone();
        self.submit(facts, now_ms);
    }

    /// Ends a job that has done its work, unless this attempt was stopped.
    pub fn finish(&mut self, owner: Owner, now_ms: i64) {
        let job = self.jobs.get(&owner.job).filter(|job| job.facts.attempt == owner.attempt);
        let Some(since_ms) = job.and_then(|job| job.since_ms) else { return };
        self.jobs.remove(&owner.job);
        self.borrowed.used_ms += now_ms - since_ms;
        self.free(owner, now_ms);
    }

    /// Counts the runs at the end of the day.
    pub fn close(&mut self) {
        let runs = self.jobs.values().filter_map(|job| job.since_ms);
        self.borrowed.used_ms += runs.map(|since_ms| DAY_MS - since_ms).sum::<i64>();
    }
}
