//! The destinations of the audit log in the settings: their addresses and secrets. Must not connect to them.

use std::fmt;
use std::path::PathBuf;

use reqwest::Url;

use crate::objects::Bucket;

/// The fewest characters of the secret of the webhook.
const MIN_SECRET_CHARS: usize = 16;

/// The destinations of the audit log.
#[derive(Clone, Default)]
pub struct AuditTargets {
    pub webhook: Option<WebhookTarget>,
    pub syslog: Option<SyslogTarget>,
    pub bucket: Option<BucketTarget>,
}

/// A receiver of signed requests.
#[derive(Clone)]
pub struct WebhookTarget {
    pub url: String,
    /// The key of the signatures.
    pub secret: String,
}

impl fmt::Debug for WebhookTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookTarget").field("address", &self.address()).finish_non_exhaustive()
    }
}

impl WebhookTarget {
    /// A receiver with an `https` URL. White space around the secret is removed.
    ///
    /// # Errors
    /// The text for the operator about the invalid part, without the secret and the URL.
    pub fn parse(url: &str, secret: &str) -> Result<Self, String> {
        let parsed = Url::parse(url).map_err(|_| "--audit-webhook is not a URL".to_owned())?;
        if parsed.scheme() != "https" || parsed.host_str().is_none() {
            return Err("--audit-webhook needs a URL such as https://siem.example.org/berth".to_owned());
        }
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err("--audit-webhook must not have a user name or a password: the requests are signed \
                        with the secret of --audit-webhook-secret-file"
                .to_owned());
        }
        let secret = secret.trim();
        if secret.chars().count() < MIN_SECRET_CHARS {
            return Err(format!(
                "the secret in --audit-webhook-secret-file needs at least {MIN_SECRET_CHARS} characters \
                 (openssl rand -base64 32)"
            ));
        }
        Ok(Self { url: url.to_owned(), secret: secret.to_owned() })
    }

    /// The address for operators. Path and query may have credentials, so they are absent.
    pub fn address(&self) -> String {
        Url::parse(&self.url).map_or_else(|_| String::new(), |url| url.origin().ascii_serialization())
    }
}

/// A syslog server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyslogTarget {
    /// A host name or an IP address without brackets.
    pub host: String,
    pub port: u16,
    /// False for messages in clear.
    pub tls: bool,
    /// A PEM file with the authorities of the server. By default the ones of this system.
    pub authorities: Option<PathBuf>,
}

impl SyslogTarget {
    /// A server at `tls://HOST:PORT`, or at `tcp://HOST:PORT` if `allow_plain` is true.
    ///
    /// # Errors
    /// The text for the operator about the invalid part.
    pub fn parse(url: &str, allow_plain: bool, authorities: Option<PathBuf>) -> Result<Self, String> {
        let form = "--audit-syslog needs an address such as tls://logs.example.org:6514";
        let parsed = Url::parse(url).map_err(|_| form.to_owned())?;
        let tls = match parsed.scheme() {
            "tls" => true,
            "tcp" if allow_plain => false,
            "tcp" => {
                return Err("--audit-syslog tcp://… sends the audit log in clear: use tls://…, or permit \
                            it with --audit-syslog-plain"
                    .to_owned());
            }
            _ => return Err(form.to_owned()),
        };
        let is_bare = parsed.username().is_empty()
            && parsed.password().is_none()
            && matches!(parsed.path(), "" | "/")
            && parsed.query().is_none()
            && parsed.fragment().is_none();
        let host = parsed.host_str().map(|host| host.trim_matches(['[', ']']).to_owned());
        match (host.filter(|host| !host.is_empty()), parsed.port()) {
            (Some(host), Some(port)) if is_bare => Ok(Self { host, port, tls, authorities }),
            _ => Err(form.to_owned()),
        }
    }

    /// The address for operators.
    pub fn address(&self) -> String {
        let scheme = if self.tls { "tls" } else { "tcp" };
        match self.host.contains(':') {
            true => format!("{scheme}://[{}]:{}", self.host, self.port),
            false => format!("{scheme}://{}:{}", self.host, self.port),
        }
    }
}

/// A bucket for the audit log.
#[derive(Clone)]
pub struct BucketTarget {
    pub bucket: Bucket,
    /// The address for operators.
    pub address: String,
}

impl BucketTarget {
    /// A bucket at `s3://BUCKET`. Credentials, region and endpoint come from the `AWS_*` variables.
    ///
    /// # Errors
    /// The text for the operator about the invalid part.
    pub fn parse(url: &str) -> Result<Self, String> {
        let (bucket, address) = Bucket::parse("--audit-bucket", url)?;
        Ok(Self { bucket, address })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "0123456789abcdef";

    #[test]
    fn a_webhook_has_https_and_a_secret_and_shows_neither_path_nor_query() {
        let good =
            WebhookTarget::parse("https://10.0.0.9:8443/in?key=hidden", &format!(" {SECRET}\n")).unwrap();
        assert_eq!((good.secret.as_str(), good.address().as_str()), (SECRET, "https://10.0.0.9:8443"));
        let shown = format!("{good:?}");
        assert!(!shown.contains("hidden") && !shown.contains(SECRET), "{shown}");
        for (url, secret) in [
            ("http://siem.example.org/", SECRET),
            ("https://user:hidden@siem.example.org/", SECRET),
            ("nonsense", SECRET),
            ("https://siem.example.org/", "short"),
            ("https://siem.example.org/", "                    "),
        ] {
            let error = WebhookTarget::parse(url, secret).unwrap_err();
            assert!(!error.contains("hidden") && !error.contains("short"), "{error}");
        }
    }

    #[test]
    fn a_syslog_server_has_tls_unless_the_operator_permits_clear_messages() {
        let parse = |url: &str, plain| SyslogTarget::parse(url, plain, None);
        let target = parse("tls://logs.example.org:6514", false).unwrap();
        assert_eq!((target.host.as_str(), target.port, target.tls), ("logs.example.org", 6_514, true));
        assert_eq!(target.address(), "tls://logs.example.org:6514");
        let target = parse("tls://[::1]:6514/", false).unwrap();
        assert_eq!((target.host.as_str(), target.address().as_str()), ("::1", "tls://[::1]:6514"));
        assert!(parse("tcp://logs.example.org:514", false).unwrap_err().contains("--audit-syslog-plain"));
        assert!(!parse("tcp://logs.example.org:514", true).unwrap().tls);
        for bad in
            ["udp://x:514", "tls://logs.example.org", "tls://:6514", "tls://u:p@x:1", "tls://x:1/a", "x"]
        {
            assert!(parse(bad, true).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_bucket_has_a_name_alone() {
        assert_eq!(BucketTarget::parse("s3://audit/").unwrap().address, "s3://audit");
        for bad in ["s3://", "https://audit", "s3://audit/folder", "s3://key@audit"] {
            assert!(BucketTarget::parse(bad).is_err(), "{bad}");
        }
    }
}
