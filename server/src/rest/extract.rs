//! Extractors of requests: the caller, bodies, paths and queries. Each fault of a request becomes a problem.

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use berth_types::problems::Problem;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use serde_path_to_error::{Path as JsonPath, Segment};

use crate::portal::Portal;
use berth_foundation::Caller;

/// A problem as an answer.
pub struct Failed(pub Problem);

impl From<Problem> for Failed {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self.0).unwrap_or_default();
        let mut response =
            (status, [(header::CONTENT_TYPE, "application/problem+json")], body).into_response();
        if let Some(seconds) = self.0.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(self.0);
        response
    }
}

/// The name of the session cookie.
pub const fn cookie_name(https: bool) -> &'static str {
    if https { "__Host-berth_session" } else { "berth_session" }
}

/// The session cookie's value.
pub fn session_cookie(headers: &HeaderMap, https: bool) -> Option<String> {
    headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(name, _)| *name == cookie_name(https))
        .map(|(_, value)| value.to_owned())
}

/// The caller, by a bearer token or a session. A request with a bearer token ignores cookies.
#[derive(Clone)]
pub struct Signed(pub Caller);

impl FromRequestParts<Portal> for Signed {
    type Rejection = Failed;
    async fn from_request_parts(parts: &mut Parts, portal: &Portal) -> Result<Self, Failed> {
        // The middleware for idempotency keys may have extracted the caller.
        if let Some(signed) = parts.extensions.get::<Self>() {
            return Ok(signed.clone());
        }
        let caller = match parts.headers.get(header::AUTHORIZATION) {
            Some(value) => {
                let token = value.to_str().ok().and_then(|v| v.strip_prefix("Bearer "));
                match token {
                    Some(token) => portal.accounts.caller_by_token(token.trim()).await?,
                    None => None,
                }
            }
            None => match session_cookie(&parts.headers, portal.context.settings.https) {
                Some(cookie) => portal.accounts.caller_by_session(&cookie).await?,
                None => None,
            },
        };
        caller.map(Signed).ok_or_else(|| Failed(Problem::unauthenticated()))
    }
}

/// The bytes of a body.
///
/// # Errors
/// The body is too large or ended early.
pub async fn read_body(request: Request, portal: &Portal) -> Result<Bytes, Failed> {
    Bytes::from_request(request, portal).await.map_err(|rejection| {
        let status = rejection.into_response().status();
        Failed(if status == StatusCode::PAYLOAD_TOO_LARGE {
            let detail = "A body may have at most 12 MiB.";
            Problem::new(413, "request.too_large", "The request is too large", detail)
        } else {
            Problem::malformed("The body ended early.")
        })
    })
}

/// A JSON body.
pub struct Json<T> {
    pub value: T,
}

impl<T: DeserializeOwned> FromRequest<Portal> for Json<T> {
    type Rejection = Failed;
    async fn from_request(request: Request, portal: &Portal) -> Result<Self, Failed> {
        let json =
            request.headers().get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).is_some_and(|v| {
                v.split(';').next().is_some_and(|t| t.trim().eq_ignore_ascii_case("application/json"))
            });
        if !json {
            let detail = "Send JSON, with the header Content-Type: application/json.";
            return Err(Failed(Problem::new(415, "request.media_type", "JSON is expected", detail)));
        }
        let bytes = read_body(request, portal).await?;
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
        return Err(Problem::invalid_field("", "The body is a JSON object."));
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let read = serde_path_to_error::deserialize(&mut json);
    match read {
        Ok(value) => json.end().map(|()| value).map_err(malformed),
        Err(error) => {
            serde_json::from_slice::<Value>(bytes).map_err(malformed)?;
            let detail = format!("The value does not fit: {}.", error.inner());
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

impl<T: DeserializeOwned + Send> FromRequestParts<Portal> for Path<T> {
    type Rejection = Failed;
    async fn from_request_parts(parts: &mut Parts, portal: &Portal) -> Result<Self, Failed> {
        if has_nul(parts.uri.path()) {
            return Err(Failed(Problem::not_found()));
        }
        axum::extract::Path::<T>::from_request_parts(parts, portal)
            .await
            .map(|path| Self(path.0))
            .map_err(|_| Failed(Problem::not_found()))
    }
}

/// The query; an unknown or unreadable parameter is a problem.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<Portal> for Query<T> {
    type Rejection = Failed;
    async fn from_request_parts(parts: &mut Parts, portal: &Portal) -> Result<Self, Failed> {
        if parts.uri.query().is_some_and(has_nul) {
            return Err(Failed(Problem::malformed("The query has a NUL in it.")));
        }
        axum::extract::Query::<T>::from_request_parts(parts, portal).await.map(|query| Self(query.0)).map_err(
            |error| Failed(Problem::malformed(format!("The query cannot be read: {}.", error.body_text()))),
        )
    }
}

/// The `limit` of a list: 1 to 200, or 50 when absent.
///
/// # Errors
/// The limit is out of range.
pub fn limit(asked: Option<u32>) -> Result<u32, Failed> {
    match asked.unwrap_or(50) {
        limit @ 1..=200 => Ok(limit),
        _ => Err(Failed(Problem::malformed("`limit` is between 1 and 200."))),
    }
}

/// Parses the `cursor` of a list.
///
/// # Errors
/// The text is no cursor of this list.
pub fn cursor<T: std::str::FromStr>(text: Option<String>) -> Result<Option<T>, Failed> {
    text.map(|t| {
        t.parse().map_err(|_| Failed(Problem::malformed("This cursor was not given out by this list.")))
    })
    .transpose()
}

/// How a list is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    Json,
    Csv,
}

/// True if the query or `Accept` asks for CSV.
pub fn wants_csv(format: Option<Format>, headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    format.map_or_else(|| accept.trim_start().starts_with("text/csv"), |f| f == Format::Csv)
}

/// A free text as a CSV cell that no spreadsheet program takes for a formula.
pub fn plain_cell(text: String) -> String {
    if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{text}") } else { text }
}
