//! The present state of one service: its balancer, its waiting requests and its requests at replicas.
//!
//! One lock has the state of one service, and nothing waits while it holds the lock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_serving::balancer::{Ask, Balancer, NoReplica, Outcome, Pick, Session};
use berth_serving::queue::{Class, NewRequest, Queue, Ticket, WakeTimes};
use berth_serving::refusals::Refusal;
use berth_serving::reports::ServiceLoad;
use berth_serving::retries::{Decision, RetryBudget, Try};
use berth_serving::snapshot::{ReplicaId, Service};
use berth_types::ids::{InferenceKeyId, RevisionId, ServiceId};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Duration, timeout};

use crate::clock::now_ms;

/// Milliseconds for which a waiting request avoids the replicas that failed it.
const AVOID_MS: u64 = 1_000;
/// Milliseconds for which a service without requests is in the reports.
const REPORTED_MS: u64 = 5_000;
/// Milliseconds for which the reports name the free replicas of a service that left: some reports are lost.
const LEFT_MS: u64 = 10_000;

/// A request that needs a replica.
#[derive(Debug, Clone)]
pub struct Demand {
    pub key: Option<InferenceKeyId>,
    pub session: Option<Session>,
    pub prefix: Option<Session>,
    /// Bytes of its body in memory.
    pub bytes: u64,
    pub deadline_ms: u64,
    /// Replicas that failed it.
    pub except: Vec<ReplicaId>,
}

impl Demand {
    fn ask(&self, avoids: bool) -> Ask<'_> {
        let except = if avoids { self.except.as_slice() } else { &[] };
        Ask { key: self.key, session: self.session, prefix: self.prefix, except }
    }

    const fn class(&self) -> Class {
        if self.except.is_empty() { Class::New } else { Class::Retried }
    }
}

struct Waiter {
    demand: Demand,
    avoids_until_ms: u64,
    send: oneshot::Sender<Pick>,
}

#[derive(Default)]
struct Inner {
    balancer: Balancer,
    queue: Queue,
    waiters: HashMap<Ticket, Waiter>,
    retries: RetryBudget,
    wakes: WakeTimes,
    in_flight: u32,
    /// A request began since the last report.
    begun: bool,
    loaded_at_ms: Option<u64>,
    /// The snapshot has a replica for new requests.
    has_replica: bool,
    /// The time at which the service left the snapshot, or at which its last request since then ended.
    left_at_ms: Option<u64>,
}

/// The state of a service.
pub struct ServiceState {
    id: ServiceId,
    inner: Mutex<Inner>,
    /// A request began to wait, so the portal needs a report.
    waits: Arc<Notify>,
}

/// A counted request at a replica. Its drop ends the request without evidence about the replica.
pub struct Place {
    service: Arc<ServiceState>,
    pick: Pick,
    is_open: bool,
}

/// A waiting request. Its drop ends the wait.
pub struct Turn {
    service: Arc<ServiceState>,
    ticket: Ticket,
    deadline_ms: u64,
    receive: oneshot::Receiver<Pick>,
    is_open: bool,
}

/// A place, or the wait for one.
pub enum Entry {
    Placed(Place),
    Waits(Turn),
}

impl Inner {
    /// Starts the waiting requests for which replicas have room.
    fn start_waiting(&mut self, now: u64) {
        let Self { balancer, queue, waiters, wakes, in_flight, begun, .. } = self;
        let mut rng = rand::rng();
        loop {
            let mut chosen = None;
            let next = queue.next(|waiting| {
                let Some(waiter) = waiters.get(&waiting.ticket) else { return false };
                let ask = waiter.demand.ask(now < waiter.avoids_until_ms);
                chosen = balancer.pick(&ask, now, &mut rng).ok();
                chosen.is_some()
            });
            let (Some(next), Some(pick)) = (next, chosen) else { return };
            let waiter = waiters.remove(&next.ticket);
            // A caller that left at this moment gives its place back.
            if waiter.is_none_or(|waiter| waiter.send.send(pick).is_err()) {
                balancer.finish(pick.replica, Outcome::Abandoned, now);
            } else {
                *in_flight = in_flight.saturating_add(1);
                *begun = true;
                wakes.count_start(now);
            }
        }
    }

