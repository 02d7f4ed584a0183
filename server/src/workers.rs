//! The gRPC service for workers: enrolment, sessions, tunnels and files.
//!
//! Carries messages between a worker and the parts of the portal; decides nothing. Only the certificate of a
//! connection identifies its node.

mod admission;
mod assignments;
mod file_transfer;
mod intake;
mod reports;
mod sanitize;
mod status_batch;
mod tunnel;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use berth_mig::model_by_name;
use berth_proto as proto;
use berth_proto::portal_server::{Portal as Contract, PortalServer};
use berth_proto::{portal_message, worker_message};
use berth_types::gangs::GANG_PORTS;
use berth_types::ids::{JobId, NodeId};
use berth_types::problems::Problem;
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use tower::util::MapRequestLayer;

use berth_foundation::Change;

use crate::portal::Portal;
use crate::tls::{self, Peer};
use assignments::{UncomparedFields, to_desired};
use berth_access::tunnels::Tunnel;
use berth_fleet::enrolment::{Credential, CredentialError, NodeCertificate};
use berth_jobs::OpenRank;
use berth_recordings::LogFile;
use berth_store::gangs::GangPorts;
use berth_store::nodes::{GpuReport, NodeReport};
use berth_store::types::JsonColumn;
use reports::{board_reports, clean_line, findings};
use sanitize::{check_boards, rdma_ports, short_host_mounts, short_isolation, short_labels};

/// The time without a worker's message after which its session ends.
const SILENCE: Duration = Duration::from_secs(10);
/// The time without a read by a worker after which its session ends, even if the worker still sends.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);
/// The most bytes of specifications in one message: one specification always fits, and the total stays below
/// the message limit of gRPC.
const SPEC_LIMIT: usize = 16 << 20;
/// Limits of the pause between two reads of the desired state. Changes of that time go out in one message.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// The desired state is read again at least this often.
const READ_EVERY: Duration = Duration::from_secs(5);

/// Serves workers on `listener` until `stopped` resolves.
pub async fn serve(
    portal: Portal,
    listener: tokio::net::TcpListener,
    stopped: impl Future<Output = ()>,
) -> Result<(), String> {
    let at = listener.local_addr().map_err(|e| format!("worker port: {e}"))?;
    let (incoming, accepting) = tls::listen(listener, tls::config(&portal, at.ip())?);
    portal.loops.supervise("worker listener", accepting);
    let service = PortalServer::new(Workers(portal))
        .max_decoding_message_size(berth_contract::MESSAGE_LIMIT)
        .max_encoding_message_size(berth_contract::MESSAGE_LIMIT);
    tonic::transport::Server::builder()
        .tcp_nodelay(true)
        .initial_stream_window_size(Some(8 << 20))
        .initial_connection_window_size(Some(16 << 20))
        .http2_keepalive_interval(Some(Duration::from_secs(3)))
        .http2_keepalive_timeout(Some(Duration::from_secs(5)))
        .layer(MapRequestLayer::new(admission::limit_anonymous_body))
        .add_service(service)
        .serve_with_incoming_shutdown(incoming, stopped)
        .await
        .map_err(|e| format!("worker port: {e}"))
}

struct Workers(Portal);

impl Workers {
    /// The credential of the caller, as its certificate proves it.
    async fn caller(&self, extensions: &tonic::Extensions) -> Result<Credential, Status> {
        let Some(certificate) = extensions.get::<Peer>().and_then(Peer::certificate) else {
            return Err(Status::unauthenticated("This call needs a worker certificate of this portal."));
        };
        match self.0.enrolment.identify(certificate).await {
            Ok(credential) => Ok(credential),
            Err(CredentialError::Refused(why)) => Err(Status::permission_denied(why)),
            Err(CredentialError::Store(_)) => Err(unavailable()),
        }
    }
}

fn unavailable() -> Status {
    Status::unavailable("the portal cannot answer now; try again")
}

