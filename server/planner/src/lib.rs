//! The planner: it keeps the engine equal to the database and asks it for decisions.
//!
//! A committed change marks its part of the database. Before the next question the planner reads the marked
//! parts again and gives them to the engine as facts. Facts carry the number of their read, so two concurrent
//! reads do no harm. A full read from time to time makes up for missed changes. The planner only translates:
//! the engine decides.

pub mod bookings;
mod equipment;
mod facts;
pub mod limits;
mod nodes;
mod orgs;
mod waits;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_engine::{
    Blocker, Claim, Decision, Engine, Fact, JobFacts, OrgFacts, RequestSummary, WaitReasons, explanation,
};
use berth_placement::cluster::Owner;
use berth_placement::pools::Work;
use berth_placement::request::{InvalidRequest, Request};
use berth_types::ids::{JobId, OrgId};
use berth_types::jobs::{Explanation, JobState, NewJob};
use berth_types::time::Timestamp;

use berth_foundation::{Change, Context, Listener};
use berth_storage::VolumeUses;
use berth_storage::volumes::uses;
use berth_store::jobs::StoredJob;
use berth_store::offerings::StoredOffering;
use berth_store::{self as store, StoreError, Tx};
use equipment::Equipment;
use facts::{
    StatedFacts, claims, device_request, network_need, request, request_summary, state_facts, waiting_facts,
};
pub use facts::{assigned_devices, cpu_milli, memory_mib};
use nodes::AwayNodes;
use tokio::sync::Notify;
pub use waits::{WaitDetails, trial};

/// The most waiting jobs in memory.
const MAX_QUEUE: i64 = 200_000;
/// The jobs in one question for reasons.
const EXPLAINED_AT_ONCE: usize = 16;
/// The changed jobs in one read. More at once would need much memory, since a submission may be long.
const JOBS_PER_READ: usize = 16;

/// The parts of the database that changed since the last read.
#[derive(Debug, Default, PartialEq, Eq)]
struct Touched {
    everything: bool,
    boards: bool,
    orgs: bool,
    bookings: bool,
    jobs: HashSet<JobId>,
}

/// The engine, and the changes that it has not read yet.
#[derive(Debug)]
struct State {
    /// Locked on threads for blocking work only: a pass may take many milliseconds.
    engine: Arc<Mutex<Engine>>,
    touched: Mutex<Touched>,
    /// Wakes the scheduler.
    wake: Notify,
    /// Locked during a read of changes, so that the next question waits for them.
    reading: tokio::sync::Mutex<()>,
    /// Locked by a pass from its decisions to their commit: one pass at a time.
    passing: Arc<tokio::sync::Mutex<()>>,
    reads: AtomicI64,
    proving: waits::ProofTurns,
    away: Mutex<AwayNodes>,
    equipment: Equipment,
    /// The facts of organizations that the engine got last.
    orgs: Mutex<HashMap<OrgId, OrgFacts>>,
}

impl Default for State {
    fn default() -> Self {
        let touched = Touched { everything: true, ..Touched::default() };
        Self {
            engine: Arc::default(),
            touched: Mutex::new(touched),
            wake: Notify::new(),
            reading: tokio::sync::Mutex::default(),
            passing: Arc::default(),
            reads: AtomicI64::new(0),
            proving: waits::ProofTurns::default(),
            away: Mutex::default(),
            equipment: Equipment::default(),
            orgs: Mutex::default(),
        }
    }
}

impl State {
    fn touch(&self, mark: impl FnOnce(&mut Touched)) {
        mark(&mut lock(&self.touched));
        self.wake.notify_one();
    }
}

impl Listener for State {
    fn on_change(&self, change: &Change) {
        match change {
            Change::Job { job, event, .. } => {
                // The preparation of a job changes no placement.
                if event.as_ref().is_none_or(|event| event.state != JobState::Starting) {
                    self.touch(|touched| {
                        touched.jobs.insert(*job);
                    });
                }
            }
            Change::JobDevices(job) => self.touch(|touched| {
                touched.jobs.insert(*job);
            }),
            Change::Boards => {
                self.equipment.note_change();
                self.touch(|touched| touched.boards = true);
            }
            Change::Orgs => self.touch(|touched| touched.orgs = true),
            Change::Reservations => self.touch(|touched| touched.bookings = true),
            Change::Assignments(_)
            | Change::NodeRevoked(_)
            | Change::Charged(_)
            | Change::Member { .. }
            | Change::TokenRevoked(_)
            | Change::Operator(_)
            | Change::SignedOut(_)
            | Change::Service(_)
            | Change::InferenceKeys(_)
            | Change::Webhooks(_) => {}
        }
    }
}

