//! The loop of the daemon.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use berth_exec::{AttemptDialer, Tunnels};
use berth_gpu::BoardCondition;
use berth_proto::portal_client::PortalClient;
use berth_proto::{
    Diagnosis, Heartbeat, Hello, OpenTunnel, PortalMessage, WorkerMessage, portal_message, worker_message,
};
use berth_replicas::{Dial, Dialing, ReplicaListener, Replicas};
use berth_session::link::{Outbox, SessionClaim, SessionEvent};
use berth_shim::model::AttemptKey;
use berth_system::clock::boottime_ms;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::attempt_table::AttemptTable;
use super::boards::{BoardMonitor, spawn_event_listener};
use super::handshake::{Handshake, ListingOutcome};
use super::hello::{NodeDescription, hello, own_slices};
use super::host_shutdown::HostShutdown;
use super::reports::wait_until;
use super::step_result::{BoardListing, BoardResult, ResultSender, StepResult};
use crate::attempt::{Attempt, AttemptState, Host};
use crate::telemetry::{HostSample, Telemetry, sample};

/// The shortest turn of the loop. Events within one turn are handled together.
const PACE: Duration = Duration::from_millis(10);
/// The most messages and results that are handled before a decision.
const AT_ONCE: usize = 64;

pub(super) struct Daemon {
    pub(super) host: Arc<Host>,
    node: NodeDescription,
    telemetry: Arc<Telemetry>,
    results: ResultSender,
    pub(super) table: AttemptTable,
    /// The queues of a session after its hello.
    pub(super) outbox: Option<Outbox>,
    pub(super) handshake: Handshake,
    boards: BoardMonitor,
    tunnels: Tunnels,
    pub(super) replicas: Replicas,
    shutdown: HostShutdown,
    sampling: bool,
    /// The latest checks of the host; absent before the first ones.
    diagnosis: Option<Diagnosis>,
}

/// Runs until the process ends. Attempts go on without it. After a message on `shutdown` the portal is told about the
/// shutdown of the host, and this returns when the portal has taken all attempts back or is out of reach.
pub async fn run(
    host: Host,
    node: NodeDescription,
    telemetry: Arc<Telemetry>,
    gateways: Option<ReplicaListener>,
    mut session: mpsc::Receiver<SessionEvent>,
    mut shutdown: oneshot::Receiver<()>,
) -> Result<(), String> {
    let (mut daemon, mut results) = Daemon::new(host, node, telemetry)?;
    daemon.table.adopt_all()?;
    if let Some(listener) = gateways {
        tokio::spawn(listener.serve(daemon.replicas.clone()));
    }
    spawn_event_listener(&daemon.host, daemon.results.clone());
    let (host, examined) = (&daemon.host, daemon.results.clone());
    let data = host.root.parent().unwrap_or(&host.root).to_owned();
    let mounts = host.mounts.directories();
    let refusal = host.cgroups.device_filter_refusal().map(str::to_owned);
    berth_doctor::watch(data, host.gpus.clone(), host.simulated, mounts, refusal, move |diagnosis| {
        examined.send(StepResult::Examined(diagnosis)).is_ok()
    });
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let report_at = daemon.next_report();
        tokio::select! {
            event = session.recv() => match event {
                None => return Ok(()),
                Some(event) => daemon.on_session_event(event),
            },
            changed = daemon.table.watch.changed() => {
                for (key, only_log) in changed.map_err(|e| e.to_string())? {
                    daemon.table.on_file_change(&key, only_log);
                }
            }
            Some(result) = results.recv() => daemon.on_result(result),
            _ = tick.tick() => daemon.tick(),
            begun = &mut shutdown, if !shutdown.is_terminated() => if begun.is_ok() { daemon.begin_shutdown() },
            () = wait_until(report_at) => {}
        }
        // Waiting events are handled before a decision, which looks at every attempt.
        let began = Instant::now();
        for _ in 0..AT_ONCE {
            let Ok(event) = session.try_recv() else { break };
            daemon.on_session_event(event);
        }
        for _ in 0..AT_ONCE {
            let Ok(result) = results.try_recv() else { break };
            daemon.on_result(result);
        }
        if daemon.table.changed {
            daemon.converge();
        }
        daemon.hand_over_outputs();
        daemon.report(Instant::now());
        daemon.report_health();
        if daemon.shutdown.is_over(daemon.table.attempts.is_empty(), Instant::now()) {
            return Ok(());
        }
        tokio::time::sleep_until(began + PACE).await;
    }
}

