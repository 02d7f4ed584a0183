//! The IP address of a request's sender.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};

use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::HeaderMap;
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

/// The address of the sender of a request with these headers from this peer.
pub fn sender_address(proxies: &TrustedProxies, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
    let values = headers.get_all(proxies.header.name()).iter();
    // A byte outside ASCII must not hide the entries of a trusted proxy in the same line.
    let lines: Vec<_> = values.map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
    proxies.sender(peer, lines.iter().map(|line| &**line))
}

/// Adds the [`Sender`] to a request, by its connection and the headers of trusted proxies.
pub async fn add_sender(State(proxies): State<TrustedProxies>, mut request: Request, next: Next) -> Response {
    if let Some(ConnectInfo(peer)) = request.extensions().get::<ConnectInfo<SocketAddr>>().copied() {
        let sender = sender_address(&proxies, peer.ip(), request.headers());
        request.extensions_mut().insert(Sender(Some(sender)));
    }
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn bytes_outside_ascii_hide_no_entry_of_a_proxy() {
        let proxies =
            TrustedProxies { networks: vec!["10.0.0.0/8".parse().unwrap()], ..TrustedProxies::default() };
        let mut headers = HeaderMap::new();
        headers.append("x-forwarded-for", HeaderValue::from_static("198.51.100.1"));
        headers.append("x-forwarded-for", HeaderValue::from_bytes(b"\xe9\xff, 203.0.113.9").unwrap());
        let sender = sender_address(&proxies, "10.0.0.1".parse().unwrap(), &headers);
        assert_eq!(sender.to_string(), "203.0.113.9");
    }
}
