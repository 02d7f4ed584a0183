//! The description of operations for the OpenAPI document.
//!
//! Each route declares the scope of tokens for it, its summary, and its answers if the type of the handler does not
//! have them.

use aide::OperationInput;
use aide::OperationOutput;
use aide::generate::{GenContext, in_context};
use aide::openapi::{
    HeaderStyle, MediaType, Operation, Parameter, ParameterData, ParameterSchemaOrContent, ReferenceOr,
    RequestBody, Response, SchemaObject,
};
use aide::operation::{ParamLocation, add_parameters, parameters_from_schema, set_body};
use aide::transform::TransformOperation;
use axum::Json as Answer;
use axum::body::Bytes;
use berth_types::Page;
use berth_types::operations::OperatedJob;
use berth_types::problems::Problem;
use berth_types::scopes::ApiScope;
use berth_types::secrets::PutSecret;
use berth_types::terminals::{PROTOCOL, TICKET_PROTOCOL, TerminalNews, TerminalSaid, WINDOW_BYTES};
use schemars::{JsonSchema, Schema, json_schema};
use serde_json::json;

use crate::authentication::{OptionallySigned, Signed, SignedUnenrolled};
use crate::columns::Table;
use crate::disconnect::Disconnect;
use crate::extract::{Json, Path, Query, RawBody};
use crate::failed::Failed;
use crate::scopes::{ANY_NAME, EXTENSION, RouteScope};
use crate::sender::Sender;
use crate::streams::{LOG_STREAM, ORG_STREAM, Stream, Streamed};

/// The names of the security schemes.
pub const BEARER: &str = "token";
pub const SESSION: &str = "session";

/// The extension of an operation with the types of its path parameters. The description of the API replaces it
/// by the parameters, because only the route knows their names.
pub const PATH_TYPES: &str = "x-path-types";

type Op<'a> = TransformOperation<'a>;

/// Describes the summary and the scope of a route.
fn begin<'a>(mut op: Op<'a>, scope: RouteScope, summary: &str) -> Op<'a> {
    let name = scope.map_or(ANY_NAME, ApiScope::name);
    op.inner_mut().extensions.insert(EXTENSION.to_owned(), json!(name));
    op.summary(summary)
}

pub fn doc(scope: impl Into<RouteScope>, summary: &'static str) -> impl FnOnce(Op<'_>) -> Op<'_> {
    let scope = scope.into();
    move |op| begin(op, scope, summary)
}