/// Opens connections to the attempt in this directory.
fn dial_into(dir: &Path) -> Dial {
    let dialer = Arc::new(AttemptDialer::new(dir));
    Arc::new(move |port| -> Dialing {
        let dialer = dialer.clone();
        Box::pin(async move { dialer.dial(port).await })
    })
}

impl Daemon {
    pub(super) fn new(
        host: Host,
        node: NodeDescription,
        telemetry: Arc<Telemetry>,
    ) -> Result<(Self, mpsc::UnboundedReceiver<StepResult>), String> {
        let (sender, results) = mpsc::unbounded_channel();
        let host = Arc::new(host);
        let changes = sender.clone();
        let replicas = Replicas::new(move |key, ready| {
            let _ = changes.send(StepResult::Readiness(key.clone(), ready));
        });
        let daemon = Self {
            table: AttemptTable::new(host.clone(), sender.clone())?,
            outbox: None,
            handshake: Handshake::default(),
            boards: BoardMonitor::open(&host),
            tunnels: Tunnels::default(),
            replicas,
            shutdown: HostShutdown::default(),
            sampling: false,
            diagnosis: None,
            results: sender,
            host,
            node,
            telemetry,
        };
        Ok((daemon, results))
    }

    pub(super) fn on_session_event(&mut self, event: SessionEvent) {
        match event {
            SessionEvent::Open(outbox, claim) => self.on_session_open(outbox, claim),
            SessionEvent::Closed => {
                self.handshake.close();
                self.outbox = None;
                self.table.logs.end_session();
            }
            SessionEvent::Message(PortalMessage {
                body: Some(portal_message::Body::DesiredState(desired)),
            }) => {
                self.boards.start_tasks(&desired.tasks, &self.host, &self.results);
                self.table.set_desired(desired.attempts);
            }
            SessionEvent::Message(PortalMessage { body: Some(portal_message::Body::StatusAck(ack)) }) => {
                self.table.reports.acknowledge(ack.seq);
            }
            SessionEvent::Message(PortalMessage { body: Some(portal_message::Body::HeartbeatAck(ack)) }) => {
                self.table.renewals.acknowledge(ack.seq, boottime_ms());
                // Attempts may wait for a lease.
                self.table.changed = true;
            }
            SessionEvent::Message(PortalMessage {
                body: Some(portal_message::Body::OpenTunnel(request)),
            }) => self.open_tunnel(request),
            // The session has answered a probe.
            SessionEvent::Message(PortalMessage { body: Some(portal_message::Body::Probe(_)) | None }) => {}
        }
    }

    /// Begins the handshake of a session. Until the portal has sent the desired attempts nothing begins, so the
    /// listing is still right at the hello.
    fn on_session_open(&mut self, outbox: Outbox, claim: SessionClaim) {
        self.outbox = None;
        self.table.start_session();
        let connection = claim.connection;
        self.handshake.wait(outbox, claim);
        if !self.handshake.is_listing() {
            self.list_boards(connection);
        }
    }

    fn list_boards(&mut self, connection: i64) {
        let ours = own_slices(&self.table.attempts);
        self.handshake.start_listing(&self.host, &self.results, ours, connection);
    }

    /// Sends the hello of the waiting session, and the messages after a hello.
    fn on_boards_listed(&mut self, listing: BoardListing) {
        let BoardListing { connection, listed, mut ours } = listing;
        let (outbox, claim) = match self.handshake.finish_listing(connection) {
            ListingOutcome::Ready(outbox, claim) => (outbox, claim),
            ListingOutcome::Repeat(connection) => return self.list_boards(connection),
            ListingOutcome::Unneeded => return,
        };
        ours.extend(own_slices(&self.table.attempts));
        self.handshake.note_boards(&listed, Instant::now());
        let hello = Hello {
            instance: claim.instance,
            epoch: claim.epoch,
            connection: claim.connection,
            shutting_down: self.shutdown.is_under_way(),
            ..hello(&self.host, &self.node, &self.table.attempts, listed, &ours)
        };
        // A session that ended meanwhile is followed by a `Closed`.
        let _ = outbox.control.send(worker_message::Body::Hello(hello).into());
        self.boards.start_session();
        self.table.logs.start_session(outbox.bulk.clone());
        self.outbox = Some(outbox);
        self.send_heartbeat();
        if let Some(diagnosis) = &self.diagnosis {
            self.send(worker_message::Body::Diagnosis(diagnosis.clone()));
        }
        for key in self.table.attempts.keys() {
            self.table.reports.mark_unknown(key);
        }
    }

