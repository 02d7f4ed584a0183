//! The routes of all parts under `/api/v1`, and the middleware around them.

mod guard;
mod idempotency;

use std::sync::Arc;

use aide::axum::ApiRouter;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Extension, Router};
use berth_rest::Failed;
use berth_rest::authentication::Authenticator;
use berth_types::problems::Problem;

use crate::parts::{Part, Visitor, visit_parts};
use crate::portal::Portal;
use crate::{install, metrics, openapi};

/// Bytes of the largest accepted body.
const BODY_LIMIT: usize = 12 << 20;

/// The routes of the visited parts, with their state.
struct Mounted<'a> {
    portal: &'a Portal,
    router: Router,
}

impl Visitor for Mounted<'_> {
    fn visit<S: Part>(&mut self, routes: fn() -> ApiRouter<S>) {
        let routes: Router<S> = routes().into();
        let routes = routes.with_state(S::from_portal(self.portal).clone());
        self.router = std::mem::take(&mut self.router).merge(routes);
    }
}

/// Every route of the portal.
pub fn router(portal: Portal) -> Router {
    let mut api = Mounted { portal: &portal, router: Router::new() };
    visit_parts(&mut api);
    let api = api.router;
    let authenticator = Authenticator(Arc::new(portal.accounts.clone()));
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(portal.clone())
        .merge(metrics::routes::exposition(portal.metrics.clone()))
        .merge(install::routes(&portal))
        .merge(openapi::routes())
        .nest("/api/v1", api)
        .fallback(|| async { Failed(Problem::not_found()) })
        .method_not_allowed_fallback(|| async {
            Failed(Problem::new(
                405,
                "request.method",
                "Method not allowed",
                "This address does not support this method.",
            ))
        })
        .layer(axum::middleware::from_fn_with_state(portal.clone(), idempotency::apply_key))
        .layer(Extension(authenticator))
        .layer(axum::middleware::from_fn(guard::same_site))
        .layer(axum::middleware::from_fn(guard::run_to_end))
        .layer(axum::middleware::from_fn_with_state(portal.clone(), guard::request_id))
        .layer(axum::middleware::from_fn_with_state(portal, guard::count))
        .layer(axum::extract::DefaultBodyLimit::max(BODY_LIMIT))
}

async fn ready(State(portal): State<Portal>) -> impl IntoResponse {
    match portal.context.db.ping().await {
        Ok(()) => (StatusCode::OK, "ready\n"),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the database does not answer\n"),
    }
}
