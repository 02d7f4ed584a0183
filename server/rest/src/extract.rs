//! Extractors of requests: bodies, paths and queries. Each fault of a request becomes a problem.

use std::error::Error;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, Uri, header};
use axum::response::IntoResponse;
use berth_types::problems::Problem;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_path_to_error::{Path as JsonPath, Segment};
use tower_http::timeout::TimeoutError;

use crate::failed::Failed;
use crate::faults::{is_beyond, plain, plain_parameter, widest_bounds};

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
    // `IgnoredAny` skips a text without a look at its encoding.
    if let Err(error) = str::from_utf8(bytes) {
        return Err(Problem::malformed(format!("The body is not UTF-8: {error}.")));
    }
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
            serde_json::from_slice::<IgnoredAny>(bytes).map_err(malformed)?;
            let (at, fault) = (pointer(error.path()), error.inner());
            let place = format!(" at line {} column {}", fault.line(), fault.column());
            let text = fault.to_string();
            let message = text.strip_suffix(place.as_str()).unwrap_or(&text);
            let subject = match at.strip_prefix('/') {
                Some(field) => format!("`{field}`"),
                None => "The body".to_owned(),
            };
            Err(Problem::invalid_field(&at, plain(&subject, message)))
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

/// The least and the largest number of a parameter. Its faults do not name its type, so other numbers are tried.
fn parameter_bounds<T: DeserializeOwned>(name: &str) -> Option<(i128, i128)> {
    widest_bounds(|most| {
        let Ok(uri) = format!("/?{name}={most}").parse::<Uri>() else { return false };
        let read = axum::extract::Query::<T>::try_from_uri(&uri);
        read.err().is_none_or(|error| !is_beyond(&error.body_text()))
    })
}

/// The fault of a query in plain words. `text` is the text of its rejection, `bounds` finds those of a parameter.
fn query_fault(query: &str, text: &str, bounds: fn(&str) -> Option<(i128, i128)>) -> String {
    let text = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(text);
    let (name, message) = match text.split_once(": ") {
        Some((name, message)) if !name.contains([' ', '`']) => (name, message),
        _ => ("", text),
    };
    let value = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let subject = if name.is_empty() { "A parameter".to_owned() } else { format!("`{name}`") };
    let bounds = if !name.is_empty() && is_beyond(message) { bounds(name) } else { None };
    format!("The query is invalid. {}", plain_parameter(&subject, value.unwrap_or_default(), message, bounds))
}

