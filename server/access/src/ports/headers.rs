//! The filter for the headers of requests to jobs and of their answers to browsers.
//!
//! Pure functions. No header or cookie of the portal reaches a job, and no header of a job has an effect
//! beyond the path of its port.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};

/// The names of the pass cookie over http and over https.
const PASS_COOKIE: &str = "berth_port";
const SECURE_PASS_COOKIE: &str = "__Secure-berth_port";

/// Headers for one hop only. The header `Connection` can name more of them.
const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Headers of a request that the portal keeps for itself or sets again.
const NOT_TO_JOB: [&str; 12] = [
    "authorization",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "http2-settings",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    "x-real-ip",
];
/// Headers of an answer with an effect on the whole host, which several jobs can share.
const NOT_FROM_JOB: [&str; 13] = [
    "accept-ch",
    "alt-svc",
    "clear-site-data",
    "critical-ch",
    "expect-ct",
    "nel",
    "public-key-pins",
    "public-key-pins-report-only",
    "report-to",
    "reporting-endpoints",
    "service-worker-allowed",
    "set-cookie",
    "strict-transport-security",
];

/// The mapping between the browser's address of a port and the job's own address.
#[derive(Debug, Clone, Copy)]
pub struct PortMapping<'a> {
    /// The origin for browsers, without a path.
    pub origin: &'a str,
    /// The path of the port for browsers, with a slash at both ends.
    pub prefix: &'a str,
    pub port: u16,
    /// Requests to the job have the full path with the prefix.
    pub keep_path: bool,
}

pub const fn cookie_name(https: bool) -> &'static str {
    if https { SECURE_PASS_COOKIE } else { PASS_COOKIE }
}

/// All cookies of a request, in their order.
fn cookies(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    lines.flat_map(|line| line.split(';')).map(str::trim).filter(|pair| !pair.is_empty())
}

/// The values of the pass cookies of a request. There may be several: a page of a job can set such cookies
/// too, but without a valid value.
pub fn pass_cookies(headers: &HeaderMap, https: bool) -> Vec<String> {
    let pairs = cookies(headers).filter_map(|pair| pair.split_once('='));
    pairs.filter(|(name, _)| *name == cookie_name(https)).map(|(_, value)| value.to_owned()).take(8).collect()
}

/// True if a cookie belongs to the portal. No job can read or set such a cookie.
fn is_portal_cookie(name: &str) -> bool {
    let name = name.trim().to_ascii_lowercase();
    let bare = name.strip_prefix("__host-").or_else(|| name.strip_prefix("__secure-")).unwrap_or(&name);
    bare.starts_with("berth_")
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// The header names in `Connection`, in lower case.
fn connection_names(headers: &HeaderMap) -> Vec<String> {
    let lines = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(|name| name.trim().to_ascii_lowercase()).collect()
}

/// The requested protocol of an upgrade, for WebSockets only.
pub fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let protocol = headers.get(header::UPGRADE)?;
    let requested = connection_names(headers).iter().any(|name| name == "upgrade");
    let is_websocket = protocol.to_str().is_ok_and(|name| name.eq_ignore_ascii_case("websocket"));
    (requested && is_websocket).then(|| protocol.clone())
}

/// True if a page of another site causes this request, other than by a link. The check is necessary since
/// hosts of a common domain send each other's cookies.
pub fn is_cross_site(headers: &HeaderMap, method: &Method, origin: &str) -> bool {
    let safe = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) && upgrade(headers).is_none();
    let is_link = text(headers, "sec-fetch-mode") == Some("navigate")
        && text(headers, "sec-fetch-dest") == Some("document");
    match (text(headers, "sec-fetch-site"), text(headers, "origin")) {
        (Some("same-origin" | "none"), _) | (None, None) => false,
        (Some(_), _) => !(safe && is_link),
        (None, Some(from)) => !safe && from != origin,
    }
}

/// Copies all headers except hop-by-hop headers and the headers in `without`.
fn copy_headers(headers: &HeaderMap, without: &[&str]) -> HeaderMap {
    let hop_by_hop = connection_names(headers);
    // `Content-Length` is invalid next to `Transfer-Encoding`.
    let chunked = headers.contains_key(header::TRANSFER_ENCODING);
    let mut out = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        let key = name.as_str();
        let filtered = HOP_BY_HOP.contains(&key) || without.contains(&key);
        let invalid = chunked && *name == header::CONTENT_LENGTH;
        if !filtered && !invalid && !hop_by_hop.iter().any(|listed| listed == key) {
            out.append(name.clone(), value.clone());
        }
    }
    out
}

