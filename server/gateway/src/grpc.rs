//! The terms of a call, and the parts of gRPC that the gateway writes itself.

use std::time::Duration;

use berth_serving::grpc;
use berth_types::problems::Problem;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Request, Response, Version};
use hyper::body::{Bytes, Frame};
use tokio::time::Instant;

const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// The properties of a request that decide the form of its answer.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// A call of gRPC, which needs HTTP/2.
    pub is_grpc: bool,
    pub is_http2: bool,
    /// The end of the caller's own time limit.
    pub deadline: Option<Instant>,
}

impl Terms {
    pub fn new<B>(request: &Request<B>) -> Self {
        let is_http2 = request.version() == Version::HTTP_2;
        let is_grpc = is_http2 && is_grpc(request.headers());
        let limit = text(request.headers(), &TIMEOUT).filter(|_| is_grpc).and_then(grpc::timeout_ms);
        // A time that no clock has is no limit.
        let deadline = limit.and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms)));
        Self { is_grpc, is_http2, deadline }
    }

    /// States the rest of the time in a request for a replica.
    pub fn limit(&self, headers: &mut HeaderMap) {
        let Some(deadline) = self.deadline else { return };
        let left = deadline.saturating_duration_since(Instant::now()).as_millis();
        let left = grpc::timeout_text(u64::try_from(left).unwrap_or(u64::MAX));
        if let Ok(value) = HeaderValue::try_from(left) {
            headers.insert(TIMEOUT, value);
        }
    }
}

fn text<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// True for a message of gRPC.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    text(headers, &CONTENT_TYPE).is_some_and(grpc::is_grpc)
}

/// The status in the trailers of an answer, or in the head of one without a message.
pub fn status(headers: &HeaderMap) -> Option<u16> {
    text(headers, &STATUS)?.parse().ok()
}

fn put_status(headers: &mut HeaderMap, status: u16, message: &str) {
    headers.insert(STATUS, HeaderValue::from(status));
    if let Ok(value) = HeaderValue::try_from(grpc::message(message)) {
        headers.insert(MESSAGE, value);
    }
}

/// The trailers that end an answer early.
pub fn last_trailers(status: u16, message: &str) -> Frame<Bytes> {
    let mut trailers = HeaderMap::new();
    put_status(&mut trailers, status, message);
    Frame::trailers(trailers)
}

/// The answer to a refused call: only a head with a status, and an empty body.
pub fn refused<B>(problem: &Problem, empty: B) -> Response<B> {
    without_message(grpc::status(problem), &problem.detail, empty)
}

/// The answer with this status and no message: only a head, and an empty body.
pub fn without_message<B>(status: u16, message: &str, empty: B) -> Response<B> {
    let mut answer = Response::new(empty);
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    put_status(headers, status, message);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_the_time_is_stated_again() {
        let mut request = Request::new(());
        *request.version_mut() = Version::HTTP_2;
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        assert!(Terms::new(&request).deadline.is_none());
        request.headers_mut().insert(TIMEOUT, HeaderValue::from_static("1H"));
        let terms = Terms::new(&request);
        assert!(terms.is_grpc && terms.deadline.is_some());
        terms.limit(request.headers_mut());
        let left = grpc::timeout_ms(request.headers()[TIMEOUT].to_str().unwrap()).unwrap();
        assert!(left <= 3_600_000 && left > 3_500_000, "{left}");
        *request.version_mut() = Version::HTTP_11;
        let terms = Terms::new(&request);
        assert!(!terms.is_grpc && terms.deadline.is_none(), "HTTP/1.1 has no gRPC");
    }
}
