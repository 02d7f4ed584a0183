//! The identity of this worker: a key that never leaves its data directory, and a certificate for it.
//!
//! A join token gives the first certificate, which is renewed before its expiry. Key and certificate are in one file,
//! so neither exists without the other.

use std::path::Path;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use berth_proto::portal_client::PortalClient;
use berth_proto::{Certificate, JoinRequest, RenewRequest};
use berth_system::clock::wall_s;
use berth_system::files::{find_json, put_json};
use rand::RngCore;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tonic::transport::{Channel, Endpoint};

use super::tls::{ClientCertificate, PortalConnector};

const FILE: &str = "identity.json";
const STARTS: &str = "starts.json";
const DAMAGED: &str = "the identity in the data directory is damaged";

/// All times are of this host's clock, which may differ from the portal's.
#[derive(Clone, Serialize, Deserialize)]
pub struct Identity {
    pub node: String,
    /// The fingerprint of the portal's authority.
    portal: String,
    /// PKCS #8 DER, base64.
    key: String,
    /// DER, base64; the node's certificate first.
    chain: Vec<String>,
    /// Seconds since 1970.
    renew_at_s: i64,
    expires_at_s: i64,
    /// The hash of the join token behind this identity. Another token asks for a new identity.
    ticket: String,
}

/// The common part of identity files of all versions.
#[derive(Deserialize)]
struct EarlierIdentity {
    node: String,
}

/// One start of the daemon among all starts with the same data directory.
#[derive(Clone)]
pub struct DaemonStart {
    /// A random name, in memory only.
    pub instance: String,
    /// The number of the start.
    pub epoch: i64,
}

#[derive(Serialize, Deserialize)]
struct StartCount {
    count: i64,
}

impl DaemonStart {
    /// Counts this start. The count is on the disk before its first use, so no number comes twice.
    pub fn record(data: &Path) -> Result<Self, String> {
        let file = data.join(STARTS);
        let epoch = find_json::<StartCount>(&file).map_or(0, |starts| starts.count).saturating_add(1);
        put_json(&file, &StartCount { count: epoch }, true)
            .map_err(|e| format!("{}: {e}", file.display()))?;
        let mut instance = [0u8; 16];
        rand::rng().fill_bytes(&mut instance);
        Ok(Self { instance: URL_SAFE_NO_PAD.encode(instance), epoch })
    }
}

/// A join token: a secret of the portal, and the fingerprint of the portal's authority.
struct JoinToken<'a> {
    secret: &'a str,
    fingerprint: &'a str,
    hash: String,
}

impl<'a> JoinToken<'a> {
    fn parse(text: &'a str) -> Result<Self, String> {
        let text = text.trim();
        let (secret, fingerprint) = text
            .split_once('.')
            .filter(|(secret, fingerprint)| !secret.is_empty() && fingerprint.len() == 43)
            .ok_or("the join token is incomplete: it has two parts with a dot between them")?;
        Ok(Self { secret, fingerprint, hash: URL_SAFE_NO_PAD.encode(Sha256::digest(text)) })
    }
}

/// A new key and a request to certify it.
fn new_key() -> Result<(KeyPair, Vec<u8>), String> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|e| e.to_string())?;
    let request = CertificateParams::default().serialize_request(&key).map_err(|e| e.to_string())?;
    let request = request.der().to_vec();
    Ok((key, request))
}

impl Identity {
    pub(super) fn new(certificate: Certificate, key: &KeyPair, portal: &str, ticket: &str) -> Self {
        let now = wall_s();
        let lifetime_s = certificate.lifetime_s.max(1);
        Self {
            node: certificate.node,
            portal: portal.to_owned(),
            key: STANDARD.encode(key.serialized_der()),
            chain: certificate.chain.iter().map(|der| STANDARD.encode(der)).collect(),
            renew_at_s: now.saturating_add(lifetime_s.saturating_mul(2) / 3),
            expires_at_s: now.saturating_add(lifetime_s),
            ticket: ticket.to_owned(),
        }
    }

    /// The certificate with its key.
    fn certificate(&self) -> Result<ClientCertificate, String> {
        let broken = |_| DAMAGED.to_owned();
        let key = STANDARD.decode(&self.key).map_err(broken)?;
        let chain = self.chain.iter().map(|der| STANDARD.decode(der).map(CertificateDer::from));
        let chain: Vec<CertificateDer<'static>> = chain.collect::<Result<_, _>>().map_err(broken)?;
        Ok(ClientCertificate { chain, key: PrivatePkcs8KeyDer::from(key).into() })
    }

    /// A connector that proves this identity to the portal.
    pub fn connector(&self, portal: &Endpoint) -> Result<PortalConnector, String> {
        PortalConnector::new(portal.clone(), &self.portal, Some(self.certificate()?))
    }

    /// The certificate with its key, for connections that come to this node.
    pub(super) fn certified_key(&self) -> Result<CertifiedKey, String> {
        let own = self.certificate()?;
        let key = any_supported_type(&own.key).map_err(|_| DAMAGED.to_owned())?;
        Ok(CertifiedKey::new(own.chain, key))
    }

