//! `/metrics` on this host, at the operator's address.
//!
//! Jobs have the host's network, so a local address does not keep them out. A request needs the token in the daemon's
//! data directory, which no job can read.

use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use berth_contract::exposition::CONTENT_TYPE;
use rand::RngCore;
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;

use super::host_telemetry::Telemetry;

/// The file with the token.
pub const TOKEN: &str = "metrics-token";
/// The time between two tries to listen.
const BIND_AGAIN: Duration = Duration::from_secs(10);
/// The shortest token; a shorter file is incomplete.
const LEAST: usize = 32;

#[derive(Clone)]
struct ServerState {
    telemetry: Arc<Telemetry>,
    /// The hash of the token: a comparison of hashes has no useful timing.
    hash: [u8; 32],
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// The token in this data directory; the first call makes it.
pub fn token(data: &Path) -> Result<String, String> {
    let path = data.join(TOKEN);
    let cannot = |e: std::io::Error| format!("{}: {e}", path.display());
    if let Ok(text) = std::fs::read_to_string(&path)
        && text.trim().len() >= LEAST
    {
        return Ok(text.trim().to_owned());
    }
    let mut secret = [0u8; 32];
    rand::rng().fill_bytes(&mut secret);
    let secret = URL_SAFE_NO_PAD.encode(secret);
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&path).map_err(cannot)?;
    file.write_all(secret.as_bytes()).and_then(|()| file.sync_all()).map_err(cannot)?;
    Ok(secret)
}

async fn show(State(state): State<ServerState>, headers: HeaderMap) -> Response {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.strip_prefix("Bearer "));
    if given.is_none_or(|token| hash(token.trim()) != state.hash) {
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
        return (StatusCode::UNAUTHORIZED, challenge, "Send the token of this worker as a bearer token.\n")
            .into_response();
    }
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], state.telemetry.text()).into_response()
}

fn router(telemetry: Arc<Telemetry>, token: &str) -> Router {
    Router::new().route("/metrics", get(show)).with_state(ServerState { telemetry, hash: hash(token) })
}

/// Binds the address. `None`: it is in use, perhaps by a job, which must not stop the daemon.
async fn bind(address: SocketAddr) -> Result<Option<TcpListener>, String> {
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            tracing::warn!(%address, "the address for metrics is in use; trying again");
            Ok(None)
        }
        Err(error) => Err(format!("metrics cannot be served on {address}: {error}")),
    }
}

/// Starts the server, which runs until the end of the daemon.
pub async fn start(address: SocketAddr, data: &Path, telemetry: Arc<Telemetry>) -> Result<(), String> {
    let router = router(telemetry, &token(data)?);
    let mut listener = bind(address).await?;
    tracing::info!(%address, token = %data.join(TOKEN).display(), "metrics are served with the token in this file");
    tokio::spawn(async move {
        loop {
            if let Some(listener) = listener.take()
                && let Err(error) = axum::serve(listener, router.clone()).await
            {
                tracing::error!(%error, "the server for metrics failed; trying again");
            }
            tokio::time::sleep(BIND_AGAIN).await;
            // After a first success errors are temporary.
            listener = bind(address).await.unwrap_or_default();
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use axum::body::Body;
    use axum::http::Request;
    use tower::ServiceExt;

    use super::*;

    #[test]
    fn the_token_stays_the_same_and_is_the_owner_s() {
        let dir = tempfile::tempdir().unwrap();
        let first = token(dir.path()).unwrap();
        assert_eq!(token(dir.path()).unwrap(), first);
        let path = dir.path().join(TOKEN);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&path, "").unwrap();
        assert_ne!(token(dir.path()).unwrap(), first, "an empty file lets nobody in");
    }

    #[tokio::test]
    async fn without_the_token_nothing_is_told() {
        let telemetry = Arc::new(Telemetry::new("quay", true));
        let ask = async |authorization: Option<&str>| {
            let mut request = Request::builder().uri("/metrics");
            if let Some(value) = authorization {
                request = request.header("authorization", value);
            }
            let request = request.body(Body::empty()).unwrap();
            router(telemetry.clone(), "the-token").oneshot(request).await.unwrap().status().as_u16()
        };
        for wrong in [None, Some("Bearer"), Some("Bearer "), Some("Bearer the-toke"), Some("Basic the-token")]
        {
            assert_eq!(ask(wrong).await, 401, "{wrong:?}");
        }
        assert_eq!(ask(Some("Bearer the-token")).await, 200);
    }
}
