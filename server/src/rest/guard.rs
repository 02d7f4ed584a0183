//! The middleware of every route: request ids, counts, completion and the refusal of cross-site requests.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use berth_types::ids::RequestId;
use berth_types::problems::Problem;

use crate::portal::Portal;
use berth_foundation::repeated::MINUTE_MS;
use berth_foundation::{Context, RequestSource};
use berth_rest::failed::{Failed, ProblemForm};
use berth_rest::origins::cross_site;
use berth_rest::{Disconnect, Sender};

/// Gives each request an id, in the header and inside every problem.
pub async fn request_id(State(portal): State<Portal>, mut request: Request, next: Next) -> Response {
    let id: RequestId = portal.context.new_id(portal.context.now());
    request.extensions_mut().insert(id);
    let (request_id, id) = (id, id.to_string());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let address = request.extensions().get::<Sender>().and_then(|sender| sender.0);
    let mut response = next.run(request).await;
    berth_scim::give_scim_form(&path, &mut response);
    if let Some(mut problem) = response.extensions_mut().remove::<Problem>() {
        if problem.status >= 500 {
            tracing::error!(request_id = %id, %method, path, code = problem.code, "request failed");
        }
        if problem.status == 429 {
            let source = RequestSource { request_id: Some(request_id), address };
            let context = portal.context.clone();
            source.scope(async move { record_throttled(&context, &method, &path) }).await;
        }
        problem.request_id.clone_from(&id);
        let body = match response.extensions().get::<ProblemForm>() {
            Some(ProblemForm(write)) => write(&problem),
            None => serde_json::to_vec(&problem).unwrap_or_default(),
        };
        response.headers_mut().remove(header::CONTENT_LENGTH);
        *response.body_mut() = Body::from(body);
    }
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert("x-request-id", value);
    }
    response
}

/// Records a request beyond a limit of its sender, by the first part of its path: anybody can send any number of them.
fn record_throttled(context: &Context, method: &Method, path: &str) {
    let area = path.strip_prefix("/api/v1/").unwrap_or_default().split('/').next().unwrap_or_default();
    let detail = format!("Too many requests: {method} /{area}.");
    let event = context.visitor_event("request.throttled", area.to_owned(), detail);
    context.repeated.defer(&format!("throttled {method} {area}"), MINUTE_MS, None, event);
}

/// Counts requests and measures their duration.
pub async fn count(State(portal): State<Portal>, request: Request, next: Next) -> Response {
    let (method, began) = (request.method().clone(), tokio::time::Instant::now());
    let response = next.run(request).await;
    portal.telemetry.observe_request(method.as_str(), response.status().as_u16(), began.elapsed());
    response
}

/// Runs a request to its end even if its caller disconnects: after half a request the engine and the store
/// would differ until the next comparison. Work that only the caller needs ends by [`Disconnect`].
pub async fn run_to_end(mut request: Request, next: Next) -> Response {
    let disconnect = Disconnect::default();
    // The server drops this future when the caller disconnects.
    let guard = disconnect.guard();
    request.extensions_mut().insert(disconnect);
    let source = RequestSource {
        request_id: request.extensions().get::<RequestId>().copied(),
        address: request.extensions().get::<Sender>().and_then(|sender| sender.0),
    };
    let done = tokio::spawn(source.scope(next.run(request))).await;
    guard.disarm();
    done.unwrap_or_else(|_| Failed(Problem::internal()).into_response())
}

/// Refuses a changing request if its browser names another site as its origin. Requests with a bearer token
/// pass, because browsers never add one by themselves.
pub async fn same_site(State(portal): State<Portal>, request: Request, next: Next) -> Response {
    let safe = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if safe || request.headers().contains_key(header::AUTHORIZATION) || is_own_site(request.headers()) {
        return next.run(request).await;
    }
    let detail = "A page of another site sent the request.".to_owned();
    let event = portal.context.visitor_event("request.refused", "cross-site".to_owned(), detail);
    portal.context.repeated.defer("cross-site", MINUTE_MS, None, event);
    Failed(cross_site()).into_response()
}

fn is_own_site(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
    match (text("sec-fetch-site"), text("origin")) {
        (Some(site), _) => matches!(site, "same-origin" | "none"),
        (None, Some(origin)) => {
            let host = text("host").unwrap_or_default();
            !host.is_empty() && origin.split_once("://").is_some_and(|(_, from)| from == host)
        }
        // Every browser sends one of the two: a program has set the cookie of such a request on purpose.
        (None, None) => true,
    }
}
