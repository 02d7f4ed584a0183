//! The routes of all parts under `/api/v1`, and the middleware around them.

mod body_limits;
mod guard;
mod idempotency;

use std::sync::Arc;

use aide::axum::ApiRouter;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Extension, Router};
use berth_rest::Failed;
use berth_rest::authentication::Authenticator;
use berth_rest::scopes::RouteScopes;
use berth_rest::sender;
use berth_types::problems::Problem;
use tower_http::set_header::SetResponseHeaderLayer;

use crate::parts::{Part, Visitor, visit_parts};
use crate::portal::Portal;
use crate::{install, metrics, openapi};

/// The policy of answers without one of their own: a browser that shows such an answer as a page runs and loads nothing,
/// and shows it in no frame.
const POLICY: &str = "default-src 'none'; frame-ancestors 'none'";

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
    let proxies = portal.context.settings.trusted_proxies.clone();
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
        .layer(Extension(RouteScopes(openapi::find_scope)))
        .layer(axum::middleware::from_fn_with_state(portal.clone(), guard::same_site))
        .layer(axum::middleware::from_fn(guard::run_to_end))
        .layer(axum::middleware::from_fn_with_state(portal.clone(), guard::request_id))
        .layer(axum::middleware::from_fn_with_state(portal, guard::count))
        // Answers are about one caller. An answer with a rule of its own keeps it.
        .layer(SetResponseHeaderLayer::if_not_present(
            header::CACHE_CONTROL,
            HeaderValue::from_static("no-store"),
        ))
        .layer(SetResponseHeaderLayer::if_not_present(
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_static(POLICY),
        ))
        .layer(axum::middleware::from_fn(body_limits::limit_body))
        .layer(axum::middleware::from_fn_with_state(proxies, sender::add_sender))
}

async fn ready(State(portal): State<Portal>) -> impl IntoResponse {
    match portal.context.db.ping().await {
        Ok(()) => (StatusCode::OK, "ready\n"),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the database does not answer\n"),
    }
}
