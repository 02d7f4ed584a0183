//! The description of operations for the OpenAPI document.
//!
//! Each route declares its summary, and its answers if the type of the handler does not have them.

use aide::OperationInput;
use aide::OperationOutput;
use aide::generate::GenContext;
use aide::openapi::{MediaType, Operation, ReferenceOr, RequestBody, Response, SchemaObject};
use aide::operation::{ParamLocation, add_parameters, parameters_from_schema, set_body};
use aide::transform::TransformOperation;
use axum::Json as Answer;
use berth_types::problems::Problem;
use berth_types::secrets::PutSecret;
use schemars::{JsonSchema, Schema, json_schema};

use crate::authentication::Signed;
use crate::extract::{Json, Path, Query};
use crate::failed::Failed;

/// The names of the security schemes.
pub const BEARER: &str = "token";
pub const SESSION: &str = "session";

type Op<'a> = TransformOperation<'a>;

pub fn doc(summary: &'static str) -> impl FnOnce(Op<'_>) -> Op<'_> {
    move |op| op.summary(summary)
}

/// An answer without a body.
pub fn empty<const STATUS: u16>(summary: &'static str) -> impl FnOnce(Op<'_>) -> Op<'_> {
    move |op| {
        op.summary(summary).response_with::<STATUS, (), _>(|mut answer| {
            answer.inner().content.clear();
            answer
        })
    }
}

pub fn answers<const STATUS: u16, T: JsonSchema>(summary: &'static str) -> impl FnOnce(Op<'_>) -> Op<'_> {
    move |op| op.summary(summary).response::<STATUS, Answer<T>>()
}

/// One of two answers, depending on the request.
pub fn answers_either<const ONE: u16, T: JsonSchema, const OTHER: u16, U: JsonSchema>(
    summary: &'static str,
) -> impl FnOnce(Op<'_>) -> Op<'_> {
    move |op| op.summary(summary).response::<ONE, Answer<T>>().response::<OTHER, Answer<U>>()
}

/// An answer in JSON or CSV.
pub fn or_csv<T: JsonSchema>(summary: &'static str) -> impl FnOnce(Op<'_>) -> Op<'_> {
    move |op| with_media(op.summary(summary).response::<200, Answer<T>>(), 200, "text/csv", &text())
}

pub fn csv(summary: &'static str) -> impl FnOnce(Op<'_>) -> Op<'_> {
    move |op| with_media(op.summary(summary), 200, "text/csv", &text())
}

/// An answer in JSON, or a stream of events if `Accept` asks for it.
pub fn events<T: JsonSchema>(summary: &'static str) -> impl FnOnce(Op<'_>) -> Op<'_> {
    move |op| with_media(op.summary(summary).response::<200, Answer<T>>(), 200, "text/event-stream", &text())
}

/// A stream of events.
pub fn stream(summary: &'static str) -> impl FnOnce(Op<'_>) -> Op<'_> {
    move |op| with_media(op.summary(summary), 200, "text/event-stream", &text())
}

pub fn log(summary: &'static str) -> impl FnOnce(Op<'_>) -> Op<'_> {
    move |op| {
        let op = with_media(op.summary(summary), 200, "text/plain", &text());
        with_media(op, 200, "text/event-stream", &text())
    }
}

/// The bytes of a file: all, a range, or none if the caller has them.
pub fn bytes(summary: &'static str) -> impl FnOnce(Op<'_>) -> Op<'_> {
    move |op| {
        let op = with_media(op.summary(summary), 200, "application/octet-stream", &binary());
        let op = with_media(op, 206, "application/octet-stream", &binary());
        op.response_with::<304, (), _>(|answer| answer.description("The caller has these bytes."))
    }
}

