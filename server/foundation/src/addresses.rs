//! The addresses in the options of the portal. Must not resolve them or connect to them.

use std::net::{IpAddr, SocketAddr};

use berth_core::ports::Origin;
use ipnet::IpNet;
use reqwest::Url;

/// Parses the address of a listener.
///
/// # Errors
/// The form of an address.
pub fn parse_listener(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "enter ADDRESS:PORT, such as 127.0.0.1:8080".to_owned())
}

/// Parses the address of a DNS server.
///
/// # Errors
/// The form of an address.
pub fn parse_dns_server(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "enter ADDRESS:PORT, such as 192.0.2.53:53".to_owned())
}

/// Parses a network such as `10.0.0.0/8`, or one address.
///
/// # Errors
/// The form of a network.
pub fn parse_network(text: &str) -> Result<IpNet, String> {
    let network = text.parse::<IpNet>().ok();
    let network = network.or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
    network.ok_or_else(|| "enter a network such as 10.0.0.0/8, or an address".to_owned())
}

/// True for `HOST` or `HOST:PORT` with characters that need no quotes in a script.
fn is_host(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:[]".contains(c);
    text.chars().all(is_plain) && !text.ends_with(':') && Url::parse(&format!("https://{text}")).is_ok()
}

/// Parses the URL of the portal for browsers: `https://HOST` or `http://HOST`, with an optional port. The pages and the
/// redirects of single sign-on are at its root.
///
/// # Errors
/// The form of the URL.
pub fn parse_public_url(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    match host.map(|host| host.strip_suffix('/').unwrap_or(host)) {
        Some(host) if is_host(host) => Ok(text.to_owned()),
        _ => Err("expected https://HOST or http://HOST:PORT in lower case and without a path; an international name begins with xn--".to_owned()),
    }
}

/// Parses the URL of the portal for workers: `https://HOST:PORT`.
///
/// # Errors
/// The form of the URL.
pub fn parse_worker_url(text: &str) -> Result<String, String> {
    match text.strip_prefix("https://") {
        Some(host) if is_host(host) => Ok(text.to_owned()),
        _ => Err("expected https://HOST:PORT".to_owned()),
    }
}

/// The URL of a listener for browsers. All addresses of this host have no URL, so theirs is for this host alone.
pub fn own_public_url(listen: SocketAddr) -> String {
    if !listen.ip().is_unspecified() {
        return format!("http://{listen}");
    }
    let url = format!("http://127.0.0.1:{}", listen.port());
    tracing::warn!(
        %listen,
        url,
        "without --public-url the links in mails, the redirects of single sign-on and payments and the command for new nodes have a URL for this host alone; --public-url gives the URL of the portal for all browsers"
    );
    url
}

/// The URL of a listener for workers.
///
/// # Errors
/// The listener has all addresses of this host, so other hosts need its URL.
pub fn own_worker_url(at: SocketAddr) -> Result<String, String> {
    if at.ip().is_unspecified() {
        return Err(format!(
            "--worker-listen {at} needs --worker-url https://HOST:PORT, the URL of the portal for workers"
        ));
    }
    Ok(format!("https://{at}"))
}

