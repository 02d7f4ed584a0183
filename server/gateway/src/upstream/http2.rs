//! The connections to a replica by HTTP/2 without negotiation: each has many requests at the same time.

use std::error::Error;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_serving::retries::Progress;
use http::header::{HOST, HeaderValue, TE, TRANSFER_ENCODING};
use http::request::Parts;
use http::uri::{Authority, Scheme};
use http::{Request, Response, Uri, Version};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::rt::Executor;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::watch;
use tokio::time::timeout;

use super::worker::{HANDSHAKE_TIMEOUT, PLACE_TIMEOUT};
use super::{Connection, Failure, HEAD_BYTES, TOKEN_TIMEOUT, Upstream, too_late};
use crate::bodies::{KeptBody, RequestBody};
use crate::clock::now_ms;

/// Requests on one connection, which is what HTTP/2 asks servers to permit at least. A replica can permit fewer.
const MAX_STREAMS: usize = 100;
/// Streams that the gateway ends before their whole answer, after which a connection gets no further ones: servers end a
/// connection with many of them.
const MAX_BROKEN: usize = 50;
/// Bytes for each stream that its caller has not read.
const STREAM_BYTES: u32 = 256 << 10;
/// Bytes for all streams of a connection, so that a caller that does not read keeps back its own stream only.
const CONNECTION_BYTES: u32 = STREAM_BYTES * MAX_STREAMS as u32;
/// Cancelled streams for which late parts are ignored.
const MAX_RESET_STREAMS: usize = 256;
/// Milliseconds for which an unused connection is kept. A request that meets its end was not begun.
const KEEP_MS: u64 = 60_000;
/// The longest wait for a connection, also for one that another request opens.
const OPEN_TIMEOUT: Duration = PLACE_TIMEOUT.saturating_add(HANDSHAKE_TIMEOUT).saturating_add(TOKEN_TIMEOUT);
/// The host of a request whose caller named none.
const NO_HOST: &str = "replica";

/// The use of a connection, which ends with it: its list and its streams have it.
struct LineUse {
    streams: AtomicUsize,
    /// The streams that the replica permits at the same time.
    max_streams: AtomicUsize,
    /// The streams that the gateway ended.
    broken: AtomicUsize,
    /// The end of its last stream.
    ended_ms: AtomicU64,
    /// Its drop ends the tasks of the connection.
    _alive: watch::Sender<()>,
}

impl LineUse {
    const fn new(alive: watch::Sender<()>) -> Self {
        Self {
            streams: AtomicUsize::new(0),
            max_streams: AtomicUsize::new(MAX_STREAMS),
            broken: AtomicUsize::new(0),
            ended_ms: AtomicU64::new(0),
            _alive: alive,
        }
    }
}

/// Runs the tasks of a connection until the end of its use. A body that the replica does not read keeps none of them.
#[derive(Clone)]
struct LineTasks(watch::Receiver<()>);

impl<F> Executor<F> for LineTasks
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, task: F) {
        let mut alive = self.0.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = task => {}
                // Nobody sends: it is the end of the sender.
                _ = alive.changed() => {}
            }
        });
    }
}

/// A stream of a connection, counted until its drop, which ends it at the replica too.
pub struct Stream {
    line: Arc<LineUse>,
    /// The body on its way, which keeps the stream open at the replica.
    body: Option<KeptBody>,
    /// The replica has ended it.
    is_whole: bool,
}

impl Stream {
    fn new(line: &Arc<LineUse>) -> Self {
        line.streams.fetch_add(1, Ordering::Relaxed);
        Self { line: line.clone(), body: None, is_whole: false }
    }

    /// Ends the stream after its whole answer.
    pub(super) fn finish(mut self) {
        self.is_whole = true;
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.is_whole {
            self.line.broken.fetch_add(1, Ordering::Relaxed);
        }
        self.line.ended_ms.store(now_ms(), Ordering::Relaxed);
        self.line.streams.fetch_sub(1, Ordering::Relaxed);
        if let Some(body) = &self.body {
            body.close();
        }
    }
}

struct Line {
    sender: SendRequest<KeptBody>,
    used: Arc<LineUse>,
}

impl Line {
    fn streams(&self) -> usize {
        self.used.streams.load(Ordering::Relaxed)
    }

    fn has_room(&self) -> bool {
        self.streams() < self.used.max_streams.load(Ordering::Relaxed)
    }

    fn is_usable(&self) -> bool {
        !self.sender.is_closed() && self.used.broken.load(Ordering::Relaxed) < MAX_BROKEN
    }
}