/// The answer to a request for a certificate.
fn to_response(certified: Result<NodeCertificate, Problem>) -> Result<Response<proto::Certificate>, Status> {
    match certified {
        Ok(NodeCertificate { node, chain, lifetime_s }) => {
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
        to_response(self.0.enrolment.join(&token, &name, &csr, former).await)
    }

    async fn renew(
        &self,
        request: Request<proto::RenewRequest>,
    ) -> Result<Response<proto::Certificate>, Status> {
        let credential = self.caller(request.extensions()).await?;
        to_response(self.0.enrolment.renew(&credential, &request.into_inner().csr).await)
    }

    async fn upload(
        &self,
        request: Request<proto::UploadChunk>,
    ) -> Result<Response<proto::UploadProgress>, Status> {
        let node = self.caller(request.extensions()).await?.node;
        file_transfer::upload(&self.0, node, request.into_inner()).await
    }

    async fn upload_batch(
        &self,
        request: Request<proto::UploadBatchRequest>,
    ) -> Result<Response<proto::UploadBatchResult>, Status> {
        let node = self.caller(request.extensions()).await?.node;
        file_transfer::upload_batch(&self.0, node, request.into_inner()).await
    }

    async fn fetch(
        &self,
        request: Request<proto::FetchRequest>,
    ) -> Result<Response<proto::FetchResponse>, Status> {
        let node = self.caller(request.extensions()).await?.node;
        file_transfer::fetch(&self.0, node, request.into_inner()).await
    }

    type TunnelStream = BoxStream<'static, Result<proto::Frame, Status>>;

    async fn tunnel(
        &self,
        request: Request<Streaming<proto::Frame>>,
    ) -> Result<Response<Self::TunnelStream>, Status> {
        let credential = self.caller(request.extensions()).await?;
        let token = request.metadata().get(berth_contract::TUNNEL_TOKEN).and_then(|v| v.to_str().ok());
        let token = token.unwrap_or_default().to_owned();
        let (tunnel, replies) = Tunnel::new(tunnel::worker_frames(request.into_inner()));
        if self.0.tunnels.deliver(credential.node, &token, tunnel) {
            let replies = ReceiverStream::new(replies).map(|frame| Ok(tunnel::portal_frame(frame)));
            Ok(Response::new(Box::pin(replies)))
        } else {
            Err(Status::not_found("This tunnel is not expected."))
        }
    }

    type SessionStream = ReceiverStream<Result<proto::PortalMessage, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<proto::WorkerMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let credential = self.caller(request.extensions()).await?;
        let (down, replies) = mpsc::channel(64);
        let session = Session {
            portal: self.0.clone(),
            node: credential.node,
            credential,
            down,
            last_probe: 0,
            probe_waiters: Vec::new(),
            logs: HashMap::new(),
            final_log_bytes: HashMap::new(),
            own_ranks: HashMap::new(),
            known_attempts: HashSet::new(),
            boards: HashSet::new(),
            host_shuts_down: false,
            clock_is_wrong: false,
            last_desired: None,
        };
        let node = session.node;
        tokio::spawn(async move {
            if let Err(why) = session.run(request.into_inner()).await {
                tracing::info!(%node, why, "the session of a worker ended");
            }
        });
        Ok(Response::new(ReceiverStream::new(replies)))
    }
}

struct Session {
    portal: Portal,
    node: NodeId,
    credential: Credential,
    down: mpsc::Sender<Result<proto::PortalMessage, Status>>,
    /// The nonce of the last probe, and the callers that await its answer.
    last_probe: u64,
    probe_waiters: Vec<oneshot::Sender<()>>,
    /// Open logs by job, attempt and rank.
    logs: HashMap<(JobId, u32, u32), LogFile>,
    /// The final lengths of the logs of ended attempts, as the worker reported them.
    final_log_bytes: HashMap<(JobId, u32), u64>,
    /// Attempts that are known to be this node's, with its rank.
    own_ranks: HashMap<(JobId, u32), OpenRank>,
    /// Attempts that the worker has or was sent: a desired state without one of them would end it.
    known_attempts: HashSet<(JobId, u32)>,
    /// The boards of the node: readings of other boards are ignored.
    boards: HashSet<String>,
    /// The worker has reported the shutdown of its host.
    host_shuts_down: bool,
    /// The time of the last readings was not the portal's.
    clock_is_wrong: bool,
    /// The desired state that was sent last, without the fields of [`UncomparedFields`].
    last_desired: Option<proto::DesiredState>,
}

