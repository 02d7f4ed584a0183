//! The name and the look of the portal. The portal writes them into the first HTML, and the browser reads them
//! there, so that both render the same page.

use berth_types::portal::{Logo, PortalIdentity};
use leptos::prelude::*;

/// The name of the meta element with the identity in JSON.
pub(crate) const META_NAME: &str = "berth-portal";

/// Returns the identity of this page.
#[cfg(feature = "hydrate")]
pub(crate) fn page_identity() -> PortalIdentity {
    let meta = document().query_selector(&format!("meta[name=\"{META_NAME}\"]")).ok().flatten();
    let json = meta.and_then(|meta| meta.get_attribute("content"));
    json.and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default()
}

/// Returns the identity of this page.
#[cfg(all(feature = "ssr", not(feature = "hydrate")))]
pub(crate) fn page_identity() -> PortalIdentity {
    let parts = use_context::<http::request::Parts>();
    parts.and_then(|parts| parts.extensions.get::<PortalIdentity>().cloned()).unwrap_or_default()
}

/// Returns the default identity without a page.
#[cfg(not(any(feature = "ssr", feature = "hydrate")))]
pub(crate) fn page_identity() -> PortalIdentity {
    let _ = META_NAME;
    PortalIdentity::default()
}

/// Returns the identity of the portal inside the app.
pub fn use_identity() -> PortalIdentity {
    use_context::<PortalIdentity>().unwrap_or_default()
}

/// The logo as this page last changed it: the identity has that of its first load.
#[derive(Clone, Copy)]
pub struct CurrentLogo(pub RwSignal<Option<Logo>>);

/// Returns the logo as this page last changed it.
pub fn use_logo() -> RwSignal<Option<Logo>> {
    use_context::<CurrentLogo>().map_or_else(|| RwSignal::new(None), |current| current.0)
}

/// Returns the title of a window: `Jobs · Berth`.
pub fn window_title(title: &str) -> String {
    format!("{title} · {}", use_identity().name)
}