/// The connections to one replica.
#[derive(Default)]
pub struct Lines {
    open: Mutex<Vec<Line>>,
    /// One connection is opened at a time, for all requests that wait for it.
    opening: tokio::sync::Mutex<()>,
}

type Opened = (SendRequest<KeptBody>, Stream);

impl Lines {
    fn lock(&self) -> MutexGuard<'_, Vec<Line>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection with room that has the fewest streams.
    fn find(&self) -> Option<Opened> {
        let mut open = self.lock();
        open.retain(Line::is_usable);
        let with_room = open.iter().filter(|line| line.has_room());
        let line = with_room.min_by_key(|line| line.streams())?;
        Some((line.sender.clone(), Stream::new(&line.used)))
    }

    fn put(&self, sender: SendRequest<KeptBody>, used: Arc<LineUse>) -> Opened {
        let stream = Stream::new(&used);
        self.lock().push(Line { sender: sender.clone(), used });
        (sender, stream)
    }

    /// Gives no further stream on the connection of this one.
    fn leave(&self, stream: &Arc<LineUse>) {
        self.lock().retain(|line| !Arc::ptr_eq(&line.used, stream));
    }

    /// Closes the connections that nobody used for a while.
    pub fn close_old(&self, now: u64) {
        let is_old = |line: &Line| {
            line.streams() == 0 && now.saturating_sub(line.used.ended_ms.load(Ordering::Relaxed)) >= KEEP_MS
        };
        self.lock().retain(|line| !is_old(line));
    }
}

impl Upstream {
    pub(super) async fn send_http2(
        &self,
        mut request: Request<RequestBody>,
        longest: Duration,
        is_sent: &AtomicBool,
    ) -> Result<(Response<Incoming>, Connection), Failure> {
        if let Some(opened) = self.lines.find() {
            match self.exchange_on(opened, request, (longest, is_sent)).await {
                // The replica closes the connection, but may take the request on another one.
                Err((Failure { request: Some(unsent), .. }, true)) => request = *unsent,
                answer => return answer.map_err(|(failure, _)| failure),
            }
        }
        match timeout(OPEN_TIMEOUT, self.open_line()).await {
            Ok(Ok(opened)) => {
                self.exchange_on(opened, request, (longest, is_sent)).await.map_err(|(failure, _)| failure)
            }
            Ok(Err((progress, reason))) => {
                Err(Failure { progress, is_late: false, reason, request: Some(Box::new(request)) })
            }
            Err(_) => {
                let is_reached = self.worker.is_reached();
                let progress = if is_reached { Progress::NotDelivered } else { Progress::NotConnected };
                let reason = "no connection was open in time".to_owned();
                Err(Failure { progress, is_late: false, reason, request: Some(Box::new(request)) })
            }
        }
    }

    /// Sends a request on a connection, which gets no further one if it closes or may be lost.
    async fn exchange_on(
        &self,
        opened: Opened,
        request: Request<RequestBody>,
        (longest, is_sent): (Duration, &AtomicBool),
    ) -> Result<(Response<Incoming>, Connection), (Failure, bool)> {
        let used = opened.1.line.clone();
        is_sent.store(true, Ordering::Relaxed);
        let answer = exchange(opened, request, longest).await;
        if let Err((Failure { request: Some(_), .. }, _)) = &answer {
            is_sent.store(false, Ordering::Relaxed);
        }
        if let Err((_, true)) = &answer {
            self.lines.leave(&used);
        }
        answer
    }

    /// Opens a connection, or waits for the one that another request opens.
    async fn open_line(&self) -> Result<Opened, (Progress, String)> {
        let _only = self.lines.opening.lock().await;
        if let Some(found) = self.lines.find() {
            return Ok(found);
        }
        let stream = self.reach().await?;
        let (alive, tasks) = watch::channel(());
        let used = Arc::new(LineUse::new(alive));
        let built = Builder::new(LineTasks(tasks.clone()))
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_BYTES)
            .initial_connection_window_size(CONNECTION_BYTES)
            .initial_max_send_streams(MAX_STREAMS)
            .max_concurrent_reset_streams(MAX_RESET_STREAMS)
            .max_header_list_size(HEAD_BYTES as u32)
            .max_send_buf_size(STREAM_BYTES as usize)
            .handshake(TokioIo::new(stream))
            .await;
        let (sender, connection) = built.map_err(|e| (Progress::NotDelivered, e.to_string()))?;
        let permits = Arc::downgrade(&used);
        LineTasks(tasks).execute(async move {
            let mut connection = pin!(connection);
            // Each request has the error of its connection.
            let _ = poll_fn(|cx| {
                let polled = connection.as_mut().poll(cx);
                if let Some(used) = permits.upgrade() {
                    let most = connection.current_max_send_streams().clamp(1, MAX_STREAMS);
                    used.max_streams.store(most, Ordering::Relaxed);
                }
                polled
            })
            .await;
        });
        Ok(self.lines.put(sender, used))
    }
}

