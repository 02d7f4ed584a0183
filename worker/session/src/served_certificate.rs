//! The certificate of this node for connections that come to it.

use std::sync::{Arc, Mutex};

use berth_system::sync::lock;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::identity::Identity;

/// The certificate of the newest identity. A renewed one counts from the next handshake on.
#[derive(Debug)]
pub struct ServedCertificate(Mutex<Arc<CertifiedKey>>);

impl ServedCertificate {
    /// # Errors
    /// The identity is damaged.
    pub fn new(identity: &Identity) -> Result<Self, String> {
        Ok(Self(Mutex::new(Arc::new(identity.certified_key()?))))
    }

    /// Replaces the certificate after a renewal.
    pub(super) fn replace(&self, identity: &Identity) {
        match identity.certified_key() {
            Ok(key) => *lock(&self.0) = Arc::new(key),
            Err(error) => tracing::error!(error, "gateways get the former certificate of this node"),
        }
    }
}

impl ResolvesServerCert for ServedCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(lock(&self.0).clone())
    }
}

#[cfg(test)]
mod tests {
    use berth_proto::Certificate;
    use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
    use rustls::crypto::ring::default_provider;
    use rustls::version::TLS13;
    use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

    use super::*;

    /// An identity with a certificate for the name `node`, and the certificate.
    fn identity() -> (Identity, Vec<u8>) {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let params = CertificateParams::new(vec!["node".to_owned()]).unwrap();
        let der = params.self_signed(&key).unwrap().der().to_vec();
        let certificate =
            Certificate { node: "node_1".to_owned(), chain: vec![der.clone()], lifetime_s: 3_600 };
        (Identity::new(certificate, &key, "portal", "ticket"), der)
    }

    /// The certificate that a client sees that trusts these.
    fn seen(server: &Arc<ServerConfig>, trusted: &[Vec<u8>]) -> Vec<u8> {
        let mut roots = RootCertStore::empty();
        for der in trusted {
            roots.add(der.clone().into()).unwrap();
        }
        let client = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut client = ClientConnection::new(Arc::new(client), "node".try_into().unwrap()).unwrap();
        let mut server = ServerConnection::new(server.clone()).unwrap();
        while client.is_handshaking() || server.is_handshaking() {
            let mut wire = Vec::new();
            client.write_tls(&mut wire).unwrap();
            let mut rest = wire.as_slice();
            while !rest.is_empty() {
                server.read_tls(&mut rest).unwrap();
                server.process_new_packets().unwrap();
            }
            let mut wire = Vec::new();
            server.write_tls(&mut wire).unwrap();
            let mut rest = wire.as_slice();
            while !rest.is_empty() {
                client.read_tls(&mut rest).unwrap();
                client.process_new_packets().unwrap();
            }
        }
        client.peer_certificates().unwrap()[0].to_vec()
    }

    #[test]
    fn a_renewed_certificate_counts_from_the_next_handshake_on() {
        let ((first, first_der), (second, second_der)) = (identity(), identity());
        let served = Arc::new(ServedCertificate::new(&first).unwrap());
        let server = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(served.clone());
        let (server, trusted) = (Arc::new(server), [first_der.clone(), second_der.clone()]);
        assert_eq!(seen(&server, &trusted), first_der);
        served.replace(&second);
        assert_eq!(seen(&server, &trusted), second_der);
        assert_eq!(seen(&server, &trusted), second_der);
    }
}
