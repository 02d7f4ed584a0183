//! The provisioning of members by SCIM, for owners.

use berth_types::scim::Provisioning;
use leptos::prelude::*;

use crate::address::org_link;
use crate::ui::*;

/// The address for the provider, the set-up in one sentence, and the present state.
#[component]
pub(super) fn ProvisioningState(
    /// The present state.
    state: Provisioning,
) -> impl IntoView {
    let last = match state.last_request_at {
        Some(at) => view! { <When at=at/> }.into_any(),
        None => view! { "none yet" }.into_any(),
    };
    view! {
        <h3>"Provisioning by SCIM"</h3>
        <p class="quiet">
            "The sign-in service can create, change and remove members by SCIM 2.0. Create a service account above, then a "
            <a href=org_link("/tokens")>"token"</a>
            " for it with the scope scim. Enter the address and the token at the service: "
            <a href="/docs/sso#members-by-scim" rel="external">"Members by SCIM"</a> "."
        </p>
        <dl class="kv">
            <dt>"SCIM address"</dt>
            <dd class="mono break">{state.base_url}</dd>
            <dt>"Provisioned members"</dt>
            <dd>{state.members}</dd>
            <dt>"Last request"</dt>
            <dd>{last}</dd>
        </dl>
    }
}