/// The pause after a read of the desired state that took `read`. Reads of a busy node take at most a fifth of
/// one processor, unless the pause is at its maximum.
fn pause_after(read: Duration) -> Duration {
    read.saturating_mul(4).clamp(PAUSE_MIN, PAUSE_MAX)
}

fn attempt_key(id: Option<&proto::AttemptId>) -> Option<(JobId, u32)> {
    id.and_then(|id| Some((id.job.parse().ok()?, id.number)))
}

/// The ports of a worker for the networks of gangs. `None`: their numbers are impossible.
fn to_gang_ports(ports: proto::GangPorts) -> Option<GangPorts> {
    let first = u16::try_from(ports.first).ok().filter(|first| *first > 0)?;
    first.checked_add(GANG_PORTS - 1)?;
    Some(GangPorts { first, plain: ports.plain, checks: ports.checks })
}

impl Session {
    async fn run(mut self, mut up: Streaming<proto::WorkerMessage>) -> Result<(), String> {
        let first = tokio::time::timeout(SILENCE, up.message()).await.map_err(|_| "no hello")?;
        let Some(proto::WorkerMessage { body: Some(worker_message::Body::Hello(hello)) }) =
            first.map_err(|s| s.to_string())?
        else {
            return Err("the first message was not a hello".to_owned());
        };
        if let Err(why) = check_boards(&hello.boards) {
            return self.refuse(why).await;
        }
        self.admit(&hello, &mut up).await?;
        let leases = &self.portal.leases;
        let _held = leases
            .begin_session(self.node)
            .ok_or("the attempts of the node are being ended; connect again")?;
        let (leased, leaving) = (hello.supports_leases, hello.shutting_down);
        self.record_hello(hello).await?;
        self.portal.lost_nodes.node_returned(self.node, leased, leaving).await.map_err(|e| e.to_string())?;
        let live = self.portal.context.live.clone();
        let guard = live.open_session(self.node);
        // A revocation before the session was open had no session to end.
        self.check_certificate().await?;
        tracing::info!(node = %self.node, "a worker is connected");
        self.portal.context.publish(Change::Boards);
        let result = self.exchange_messages(&guard, &mut up).await;
        drop(guard);
        self.portal.context.publish(Change::Boards);
        // A failure here changes only the recorded time of the node's last message.
        let _ = self.portal.nodes.mark_seen(self.node).await;
        result
    }