    fn finish(&mut self, replica: ReplicaId, outcome: Outcome, now: u64) {
        self.balancer.finish(replica, outcome, now);
        self.in_flight = self.in_flight.saturating_sub(1);
        // The reports name this replica as long as the others.
        self.left_at_ms = self.left_at_ms.map(|_| now);
        self.start_waiting(now);
    }
}

impl ServiceState {
    pub fn new(id: ServiceId, waits: Arc<Notify>) -> Arc<Self> {
        Arc::new(Self { id, inner: Mutex::default(), waits })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub const fn id(&self) -> ServiceId {
        self.id
    }

    /// True if the snapshot has a replica for new requests.
    pub fn has_replica(&self) -> bool {
        self.lock().has_replica
    }

    /// Takes over the service of a new snapshot.
    pub fn update(&self, service: &Service) {
        let now = now_ms();
        let mut inner = self.lock();
        inner.balancer.update(service, now);
        let mut replicas = service.revisions.iter().flat_map(|revision| &revision.replicas);
        inner.has_replica = replicas.any(|replica| !replica.draining);
        if inner.has_replica {
            inner.wakes.end_wake(now);
        }
        inner.start_waiting(now);
    }

    /// Ends all waits for a service that is in no snapshot any more. It takes no further request.
    pub fn leave(&self) {
        let mut inner = self.lock();
        // Without their waiters the turns end.
        let tickets: Vec<Ticket> = inner.waiters.drain().map(|(ticket, _)| ticket).collect();
        for ticket in tickets {
            inner.queue.cancel(ticket);
        }
        inner.wakes.fail_wake();
        inner.balancer.close();
        inner.has_replica = false;
        inner.left_at_ms = Some(inner.left_at_ms.unwrap_or_else(now_ms));
    }

    /// The next snapshot has the service: its requests wait until the snapshot is taken over.
    pub fn come_back(&self) {
        self.lock().left_at_ms = None;
    }

    /// Starts waiting requests whose time of another choice has come.
    pub fn tick(&self) {
        let mut inner = self.lock();
        if !inner.queue.is_empty() {
            inner.start_waiting(now_ms());
        }
    }

    /// Finds a replica for a request, or a place in the queue.
    ///
    /// # Errors
    /// The queue is full, or the service is in no snapshot any more.
    pub fn enter(self: &Arc<Self>, demand: Demand) -> Result<Entry, Refusal> {
        let now = now_ms();
        let mut inner = self.lock();
        if inner.left_at_ms.is_some() {
            return Err(Refusal::UnknownAddress);
        }
        if demand.except.is_empty() {
            inner.retries.count_request(now);
        }
        let picked = if inner.queue.is_empty() {
            inner.balancer.pick(&demand.ask(true), now, &mut rand::rng())
        } else {
            Err(NoReplica::Full)
        };
        match picked {
            Ok(pick) => {
                inner.in_flight = inner.in_flight.saturating_add(1);
                inner.begun = true;
                Ok(Entry::Placed(Place { service: self.clone(), pick, is_open: true }))
            }
            Err(why) => {
                if why == NoReplica::Asleep {
                    inner.wakes.begin_wake(now);
                }
                self.wait(&mut inner, demand, now).map(Entry::Waits)
            }
        }
    }

    fn wait(self: &Arc<Self>, inner: &mut Inner, demand: Demand, now: u64) -> Result<Turn, Refusal> {
        let is_first = inner.queue.is_empty();
        let deadline_ms = demand.deadline_ms;
        let request = NewRequest { key: demand.key, class: demand.class(), bytes: demand.bytes, deadline_ms };
        let Ok(ticket) = inner.queue.push(request, now) else {
            let retry_after_s = inner.wakes.retry_after_s(inner.queue.len(), now);
            return Err(Refusal::Busy { retry_after_s });
        };
        let (send, receive) = oneshot::channel();
        inner.waiters.insert(ticket, Waiter { demand, avoids_until_ms: now.saturating_add(AVOID_MS), send });
        inner.start_waiting(now);
        if is_first && !inner.queue.is_empty() {
            self.waits.notify_one();
        }
        Ok(Turn { service: self.clone(), ticket, deadline_ms, receive, is_open: true })
    }

    /// Decides about another try of a request.
    pub fn permits_retry(&self, failed: Try) -> bool {
        self.lock().retries.decide(failed, now_ms()) == Decision::Retry
    }

    /// The refusal of a request that found no replica.
    pub fn no_replica(&self) -> Refusal {
        let inner = self.lock();
        let retry_after_s = inner.wakes.retry_after_s(inner.queue.len(), now_ms());
        Refusal::WaitedTooLong { retry_after_s }
    }

    /// The requests for a report; `None` for a service without requests for a while.
    pub fn load(&self) -> Option<ServiceLoad> {
        let now = now_ms();
        let mut inner = self.lock();
        let waiting = u32::try_from(inner.queue.len()).unwrap_or(u32::MAX);
        let begun = std::mem::take(&mut inner.begun);
        if begun || inner.in_flight > 0 || waiting > 0 {
            inner.loaded_at_ms = Some(now);
        }
        let is_recent = inner.loaded_at_ms.is_some_and(|at| now.saturating_sub(at) < REPORTED_MS);
        is_recent.then_some(ServiceLoad { service: self.id, in_flight: inner.in_flight, waiting, begun })
    }

    /// The last load did not reach the portal.
    pub fn restore_load(&self, load: &ServiceLoad) {
        self.lock().begun |= load.begun;
    }

    /// The requests at replicas and those that wait.
    pub fn counts(&self) -> (u32, usize) {
        let inner = self.lock();
        (inner.in_flight, inner.queue.len())
    }

    /// True if a replica has no request of this gateway.
    pub fn is_free(&self, replica: ReplicaId) -> bool {
        self.lock().balancer.outstanding(replica) == 0
    }

    /// True for a service that left and has had no request at a replica for a while.
    pub fn is_over(&self) -> bool {
        self.is_over_at(now_ms())
    }

    fn is_over_at(&self, now: u64) -> bool {
        let inner = self.lock();
        inner.in_flight == 0 && inner.left_at_ms.is_some_and(|at| now.saturating_sub(at) >= LEFT_MS)
    }

    /// The known replicas without a request of this gateway, if the service is in no snapshot any more.
    pub fn free_after_leave(&self) -> Vec<ReplicaId> {
        let inner = self.lock();
        if inner.left_at_ms.is_some() { inner.balancer.free().collect() } else { Vec::new() }
    }
}

impl Place {
    pub const fn replica(&self) -> ReplicaId {
        self.pick.replica
    }

