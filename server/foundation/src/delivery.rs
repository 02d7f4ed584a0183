//! The transport of outgoing messages: signed requests to webhooks, fetches, and mail.
//!
//! The address of a webhook comes from a tenant, so neither a host name nor an IP address in it may lead into
//! the portal's own network. The resolver checks a host name directly before the connection. Must not decide
//! about contents or retries.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, Mac};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use sha2::Sha256;

use crate::mail::Mailer;

const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of the answer to a fetch.
const MAX_ANSWER_BYTES: usize = 512 << 10;
/// Characters of a recorded reason.
const MAX_REASON_CHARS: usize = 300;

/// True if an address is not a public unicast address: private, local, multicast, reserved or unspecified.
pub fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_private_v4(v4),
        IpAddr::V6(v6) => is_private_v6(v6),
    }
}

fn is_private_v4(a: Ipv4Addr) -> bool {
    let [x, y, z, _] = a.octets();
    a.is_private()
        || a.is_loopback()
        || a.is_link_local()
        || a.is_unspecified()
        || a.is_broadcast()
        || a.is_multicast()
        || a.is_documentation()
        || x == 0
        || x >= 240
        || (x == 100 && (64..128).contains(&y))
        || (x == 198 && (y == 18 || y == 19))
        || (x == 192 && y == 0 && z == 0)
}

fn is_private_v6(a: Ipv6Addr) -> bool {
    let s = a.segments();
    // An IPv6 address with an embedded IPv4 address is private if the IPv4 address is.
    let embedded = a.to_ipv4_mapped().or_else(|| match s {
        // NAT64, 6to4, the addresses "compatible with IPv4", and ISATAP.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, ..]
        | [0, 0, 0, 0, 0, 0, high, low]
        | [_, _, _, _, 0 | 0x200, 0x5efe, high, low] => {
            let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
            Some(Ipv4Addr::new(a, b, c, d))
        }
        _ => None,
    });
    a.is_loopback()
        || a.is_unspecified()
        || a.is_multicast()
        || a.is_unique_local()
        || a.is_unicast_link_local()
        || matches!(
            s,
            // Documentation, Teredo, NAT64 of a local network, and site-local addresses.
            [0x2001, 0xdb8 | 0, ..] | [0x64, 0xff9b, 1, ..] | [0xfec0..=0xfeff, ..]
        )
        || embedded.is_some_and(is_private_v4)
}

/// A resolver that returns only public addresses.
struct PublicOnly;

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let public: Vec<SocketAddr> = found.filter(|a| !is_private(a.ip())).collect();
            if public.is_empty() {
                return Err("The host name has no public address.".into());
            }
            Ok(Box::new(public.into_iter()) as Addrs)
        })
    }
}

/// The reason of a failed delivery, with the HTTP status of the answer if there was one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryError {
    pub status: Option<u16>,
    pub reason: String,
}

/// The answer to a fetch.
pub struct Fetched {
    pub status: reqwest::StatusCode,
    pub headers: reqwest::header::HeaderMap,
    /// At most 512 KiB.
    pub body: Vec<u8>,
}

/// A request of [`Transport::fetch`].
pub struct Fetch {
    pub method: reqwest::Method,
    pub url: String,
    pub headers: reqwest::header::HeaderMap,
    pub body: Vec<u8>,
    /// True for an address of the operator, which may be in a private network.
    pub trusted: bool,
}

/// The client for webhooks and the mailer. A missing one makes every delivery fail.
pub struct Transport {
    client: Option<reqwest::Client>,
    /// The client for addresses of the operator.
    trusted: Option<reqwest::Client>,
    allow_private: bool,
    mailer: Option<Mailer>,
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transport").field("allow_private", &self.allow_private).finish_non_exhaustive()
    }
}