/// An answer without a body.
pub fn empty<const STATUS: u16>(
    scope: impl Into<RouteScope>,
    summary: &'static str,
) -> impl FnOnce(Op<'_>) -> Op<'_> {
    let scope = scope.into();
    move |op| {
        begin(op, scope, summary).response_with::<STATUS, (), _>(|mut answer| {
            answer.inner().content.clear();
            answer
        })
    }
}

pub fn answers<const STATUS: u16, T: JsonSchema>(
    scope: impl Into<RouteScope>,
    summary: &'static str,
) -> impl FnOnce(Op<'_>) -> Op<'_> {
    let scope = scope.into();
    move |op| begin(op, scope, summary).response::<STATUS, Answer<T>>()
}

/// One of two answers, depending on the request.
pub fn answers_either<const ONE: u16, T: JsonSchema, const OTHER: u16, U: JsonSchema>(
    scope: impl Into<RouteScope>,
    summary: &'static str,
) -> impl FnOnce(Op<'_>) -> Op<'_> {
    let scope = scope.into();
    move |op| begin(op, scope, summary).response::<ONE, Answer<T>>().response::<OTHER, Answer<U>>()
}

/// An answer in JSON or CSV.
pub fn or_csv<T: Table>(
    scope: impl Into<RouteScope>,
    summary: &'static str,
) -> impl FnOnce(Op<'_>) -> Op<'_> {
    let scope = scope.into();
    move |op| {
        let op = begin(op, scope, summary).response::<200, Answer<T>>();
        with_media(op, 200, "The table.", "text/csv", &T::table_schema())
    }
}

/// A list in JSON, or all of its objects as lines of JSON or as CSV.
pub fn or_files<T: Table>(
    scope: impl Into<RouteScope>,
    summary: &'static str,
) -> impl FnOnce(Op<'_>) -> Op<'_> {
    let scope = scope.into();
    move |op| {
        let op = or_csv::<T>(scope, summary)(op);
        let lines = json_schema!({ "type": "string", "description": "All objects of the list, one JSON object a line." });
        with_media(op, 200, "The list.", "application/x-ndjson", &lines)
    }
}

/// The jobs of a list in CSV.
pub fn csv(scope: impl Into<RouteScope>, summary: &'static str) -> impl FnOnce(Op<'_>) -> Op<'_> {
    let scope = scope.into();
    move |op| {
        let schema = Page::<OperatedJob>::table_schema();
        with_media(begin(op, scope, summary), 200, "All jobs of the list.", "text/csv", &schema)
    }
}

/// An answer in JSON, or a stream of events if `Accept` asks for it.
pub fn events<T: Streamed>(
    scope: impl Into<RouteScope>,
    summary: &'static str,
) -> impl FnOnce(Op<'_>) -> Op<'_> {
    let scope = scope.into();
    move |op| {
        let op = begin(op, scope, summary).response_with::<200, Answer<T>, _>(|answer| {
            answer.description("The past in JSON, or a stream with the header `Accept: text/event-stream`.")
        });
        with_stream(op, &T::STREAM)
    }
}

/// The stream of an organization.
pub fn stream(scope: impl Into<RouteScope>, summary: &'static str) -> impl FnOnce(Op<'_>) -> Op<'_> {
    let scope = scope.into();
    move |op| with_stream(begin(op, scope, summary), &ORG_STREAM)
}

/// The log of a rank as a text, or as a stream if `Accept` asks for it.
pub fn log(scope: impl Into<RouteScope>, summary: &'static str) -> impl FnOnce(Op<'_>) -> Op<'_> {
    let scope = scope.into();
    move |op| {
        let description = "The log so far, or a stream with the header `Accept: text/event-stream`.";
        let op = with_media(begin(op, scope, summary), 200, description, "text/plain", &text());
        with_stream(op, &LOG_STREAM)
    }
}

/// The bytes of a file: all, a range, or none if the caller has them.
pub fn bytes(scope: impl Into<RouteScope>, summary: &'static str) -> impl FnOnce(Op<'_>) -> Op<'_> {
    let scope = scope.into();
    move |op| {
        let bytes = "application/octet-stream";
        let op = with_media(begin(op, scope, summary), 200, "All bytes of the file.", bytes, &binary());
        let op = with_media(op, 206, "The requested range of bytes.", bytes, &binary());
        let op = op.response_with::<304, (), _>(|answer| answer.description("The caller has these bytes."));
        let op = with_header(op, "Range", false, "One range of bytes, such as `bytes=0-99`.", text());
        let op =
            with_header(op, "If-Range", false, "The `ETag` of the bytes that a range continues.", text());
        with_header(op, "If-None-Match", false, "The `ETag` of the bytes that the caller has.", text())
    }
}

/// A PNG image.
pub fn png(scope: impl Into<RouteScope>, summary: &'static str) -> impl FnOnce(Op<'_>) -> Op<'_> {
    let scope = scope.into();
    move |op| with_media(begin(op, scope, summary), 200, "The image.", "image/png", &binary())
}

/// A PDF file.
pub fn pdf(scope: impl Into<RouteScope>, summary: &'static str) -> impl FnOnce(Op<'_>) -> Op<'_> {
    let scope = scope.into();
    move |op| with_media(begin(op, scope, summary), 200, "The file.", "application/pdf", &binary())
}

