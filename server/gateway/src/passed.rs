//! The answer of a replica on its way to its caller.
//!
//! A write to the caller costs more than the part in it, so the parts that have come already go together.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use berth_serving::grpc::{DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNAVAILABLE};
use berth_serving::refusals::{Fault, Refusal, openai_error};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::bodies::{BodyError, CallerFault};
use crate::exchange::Exchange;
use crate::grpc::{self, Terms};
use crate::upstream::{Connection, Upstream};

/// Bytes of the parts that go to the caller together.
const MERGED_BYTES: usize = 16 << 10;

/// A frame of an answer, or its failure.
type AnswerFrame = Result<Frame<Bytes>, BodyError>;

/// The parts of an answer that go to the caller together.
#[derive(Debug, Default)]
struct MergedParts {
    parts: Vec<Bytes>,
    bytes: usize,
}

impl MergedParts {
    /// Adds a part. Returns all parts if they are enough for a write.
    fn push(&mut self, part: Bytes) -> Option<Bytes> {
        self.bytes = self.bytes.saturating_add(part.len());
        if !part.is_empty() {
            self.parts.push(part);
        }
        if self.bytes < MERGED_BYTES { None } else { self.remove() }
    }

    /// Removes all parts, as one.
    fn remove(&mut self) -> Option<Bytes> {
        let parts = std::mem::take(&mut self.parts);
        self.bytes = 0;
        match parts.as_slice() {
            [] => None,
            [only] => Some(only.clone()),
            several => Some(Bytes::from(several.concat())),
        }
    }
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
    merged: MergedParts,
    /// The frame after the merged parts, which is the last one.
    last_frame: Option<AnswerFrame>,
    /// The caller's connection had a turn for the bytes before an error.
    is_flushed: bool,
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
            merged: MergedParts::default(),
            last_frame: None,
            is_flushed: false,
            is_ended: false,
        }
    }

    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<AnswerFrame>> {
        while !self.is_ended {
            if self.is_over() {
                self.break_off("the time of the caller is over", false);
                break;
            }
            match self.poll_body(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    self.last = Instant::now();
                    if let Some(parts) = self.pass(frame) {
                        return Poll::Ready(Some(Ok(Frame::data(parts))));
                    }
                }
                Poll::Ready(None) => self.finish(),
                Poll::Ready(Some(Err(_))) => self.break_off("the replica broke off its answer", false),
                Poll::Pending => {
                    if let Some(parts) = self.merged.remove() {
                        return Poll::Ready(Some(Ok(Frame::data(parts))));
                    }
                    ready!(self.poll_idle(cx));
                }
            }
        }
        if let Some(parts) = self.merged.remove() {
            return Poll::Ready(Some(Ok(Frame::data(parts))));
        }
        // An error ends the connection at once, so the bytes before it get a turn: a caller that reads has them.
        if matches!(self.last_frame, Some(Err(_))) && !std::mem::replace(&mut self.is_flushed, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.last_frame.take())
    }

    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        match &mut self.connection {
            Some(connection) => connection.poll_frame(&mut self.body, cx),
            None => Pin::new(&mut self.body).poll_frame(cx),
        }
    }

    /// Waits until the replica is silent for too long, and ends the answer then.
    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        ready!(self.end.as_mut().poll(cx));
        let end = self.last + self.idle;
        if end <= Instant::now() {
            self.break_off("the replica stopped in its answer", true);
        } else {
            self.end.as_mut().reset(first(end, self.deadline));
        }
        Poll::Ready(())
    }

    pub const fn is_ended(&self) -> bool {
        self.is_ended && self.merged.parts.is_empty() && self.last_frame.is_none()
    }

    pub fn size_hint(&self) -> SizeHint {
        if self.kind == AnswerKind::Events { SizeHint::default() } else { self.body.size_hint() }
    }

    /// True after the end of the caller's own time limit.
    fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Meters a frame. Returns the parts for the caller if they are enough for a write.
    fn pass(&mut self, frame: Frame<Bytes>) -> Option<Bytes> {
        let part = match frame.into_data() {
            Ok(part) => part,
            Err(other) => {
                if let Some(status) = other.trailers_ref().and_then(grpc::status) {
                    self.exchange.note_grpc_status(status);
                }
                // Nothing follows trailers.
                self.last_frame = Some(Ok(other));
                self.finish();
                return None;
            }
        };
        let out = self.exchange.pass(part);
        // The caller has the whole answer only after its use is recorded.
        if self.body.is_end_stream() {
            self.finish();
        }
        self.merged.push(out)
    }

    fn finish(&mut self) {
        self.is_ended = true;
        // A whole answer without a byte.
        self.exchange.note_first_byte();
        self.exchange.end();
        if let Some(connection) = self.connection.take() {
            self.upstream.keep(connection);
        }
    }

    /// Ends the answer after a fault: a stream of events by a last event, a call of gRPC by its status, any other by the
    /// end of its connection. `is_late` says that the replica was silent.
    fn break_off(&mut self, reason: &'static str, is_late: bool) {
        self.is_ended = true;
        self.connection = None;
        let refusal = self.fault.as_ref().and_then(|fault| fault.refusal(0, is_late.then_some(self.idle)));
        let status = match &refusal {
            _ if self.is_over() => DEADLINE_EXCEEDED,
            Some(Refusal::BodyTooLarge { .. }) => RESOURCE_EXHAUSTED,
            Some(Refusal::BodyTimeout) => DEADLINE_EXCEEDED,
            _ => UNAVAILABLE,
        };
        if self.is_over() || refusal.is_some() && !is_late {
            self.exchange.abandon();
        } else if refusal.is_some() {
            self.exchange.abandon_late(self.upstream.worker());
        } else {
            self.exchange.fail(self.upstream.worker());
        }
        tracing::debug!(reason, "an answer broke");
        self.last_frame = Some(match self.kind {
            AnswerKind::Plain => Err(io::Error::other(reason).into()),
            AnswerKind::Events => Ok(Frame::data(Bytes::from(last_event()))),
            AnswerKind::Grpc => Ok(grpc::last_trailers(status, reason)),
        });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_go_together_in_order_and_up_to_a_bound() {
        let mut merged = MergedParts::default();
        assert_eq!(merged.push(Bytes::new()), None);
        assert_eq!(merged.remove(), None, "an empty part is no frame");
        assert_eq!(merged.push(Bytes::from_static(b"one ")), None);
        assert_eq!(merged.push(Bytes::from_static(b"two")), None);
        assert_eq!(merged.remove().unwrap(), "one two");
        assert_eq!(merged.push(Bytes::from(vec![b'a'; MERGED_BYTES - 1])), None);
        let all = merged.push(Bytes::from_static(b"bc")).unwrap();
        assert_eq!((all.len(), all.last()), (MERGED_BYTES + 1, Some(&b'c')));
        assert_eq!((merged.remove(), merged.bytes), (None, 0));
    }
}
