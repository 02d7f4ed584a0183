//! Ports of running jobs in the browser, under host names of their own.
//!
//! A tenant's page runs there, so nothing of the portal is there: neither pages nor API, and no cookie of its.
//! The right to a port is checked anew for each request (`rights`).

mod headers;
mod pages;
mod passes;
mod rights;
mod upstream;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use berth_core::ports::{Origin, Place, Shown};
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
use headers::Way;
pub use pages::DOOR;
pub use passes::{Found, Pass, Passes};
pub use upstream::ended;
use upstream::{NOT_LISTENING, Target, Upstreams};

/// Bytes of the form in which a ticket comes.
const FORM_LIMIT: usize = 4 << 10;

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

/// The portal's router, with the hosts of ports in front of it.
pub fn in_front(router: Router, ports: Ports) -> Router {
    if ports.context.settings.ports_origin.is_none() {
        return router;
    }
    router.layer(axum::middleware::from_fn_with_state(ports, by_host))
}

/// The host that a request is for.
fn host_of(request: &Request) -> &str {
    let named = request.uri().authority().map(http::uri::Authority::as_str);
    let header = request.headers().get(header::HOST).and_then(|value| value.to_str().ok());
    named.or(header).unwrap_or_default()
}

async fn by_host(State(ports): State<Ports>, request: Request, next: Next) -> Response {
    let origin = ports.context.settings.ports_origin.clone();
    let shown = origin.as_ref().and_then(|origin| origin.recognise(host_of(&request)));
    match origin.zip(shown) {
        None => next.run(request).await,
        Some((origin, shown)) => show(&ports, &origin, shown, request).await,
    }
}

fn nothing_here() -> Problem {
    let detail = "Ports of jobs are seen under this host. They are opened from the job's page in the portal.";
    Problem::new(404, "object.not_found", "Nothing is here", detail)
}

async fn show(ports: &Ports, origin: &Origin, shown: Shown, request: Request) -> Response {
    let html = pages::wants_html(request.headers());
    let looks = *request.method() == Method::GET;
    let path = request.uri().path().to_owned();
    let nonce = ports.context.random(new_opaque);
    let answered = if path == DOOR {
        door(ports, shown, &nonce, request).await
    } else {
        proxy(ports, origin, shown, &path, request).await
    };
    answered.unwrap_or_else(|problem| {
        let portal_at = ports.context.settings.public_url.trim_end_matches('/');
        let back = match Place::of(&path) {
            Some((place, _)) => format!("{portal_at}/jobs/{}", place.job),
            None => format!("{portal_at}/"),
        };
        let again = looks && problem.code == NOT_LISTENING;
        pages::problem(&ports.context, &nonce, problem, html, &back, again)
    })
}

