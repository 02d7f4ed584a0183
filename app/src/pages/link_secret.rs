//! The secret of a link in a mail.
//!
//! The secret follows the `#` of the address, which browsers do not send. It goes to the portal in a body only,
//! never in a path, a query or storage.

use leptos::prelude::*;
use leptos_router::hooks::use_location;

/// Returns the part of the address after the `#`; empty before hydration.
pub fn link_secret() -> RwSignal<String> {
    let here = use_location();
    let secret = RwSignal::new(String::new());
    // Another link in the same window changes only the part after the `#`.
    Effect::new(move || {
        here.hash.track();
        let hash = window().location().hash().unwrap_or_default();
        secret.set(hash.trim_start_matches('#').to_owned());
    });
    secret
}
