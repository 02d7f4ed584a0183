//! Cookies with choices of the visitor. The portal reads them for the first HTML.

/// The lifetime of a choice, a year.
#[cfg(feature = "hydrate")]
const LIFE_S: u32 = 31_536_000;

/// Finds the value of a cookie of the request.
#[cfg(all(feature = "ssr", not(feature = "hydrate")))]
pub fn find(name: &str) -> Option<String> {
    find_in(&leptos::prelude::use_context::<http::request::Parts>()?.headers, name)
}

/// Finds the value of a cookie in the headers of a request.
#[cfg(feature = "ssr")]
pub fn find_in(headers: &http::HeaderMap, name: &str) -> Option<String> {
    let cookies = headers.get_all(http::header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(known, _)| *known == name).map(|(_, value)| value.to_owned())
}

/// Stores a choice. Without cookies it is lost at the next load.
#[cfg(feature = "hydrate")]
pub fn store(name: &str, value: &str) {
    use wasm_bindgen::JsCast;
    let secure = leptos::prelude::window().location().protocol().is_ok_and(|protocol| protocol == "https:");
    let secure = if secure { "; Secure" } else { "" };
    let cookie = format!("{name}={value}; Path=/; Max-Age={LIFE_S}; SameSite=Lax{secure}");
    if let Ok(document) = leptos::prelude::document().dyn_into::<web_sys::HtmlDocument>() {
        // It fails only for a page without an origin.
        let _ = document.set_cookie(&cookie);
    }
}
