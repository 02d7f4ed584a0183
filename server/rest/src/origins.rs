//! The origin of a request of a browser.

use axum::http::HeaderMap;
use berth_types::problems::Problem;

/// The problem for a request of another site.
pub fn cross_site() -> Problem {
    let detail = "The request came from another site. Open the portal directly, or use an API token.";
    Problem::new(403, "request.cross_site", "Cross-site request refused", detail)
}

/// True if the headers of a socket name a page of this portal as its origin. Every browser sends the origin.
pub fn is_own_page(headers: &HeaderMap, public_url: &str) -> bool {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let (origin, host) = (text("origin"), text("host"));
    let same = origin.split_once("://").is_some_and(|(_, from)| !from.is_empty() && from == host);
    same || (!origin.is_empty() && origin == public_url.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_socket_is_for_own_pages() {
        let own = |origin: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            headers.insert("host", HeaderValue::from_static("10.0.0.1:8080"));
            if let Some(origin) = origin {
                headers.insert("origin", HeaderValue::from_static(origin));
            }
            is_own_page(&headers, "https://portal.example.org/")
        };
        assert!(own(Some("http://10.0.0.1:8080")) && own(Some("https://portal.example.org")));
        for bad in [
            None,
            Some("null"),
            Some(""),
            Some("https://evil.example"),
            Some("https://portal.example.org.evil"),
        ] {
            assert!(!own(bad), "{bad:?}");
        }
    }
}
