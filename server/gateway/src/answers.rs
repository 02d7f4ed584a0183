//! The answers for callers: those of replicas as they come, and those of the gateway itself.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use berth_serving::refusals::{Refusal, openai_error};
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Response, StatusCode};
use hyper::body::{Body, Bytes, Frame, SizeHint};
use serde_json::Value;

use crate::bodies::BodyError;
use crate::exchange::Exchange;
use crate::grpc::{self, Terms};
use crate::passed::{Answered, PassedAnswer};
use crate::unread::WatchedAnswer;

/// The body of an answer.
pub enum AnswerBody {
    Whole(Bytes),
    Passed(Box<PassedAnswer>),
    Watched(WatchedAnswer),
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

impl AnswerBody {
    /// Passes the answer of a replica. `idle` is the longest wait for its next part.
    pub fn passed(answered: Answered, mut exchange: Exchange, idle: Duration) -> Self {
        if answered.body.is_end_stream() {
            exchange.note_first_byte();
            exchange.end();
            answered.upstream.keep(answered.connection);
            return Self::Whole(Bytes::new());
        }
        let Terms { is_http2, deadline, .. } = answered.terms;
        let answer = Box::new(PassedAnswer::new(answered, exchange, idle));
        // A whole connection of HTTP/1.1 has this limit by itself.
        if is_http2 {
            Self::Watched(WatchedAnswer::new(answer, idle, deadline))
        } else {
            Self::Passed(answer)
        }
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
        Form::Grpc => grpc::refused(&problem, AnswerBody::Whole(Bytes::new())),
        Form::Problem => {
            let text = serde_json::to_string(&problem).unwrap_or_default();
            whole(status, "application/problem+json", text)
        }
    };
    let headers = answer.headers_mut();
    if let Some(seconds) = problem.retry_after_s {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    // A call of gRPC has its own status.
    if form == Form::Grpc {
        return answer;
    }
    if let Refusal::Method { allowed } = refusal {
        // The answer to HEAD is that of GET.
        let allowed = if *allowed == "GET" { "GET, HEAD" } else { *allowed };
        headers.insert(ALLOW, HeaderValue::from_static(allowed));
    }
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    answer
}
