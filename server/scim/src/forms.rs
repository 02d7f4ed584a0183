//! The form of bodies, answers and errors (RFC 7644).

use aide::generate::GenContext;
use aide::openapi::{MediaType, Operation, RequestBody, Response as Described, SchemaObject};
use aide::operation::set_body;
use aide::{OperationInput, OperationOutput};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use berth_rest::extract::read_body;
use berth_rest::failed::{Failed, ProblemForm};
use berth_types::problems::Problem;
use berth_types::scim::{ERROR_MESSAGE, SCIM_MEDIA_TYPE, ScimError};
use schemars::{JsonSchema, Schema};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The begin of all paths of SCIM.
const PATH: &str = "/api/v1/scim/";

/// A JSON body with the media type of SCIM or of JSON.
pub(crate) struct Body<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Failed;
    async fn from_request(request: Request, _: &S) -> Result<Self, Failed> {
        let media = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media = media.and_then(|value| value.split(';').next()).unwrap_or_default().trim();
        if ![SCIM_MEDIA_TYPE, "application/json"].iter().any(|known| media.eq_ignore_ascii_case(known)) {
            let detail = "Send JSON with the header Content-Type: application/scim+json.";
            return Err(Failed(Problem::new(415, "request.media_type", "JSON required", detail)));
        }
        let bytes = read_body(request).await?;
        Ok(Self(read_json(&bytes)?))
    }
}

/// Reads a JSON object.
fn read_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    // Serde would also accept an array of the fields.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(Problem::malformed("The body is no JSON object. Nothing was changed."));
    }
    serde_json::from_slice(bytes).map_err(|error| {
        Problem::malformed(format!(
            "The body does not have the form of its resource: {error}. Nothing was changed."
        ))
    })
}

/// The kind of an error in RFC 7644.
fn scim_type(code: &str) -> Option<&'static str> {
    match code {
        "request.malformed" => Some("invalidSyntax"),
        "scim.filter" => Some("invalidFilter"),
        "scim.path" => Some("invalidPath"),
        "scim.value" | "scim.domain" => Some("invalidValue"),
        "scim.mutability" | "members.last_owner" => Some("mutability"),
        "scim.exists" | "scim.account" => Some("uniqueness"),
        _ => None,
    }
}

/// The body of an error.
fn write_error(problem: &Problem) -> Vec<u8> {
    let error = ScimError {
        schemas: vec![ERROR_MESSAGE.to_owned()],
        status: problem.status.to_string(),
        scim_type: scim_type(&problem.code).map(str::to_owned),
        detail: problem.detail.clone(),
        code: problem.code.clone(),
        request_id: problem.request_id.clone(),
    };
    serde_json::to_vec(&error).unwrap_or_default()
}

/// Gives the problem of an answer at a path of SCIM its form. Middleware around all routes refuses requests too.
pub fn give_scim_form(path: &str, response: &mut Response) {
    if path.starts_with(PATH) && response.extensions().get::<Problem>().is_some() {
        response.extensions_mut().insert(ProblemForm(write_error));
        let media = HeaderValue::from_static(SCIM_MEDIA_TYPE);
        response.headers_mut().insert(header::CONTENT_TYPE, media);
    }
}

/// 200 with a resource or a list.
pub(crate) struct Found<T>(pub T);

/// 201 with a new resource and its address.
pub(crate) struct Created<T> {
    pub location: String,
    pub resource: T,
}

fn answer(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => (status, [(header::CONTENT_TYPE, SCIM_MEDIA_TYPE)], body).into_response(),
        Err(_) => Failed(Problem::internal()).into_response(),
    }
}

impl<T: Serialize> IntoResponse for Found<T> {
    fn into_response(self) -> Response {
        answer(StatusCode::OK, &self.0)
    }
}

impl<T: Serialize> IntoResponse for Created<T> {
    fn into_response(self) -> Response {
        let mut response = answer(StatusCode::CREATED, &self.resource);
        if let Ok(location) = HeaderValue::from_str(&self.location) {
            response.headers_mut().insert(header::LOCATION, location);
        }
        response
    }
}

fn media(schema: Schema) -> MediaType {
    let schema = SchemaObject { json_schema: schema, example: None, external_docs: None };
    MediaType { schema: Some(schema), ..MediaType::default() }
}

fn described<T: JsonSchema>(
    ctx: &mut GenContext,
    status: u16,
    description: &str,
) -> Vec<(Option<u16>, Described)> {
    let schema = ctx.schema.subschema_for::<T>();
    // The descriptions of errors refer to this schema.
    ctx.schema.subschema_for::<ScimError>();
    let content = [(SCIM_MEDIA_TYPE.to_owned(), media(schema))].into_iter().collect();
    vec![(Some(status), Described { description: description.to_owned(), content, ..Described::default() })]
}

impl<T: JsonSchema> OperationOutput for Found<T> {
    type Inner = T;

    fn inferred_responses(ctx: &mut GenContext, _: &mut Operation) -> Vec<(Option<u16>, Described)> {
        described::<T>(ctx, 200, "The resource, or the list of resources.")
    }
}

impl<T: JsonSchema> OperationOutput for Created<T> {
    type Inner = T;

    fn inferred_responses(ctx: &mut GenContext, _: &mut Operation) -> Vec<(Option<u16>, Described)> {
        described::<T>(ctx, 201, "The new resource. The header `Location` has its address.")
    }
}

impl<T: JsonSchema> OperationInput for Body<T> {
    fn operation_input(ctx: &mut GenContext, operation: &mut Operation) {
        let schema = ctx.schema.subschema_for::<T>();
        let content = [(SCIM_MEDIA_TYPE.to_owned(), media(schema))].into_iter().collect();
        set_body(ctx, operation, RequestBody { content, required: true, ..RequestBody::default() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_its_kind_and_its_status_as_a_text() {
        let read = |problem: &Problem| -> serde_json::Value {
            serde_json::from_slice(&write_error(problem)).unwrap()
        };
        let exists = read(&crate::refusals::user_exists());
        assert_eq!(exists["schemas"][0], "urn:ietf:params:scim:api:messages:2.0:Error");
        assert_eq!((&exists["status"], &exists["scimType"]), (&"409".into(), &"uniqueness".into()));
        assert!(read(&Problem::not_found())["scimType"].is_null());
    }
}
