//! The routes under `/api/v1`, their extractors and their answers.
//!
//! A handler reads the request, calls one method of a part and writes the answer. It has no rules and no SQL.

mod accounts;
mod answers;
mod extract;
mod files;
mod guard;
mod health;
mod idempotency;
mod invoices;
mod jobs;
mod live;
mod members;
mod metrics;
mod money;
mod nodes;
pub mod openapi;
mod operations;
mod payments;
mod ports;
mod quotas;
mod reservations;
mod secrets;
mod terminals;
mod volumes;
mod webhooks;

use aide::axum::ApiRouter;
use aide::openapi::OpenApi;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use berth_types::problems::Problem;

use crate::portal::Portal;
use extract::Failed;

/// Bytes of the largest accepted body.
const BODY_LIMIT: usize = 12 << 20;

/// The routes under `/api/v1`, with their description.
fn described() -> ApiRouter<Portal> {
    ApiRouter::new()
        .merge(accounts::routes())
        .merge(files::routes())
        .merge(health::routes())
        .merge(invoices::routes())
        .merge(jobs::routes())
        .merge(live::routes())
        .merge(members::routes())
        .merge(metrics::routes())
        .merge(money::routes())
        .merge(nodes::routes())
        .merge(operations::routes())
        .merge(payments::routes())
        .merge(ports::routes())
        .merge(quotas::routes())
        .merge(reservations::routes())
        .merge(secrets::routes())
        .merge(terminals::routes())
        .merge(volumes::routes())
        .merge(webhooks::routes())
}

/// Every route of the portal.
pub fn router(portal: Portal) -> Router {
    let mut unused = OpenApi::default();
    let api = described().finish_api(&mut unused);
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics::show))
        .merge(crate::install::routes(&portal))
        .merge(openapi::routes())
        .nest("/api/v1", api)
        .fallback(|| async { Failed(Problem::not_found()) })
        .method_not_allowed_fallback(|| async {
            Failed(Problem::new(
                405,
                "request.method",
                "Wrong method",
                "This address does not take this method.",
            ))
        })
        .layer(axum::middleware::from_fn_with_state(portal.clone(), idempotency::apply_key))
        .layer(axum::middleware::from_fn(guard::same_site))
        .layer(axum::middleware::from_fn(guard::run_to_end))
        .layer(axum::middleware::from_fn_with_state(portal.clone(), guard::request_id))
        .layer(axum::middleware::from_fn_with_state(portal.clone(), guard::count))
        .layer(axum::extract::DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(portal)
}

async fn ready(State(portal): State<Portal>) -> impl IntoResponse {
    match portal.context.db.ping().await {
        Ok(()) => (StatusCode::OK, "ready\n"),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the database does not answer\n"),
    }
}