    /// Ends the session if a board answers that its hello missed, or had only as it was: its slices may be others
    /// now.
    fn end_outdated_session(&mut self, conditions: &[(String, BoardCondition)]) {
        if self.outbox.is_some() && self.handshake.is_outdated(conditions, Instant::now()) {
            tracing::info!("a board answers again; a new session starts");
            // The session ends with its outbox; attempts go on.
            self.outbox = None;
            self.table.logs.end_session();
        }
    }

    /// Opens the tunnel that the portal waits for.
    fn open_tunnel(&self, request: OpenTunnel) {
        let (Some(outbox), Some(id)) = (&self.outbox, &request.attempt) else { return };
        let running = |attempt: &&Attempt| matches!(attempt.state(), AttemptState::Running { .. });
        let attempt = self.table.attempts.get(&AttemptKey::from(id)).filter(running);
        let dir = attempt.map(|attempt| attempt.dir.clone());
        self.tunnels.open(request, PortalClient::new(outbox.portal.clone()), dir);
    }

    pub(super) fn on_result(&mut self, result: StepResult) {
        self.table.changed |= !matches!(
            result,
            StepResult::Progress(..)
                | StepResult::Readiness(..)
                | StepResult::Sampled(_)
                | StepResult::BoardsListed(_)
                | StepResult::Board(_)
                | StepResult::Examined(_)
        );
        match result {
            StepResult::Recorded(key, result) => self.table.on_recorded(key, result),
            StepResult::Prepared(attempt) => self.table.on_prepared(*attempt),
            StepResult::Progress(key, text) => self.table.on_progress(key, text),
            StepResult::ShimGone(key) => self.table.on_shim_gone(key),
            StepResult::Readiness(key, ready) => self.on_readiness(&key, ready),
            StepResult::Cleaned(key, result) => self.table.on_cleaned(key, result),
            StepResult::Board(result) => self.on_board_result(result),
            StepResult::BoardsListed(listing) => self.on_boards_listed(listing),
            StepResult::OutputsHandedOver(key, over, result) => {
                self.table.on_outputs_handed_over(&key, over, &result);
            }
            StepResult::FilesRemoved(key) => {
                self.table.outputs.removing.remove(&key);
            }
            StepResult::Forgotten(key, result) => self.table.on_forgotten(&key, result),
            StepResult::Sampled(sample) => self.on_sample(sample),
            StepResult::Examined(diagnosis) => self.on_examined(diagnosis),
        }
    }

    /// Reports a change of the readiness of a replica.
    fn on_readiness(&mut self, key: &AttemptKey, ready: bool) {
        if let Some(attempt) = self.table.attempts.get_mut(key) {
            attempt.ready = ready;
            self.table.reports.mark(key);
        }
    }

    fn on_sample(&mut self, sample: HostSample) {
        self.sampling = false;
        for (key, at_ms, observation) in sample.observations {
            if let Some(attempt) = self.table.attempts.get_mut(&key) {
                attempt.observe_devices(at_ms, observation);
            }
        }
        self.send(worker_message::Body::Samples(sample.samples));
    }

    /// Keeps the checks of the host for later sessions, and sends them to a present one.
    fn on_examined(&mut self, diagnosis: Diagnosis) {
        self.send(worker_message::Body::Diagnosis(diagnosis.clone()));
        self.diagnosis = Some(diagnosis);
    }