/// An answer with an `ETag`, or none if the caller has it.
pub fn if_changed<T: JsonSchema>(
    scope: impl Into<RouteScope>,
    summary: &'static str,
) -> impl FnOnce(Op<'_>) -> Op<'_> {
    let scope = scope.into();
    move |op| {
        let op = begin(op, scope, summary).response_with::<200, Answer<T>, _>(|answer| {
            answer.description("The object. The header `ETag` changes with it.")
        });
        let op = op.response_with::<304, (), _>(|answer| answer.description("The caller has this object."));
        with_header(op, "If-None-Match", false, "The `ETag` of the object that the caller has.", text())
    }
}

/// A request with a part of a file as its body.
pub fn upload(scope: impl Into<RouteScope>, summary: &'static str) -> impl FnOnce(Op<'_>) -> Op<'_> {
    let scope = scope.into();
    move |op| {
        let mut op = answers::<200, berth_types::volumes::Upload>(scope, summary)(op);
        let content = [("application/octet-stream".to_owned(), media(&binary()))].into_iter().collect();
        let body = RequestBody { content, required: true, ..RequestBody::default() };
        op.inner_mut().request_body = Some(ReferenceOr::Item(body));
        let offset = json_schema!({ "type": "integer", "format": "uint64", "minimum": 0 });
        let description = "The offset of the first byte of the part in the file.";
        with_header(op, "Upload-Offset", true, description, offset)
    }
}

/// A redirect of a browser.
pub fn redirect(scope: impl Into<RouteScope>, summary: &'static str) -> impl FnOnce(Op<'_>) -> Op<'_> {
    let scope = scope.into();
    move |op| {
        begin(op, scope, summary).response_with::<303, (), _>(|mut answer| {
            answer.inner().content.clear();
            answer.description("The next address is in the header `Location`.")
        })
    }
}

/// A request of a provider of single sign-on with a signed token.
pub fn logout_token(scope: impl Into<RouteScope>, summary: &'static str) -> impl FnOnce(Op<'_>) -> Op<'_> {
    let scope = scope.into();
    move |op| {
        let mut op = empty::<200>(scope, summary)(op);
        let form = json_schema!({
            "type": "object",
            "properties": { "logout_token": { "type": "string", "minLength": 1, "maxLength": 65_536 } },
            "required": ["logout_token"],
        });
        let content = [("application/x-www-form-urlencoded".to_owned(), media(&form))].into_iter().collect();
        let body = RequestBody { content, required: true, ..RequestBody::default() };
        op.inner_mut().request_body = Some(ReferenceOr::Item(body));
        op
    }
}

/// A route with optional authentication.
pub fn optional_sign_in(
    scope: impl Into<RouteScope>,
    summary: &'static str,
) -> impl FnOnce(Op<'_>) -> Op<'_> {
    let scope = scope.into();
    move |op| {
        let mut op = begin(op, scope, summary);
        op.inner_mut().security.insert(0, aide::openapi::SecurityRequirement::default());
        op
    }
}

pub fn put_secret(scope: impl Into<RouteScope>, summary: &'static str) -> impl FnOnce(Op<'_>) -> Op<'_> {
    let scope = scope.into();
    move |mut op| {
        op.inner_mut().request_body = None;
        answers_either::<201, berth_types::secrets::Secret, 200, berth_types::secrets::Secret>(scope, summary)(op)
            .input::<Json<PutSecret>>()
    }
}