/// The access to the engine of the queue, which is kept equal to the database.
#[derive(Clone)]
pub struct Planner {
    context: Context,
    volumes: VolumeUses,
    state: Arc<State>,
}

/// The request of a submission for the engine, and its summary for the reason texts.
fn submission_request(
    spec: &NewJob,
    offering: &StoredOffering,
    nano_per_second: i64,
) -> (Request, RequestSummary) {
    let host = (cpu_milli(spec), memory_mib(spec));
    let model = offering.gpu_model.as_str();
    let device = device_request(offering.mig_profile.as_deref(), spec.gpu_milli);
    let request = Request {
        offering: Some(offering.slug.as_str().into()),
        nano_per_second,
        images: spec.image.is_some(),
        rdma: spec.rdma,
        network: network_need(spec),
        // The loop of services submits replicas; they wait with the facts of their rows.
        work: Work::new(false, spec.preemptible || spec.reservation.is_some()),
        ..request(model, device.clone(), (spec.count, spec.nodes), host, spec.topology)
    };
    (request, RequestSummary { model: model.to_owned(), device, count: spec.count })
}

/// The jobs on which these jobs depend.
fn dependencies<'a>(waiting: impl Iterator<Item = &'a JobFacts>) -> HashSet<JobId> {
    waiting.flat_map(|facts| &facts.depends_on).map(|dependency| dependency.job).collect()
}

/// The states of jobs on which others depend. An unknown job is absent.
async fn dependency_states(
    tx: &mut Tx<'_>,
    jobs: HashSet<JobId>,
) -> Result<HashMap<JobId, JobState>, StoreError> {
    if jobs.is_empty() {
        return Ok(HashMap::new());
    }
    let jobs: Vec<JobId> = jobs.into_iter().collect();
    Ok(store::jobs::list_states(tx, &jobs).await?.into_iter().collect())
}

/// The ends of the jobs on which a job depends. An unknown job counts as ended without success.
fn dependency_ends(facts: &JobFacts, states: &HashMap<JobId, JobState>) -> Vec<Fact> {
    let end = |job: JobId| {
        let state = states.get(&job).copied();
        let succeeded = state == Some(JobState::Succeeded);
        state.is_none_or(JobState::ended).then_some(Fact::Ended { job, succeeded })
    };
    facts.depends_on.iter().filter_map(|dependency| end(dependency.job)).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The reasons against a request that no cluster could hold.
fn invalid(request: InvalidRequest) -> WaitReasons {
    let blockers = vec![Blocker::InvalidRequest(request)];
    WaitReasons { blockers, changes: Vec::new(), earliest: None, fits: false }
}

/// The explanation of a job that was submitted a moment ago, or whose start is just being committed.
fn being_placed(now: Timestamp) -> Explanation {
    let basis = "The scheduler is placing the job.".to_owned();
    Explanation { earliest_start: Some(now), basis, ..Explanation::default() }
}

/// Runs a calculation on a thread for blocking work, and passes a panic on.
async fn on_blocking_thread<T: Send + 'static>(calculation: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(calculation).await {
        Ok(answer) => answer,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime shuts down, and this task with it.
            Err(_) => std::future::pending().await,
        },
    }
}

/// The decisions of a pass of the engine.
pub struct Decisions {
    pub decisions: Vec<Decision>,
    /// The engine has not checked all waiting jobs yet.
    pub unfinished: bool,
    /// The milliseconds until the next end or begin by the clock alone; `None` without one.
    pub next_after_ms: Option<i64>,
}

impl Planner {
    pub fn new(context: Context, volumes: VolumeUses) -> Self {
        let state: Arc<State> = Arc::default();
        context.changes.subscribe(state.clone());
        Self { context, volumes, state }
    }

    /// Marks the whole database as changed: the next question reads all of it.
    pub fn read_all(&self) {
        lock(&self.state.touched).everything = true;
    }

    /// Requests a pass without a change, for example after a passage of time.
    pub fn wake(&self) {
        self.state.wake.notify_one();
    }

    /// Resolves after a change since the last call.
    pub async fn changed(&self) {
        self.state.wake.notified().await;
    }

    /// Waits for the present read of changes. No read begins during the life of the guard.
    pub async fn lock_reading(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.state.reading.lock().await
    }

