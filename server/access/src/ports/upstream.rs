//! HTTP connections to servers inside jobs, through tunnels to their workers.
//!
//! The callers have checked the rights already. An idle connection is kept for a moment for the next request.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use berth_contract::TUNNEL_CHUNK;
use berth_foundation::live::TunnelTarget;
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::problems::Problem;
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout};

use super::Ports;
use crate::tunnels::{Tunnel, TunnelError, TunnelEvent, limit_text};

/// Concurrent connections to one job, over all its ports and ranks.
const MAX_PER_JOB: usize = 16;
/// The timeout of a new connection.
const CONNECT: Duration = Duration::from_secs(10);
/// The timeout of a connection without traffic.
const IDLE: Duration = Duration::from_secs(600);
/// The time for which an idle connection is kept, less than the keep-alive time of usual servers.
const KEEP_ALIVE: Duration = Duration::from_secs(3);
/// Buffer in bytes between a tunnel and its HTTP client.
const BUFFER: usize = 64 << 10;

/// The target of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    pub org: OrgId,
    pub node: NodeId,
    pub job: JobId,
    pub attempt: u32,
    pub port: u16,
}

/// A connection without a request.
struct IdleConnection {
    number: u64,
    sender: SendRequest<Body>,
}

#[derive(Default)]
pub struct Upstreams {
    idle: Mutex<HashMap<Target, Vec<IdleConnection>>>,
    permits: Mutex<HashMap<JobId, Arc<Semaphore>>>,
    counter: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Upstreams {
    /// The semaphore of a job's connections.
    fn semaphore(&self, job: JobId) -> Arc<Semaphore> {
        let mut permits = lock(&self.permits);
        // Open connections hold a reference.
        permits.retain(|_, semaphore| Arc::strong_count(semaphore) > 1);
        permits.entry(job).or_insert_with(|| Arc::new(Semaphore::new(MAX_PER_JOB))).clone()
    }

    /// Removes and returns an open idle connection to the target.
    fn pop_idle(&self, target: &Target) -> Option<SendRequest<Body>> {
        let mut idle = lock(&self.idle);
        let connections = idle.get_mut(target)?;
        let mut open = None;
        while let Some(connection) = connections.pop() {
            if !connection.sender.is_closed() {
                open = Some(connection.sender);
                break;
            }
        }
        if connections.is_empty() {
            idle.remove(target);
        }
        open
    }

    /// Stores an idle connection and returns its number.
    fn put_idle(&self, target: &Target, sender: SendRequest<Body>) -> u64 {
        let number = self.counter.fetch_add(1, Ordering::Relaxed);
        lock(&self.idle).entry(target.clone()).or_default().push(IdleConnection { number, sender });
        number
    }

    fn remove_idle(&self, target: &Target, number: u64) {
        let mut idle = lock(&self.idle);
        if let Some(connections) = idle.get_mut(target) {
            connections.retain(|connection| connection.number != number);
            if connections.is_empty() {
                idle.remove(target);
            }
        }
    }
}

/// The code of the problem of a port without a server, or with a server that has not started yet.
pub const NOT_LISTENING: &str = "port.not_listening";

fn tunnel_problem(error: TunnelError) -> Problem {
    match error {
        TunnelError::Unreachable(problem) => problem,
        TunnelError::Full => busy(limit_text()),
        TunnelError::Closed(closed) if closed.cause == "refused" => {
            Problem::new(502, NOT_LISTENING, "No answer on this port", closed.detail)
        }
        TunnelError::Closed(_) => job_ended(),
    }
}

/// The refusal for a job that does not run any more.
pub fn job_ended() -> Problem {
    let detail =
        "The program on this port ended with the job. The log and the files are on the page of the job.";
    Problem::new(410, "job.not_running", "Job not running", detail)
}

fn broken(error: &hyper::Error) -> Problem {
    tracing::debug!(%error, "a port of a job");
    let detail = "The program on this port closed the connection or does not speak HTTP.";
    Problem::new(502, "port.broken", "Invalid answer from the port", detail)
}

fn slow() -> Problem {
    let detail = "The worker of the job did not open the port within 10 seconds. Try again in a moment.";
    Problem::new(504, "port.slow", "Port timeout", detail)
}

fn busy(detail: impl Into<String>) -> Problem {
    let busy = Problem::new(503, "port.busy", "Too many connections", detail);
    Problem { retry_after_s: Some(5), ..busy }
}

/// Opens a connection through a new tunnel.
async fn connect(ports: &Ports, target: &Target) -> Result<SendRequest<Body>, Problem> {
    let semaphore = ports.upstreams.semaphore(target.job);
    let permit = timeout(CONNECT, semaphore.acquire_owned())
        .await
        .map_err(|_| busy("The job has 16 open connections, the maximum. Close some of its pages."))?;
    let permit = permit.map_err(|_| Problem::internal())?;
    let (attempt, port) = ((target.job, target.attempt), TunnelTarget::Port(target.port));
    let opened = ports.tunnels.open(&ports.context, target.node, target.org, attempt, port);
    let (tunnel, _) = timeout(CONNECT, opened).await.map_err(|_| slow())?.map_err(tunnel_problem)?;
    let (near, far) = tokio::io::duplex(BUFFER);
    tokio::spawn(async move {
        copy_bytes(tunnel, far).await;
        drop(permit);
    });
    let connected = handshake::<_, Body>(TokioIo::new(near)).await;
    let (sender, connection) = connected.map_err(|error| broken(&error))?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection to a port of a job");
        }
    });
    Ok(sender)
}

