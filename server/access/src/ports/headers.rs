//! What of a request reaches a job, and what of its answer reaches the browser.
//!
//! Pure. Nothing that is the portal's goes to a job, and nothing that a job says holds beyond its own path.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};

/// The names of the cookie that lets somebody in, plain and over https.
const PASS: &str = "berth_port";
const SECURE_PASS: &str = "__Secure-berth_port";

/// Between two neighbours only; with these go those that `Connection` names.
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
/// Of a request: the portal's own matters, or said anew here.
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
/// Of an answer: what a browser would keep for the whole host, which others share.
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

/// Between the browser's view of a port and the job's.
#[derive(Debug, Clone, Copy)]
pub struct Way<'a> {
    /// As browsers call it, without a path.
    pub origin: &'a str,
    /// The path below which the port is seen, with a slash at both ends.
    pub prefix: &'a str,
    pub port: u16,
    /// The job is asked for the whole path.
    pub keep_path: bool,
}

pub const fn cookie_name(https: bool) -> &'static str {
    if https { SECURE_PASS } else { PASS }
}

/// Every cookie of a request, in its order.
fn cookies(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    lines.flat_map(|line| line.split(';')).map(str::trim).filter(|pair| !pair.is_empty())
}

/// What the cookies that let people in say. There may be several: a page can set such cookies too, though
/// none that is good.
pub fn passes(headers: &HeaderMap, https: bool) -> Vec<String> {
    let pairs = cookies(headers).filter_map(|pair| pair.split_once('='));
    pairs.filter(|(name, _)| *name == cookie_name(https)).map(|(_, value)| value.to_owned()).take(8).collect()
}

/// Whether a cookie is the portal's, which no job sees or sets.
fn is_ours(name: &str) -> bool {
    let name = name.trim().to_ascii_lowercase();
    let bare = name.strip_prefix("__host-").or_else(|| name.strip_prefix("__secure-")).unwrap_or(&name);
    bare.starts_with("berth_")
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Names that `Connection` lists, in small letters.
fn listed(headers: &HeaderMap) -> Vec<String> {
    let lines = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(|name| name.trim().to_ascii_lowercase()).collect()
}

/// The protocol that a request wants to go on with: WebSockets only.
pub fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let wanted = headers.get(header::UPGRADE)?;
    let asked = listed(headers).iter().any(|name| name == "upgrade");
    let known = wanted.to_str().is_ok_and(|name| name.eq_ignore_ascii_case("websocket"));
    (asked && known).then(|| wanted.clone())
}

/// Whether a page of another site causes this request, other than by a link to here: hosts of a common domain
/// send each other's cookies.
pub fn from_elsewhere(headers: &HeaderMap, method: &Method, origin: &str) -> bool {
    let safe = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) && upgrade(headers).is_none();
    let followed = text(headers, "sec-fetch-mode") == Some("navigate")
        && text(headers, "sec-fetch-dest") == Some("document");
    match (text(headers, "sec-fetch-site"), text(headers, "origin")) {
        (Some("same-origin" | "none"), _) | (None, None) => false,
        (Some(_), _) => !(safe && followed),
        (None, Some(from)) => !safe && from != origin,
    }
}

