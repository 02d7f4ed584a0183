//! The certificate authority of the portal: its key and the certificates that it signs.
//!
//! This module must not decide about certificates: `enrolment` does. Keys come from the randomness of the
//! system, not from that of the portal, which tests can repeat.

use std::net::IpAddr;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use berth_types::ids::NodeId;
use berth_types::time::Timestamp;
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
    SerialNumber,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer, PrivateKeyDer};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use x509_parser::extensions::GeneralName;

use berth_foundation::keyfile;

/// The begin of a node's name in its certificate.
const NODE_URI: &str = "berth://node/";
const DIR: &str = "ca";
const FILE: &str = "ca.pem";
const DAY_S: i64 = 86_400;
const TEN_YEARS_S: i64 = 3_653 * DAY_S;
/// The begin of all certificates in Unix seconds: 2020, so that a host with a late clock can connect. Their
/// end limits them.
const BEGIN_S: i64 = 1_577_836_800;
/// The largest accepted certificate request in bytes.
const REQUEST_LIMIT: usize = 4_096;

/// The key and the certificate of the authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

/// A newly signed certificate.
pub struct IssuedCertificate {
    pub serial: String,
    /// The certificate, then the certificate of the authority.
    pub chain: Vec<CertificateDer<'static>>,
}

impl Authority {
    /// Opens the authority in the portal's data directory. The first start creates it.
    ///
    /// # Errors
    /// The file cannot be read or created, or is damaged. A damaged file is never replaced.
    pub fn open(data: &Path, now: Timestamp) -> Result<Self, String> {
        let file = data.join(DIR).join(FILE);
        let create =
            || generate(now).map_err(|e| format!("the certificate authority cannot be created: {e}"));
        let text = keyfile::find_or_make(&file, create)?;
        Self::read(&text).map_err(|e| format!("{}: {e}", file.display()))
    }

    /// Reads the certificate and the key from one file, so neither can be missing alone.
    fn read(pem: &[u8]) -> Result<Self, String> {
        let certificate = CertificateDer::from_pem_slice(pem).map_err(|e| e.to_string())?;
        let key = PrivateKeyDer::from_pem_slice(pem).map_err(|e| e.to_string())?;
        let key = KeyPair::try_from(&key).map_err(|e| e.to_string())?;
        let issuer = Issuer::from_ca_cert_der(&certificate, key).map_err(|e| e.to_string())?;
        Ok(Self { issuer, certificate })
    }

    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The certificate as PEM, without the key.
    pub fn certificate_pem(&self) -> String {
        let text = STANDARD.encode(&self.certificate);
        let lines: Vec<_> = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
        format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
    }

    /// The fingerprint in join tokens. A worker identifies the portal by it at its first contact.
    pub fn fingerprint(&self) -> String {
        URL_SAFE_NO_PAD.encode(Sha256::digest(&self.certificate))
    }

    /// Signs a certificate for the key of the request with the name of this node. Other fields of the request
    /// are ignored.
    ///
    /// # Errors
    /// The request is too large, malformed or not signed by its own key.
    pub fn certify(
        &self,
        request: &[u8],
        node: NodeId,
        serial: [u8; 16],
        until: Timestamp,
    ) -> Result<IssuedCertificate, String> {
        if request.len() > REQUEST_LIMIT {
            return Err("the request is too large".to_owned());
        }
        let request = CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(request))
            .map_err(|e| e.to_string())?;
        let uri = Ia5String::try_from(format!("{NODE_URI}{node}")).map_err(|e| e.to_string())?;
        let mut params = leaf(&node.to_string(), serial, until)?;
        params.subject_alt_names = vec![SanType::URI(uri)];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let signed = params.signed_by(&request.public_key, &self.issuer).map_err(|e| e.to_string())?;
        Ok(IssuedCertificate {
            serial: hex::encode(canonical(serial)),
            chain: vec![signed.into(), self.certificate.clone()],
        })
    }

    /// Issues a key and a certificate for the portal's server side. `names` are host names and addresses.
    pub fn issue_server_certificate(
        &self,
        names: &[String],
        serial: [u8; 16],
        until: Timestamp,
    ) -> Result<(PrivateKeyDer<'static>, Vec<CertificateDer<'static>>), String> {
        let mut params = leaf("Berth", serial, until)?;
        for name in names {
            params.subject_alt_names.push(match name.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(
                    Ia5String::try_from(name.as_str()).map_err(|_| format!("{name:?} is not a host name"))?,
                ),
            });
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|e| e.to_string())?;
        let signed = params.signed_by(&key, &self.issuer).map_err(|e| e.to_string())?;
        Ok((key.into(), vec![signed.into(), self.certificate.clone()]))
    }
}

