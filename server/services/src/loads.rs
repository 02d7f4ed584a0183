//! The reports of gateways, in memory, and the signals that wake the loop of services.
//!
//! A load counts until its gateway replaces it, and for some seconds at most. After a start of the portal the gateways have
//! some time to report before their absence counts.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_autoscaling::rollout::{BOUNDS_MS, Evidence};
use berth_autoscaling::scaling::{REPORT_AGE_S, Report};
use berth_foundation::{Change, Listener};
use berth_serving::reports::{BUCKETS, ServiceLoad, Use};
use berth_serving::snapshot::ReplicaId;
use berth_types::ids::{JobId, RevisionId, ServiceId};
use berth_types::time::Timestamp;
use tokio::sync::Notify;

/// The most gateways in memory.
const MAX_GATEWAYS: usize = 1_000;
/// The most services that wait for a run of their own; beyond it all services run.
const MAX_CHANGED: usize = 1_000;

/// A gateway that reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayView {
    /// The time of its last report.
    pub at: Timestamp,
    /// The number of its snapshot: the time of the snapshot in milliseconds.
    pub snapshot: u64,
    /// The requests of the service at the gateway, with those that wait.
    pub requests: u64,
    /// The draining replicas of which it has no request.
    pub drained: BTreeSet<JobId>,
}

/// The counted requests of a revision since the begin of its watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    requests: u64,
    errors: u64,
    first_byte: [u64; BUCKETS],
}

impl Counts {
    fn add(&mut self, used: &Use) {
        self.requests = self.requests.saturating_add(used.requests);
        self.errors = self.errors.saturating_add(used.errors);
        for (sum, more) in self.first_byte.iter_mut().zip(&used.first_byte) {
            *sum = sum.saturating_add(*more);
        }
    }

    /// The evidence since earlier counts.
    pub fn since(&self, earlier: &Self) -> Evidence {
        let mut evidence = Evidence {
            requests: self.requests.saturating_sub(earlier.requests),
            errors: self.errors.saturating_sub(earlier.errors),
            ..Evidence::default()
        };
        // The last bucket has all longer times.
        let bounds = BOUNDS_MS.into_iter().chain([u32::MAX]);
        let counts = self.first_byte.iter().zip(&earlier.first_byte);
        for (bound, (count, before)) in bounds.zip(counts) {
            evidence.latencies.add(bound, count.saturating_sub(*before));
        }
        evidence
    }
}

/// The last reports of a gateway.
#[derive(Debug, Default)]
struct GatewayState {
    at: Timestamp,
    snapshot: u64,
    /// The requests in flight and waiting by service, with the time of the report.
    loads: HashMap<ServiceId, (ServiceLoad, Timestamp)>,
    drained: HashSet<JobId>,
}

impl GatewayState {
    /// The requests of a service.
    fn load(&self, service: ServiceId, now: Timestamp) -> ServiceLoad {
        let none = ServiceLoad { service, in_flight: 0, waiting: 0, begun: false };
        self.loads.get(&service).filter(|(_, at)| is_recent(*at, now)).map_or(none, |(load, _)| *load)
    }
}

#[derive(Debug, Default)]
struct Board {
    gateways: BTreeMap<u64, GatewayState>,
    /// The revisions whose requests are counted.
    watched: HashMap<RevisionId, Counts>,
    /// The jobs of replicas, for changes of jobs.
    replicas: HashMap<JobId, ServiceId>,
    changed: BTreeSet<ServiceId>,
    all_changed: bool,
}

impl Board {
    /// The state of a gateway; `None` for one of too many.
    fn gateway(&mut self, number: u64, now: Timestamp) -> Option<&mut GatewayState> {
        if self.gateways.len() >= MAX_GATEWAYS && !self.gateways.contains_key(&number) {
            self.gateways.retain(|_, state| is_recent(state.at, now));
            if self.gateways.len() >= MAX_GATEWAYS {
                return None;
            }
        }
        Some(self.gateways.entry(number).or_default())
    }

    fn mark(&mut self, service: ServiceId) {
        if self.changed.len() >= MAX_CHANGED {
            self.all_changed = true;
        } else {
            self.changed.insert(service);
        }
    }
}

#[derive(Debug)]
struct Shared {
    /// The gateways count as absent from this time on if they do not report.
    known_from: Timestamp,
    board: Mutex<Board>,
    wake: Notify,
}

/// The services to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Due {
    All,
    Some(BTreeSet<ServiceId>),
}

