//! The connections to a replica by HTTP/2 without negotiation: each has many requests at the same time.

use std::error::Error;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_serving::retries::Progress;
use http::header::{HOST, HeaderValue, TE};
use http::request::Parts;
use http::uri::{Authority, Scheme};
use http::{Request, Response, Uri, Version};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::time::timeout;

use super::{CONNECT_TIMEOUT, Connection, Failure, HEAD_BYTES, Upstream, too_late};
use crate::bodies::{KeptBody, RequestBody};
use crate::clock::now_ms;

/// Requests on one connection, which is what HTTP/2 asks servers to permit at least.
const MAX_STREAMS: usize = 100;
/// Bytes for each stream that its caller has not read.
const STREAM_BYTES: u32 = 256 << 10;
/// Bytes for all streams of a connection, so that a caller that does not read keeps back its own stream only.
const CONNECTION_BYTES: u32 = STREAM_BYTES * MAX_STREAMS as u32;
/// Cancelled streams for which late parts are ignored.
const MAX_RESET_STREAMS: usize = 256;
/// Milliseconds for which an unused connection is kept. A request that meets its end was not begun.
const KEEP_MS: u64 = 60_000;
/// The host of a request whose caller named none.
const NO_HOST: &str = "replica";

/// The use of a connection.
#[derive(Default)]
struct LineUse {
    streams: AtomicUsize,
    /// The end of its last stream.
    ended_ms: AtomicU64,
}

/// A stream of a connection, counted until its drop.
pub struct Stream(Arc<LineUse>);

impl Stream {
    fn new(line: &Arc<LineUse>) -> Self {
        line.streams.fetch_add(1, Ordering::Relaxed);
        Self(line.clone())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.ended_ms.store(now_ms(), Ordering::Relaxed);
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
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
        open.retain(|line| !line.sender.is_closed());
        let with_room = open.iter().filter(|line| line.streams() < MAX_STREAMS);
        let line = with_room.min_by_key(|line| line.streams())?;
        Some((line.sender.clone(), Stream::new(&line.used)))
    }

    fn put(&self, sender: SendRequest<KeptBody>) -> Opened {
        let line = Line { sender: sender.clone(), used: Arc::default() };
        let stream = Stream::new(&line.used);
        self.lock().push(line);
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
    ) -> Result<(Response<Incoming>, Connection), Failure> {
        if let Some((sender, stream)) = self.lines.find() {
            let used = stream.0.clone();
            match exchange((sender, stream), request, longest).await {
                // The replica closes the connection, but may take the request on another one.
                Err((Failure { request: Some(unsent), .. }, true)) => {
                    self.lines.leave(&used);
                    request = *unsent;
                }
                Err((failure, is_closing)) => {
                    if is_closing {
                        self.lines.leave(&used);
                    }
                    return Err(failure);
                }
                Ok(answer) => return Ok(answer),
            }
        }
        match timeout(CONNECT_TIMEOUT, self.open_line()).await {
            Ok(Ok(opened)) => exchange(opened, request, longest).await.map_err(|(failure, _)| failure),
            Ok(Err((progress, reason))) => {
                Err(Failure { progress, is_late: false, reason, request: Some(Box::new(request)) })
            }
            Err(_) => {
                let reason = "the worker did not answer in time".to_owned();
                let request = Some(Box::new(request));
                Err(Failure { progress: Progress::NotConnected, is_late: false, reason, request })
            }
        }
    }

    /// Opens a connection, or waits for the one that another request opens.
    async fn open_line(&self) -> Result<Opened, (Progress, String)> {
        let _only = self.lines.opening.lock().await;
        if let Some(found) = self.lines.find() {
            return Ok(found);
        }
        let stream = self.reach().await?;
        let built = Builder::new(TokioExecutor::new())
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
        tokio::spawn(async move {
            // Each request has the error of its connection.
            let _ = connection.await;
        });
        Ok(self.lines.put(sender))
    }
}

/// Sends a request on a connection and waits for the head of the answer. A failure says whether the connection closes.
async fn exchange(
    (mut sender, stream): Opened,
    request: Request<RequestBody>,
    longest: Duration,
) -> Result<(Response<Incoming>, Connection), (Failure, bool)> {
    let (head, body) = request.into_parts();
    let kept = KeptBody::new(body);
    let sent = to_http2(&head, kept.clone());
    let mut error = match timeout(longest, sender.try_send_request(sent)).await {
        Ok(Ok(answer)) => {
            kept.forget();
            return Ok((answer, Connection::Http2(stream)));
        }
        Ok(Err(error)) => error,
        Err(_) => return Err((too_late(), false)),
    };
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
            let request = Request::post("/a?b=c").header(HOST, host).header("x-a", "1").body(()).unwrap();
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
