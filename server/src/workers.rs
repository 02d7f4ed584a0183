//! The gRPC side: workers join and hold their sessions here.
//!
//! Carries messages between a worker and the parts of the portal; decides nothing. Which node speaks, its certificate
//! says and nothing else.

mod door;
mod parcels;
mod streams;
mod told;
mod words;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::time::Duration;

use berth_mig::board_by_name;
use berth_proto as proto;
use berth_proto::portal_server::{Portal as Contract, PortalServer};
use berth_types::ids::{JobId, NodeId};
use berth_types::problems::Problem;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use tower::util::MapRequestLayer;

use berth_foundation::Change;

use crate::portal::Portal;
use crate::tls::{self, Peer};
use berth_access::tunnels::Tunnel;
use berth_fleet::enrolment::{Certified, Credential};
use berth_store::nodes::{GpuReport, NodeReport};
use told::{isolation, node_labels};

/// A worker that says nothing for this long is out of reach.
const SILENCE: Duration = Duration::from_secs(10);
/// A worker that takes nothing of what it is told for so long is out of reach, even if it still speaks.
const UNREAD: Duration = Duration::from_secs(60);
/// Bytes of jobs' files in one message; more than any one job may have, less than a message may.
const SPECS: usize = 16 << 20;
/// Between two looks at what is desired, at least and at most: what changes meanwhile is told together.
const PACE: Duration = Duration::from_millis(50);
const PACE_MOST: Duration = Duration::from_millis(250);
/// What is desired is looked at again at least this often.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Serves workers on `listen` until `stopped` resolves.
pub async fn serve(
    portal: Portal,
    listener: tokio::net::TcpListener,
    stopped: impl Future<Output = ()>,
) -> Result<(), String> {
    let at = listener.local_addr().map_err(|e| format!("worker port: {e}"))?;
    let incoming = tls::listen(listener, tls::config(&portal, at.ip())?);
    let service = PortalServer::new(Workers(portal))
        .max_decoding_message_size(proto::MESSAGE_LIMIT)
        .max_encoding_message_size(proto::MESSAGE_LIMIT);
    tonic::transport::Server::builder()
        .tcp_nodelay(true)
        .initial_stream_window_size(Some(8 << 20))
        .initial_connection_window_size(Some(16 << 20))
        .http2_keepalive_interval(Some(Duration::from_secs(3)))
        .http2_keepalive_timeout(Some(Duration::from_secs(5)))
        .layer(MapRequestLayer::new(door::few_bytes_of_strangers))
        .add_service(service)
        .serve_with_incoming_shutdown(incoming, stopped)
        .await
        .map_err(|e| format!("worker port: {e}"))
}

struct Workers(Portal);

impl Workers {
    /// Who calls, as the connection's certificate proves.
    async fn caller(&self, extensions: &tonic::Extensions) -> Result<Credential, Status> {
        let Some(certificate) = extensions.get::<Peer>().and_then(Peer::certificate) else {
            return Err(Status::unauthenticated(
                "Only a worker with a certificate of this portal may call this.",
            ));
        };
        match self.0.enrolment.identify(certificate).await {
            Ok(Ok(credential)) => Ok(credential),
            Ok(Err(why)) => Err(Status::permission_denied(why)),
            Err(_) => Err(unavailable()),
        }
    }
}

fn unavailable() -> Status {
    Status::unavailable("the portal cannot answer now; try again")
}

/// The answer to a request for a certificate.
fn answer(certified: Result<Certified, Problem>) -> Result<Response<proto::Certificate>, Status> {
    match certified {
        Ok(Certified { node, chain, lifetime_s }) => {
            Ok(Response::new(proto::Certificate { node: node.to_string(), chain, lifetime_s }))
        }
        Err(problem) if problem.status < 500 => {
            let why = problem.errors.first().map_or(&problem.detail, |e| &e.detail);
            Err(Status::permission_denied(why))
        }
        Err(_) => Err(unavailable()),
    }
}