/// The reports of all gateways. A clone shares them.
#[derive(Debug, Clone)]
pub struct LoadBoard(Arc<Shared>);

fn is_recent(at: Timestamp, now: Timestamp) -> bool {
    at > now.plus_seconds(-REPORT_AGE_S)
}

impl LoadBoard {
    pub fn new(now: Timestamp) -> Self {
        let known_from = now.plus_seconds(REPORT_AGE_S);
        Self(Arc::new(Shared { known_from, board: Mutex::default(), wake: Notify::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, Board> {
        self.0.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The gateway with this number reports, and uses this snapshot. The loads and drains of the report come before.
    pub fn seen(&self, gateway: u64, snapshot: u64, at: Timestamp) {
        let mut board = self.lock();
        let Some(state) = board.gateway(gateway, at) else { return };
        (state.at, state.snapshot) = (state.at.max(at), snapshot);
        state.loads.retain(|_, (_, reported)| is_recent(*reported, at));
    }

    /// The requests of a service at a gateway now. A waiting request makes the service run at once.
    pub fn report(&self, gateway: u64, load: ServiceLoad, at: Timestamp) {
        let mut board = self.lock();
        let Some(state) = board.gateway(gateway, at) else { return };
        // The loop of services reads less often than gateways report.
        let before = state.loads.get(&load.service).is_some_and(|(last, _)| last.begun);
        state.loads.insert(load.service, (ServiceLoad { begun: load.begun || before, ..load }, at));
        if load.waiting > 0 {
            board.mark(load.service);
            drop(board);
            self.0.wake.notify_one();
        }
    }

    /// A draining replica has no request of a gateway.
    pub fn drained(&self, gateway: u64, replica: ReplicaId, at: Timestamp) {
        let mut board = self.lock();
        let Some(service) = board.replicas.get(&replica.job).copied() else { return };
        let Some(state) = board.gateway(gateway, at) else { return };
        if state.drained.insert(replica.job) {
            board.mark(service);
            drop(board);
            self.0.wake.notify_one();
        }
    }

    /// Counts the use of a revision as evidence, if a canary is judged by it.
    pub fn evidence(&self, used: &Use) {
        if let Some(counts) = self.lock().watched.get_mut(&used.revision) {
            counts.add(used);
        }
    }

    /// The requests of a service at the gateways that report. Begun requests are returned once.
    pub fn take_loads(&self, service: ServiceId, now: Timestamp) -> Vec<(u64, Report)> {
        let mut board = self.lock();
        let recent = board.gateways.iter_mut().filter(|(_, state)| is_recent(state.at, now));
        recent
            .map(|(gateway, state)| {
                let ServiceLoad { in_flight, waiting, begun, .. } = state.load(service, now);
                if let Some((load, _)) = state.loads.get_mut(&service) {
                    load.begun = false;
                }
                (*gateway, Report { in_flight, waiting, begun, at: state.at })
            })
            .collect()
    }

    /// The gateways that report, for the drain of these replicas of a service. `None` as long as they had no time to
    /// report.
    pub fn gateways(
        &self,
        service: ServiceId,
        draining: &[JobId],
        now: Timestamp,
    ) -> Option<Vec<GatewayView>> {
        if now < self.0.known_from {
            return None;
        }
        let board = self.lock();
        let recent = board.gateways.values().filter(|state| is_recent(state.at, now));
        let view = |state: &GatewayState| {
            let ServiceLoad { in_flight, waiting, .. } = state.load(service, now);
            GatewayView {
                at: state.at,
                snapshot: state.snapshot,
                requests: u64::from(in_flight) + u64::from(waiting),
                drained: draining.iter().copied().filter(|job| state.drained.contains(job)).collect(),
            }
        };
        Some(recent.map(view).collect())
    }

    /// The counts of a revision; its watch begins with the first call.
    pub fn watch(&self, revision: RevisionId) -> Counts {
        *self.lock().watched.entry(revision).or_default()
    }

    /// Ends the watch of all other revisions, and forgets the replicas of all other services.
    pub fn retain(&self, revisions: &HashSet<RevisionId>, services: &HashSet<ServiceId>) {
        let mut board = self.lock();
        board.watched.retain(|revision, _| revisions.contains(revision));
        board.replicas.retain(|_, service| services.contains(service));
    }

    /// Adds the job of a replica, so that its changes wake the loop.
    pub fn add_replica(&self, job: JobId, service: ServiceId) {
        self.lock().replicas.insert(job, service);
    }

    /// Forgets that gateways had no request of a replica. A service that was stopped for a moment only can have it again.
    pub fn reopen_replica(&self, job: JobId) {
        self.lock().gateways.values_mut().for_each(|state| {
            state.drained.remove(&job);
        });
    }

    /// Forgets the job of an ended replica.
    pub fn remove_replica(&self, job: JobId) {
        let mut board = self.lock();
        if board.replicas.remove(&job).is_some() {
            board.gateways.values_mut().for_each(|state| {
                state.drained.remove(&job);
            });
        }
    }

    /// Makes a service run soon.
    pub fn mark_changed(&self, service: ServiceId) {
        self.lock().mark(service);
        self.0.wake.notify_one();
    }

    /// Removes and returns the services that changed since the last call.
    pub fn take_changed(&self) -> Due {
        let mut board = self.lock();
        let changed = std::mem::take(&mut board.changed);
        if std::mem::take(&mut board.all_changed) { Due::All } else { Due::Some(changed) }
    }

    /// Resolves when a service is to run.
    pub async fn changed(&self) {
        self.0.wake.notified().await;
    }
}

impl Listener for LoadBoard {
    fn on_change(&self, change: &Change) {
        match change {
            Change::Service(service) => self.mark_changed(*service),
            Change::Job { job, event: Some(_), .. } => {
                let service = self.lock().replicas.get(job).copied();
                if let Some(service) = service {
                    self.mark_changed(service);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_types::events::JobEvent;
    use berth_types::ids::OrgId;
    use berth_types::jobs::JobState;
    use futures::FutureExt;
    use uuid::Uuid;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(0).plus_seconds(seconds)
    }

    fn service(n: u128) -> ServiceId {
        ServiceId::from_uuid(Uuid::from_u128(n))
    }

    fn job(n: u128) -> JobId {
        JobId::from_uuid(Uuid::from_u128(n))
    }

    fn revision(n: u128) -> RevisionId {
        RevisionId::from_uuid(Uuid::from_u128(n))
    }

    fn load(n: u128, in_flight: u32, waiting: u32) -> ServiceLoad {
        ServiceLoad { service: service(n), in_flight, waiting, begun: false }
    }

    fn replica(n: u128) -> ReplicaId {
        ReplicaId { job: job(n), attempt: 1, rank: 0 }
    }

    fn used(first_byte: Vec<u64>) -> Use {
        Use {
            service: service(1),
            revision: revision(1),
            key: None,
            requests: 10,
            errors: 2,
            prompt_tokens: 0,
            completion_tokens: 0,
            token_nanos: 0,
            first_byte,
        }
    }

    #[test]
    fn evidence_counts_from_the_begin_of_its_watch() {
        let board = LoadBoard::new(at(0));
        board.evidence(&used(vec![9; BUCKETS]));
        let start = board.watch(revision(1));
        assert_eq!(start, Counts::default());
        for n in 1..4 {
            board.evidence(&used(Vec::new()));
            let evidence = board.watch(revision(1)).since(&start);
            assert_eq!((evidence.requests, evidence.errors), (10 * n, 2 * n));
        }
        board.retain(&HashSet::new(), &HashSet::new());
        assert_eq!(board.watch(revision(1)), Counts::default());
    }

    #[test]
    fn buckets_keep_their_bounds() {
        for bucket in 0..BUCKETS {
            let mut counts = vec![0; BUCKETS];
            counts[bucket] = 5;
            let board = LoadBoard::new(at(0));
            let start = board.watch(revision(1));
            board.evidence(&used(counts));
            let evidence = board.watch(revision(1)).since(&start);
            assert_eq!(evidence.latencies.p95_ms(), BOUNDS_MS.get(bucket).copied());
        }
    }

    #[test]
    fn a_waiting_request_and_a_drained_replica_wake_the_loop() {
        let board = LoadBoard::new(at(0));
        let none = || Due::Some(BTreeSet::new());
        board.add_replica(job(9), service(2));
        board.seen(4, 7, at(1));
        board.report(4, load(1, 3, 0), at(1));
        board.drained(4, replica(8), at(1));
        assert_eq!((board.changed().now_or_never(), board.take_changed()), (None, none()));
        board.report(4, load(1, 3, 1), at(1));
        board.drained(4, replica(9), at(1));
        let both = Due::Some([service(1), service(2)].into());
        assert_eq!((board.changed().now_or_never(), board.take_changed()), (Some(()), both));
        board.drained(4, replica(9), at(1));
        assert_eq!(board.take_changed(), none(), "it is no news");
        (0..2_000).for_each(|n| board.mark_changed(service(n)));
        assert_eq!(board.take_changed(), Due::All);
    }

    #[test]
    fn changes_of_services_and_of_their_jobs_wake_the_loop_and_no_others() {
        let board = LoadBoard::new(at(0));
        board.add_replica(job(9), service(2));
        let event = |n: u128| {
            let (org, job) = (OrgId::from_uuid(Uuid::nil()), job(n));
            let detail = String::new();
            let event = JobEvent { job, seq: 1, at: at(0), state: JobState::Running, attempt: 1, detail };
            Change::Job { org, job, event: Some(event) }
        };
        for (change, woken) in [
            (event(9), Some(2)),
            (event(8), None),
            (Change::Boards, None),
            (Change::Service(service(5)), Some(5)),
        ] {
            board.on_change(&change);
            let expected = Due::Some(woken.map(service).into_iter().collect());
            assert_eq!(board.changed().now_or_never().is_some(), woken.is_some(), "{change:?}");
            assert_eq!(board.take_changed(), expected, "{change:?}");
        }
        board.remove_replica(job(9));
        board.on_change(&event(9));
        assert_eq!(board.take_changed(), Due::Some(BTreeSet::new()));
    }

    #[test]
    fn a_gateway_beyond_the_limit_replaces_silent_ones_only() {
        let board = LoadBoard::new(at(0));
        for gateway in 0..MAX_GATEWAYS as u64 + 1 {
            board.seen(gateway, 1, at(10));
        }
        assert_eq!(board.take_loads(service(1), at(10)).len(), MAX_GATEWAYS);
        board.seen(5_000, 1, at(60));
        assert_eq!(board.take_loads(service(1), at(60)).len(), 1);
    }

    #[test]
    fn gateways_are_unknown_after_a_start_and_absent_when_they_are_silent() {
        let board = LoadBoard::new(at(0));
        assert_eq!(board.gateways(service(1), &[], at(14)), None);
        board.add_replica(job(9), service(1));
        board.seen(4, 7, at(10));
        board.report(4, load(1, 3, 2), at(10));
        board.drained(4, replica(9), at(10));
        let view = |requests: u64, drained: &[u128]| GatewayView {
            at: at(10),
            snapshot: 7,
            requests,
            drained: drained.iter().map(|n| job(*n)).collect(),
        };
        assert_eq!(board.gateways(service(1), &[job(9)], at(15)), Some(vec![view(5, &[9])]));
        assert_eq!(board.gateways(service(2), &[job(8)], at(15)), Some(vec![view(0, &[])]));
        assert_eq!(board.take_loads(service(1), at(15)).len(), 1);
        let idle = Report { in_flight: 0, waiting: 0, begun: false, at: at(10) };
        assert_eq!(board.take_loads(service(3), at(15)), [(4, idle)]);
        assert_eq!(board.gateways(service(1), &[job(9)], at(25)), Some(vec![]));
        assert!(board.take_loads(service(1), at(25)).is_empty());
        board.reopen_replica(job(9));
        assert_eq!(board.gateways(service(1), &[job(9)], at(15)), Some(vec![view(5, &[])]));
        board.drained(4, replica(9), at(15));
        // A gateway that began anew does not report its former loads any more.
        board.seen(4, 7, at(25));
        let idle = Report { in_flight: 0, waiting: 0, begun: false, at: at(25) };
        assert_eq!(board.take_loads(service(1), at(25)), [(4, idle)]);
        board.remove_replica(job(9));
        let views = board.gateways(service(1), &[job(9)], at(26)).unwrap();
        assert!(views[0].drained.is_empty(), "{views:?}");
    }

    #[test]
    fn a_begun_request_is_known_until_the_next_reading() {
        let board = LoadBoard::new(at(0));
        let report = |s: i64, begun: bool| {
            board.report(4, ServiceLoad { begun, ..load(1, 0, 0) }, at(s));
            board.seen(4, 7, at(s));
        };
        let begun =
            |s: i64| board.take_loads(service(1), at(s)).iter().map(|(_, one)| one.begun).collect::<Vec<_>>();
        for s in 1..=4 {
            report(s, s == 1);
        }
        assert_eq!([begun(5), begun(5)], [[true], [false]], "four reports between two readings");
        report(6, false);
        assert_eq!(begun(6), [false]);
        report(7, true);
        assert_eq!([begun(7), begun(8)], [[true], [false]]);
    }
}
