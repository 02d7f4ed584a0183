//! Answers with their status in their type, so that the description of the API has it.

use std::hash::{DefaultHasher, Hasher};

use aide::OperationOutput;
use aide::generate::GenContext;
use aide::openapi::{Operation, Response as Described};
use axum::Json;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use berth_types::change_requests::{ChangeRequest, Outcome};
use berth_types::problems::Problem;
use schemars::JsonSchema;
use serde::Serialize;

use crate::failed::Failed;

/// An extension of answers that are never stored for a repeated request: nothing was done, or the answer grants
/// access.
#[derive(Clone, Copy)]
pub struct NotKept;

/// 201 with the new object.
pub struct Created<T>(pub T);

/// 202 with the object: the work continues after the answer.
pub struct Accepted<T>(pub T);

/// The object with this status, or 202 with the change request that waits for a second operator.
pub struct MayWait<const STATUS: u16, T>(pub Outcome<T>);

impl<T: Serialize> IntoResponse for Created<T> {
    fn into_response(self) -> Response {
        (StatusCode::CREATED, Json(self.0)).into_response()
    }
}

impl<T: Serialize> IntoResponse for Accepted<T> {
    fn into_response(self) -> Response {
        (StatusCode::ACCEPTED, Json(self.0)).into_response()
    }
}

impl<const STATUS: u16, T: Serialize> IntoResponse for MayWait<STATUS, T> {
    fn into_response(self) -> Response {
        match self.0 {
            Outcome::Requested(request) => (StatusCode::ACCEPTED, Json(request)).into_response(),
            Outcome::Done(value) => {
                let status = StatusCode::from_u16(STATUS).unwrap_or(StatusCode::OK);
                (status, Json(value)).into_response()
            }
        }
    }
}

/// The rule for caches of objects with an `ETag`: of the 200 and, since it replaces the stored rule, of the 304 too.
const CACHE_CONTROL: &str = "private, no-cache";

/// 200 with the object and its `ETag`, or 304 if the request has this tag in `If-None-Match`.
///
/// # Errors
/// The object cannot be written as JSON.
pub fn if_changed<T: Serialize>(headers: &HeaderMap, value: &T) -> Result<Response, Failed> {
    let body = serde_json::to_vec(value).map_err(|_| Failed(Problem::internal()))?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&body);
    // Weak, because a compressed answer has other bytes.
    let tag = format!("W/\"{:016x}\"", hasher.finish());
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    if known.is_some_and(|known| known.split(',').any(|one| one.trim() == tag)) {
        let fields = [(header::ETAG, tag), (header::CACHE_CONTROL, CACHE_CONTROL.to_owned())];
        return Ok((StatusCode::NOT_MODIFIED, fields).into_response());
    }
    let fields = [
        (header::ETAG, tag),
        (header::CACHE_CONTROL, CACHE_CONTROL.to_owned()),
        (header::CONTENT_TYPE, "application/json".to_owned()),
    ];
    Ok((fields, body).into_response())
}

fn described<T: JsonSchema>(
    ctx: &mut GenContext,
    operation: &mut Operation,
    status: u16,
) -> Vec<(Option<u16>, Described)> {
    Json::<T>::operation_response(ctx, operation).map(|body| (Some(status), body)).into_iter().collect()
}

impl<T: JsonSchema> OperationOutput for Created<T> {
    type Inner = T;

    fn inferred_responses(ctx: &mut GenContext, operation: &mut Operation) -> Vec<(Option<u16>, Described)> {
        described::<T>(ctx, operation, 201)
    }
}

impl<T: JsonSchema> OperationOutput for Accepted<T> {
    type Inner = T;

    fn inferred_responses(ctx: &mut GenContext, operation: &mut Operation) -> Vec<(Option<u16>, Described)> {
        described::<T>(ctx, operation, 202)
    }
}

impl<const STATUS: u16, T: JsonSchema> OperationOutput for MayWait<STATUS, T> {
    type Inner = T;

    fn inferred_responses(ctx: &mut GenContext, operation: &mut Operation) -> Vec<(Option<u16>, Described)> {
        let mut all = described::<T>(ctx, operation, STATUS);
        all.extend(described::<ChangeRequest>(ctx, operation, 202));
        for (status, answer) in &mut all {
            if *status == Some(202) {
                "The act waits for a second operator. Nothing was changed."
                    .clone_into(&mut answer.description);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unchanged_answer_has_no_body() {
        let answer = |known: Option<&str>, value: &str| {
            let mut headers = HeaderMap::new();
            if let Some(known) = known {
                headers.insert(header::IF_NONE_MATCH, known.parse().unwrap());
            }
            let answer = if_changed(&headers, &value).ok().unwrap();
            assert_eq!(answer.headers()[header::CACHE_CONTROL], "private, no-cache");
            (answer.status(), answer.headers()[header::ETAG].to_str().unwrap().to_owned())
        };
        let (status, tag) = answer(None, "one");
        assert_eq!(status, StatusCode::OK);
        assert_eq!(answer(Some(&tag), "one"), (StatusCode::NOT_MODIFIED, tag.clone()));
        assert_eq!(answer(Some(&format!("\"other\", {tag}")), "one").0, StatusCode::NOT_MODIFIED);
        let (status, other) = answer(Some(&tag), "two");
        assert_eq!(status, StatusCode::OK);
        assert_ne!(other, tag);
    }
}