    /// The time until the renewal is due.
    pub fn renew_in(&self) -> Duration {
        Duration::from_secs(u64::try_from(self.renew_at_s.saturating_sub(wall_s())).unwrap_or(0))
    }

    pub fn expired(&self) -> bool {
        self.expires_at_s <= wall_s()
    }

    /// A further certificate with its own key, saved in `data` before its first use.
    pub async fn renew(&self, data: &Path, channel: Channel) -> Result<Self, String> {
        let (key, csr) = new_key()?;
        let reply = PortalClient::new(channel).renew(RenewRequest { csr }).await;
        let certificate = reply.map_err(|status| status.message().to_owned())?.into_inner();
        let fresh = Self::new(certificate, &key, &self.portal, &self.ticket);
        save(data, &fresh)?;
        Ok(fresh)
    }
}

fn save(data: &Path, identity: &Identity) -> Result<(), String> {
    let file = data.join(FILE);
    put_json(&file, identity, true).map_err(|e| format!("{}: {e}", file.display()))
}

/// Parses the address of a portal.
pub fn endpoint(portal: &str) -> Result<Endpoint, String> {
    let wrong = || format!("{portal:?} is not a URL such as https://portal.example.org:8081");
    let endpoint = Endpoint::from_shared(portal.to_owned()).map_err(|_| wrong())?;
    if endpoint.uri().scheme_str() != Some("https") || endpoint.uri().host().is_none() {
        return Err(wrong());
    }
    Ok(endpoint
        .connect_timeout(Duration::from_secs(5))
        .http2_keep_alive_interval(Duration::from_secs(3))
        .keep_alive_timeout(Duration::from_secs(5))
        .keep_alive_while_idle(true)
        .initial_stream_window_size(Some(8 << 20))
        .initial_connection_window_size(Some(16 << 20))
        .tcp_nodelay(true))
}

/// The identity saved in `data`, or a new one for a join token that was not used here yet.
pub async fn obtain(
    data: &Path,
    portal: &Endpoint,
    token: Option<&str>,
    name: &str,
) -> Result<Identity, String> {
    let file = data.join(FILE);
    let kept: Option<Identity> = find_json(&file);
    let Some(token) = token.filter(|token| !token.trim().is_empty()) else {
        return kept.ok_or_else(|| {
            "this worker has not joined yet. Create a join token on the page Nodes and give it with --join-token"
                .to_owned()
        });
    };
    let joined = match JoinToken::parse(token) {
        Err(error) => Err(error),
        Ok(token) => {
            if let Some(kept) = kept.as_ref().filter(|kept| kept.ticket == token.hash) {
                return Ok(kept.clone());
            }
            let former = match &kept {
                Some(kept) => Some(kept.node.clone()),
                None => find_json::<EarlierIdentity>(&file).map(|earlier| earlier.node),
            };
            join(data, portal, &token, name, former).await
        }
    };
    joined.or_else(|error| match kept.filter(|kept| !kept.expired()) {
        // A used token that stays in a setting must not stop a node with a valid certificate.
        Some(kept) => {
            tracing::warn!(error, "the join token is unusable; the node continues with its certificate");
            Ok(kept)
        }
        None => Err(error),
    })
}

async fn join(
    data: &Path,
    portal: &Endpoint,
    token: &JoinToken<'_>,
    name: &str,
    former: Option<String>,
) -> Result<Identity, String> {
    let (key, csr) = new_key()?;
    let channel = PortalConnector::new(portal.clone(), token.fingerprint, None)?
        .connect()
        .await
        .map_err(|e| format!("the portal at {} does not answer: {e}", portal.uri()))?;
    let request = JoinRequest {
        token: token.secret.to_owned(),
        name: name.to_owned(),
        csr,
        node: former.unwrap_or_default(),
    };
    let certificate = PortalClient::new(channel)
        .join(request)
        .await
        .map_err(|status| format!("the portal refused the join token: {}", status.message()))?
        .into_inner();
    let identity = Identity::new(certificate, &key, token.fingerprint, &token.hash);
    save(data, &identity)?;
    Ok(identity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_encrypted_portal_is_spoken_to() {
        for good in ["https://127.0.0.1:8081", "https://portal.example.org", "https://[::1]:1"] {
            assert!(endpoint(good).is_ok(), "{good}");
        }
        for bad in ["http://127.0.0.1:8081", "portal.example.org:8081", "", "https://"] {
            assert!(endpoint(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_join_token_has_two_parts() {
        let fingerprint = "f".repeat(43);
        let text = format!("-secret.{fingerprint}\n");
        let ticket = JoinToken::parse(&text).unwrap();
        assert_eq!((ticket.secret, ticket.fingerprint), ("-secret", fingerprint.as_str()));
        for bad in ["", "secret", "secret.", &format!(".{fingerprint}"), "secret.short"] {
            assert!(JoinToken::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn every_start_is_counted_and_has_a_name_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) =
            (DaemonStart::record(dir.path()).unwrap(), DaemonStart::record(dir.path()).unwrap());
        assert_eq!((first.epoch, second.epoch), (1, 2));
        assert_ne!(first.instance, second.instance);
        assert!(
            DaemonStart::record(&dir.path().join("missing")).is_err(),
            "a start that is not kept does not begin"
        );
    }
}