/// Installs the cryptography of all HTTP clients of this process. A second call changes nothing.
pub fn install_crypto_provider() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// A client for requests without redirects and proxies. With `public_only` it connects to public addresses
/// only; otherwise the caller must trust the address.
pub fn client(public_only: bool) -> Option<reqwest::Client> {
    install_crypto_provider();
    let mut builder = reqwest::Client::builder()
        .timeout(TIMEOUT)
        .connect_timeout(TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .user_agent(concat!("berth/", env!("CARGO_PKG_VERSION")));
    if public_only {
        builder = builder.dns_resolver(Arc::new(PublicOnly));
    }
    builder.build().inspect_err(|error| tracing::error!(%error, "nothing can be sent")).ok()
}

impl Transport {
    /// `smtp` is a URL such as `smtps://user:password@host`. Without it mail goes to files in `outbox`.
    ///
    /// # Errors
    /// The text for the operator about an invalid option of mail.
    pub fn new(allow_private: bool, smtp: Option<&str>, from: &str, outbox: &Path) -> Result<Self, String> {
        let mailer = Mailer::new(smtp, from, outbox)?;
        let trusted = client(false);
        let client = client(!allow_private);
        Ok(Self { client, trusted, allow_private, mailer: Some(mailer) })
    }

    /// A transport for webhooks of the operator, which may have private addresses. It sends no mail.
    pub fn for_operator() -> Self {
        Self { client: client(false), trusted: None, allow_private: true, mailer: None }
    }

    /// Checks the URL of a webhook: https, without credentials, and not an IP address of a private network.
    ///
    /// # Errors
    /// The text for the user about the invalid part.
    pub fn check_url(&self, url: &str) -> Result<(), &'static str> {
        let parsed = reqwest::Url::parse(url).map_err(|_| "Enter a valid URL.")?;
        let plain = self.allow_private && parsed.scheme() == "http";
        if parsed.scheme() != "https" && !plain {
            return Err("Enter an https:// URL.");
        }
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err("Enter the URL without user name and password. The requests are signed.");
        }
        let host = parsed.host_str().ok_or("The URL has no host.")?;
        let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().ok();
        if !self.allow_private && literal.is_some_and(is_private) {
            return Err("The address is in a private network. Enter a URL with a public address.");
        }
        Ok(())
    }

    /// Posts a signed body to a webhook. `at_s` is the time of the signature in seconds.
    ///
    /// # Errors
    /// Every answer other than 2xx, and a failed connection.
    pub async fn send_webhook(
        &self,
        url: &str,
        secret: &str,
        body: String,
        at_s: i64,
    ) -> Result<u16, DeliveryError> {
        let failed = |status, reason: String| DeliveryError {
            status,
            reason: reason.chars().take(MAX_REASON_CHARS).collect(),
        };
        self.check_url(url).map_err(|reason| failed(None, reason.to_owned()))?;
        let client = self
            .client
            .as_ref()
            .ok_or_else(|| failed(None, "The portal cannot send webhooks.".to_owned()))?;
        let sent = client
            .post(url)
            .header("content-type", "application/json")
            .header("berth-signature", format!("t={at_s},v1={}", sign(secret, at_s, &body)))
            .body(body)
            .send()
            .await;
        match sent {
            Ok(answer) if answer.status().is_success() => Ok(answer.status().as_u16()),
            Ok(answer) => {
                let status = answer.status().as_u16();
                Err(failed(Some(status), format!("HTTP status {status}")))
            }
            Err(error) if error.is_timeout() => {
                Err(failed(None, format!("No answer within {} s", TIMEOUT.as_secs())))
            }
            // A URL can have credentials in its query.
            Err(error) => Err(failed(None, root_cause(&error.without_url()))),
        }
    }

    /// Sends a request and reads its bounded answer. An address of a tenant leads into no private network, like that of
    /// a webhook. Redirects are not followed.
    ///
    /// # Errors
    /// A refused address, a failed connection, or an answer beyond 10 seconds or 512 KiB.
    pub async fn fetch(&self, request: Fetch) -> Result<Fetched, DeliveryError> {
        let failed = |reason: String| DeliveryError {
            status: None,
            reason: reason.chars().take(MAX_REASON_CHARS).collect(),
        };
        let client = if request.trusted {
            self.trusted.as_ref()
        } else {
            self.check_url(&request.url).map_err(|reason| failed(reason.to_owned()))?;
            self.client.as_ref()
        };
        let client = client.ok_or_else(|| failed("The portal cannot send requests.".to_owned()))?;
        let sent = client.request(request.method, &request.url).headers(request.headers).body(request.body);
        // A URL can have credentials in its query.
        let broken = |error: reqwest::Error| failed(root_cause(&error.without_url()));
        let mut answer = sent.send().await.map_err(broken)?;
        let (status, headers) = (answer.status(), std::mem::take(answer.headers_mut()));
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(broken)? {
            if body.len().saturating_add(chunk.len()) > MAX_ANSWER_BYTES {
                return Err(failed("The answer has more than 512 KiB".to_owned()));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Fetched { status, headers, body })
    }

    /// Sends a mail.
    ///
    /// # Errors
    /// The mail server or the file system did not take it.
    pub async fn send_mail(&self, to: &str, subject: &str, text: String) -> Result<(), DeliveryError> {
        let sent = match &self.mailer {
            Some(mailer) => mailer.send(to, subject, text).await,
            None => Err("The portal cannot send mail.".to_owned()),
        };
        sent.map_err(|reason| DeliveryError { status: None, reason })
    }

    /// Reports the mails since the last call.
    ///
    /// # Errors
    /// The number of mails that were not sent, with the reason of the last one.
    pub fn report_mail(&self) -> Result<(), String> {
        self.mailer.as_ref().map_or(Ok(()), Mailer::report)
    }
}

