//! The loop of services: it keeps the replicas of each service, and moves its revisions.
//!
//! A run reads the rows of services, plans without IO (`plan`), writes the plan of each service in one transaction, and
//! then submits and ends jobs. A stop between these steps loses nothing: the next run finds a replica without a job, or
//! a drained replica with one, and goes on.

mod memory;
mod plan;
mod rollout;
mod unreadable;
mod wakes;
mod world;
mod writes;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use berth_autoscaling::scaling::{Decision, Report};
use berth_core::jobs::MachineEvent;
use berth_foundation::{Change, Context, fault};
use berth_jobs::jobs::is_own_wait;
use berth_jobs::{Attempts, Jobs};
use berth_store::StoreError;
use berth_store::services::{gateways, replicas};
use berth_types::ids::{JobId, RevisionId, ServiceId};
use berth_types::jobs::NewJob;
use berth_types::time::Timestamp;
use tokio::sync::Mutex;

use self::memory::{Memory, wanted};
use self::plan::{Inputs, Named};
use self::world::{ReplicaJob, Rows, Terms, World};
use self::writes::{Basis, Planned};
use berth_services::loads::{Due, LoadBoard};
use berth_services::schedules;

/// All services run at least this often, in milliseconds.
const ALL_EVERY_MS: i64 = 5_000;
/// A run ends after this time in milliseconds, and the next one goes on.
const MOST_MS: i64 = 5_000;
/// The pause of a service after an error in seconds.
const AGAIN_AFTER_S: i64 = 1;
/// Services in one read.
const BATCH: usize = 100;
/// Ids in one read.
const PAGE: i64 = 1_000;
/// The number of no gateway: those of gateways begin with 1.
const NO_GATEWAY: u64 = 0;
/// The queued replicas of a service in one question to the engine.
const MOST_ASKED: usize = 16;
/// Revisions in memory.
const MAX_TERMS: usize = 20_000;

/// The result of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// Services wait for the next run.
    pub unfinished: bool,
    /// The time until the next step of a service, if no change comes before.
    pub next: Option<Duration>,
}

#[derive(Debug, Default)]
struct State {
    memories: HashMap<ServiceId, Memory>,
    terms: HashMap<RevisionId, Terms>,
    todo: BTreeSet<ServiceId>,
    /// The last service that ran.
    last: Option<ServiceId>,
    /// The times of the next steps of services without another change.
    due: HashMap<ServiceId, Timestamp>,
    /// The time of the last list of all services, by the monotonic clock.
    listed_ms: Option<i64>,
    /// The portal has no gateway, so nobody can send a request.
    without_gateway: bool,
}

/// The loop of services.
#[derive(Clone)]
pub struct Controller {
    context: Context,
    jobs: Jobs,
    attempts: Attempts,
    board: LoadBoard,
    /// Locked during a run: one run at a time.
    state: Arc<Mutex<State>>,
}

impl Controller {
    /// A loop that listens to changes. `board` has the reports of gateways.
    pub fn subscribed(context: Context, jobs: Jobs, attempts: Attempts, board: LoadBoard) -> Self {
        context.changes.subscribe(Arc::new(board.clone()));
        Self { context, jobs, attempts, board, state: Arc::default() }
    }

    /// The reports of gateways.
    pub const fn board(&self) -> &LoadBoard {
        &self.board
    }

