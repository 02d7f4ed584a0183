//! HTTP connections to what listens inside a job, through tunnels to its worker.
//!
//! Whoever asks was let in already. A connection that has answered is kept for a moment for the next request.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use berth_proto::{AttemptId, TUNNEL_CHUNK, dial};
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::problems::Problem;
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout};

use super::Ports;
use crate::tunnels::{Heard, Shut, Tunnel, full};

/// Connections to one job at a time, over all its ports and ranks.
const MOST_OF_JOB: usize = 16;
/// A connection that does not come about in this time does not.
const CONNECT: Duration = Duration::from_secs(10);
/// A connection on which nothing moves for so long is given up.
const IDLE: Duration = Duration::from_secs(600);
/// How long a connection is kept for the next request: less than any usual server keeps its end.
const KEPT: Duration = Duration::from_secs(3);
/// Bytes on their way between a tunnel and what speaks HTTP over it.
const BETWEEN: usize = 64 << 10;

/// What a connection leads to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    pub org: OrgId,
    pub node: NodeId,
    pub job: JobId,
    pub attempt: u32,
    pub port: u16,
}

/// A connection that waits for a request.
struct Waiting {
    number: u64,
    sender: SendRequest<Body>,
}

#[derive(Default)]
pub struct Upstreams {
    waiting: Mutex<HashMap<Target, Vec<Waiting>>>,
    rooms: Mutex<HashMap<JobId, Arc<Semaphore>>>,
    counter: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Upstreams {
    /// What counts the connections of a job.
    fn room(&self, job: JobId) -> Arc<Semaphore> {
        let mut rooms = lock(&self.rooms);
        // Whoever is in one holds it.
        rooms.retain(|_, room| Arc::strong_count(room) > 1);
        rooms.entry(job).or_insert_with(|| Arc::new(Semaphore::new(MOST_OF_JOB))).clone()
    }

    fn take(&self, target: &Target) -> Option<SendRequest<Body>> {
        let mut waiting = lock(&self.waiting);
        let found = waiting.get_mut(target)?;
        let mut taken = None;
        while let Some(one) = found.pop() {
            if !one.sender.is_closed() {
                taken = Some(one.sender);
                break;
            }
        }
        if found.is_empty() {
            waiting.remove(target);
        }
        taken
    }

    fn put(&self, target: &Target, sender: SendRequest<Body>) -> u64 {
        let number = self.counter.fetch_add(1, Ordering::Relaxed);
        lock(&self.waiting).entry(target.clone()).or_default().push(Waiting { number, sender });
        number
    }

    fn forget(&self, target: &Target, number: u64) {
        let mut waiting = lock(&self.waiting);
        if let Some(found) = waiting.get_mut(target) {
            found.retain(|one| one.number != number);
            if found.is_empty() {
                waiting.remove(target);
            }
        }
    }
}

/// Nothing listens there, or not yet.
pub const NOT_LISTENING: &str = "port.not_listening";

fn shut(shut: Shut) -> Problem {
    match shut {
        Shut::Away(problem) => problem,
        Shut::Full => busy(full()),
        Shut::Closed(closed) if closed.cause == "refused" => {
            Problem::new(502, NOT_LISTENING, "Nothing answers on this port", closed.detail)
        }
        Shut::Closed(_) => ended(),
    }
}

/// What is said of a job that runs no more.
pub fn ended() -> Problem {
    let detail = "What listened there ended with the job. Its log and its files are on the job's page.";
    Problem::new(410, "job.not_running", "The job does not run any more", detail)
}

fn broken(error: &hyper::Error) -> Problem {
    tracing::debug!(%error, "a port of a job");
    let detail = "What listens there closed the connection, or does not speak HTTP.";
    Problem::new(502, "port.broken", "The port gave no answer", detail)
}

fn slow() -> Problem {
    let detail = "The job's worker did not open the port within 10 seconds. Try again in a moment.";
    Problem::new(504, "port.slow", "The port was not reached", detail)
}

fn busy(detail: impl Into<String>) -> Problem {
    let busy = Problem::new(503, "port.busy", "Too many connections", detail);
    Problem { retry_after_s: Some(5), ..busy }
}

/// Opens a connection.
async fn connect(ports: &Ports, target: &Target) -> Result<SendRequest<Body>, Problem> {
    let room = ports.upstreams.room(target.job);
    let place = timeout(CONNECT, room.acquire_owned()).await.map_err(|_| {
        busy("As many connections to this job are open as it may have (16). Close some of its pages.")
    })?;
    let place = place.map_err(|_| Problem::internal())?;
    let attempt = AttemptId::new(target.job.to_string(), target.attempt);
    let to = dial::To::Port(u32::from(target.port));
    let opened = ports.tunnels.open(&ports.context, target.node, target.org, attempt, to);
    let (tunnel, _) = timeout(CONNECT, opened).await.map_err(|_| slow())?.map_err(shut)?;
    let (near, far) = tokio::io::duplex(BETWEEN);
    tokio::spawn(async move {
        carry(tunnel, far).await;
        drop(place);
    });
    let made = handshake::<_, Body>(TokioIo::new(near)).await;
    let (sender, connection) = made.map_err(|error| broken(&error))?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection to a port of a job");
        }
    });
    Ok(sender)
}

