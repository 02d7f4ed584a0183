//! Ports of running jobs in the browser, under separate host names.
//!
//! Pages of tenants run there, so these hosts have no pages, no API and no cookies of the portal. Each
//! request checks the right to its port again (`rights`).

pub mod routes;

mod headers;
mod pages;
mod passes;
mod rights;
mod upstream;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use berth_core::ports::{HostScope, Origin, PortAddress};
use berth_types::problems::Problem;
use futures::StreamExt;
use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use crate::terminals::Terminals;
use crate::tunnels::Tunnels;
use berth_foundation::Context;
use berth_foundation::credentials::new_opaque;
use berth_rest::sender::sender_address;
use headers::PortMapping;
pub use pages::TICKET_PATH;
pub use passes::{Passes, PortPass, ValidPass};
pub use upstream::job_ended;
use upstream::{NOT_LISTENING, Target, Upstreams};

/// Maximum bytes of the form with a ticket.
const FORM_LIMIT: usize = 4 << 10;
/// The header by https: a browser uses https only for a year, also for the hosts of jobs below.
const HTTPS_ONLY: &str = "max-age=31536000; includeSubDomains";
/// The longest reception of this form.
const FORM_TIMEOUT: Duration = Duration::from_secs(30);

/// The ports of running jobs.
#[derive(Clone)]
pub struct Ports {
    context: Context,
    terminals: Terminals,
    tunnels: Arc<Tunnels>,
    passes: Arc<Passes>,
    upstreams: Arc<Upstreams>,
}

impl Ports {
    pub fn new(context: Context, terminals: Terminals, tunnels: Arc<Tunnels>) -> Self {
        let passes: Arc<Passes> = Arc::default();
        context.changes.subscribe(passes.clone());
        Self { context, terminals, tunnels, passes, upstreams: Arc::default() }
    }
}

/// Puts the hosts of ports in front of the portal's router.
pub fn with_port_hosts(router: Router, ports: Ports) -> Router {
    if ports.context.settings.ports_origin.is_none() {
        return router;
    }
    router.layer(axum::middleware::from_fn_with_state(ports, by_host))
}

/// The host name of a request, from its address or its `Host` header.
fn request_host(request: &Request) -> &str {
    let authority = request.uri().authority().map(http::uri::Authority::as_str);
    let header = request.headers().get(header::HOST).and_then(|value| value.to_str().ok());
    authority.or(header).unwrap_or_default()
}

async fn by_host(State(ports): State<Ports>, request: Request, next: Next) -> Response {
    let origin = ports.context.settings.ports_origin.clone();
    let scope = origin.as_ref().and_then(|origin| origin.find_scope(request_host(&request)));
    match origin.zip(scope) {
        None => next.run(request).await,
        Some((origin, scope)) => {
            let mut response = respond(&ports, &origin, scope, request).await;
            if origin.is_https() {
                let rule = HeaderValue::from_static(HTTPS_ONLY);
                response.headers_mut().insert(header::STRICT_TRANSPORT_SECURITY, rule);
            }
            response
        }
    }
}

fn nothing_here() -> Problem {
    let detail = "This host name serves the ports of jobs. Open a port from the page of its job.";
    Problem::new(404, "object.not_found", "Page not found", detail)
}

async fn respond(ports: &Ports, origin: &Origin, scope: HostScope, request: Request) -> Response {
    let html = pages::accepts_html(request.headers());
    let is_get = *request.method() == Method::GET;
    let path = request.uri().path().to_owned();
    let nonce = ports.context.random(new_opaque);
    let result = if path == TICKET_PATH {
        exchange_ticket(ports, scope, &nonce, request).await
    } else {
        proxy(ports, origin, scope, &path, request).await
    };
    result.unwrap_or_else(|problem| {
        let portal = ports.context.settings.public_url.trim_end_matches('/');
        let back = match PortAddress::from_path(&path) {
            // The portal redirects to the job's organization. Its slug is not for every visitor of this host.
            Some((address, _)) => format!("{portal}/jobs/{}", address.job),
            None => format!("{portal}/"),
        };
        let refresh = is_get && problem.code == NOT_LISTENING;
        pages::problem(&ports.context, &nonce, problem, html, &back, refresh)
    })
}