    fn on_board_result(&mut self, result: BoardResult) {
        let marked = match result {
            BoardResult::Event(event) => self.boards.on_event(&event, &self.table.attempts),
            BoardResult::Conditions(mut conditions, logged) => {
                self.boards.finish_read(&mut conditions);
                self.end_outdated_session(&conditions);
                self.boards.on_conditions(conditions, logged, &self.table.attempts)
            }
            BoardResult::TasksDone(ended) => {
                let requested = self.boards.on_tasks_done(ended);
                self.boards.start_tasks(&requested, &self.host, &self.results);
                false
            }
        };
        if marked {
            self.stop_failed_attempts();
        }
    }

    fn stop_failed_attempts(&mut self) {
        let table = &mut self.table;
        self.boards.stop_failed(&mut table.attempts, &table.busy, &mut table.reports);
    }

    pub(super) fn tick(&mut self) {
        // Failed steps are tried again.
        self.table.changed = true;
        self.stop_failed_attempts();
        self.boards.start_read_if_due(&self.host, &self.results);
        let now = Instant::now();
        if self.outbox.is_some() {
            self.shutdown.note_session(now);
            self.send_heartbeat();
        }
        self.table.observe(now);
        let runs = |attempt: &&Attempt| matches!(attempt.state(), AttemptState::Running { .. });
        let running: Vec<Attempt> = self.table.attempts.values().filter(runs).cloned().collect();
        // Running attempts are observed without a session too, for their evidence.
        let needed = self.outbox.is_some() || !running.is_empty() || self.telemetry.served;
        if !self.sampling && needed {
            self.sampling = true;
            let (host, telemetry) = (self.host.clone(), self.telemetry.clone());
            let results = self.results.clone();
            tokio::task::spawn_blocking(move || {
                let _ = results.send(StepResult::Sampled(sample(&host, &telemetry, &running)));
            });
        }
    }

    /// Decides and carries out the next effects.
    pub(super) fn converge(&mut self) {
        let present = self.table.idle_states();
        self.tunnels.retain(|key| matches!(present.get(key), Some(AttemptState::Running { .. })));
        self.table.converge(&present, self.outbox.as_ref().map(|outbox| &outbox.portal));
        self.serve_replicas();
    }

    /// Serves the replicas among the running attempts, also those of an earlier daemon.
    fn serve_replicas(&self) {
        let attempts = &self.table.attempts;
        let runs = |attempt: &Attempt| matches!(attempt.state(), AttemptState::Running { .. });
        self.replicas.retain(|key| attempts.get(key).is_some_and(runs));
        for (key, attempt) in attempts.iter().filter(|(_, attempt)| runs(attempt)) {
            if let Some(settings) = &attempt.record.replica {
                self.replicas.serve(key, settings, || dial_into(&attempt.dir));
            }
        }
    }

    fn hand_over_outputs(&mut self) {
        if let Some(outbox) = &self.outbox {
            self.table.hand_over_outputs(outbox);
        }
    }

    /// The time of the next report.
    pub(super) fn next_report(&self) -> Option<Instant> {
        self.outbox.as_ref()?;
        self.table.reports.next(&self.table.attempts, &self.table.unrecorded)
    }

    /// Sends the due reports of attempts.
    pub(super) fn report(&mut self, now: Instant) {
        if let Some(outbox) = &self.outbox {
            let table = &mut self.table;
            table.reports.send_due(now, &table.attempts, &table.unrecorded, outbox);
        }
    }

    fn report_health(&mut self) {
        if self.outbox.is_some()
            && let Some(health) = self.boards.next_report()
        {
            self.send(worker_message::Body::Health(health));
        }
    }

    fn send_heartbeat(&mut self) {
        let shutting_down = self.shutdown.is_under_way();
        let heartbeat = Heartbeat { shutting_down, ..self.table.renewals.next_heartbeat(boottime_ms()) };
        self.send(worker_message::Body::Heartbeat(heartbeat));
    }

    fn send(&self, body: worker_message::Body) {
        if let Some(outbox) = &self.outbox {
            // A session that has just ended is followed by a `Closed`.
            let _ = outbox.control.send(WorkerMessage::from(body));
        }
    }

    fn begin_shutdown(&mut self) {
        tracing::warn!(attempts = self.table.attempts.len(), "the host is shutting down");
        self.shutdown.begin(Instant::now());
        if self.outbox.is_some() {
            self.send_heartbeat();
        }
    }
}