fn put(out: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        out.insert(name, value);
    }
}

fn put_upgrade(out: &mut HeaderMap, upgrade: Option<HeaderValue>) {
    if let Some(protocol) = upgrade {
        out.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        out.insert(header::UPGRADE, protocol);
    }
}

impl PortMapping<'_> {
    /// The job's own host name.
    fn host(&self) -> String {
        format!("localhost:{}", self.port)
    }

    /// The path of a request to the job. `inside` is the path below the prefix and begins with a slash.
    pub fn job_path(&self, inside: &str) -> String {
        if self.keep_path {
            format!("{}{inside}", self.prefix.trim_end_matches('/'))
        } else {
            inside.to_owned()
        }
    }

    /// The browser's path for a path of the job.
    fn browser_path(&self, path: &str) -> String {
        if self.keep_path { path.to_owned() } else { format!("{}{path}", self.prefix.trim_end_matches('/')) }
    }

    /// The headers of a request to the job.
    pub fn request_headers(
        &self,
        headers: &HeaderMap,
        peer: Option<IpAddr>,
        upgrade: Option<HeaderValue>,
    ) -> HeaderMap {
        let mut out = copy_headers(headers, &NOT_TO_JOB);
        put(&mut out, header::HOST, &self.host());
        let own = cookies(headers).filter(|pair| !is_portal_cookie(pair.split('=').next().unwrap_or(pair)));
        let own: Vec<&str> = own.collect();
        if !own.is_empty() {
            put(&mut out, header::COOKIE, &own.join("; "));
        }
        // A server that compares `Origin` with `Host` must find them equal, as the browser does.
        if text(headers, "origin") == Some(self.origin) {
            put(&mut out, header::ORIGIN, &format!("http://{}", self.host()));
        }
        if let Some(referer) = text(headers, "referer") {
            let page = referer.strip_prefix(self.origin).and_then(|path| path.strip_prefix(self.prefix));
            match page {
                Some(page) => {
                    let path = self.job_path(&format!("/{page}"));
                    put(&mut out, header::REFERER, &format!("http://{}{path}", self.host()));
                }
                // A page of the portal or of another job.
                None => drop(out.remove(header::REFERER)),
            }
        }
        if let Some((scheme, host)) = self.origin.split_once("://") {
            put(&mut out, HeaderName::from_static("x-forwarded-host"), host);
            put(&mut out, HeaderName::from_static("x-forwarded-proto"), scheme);
        }
        put(&mut out, HeaderName::from_static("x-forwarded-prefix"), self.prefix.trim_end_matches('/'));
        if let Some(peer) = peer {
            put(&mut out, HeaderName::from_static("x-forwarded-for"), &peer.to_string());
        }
        put_upgrade(&mut out, upgrade);
        out
    }

    /// The headers of the job's answer, for the browser.
    pub fn response_headers(&self, headers: &HeaderMap, upgrade: Option<HeaderValue>) -> HeaderMap {
        let mut out = copy_headers(headers, &NOT_FROM_JOB);
        if let Some(location) = text(headers, "location").and_then(|location| self.browser_location(location))
        {
            put(&mut out, header::LOCATION, &location);
        }
        for value in headers.get_all(header::SET_COOKIE) {
            let confined = value.to_str().ok().and_then(|cookie| self.confine(cookie));
            if let Some(Ok(cookie)) = confined.map(|cookie| HeaderValue::from_str(&cookie)) {
                out.append(header::SET_COOKIE, cookie);
            }
        }
        put_upgrade(&mut out, upgrade);
        out
    }

    /// The browser's location for a redirect of the job to itself. Returns `None` for other locations, which
    /// stay unchanged.
    fn browser_location(&self, location: &str) -> Option<String> {
        let absolute = location.strip_prefix("http:").or_else(|| location.strip_prefix("https:"));
        let path = match absolute.unwrap_or(location).strip_prefix("//") {
            Some(rest) => {
                let (host, path) = rest.find(['/', '?', '#']).map_or((rest, ""), |at| rest.split_at(at));
                let own = ["localhost", "127.0.0.1", "[::1]"];
                if !own.iter().any(|name| host.eq_ignore_ascii_case(&format!("{name}:{}", self.port))) {
                    return None;
                }
                if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
            }
            None if absolute.is_none() && location.starts_with('/') => location.to_owned(),
            None => return None,
        };
        // Two slashes at the start would name another host.
        let path = format!("/{}", path.trim_start_matches(['/', '\\']));
        Some(self.browser_path(&path))
    }

    /// Restricts a cookie to the path of the port. Returns `None` for a forbidden cookie.
    fn confine(&self, cookie: &str) -> Option<String> {
        let mut parts = cookie.split(';');
        let first = parts.next()?.trim();
        let (name, _) = first.split_once('=')?;
        // A `__Host-` cookie must have the path /, which is not restricted to this port.
        if name.trim().is_empty()
            || is_portal_cookie(name)
            || name.trim().to_ascii_lowercase().starts_with("__host-")
        {
            return None;
        }
        let mut out = first.to_owned();
        let mut path = self.prefix.to_owned();
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            if key.trim().eq_ignore_ascii_case("path") {
                let value = value.trim();
                let mapped = if value.starts_with('/') { self.browser_path(value) } else { String::new() };
                path = if mapped.starts_with(self.prefix) { mapped } else { self.prefix.to_owned() };
            } else if !key.trim().is_empty() && !key.trim().eq_ignore_ascii_case("domain") {
                out.push_str("; ");
                out.push_str(part.trim());
            }
        }
        Some(format!("{out}; Path={path}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRIPPED: PortMapping<'static> = PortMapping {
        origin: "https://ports.example.org",
        prefix: "/job_1/8888/",
        port: 8_888,
        keep_path: false,
    };
    const KEPT: PortMapping<'static> = PortMapping { keep_path: true, ..STRIPPED };

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v)));
        let mut out = HeaderMap::new();
        for (name, value) in pairs {
            out.append(name, value);
        }
        out
    }

    #[test]
    fn no_header_of_the_portal_reaches_a_job() {
        let request = headers(&[
            ("authorization", "Bearer berth_x"),
            ("cookie", "a=1; __Host-berth_session=s; berth_port=p"),
            ("cookie", "__Secure-berth_port=q; _xsrf=2"),
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("te", "trailers"),
            ("forwarded", "for=1.2.3.4"),
            ("x-forwarded-for", "1.2.3.4"),
            ("host", "ports.example.org"),
            ("origin", "https://ports.example.org"),
            ("referer", "https://ports.example.org/job_1/8888/tree?x=1"),
            ("accept", "text/html"),
        ]);
        let forwarded = STRIPPED.request_headers(&request, Some("10.0.0.9".parse().unwrap()), None);
        let expected = headers(&[
            ("cookie", "a=1; _xsrf=2"),
            ("host", "localhost:8888"),
            ("origin", "http://localhost:8888"),
            ("referer", "http://localhost:8888/tree?x=1"),
            ("accept", "text/html"),
            ("x-forwarded-host", "ports.example.org"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-prefix", "/job_1/8888"),
            ("x-forwarded-for", "10.0.0.9"),
        ]);
        assert_eq!(forwarded, expected);
        let request =
            headers(&[("origin", "https://evil.example"), ("referer", "https://portal.example.org/jobs")]);
        let forwarded = KEPT.request_headers(&request, None, None);
        let origin = HeaderValue::from_static("https://evil.example");
        assert_eq!((&forwarded["origin"], forwarded.get("referer")), (&origin, None));
        assert!(!forwarded.contains_key("cookie") && !forwarded.contains_key("x-forwarded-for"));
    }

    #[test]
    fn only_a_websocket_is_an_upgrade() {
        let request = headers(&[("connection", "keep-alive, Upgrade"), ("upgrade", "WebSocket")]);
        let protocol = upgrade(&request);
        assert_eq!(protocol, Some(HeaderValue::from_static("WebSocket")));
        let forwarded = STRIPPED.request_headers(&request, None, protocol);
        assert_eq!(
            (&forwarded["connection"], &forwarded["upgrade"]),
            (&"upgrade".parse().unwrap(), &"WebSocket".parse().unwrap())
        );
        assert_eq!(upgrade(&headers(&[("connection", "upgrade"), ("upgrade", "h2c")])), None);
        assert_eq!(upgrade(&headers(&[("upgrade", "websocket")])), None);
        assert!(!STRIPPED.request_headers(&request, None, None).contains_key("upgrade"));
    }

    #[test]
    fn host_wide_headers_are_removed_from_an_answer() {
        let answer = headers(&[
            ("clear-site-data", "\"*\""),
            ("service-worker-allowed", "/"),
            ("strict-transport-security", "max-age=1"),
            ("alt-svc", "h3=\":443\""),
            ("nel", "{}"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("content-length", "7"),
            ("content-type", "text/html"),
            ("set-cookie", "a=1"),
            ("set-cookie", "berth_port=stolen"),
        ]);
        let expected = headers(&[("content-type", "text/html"), ("set-cookie", "a=1; Path=/job_1/8888/")]);
        assert_eq!(STRIPPED.response_headers(&answer, None), expected);
    }

    #[test]
    fn a_cookie_stays_below_its_path() {
        let stripped = [
            ("a=1", Some("a=1; Path=/job_1/8888/")),
            ("a=1; Path=/; HttpOnly", Some("a=1; HttpOnly; Path=/job_1/8888/")),
            ("a=1;path=/x; Domain=example.org; Max-Age=3", Some("a=1; Max-Age=3; Path=/job_1/8888/x")),
            ("a=1; Path=x", Some("a=1; Path=/job_1/8888/")),
            ("a=b=c; Path=/a; Path=", Some("a=b=c; Path=/job_1/8888/")),
            ("__Host-a=1; Path=/; Secure", None),
            ("berth_session=x", None),
            ("__SECURE-berth_port=x", None),
            ("=berth_session=x", None),
            ("berth_session", None),
            ("", None),
        ];
        for (cookie, confined) in stripped {
            assert_eq!(STRIPPED.confine(cookie).as_deref(), confined, "{cookie}");
        }
        let kept = [
            ("a=1; Path=/", "a=1; Path=/job_1/8888/"),
            ("a=1; Path=/job_1/8888/x", "a=1; Path=/job_1/8888/x"),
            ("a=1; Path=/job_2/8888/", "a=1; Path=/job_1/8888/"),
        ];
        for (cookie, confined) in kept {
            assert_eq!(KEPT.confine(cookie).as_deref(), Some(confined), "{cookie}");
        }
    }

    #[test]
    fn a_redirect_to_the_job_itself_is_mapped_for_the_browser() {
        let cases = [
            ("/login?next=/", Some("/job_1/8888/login?next=/")),
            ("http://localhost:8888/a?b#c", Some("/job_1/8888/a?b#c")),
            ("https://127.0.0.1:8888", Some("/job_1/8888/")),
            ("//LOCALHOST:8888?q", Some("/job_1/8888/?q")),
            ("http://localhost:8888//evil.example/", Some("/job_1/8888/evil.example/")),
            ("http://localhost:8889/", None),
            ("http://localhost:8888.evil.example/", None),
            ("https://example.org/a", None),
            ("//example.org/a", None),
            ("b/c", None),
            ("?q", None),
            ("mailto:a@b", None),
            ("http:b", None),
        ];
        for (location, mapped) in cases {
            assert_eq!(STRIPPED.browser_location(location).as_deref(), mapped, "{location}");
        }
        let kept = KEPT.browser_location("http://localhost:8888/job_1/8888/lab");
        assert_eq!(kept.as_deref(), Some("/job_1/8888/lab"));
        assert_eq!(KEPT.browser_location("/\\evil.example").as_deref(), Some("/evil.example"));
        assert_eq!(STRIPPED.job_path("/a"), "/a");
        assert_eq!(KEPT.job_path("/a"), "/job_1/8888/a");
    }

    #[test]
    fn pages_of_other_sites_may_only_link() {
        let cross_site = |method: &Method, pairs: &[(&'static str, &'static str)]| {
            is_cross_site(&headers(pairs), method, STRIPPED.origin)
        };
        let link = [
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "document"),
        ];
        assert!(!cross_site(&Method::GET, &link) && cross_site(&Method::POST, &link));
        let frame =
            [("sec-fetch-site", "same-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")];
        assert!(cross_site(&Method::GET, &frame));
        assert!(cross_site(&Method::GET, &[("sec-fetch-site", "same-site"), ("sec-fetch-mode", "cors")]));
        assert!(!cross_site(&Method::POST, &[("sec-fetch-site", "same-origin")]));
        assert!(!cross_site(&Method::POST, &[]), "no browser says nothing");
        let other = ("origin", "https://portal.example.org");
        assert!(cross_site(&Method::POST, &[other]) && !cross_site(&Method::GET, &[other]));
        assert!(!cross_site(&Method::POST, &[("origin", STRIPPED.origin)]));
        assert!(cross_site(&Method::GET, &[other, ("connection", "upgrade"), ("upgrade", "websocket")]));
    }

    #[test]
    fn all_pass_cookies_are_returned() {
        let request =
            headers(&[("cookie", "berth_port=a; x=berth_port; berth_port=b=c"), ("cookie", "berth_port=d")]);
        assert_eq!(pass_cookies(&request, false), ["a", "b=c", "d"]);
        assert_eq!(pass_cookies(&request, true), [""; 0]);
    }
}