#[tonic::async_trait]
impl Contract for Workers {
    async fn join(
        &self,
        request: Request<proto::JoinRequest>,
    ) -> Result<Response<proto::Certificate>, Status> {
        let proto::JoinRequest { token, name, csr, node } = request.into_inner();
        let former = Some(node.as_str()).filter(|node| !node.is_empty());
        answer(self.0.enrolment.join(&token, &name, &csr, former).await)
    }

    async fn renew(
        &self,
        request: Request<proto::RenewRequest>,
    ) -> Result<Response<proto::Certificate>, Status> {
        let credential = self.caller(request.extensions()).await?;
        answer(self.0.enrolment.renew(&credential, &request.into_inner().csr).await)
    }

    async fn keep(&self, request: Request<proto::Piece>) -> Result<Response<proto::Kept>, Status> {
        let node = self.caller(request.extensions()).await?.node;
        parcels::keep(&self.0, node, request.into_inner()).await
    }

    async fn keep_many(
        &self,
        request: Request<proto::Bundle>,
    ) -> Result<Response<proto::BundleKept>, Status> {
        let node = self.caller(request.extensions()).await?.node;
        parcels::keep_many(&self.0, node, request.into_inner()).await
    }

    async fn fetch(&self, request: Request<proto::Wish>) -> Result<Response<proto::Part>, Status> {
        let node = self.caller(request.extensions()).await?.node;
        parcels::fetch(&self.0, node, request.into_inner()).await
    }

    type TunnelStream = ReceiverStream<Result<proto::Frame, Status>>;

    async fn tunnel(
        &self,
        request: Request<Streaming<proto::Frame>>,
    ) -> Result<Response<Self::TunnelStream>, Status> {
        let credential = self.caller(request.extensions()).await?;
        let token = request.metadata().get(proto::TUNNEL_TOKEN).and_then(|v| v.to_str().ok());
        let token = token.unwrap_or_default().to_owned();
        let (tunnel, replies) = Tunnel::new(request.into_inner());
        if self.0.tunnels.hand_over(credential.node, &token, tunnel) {
            Ok(Response::new(ReceiverStream::new(replies)))
        } else {
            Err(Status::not_found("Nobody waits for this tunnel."))
        }
    }

    type SessionStream = ReceiverStream<Result<proto::Down, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<proto::Up>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let credential = self.caller(request.extensions()).await?;
        let (down, replies) = mpsc::channel(64);
        let session = Session {
            portal: self.0.clone(),
            node: credential.node,
            credential,
            down,
            probe: 0,
            asked: Vec::new(),
            logs: HashMap::new(),
            ends: HashMap::new(),
            mine: HashMap::new(),
            offered: HashSet::new(),
            boards: HashSet::new(),
            leaves: false,
            untimely: false,
            sent: None,
        };
        let node = session.node;
        tokio::spawn(async move {
            if let Err(why) = session.run(request.into_inner()).await {
                tracing::info!(%node, why, "a worker's session ended");
            }
        });
        Ok(Response::new(ReceiverStream::new(replies)))
    }
}

struct Session {
    portal: Portal,
    node: NodeId,
    credential: Credential,
    down: mpsc::Sender<Result<proto::Down, Status>>,
    /// The last sign of life that was asked for, and who waits for it.
    probe: u64,
    asked: Vec<oneshot::Sender<()>>,
    /// Logs that are being written, with their length.
    logs: HashMap<(JobId, u32, u32), (File, u64)>,
    /// How long the logs of ended attempts are, as this session was told.
    ends: HashMap<(JobId, u32), u64>,
    /// Attempts that are known to be this node's, with its rank.
    mine: HashMap<(JobId, u32), u32>,
    /// Attempts that the worker has, or was sent: leaving one of them out would end it.
    offered: HashSet<(JobId, u32)>,
    /// Its boards: it speaks of no other.
    boards: HashSet<String>,
    /// It has said that its host is being shut down.
    leaves: bool,
    /// Its last readings were of a time that is not the portal's.
    untimely: bool,
    /// What was last sent as desired, without secrets, and without the places in logs, which move by
    /// themselves.
    sent: Option<proto::Desired>,
}

