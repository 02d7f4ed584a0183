//! The answer of a replica on its way to its caller.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use berth_serving::grpc::{DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNAVAILABLE};
use berth_serving::refusals::{Fault, Refusal, openai_error};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::bodies::{BodyError, CallerFault};
use crate::exchange::Exchange;
use crate::grpc::{self, Terms};
use crate::upstream::{Connection, Upstream};

/// The form of an answer that the gateway ends itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerKind {
    Plain,
    /// A stream of events in plain text: a break is an event too, and parts of it may be hidden.
    Events,
    /// A break is a status in trailers.
    Grpc,
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
    /// Begins to pass an answer with a body. `idle` is the longest wait for its next part.
    pub fn new(answered: Answered, exchange: Exchange, idle: Duration) -> Self {
        let Answered { body, connection, upstream, kind, terms, fault } = answered;
        let last = Instant::now();
        Self {
            body,
            exchange,
            connection: Some(connection),
            upstream,
            idle,
            last,
            end: Box::pin(sleep_until(first(last + idle, terms.deadline))),
            deadline: terms.deadline,
            kind,
            fault,
            is_ended: false,
        }
    }

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
            self.exchange.fail(self.upstream.worker());
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