/// Stores a connection for the next request as soon as the present request is complete.
fn keep_idle(ports: &Ports, target: &Target, mut sender: SendRequest<Body>) {
    let (ports, target) = (ports.clone(), target.clone());
    tokio::spawn(async move {
        // An upgraded or closed connection is never ready.
        if sender.ready().await.is_ok() {
            let number = ports.upstreams.put_idle(&target, sender);
            tokio::time::sleep(KEEP_ALIVE).await;
            ports.upstreams.remove_idle(&target, number);
        }
    });
}

/// Sends a request to the server at the target. Returns the head of the answer; the body follows as a stream.
pub async fn send(
    ports: &Ports,
    target: &Target,
    mut request: Request<Body>,
) -> Result<Response<Incoming>, Problem> {
    while let Some(mut sender) = ports.upstreams.pop_idle(target) {
        match sender.try_send_request(request).await {
            Ok(answer) => {
                keep_idle(ports, target, sender);
                return Ok(answer);
            }
            // The connection was closed before any byte of the request was sent.
            Err(mut error) => match error.take_message() {
                Some(unsent) => request = unsent,
                None => return Err(broken(error.error())),
            },
        }
    }
    let mut sender = connect(ports, target).await?;
    let answer = sender.send_request(request).await.map_err(|error| broken(&error))?;
    keep_idle(ports, target, sender);
    Ok(answer)
}

/// An event of the copy between a tunnel and its HTTP client.
enum CopyEvent {
    Tunnel(TunnelEvent),
    Read(std::io::Result<usize>),
    Written(std::io::Result<usize>),
    Idle,
}

/// Copies bytes between a tunnel and a stream until one of them ends, or the timeout without traffic. Each
/// side is read only as fast as the other side consumes.
async fn copy_bytes(mut tunnel: Tunnel, stream: DuplexStream) {
    let (mut from, mut into) = tokio::io::split(stream);
    let mut received: VecDeque<u8> = VecDeque::new();
    let mut buffer = vec![0u8; TUNNEL_CHUNK];
    let mut tunnel_ended = false;
    let mut deadline = Instant::now() + IDLE;
    loop {
        if tunnel.send_ack().await.is_err() {
            tunnel_ended = true;
        }
        if tunnel_ended && received.is_empty() {
            // The reader has all bytes. It may be gone already, so an error does not matter.
            let _ = into.shutdown().await;
            return;
        }
        let capacity = if tunnel_ended { 0 } else { tunnel.send_capacity() };
        let event = tokio::select! {
            event = tunnel.next(), if !tunnel_ended => CopyEvent::Tunnel(event),
            read = from.read(buffer.get_mut(..capacity).unwrap_or_default()), if capacity > 0 => {
                CopyEvent::Read(read)
            }
            written = into.write(received.as_slices().0), if !received.is_empty() => {
                CopyEvent::Written(written)
            }
            () = sleep_until(deadline) => CopyEvent::Idle,
        };
        if !matches!(event, CopyEvent::Idle) {
            deadline = Instant::now() + IDLE;
        }
        match event {
            CopyEvent::Tunnel(TunnelEvent::Data(data)) => received.extend(data),
            CopyEvent::Tunnel(TunnelEvent::Begins(_) | TunnelEvent::Taken(_)) => {}
            CopyEvent::Tunnel(TunnelEvent::Closed(_) | TunnelEvent::Gone) => tunnel_ended = true,
            CopyEvent::Read(Ok(length)) if length > 0 => {
                let data = buffer.get(..length).unwrap_or_default().to_vec();
                if tunnel.send(data).await.is_err() {
                    tunnel_ended = true;
                }
            }
            CopyEvent::Written(Ok(length)) if length > 0 => {
                received.drain(..length.min(received.len()));
                tunnel.note_taken(length as u64);
            }
            // The HTTP client is gone, or the connection timed out.
            CopyEvent::Read(_) | CopyEvent::Written(_) | CopyEvent::Idle => {
                tunnel.hang_up().await;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_semaphores_are_removed() {
        let upstreams = Upstreams::default();
        let job = |n: u128| JobId::from_uuid(uuid::Uuid::from_u128(n));
        let semaphore = upstreams.semaphore(job(1));
        let _permit = semaphore.clone().try_acquire_owned().unwrap();
        drop(semaphore);
        assert_eq!(upstreams.semaphore(job(1)).available_permits(), MAX_PER_JOB - 1, "the same semaphore");
        for n in 2..100 {
            drop(upstreams.semaphore(job(n)));
        }
        assert_eq!(lock(&upstreams.permits).len(), 2, "the one in use, and the last one");
    }
}
