//! The headers of requests and answers: the key of the caller, the names of one hop, and the rules for the portal's
//! pages.

use std::net::IpAddr;

use http::header::{
    ACCEPT_ENCODING, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, AUTHORIZATION,
    CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, EXPECT, FORWARDED, HOST, HeaderName,
    HeaderValue, ORIGIN, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VARY,
};
use http::{HeaderMap, Method, Uri};

/// The begin of the secrets of inference keys.
pub const KEY_PREFIX: &str = "sk-berth-";
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// The headers in which a caller can send its key.
const KEY_HEADERS: [HeaderName; 2] = [AUTHORIZATION, API_KEY];
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// The begin of the words of proxies about the sender and its own address, beside `Forwarded` and `X-Real-IP`.
const FORWARDED_PREFIX: &str = "x-forwarded-";
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
/// The name of a conversation, whose requests go to one replica.
pub const SESSION: HeaderName = HeaderName::from_static("x-session-id");
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Bytes of the name of a conversation that count.
const MAX_SESSION_BYTES: usize = 256;
/// The names that one connection uses for itself, beside those in `Connection`.
const HOP: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("proxy-authenticate"),
    HeaderName::from_static("proxy-authorization"),
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// The secret that a caller sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Secret<'h> {
    Absent,
    /// The secret of an inference key.
    Key(&'h str),
    /// Something else, which a public service may read itself.
    Foreign,
}

/// Finds the secret of a caller. The first key counts.
pub fn secret(headers: &HeaderMap) -> Secret<'_> {
    let mut found = Secret::Absent;
    for name in KEY_HEADERS {
        for value in headers.get_all(&name) {
            let text = value.to_str().unwrap_or_default().trim();
            let secret = if name == AUTHORIZATION { bearer(text) } else { Some(text) };
            match secret.filter(|secret| secret.starts_with(KEY_PREFIX)) {
                Some(secret) => return Secret::Key(secret),
                None => found = Secret::Foreign,
            }
        }
    }
    found
}

fn bearer(text: &str) -> Option<&str> {
    let (scheme, secret) = text.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}

/// The host of a request.
pub fn host<'r>(uri: &'r Uri, headers: &'r HeaderMap) -> &'r str {
    let named = || headers.get(HOST).and_then(|host| host.to_str().ok());
    let authority = uri.authority().map(http::uri::Authority::as_str);
    authority.or_else(named).unwrap_or_default()
}

/// The senders in the words of proxies about a request, up to a word that is no address. The first one is that of the
/// proxy that sent the request.
pub fn senders(headers: &HeaderMap) -> impl Iterator<Item = IpAddr> {
    let lines = headers.get_all(FORWARDED_FOR).iter().rev().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.rsplit(',')).map_while(|one| one.trim().parse().ok())
}

/// The name of a conversation.
pub fn session(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(SESSION)?.as_bytes();
    (!value.is_empty()).then(|| value.get(..MAX_SESSION_BYTES).unwrap_or(value))
}

/// True for a request to change the protocol of its connection.
pub fn is_upgrade(headers: &HeaderMap) -> bool {
    headers.contains_key(UPGRADE) && connection_names(headers).any(|name| name == UPGRADE)
}

fn connection_names(headers: &HeaderMap) -> impl Iterator<Item = HeaderName> {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse().ok())
}

/// Removes the names of one hop. An upgrade keeps the two that it needs.
fn remove_hop(headers: &mut HeaderMap, is_upgrade: bool) {
    let protocol = headers.get(UPGRADE).filter(|_| is_upgrade).cloned();
    let named: Vec<HeaderName> = connection_names(headers).collect();
    for name in named.iter().chain(&HOP) {
        headers.remove(name);
    }
    if let Some(protocol) = protocol {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
}

/// The sender of a request, as its replica sees it.
pub struct Sender<'a> {
    pub peer: IpAddr,
    /// The peer is a trusted proxy, so its word about earlier hops stays.
    pub is_proxy: bool,
    pub request_id: &'a str,
}

/// Removes each header with a key of ours. A program reads other credentials itself.
fn remove_keys(headers: &mut HeaderMap) {
    let prefix = KEY_PREFIX.as_bytes();
    // A key with other bytes around it is a secret too.
    let is_key = |value: &HeaderValue| value.as_bytes().windows(prefix.len()).any(|part| part == prefix);
    for name in KEY_HEADERS {
        if headers.get_all(&name).iter().any(is_key) {
            headers.remove(&name);
        }
    }
}

/// Removes the words about earlier hops, which anybody can write.
fn remove_words_of_proxies(headers: &mut HeaderMap) {
    let is_word = |name: &&HeaderName| {
        name.as_str().starts_with(FORWARDED_PREFIX) || *name == FORWARDED || *name == REAL_IP
    };
    let words: Vec<HeaderName> = headers.keys().filter(is_word).cloned().collect();
    for name in words {
        headers.remove(name);
    }
}