/// True if an error is of TLS. An error of IO does not have the error inside of it as its source.
fn is_tls(error: &(dyn std::error::Error + 'static)) -> bool {
    let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    error.is::<rustls::Error>() || inner.is_some_and(|inner| is_tls(inner))
}

/// The text of the innermost error. The outer errors of the client name no concrete cause.
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    // Its own text, such as "received corrupt message", names no layer.
    let layer = if is_tls(cause) { "TLS: " } else { "" };
    format!("{layer}{cause}")
}

/// HMAC-SHA256 of time and body in hexadecimal digits, in the scheme of Stripe's webhooks.
pub fn sign(secret: &str, at_s: i64, body: &str) -> String {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret.as_bytes()) else { return String::new() };
    mac.update(format!("{at_s}.").as_bytes());
    mac.update(body.as_bytes());
    hex::encode(mac.finalize().into_bytes())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn private_addresses_are_recognised_in_all_notations() {
        for bad in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "192.0.0.8",
            "::1",
            "::",
            "fc00::1",
            "fe80::1",
            "ff02::1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:db8::1",
            "::10.0.0.1",
            "::127.0.0.1",
            "2001::1",
            "64:ff9b:1::1.1.1.1",
            "fec0::1",
            "2606:4700::5efe:10.0.0.1",
            "2606:4700::200:5efe:192.168.0.1",
        ] {
            assert!(is_private(bad.parse().unwrap()), "{bad}");
        }
        for good in
            ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1", "172.32.0.1", "100.128.0.1"]
        {
            assert!(!is_private(good.parse().unwrap()), "{good}");
        }
    }

    #[test]
    fn webhook_urls_with_private_addresses_are_refused() {
        let strict = Transport::new(false, None, "berth@example.org", Path::new("/nowhere")).unwrap();
        for bad in [
            "http://example.org/",
            "https://127.0.0.1/",
            "https://[::1]/",
            "https://0x7f000001/",
            "https://2130706433/",
            "https://user:secret@example.org/",
            "ftp://example.org",
            "nonsense",
            "https://[::ffff:10.0.0.1]/",
        ] {
            assert!(strict.check_url(bad).is_err(), "{bad}");
        }
        assert_eq!(strict.check_url("https://hooks.example.org/berth?x=1"), Ok(()));
        let lab = Transport::new(true, None, "berth@example.org", Path::new("/nowhere")).unwrap();
        assert_eq!(lab.check_url("http://127.0.0.1:9/"), Ok(()));
    }

    #[tokio::test]
    async fn a_name_with_only_private_addresses_is_refused_at_resolution() {
        let strict = Transport::new(false, None, "berth@example.org", Path::new("/nowhere")).unwrap();
        let refused = strict.send_webhook("https://localhost:1/", "s", "{}".to_owned(), 1).await.unwrap_err();
        assert!(refused.reason.contains("no public address"), "{refused:?}");
    }

    #[tokio::test]
    async fn a_failed_handshake_is_named_as_one_of_tls() {
        let plain = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/", plain.local_addr().unwrap());
        let answered = tokio::spawn(async move {
            let (mut stream, _) = plain.accept().await.unwrap();
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
            // Unread bytes would reset the connection before its client has read the answer.
            let _ = stream.read_to_end(&mut Vec::new()).await;
        });
        let transport = Transport::for_operator();
        let refused = transport.send_webhook(&url, "s", "{}".to_owned(), 1).await.unwrap_err();
        assert!(refused.reason.starts_with("TLS: "), "{refused:?}");
        answered.await.unwrap();
    }

    #[test]
    fn a_signature_is_hmac_sha256_of_time_and_body() {
        // printf '1.{}' | openssl dgst -sha256 -hmac secret
        assert_eq!(sign("secret", 1, "{}").len(), 64);
        assert_ne!(sign("secret", 1, "{}"), sign("secret", 2, "{}"));
        assert_ne!(sign("secret", 1, "{}"), sign("other", 1, "{}"));
    }
}