/// Everything that is neither hop by hop nor in `without`.
fn pass_on(headers: &HeaderMap, without: &[&str]) -> HeaderMap {
    let listed = listed(headers);
    // Where both say how long a body is, this one is wrong.
    let chunked = headers.contains_key(header::TRANSFER_ENCODING);
    let mut out = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        let known = name.as_str();
        let kept = !HOP_BY_HOP.contains(&known) && !without.contains(&known);
        let doubtful = listed.iter().any(|l| l == known) || (chunked && *name == header::CONTENT_LENGTH);
        if kept && !doubtful {
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

impl Way<'_> {
    /// What the job takes for its own host.
    fn host(&self) -> String {
        format!("localhost:{}", self.port)
    }

    /// The path that the job is asked for; `inside` begins with a slash.
    pub fn path(&self, inside: &str) -> String {
        if self.keep_path {
            format!("{}{inside}", self.prefix.trim_end_matches('/'))
        } else {
            inside.to_owned()
        }
    }

    /// A path of the job's as the browser has to ask for it.
    fn outside(&self, path: &str) -> String {
        if self.keep_path { path.to_owned() } else { format!("{}{path}", self.prefix.trim_end_matches('/')) }
    }

    /// The headers of a request to the job.
    pub fn request(
        &self,
        headers: &HeaderMap,
        peer: Option<IpAddr>,
        upgrade: Option<HeaderValue>,
    ) -> HeaderMap {
        let mut out = pass_on(headers, &NOT_TO_JOB);
        put(&mut out, header::HOST, &self.host());
        let own = cookies(headers).filter(|pair| !is_ours(pair.split('=').next().unwrap_or(pair)));
        let own: Vec<&str> = own.collect();
        if !own.is_empty() {
            put(&mut out, header::COOKIE, &own.join("; "));
        }
        // What compares these with its host finds that they agree, as they do for the browser.
        if text(headers, "origin") == Some(self.origin) {
            put(&mut out, header::ORIGIN, &format!("http://{}", self.host()));
        }
        if let Some(from) = text(headers, "referer") {
            let page = from.strip_prefix(self.origin).and_then(|path| path.strip_prefix(self.prefix));
            match page {
                Some(page) => {
                    let path = self.path(&format!("/{page}"));
                    put(&mut out, header::REFERER, &format!("http://{}{path}", self.host()));
                }
                // Of the portal, or of another job.
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
    pub fn answer(&self, headers: &HeaderMap, upgrade: Option<HeaderValue>) -> HeaderMap {
        let mut out = pass_on(headers, &NOT_FROM_JOB);
        if let Some(location) = text(headers, "location").and_then(|location| self.location(location)) {
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

    /// Where the browser is led when the job names itself; `None`: elsewhere, and as it says.
    fn location(&self, location: &str) -> Option<String> {
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
        // Two slashes would be another host.
        let path = format!("/{}", path.trim_start_matches(['/', '\\']));
        Some(self.outside(&path))
    }

    /// A cookie that stays below the port's path, or none.
    fn confine(&self, cookie: &str) -> Option<String> {
        let mut parts = cookie.split(';');
        let first = parts.next()?.trim();
        let (name, _) = first.split_once('=')?;
        // The last kind must have the path /, which is not this port's alone.
        if name.trim().is_empty() || is_ours(name) || name.trim().to_ascii_lowercase().starts_with("__host-")
        {
            return None;
        }
        let mut out = first.to_owned();
        let mut path = self.prefix.to_owned();
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            if key.trim().eq_ignore_ascii_case("path") {
                let wanted = value.trim();
                let outside = if wanted.starts_with('/') { self.outside(wanted) } else { String::new() };
                path = if outside.starts_with(self.prefix) { outside } else { self.prefix.to_owned() };
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

    const WAY: Way<'static> =
        Way { origin: "https://ports.example.org", prefix: "/job_1/8888/", port: 8_888, keep_path: false };
    const KEPT: Way<'static> = Way { keep_path: true, ..WAY };

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v)));
        let mut out = HeaderMap::new();
        for (name, value) in pairs {
            out.append(name, value);
        }
        out
    }

    #[test]
    fn nothing_of_the_portals_reaches_a_job() {
        let asked = headers(&[
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
        let told = WAY.request(&asked, Some("10.0.0.9".parse().unwrap()), None);
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
        assert_eq!(told, expected);
        let asked =
            headers(&[("origin", "https://evil.example"), ("referer", "https://portal.example.org/jobs")]);
        let told = KEPT.request(&asked, None, None);
        assert_eq!((&told["origin"], told.get("referer")), (&"https://evil.example".parse().unwrap(), None));
        assert!(!told.contains_key("cookie") && !told.contains_key("x-forwarded-for"));
    }

    #[test]
    fn only_a_websocket_is_an_upgrade() {
        let asked = headers(&[("connection", "keep-alive, Upgrade"), ("upgrade", "WebSocket")]);
        let wanted = upgrade(&asked);
        assert_eq!(wanted, Some(HeaderValue::from_static("WebSocket")));
        let told = WAY.request(&asked, None, wanted);
        assert_eq!(
            (&told["connection"], &told["upgrade"]),
            (&"upgrade".parse().unwrap(), &"WebSocket".parse().unwrap())
        );
        assert_eq!(upgrade(&headers(&[("connection", "upgrade"), ("upgrade", "h2c")])), None);
        assert_eq!(upgrade(&headers(&[("upgrade", "websocket")])), None);
        assert!(!WAY.request(&asked, None, None).contains_key("upgrade"));
    }

    #[test]
    fn what_holds_for_the_whole_host_is_taken_from_an_answer() {
        let said = headers(&[
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
        assert_eq!(WAY.answer(&said, None), expected);
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
            assert_eq!(WAY.confine(cookie).as_deref(), confined, "{cookie}");
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
    fn a_redirect_to_the_job_itself_leads_to_where_it_is_seen() {
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
        for (location, led) in cases {
            assert_eq!(WAY.location(location).as_deref(), led, "{location}");
        }
        assert_eq!(KEPT.location("http://localhost:8888/job_1/8888/lab").as_deref(), Some("/job_1/8888/lab"));
        assert_eq!(KEPT.location("/\\evil.example").as_deref(), Some("/evil.example"));
        assert_eq!((WAY.path("/a"), KEPT.path("/a")), ("/a".to_owned(), "/job_1/8888/a".to_owned()));
    }

    #[test]
    fn pages_of_other_sites_may_link_and_no_more() {
        let elsewhere = |method: &Method, pairs: &[(&'static str, &'static str)]| {
            from_elsewhere(&headers(pairs), method, WAY.origin)
        };
        let link = [
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "document"),
        ];
        assert!(!elsewhere(&Method::GET, &link) && elsewhere(&Method::POST, &link));
        let frame =
            [("sec-fetch-site", "same-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")];
        assert!(elsewhere(&Method::GET, &frame));
        assert!(elsewhere(&Method::GET, &[("sec-fetch-site", "same-site"), ("sec-fetch-mode", "cors")]));
        assert!(!elsewhere(&Method::POST, &[("sec-fetch-site", "same-origin")]));
        assert!(!elsewhere(&Method::POST, &[]), "no browser says nothing");
        let other = ("origin", "https://portal.example.org");
        assert!(elsewhere(&Method::POST, &[other]) && !elsewhere(&Method::GET, &[other]));
        assert!(!elsewhere(&Method::POST, &[("origin", WAY.origin)]));
        assert!(elsewhere(&Method::GET, &[other, ("connection", "upgrade"), ("upgrade", "websocket")]));
    }

    #[test]
    fn every_cookie_that_might_let_in_is_tried() {
        let asked =
            headers(&[("cookie", "berth_port=a; x=berth_port; berth_port=b=c"), ("cookie", "berth_port=d")]);
        assert_eq!(passes(&asked, false), ["a", "b=c", "d"]);
        assert_eq!(passes(&asked, true), [""; 0]);
    }
}