/// Joins the lines of cookies: HTTP/2 may have several, and many programs read the only one of HTTP/1.1.
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().nth(1).is_none() {
        return;
    }
    let lines: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&lines.join(b"; ".as_slice())) {
        headers.insert(COOKIE, joined);
    }
}

/// Prepares the headers of a request for a replica. `host` is that of the caller.
pub fn prepare_request(headers: &mut HeaderMap, host: &str, sender: &Sender<'_>, is_upgrade: bool) {
    remove_hop(headers, is_upgrade);
    headers.remove(EXPECT);
    headers.remove(CONTENT_LENGTH);
    remove_keys(headers);
    join_cookies(headers);
    if !sender.is_proxy {
        remove_words_of_proxies(headers);
    }
    // A proxy can add its own line below those of the caller. The last address is the one to trust.
    let lines = headers.get_all(FORWARDED_FOR).iter().filter(|_| sender.is_proxy);
    let earlier: Vec<&str> = lines.filter_map(|line| line.to_str().ok()).collect();
    let peer = sender.peer.to_canonical().to_string();
    let forwarded = earlier.into_iter().chain([peer.as_str()]).collect::<Vec<&str>>().join(", ");
    put(headers, FORWARDED_FOR, &forwarded);
    put(headers, REQUEST_ID, sender.request_id);
    put(headers, HOST, host);
}

/// An answer that is metered comes as plain text.
pub fn ask_for_plain_text(headers: &mut HeaderMap) {
    headers.remove(ACCEPT_ENCODING);
}

fn put(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// Prepares the headers of an answer for the caller.
pub fn prepare_answer(headers: &mut HeaderMap, is_upgrade: bool, is_stream: bool) {
    remove_hop(headers, is_upgrade);
    if is_stream {
        // Its length can change.
        headers.remove(CONTENT_LENGTH);
    }
}

/// True for a stream of events in plain text.
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("text/event-stream") && !headers.contains_key(CONTENT_ENCODING)
}

/// Names a request in its answer.
pub fn name_request(headers: &mut HeaderMap, request_id: &str) {
    put(headers, REQUEST_ID, request_id);
}

/// True if a page of this origin sent the request.
pub fn is_from(headers: &HeaderMap, origin: &str) -> bool {
    headers.get(ORIGIN).is_some_and(|value| value.as_bytes() == origin.as_bytes())
}

/// True for the question of a browser before a request of a page.
pub fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    *method == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// Lets the pages of the portal read an answer.
pub fn allow_origin(headers: &mut HeaderMap, origin: &str) {
    put(headers, ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("retry-after, x-request-id"));
    headers.append(VARY, HeaderValue::from_static("origin"));
}

