//! The IP address of a request's sender.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};

use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::Response;
use berth_foundation::proxies::TrustedProxies;

/// The address of a request's sender; `None` for requests inside the portal.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sender(pub Option<IpAddr>);

impl<S: Send + Sync> FromRequestParts<S> for Sender {
    type Rejection = Infallible;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Self>().copied().unwrap_or_default())
    }
}

/// Adds the [`Sender`] to a request, by its connection and the headers of trusted proxies.
pub async fn add_sender(State(proxies): State<TrustedProxies>, mut request: Request, next: Next) -> Response {
    if let Some(ConnectInfo(peer)) = request.extensions().get::<ConnectInfo<SocketAddr>>().copied() {
        let values = request.headers().get_all(proxies.header.name());
        let lines: Vec<&str> = values.iter().filter_map(|value| value.to_str().ok()).collect();
        let sender = proxies.find_sender(peer.ip(), lines.into_iter());
        request.extensions_mut().insert(Sender(Some(sender)));
    }
    next.run(request).await
}
