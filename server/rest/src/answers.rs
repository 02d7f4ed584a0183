//! Answers with their status in their type, so that the description of the API has it.

use aide::OperationOutput;
use aide::generate::GenContext;
use aide::openapi::{Operation, Response as Described};
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;

/// An extension of answers that are never stored for a repeated request: nothing was done, or the answer grants
/// access.
#[derive(Clone, Copy)]
pub struct NotKept;

/// 201 with the new object.
pub struct Created<T>(pub T);

/// 202 with the object: the work continues after the answer.
pub struct Accepted<T>(pub T);

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
