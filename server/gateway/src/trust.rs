//! The trust in workers: their certificates come from the portal's authority and name their nodes.
//!
//! A node has one certificate, for its calls to the portal. So its chain is checked as that of a client, although the
//! worker is the server here.

use std::sync::Arc;

use berth_types::ids::NodeId;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use x509_parser::extensions::GeneralName;

/// The protocol of the listeners of workers.
const PROTOCOL: &[u8] = b"berth-replica/1";
/// The begin of a node's name in its certificate.
const NODE_URI: &str = "berth://node/";

#[derive(Debug)]
struct AuthorityVerifier(Arc<dyn ClientCertVerifier>);

impl ServerCertVerifier for AuthorityVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.0.verify_client_cert(end_entity, intermediates, now).map(|_| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// The TLS of connections to workers. `authority` is the certificate of their authority as PEM.
///
/// # Errors
/// The text is no certificate.
pub fn worker_tls(authority: &str) -> Result<Arc<ClientConfig>, String> {
    let certificate = CertificateDer::from_pem_slice(authority.as_bytes()).map_err(|e| e.to_string())?;
    let mut roots = RootCertStore::empty();
    roots.add(certificate).map_err(|e| e.to_string())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|e| e.to_string())?;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| e.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AuthorityVerifier(verifier)))
        .with_no_client_auth();
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    // A resumed session would skip the check of the certificate.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// The node that a certificate names.
pub fn node_of(certificate: &CertificateDer<'_>) -> Option<NodeId> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let names = parsed.subject_alternative_name().ok()??;
    names.value.general_names.iter().find_map(|name| match name {
        GeneralName::URI(uri) => uri.strip_prefix(NODE_URI)?.parse().ok(),
        _ => None,
    })
}
