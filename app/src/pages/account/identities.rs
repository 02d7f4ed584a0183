//! The links of the account with providers of single sign-on.

use berth_types::sso::Identity;
use leptos::prelude::*;

use crate::ui::*;

/// The identities of the person; nothing without one.
pub fn identities_view(identities: &[Identity]) -> AnyView {
    if identities.is_empty() {
        return ().into_any();
    }
    let rows = identities.iter().map(row).collect();
    view! {
        <section class="section">
            <div class="section__head"><h2>"Single sign-on"</h2></div>
            <p class="page__lead">
                "This account signs in through the services below. An account that was made by single sign-on has no password before you set one by a link in mail."
            </p>
            {table_of("Sign-in services", &[("Service", ""), ("Linked", ""), ("Last sign-in", "")], rows)}
        </section>
    }
    .into_any()
}

fn row(identity: &Identity) -> AnyView {
    view! {
        <tr role="row">
            <th role="rowheader" scope="row"><span class="break">{identity.issuer.clone()}</span></th>
            <td role="cell" class="nowrap" data-label="Linked"><When at=identity.created_at/></td>
            <td role="cell" class="nowrap" data-label="Last sign-in"><When at=identity.last_used_at/></td>
        </tr>
    }
    .into_any()
}