/// The query; an unknown or unreadable parameter is a problem.
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Failed;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failed> {
        if parts.uri.query().is_some_and(has_nul) {
            return Err(Failed(Problem::malformed("The query contains a NUL.")));
        }
        let read = axum::extract::Query::<T>::from_request_parts(parts, state).await;
        read.map(|query| Self(query.0)).map_err(|error| {
            let query = parts.uri.query().unwrap_or_default();
            Failed(Problem::malformed(query_fault(query, &error.body_text(), parameter_bounds::<T>)))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Size {
        Small,
        Large,
        Huge,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "the value of the field is not read")]
    struct Retry {
        max: u32,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "the values of the fields are not read")]
    struct Body {
        count: u64,
        #[serde(default)]
        port: Option<u16>,
        #[serde(default)]
        change: Option<i32>,
        #[serde(default)]
        rate: Option<f64>,
        #[serde(default)]
        name: Option<String>,
        #[serde(default)]
        on: Option<bool>,
        #[serde(default)]
        ports: Vec<u8>,
        #[serde(default)]
        labels: BTreeMap<String, String>,
        #[serde(default)]
        size: Option<Size>,
        #[serde(default)]
        retry: Option<Retry>,
    }

    fn fault(body: &str) -> Option<(String, String)> {
        let errors = read_json::<Body>(body.as_bytes()).err()?.errors;
        errors.into_iter().next().map(|error| (error.pointer, error.detail))
    }

    #[test]
    fn a_field_that_does_not_fit_has_plain_words() {
        for (body, pointer, detail) in [
            (r#"{"count": -1}"#, "/count", "`count` must be a whole number from 0, not -1."),
            (r#"{"count": 1.5}"#, "/count", "`count` must be a whole number from 0, not 1.5."),
            (r#"{"count": "1"}"#, "/count", "`count` must be a whole number from 0, not a text."),
            (r#"{"count": null}"#, "/count", "`count` must be a whole number from 0, not null."),
            (
                r#"{"count": 1, "port": 70000}"#,
                "/port",
                "`port` must be a whole number from 0 to 65535, not 70000.",
            ),
            (r#"{"count": 1, "port": -1}"#, "/port", "`port` must be a whole number from 0, not -1."),
            (
                r#"{"count": 1, "change": -3000000000}"#,
                "/change",
                "`change` must be a whole number from -2147483648 to 2147483647, not -3000000000.",
            ),
            (r#"{"count": 1, "change": true}"#, "/change", "`change` must be a whole number, not true."),
            (r#"{"count": 1, "rate": "x"}"#, "/rate", "`rate` must be a number, not a text."),
            (r#"{"count": 1, "name": 5}"#, "/name", "`name` must be a text, not a number."),
            (r#"{"count": 1, "on": "yes"}"#, "/on", "`on` must be true or false, not a text."),
            (r#"{"count": 1, "ports": 5}"#, "/ports", "`ports` must be a list, not 5."),
            (
                r#"{"count": 1, "ports": [1, 256]}"#,
                "/ports/1",
                "`ports/1` must be a whole number from 0 to 255, not 256.",
            ),
            (r#"{"count": 1, "labels": []}"#, "/labels", "`labels` must be an object, not a list."),
            (
                r#"{"count": 1, "size": "tiny"}"#,
                "/size",
                "`size` must be one of `small`, `large`, `huge`, not `tiny`.",
            ),
            (r#"{"count": 1, "size": 3}"#, "/size", "`size` must be one of the allowed values."),
            (
                r#"{"count": 1, "retry": {"max": -2}}"#,
                "/retry/max",
                "`retry/max` must be a whole number from 0, not -2.",
            ),
            ("{}", "", "The field `count` is missing."),
        ] {
            assert_eq!(fault(body), Some((pointer.to_owned(), detail.to_owned())), "{body}");
        }
        let (_, detail) = fault(r#"{"count": 18446744073709551616}"#).unwrap();
        let words = "`count` must be a whole number from 0 to 18446744073709551615, not 1";
        assert!(detail.starts_with(words), "{detail}");
        let (_, detail) = fault(r#"{"count": 1, "gpus": 1}"#).unwrap();
        assert!(detail.starts_with("The field `gpus` is unknown. Allowed: `count`, `port`, "), "{detail}");
        let (_, detail) = fault(r#"{"count": 1, "retry": {"max": 1, "most": 1}}"#).unwrap();
        assert_eq!(detail, "The field `most` is unknown. Allowed: `max`.");
        let (long, cut) = ("x".repeat(100), "x".repeat(80));
        let (_, detail) = fault(&format!(r#"{{"count": 1, "retry": {{"{long}": 5}}}}"#)).unwrap();
        assert_eq!(detail, format!("The field `{cut}` is unknown. Allowed: `max`."));
        let (_, detail) = fault(&format!(r#"{{"count": 1, "size": "{long}"}}"#)).unwrap();
        assert!(detail.ends_with(&format!("not `{cut}`.")), "{detail}");
        for bytes in [&b"{\"count\": 1, \"name\": \"\xff\"}"[..], b"{\"\xff\": 1}", b"[\"\xff\"]"] {
            let refused = read_json::<Body>(bytes).unwrap_err();
            assert_eq!((refused.status, &*refused.code), (400, "request.malformed"), "{}", refused.detail);
        }
        let (_, detail) = fault(r#"{"count": 1, "count": 2}"#).unwrap();
        assert_eq!(detail, "The field `count` is there twice.");
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "the values of the fields are not read")]
    struct Filter {
        limit: Option<u32>,
        after: Option<i8>,
        on: Option<bool>,
        size: Option<Size>,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "the values of the fields are not read")]
    struct Span {
        from: i64,
        bytes: u64,
    }

    fn parameter_fault<T: DeserializeOwned + std::fmt::Debug>(query: &str) -> String {
        let uri: Uri = format!("/jobs?{query}").parse().unwrap_or_default();
        let read = axum::extract::Query::<T>::try_from_uri(&uri);
        read.map_or_else(
            |error| query_fault(query, &error.body_text(), parameter_bounds::<T>),
            |query| format!("{:?}", query.0),
        )
    }

    #[test]
    fn a_parameter_that_does_not_fit_has_plain_words() {
        for (query, detail) in [
            ("limit=-1", "`limit` must be a whole number from 0."),
            ("size=small&limit=-1", "`limit` must be a whole number from 0."),
            ("limit=1.5", "`limit` must be a whole number."),
            ("limit=-", "`limit` must be a whole number."),
            ("limit=many", "`limit` must be a whole number."),
            ("limit=", "`limit` must be a whole number."),
            ("limit=4294967296", "`limit` must be a whole number from 0 to 4294967295."),
            ("on=true&limit=99999999999999999999", "`limit` must be a whole number from 0 to 4294967295."),
            ("after=128", "`after` must be a whole number from -128 to 127."),
            ("after=-129", "`after` must be a whole number from -128 to 127."),
            ("on=yes", "`on` must be true or false."),
            ("size=tiny", "`size` must be one of `small`, `large`, `huge`, not `tiny`."),
            ("limits=1", "The field `limits` is unknown. Allowed: `limit`, `after`, `on`, `size`."),
            ("limit=1&limit=2", "The field `limit` is there twice."),
        ] {
            let found = parameter_fault::<Filter>(query);
            assert_eq!(found, format!("The query is invalid. {detail}"), "{query}");
        }
        // Other parameters may be absent while a bound is found.
        let (least, most) = (i64::MIN, i64::MAX);
        assert_eq!(
            parameter_fault::<Span>("from=9223372036854775808&bytes=1"),
            format!("The query is invalid. `from` must be a whole number from {least} to {most}.")
        );
        assert_eq!(
            parameter_fault::<Span>("bytes=18446744073709551616"),
            format!("The query is invalid. `bytes` must be a whole number from 0 to {}.", u64::MAX)
        );
    }
}