/// The WebSocket of a terminal.
pub fn socket(scope: impl Into<RouteScope>, summary: &'static str) -> impl FnOnce(Op<'_>) -> Op<'_> {
    let scope = scope.into();
    move |op| {
        let description = format!(
            "The client offers the subprotocol `{PROTOCOL}`. A client without a bearer token also offers \
             `{TICKET_PROTOCOL}` with its ticket. Binary messages have the input and the output of the shell. Text \
             messages are JSON: `TerminalSaid` of the client and `TerminalNews` of the portal. Each end sends at \
             most {WINDOW_BYTES} bytes beyond the acknowledged bytes of the other end. After a broken connection \
             the client connects again, with a new ticket and the offset of the next byte as `from`."
        );
        let mut op = begin(op, scope, summary)
            .description(&description)
            .response_with::<101, (), _>(|answer| answer.description("The connection is open."));
        let messages = in_context(|ctx| {
            json!({
                "subprotocol": PROTOCOL,
                "client": ctx.schema.subschema_for::<TerminalSaid>(),
                "portal": ctx.schema.subschema_for::<TerminalNews>(),
            })
        });
        op.inner_mut().extensions.insert("x-websocket".to_owned(), messages);
        op
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

/// Adds a media type to the answer with a status. The description is for a new answer.
fn with_media<'a>(mut op: Op<'a>, status: u16, description: &str, name: &str, schema: &Schema) -> Op<'a> {
    let responses = op.inner_mut().responses.get_or_insert_default();
    let answer = responses.responses.entry(aide::openapi::StatusCode::Code(status));
    let empty = || ReferenceOr::Item(Response { description: description.to_owned(), ..Response::default() });
    if let ReferenceOr::Item(answer) = answer.or_insert_with(empty) {
        answer.content.insert(name.to_owned(), media(schema));
    }
    op
}

/// Adds a stream of events to the answer.
fn with_stream<'a>(op: Op<'a>, stream: &Stream) -> Op<'a> {
    let schema = in_context(|ctx| stream.schema(&mut ctx.schema));
    let op = with_media(op, 200, "The stream.", "text/event-stream", &schema);
    if !stream.resumable {
        return op;
    }
    with_header(op, "Last-Event-ID", false, "The `id` of the last received event of a stream.", text())
}

/// Adds a header to the request.
fn with_header<'a>(
    mut op: Op<'a>,
    name: &str,
    required: bool,
    description: &str,
    json_schema: Schema,
) -> Op<'a> {
    let schema = SchemaObject { json_schema, example: None, external_docs: None };
    let parameter_data = ParameterData {
        name: name.to_owned(),
        description: Some(description.to_owned()),
        required,
        deprecated: None,
        format: ParameterSchemaOrContent::Schema(schema),
        example: None,
        examples: Default::default(),
        explode: None,
        extensions: Default::default(),
    };
    let header = Parameter::Header { parameter_data, style: HeaderStyle::Simple };
    op.inner_mut().parameters.push(ReferenceOr::Item(header));
    op
}

/// Facts about the connection are no parameters.
impl OperationInput for Sender {}

impl OperationInput for Disconnect {}

impl OperationInput for Signed {
    fn operation_input(_: &mut GenContext, operation: &mut Operation) {
        let scheme = |name: &str| [(name.to_owned(), Vec::new())].into_iter().collect();
        operation.security = vec![scheme(BEARER), scheme(SESSION)];
    }
}

impl OperationInput for OptionallySigned {
    fn operation_input(ctx: &mut GenContext, operation: &mut Operation) {
        Signed::operation_input(ctx, operation);
    }
}

impl OperationInput for SignedUnenrolled {
    fn operation_input(ctx: &mut GenContext, operation: &mut Operation) {
        Signed::operation_input(ctx, operation);
    }
}

impl OperationInput for RawBody {
    fn operation_input(ctx: &mut GenContext, operation: &mut Operation) {
        Bytes::operation_input(ctx, operation);
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

impl<T: JsonSchema> OperationInput for Path<T> {
    fn operation_input(ctx: &mut GenContext, operation: &mut Operation) {
        let types = ctx.schema.subschema_for::<T>();
        operation.extensions.insert(PATH_TYPES.to_owned(), types.into());
    }
}

impl OperationOutput for Failed {
    type Inner = Problem;

    fn inferred_responses(ctx: &mut GenContext, _: &mut Operation) -> Vec<(Option<u16>, Response)> {
        let schema = ctx.schema.subschema_for::<Problem>();
        let content = [("application/problem+json".to_owned(), media(&schema))].into_iter().collect();
        let description = "A problem (RFC 9457); `code` is stable.".to_owned();
        vec![(None, Response { description, content, ..Response::default() })]
    }
}