    pub const fn revision(&self) -> RevisionId {
        self.pick.revision
    }

    pub fn service(&self) -> ServiceId {
        self.service.id
    }

    /// Ends the request with the evidence about its replica.
    pub fn finish(mut self, outcome: Outcome) {
        self.is_open = false;
        self.service.lock().finish(self.pick.replica, outcome, now_ms());
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_open {
            self.service.lock().finish(self.pick.replica, Outcome::Abandoned, now_ms());
        }
    }
}

impl Turn {
    /// Waits for a place until the deadline.
    ///
    /// # Errors
    /// No replica had room in time, or the service is in no snapshot any more.
    pub async fn place(mut self) -> Result<Place, Refusal> {
        let wait = Duration::from_millis(self.deadline_ms.saturating_sub(now_ms()));
        match timeout(wait, &mut self.receive).await {
            Ok(Ok(pick)) => {
                self.is_open = false;
                Ok(Place { service: self.service.clone(), pick, is_open: true })
            }
            Ok(Err(_)) => Err(Refusal::UnknownAddress),
            Err(_) => Err(self.service.no_replica()),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        let mut inner = self.service.lock();
        inner.waiters.remove(&self.ticket);
        if inner.queue.cancel(self.ticket) {
            // Nobody waits for a replica any more, so a later one says nothing about the time of a wake.
            if inner.queue.is_empty() && !inner.has_replica {
                inner.wakes.fail_wake();
            }
            return;
        }
        // It had its place at this moment.
        if let Ok(pick) = self.receive.try_recv() {
            inner.finish(pick.replica, Outcome::Abandoned, now_ms());
        }
    }
}

#[cfg(test)]
mod tests;
