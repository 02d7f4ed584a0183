//! The settings of a gateway.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

/// The token of a gateway for the portal. It reaches no log.
#[derive(Clone)]
pub struct GatewayToken(String);

impl GatewayToken {
    /// Reads the text of a file or of a variable.
    ///
    /// # Errors
    /// The text is no token of a gateway.
    pub fn parse(text: &str) -> Result<Self, String> {
        let token = text.trim();
        let fits = token.len() <= 256 && token.strip_prefix("bgw_").is_some_and(|rest| !rest.is_empty());
        if !fits || !token.bytes().all(|b| b.is_ascii_graphic()) {
            return Err("the token of a gateway begins with bgw_; the page Gateways shows it once".to_owned());
        }
        Ok(Self(token.to_owned()))
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for GatewayToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GatewayToken")
    }
}

/// The address of the portal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortalUrl {
    /// Without a slash at its end.
    pub base: String,
    /// The origin of the portal's pages in requests of browsers.
    pub origin: String,
}

impl PortalUrl {
    /// # Errors
    /// The text is no URL of a portal. A token needs TLS, except on this host.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a URL such as https://portal.example.org");
        let url = reqwest::Url::parse(text).map_err(|_| wrong())?;
        let host = url.host_str().ok_or_else(wrong)?;
        let has_more = !url.has_authority() || !url.username().is_empty() || url.password().is_some();
        if has_more || url.query().is_some() || url.fragment().is_some() {
            return Err(wrong());
        }
        let address: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
        let is_local = host == "localhost" || address.is_some_and(|address| address.is_loopback());
        match url.scheme() {
            "https" => {}
            "http" if is_local => {}
            "http" => {
                return Err(format!(
                    "{text:?} must begin with https://: the token would be readable on its way"
                ));
            }
            _ => return Err(wrong()),
        }
        let base = url.as_str().trim_end_matches('/').to_owned();
        Ok(Self { base, origin: url.origin().ascii_serialization() })
    }
}

/// The limits of a gateway.
#[derive(Debug, Clone)]
pub struct Limits {
    pub connections: usize,
    /// Connections of one address, or of one network of IPv6. This host and trusted proxies have no limit of their own.
    pub connections_per_address: usize,
    pub proxies: Vec<IpNet>,
    /// Requests at the same time, until the heads of their answers. An organization, or an address without a key, has at
    /// most as many as are free beside it.
    pub requests: usize,
    /// Bytes of all bodies in memory, with the same rule.
    pub body_bytes: usize,
    /// The longest wait for the head of a request.
    pub head: Duration,
    /// The longest wait for the next part of the body of a request. A body that is read as a whole has this time in all,
    /// and more for its bytes.
    pub body: Duration,
    /// The longest wait of a request for a replica.
    pub wait: Duration,
    /// The longest wait for the first byte of an answer.
    pub first_byte: Duration,
    /// The longest wait for the next part of an answer, and for a caller who does not read.
    pub idle: Duration,
    /// The longest end of open requests at a stop.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            connections_per_address: 1_000,
            proxies: Vec::new(),
            requests: 20_000,
            body_bytes: 1 << 30,
            head: Duration::from_secs(10),
            body: Duration::from_secs(30),
            wait: Duration::from_secs(300),
            first_byte: Duration::from_secs(300),
            idle: Duration::from_secs(300),
            drain: Duration::from_secs(300),
        }
    }
}

impl Limits {
    /// True for an address of a trusted proxy.
    pub fn is_proxy(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.proxies.iter().any(|network| network.contains(&peer))
    }
}

/// The settings of a gateway.
#[derive(Debug, Clone)]
pub struct Settings {
    pub portal: PortalUrl,
    pub token: GatewayToken,
    /// The certificates that the portal's certificate comes from, as PEM; those of the system without them.
    pub portal_ca: Option<Vec<u8>>,
    /// The directory for the journal and the last snapshot.
    pub data: PathBuf,
    pub limits: Limits,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_needs_tls_except_on_this_host() {
        for (text, origin) in [
            ("https://portal.example.org", "https://portal.example.org"),
            ("https://portal.example.org:8443/", "https://portal.example.org:8443"),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("http://[::1]:8080", "http://[::1]:8080"),
            ("http://localhost:8080", "http://localhost:8080"),
        ] {
            let url = PortalUrl::parse(text).unwrap();
            assert_eq!((url.origin.as_str(), url.base.as_str()), (origin, text.trim_end_matches('/')));
        }
        for bad in [
            "",
            "portal.example.org",
            "http://portal.example.org",
            "http://10.0.0.1",
            "ftp://127.0.0.1",
            "https://user:secret@portal.example.org",
            "https://portal.example.org/?a=b",
        ] {
            assert!(PortalUrl::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_token_is_in_no_debug_text() {
        let token = GatewayToken::parse(" bgw_secret\n").unwrap();
        assert_eq!((token.reveal(), format!("{token:?}").as_str()), ("bgw_secret", "GatewayToken"));
        for bad in ["", "bgw_", "sk-berth-a", "bgw_a b"] {
            assert!(GatewayToken::parse(bad).is_err(), "{bad}");
        }
    }
}