/// Keeps a connection for the next request, as soon as it is done with this one.
fn keep(ports: &Ports, target: &Target, mut sender: SendRequest<Body>) {
    let (ports, target) = (ports.clone(), target.clone());
    tokio::spawn(async move {
        // One that went on with another protocol, or was closed, is never ready.
        if sender.ready().await.is_ok() {
            let number = ports.upstreams.put(&target, sender);
            tokio::time::sleep(KEPT).await;
            ports.upstreams.forget(&target, number);
        }
    });
}

/// Sends a request to what listens at the target, and gives its answer, whose body follows.
pub async fn send(
    ports: &Ports,
    target: &Target,
    mut request: Request<Body>,
) -> Result<Response<Incoming>, Problem> {
    while let Some(mut sender) = ports.upstreams.take(target) {
        match sender.try_send_request(request).await {
            Ok(answer) => {
                keep(ports, target, sender);
                return Ok(answer);
            }
            // It was closed meanwhile, before anything of this was sent.
            Err(mut error) => match error.take_message() {
                Some(unsent) => request = unsent,
                None => return Err(broken(error.error())),
            },
        }
    }
    let mut sender = connect(ports, target).await?;
    let answer = sender.send_request(request).await.map_err(|error| broken(&error))?;
    keep(ports, target, sender);
    Ok(answer)
}

/// What happened between a tunnel and what speaks HTTP over it.
enum Event {
    Heard(Heard),
    Read(std::io::Result<usize>),
    Wrote(std::io::Result<usize>),
    Idle,
}

/// Carries bytes between a tunnel and a stream until one of them ends, or nothing moves for too long. Neither
/// side is read faster than the other takes it.
async fn carry(mut tunnel: Tunnel, stream: DuplexStream) {
    let (mut from, mut into) = tokio::io::split(stream);
    let mut came: VecDeque<u8> = VecDeque::new();
    let mut buffer = vec![0u8; TUNNEL_CHUNK];
    let mut over = false;
    let mut until = Instant::now() + IDLE;
    loop {
        if tunnel.tell().await.is_err() {
            over = true;
        }
        if over && came.is_empty() {
            // Whoever reads has all of it; it may have gone first.
            let _ = into.shutdown().await;
            return;
        }
        let room = if over { 0 } else { tunnel.room() };
        let event = tokio::select! {
            heard = tunnel.next(), if !over => Event::Heard(heard),
            read = from.read(buffer.get_mut(..room).unwrap_or_default()), if room > 0 => Event::Read(read),
            wrote = into.write(came.as_slices().0), if !came.is_empty() => Event::Wrote(wrote),
            () = sleep_until(until) => Event::Idle,
        };
        if !matches!(event, Event::Idle) {
            until = Instant::now() + IDLE;
        }
        match event {
            Event::Heard(Heard::Data(data)) => came.extend(data),
            Event::Heard(Heard::Begins(_) | Heard::Taken(_)) => {}
            Event::Heard(Heard::Closed(_) | Heard::Gone) => over = true,
            Event::Read(Ok(length)) if length > 0 => {
                let data = buffer.get(..length).unwrap_or_default().to_vec();
                if tunnel.send(data).await.is_err() {
                    over = true;
                }
            }
            Event::Wrote(Ok(length)) if length > 0 => {
                came.drain(..length.min(came.len()));
                tunnel.note_taken(length as u64);
            }
            // Nobody is there any more.
            Event::Read(_) | Event::Wrote(_) | Event::Idle => {
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
    fn what_counts_a_jobs_connections_goes_with_them() {
        let upstreams = Upstreams::default();
        let job = |n: u128| JobId::from_uuid(uuid::Uuid::from_u128(n));
        let room = upstreams.room(job(1));
        let _place = room.clone().try_acquire_owned().unwrap();
        drop(room);
        assert_eq!(upstreams.room(job(1)).available_permits(), MOST_OF_JOB - 1, "the same room");
        for n in 2..100 {
            drop(upstreams.room(job(n)));
        }
        assert_eq!(lock(&upstreams.rooms).len(), 2, "the one in use, and the last that was asked for");
    }
}
