//! A connection to a replica by HTTP/1.1, which has one request at a time.
//!
//! The task of the caller reads and writes it. With a task of its own, each part of an answer would wake a second task.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use berth_serving::retries::Progress;
use http::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use http::{Method, Request, Response};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use super::{Failure, HEAD_BYTES, READY_TIMEOUT, too_late};
use crate::bodies::RequestBody;

/// The reads and writes of a connection. It ends with the connection.
type Transfer = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

/// A connection with at most one request.
pub struct Http1Connection {
    sender: SendRequest<RequestBody>,
    /// Absent if a task of its own has it, and after the end of the connection.
    transfer: Option<Transfer>,
    /// The request is the last one. Some programs leave the body of a GET unread, and read it as the next request.
    is_last: bool,
}

impl Http1Connection {
    /// Begins HTTP/1.1 on an open stream.
    ///
    /// # Errors
    /// The stream is closed.
    pub(super) async fn new(stream: TlsStream<TcpStream>) -> hyper::Result<Self> {
        let (sender, connection) =
            Builder::new().max_buf_size(HEAD_BYTES).handshake(TokioIo::new(stream)).await?;
        Ok(Self { sender, transfer: Some(Box::pin(connection.with_upgrades())), is_last: false })
    }

    /// Reads and writes as much as is possible now.
    fn advance(&mut self, cx: &mut Context<'_>) {
        // Each request has the error of its connection.
        if self.transfer.as_mut().is_some_and(|transfer| transfer.as_mut().poll(cx).is_ready()) {
            self.transfer = None;
        }
    }

    /// Reads and writes without a wait. True if the connection can have its next request.
    pub(super) fn is_ready(&mut self) -> bool {
        self.advance(&mut Context::from_waker(Waker::noop()));
        !self.is_last && self.sender.is_ready()
    }

    /// True if the connection takes no further request.
    pub(super) fn is_closed(&self) -> bool {
        self.is_last || self.sender.is_closed()
    }

    /// Waits until the connection can have its next request. Returns it if that was in time.
    pub(super) async fn ready(mut self) -> Option<Self> {
        self.detach();
        let is_ready = matches!(timeout(READY_TIMEOUT, self.sender.ready()).await, Ok(Ok(())));
        is_ready.then_some(self)
    }

    /// Leaves the reads and writes to a task of its own. A body that still comes from the caller needs one: it is sent also
    /// while nobody reads the answer.
    pub fn detach(&mut self) {
        if let Some(transfer) = self.transfer.take() {
            tokio::spawn(transfer);
        }
    }

    /// Sends a request and waits for the head of its answer.
    ///
    /// # Errors
    /// No answer came in time.
    pub(super) async fn exchange(
        mut self,
        mut request: Request<RequestBody>,
        longest: Duration,
        is_sent: &AtomicBool,
    ) -> Result<(Response<Incoming>, Self), Failure> {
        state_length(&mut request);
        self.is_last = !has_content(request.method()) && request.body().size_hint().exact() != Some(0);
        if !matches!(request.body(), RequestBody::Whole(_)) {
            self.detach();
        }
        is_sent.store(true, Ordering::Relaxed);
        let mut answer = pin!(self.sender.try_send_request(request));
        let answered = poll_fn(|cx| {
            self.advance(cx);
            answer.as_mut().poll(cx)
        });
        match timeout(longest, answered).await {
            Ok(Ok(answer)) => Ok((answer, self)),
            Ok(Err(mut error)) => {
                let request = error.take_message().map(Box::new);
                is_sent.store(request.is_none(), Ordering::Relaxed);
                let progress = if request.is_some() { Progress::NotBegun } else { Progress::Sent };
                Err(Failure { progress, is_late: false, reason: error.error().to_string(), request })
            }
            Err(_) => Err(too_late()),
        }
    }

    /// The next frame of an answer on this connection.
    pub fn poll_frame(
        &mut self,
        body: &mut Incoming,
        cx: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        if self.transfer.is_none() {
            return Pin::new(body).poll_frame(cx);
        }
        // Only the connection brings a frame, and it wakes this task itself.
        let mut quiet = Context::from_waker(Waker::noop());
        let ready = Pin::new(&mut *body).poll_frame(&mut quiet);
        if ready.is_ready() {
            return ready;
        }
        self.advance(cx);
        Pin::new(body).poll_frame(if self.transfer.is_some() { &mut quiet } else { cx })
    }
}

/// True for the methods whose requests have a body.
const fn has_content(method: &Method) -> bool {
    matches!(*method, Method::POST | Method::PUT | Method::PATCH)
}

/// States the length of a body in two cases that the library leaves out: an empty body, for which some servers need it,
/// and a body of unknown length, which it drops for some methods.
fn state_length<B: Body>(request: &mut Request<B>) {
    let length = request.body().size_hint().exact();
    let has_content = has_content(request.method());
    let headers = request.headers_mut();
    match length {
        Some(0) if has_content => {
            headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        None => {
            headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        Some(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use hyper::body::SizeHint;

    use super::*;

    /// A body that knows its length alone.
    struct Length(Option<u64>);

    impl Body for Length {
        type Data = Bytes;
        type Error = std::io::Error;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
            Poll::Ready(None)
        }

        fn size_hint(&self) -> SizeHint {
            self.0.map(SizeHint::with_exact).unwrap_or_default()
        }
    }

    #[test]
    fn an_empty_body_states_its_length_and_an_unknown_one_its_form() {
        for (method, length, expected) in [
            (Method::POST, Some(0), (Some("0"), None)),
            (Method::PATCH, Some(0), (Some("0"), None)),
            (Method::GET, Some(0), (None, None)),
            (Method::POST, Some(5), (None, None)),
            (Method::GET, None, (None, Some("chunked"))),
            (Method::POST, None, (None, Some("chunked"))),
        ] {
            let mut request = Request::new(Length(length));
            *request.method_mut() = method.clone();
            state_length(&mut request);
            let text =
                |name: http::HeaderName| request.headers().get(name).map(|value| value.to_str().unwrap());
            assert_eq!((text(CONTENT_LENGTH), text(TRANSFER_ENCODING)), expected, "{method} {length:?}");
        }
    }
}
