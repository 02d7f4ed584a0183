//! Extractors of requests: bodies, paths and queries. Each fault of a request becomes a problem.

use std::error::Error;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use berth_types::problems::Problem;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use serde_path_to_error::{Path as JsonPath, Segment};
use tower_http::timeout::TimeoutError;

use crate::failed::Failed;

/// The longest reception of a body without its bytes.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// The lowest rate of a body, in bytes for each second.
const BODY_RATE: u32 = 32 << 10;

/// The most bytes of the body of a request, as an extension of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyLimit(pub u32);

impl Default for BodyLimit {
    fn default() -> Self {
        Self(64 << 10)
    }
}

impl BodyLimit {
    /// Sets the limit of a request.
    pub fn apply(self, request: &mut Request) {
        DefaultBodyLimit::max(usize::try_from(self.0).unwrap_or(usize::MAX)).apply(request);
        request.extensions_mut().insert(self);
    }

    fn timeout(self) -> Duration {
        BODY_TIMEOUT + Duration::from_secs(u64::from(self.0 / BODY_RATE))
    }
}

impl std::fmt::Display for BodyLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 >> 20 {
            0 => write!(f, "{} KiB", self.0 >> 10),
            mib => write!(f, "{mib} MiB"),
        }
    }
}

fn too_slow() -> Failed {
    let detail = "The body did not arrive in time. Nothing was changed. Send the request again.";
    Failed(Problem::new(408, "request.timeout", "Body too slow", detail))
}

/// True if the next bytes of a body did not arrive in time.
fn is_timeout(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<TimeoutError>() {
            return true;
        }
        next = error.source();
    }
    false
}

/// The bytes of a body.
///
/// # Errors
/// The body is too large, too slow, or ended early.
pub async fn read_body(request: Request) -> Result<Bytes, Failed> {
    let limit = request.extensions().get::<BodyLimit>().copied().unwrap_or_default();
    let too_large = || {
        let detail = format!("The body of this request has at most {limit}. Nothing was changed.");
        Failed(Problem::new(413, "request.too_large", "Body too large", detail))
    };
    let declared =
        request.headers().get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|bytes| bytes > u64::from(limit.0)) {
        return Err(too_large());
    }
    let Ok(body) = tokio::time::timeout(limit.timeout(), Bytes::from_request(request, &())).await else {
        return Err(too_slow());
    };
    body.map_err(|rejection| {
        if is_timeout(&rejection) {
            return too_slow();
        }
        let status = rejection.into_response().status();
        if status == StatusCode::PAYLOAD_TOO_LARGE {
            return too_large();
        }
        let detail = "The body ended early. Nothing was changed. Send the request again.";
        Failed(Problem::malformed(detail))
    })
}

/// The bytes of a body, with its limits of size and time.
pub struct RawBody(pub Bytes);

impl<S: Send + Sync> FromRequest<S> for RawBody {
    type Rejection = Failed;
    async fn from_request(request: Request, _: &S) -> Result<Self, Failed> {
        read_body(request).await.map(Self)
    }
}

/// A JSON body.
pub struct Json<T> {
    pub value: T,
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Failed;
    async fn from_request(request: Request, _: &S) -> Result<Self, Failed> {
        let json =
            request.headers().get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).is_some_and(|v| {
                v.split(';').next().is_some_and(|t| t.trim().eq_ignore_ascii_case("application/json"))
            });
        if !json {
            let detail = "Send JSON with the header Content-Type: application/json.";
            return Err(Failed(Problem::new(415, "request.media_type", "JSON required", detail)));
        }
        let bytes = read_body(request).await?;
        Ok(Self { value: read_json(&bytes).map_err(Failed)? })
    }
}

/// Parses a JSON object.
///
/// # Errors
/// The bytes are no JSON, or a field does not fit: the pointer names it.
fn read_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let malformed = |error| Problem::malformed(format!("The body is not JSON: {error}."));
    // Serde would also accept an array of the fields.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        serde_json::from_slice::<IgnoredAny>(bytes).map_err(malformed)?;
        return Err(Problem::invalid_field("", "The body must be a JSON object."));
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let read = serde_path_to_error::deserialize(&mut json);
    match read {
        Ok(value) => json.end().map(|()| value).map_err(malformed),
        Err(error) => {
            serde_json::from_slice::<Value>(bytes).map_err(malformed)?;
            let detail = format!("Invalid value: {}.", error.inner());
            Err(Problem::invalid_field(&pointer(error.path()), detail))
        }
    }
}

/// The JSON pointer (RFC 6901) of a place in a body.
fn pointer(path: &JsonPath) -> String {
    let parts = path.iter().filter_map(|segment| match segment {
        Segment::Seq { index } => Some(index.to_string()),
        Segment::Map { key } => Some(key.replace('~', "~0").replace('/', "~1")),
        Segment::Enum { .. } | Segment::Unknown => None,
    });
    parts.map(|part| format!("/{part}")).collect()
}

/// True if a part of an address has a NUL. No name has one, and Postgres does not accept it.
fn has_nul(encoded: &str) -> bool {
    encoded.contains("%00")
}

/// Parameters of the path, parsed into ids. An invalid id is answered as not found.
pub struct Path<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = Failed;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failed> {
        if has_nul(parts.uri.path()) {
            return Err(Failed(Problem::not_found()));
        }
        axum::extract::Path::<T>::from_request_parts(parts, state)
            .await
            .map(|path| Self(path.0))
            .map_err(|_| Failed(Problem::not_found()))
    }
}

/// The query; an unknown or unreadable parameter is a problem.
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Failed;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failed> {
        if parts.uri.query().is_some_and(has_nul) {
            return Err(Failed(Problem::malformed("The query contains a NUL.")));
        }
        axum::extract::Query::<T>::from_request_parts(parts, state).await.map(|query| Self(query.0)).map_err(
            |error| Failed(Problem::malformed(format!("The query is invalid: {}.", error.body_text()))),
        )
    }
}