/// Exchanges a ticket for the cookie of a pass. A GET request returns the page that posts the ticket.
async fn exchange_ticket(
    ports: &Ports,
    scope: HostScope,
    nonce: &str,
    request: Request,
) -> Result<Response, Problem> {
    match *request.method() {
        Method::GET | Method::HEAD => return Ok(pages::ticket_page(nonce)),
        Method::POST => {}
        _ => {
            let detail = "Send the ticket by POST.";
            return Err(Problem::new(405, "request.method", "Method not allowed", detail));
        }
    }
    let body = tokio::time::timeout(FORM_TIMEOUT, to_bytes(request.into_body(), FORM_LIMIT)).await;
    let body = body.map_err(|_| {
        let detail = "The form did not arrive in time. Open the port again from the page of its job.";
        Problem::new(408, "request.timeout", "Body too slow", detail)
    })?;
    let body = body.map_err(|_| {
        Problem::malformed("The form has an invalid length. Open the port again from the page of its job.")
    })?;
    let form = String::from_utf8_lossy(&body);
    let ticket = form.split('&').find_map(|pair| pair.strip_prefix("ticket=")).unwrap_or_default();
    let pass = ports.exchange_port_ticket(ticket, scope).await?;
    let https = ports.context.settings.ports_origin.as_ref().is_some_and(Origin::is_https);
    let (path, secure) = (pass.address.prefix(), if https { "; Secure" } else { "" });
    let cookie = format!(
        "{}={}; Path={path}; Max-Age={}; HttpOnly; SameSite=Lax{secure}",
        headers::cookie_name(https),
        pass.cookie,
        pass.lifetime_s
    );
    let mut response = StatusCode::SEE_OTHER.into_response();
    let out = response.headers_mut();
    for (name, value) in [(header::SET_COOKIE, cookie), (header::LOCATION, path)] {
        out.insert(name, HeaderValue::from_str(&value).map_err(|_| Problem::internal())?);
    }
    out.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

async fn proxy(
    ports: &Ports,
    origin: &Origin,
    scope: HostScope,
    path: &str,
    request: Request,
) -> Result<Response, Problem> {
    let (address, inside) = PortAddress::from_path(path).ok_or_else(nothing_here)?;
    if !scope.includes(address.job) {
        return Err(nothing_here());
    }
    let (job_origin, prefix) = (origin.job_origin(address.job), address.prefix());
    if inside.is_empty() {
        // Without the slash the browser would not send the cookie, and relative addresses would leave the
        // prefix.
        let query = request.uri().query().map_or_else(String::new, |query| format!("?{query}"));
        let to = HeaderValue::from_str(&format!("{prefix}{query}")).map_err(|_| Problem::internal())?;
        return Ok((StatusCode::PERMANENT_REDIRECT, [(header::LOCATION, to)]).into_response());
    }
    if headers::is_cross_site(request.headers(), request.method(), &job_origin) {
        let detail = "The request came from a page of another site. Open the port from the page of its job.";
        return Err(Problem::new(403, "request.cross_site", "Cross-site request refused", detail));
    }
    let cookies = headers::pass_cookies(request.headers(), origin.is_https());
    let (pass, ended) = ports.port_pass(&cookies, address).await?;
    let (port, keep_path) = (address.port, pass.keep_path);
    let mapping = PortMapping { origin: &job_origin, prefix: &prefix, port, keep_path };
    forward(ports, mapping, &pass, ended, inside, request).await
}

/// Forwards a request to the job and its answer to the browser, until `ended` resolves.
async fn forward(
    ports: &Ports,
    mapping: PortMapping<'_>,
    pass: &PortPass,
    mut ended: BoxFuture<'static, ()>,
    inside: &str,
    mut request: Request,
) -> Result<Response, Problem> {
    let upgrade = headers::upgrade(request.headers());
    let browser = upgrade.as_ref().map(|_| hyper::upgrade::on(&mut request));
    let proxies = &ports.context.settings.trusted_proxies;
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip());
    let visitor = peer.map(|peer| sender_address(proxies, peer, request.headers()));
    let (head, body) = request.into_parts();
    let query = head.uri.query().map_or_else(String::new, |query| format!("?{query}"));
    let target = format!("{}{query}", mapping.job_path(inside));
    let uri: Uri = target.parse().map_err(|_| Problem::malformed("The address is invalid."))?;
    let mut job_request = Request::new(body);
    *job_request.method_mut() = head.method;
    *job_request.uri_mut() = uri;
    *job_request.headers_mut() = mapping.request_headers(&head.headers, visitor, upgrade.clone());
    let (org, node, attempt) = (pass.org, pass.node, pass.attempt);
    let target = Target { org, node, job: pass.address.job, attempt, port: pass.address.port };
    let mut answer = tokio::select! {
        () = &mut ended => return Err(pass_ended()),
        answer = upstream::send(ports, &target, job_request) => answer?,
    };
    let status = answer.status();
    if status == StatusCode::SWITCHING_PROTOCOLS {
        let Some(browser) = browser else { return Err(unexpected_upgrade()) };
        let job = hyper::upgrade::on(&mut answer);
        tokio::spawn(join(browser, job, ended));
        let mut response = status.into_response();
        *response.headers_mut() = mapping.response_headers(answer.headers(), upgrade);
        return Ok(response);
    }
    let (head, body) = answer.into_parts();
    let mut response = Response::new(body_until(body, ended));
    *response.status_mut() = status;
    *response.headers_mut() = mapping.response_headers(&head.headers, None);
    Ok(response)
}