    /// Runs the changed services, and all services from time to time. An error of one service does not stop the others.
    ///
    /// # Errors
    /// The database cannot be read, or the last error of a service.
    pub async fn run(&self) -> Result<Pass, StoreError> {
        let mut state = self.state.lock().await;
        let began_ms = self.context.monotonic_ms();
        self.find_due(&mut state, began_ms).await?;
        let mut failed = None;
        let is_over = || self.context.monotonic_ms().saturating_sub(began_ms) >= MOST_MS;
        while !state.todo.is_empty() && !is_over() {
            for rows in self.read(&mut state).await? {
                let service = rows.service.id;
                if is_over() {
                    state.todo.insert(service);
                    continue;
                }
                let next = self.run_service(&mut state, rows).await.unwrap_or_else(|error| {
                    tracing::error!(%service, %error, "the replicas of a service could not be kept");
                    failed = Some(error);
                    Some(self.context.now().plus_seconds(AGAIN_AFTER_S))
                });
                match next {
                    Some(at) => state.due.insert(service, at),
                    None => state.due.remove(&service),
                };
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        let now = self.context.now();
        let left = |at: Timestamp| Duration::from_millis(u64::try_from(at.millis_since(now)).unwrap_or(0));
        let next = state.due.values().min().copied();
        Ok(Pass { unfinished: !state.todo.is_empty(), next: next.map(left) })
    }

    /// Adds the services to run.
    async fn find_due(&self, state: &mut State, now_ms: i64) -> Result<(), StoreError> {
        let changed = self.board.take_changed();
        let is_due = state.listed_ms.is_none_or(|listed| now_ms.saturating_sub(listed) >= ALL_EVERY_MS);
        if let Due::Some(services) = &changed
            && !is_due
        {
            let now = self.context.now();
            let due = state.due.iter().filter(|(_, at)| **at <= now).map(|(service, _)| *service);
            state.todo.extend(due);
            state.todo.extend(services);
            return Ok(());
        }
        let mut all: HashSet<ServiceId> = HashSet::new();
        let mut conn = self.context.db.read().await?;
        let mut after = None;
        loop {
            let page = replicas::list_ids(&mut conn.tx(), after, PAGE).await?;
            let Some(last) = page.last().copied() else { break };
            after = Some(last);
            all.extend(page);
        }
        state.without_gateway = gateways::list(&mut conn.tx()).await?.is_empty();
        drop(conn);
        state.memories.retain(|service, _| all.contains(service));
        state.due.retain(|service, _| all.contains(service));
        let watched = state.memories.values().flat_map(Memory::watched).collect();
        self.board.retain(&watched, &all);
        state.todo.extend(all);
        state.listed_ms = Some(now_ms);
        Ok(())
    }

    /// Reads the next services. A revision that cannot be read holds up its service only.
    async fn read(&self, state: &mut State) -> Result<Vec<Rows>, StoreError> {
        // The next ones after the last that ran, so that much work of some leaves none without a turn.
        let after = state.todo.iter().filter(|service| Some(**service) > state.last);
        let before = state.todo.iter().filter(|service| Some(**service) <= state.last);
        let batch: Vec<ServiceId> = after.chain(before).copied().take(BATCH).collect();
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let (world, unreadable) = unreadable::read_world(&mut tx, &batch).await?;
        if state.terms.len() >= MAX_TERMS {
            state.terms.clear();
        }
        for row in &world.revisions {
            if state.terms.contains_key(&row.id) {
                continue;
            }
            match replicas::find_spec(&mut tx, row.id).await {
                Ok(Some(spec)) => drop(state.terms.insert(row.id, Terms::from(&spec))),
                Ok(None) => {}
                Err(error @ StoreError::Corrupt(_)) => {
                    tracing::error!(revision = %row.id, %error, "a revision cannot be read");
                }
                Err(error) => return Err(error),
            }
        }
        for service in &batch {
            state.todo.remove(service);
        }
        drop(conn);
        for service in unreadable {
            self.mark_unreadable(service).await?;
        }
        Ok(Rows::group(world))
    }

    /// Runs one service; returns the time of its next step.
    async fn run_service(&self, state: &mut State, rows: Rows) -> Result<Option<Timestamp>, StoreError> {
        let (service, now) = (rows.service.id, self.context.now());
        state.last = Some(service);
        let known = rows.revisions.iter().filter_map(|row| Some((row.id, state.terms.get(&row.id)?.clone())));
        let mut terms: BTreeMap<RevisionId, Terms> = known.collect();
        if rows.is_halted() {
            // It needs no terms to end its replicas.
            for row in &rows.revisions {
                terms.entry(row.id).or_insert_with(Terms::unreadable);
            }
        }
        let Some(world) = World::from_rows(&rows, &terms) else {
            tracing::error!(%service, "a revision of a service cannot be read, so its replicas stay as they are");
            self.mark_unreadable(service).await?;
            return Ok(None);
        };
        self.track(service, &world);
        let without_gateway = state.without_gateway;
        let memory = state.memories.entry(service).or_default();
        let (inputs, decision) = self.inputs((memory, without_gateway), &rows, &world, now);
        let waiting = decision.as_ref().is_some_and(|decision| decision.load.waiting > 0);
        let own_wait = self.waits_for_own_org(&rows).await?;
        let basis = Arc::new(Basis { terms, inputs, decision, own_wait });
        let scheduled = schedules::next_step(&rows.service.scaling.0, now).filter(|_| !world.halted);
        let Some(mut planned) = Planned::new(rows, &basis) else { return Ok(None) };
        wakes::follow(&self.context, service, &planned.moment(&world, &basis, waiting)).await?;
        if planned.changed {
            let Some(written) = writes::write(&self.context, service, basis).await? else {
                self.board.mark_changed(service);
                return Ok(None);
            };
            planned = written;
            if !planned.created.is_empty() {
                fault::point("service.replica.recorded");
            }
            if planned.changed {
                self.context.publish(Change::Service(service));
            }
        }
        for ((job, _), _) in &planned.plan.ended {
            self.board.remove_replica(*job);
        }
        self.end_jobs(&planned).await?;
        self.submit_jobs(memory, &planned).await?;
        Ok(planned.plan.next.into_iter().chain(scheduled).min())
    }

    /// True if all replicas in the queue wait for the organization itself while none has devices.
    async fn waits_for_own_org(&self, rows: &Rows) -> Result<bool, StoreError> {
        if rows.is_halted() || rows.has_devices() {
            return Ok(false);
        }
        let queued: Vec<JobId> = rows.queued().take(MOST_ASKED).collect();
        if queued.is_empty() { Ok(false) } else { is_own_wait(&self.jobs, queued).await }
    }

    /// Lets changes of the jobs of a service wake the loop.
    fn track(&self, service: ServiceId, world: &World) {
        for replica in &world.replicas {
            if replica.ended_at.is_some() {
                self.board.remove_replica(replica.id);
            } else {
                self.board.add_replica(replica.id, service);
                if replica.draining_since.is_none() {
                    self.board.reopen_replica(replica.id);
                }
            }
        }
    }

    /// Decides the number of replicas and judges the canary. A stopped service begins anew.
    fn inputs(
        &self,
        (memory, without_gateway): (&mut Memory, bool),
        rows: &Rows,
        world: &World,
        now: Timestamp,
    ) -> (Inputs, Option<Decision>) {
        let service = &rows.service;
        let draining = world.replicas.iter().filter(|r| r.ended_at.is_none() && r.draining_since.is_some());
        let draining: Vec<JobId> = draining.map(|replica| replica.id).collect();
        let gateways = self.board.gateways(service.id, &draining, now);
        if world.halted {
            *memory = Memory::default();
            return (Inputs { now, gateways, ..Inputs::default() }, None);
        }
        let absent = world.replicas.iter().filter(|r| r.ended_at.is_none() && r.job == ReplicaJob::Absent);
        let absent: Vec<RevisionId> = absent.map(|replica| replica.revision).collect();
        memory.retain_refusals(&absent);
        let mut loads = self.board.take_loads(service.id, now);
        if loads.is_empty() && without_gateway {
            // Silence of gateways proves nothing, but without any gateway there is no request.
            loads.push((NO_GATEWAY, Report { in_flight: 0, waiting: 0, begun: false, at: now }));
        }
        let decision = memory.decide((&service.scaling.0, &service.decision), loads, world, now);
        let inputs = Inputs {
            now,
            wanted: wanted(&service.scaling.0, &decision),
            delay_ends: memory.delay_ends(&service.scaling.0, &decision),
            judged: memory.judge(&service.rollout.0, world, &self.board, now),
            gateways,
            refused: memory.refusals(decision.load.waiting > 0),
        };
        (inputs, Some(decision))
    }

    /// Ends the jobs of replicas that are not needed any more. A repeated end changes nothing.
    async fn end_jobs(&self, planned: &Planned) -> Result<(), StoreError> {
        for job in &planned.plan.cancelled {
            let replica = planned.rows.replicas.iter().find(|row| row.job_id == *job);
            let late = planned.plan.late.contains(job) || replica.is_some_and(|row| row.failed);
            let detail = if late {
                "The replica was not ready in time."
            } else {
                "The service does not need this replica any more."
            };
            self.attempts.apply_event(*job, None, MachineEvent::Cancel, detail.to_owned()).await?;
        }
        Ok(())
    }

    /// Submits the jobs of new replicas, and of those without a job. After a refusal the others of the revision wait.
    async fn submit_jobs(&self, memory: &mut Memory, planned: &Planned) -> Result<(), StoreError> {
        let service = &planned.rows.service;
        let mut refused: HashSet<RevisionId> = HashSet::new();
        for named @ (job, revision) in planned.plan.submitted.iter().chain(&planned.created).copied() {
            if refused.contains(&revision) {
                continue;
            }
            self.board.add_replica(job, service.id);
            let Some(spec) = self.job(planned, named).await? else { continue };
            let created_by = format!("service {}", service.name);
            match self.jobs.submit_replica(job, (service.org_id, service.id), spec, created_by).await {
                Ok(_) => memory.accept(revision),
                Err(problem) => {
                    tracing::warn!(service = %service.id, code = %problem.code, "a replica is refused");
                    memory.refuse(revision, &problem.detail, self.context.now());
                    refused.insert(revision);
                    // The reason belongs to the state of the service.
                    self.board.mark_changed(service.id);
                }
            }
        }
        Ok(())
    }

    /// The submission of a replica.
    async fn job(&self, planned: &Planned, (_, revision): Named) -> Result<Option<NewJob>, StoreError> {
        let service = &planned.rows.service;
        let mut conn = self.context.db.read().await?;
        let spec = replicas::find_spec(&mut conn.tx(), revision).await?;
        let row = planned.rows.revisions.iter().find(|row| row.id == revision);
        let (Some(spec), Some(row)) = (spec, row) else { return Ok(None) };
        let mut job = spec.job;
        job.name = format!("{}-r{}", service.name, row.number);
        job.labels.insert(replicas::LABEL.to_owned(), service.name.clone());
        Ok(Some(job))
    }
}