/// A request with a part of a file as its body.
pub fn upload(summary: &'static str) -> impl FnOnce(Op<'_>) -> Op<'_> {
    move |op| {
        let mut op = answers::<200, berth_types::volumes::Upload>(summary)(op);
        let content = [("application/octet-stream".to_owned(), media(&binary()))].into_iter().collect();
        let body = RequestBody { content, required: true, ..RequestBody::default() };
        op.inner_mut().request_body = Some(ReferenceOr::Item(body));
        op.parameter::<u64, _>("Upload-Offset", |offset| {
            offset.description("The byte at which the part begins.")
        })
    }
}

/// A route with optional authentication.
pub fn optional_sign_in(summary: &'static str) -> impl FnOnce(Op<'_>) -> Op<'_> {
    move |op| {
        let mut op = op.summary(summary);
        op.inner_mut().security.insert(0, aide::openapi::SecurityRequirement::default());
        op
    }
}

pub fn put_secret(summary: &'static str) -> impl FnOnce(Op<'_>) -> Op<'_> {
    move |mut op| {
        op.inner_mut().request_body = None;
        answers_either::<201, berth_types::secrets::Secret, 200, berth_types::secrets::Secret>(summary)(op)
            .input::<Json<PutSecret>>()
    }
}

pub fn socket(summary: &'static str) -> impl FnOnce(Op<'_>) -> Op<'_> {
    move |op| {
        op.summary(summary)
            .response_with::<101, (), _>(|answer| answer.description("The connection is open."))
    }
}

fn text() -> Schema {
    json_schema!({ "type": "string" })
}

fn binary() -> Schema {
    json_schema!({ "type": "string", "format": "binary" })
}

fn media(schema: &Schema) -> MediaType {
    let schema = SchemaObject { json_schema: schema.clone(), example: None, external_docs: None };
    MediaType { schema: Some(schema), ..MediaType::default() }
}

/// Adds a media type to the answer with a status.
fn with_media<'a>(mut op: Op<'a>, status: u16, name: &str, schema: &Schema) -> Op<'a> {
    let responses = op.inner_mut().responses.get_or_insert_default();
    let answer = responses.responses.entry(aide::openapi::StatusCode::Code(status));
    let empty =
        || ReferenceOr::Item(Response { description: "The content.".to_owned(), ..Response::default() });
    if let ReferenceOr::Item(answer) = answer.or_insert_with(empty) {
        answer.content.insert(name.to_owned(), media(schema));
    }
    op
}

impl OperationInput for Signed {
    fn operation_input(_: &mut GenContext, operation: &mut Operation) {
        let scheme = |name: &str| [(name.to_owned(), Vec::new())].into_iter().collect();
        operation.security = vec![scheme(BEARER), scheme(SESSION)];
    }
}

impl<T: JsonSchema> OperationInput for Json<T> {
    fn operation_input(ctx: &mut GenContext, operation: &mut Operation) {
        let schema = ctx.schema.subschema_for::<T>();
        let content = [("application/json".to_owned(), media(&schema))].into_iter().collect();
        set_body(ctx, operation, RequestBody { content, required: true, ..RequestBody::default() });
    }
}

impl<T: JsonSchema> OperationInput for Query<T> {
    fn operation_input(ctx: &mut GenContext, operation: &mut Operation) {
        let schema = ctx.schema.subschema_for::<T>();
        let parameters = parameters_from_schema(ctx, schema, ParamLocation::Query);
        add_parameters(ctx, operation, parameters);
    }
}

/// Empty, because `document` adds the parameters of paths by their names.
impl<T> OperationInput for Path<T> {}

impl OperationOutput for Failed {
    type Inner = Problem;

    fn inferred_responses(ctx: &mut GenContext, _: &mut Operation) -> Vec<(Option<u16>, Response)> {
        let schema = ctx.schema.subschema_for::<Problem>();
        let content = [("application/problem+json".to_owned(), media(&schema))].into_iter().collect();
        let description = "A problem (RFC 9457); `code` is stable.".to_owned();
        vec![(None, Response { description, content, ..Response::default() })]
    }
}