/// Checks that the pages of jobs have another host name than the portal: browsers separate cookies by host,
/// not by port.
///
/// # Errors
/// They have the same host name.
pub fn check_ports_origin(ports: Option<&Origin>, public_url: &str) -> Result<(), String> {
    let url = Url::parse(public_url).ok();
    let Some((ports, host)) = ports.zip(url.as_ref().and_then(Url::host_str)) else { return Ok(()) };
    match ports.find_scope(host) {
        None => Ok(()),
        Some(_) => Err(format!(
            "--ports-origin {ports} has the host name of the portal ({public_url}). Ports of jobs need \
             another host name, because the pages of jobs must not get the cookies of the portal. On one machine \
             http://*.localhost:PORT is enough"
        )),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn a_network_is_read_again_from_its_text(
            text in prop_oneof![
                "[0-9]{1,3}([.][0-9]{1,3}){3}(/[0-9]{1,3})?",
                "[0-9a-f:.]{0,40}(/[0-9]{0,4})?",
                "::/[0-9]{1,3}",
                "(?s).{0,30}",
            ],
        ) {
            if let Ok(found) = parse_network(&text) {
                prop_assert!(found.prefix_len() <= found.max_prefix_len());
                prop_assert_eq!(parse_network(&found.to_string()), Ok(found));
            }
        }
    }

    #[test]
    fn a_public_url_is_the_root_of_a_host() {
        for good in [
            "https://portal.example.org",
            "https://portal.example.org/",
            "http://my_portal:8080",
            "http://127.0.0.1:8080",
            "https://[2001:db8::1]:8443",
        ] {
            assert_eq!(parse_public_url(good).as_deref(), Ok(good));
        }
        for bad in [
            "",
            "portal.example.org",
            "ftp://portal.example.org",
            "HTTPS://portal.example.org",
            "https://",
            "https:///portal.example.org",
            "https://:8080",
            "https://portal.example.org:",
            "https://portal.example.org:80800",
            "https://portal.example.org//",
            "https://portal.example.org/berth/",
            "https://portal.example.org?a=b",
            "https://portal.example.org#a",
            "https://ada@portal.example.org",
            "https://portal example.org",
            " https://portal.example.org",
        ] {
            assert!(parse_public_url(bad).is_err_and(|form| form.contains("https://HOST")), "{bad}");
        }
    }

    #[test]
    fn a_url_for_workers_is_https() {
        let good = "https://portal.example.org:8081";
        assert_eq!(parse_worker_url(good).as_deref(), Ok(good));
        for bad in ["http://portal.example.org:8081", "https://", "https://portal.example.org:8081/", "x"] {
            assert!(parse_worker_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn all_addresses_of_a_host_have_no_url_for_others() {
        let at = |text: &str| parse_listener(text).unwrap();
        assert_eq!(own_public_url(at("127.0.0.1:8080")), "http://127.0.0.1:8080");
        assert_eq!(own_public_url(at("[2001:db8::1]:80")), "http://[2001:db8::1]:80");
        for all in ["0.0.0.0:8080", "[::]:8080"] {
            let url = own_public_url(at(all));
            assert_eq!(url, "http://127.0.0.1:8080", "an address has no passkeys");
            assert_eq!(parse_public_url(&url).as_ref(), Ok(&url));
            assert!(own_worker_url(at(all)).unwrap_err().contains("--worker-url"), "{all}");
        }
        assert_eq!(own_worker_url(at("10.0.0.5:8081")).as_deref(), Ok("https://10.0.0.5:8081"));
    }

    #[test]
    fn an_address_has_a_number_and_a_port() {
        for bad in ["localhost:8080", "8080", "127.0.0.1", ""] {
            assert!(parse_listener(bad).unwrap_err().contains("127.0.0.1:8080"), "{bad}");
            assert!(parse_dns_server(bad).unwrap_err().contains("192.0.2.53:53"), "{bad}");
        }
        assert!(parse_dns_server("192.0.2.53:53").is_ok());
    }

    #[test]
    fn pages_of_jobs_have_another_host_than_the_portal() {
        let check = |ports: &str, url: &str| check_ports_origin(Some(&ports.parse().unwrap()), url);
        assert!(check("https://portal.example.org:8443", "https://portal.example.org").is_err());
        assert!(check("http://[::1]:9000", "http://[::1]:8080").is_err());
        assert!(check("https://*.ports.example.org", "https://portal.example.org").is_ok());
        assert!(check("http://*.localhost:8080", "http://localhost:8080").is_ok());
        assert!(check_ports_origin(None, "https://portal.example.org").is_ok());
    }
}