/// The node that a certificate names, and the certificate's serial number.
pub fn read_certificate(certificate: &[u8]) -> Option<(NodeId, String)> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let names = parsed.subject_alternative_name().ok()??;
    let node = names.value.general_names.iter().find_map(|name| match name {
        GeneralName::URI(uri) => uri.strip_prefix(NODE_URI)?.parse().ok(),
        _ => None,
    })?;
    Some((node, hex::encode(parsed.raw_serial())))
}

fn generate(now: Timestamp) -> Result<String, rcgen::Error> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, "Berth authority");
    params.distinguished_name = name;
    params.not_before = moment(BEGIN_S);
    params.not_after = moment((now.micros() / 1_000_000).saturating_add(TEN_YEARS_S));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = params.self_signed(&key)?;
    Ok(format!("{}{}", certificate.pem(), key.serialize_pem()))
}

fn leaf(common_name: &str, serial: [u8; 16], until: Timestamp) -> Result<CertificateParams, String> {
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    params.distinguished_name = name;
    params.serial_number = Some(SerialNumber::from_slice(&canonical(serial)));
    params.not_before = moment(BEGIN_S);
    params.not_after = OffsetDateTime::from_unix_timestamp(until.micros() / 1_000_000)
        .map_err(|_| "the validity of the certificate is too long")?;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    Ok(params)
}

fn moment(unix_s: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(unix_s).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// Sets the first byte so that DER encodes the serial number byte for byte: not negative and not shortened.
fn canonical(mut serial: [u8; 16]) -> [u8; 16] {
    let [first, ..] = &mut serial;
    *first = (*first & 0x3f) | 0x40;
    serial
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_micros(1_795_000_000_000_000)
    }

    fn node() -> NodeId {
        NodeId::from_uuid(uuid::Uuid::from_u128(7))
    }

    /// A request with fields that the authority must ignore.
    fn request(names: &[&str]) -> Vec<u8> {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.serialize_request(&key).unwrap().der().to_vec()
    }

    #[test]
    fn the_authority_is_created_once_and_readable_by_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let first = Authority::open(dir.path(), now()).unwrap();
        let again = Authority::open(dir.path(), now().plus_seconds(9)).unwrap();
        assert_eq!(first.fingerprint(), again.fingerprint());
        assert_eq!(first.fingerprint().len(), 43);
        let mode =
            |path: &str| std::fs::metadata(dir.path().join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("ca"), mode("ca/ca.pem")), (0o700, 0o600));
        assert_eq!(std::fs::read_dir(dir.path().join("ca")).unwrap().count(), 1);
        std::fs::write(dir.path().join("ca/ca.pem"), "nonsense").unwrap();
        assert!(Authority::open(dir.path(), now()).is_err(), "a broken one is never replaced by itself");
    }

    #[test]
    fn a_certificate_has_the_node_and_no_field_of_the_request() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::open(dir.path(), now()).unwrap();
        let request = request(&["portal.example.org"]);
        let issued = authority.certify(&request, node(), [0xff; 16], now().plus_seconds(60)).unwrap();
        assert_eq!(issued.serial, format!("7f{}", "ff".repeat(15)));
        assert_eq!(read_certificate(&issued.chain[0]), Some((node(), issued.serial.clone())));
        assert_eq!(&issued.chain[1], authority.certificate());
        let (_, parsed) = x509_parser::parse_x509_certificate(&issued.chain[0]).unwrap();
        assert!(!parsed.is_ca());
        assert_eq!(parsed.validity().not_after.timestamp(), now().micros() / 1_000_000 + 60);
        let usage = parsed.extended_key_usage().unwrap().unwrap();
        assert!(usage.value.client_auth && !usage.value.server_auth);
        let names = parsed.subject_alternative_name().unwrap().unwrap();
        assert_eq!(names.value.general_names.len(), 1);
        assert_eq!(read_certificate(authority.certificate()), None);
        assert_eq!(read_certificate(b"nonsense"), None);
    }

    #[test]
    fn a_request_that_is_not_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::open(dir.path(), now()).unwrap();
        let mut forged = request(&[]);
        // A changed signature: the request does not prove possession of the key.
        let last = forged.last_mut().unwrap();
        *last ^= 1;
        for bad in [Vec::new(), vec![0x30; 64], vec![0; 5_000], forged] {
            assert!(authority.certify(&bad, node(), [1; 16], now()).is_err());
        }
    }

    #[test]
    fn the_portal_answers_to_its_names() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::open(dir.path(), now()).unwrap();
        let names = ["portal.example.org", "10.1.2.3", "::1"].map(str::to_owned);
        let (_, chain) = authority.issue_server_certificate(&names, [1; 16], now().plus_seconds(60)).unwrap();
        let (_, parsed) = x509_parser::parse_x509_certificate(&chain[0]).unwrap();
        assert_eq!(parsed.subject_alternative_name().unwrap().unwrap().value.general_names.len(), 3);
        assert!(authority.issue_server_certificate(&["\u{f6}".to_owned()], [1; 16], now()).is_err());
    }
}
