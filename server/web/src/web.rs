//! The pages, rendered on the server and then interactive in the browser.
//!
//! A page calls the same REST routes as a script, in the same process. This module has no rules and does not
//! read the store.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Response, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::IntoResponse;
use axum::routing::{any, get};
use berth_app::api::ApiClient;
use berth_app::{App, shell::shell};
use berth_types::portal::PortalIdentity;
use bytes::Bytes;
use hyper::upgrade::OnUpgrade;
use leptos::config::LeptosOptions;
use leptos::context::{provide_context, use_context};
use leptos_axum::{AxumRouteListing, LeptosRoutes, file_and_error_handler_with_context, generate_route_list};
use tower::ServiceExt;
use tower_http::compression::CompressionLayer;
use tower_http::services::ServeDir;
use tower_http::set_header::SetResponseHeaderLayer;

use crate::docs;

/// Bytes of an answer of the API to a page.
const ANSWER_LIMIT: usize = 16 << 20;
/// Bytes of the answer with the name and the look of the portal.
const IDENTITY_LIMIT: usize = 64 << 10;

/// The addresses of the pages, found once in a process. During the search Leptos suspends the resources of all
/// threads for good, also those of pages that are being rendered for the router of another portal.
static PAGES: LazyLock<Vec<AxumRouteListing>> = LazyLock::new(|| generate_route_list(App));

/// The built files for the browser: the directory with `build-id` and `pkg`.
#[derive(Debug, Clone)]
pub struct Assets {
    pub dir: PathBuf,
    /// The id of the build. It is a part of the files' paths, so that no cached file is stale.
    pub build: String,
}

impl Assets {
    /// # Errors
    /// The directory has no valid `build-id`.
    pub fn open(dir: &Path) -> Result<Self, String> {
        let build = std::fs::read_to_string(dir.join("build-id"));
        let build = build.map_err(|e| format!("{} has no built pages: build-id: {e}", dir.display()))?;
        let build = build.trim().to_owned();
        if build.is_empty() || !build.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(format!("{} has no valid build-id", dir.display()));
        }
        Ok(Self { dir: dir.to_owned(), build })
    }
}

/// The client of a page for the API: it adds only the cookies of the visitor to a request.
fn api_client(api: &Router, parts: Option<&Parts>) -> ApiClient {
    let api = api.clone();
    let cookies: Vec<HeaderValue> =
        parts.map(|p| p.headers.get_all(header::COOKIE).iter().cloned().collect()).unwrap_or_default();
    ApiClient(Arc::new(move |request: http::Request<Bytes>| {
        let (api, cookies) = (api.clone(), cookies.clone());
        Box::pin(async move {
            let (mut head, body) = request.into_parts();
            for cookie in cookies {
                head.headers.append(header::COOKIE, cookie);
            }
            let request = Request::from_parts(head, Body::from(body));
            let Ok(answer) = api.oneshot(request).await;
            let (head, body) = answer.into_parts();
            match to_bytes(body, ANSWER_LIMIT).await {
                Ok(bytes) => Response::from_parts(head, bytes),
                Err(_) => {
                    let mut response = Response::new(Bytes::new());
                    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
                    response
                }
            }
        })
    }))
}

/// The name and the look of the portal; the defaults if the API does not answer.
async fn portal_identity(api: Router) -> PortalIdentity {
    let Ok(request) = http::Request::builder().uri("/api/v1/portal").body(Body::empty()) else {
        return PortalIdentity::default();
    };
    let Ok(answer) = api.oneshot(request).await;
    let bytes = to_bytes(answer.into_body(), IDENTITY_LIMIT).await.unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

/// Gives a page the name and the look of the portal for its first HTML, so that nothing changes after its first
/// display.
async fn add_identity(
    State(api): State<Router>,
    mut request: Request,
    next: Next,
) -> axum::response::Response {
    request.extensions_mut().insert(portal_identity(api).await);
    next.run(request).await
}

/// The request without the extensions of the outer router: the inner router would take the outer path
/// parameters for its own.
fn without_extensions(request: Request) -> Request {
    let (mut head, body) = request.into_parts();
    let peer = head.extensions.remove::<ConnectInfo<SocketAddr>>();
    let upgrade = head.extensions.remove::<OnUpgrade>();
    head.extensions.clear();
    if let Some(upgrade) = upgrade {
        head.extensions.insert(upgrade);
    }
    if let Some(peer) = peer {
        head.extensions.insert(peer);
    }
    Request::from_parts(head, body)
}

/// The API and the pages. Without assets the pages are plain HTML without interaction.
pub fn router(api: Router, assets: Option<&Assets>, https: bool) -> Router {
    let build = assets.map_or_else(String::new, |a| a.build.clone());
    let options = LeptosOptions::builder().output_name("berth_app").site_root("/nonexistent").build();
    let inner = api.clone();
    let context = move || {
        let parts = use_context::<Parts>();
        provide_context(api_client(&inner, parts.as_ref()));
    };
    let docs = docs::routes(&build).layer(from_fn_with_state(api.clone(), add_identity));
    let page = move || shell(build.clone());
    let missing = page.clone();
    let pages = Router::new()
        .leptos_routes_with_context(&options, PAGES.clone(), context.clone(), page)
        .fallback(file_and_error_handler_with_context::<LeptosOptions, _>(context, move |_| missing()))
        .with_state(options)
        .layer(from_fn_with_state(api.clone(), add_identity));
    let to_api = move |request: Request| {
        let api = api.clone();
        async move {
            let Ok(answer) = api.oneshot(without_extensions(request)).await;
            answer
        }
    };
    let mut all = Router::new()
        .route("/api/{*rest}", any(to_api.clone()))
        .route("/healthz", any(to_api.clone()))
        .route("/readyz", any(to_api.clone()))
        .route("/metrics", any(to_api.clone()))
        .route("/install/{*rest}", any(to_api));
    if let Some(assets) = assets {
        let files = ServeDir::new(assets.dir.join("pkg")).precompressed_br().precompressed_gzip();
        let forever = SetResponseHeaderLayer::if_not_present(
            header::CACHE_CONTROL,
            HeaderValue::from_static("public, max-age=31536000, immutable"),
        );
        let files = tower::ServiceBuilder::new().layer(forever).service(files);
        all = all
            .nest_service(&format!("/pkg/{}", assets.build), files)
            .nest_service("/fonts", ServeDir::new(assets.dir.join("fonts")));
    }
    // A file of an earlier build is not found: its answer must not be a page.
    all = all.route("/pkg/{*old}", get(|| async { StatusCode::NOT_FOUND.into_response() }));
    let fixed = |name: &'static str, value: &'static str| {
        SetResponseHeaderLayer::if_not_present(HeaderName::from_static(name), HeaderValue::from_static(value))
    };
    let all = all
        .merge(pages)
        .merge(docs)
        .layer(CompressionLayer::new())
        .layer(fixed("x-content-type-options", "nosniff"))
        .layer(fixed("referrer-policy", "same-origin"))
        .layer(fixed("x-frame-options", "DENY"))
        .layer(fixed("cross-origin-opener-policy", "same-origin"))
        .layer(fixed("cross-origin-resource-policy", "same-origin"))
        .layer(fixed("permissions-policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()"));
    if https {
        all.layer(fixed("strict-transport-security", "max-age=31536000; includeSubDomains"))
    } else {
        all
    }
}