/// How long it is until the next look after one that took so long. Looks at a node with much on it take a
/// fifth of a processor, unless news would come too late then.
fn pause_after(look: Duration) -> Duration {
    look.saturating_mul(4).clamp(PACE, PACE_MOST)
}

/// What of an assignment is not compared with what was sent before: the place in its log, which moves by
/// itself, and secrets, which are not kept here.
struct Aside {
    log_from: u64,
    secrets: Vec<proto::Secret>,
    registry_auth: Option<proto::RegistryAuth>,
}

impl Aside {
    fn take(assignment: &mut proto::Assignment) -> Self {
        let log_from = std::mem::take(&mut assignment.log_from);
        let (secrets, registry_auth) = match &mut assignment.spec {
            Some(spec) => (std::mem::take(&mut spec.secrets), spec.registry_auth.take()),
            None => (Vec::new(), None),
        };
        Self { log_from, secrets, registry_auth }
    }

    /// The names of its secrets.
    fn names(&self) -> impl Iterator<Item = &str> {
        let auth = self.registry_auth.iter().map(|auth| auth.secret.as_str());
        self.secrets.iter().map(|secret| secret.name.as_str()).chain(auth)
    }

    fn put_back(self, assignment: &mut proto::Assignment) {
        assignment.log_from = self.log_from;
        if let Some(spec) = &mut assignment.spec {
            (spec.secrets, spec.registry_auth) = (self.secrets, self.registry_auth);
        }
    }
}

fn attempt(id: Option<&proto::AttemptId>) -> Option<(JobId, u32)> {
    id.and_then(|id| Some((id.job.parse().ok()?, id.number)))
}

impl Session {
    async fn run(mut self, mut up: Streaming<proto::Up>) -> Result<(), String> {
        let first = tokio::time::timeout(SILENCE, up.message()).await.map_err(|_| "no hello")?;
        let Some(proto::Up { what: Some(proto::up::What::Hello(hello)) }) =
            first.map_err(|s| s.to_string())?
        else {
            return Err("the first message was no hello".to_owned());
        };
        self.enter(&hello, &mut up).await?;
        let _held = self.portal.leases.hold(self.node).ok_or("its work is being taken; it may come again")?;
        let (leased, leaving) = (hello.leases, hello.leaving);
        self.greet(hello).await?;
        self.portal.lost_nodes.node_returned(self.node, leased, leaving).await.map_err(|e| e.to_string())?;
        let live = self.portal.context.live.clone();
        let guard = live.open_session(self.node);
        // Revoked meanwhile, when there was no session yet that could be ended.
        self.still_good().await?;
        tracing::info!(node = %self.node, "a worker is connected");
        self.portal.context.publish(Change::Boards);
        let result = self.converse(&guard, &mut up).await;
        drop(guard);
        self.portal.context.publish(Change::Boards);
        // Nobody may hold this up: it only records when the node was last heard.
        let _ = self.portal.nodes.note_seen(self.node).await;
        result
    }

    async fn greet(&mut self, hello: proto::Hello) -> Result<(), String> {
        let board = |b: proto::Board| {
            let Some(known) = board_by_name(&b.name) else {
                tracing::warn!(node = %self.node, name = b.name, "a board of an unknown model is left alone");
                return None;
            };
            let foreign: Vec<(u32, u32)> = b.foreign.iter().map(|i| (i.profile_id, i.start)).collect();
            Some(GpuReport {
                uuid: b.uuid,
                index: i64::from(b.index),
                model: known.model.clone(),
                memory_mib: i64::try_from(b.memory_mib).unwrap_or(i64::MAX),
                mig_enabled: b.mig_enabled,
                nvlink_island: i64::from(b.nvlink_island),
                foreign_instances: serde_json::to_string(&foreign).unwrap_or_default(),
            })
        };
        self.offered = hello.attempts.iter().filter_map(|id| attempt(Some(id))).collect();
        let report = NodeReport {
            simulated: hello.simulated,
            unisolated: hello.unisolated,
            cpu_milli: i64::try_from(hello.cpu_milli).unwrap_or(i64::MAX),
            memory_mib: i64::try_from(hello.memory_mib).unwrap_or(i64::MAX),
            address: hello.address,
            labels: node_labels(hello.labels),
            isolation: isolation(hello.isolation),
            images: hello.runs_images,
            driver_version: hello.driver_version,
            worker_version: hello.worker_version,
            boards: hello.boards.into_iter().filter_map(board).collect(),
        };
        self.portal.nodes.report_node(self.node, report).await.map_err(|e| e.to_string())?;
        self.boards = self.portal.health.own_boards(self.node).await.map_err(|e| e.to_string())?;
        Ok(())
    }

