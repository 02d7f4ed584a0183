//! The secret of a link in a mail.
//!
//! The secret follows the `#` of the address, which browsers do not send. It goes to the portal in a body only,
//! never in a path, a query or storage.

use leptos::prelude::*;
use leptos_router::hooks::use_location;

use super::parts::ready;

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

/// Returns true for an address without a secret, such as a link that a mail program cut; false before hydration.
pub fn is_incomplete(secret: RwSignal<String>) -> Signal<bool> {
    let ready = ready();
    Signal::derive(move || ready.get() && secret.with(String::is_empty))
}

/// The card in place of a form whose link has no secret.
#[component]
pub fn IncompleteLink(
    /// The heading of the page.
    title: &'static str,
    /// [`is_incomplete`].
    incomplete: Signal<bool>,
) -> impl IntoView {
    view! {
        <div class="auth__card" role="status" hidden=move || !incomplete.get()>
            <h1>{title}</h1>
            <p>"The link is incomplete. Copy all of it from the mail."</p>
        </div>
    }
}