    async fn record_hello(&mut self, hello: proto::Hello) -> Result<(), String> {
        let board = |b: proto::Board| {
            let Some(model) = model_by_name(&b.name) else {
                tracing::warn!(node = %self.node, name = clean_line(&b.name), "a board without a name is ignored");
                return None;
            };
            let foreign: Vec<(u32, u32)> =
                b.foreign_instances.iter().map(|i| (i.profile_id, i.start)).collect();
            Some(GpuReport {
                uuid: b.uuid,
                index: i64::from(b.index),
                model,
                memory_mib: i64::try_from(b.memory_mib).unwrap_or(i64::MAX),
                mig_enabled: b.mig_enabled,
                nvlink_island: i64::from(b.nvlink_island),
                foreign_instances: JsonColumn(foreign),
            })
        };
        self.known_attempts = hello.attempts.iter().filter_map(|id| attempt_key(Some(id))).collect();
        let report = NodeReport {
            simulated: hello.simulated,
            unisolated: hello.unisolated,
            cpu_milli: i64::try_from(hello.cpu_milli).unwrap_or(i64::MAX),
            memory_mib: i64::try_from(hello.memory_mib).unwrap_or(i64::MAX),
            address: clean_line(&hello.address),
            labels: JsonColumn(short_labels(hello.labels)),
            isolation: JsonColumn(short_isolation(hello.isolation)),
            images: hello.supports_images,
            gang_ports: hello.gang_ports.and_then(to_gang_ports),
            rdma_ports: JsonColumn(rdma_ports(hello.rdma_ports)),
            egress: hello.supports_egress,
            host_network: hello.supports_host_network,
            host_mounts: JsonColumn(short_host_mounts(hello.host_mounts)),
            checks_rdma_links: hello.checks_rdma_links,
            inference_port: u16::try_from(hello.inference_port).unwrap_or(0),
            driver_version: clean_line(&hello.driver_version),
            worker_version: clean_line(&hello.worker_version),
            boards: hello.boards.into_iter().filter_map(board).collect(),
        };
        self.portal.nodes.report_node(self.node, report).await.map_err(|e| e.to_string())?;
        self.boards = self.portal.health.own_boards(self.node).await.map_err(|e| e.to_string())?;
        Ok(())
    }

    async fn exchange_messages(
        &mut self,
        guard: &berth_foundation::live::SessionGuard,
        up: &mut Streaming<proto::WorkerMessage>,
    ) -> Result<(), String> {
        let mut periodic = tokio::time::interval(READ_EVERY);
        let mut silence_check = tokio::time::interval(SILENCE / 2);
        let mut last_message_at = tokio::time::Instant::now();
        // `due`: the next requested read of the desired state. `not_before`: the earliest time of a read.
        let (mut due, mut not_before) = (Some(last_message_at), last_message_at);
        loop {
            tokio::select! {
                // The end by a newer session comes first: two sessions must not write.
                biased;
                () = guard.wake.notified() => {
                    if !guard.is_current() {
                        return Err("the session was closed or replaced by a newer one".to_owned());
                    }
                    for request in guard.take_tunnels() {
                        self.send(portal_message::Body::OpenTunnel(tunnel::open_tunnel(request))).await?;
                    }
                    self.send_requested_probe(guard).await?;
                    due = due.or(Some(not_before));
                }
                () = tokio::time::sleep_until(due.unwrap_or(not_before)), if due.is_some() => {
                    due = None;
                    let began = tokio::time::Instant::now();
                    self.send_desired().await?;
                    not_before = tokio::time::Instant::now() + pause_after(began.elapsed());
                }
                _ = periodic.tick() => {
                    self.check_certificate().await?;
                    due = due.or(Some(not_before));
                    self.portal.nodes.mark_seen(self.node).await.map_err(|e| e.to_string())?;
                }
                _ = silence_check.tick() => {
                    if last_message_at.elapsed() > SILENCE {
                        return Err("the worker is silent".to_owned());
                    }
                }
                message = up.message() => match message.map_err(|s| s.message().to_owned())? {
                    None => return Ok(()),
                    Some(message) => {
                        last_message_at = tokio::time::Instant::now();
                        if self.on_ready_messages(message, up, guard).await? {
                            return Ok(());
                        }
                    }
                },
            }
        }
    }

    async fn send(&self, message: portal_message::Body) -> Result<(), String> {
        let sent = tokio::time::timeout(SEND_TIMEOUT, self.down.send(Ok(message.into()))).await;
        sent.map_err(|_| "the worker does not read its messages")?
            .map_err(|_| "the worker has disconnected".to_owned())
    }