fn unexpected_upgrade() -> Problem {
    let detail = "The program on the port answered with another protocol without a request for it.";
    Problem::new(502, "port.broken", "Invalid answer from the port", detail)
}

/// The refusal for a missing or ended pass.
pub fn pass_ended() -> Problem {
    let detail = "Your access to this port has ended, or it is for another port. Open the port again from the page of its \
                  job.";
    Problem::new(403, "port.ticket", "Access required", detail)
}

/// A body that ends with an error when `ended` resolves.
fn body_until(body: Incoming, ended: BoxFuture<'static, ()>) -> Body {
    let pieces = Body::new(body).into_data_stream();
    let all = futures::stream::unfold(Some((pieces, ended)), |state| async move {
        let (mut pieces, mut ended) = state?;
        tokio::select! {
            () = &mut ended => {
                let error = axum::Error::new(io::Error::other("the access to the port has ended"));
                Some((Err(error), None))
            }
            piece = pieces.next() => match piece? {
                Ok(bytes) => Some((Ok(bytes), Some((pieces, ended)))),
                Err(error) => Some((Err(error), None)),
            },
        }
    });
    Body::from_stream(all)
}

/// Connects both ends of an upgraded connection, until one of them ends or `ended` resolves.
async fn join(browser: OnUpgrade, job: OnUpgrade, ended: BoxFuture<'static, ()>) {
    let both = async {
        let (Ok(browser), Ok(job)) = tokio::join!(browser, job) else { return };
        let (mut browser, mut job) = (TokioIo::new(browser), TokioIo::new(job));
        // An error of one end closes both.
        let _ = tokio::io::copy_bidirectional(&mut browser, &mut job).await;
    };
    tokio::select! {
        () = both => {}
        () = ended => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_comes_from_the_address_or_the_host_header() {
        let request = |uri: &str, host: Option<&str>| {
            let mut request = Request::new(Body::empty());
            *request.uri_mut() = uri.parse().unwrap();
            if let Some(host) = host {
                request.headers_mut().insert(header::HOST, host.parse().unwrap());
            }
            request
        };
        assert_eq!(request_host(&request("/a", Some("x:80"))), "x:80");
        assert_eq!(request_host(&request("http://y/a", Some("x"))), "y");
        assert_eq!(request_host(&request("/a", None)), "");
    }
}
