//! The encrypted transport to the portal: TLS 1.3, a pinned fingerprint of the portal's authority, and the node's
//! certificate.
//!
//! Trust on first use does not exist: the fingerprint comes with the join token.

use std::error::Error;
use std::io;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper_util::rt::TokioIo;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint, Uri};

/// Opens connections to the portal.
#[derive(Clone)]
pub struct PortalConnector {
    portal: Endpoint,
    config: Arc<ClientConfig>,
}

/// A certificate with its key.
pub struct ClientCertificate {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

impl PortalConnector {
    /// `fingerprint` is the SHA-256 of the certificate of the portal's authority, base64url.
    pub fn new(portal: Endpoint, fingerprint: &str, own: Option<ClientCertificate>) -> Result<Self, String> {
        let pinned = URL_SAFE_NO_PAD.decode(fingerprint).ok().and_then(|bytes| bytes.try_into().ok());
        let fingerprint: [u8; 32] = pinned.ok_or("the fingerprint of the portal is invalid")?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| e.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(PinnedAuthority { fingerprint, provider }));
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some(own) => builder.with_client_auth_cert(own.chain, own.key).map_err(|e| e.to_string())?,
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Self { portal, config: Arc::new(config) })
    }

    /// A new connection.
    pub async fn connect(&self) -> Result<Channel, String> {
        let uri = self.portal.uri();
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let port = uri.port_u16().unwrap_or(443);
        let name = ServerName::try_from(host.clone()).map_err(|_| format!("{host:?} is not a host name"))?;
        let tls = TlsConnector::from(self.config.clone());
        let connector = tower::service_fn(move |_: Uri| {
            let (host, name, tls) = (host.clone(), name.clone(), tls.clone());
            async move {
                let stream = TcpStream::connect((host.as_str(), port)).await?;
                stream.set_nodelay(true)?;
                Ok::<_, io::Error>(TokioIo::new(tls.connect(name, stream).await?))
            }
        });
        self.portal.connect_with_connector(connector).await.map_err(|error| error_chain(&error))
    }
}

/// An error with its causes, which have the details.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// Accepts a portal whose certificate is signed by the authority with this fingerprint. The portal sends the
/// certificate of its authority along.
#[derive(Debug)]
struct PinnedAuthority {
    fingerprint: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedAuthority {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let pinned = intermediates.iter().find(|certificate| {
            let der: &[u8] = certificate;
            Sha256::digest(der).as_slice() == self.fingerprint
        });
        let authority = pinned.ok_or(rustls::Error::from(CertificateError::UnknownIssuer))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone())?;
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone())
            .build()
            .map_err(|e| rustls::Error::General(e.to_string()))?
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
