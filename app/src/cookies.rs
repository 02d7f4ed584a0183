//! Cookies with the choices of a visitor. They have no secret; the first HTML depends on them.

/// The start of the names of cookies by https. A browser takes such a cookie from its own host only, and by https only.
const PREFIX: &str = "__Host-";
/// The lifetime of a cookie, a year.
#[cfg(any(feature = "hydrate", test))]
const LIFETIME_S: u32 = 365 * 86_400;

/// Returns the value of a cookie, of the request on the server and of the page in the browser.
pub(crate) fn cookie(name: &str) -> Option<String> {
    value_in(&cookies()?, name)
}

/// Stores a cookie of this portal; no effect on the server. A page of https stores it for https and its host only.
pub(crate) fn store_cookie(name: &str, value: &str) {
    #[cfg(feature = "hydrate")]
    {
        use leptos::prelude::{document, window};
        use wasm_bindgen::JsCast;

        let https = window().location().protocol().is_ok_and(|protocol| protocol == "https:");
        let cookie = cookie_text(name, value, https);
        if let Ok(document) = document().dyn_into::<web_sys::HtmlDocument>() {
            // Without cookies the choice is lost at the next load.
            let _ = document.set_cookie(&cookie);
        }
    }
    #[cfg(not(feature = "hydrate"))]
    let _ = (name, value);
}

/// Returns the text that stores a cookie.
#[cfg(any(feature = "hydrate", test))]
fn cookie_text(name: &str, value: &str, https: bool) -> String {
    let (prefix, secure) = if https { (PREFIX, "; Secure") } else { ("", "") };
    format!("{prefix}{name}={value}; Path=/; Max-Age={LIFETIME_S}; SameSite=Lax{secure}")
}

/// Returns the value of a cookie in a header or a text of cookies. The one with the prefix counts first: another host of
/// the domain can set the other one.
fn value_in(cookies: &str, name: &str) -> Option<String> {
    let pairs = || cookies.split(';').filter_map(|pair| pair.trim().split_once('='));
    let prefixed = pairs().find(|(known, _)| known.strip_prefix(PREFIX) == Some(name));
    prefixed.or_else(|| pairs().find(|(known, _)| *known == name)).map(|(_, value)| value.to_owned())
}

/// Returns the cookies of the browser.
#[cfg(not(feature = "ssr"))]
fn cookies() -> Option<String> {
    #[cfg(feature = "hydrate")]
    {
        use wasm_bindgen::JsCast;
        leptos::prelude::document().dyn_into::<web_sys::HtmlDocument>().ok()?.cookie().ok()
    }
    #[cfg(not(feature = "hydrate"))]
    {
        None
    }
}

/// Returns the cookies of the request.
#[cfg(feature = "ssr")]
fn cookies() -> Option<String> {
    let parts = leptos::prelude::use_context::<http::request::Parts>()?;
    Some(cookies_in(&parts.headers))
}

#[cfg(feature = "ssr")]
fn cookies_in(headers: &http::HeaderMap) -> String {
    let all = headers.get_all(http::header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    all.collect::<Vec<_>>().join(";")
}

/// Returns the value of a cookie in the headers of a request.
#[cfg(feature = "ssr")]
pub(crate) fn cookie_in(headers: &http::HeaderMap, name: &str) -> Option<String> {
    value_in(&cookies_in(headers), name)
}

#[cfg(test)]
mod tests {
    use super::{cookie_text, value_in};

    #[test]
    fn a_cookie_is_found_among_others() {
        let cookies = "berth_session=x; berth_org=acme-2 ;a=b";
        assert_eq!(value_in(cookies, "berth_org").as_deref(), Some("acme-2"));
        assert_eq!(value_in("berth_org_2=x; xberth_org=y; berth_org", "berth_org"), None);
    }

    #[test]
    fn cookies_of_https_have_the_prefix_of_their_host() {
        let text = cookie_text("berth_org", "acme-2", true);
        assert_eq!(text, "__Host-berth_org=acme-2; Path=/; Max-Age=31536000; SameSite=Lax; Secure");
        let cookies = "berth_org=planted; __Host-berth_org=acme-2; __Host-berth_org_2=x";
        assert_eq!(value_in(cookies, "berth_org").as_deref(), Some("acme-2"));
        let text = cookie_text("berth_org", "acme-2", false);
        assert_eq!(text, "berth_org=acme-2; Path=/; Max-Age=31536000; SameSite=Lax");
    }
}