    async fn converse(
        &mut self,
        guard: &berth_foundation::live::SessionGuard,
        up: &mut Streaming<proto::Up>,
    ) -> Result<(), String> {
        let mut look = tokio::time::interval(LOOK_EVERY);
        let mut silent = tokio::time::interval(SILENCE / 2);
        let mut heard = tokio::time::Instant::now();
        // When what is desired is looked at next, if somebody waits for that; and not before.
        let (mut due, mut not_before) = (Some(heard), heard);
        loop {
            tokio::select! {
                // A newer session comes first: two must not write.
                biased;
                () = guard.wake.notified() => {
                    if !guard.current() {
                        return Err("a newer session took over, or it was closed".to_owned());
                    }
                    for dial in guard.dials() {
                        self.say(proto::down::What::Dial(dial)).await?;
                    }
                    self.ask(guard).await?;
                    due = due.or(Some(not_before));
                }
                () = tokio::time::sleep_until(due.unwrap_or(not_before)), if due.is_some() => {
                    due = None;
                    let began = tokio::time::Instant::now();
                    self.send_desired().await?;
                    not_before = tokio::time::Instant::now() + pause_after(began.elapsed());
                }
                _ = look.tick() => {
                    self.still_good().await?;
                    due = due.or(Some(not_before));
                    self.portal.nodes.note_seen(self.node).await.map_err(|e| e.to_string())?;
                }
                _ = silent.tick() => {
                    if heard.elapsed() > SILENCE {
                        return Err("the worker is silent".to_owned());
                    }
                }
                message = up.message() => match message.map_err(|s| s.message().to_owned())? {
                    None => return Ok(()),
                    Some(message) => {
                        heard = tokio::time::Instant::now();
                        if self.hear_ready(message, up, guard).await? {
                            return Ok(());
                        }
                    }
                },
            }
        }
    }

    async fn say(&self, what: proto::down::What) -> Result<(), String> {
        let told = tokio::time::timeout(UNREAD, self.down.send(Ok(what.into()))).await;
        told.map_err(|_| "the worker takes nothing")?.map_err(|_| "the worker is gone".to_owned())
    }

    async fn send_desired(&mut self) -> Result<(), String> {
        let mut desired = self.portal.attempts.desired(self.node).await.map_err(|e| e.to_string())?;
        desired.tasks = self.portal.health.board_tasks(self.node).await.map_err(|e| e.to_string())?;
        let keys: HashSet<_> = desired.attempts.iter().filter_map(|a| attempt(a.attempt.as_ref())).collect();
        self.logs.retain(|(job, number, _), _| keys.contains(&(*job, *number)));
        self.ends.retain(|key, _| keys.contains(key));
        self.mine.retain(|key, _| keys.contains(key));
        self.ration(&mut desired);
        let aside: Vec<Aside> = desired.attempts.iter_mut().map(Aside::take).collect();
        if self.sent.as_ref() == Some(&desired) {
            return Ok(());
        }
        let compared = desired.clone();
        let mut given = Vec::new();
        for (assignment, aside) in desired.attempts.iter_mut().zip(aside) {
            let job = assignment.attempt.as_ref().map_or("", |id| id.job.as_str());
            given.extend(aside.names().map(|name| (job.to_owned(), name.to_owned())));
            aside.put_back(assignment);
        }
        self.say(proto::down::What::Desired(desired)).await?;
        self.sent = Some(compared);
        self.portal.secrets.secrets_given(given).await;
        Ok(())
    }