/// Sends a request on a connection and waits for the head of the answer. A failure says whether the connection closes
/// or may be lost.
async fn exchange(
    (mut sender, mut stream): Opened,
    request: Request<RequestBody>,
    longest: Duration,
) -> Result<(Response<Incoming>, Connection), (Failure, bool)> {
    let (head, body) = request.into_parts();
    let kept = KeptBody::new(body);
    let sent = to_http2(&head, kept.clone());
    stream.body = Some(kept.clone());
    let mut error = match timeout(longest, sender.try_send_request(sent)).await {
        Ok(Ok(answer)) => {
            kept.forget();
            return Ok((answer, Connection::Http2(stream)));
        }
        Ok(Err(error)) => error,
        Err(_) => return Err((too_late(), true)),
    };
    stream.is_whole = true;
    let refusal = match error.take_message() {
        Some(_) => Some(Unbegun::Closing),
        None => unbegun(error.error()),
    };
    let progress = if refusal.is_some() { Progress::NotBegun } else { Progress::Sent };
    let body = refusal.and_then(|_| kept.take_back());
    let request = body.map(|body| Box::new(Request::from_parts(head, body)));
    let reason = error.error().to_string();
    Err((Failure { progress, is_late: false, reason, request }, refusal == Some(Unbegun::Closing)))
}

/// The reason of a replica for a request that it did not begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unbegun {
    /// It refuses this stream.
    Refused,
    /// It takes no further stream on this connection.
    Closing,
}

/// Reads from an error that the replica did not begin the request. A GOAWAY is the error of the streams after its last
/// one only.
fn unbegun(error: &hyper::Error) -> Option<Unbegun> {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<h2::Error>() {
            let is_refused = found.is_reset() && found.reason() == Some(h2::Reason::REFUSED_STREAM);
            return match (found.is_remote(), found.is_go_away()) {
                (true, true) => Some(Unbegun::Closing),
                (true, false) if is_refused => Some(Unbegun::Refused),
                _ => None,
            };
        }
        next = error.source();
    }
    None
}

/// The request by HTTP/2: the host is in its address, and trailers are welcome.
fn to_http2(head: &Parts, body: KeptBody) -> Request<KeptBody> {
    let host = head.headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let mut uri = head.uri.clone().into_parts();
    uri.scheme = Some(Scheme::HTTP);
    uri.authority = Some(host.parse().unwrap_or_else(|_| Authority::from_static(NO_HOST)));
    let mut request = Request::new(body);
    *request.method_mut() = head.method.clone();
    *request.uri_mut() = Uri::from_parts(uri).unwrap_or_else(|_| head.uri.clone());
    *request.version_mut() = Version::HTTP_2;
    *request.headers_mut() = head.headers.clone();
    request.headers_mut().remove(HOST);
    // An earlier try by HTTP/1.1 may have added it.
    request.headers_mut().remove(TRANSFER_ENCODING);
    request.headers_mut().insert(TE, HeaderValue::from_static("trailers"));
    request
}

#[cfg(test)]
mod tests {
    use hyper::body::Bytes;

    use super::*;

    #[test]
    fn a_request_by_http2_has_its_host_in_its_address() {
        for (host, expected) in [
            ("models.example.org", "http://models.example.org/a?b=c"),
            ("[::1]:80", "http://[::1]:80/a?b=c"),
            ("", "http://replica/a?b=c"),
            ("a b", "http://replica/a?b=c"),
        ] {
            let request = Request::post("/a?b=c").header(HOST, host).header("x-a", "1");
            let request = request.header("transfer-encoding", "chunked").body(()).unwrap();
            let (head, ()) = request.into_parts();
            let sent = to_http2(&head, KeptBody::new(RequestBody::Whole(Bytes::new())));
            assert_eq!(sent.uri().to_string(), expected);
            assert_eq!(sent.headers().len(), 2);
            assert_eq!(
                (&sent.headers()["te"], &sent.headers()["x-a"]),
                (&HeaderValue::from_static("trailers"), &HeaderValue::from_static("1"),)
            );
        }
    }
}