    /// Waits for the present pass. No pass begins during the life of the guard.
    pub async fn lock_passes(&self) -> tokio::sync::OwnedMutexGuard<()> {
        self.state.passing.clone().lock_owned().await
    }

    fn touch_again(&self, touched: Touched) {
        let mut now = lock(&self.state.touched);
        now.everything |= touched.everything;
        now.boards |= touched.boards;
        now.orgs |= touched.orgs;
        now.bookings |= touched.bookings;
        now.jobs.extend(touched.jobs);
    }

    /// Reads the changed parts of the database and gives them to the engine.
    pub async fn refresh(&self) -> Result<(), StoreError> {
        let _guard = self.state.reading.lock().await;
        let mut touched = std::mem::take(&mut *lock(&self.state.touched));
        touched.boards |= lock(&self.state.away).has_expired(self.context.monotonic_ms());
        if touched == Touched::default() {
            return Ok(());
        }
        let done = self.read_touched(&touched).await;
        if done.is_err() {
            self.touch_again(touched);
        }
        done
    }

    async fn read_touched(&self, touched: &Touched) -> Result<(), StoreError> {
        let version = self.next_version();
        let now = self.context.now();
        let mut facts = Vec::new();
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        if touched.boards || touched.everything {
            facts.extend(self.nodes_as_facts(&mut tx, version).await?);
        }
        let (mut racks, mut burst_reserve) = (None, None);
        if touched.boards || touched.everything {
            racks = Some(store::operations::list_racks(&mut tx).await?);
            burst_reserve = Some(store::node_pools::burst_reserve(&mut tx).await?);
        }
        if touched.orgs || touched.everything {
            facts.extend(self.orgs_as_facts(&mut tx, now).await?);
        }
        // Bookings name boards, so a change of boards needs them again.
        let bookings = match touched.bookings || touched.boards || touched.everything {
            true => Some(self.stored_bookings(&mut tx).await?),
            false => None,
        };
        let mut present: Option<(HashSet<Owner>, HashSet<JobId>)> = None;
        if touched.everything {
            let held = claims(store::attempts::list_held(&mut tx).await?, now);
            let queued = |row: StoredJob| Ok(waiting_facts(&row).0);
            let waiting: Vec<JobFacts> = store::jobs::list_queued(&mut tx, MAX_QUEUE, queued).await?;
            let owners = held.iter().map(|c| c.owner).collect();
            facts.extend(held.into_iter().map(|claim| Fact::Claim { version, claim }));
            let mut volumes = self.volumes.held_volumes(&mut tx, None).await?;
            let mut storage = uses::waiting_storage_classes(&mut tx, None).await?;
            let needed = dependencies(waiting.iter());
            let states = dependency_states(&mut tx, needed).await?;
            let jobs = waiting.iter().map(|job| job.id).collect();
            for job_facts in waiting {
                let mut job_facts = JobFacts { volume: volumes.remove(&job_facts.id), ..job_facts };
                job_facts.request.storage = storage.remove(&job_facts.id).unwrap_or_default();
                facts.extend(dependency_ends(&job_facts, &states));
                facts.push(Fact::Waits { version, facts: job_facts });
            }
            present = Some((owners, jobs));
        } else {
            let jobs: Vec<JobId> = touched.jobs.iter().copied().collect();
            for jobs in jobs.chunks(JOBS_PER_READ) {
                self.jobs_as_facts(&mut tx, jobs, version, now, &mut facts).await?;
            }
        }
        drop(conn);
        let state = self.state.clone();
        self.ask(move |engine| {
            state.equipment.put(&facts, now);
            let stated = StatedFacts { facts, racks, burst_reserve, bookings, present };
            state_facts(engine, stated, version, now)
        })
        .await
    }

    /// The number of the next read.
    fn next_version(&self) -> i64 {
        self.state.reads.fetch_add(1, Ordering::SeqCst)
    }

