//! The answers for callers: those of replicas as they come, and those of the gateway itself.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use berth_serving::grpc::{DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNAVAILABLE};
use berth_serving::refusals::{Fault, Refusal, openai_error};
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use serde_json::Value;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::bodies::{BodyError, CallerFault};
use crate::exchange::Exchange;
use crate::grpc::{self, Terms};
use crate::unread::WatchedAnswer;
use crate::upstream::{Connection, Upstream};

/// The body of an answer.
pub enum AnswerBody {
    Whole(Bytes),
    Passed(Box<PassedAnswer>),
    Watched(WatchedAnswer),
}

/// The form of an answer that the gateway ends itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerKind {
    Plain,
    /// A stream of events in plain text: a break is an event too, and parts of it may be hidden.
    Events,
    /// A break is a status in trailers.
    Grpc,
}

/// The form of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Problem,
    OpenAi,
    Grpc,
}

impl Form {
    /// Chooses the form by the service. A call of gRPC keeps its own.
    pub const fn choose(&mut self, is_openai: bool) {
        if !matches!(self, Self::Grpc) {
            *self = if is_openai { Self::OpenAi } else { Self::Problem };
        }
    }
}

/// The answer of a replica on its way to the caller.
pub struct PassedAnswer {
    body: Incoming,
    exchange: Exchange,
    connection: Option<Connection>,
    upstream: Arc<Upstream>,
    idle: Duration,
    last: Instant,
    end: Pin<Box<Sleep>>,
    deadline: Option<Instant>,
    kind: AnswerKind,
    /// The fault of the caller in a body that is still on its way.
    fault: Option<Arc<CallerFault>>,
    is_ended: bool,
}

/// An answer of a replica with its connection.
pub struct Answered {
    pub body: Incoming,
    pub connection: Connection,
    pub upstream: Arc<Upstream>,
    pub kind: AnswerKind,
    pub terms: Terms,
    pub fault: Option<Arc<CallerFault>>,
}

impl PassedAnswer {
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        while !self.is_ended {
            if self.is_over() {
                return self.break_off("the time of the caller is over");
            }
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    self.last = Instant::now();
                    if let Some(frame) = self.pass(frame) {
                        return Poll::Ready(Some(Ok(frame)));
                    }
                }
                Poll::Ready(None) => self.finish(),
                Poll::Ready(Some(Err(_))) => return self.break_off("the replica broke off its answer"),
                Poll::Pending => {
                    if self.end.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    let end = self.last + self.idle;
                    if end <= Instant::now() {
                        return self.break_off("the replica stopped in its answer");
                    }
                    self.end.as_mut().reset(first(end, self.deadline));
                }
            }
        }
        Poll::Ready(None)
    }

    pub const fn is_ended(&self) -> bool {
        self.is_ended
    }

    pub fn size_hint(&self) -> SizeHint {
        if self.kind == AnswerKind::Events { SizeHint::default() } else { self.body.size_hint() }
    }

    /// True after the end of the caller's own time limit.
    fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Meters a frame. Returns what the caller gets of it.
    fn pass(&mut self, frame: Frame<Bytes>) -> Option<Frame<Bytes>> {
        let part = match frame.into_data() {
            Ok(part) => part,
            Err(other) => {
                if let Some(status) = other.trailers_ref().and_then(grpc::status) {
                    self.exchange.note_grpc_status(status);
                }
                // Nothing follows trailers.
                self.finish();
                return Some(other);
            }
        };
        let out = self.exchange.pass(part);
        // The caller has the whole answer only after its use is recorded.
        if self.body.is_end_stream() {
            self.finish();
        }
        (!out.is_empty()).then(|| Frame::data(out))
    }

    fn finish(&mut self) {
        self.is_ended = true;
        self.exchange.end();
        if let Some(connection) = self.connection.take() {
            self.upstream.keep(connection);
        }
    }

    /// Ends the answer after a fault: a stream of events by a last event, a call of gRPC by its status, any other by the
    /// end of its connection.
    fn break_off(&mut self, reason: &'static str) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.is_ended = true;
        self.connection = None;
        let refusal = self.fault.as_ref().and_then(|fault| fault.refusal(0));
        let status = match &refusal {
            _ if self.is_over() => DEADLINE_EXCEEDED,
            Some(Refusal::BodyTooLarge { .. }) => RESOURCE_EXHAUSTED,
            Some(Refusal::BodyTimeout) => DEADLINE_EXCEEDED,
            _ => UNAVAILABLE,
        };
        if refusal.is_some() || self.is_over() {
            self.exchange.abandon();
        } else {
            self.exchange.fail();
        }
        tracing::debug!(reason, "an answer broke");
        Poll::Ready(Some(match self.kind {
            AnswerKind::Plain => Err(io::Error::other(reason).into()),
            AnswerKind::Events => Ok(Frame::data(Bytes::from(last_event()))),
            AnswerKind::Grpc => Ok(grpc::last_trailers(status, reason)),
        }))
    }
}

/// The earlier one of two ends.
fn first(end: Instant, deadline: Option<Instant>) -> Instant {
    deadline.map_or(end, |deadline| deadline.min(end))
}

/// The event that ends a broken stream. Its first line break ends a line that broke off, which then belongs to this
/// event.
fn last_event() -> String {
    let error = openai_error(&Refusal::Replica(Fault::Broken).problem());
    format!("\nevent: error\ndata: {error}\n\n")
}

impl AnswerBody {
    /// Passes the answer of a replica. `idle` is the longest wait for its next part.
    pub fn passed(answered: Answered, mut exchange: Exchange, idle: Duration) -> Self {
        let Answered { body, connection, upstream, kind, terms, fault } = answered;
        if body.is_end_stream() {
            exchange.end();
            upstream.keep(connection);
            return Self::Whole(Bytes::new());
        }
        let now = Instant::now();
        let answer = Box::new(PassedAnswer {
            body,
            exchange,
            connection: Some(connection),
            upstream,
            idle,
            last: now,
            end: Box::pin(sleep_until(first(now + idle, terms.deadline))),
            deadline: terms.deadline,
            kind,
            fault,
            is_ended: false,
        });
        // A whole connection of HTTP/1.1 has this limit by itself.
        if terms.is_http2 {
            return Self::Watched(WatchedAnswer::new(answer, idle, terms.deadline));
        }
        Self::Passed(answer)
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Passed(answer) => answer.poll_next(cx),
            Self::Watched(answer) => answer.poll_next(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Passed(answer) => answer.is_ended(),
            Self::Watched(answer) => answer.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Passed(answer) => answer.size_hint(),
            Self::Watched(answer) => answer.size_hint(),
        }
    }
}

/// An answer of the gateway.
pub fn whole(status: StatusCode, content_type: &'static str, text: impl Into<Bytes>) -> Response<AnswerBody> {
    let mut answer = Response::new(AnswerBody::Whole(text.into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// An answer of the gateway in JSON.
pub fn json(value: &Value) -> Response<AnswerBody> {
    whole(StatusCode::OK, "application/json", value.to_string())
}

/// The answer to a refused request.
pub fn refused(refusal: &Refusal, request_id: &str, form: Form) -> Response<AnswerBody> {
    let mut problem = refusal.problem();
    request_id.clone_into(&mut problem.request_id);
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut answer = match form {
        Form::OpenAi => whole(status, "application/json", openai_error(&problem).to_string()),
        Form::Grpc => grpc::refused(&problem),
        Form::Problem => {
            let text = serde_json::to_string(&problem).unwrap_or_default();
            whole(status, "application/problem+json", text)
        }
    };
    if let Some(seconds) = problem.retry_after_s {
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer
}