/// Trades a ticket for a cookie.
async fn door(ports: &Ports, shown: Shown, nonce: &str, request: Request) -> Result<Response, Problem> {
    match *request.method() {
        Method::GET | Method::HEAD => return Ok(pages::door(nonce)),
        Method::POST => {}
        _ => {
            let detail = "A ticket is handed in by POST.";
            return Err(Problem::new(405, "request.method", "Wrong method", detail));
        }
    }
    let body = to_bytes(request.into_body(), FORM_LIMIT).await;
    let body = body.map_err(|_| Problem::malformed("The form is too long, or ended early."))?;
    let form = String::from_utf8_lossy(&body);
    let ticket = form.split('&').find_map(|pair| pair.strip_prefix("ticket=")).unwrap_or_default();
    let entered = ports.trade_port_ticket(ticket, shown).await?;
    let https = ports.context.settings.ports_origin.as_ref().is_some_and(Origin::is_https);
    let (path, secure) = (entered.place.prefix(), if https { "; Secure" } else { "" });
    let cookie = format!(
        "{}={}; Path={path}; Max-Age={}; HttpOnly; SameSite=Lax{secure}",
        headers::cookie_name(https),
        entered.cookie,
        entered.lifetime_s
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
    shown: Shown,
    path: &str,
    request: Request,
) -> Result<Response, Problem> {
    let (place, inside) = Place::of(path).ok_or_else(nothing_here)?;
    if !shown.has(place.job) {
        return Err(nothing_here());
    }
    let (from, prefix) = (origin.of_job(place.job), place.prefix());
    if inside.is_empty() {
        // Without the slash the cookie would not come, nor would relative addresses lead inside.
        let query = request.uri().query().map_or_else(String::new, |query| format!("?{query}"));
        let to = HeaderValue::from_str(&format!("{prefix}{query}")).map_err(|_| Problem::internal())?;
        return Ok((StatusCode::PERMANENT_REDIRECT, [(header::LOCATION, to)]).into_response());
    }
    if headers::from_elsewhere(request.headers(), request.method(), &from) {
        let detail = "A page of another site asked for this. Open the port from the job's page.";
        return Err(Problem::new(403, "request.cross_site", "Cross-site request refused", detail));
    }
    let cookies = headers::passes(request.headers(), origin.is_https());
    let (pass, ended) = ports.port_pass(&cookies, place).await?;
    let way = Way { origin: &from, prefix: &prefix, port: place.port, keep_path: pass.keep_path };
    forward(ports, way, &pass, ended, inside, request).await
}

/// Hands a request to the job, and its answer to the browser, until `over`.
async fn forward(
    ports: &Ports,
    way: Way<'_>,
    pass: &Pass,
    mut over: BoxFuture<'static, ()>,
    inside: &str,
    mut request: Request,
) -> Result<Response, Problem> {
    let upgrade = headers::upgrade(request.headers());
    let ours = upgrade.as_ref().map(|_| hyper::upgrade::on(&mut request));
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip());
    let (head, body) = request.into_parts();
    let query = head.uri.query().map_or_else(String::new, |query| format!("?{query}"));
    let asked = format!("{}{query}", way.path(inside));
    let uri: Uri = asked.parse().map_err(|_| Problem::malformed("The address cannot be read."))?;
    let mut asked = Request::new(body);
    *asked.method_mut() = head.method;
    *asked.uri_mut() = uri;
    *asked.headers_mut() = way.request(&head.headers, peer, upgrade.clone());
    let (org, node, attempt) = (pass.org, pass.node, pass.attempt);
    let target = Target { org, node, job: pass.place.job, attempt, port: pass.place.port };
    let mut answer = tokio::select! {
        () = &mut over => return Err(no_longer()),
        answer = upstream::send(ports, &target, asked) => answer?,
    };
    let status = answer.status();
    if status == StatusCode::SWITCHING_PROTOCOLS {
        let Some(ours) = ours else { return Err(unasked()) };
        let theirs = hyper::upgrade::on(&mut answer);
        tokio::spawn(join(ours, theirs, over));
        let mut response = status.into_response();
        *response.headers_mut() = way.answer(answer.headers(), upgrade);
        return Ok(response);
    }
    let (head, body) = answer.into_parts();
    let mut response = Response::new(until(body, over));
    *response.status_mut() = status;
    *response.headers_mut() = way.answer(&head.headers, None);
    Ok(response)
}

fn unasked() -> Problem {
    let detail = "What listens there went on with another protocol, which nobody had asked for.";
    Problem::new(502, "port.broken", "The port gave no answer", detail)
}

/// What somebody hears whose pass ended.
pub fn no_longer() -> Problem {
    let detail = "Open this port from the job's page. What let you in has ended, is for another port, or was \
                  never there.";
    Problem::new(403, "port.ticket", "You have to come in from the job's page", detail)
}

/// A body that breaks off when it is over.
fn until(body: Incoming, over: BoxFuture<'static, ()>) -> Body {
    let pieces = Body::new(body).into_data_stream();
    let all = futures::stream::unfold(Some((pieces, over)), |state| async move {
        let (mut pieces, mut over) = state?;
        tokio::select! {
            () = &mut over => {
                let error = axum::Error::new(io::Error::other("the right to it has ended"));
                Some((Err(error), None))
            }
            piece = pieces.next() => match piece? {
                Ok(bytes) => Some((Ok(bytes), Some((pieces, over)))),
                Err(error) => Some((Err(error), None)),
            },
        }
    });
    Body::from_stream(all)
}

/// Connects both ends of what was HTTP, until one of them ends or it is over.
async fn join(ours: OnUpgrade, theirs: OnUpgrade, over: BoxFuture<'static, ()>) {
    let both = async {
        let (Ok(ours), Ok(theirs)) = tokio::join!(ours, theirs) else { return };
        let (mut ours, mut theirs) = (TokioIo::new(ours), TokioIo::new(theirs));
        // Either end may break off; both are closed then.
        let _ = tokio::io::copy_bidirectional(&mut ours, &mut theirs).await;
    };
    tokio::select! {
        () = both => {}
        () = over => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_named_by_the_address_or_by_its_header() {
        let request = |uri: &str, host: Option<&str>| {
            let mut request = Request::new(Body::empty());
            *request.uri_mut() = uri.parse().unwrap();
            if let Some(host) = host {
                request.headers_mut().insert(header::HOST, host.parse().unwrap());
            }
            request
        };
        assert_eq!(host_of(&request("/a", Some("x:80"))), "x:80");
        assert_eq!(host_of(&request("http://y/a", Some("x"))), "y");
        assert_eq!(host_of(&request("/a", None)), "");
    }
}