/// Lets the pages of the portal send requests.
pub fn allow_requests(headers: &mut HeaderMap) {
    let methods = "GET, HEAD, POST, PUT, PATCH, DELETE";
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(methods));
    let names = "authorization, content-type, x-api-key, x-session-id";
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(names));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for &(name, value) in pairs {
            headers.append(name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn a_key_comes_in_one_of_two_headers() {
        for (pairs, expected) in [
            (vec![], Secret::Absent),
            (vec![("authorization", "Bearer sk-berth-a")], Secret::Key("sk-berth-a")),
            (vec![("authorization", "bearer  sk-berth-a ")], Secret::Key("sk-berth-a")),
            (vec![("x-api-key", "sk-berth-a")], Secret::Key("sk-berth-a")),
            (vec![("authorization", "Bearer x"), ("x-api-key", "sk-berth-a")], Secret::Key("sk-berth-a")),
            (vec![("authorization", "sk-berth-a")], Secret::Foreign),
            (vec![("authorization", "Basic sk-berth-a")], Secret::Foreign),
            (vec![("authorization", "Bearer sk-other")], Secret::Foreign),
        ] {
            assert_eq!(secret(&map(&pairs)), expected, "{pairs:?}");
        }
    }

    #[test]
    fn a_replica_gets_no_key_and_no_header_of_one_hop() {
        let mut headers = map(&[
            ("authorization", "Bearer sk-berth-a"),
            ("x-api-key", "sk-berth-b"),
            ("x-forwarded-for", "203.0.113.9"),
            ("forwarded", "for=203.0.113.9"),
            ("x-real-ip", "203.0.113.9"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "bank.example.org"),
            ("x-forwarded-ssl", "on"),
            ("connection", "close, X-Private"),
            ("x-private", "1"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("expect", "100-continue"),
            ("content-length", "5"),
            ("upgrade", "websocket"),
            ("accept", "*/*"),
        ]);
        let mut sender =
            Sender { peer: "::ffff:192.0.2.1".parse().unwrap(), is_proxy: false, request_id: "req_1" };
        prepare_request(&mut headers, "models.example.org", &sender, false);
        let expected = map(&[
            ("accept", "*/*"),
            ("host", "models.example.org"),
            ("x-forwarded-for", "192.0.2.1"),
            ("x-request-id", "req_1"),
        ]);
        assert_eq!(headers, expected);
        sender.is_proxy = true;
        let mut headers = map(&[("x-forwarded-for", "203.0.113.9"), ("x-forwarded-proto", "https")]);
        prepare_request(&mut headers, "", &sender, false);
        assert_eq!(headers[FORWARDED_FOR], "203.0.113.9, 192.0.2.1");
        assert_eq!(headers["x-forwarded-proto"], "https", "the word of a trusted proxy");
    }

    #[test]
    fn the_senders_before_proxies_are_those_that_they_name_the_last_one_first() {
        for (lines, expected) in [
            (vec![], vec![]),
            (vec!["198.51.100.7, 203.0.113.9"], vec!["203.0.113.9", "198.51.100.7"]),
            (vec!["198.51.100.7", "2001:db8::1"], vec!["2001:db8::1", "198.51.100.7"]),
            (vec!["198.51.100.7, unknown, 203.0.113.9"], vec!["203.0.113.9"]),
            (vec!["unknown"], vec![]),
        ] {
            let pairs: Vec<(&str, &str)> = lines.iter().map(|line| ("x-forwarded-for", *line)).collect();
            let expected: Vec<IpAddr> =
                expected.into_iter().map(|address| address.parse().unwrap()).collect();
            assert_eq!(senders(&map(&pairs)).collect::<Vec<IpAddr>>(), expected, "{lines:?}");
        }
    }

    #[test]
    fn a_replica_gets_all_cookies_in_one_line() {
        for (lines, expected) in [
            (vec![], vec![]),
            (vec![("cookie", "a=1; b=2")], vec!["a=1; b=2"]),
            (vec![("cookie", "a=1"), ("cookie", "b=2"), ("cookie", "c=3")], vec!["a=1; b=2; c=3"]),
        ] {
            let mut headers = map(&lines);
            join_cookies(&mut headers);
            let seen: Vec<&HeaderValue> = headers.get_all(COOKIE).iter().collect();
            assert_eq!(seen, expected, "{lines:?}");
        }
    }

    #[test]
    fn a_replica_gets_all_lines_of_a_proxy_and_none_of_another_peer() {
        let lines = [("x-forwarded-for", "198.51.100.7"), ("x-forwarded-for", "10.0.0.9, 203.0.113.9")];
        for (is_proxy, expected) in
            [(true, "198.51.100.7, 10.0.0.9, 203.0.113.9, 192.0.2.1"), (false, "192.0.2.1")]
        {
            let mut headers = map(&lines);
            let sender = Sender { peer: "192.0.2.1".parse().unwrap(), is_proxy, request_id: "req_1" };
            prepare_request(&mut headers, "", &sender, false);
            let seen: Vec<&HeaderValue> = headers.get_all(FORWARDED_FOR).iter().collect();
            assert_eq!(seen, [expected], "{is_proxy}");
        }
    }

    #[test]
    fn a_replica_gets_the_credentials_of_its_own_program() {
        let own = [("authorization", "Basic dTpw"), ("x-api-key", "other")];
        for (pairs, left) in [
            (own.to_vec(), own.to_vec()),
            (vec![own[0], ("x-api-key", "sk-berth-a")], vec![own[0]]),
            (vec![("authorization", "Bearer sk-berth-a"), own[1]], vec![own[1]]),
            (vec![own[0], ("authorization", "Bearer sk-berth-a"), own[1]], vec![own[1]]),
            (vec![("authorization", "sk-berth-a"), ("x-api-key", "sk-berth-a")], vec![]),
        ] {
            let mut headers = map(&pairs);
            remove_keys(&mut headers);
            assert_eq!(headers, map(&left), "{pairs:?}");
        }
        let mut odd = HeaderMap::new();
        odd.insert(API_KEY, HeaderValue::from_bytes(b"sk-berth-a\xc2\xa0").unwrap());
        remove_keys(&mut odd);
        assert!(odd.is_empty());
    }

    #[test]
    fn an_upgrade_keeps_its_protocol() {
        let mut headers = map(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")]);
        assert!(is_upgrade(&headers));
        remove_hop(&mut headers, true);
        assert_eq!(headers, map(&[("connection", "upgrade"), ("upgrade", "websocket")]));
        assert!(!is_upgrade(&map(&[("upgrade", "h2c")])));
    }

    #[test]
    fn only_a_stream_of_plain_events_is_one() {
        assert!(is_event_stream(&map(&[("content-type", "Text/Event-Stream; charset=utf-8")])));
        assert!(!is_event_stream(&map(&[("content-type", "application/json")])));
        assert!(!is_event_stream(&map(&[
            ("content-type", "text/event-stream"),
            ("content-encoding", "gzip")
        ])));
    }
}