    async fn jobs_as_facts(
        &self,
        tx: &mut Tx<'_>,
        jobs: &[JobId],
        version: i64,
        now: Timestamp,
        out: &mut Vec<Fact>,
    ) -> Result<(), StoreError> {
        let rows = store::jobs::list_any(tx, jobs).await?;
        let mut waiting: HashMap<JobId, (JobFacts, bool)> = HashMap::new();
        for row in rows.iter().filter(|row| row.phase.state == JobState::Queued) {
            waiting.insert(row.id, waiting_facts(row));
        }
        let needed = dependencies(waiting.values().map(|(facts, _)| facts));
        let states = dependency_states(tx, needed).await?;
        let mut rows: HashMap<JobId, StoredJob> = rows.into_iter().map(|row| (row.id, row)).collect();
        let mut claimed: HashMap<JobId, Vec<Claim>> = HashMap::new();
        for claim in claims(store::attempts::list_held_by(tx, jobs).await?, now) {
            claimed.entry(claim.owner.job).or_default().push(claim);
        }
        for &job in jobs {
            let row = rows.remove(&job);
            let held = claimed.remove(&job).unwrap_or_default();
            let attempts = row.as_ref().map_or(0, |r| u32::try_from(r.attempt).unwrap_or(0));
            for attempt in 1..=attempts.saturating_add(1) {
                let owner = Owner { job, attempt };
                if !held.iter().any(|c| c.owner == owner) {
                    out.push(Fact::Freed { version, owner });
                }
            }
            out.extend(held.into_iter().map(|claim| Fact::Claim { version, claim }));
            match waiting.remove(&job) {
                Some((mut facts, uses_volumes)) => {
                    if uses_volumes {
                        facts.volume = self.volumes.held_volumes(tx, Some(job)).await?.remove(&job);
                        let storage = uses::waiting_storage_classes(tx, Some(job)).await?.remove(&job);
                        facts.request.storage = storage.unwrap_or_default();
                    }
                    out.extend(dependency_ends(&facts, &states));
                    out.push(Fact::Waits { version, facts });
                }
                None => {
                    out.push(Fact::Left { version, job });
                    let ended = row.map(|r| r.phase.state).filter(|s| s.ended());
                    let succeeded = ended.map(|s| s == JobState::Succeeded);
                    out.extend(succeeded.map(|succeeded| Fact::Ended { job, succeeded }));
                }
            }
        }
        Ok(())
    }

    /// Asks the engine for its decisions now.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn decide(&self) -> Result<Decisions, StoreError> {
        self.refresh().await?;
        let context = self.context.clone();
        let awaited_ms = lock(&self.state.away).next_expiry_after(context.monotonic_ms());
        let decisions = self.ask(move |engine| {
            let now = context.now();
            let decisions = engine.pass(now);
            let next = engine.next_change(now).map(|next| (next.micros() - now.micros()).max(0) / 1_000 + 1);
            let next_after_ms = next.into_iter().chain(awaited_ms).min();
            Decisions { decisions, unfinished: engine.is_unfinished(), next_after_ms }
        });
        Ok(decisions.await)
    }

    /// Asks the engine a question, without a read of changes before it. The question runs on a thread for
    /// blocking work, after the present question or pass: no async thread waits for the engine.
    pub async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> T {
        let engine = self.state.engine.clone();
        on_blocking_thread(move || question(&mut lock(&engine))).await
    }

    /// Explains why no node, open or not, could ever run a submission. `None` if some node could.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn explain_impossible(
        &self,
        org: OrgId,
        spec: &NewJob,
        offering: &StoredOffering,
    ) -> Result<Option<Explanation>, StoreError> {
        let (request, asked) = submission_request(spec, offering, 0);
        let why = self.why_impossible(request, org).await?;
        Ok(why.map(|why| explanation(&why, &asked, self.context.now())))
    }

    /// Explains why queued jobs wait, from the present facts of the engine.
    pub async fn explain(&self, rows: impl IntoIterator<Item = &StoredJob>) -> HashMap<JobId, Explanation> {
        let jobs: Vec<(JobId, RequestSummary)> =
            rows.into_iter().map(|row| (row.id, request_summary(row))).collect();
        if jobs.is_empty() {
            return HashMap::new();
        }
        let now = self.context.now();
        let explain =
            move |engine: &mut Engine, job: JobId, asked: &RequestSummary| match engine.why(job, now) {
                Some(why) => explanation(&why, asked, now),
                None => being_placed(now),
            };
        let mut out = HashMap::with_capacity(jobs.len());
        // Passes and other questions get their turns between the parts of a long list.
        for part in jobs.chunks(EXPLAINED_AT_ONCE) {
            let part = part.to_vec();
            let explained = move |engine: &mut Engine| {
                part.iter().map(|(job, asked)| (*job, explain(engine, *job, asked))).collect::<Vec<_>>()
            };
            out.extend(self.ask(explained).await);
        }
        out
    }
}