    async fn send_desired(&mut self) -> Result<(), String> {
        let ranks = self.portal.attempts.desired(self.node).await.map_err(|e| e.to_string())?;
        let tasks = self.portal.health.board_tasks(self.node).await.map_err(|e| e.to_string())?;
        let mut desired = to_desired(ranks, tasks);
        let keys: HashSet<_> =
            desired.attempts.iter().filter_map(|a| attempt_key(a.attempt.as_ref())).collect();
        self.logs.retain(|(job, number, _), _| keys.contains(&(*job, *number)));
        self.final_log_bytes.retain(|key, _| keys.contains(key));
        self.own_ranks.retain(|key, _| keys.contains(key));
        self.limit_size(&mut desired);
        let removed: Vec<_> = desired.attempts.iter_mut().map(UncomparedFields::remove_from).collect();
        if self.last_desired.as_ref() == Some(&desired) {
            return Ok(());
        }
        let compared = desired.clone();
        let mut given = Vec::new();
        for (assignment, fields) in desired.attempts.iter_mut().zip(removed) {
            let job = assignment.attempt.as_ref().map_or("", |id| id.job.as_str());
            given.extend(fields.secret_names().map(|name| (job.to_owned(), name.to_owned())));
            fields.restore_to(assignment);
        }
        self.send(portal_message::Body::DesiredState(desired)).await?;
        self.last_desired = Some(compared);
        self.portal.secrets.mark_secrets_used(given).await;
        Ok(())
    }

    /// Removes new attempts beyond the size limit of a message. They follow once the worker has received the
    /// others.
    fn limit_size(&mut self, desired: &mut proto::DesiredState) {
        let size = |a: &proto::Assignment| a.spec.as_ref().map_or(0, proto::Message::encoded_len);
        let known = |known_attempts: &HashSet<_>, a: &proto::Assignment| {
            attempt_key(a.attempt.as_ref()).is_some_and(|key| known_attempts.contains(&key))
        };
        let mut left = SPEC_LIMIT.saturating_sub(
            desired.attempts.iter().filter(|a| known(&self.known_attempts, a)).map(size).sum::<usize>(),
        );
        desired.attempts.retain(|a| {
            if known(&self.known_attempts, a) {
                return true;
            }
            let Some(rest) = left.checked_sub(size(a)) else { return false };
            left = rest;
            self.known_attempts.extend(attempt_key(a.attempt.as_ref()));
            true
        });
    }

    async fn on_message(&mut self, message: proto::WorkerMessage) -> Result<(), String> {
        match message.body {
            Some(worker_message::Body::Status(status)) => self.apply_statuses(vec![status]).await,
            Some(worker_message::Body::Log(log)) => self.keep_log(log).await,
            Some(worker_message::Body::Samples(samples)) => self.keep_samples(samples).await,
            Some(worker_message::Body::Health(health)) => {
                let boards = board_reports(health);
                self.portal.health.apply_health(self.node, boards).await.map_err(|e| e.to_string())
            }
            Some(worker_message::Body::Diagnosis(diagnosis)) => {
                self.portal.nodes.record_diagnosis(self.node, findings(&diagnosis));
                Ok(())
            }
            Some(worker_message::Body::Probe(probe)) => {
                self.on_probe_answer(&probe);
                Ok(())
            }
            // Older workers do not number their heartbeats and need no answer.
            Some(worker_message::Body::Heartbeat(beat)) if beat.seq > 0 => {
                self.portal.leases.renew(self.node, self.portal.context.monotonic_ms());
                if beat.shutting_down && !std::mem::replace(&mut self.host_shuts_down, true) {
                    self.portal.drains.drain_for_shutdown(self.node).await.map_err(|e| e.to_string())?;
                }
                self.send(portal_message::Body::HeartbeatAck(proto::HeartbeatAck { seq: beat.seq })).await
            }
            Some(worker_message::Body::Heartbeat(_) | worker_message::Body::Hello(_)) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_reads_come_less_often() {
        let ms = Duration::from_millis;
        for (read, pause) in
            [(0, 50), (1, 50), (12, 50), (13, 52), (20, 80), (62, 248), (63, 250), (9_000, 250)]
        {
            assert_eq!(pause_after(ms(read)), ms(pause), "{read}");
        }
    }
}
