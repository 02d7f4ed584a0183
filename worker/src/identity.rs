//! Who this worker is to the portal: made once from a join token, kept in the data directory.

use std::path::Path;

use berth_proto::JoinRequest;
use berth_proto::portal_client::PortalClient;
use serde::{Deserialize, Serialize};
use tonic::transport::{Channel, Endpoint};

use crate::files::{find_json, put_json};

const FILE: &str = "identity.json";

#[derive(Clone, Serialize, Deserialize)]
pub struct Identity {
    pub node: String,
    pub secret: String,
}

/// The way to a portal. Until both sides prove themselves by certificates it must not leave the host.
pub fn endpoint(portal: &str) -> Result<Endpoint, String> {
    let endpoint = Endpoint::from_shared(portal.to_owned())
        .map_err(|_| format!("{portal:?} is not an address; it looks like http://127.0.0.1:8081"))?;
    let host = endpoint.uri().host().unwrap_or_default();
    if !matches!(host, "127.0.0.1" | "localhost" | "[::1]") {
        return Err(format!(
            "the portal must be on this host until connections are encrypted, not on {host:?}"
        ));
    }
    Ok(endpoint
        .connect_timeout(std::time::Duration::from_secs(5))
        .http2_keep_alive_interval(std::time::Duration::from_secs(3))
        .keep_alive_timeout(std::time::Duration::from_secs(5))
        .keep_alive_while_idle(true)
        .initial_stream_window_size(Some(8 << 20))
        .initial_connection_window_size(Some(16 << 20))
        .tcp_nodelay(true))
}

/// The identity kept in `data`, or a new one for the join token.
pub async fn obtain(
    data: &Path,
    portal: &Endpoint,
    token: Option<&str>,
    name: &str,
) -> Result<Identity, String> {
    let file = data.join(FILE);
    if let Some(identity) = find_json(&file) {
        return Ok(identity);
    }
    let token = token.ok_or(
        "this worker has not joined yet: give it --join-token; an operator makes one on the Nodes page",
    )?;
    let channel: Channel =
        portal.connect().await.map_err(|e| format!("the portal at {} does not answer: {e}", portal.uri()))?;
    let request = JoinRequest { token: token.to_owned(), name: name.to_owned() };
    let reply = PortalClient::new(channel)
        .join(request)
        .await
        .map_err(|status| format!("the portal refused the join token: {}", status.message()))?
        .into_inner();
    let identity = Identity { node: reply.node, secret: reply.secret };
    put_json(&file, &identity, true).map_err(|e| format!("{}: {e}", file.display()))?;
    Ok(identity)
}