    /// Leaves out what the worker has never heard of and what would make the message too large; it
    /// follows when the worker has taken the rest.
    fn ration(&mut self, desired: &mut proto::Desired) {
        let size = |a: &proto::Assignment| a.spec.as_ref().map_or(0, proto::Message::encoded_len);
        let known = |offered: &HashSet<_>, a: &proto::Assignment| {
            attempt(a.attempt.as_ref()).is_some_and(|key| offered.contains(&key))
        };
        let mut left = SPECS.saturating_sub(
            desired.attempts.iter().filter(|a| known(&self.offered, a)).map(size).sum::<usize>(),
        );
        desired.attempts.retain(|a| {
            if known(&self.offered, a) {
                return true;
            }
            let Some(rest) = left.checked_sub(size(a)) else { return false };
            left = rest;
            self.offered.extend(attempt(a.attempt.as_ref()));
            true
        });
    }

    async fn hear(&mut self, message: proto::Up) -> Result<(), String> {
        match message.what {
            Some(proto::up::What::Status(status)) => self.apply(vec![status]).await,
            Some(proto::up::What::Log(log)) => self.keep_log(log).await,
            Some(proto::up::What::Samples(samples)) => self.keep_samples(samples).await,
            Some(proto::up::What::Health(health)) => {
                self.portal.health.apply_health(self.node, health).await.map_err(|e| e.to_string())
            }
            Some(proto::up::What::Probe(probe)) => {
                self.answered(&probe);
                Ok(())
            }
            // Older workers do not count them, and need no answer.
            Some(proto::up::What::Heartbeat(beat)) if beat.seq > 0 => {
                self.portal.leases.renew(self.node, self.portal.context.monotonic_ms());
                if beat.leaving && !std::mem::replace(&mut self.leaves, true) {
                    self.portal.drains.node_leaves(self.node).await.map_err(|e| e.to_string())?;
                }
                self.say(proto::down::What::Renewed(proto::Renewed { seq: beat.seq })).await
            }
            Some(proto::up::What::Heartbeat(_) | proto::up::What::Hello(_)) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_that_take_long_come_less_often() {
        let ms = Duration::from_millis;
        for (look, pause) in
            [(0, 50), (1, 50), (12, 50), (13, 52), (20, 80), (62, 248), (63, 250), (9_000, 250)]
        {
            assert_eq!(pause_after(ms(look)), ms(pause), "{look}");
        }
    }

    #[test]
    fn secrets_and_places_in_logs_are_put_aside_and_back() {
        let secret = proto::Secret { name: "token".to_owned(), value: "1".to_owned(), ..Default::default() };
        let auth = proto::RegistryAuth { secret: "login".to_owned(), ..Default::default() };
        let spec = proto::Spec {
            secrets: vec![secret],
            registry_auth: Some(auth),
            memory_mib: 5,
            ..proto::Spec::default()
        };
        let whole = proto::Assignment { log_from: 7, stop: true, spec: Some(spec), ..Default::default() };
        let mut assignment = whole.clone();
        let aside = Aside::take(&mut assignment);
        let spec = proto::Spec { memory_mib: 5, ..proto::Spec::default() };
        assert_eq!(
            assignment,
            proto::Assignment { stop: true, spec: Some(spec), ..proto::Assignment::default() }
        );
        assert_eq!(aside.names().collect::<Vec<_>>(), ["token", "login"]);
        aside.put_back(&mut assignment);
        assert!(assignment == whole);

        let known = proto::Assignment { log_from: 7, ..proto::Assignment::default() };
        let mut assignment = known.clone();
        let aside = Aside::take(&mut assignment);
        assert_eq!((assignment.log_from, aside.names().count()), (0, 0));
        aside.put_back(&mut assignment);
        assert_eq!(assignment, known);
    }
}
