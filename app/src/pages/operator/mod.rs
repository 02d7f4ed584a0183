//! Pages of the operator.
//!
//! For everyone else the answer is the one of an unknown path. The portal checks the rights of each request.

pub mod audit;
pub mod boards;
pub mod changes;
pub mod gateways;
pub mod hardware;
pub mod host_names;
pub mod invoices;
pub mod jobs;
pub mod limits;
pub mod nodes;
pub mod operators;
pub mod orgs;
pub mod overview;
pub mod people;
pub mod prices;
pub mod promises;
pub mod reconciliation;
pub mod reservations;
pub mod settings;
pub mod sso_domains;
pub mod stuck;
pub mod system;
pub mod token_prices;
pub mod waiting;

use berth_types::operators::OperatorRight;
use leptos::prelude::*;

use crate::session::{Session, use_session};

/// Returns true if the person is an operator.
fn is_operator() -> bool {
    use_session().me.user.operator
}

/// Returns true if the role of the operator has a right. Handlers must not call it, because they have no session.
fn may(right: OperatorRight) -> bool {
    let granted = |session: &Session| session.me.operator_role.is_some_and(|role| right.is_granted_to(role));
    with_context(granted).unwrap_or(false)
}

/// Returns the sentence of a page whose controls need a right that the role lacks; none for all other roles.
fn read_only(right: OperatorRight) -> Option<AnyView> {
    let role = use_session().me.operator_role.filter(|role| !right.is_granted_to(*role))?;
    let roles = right.roles_text();
    let text = format!(
        "Your role {} reads this page. To {}, ask an operator with the role {roles}.",
        role.name(),
        right.name()
    );
    Some(view! { <p class="quiet">{text}</p> }.into_any())
}

/// Returns the controls of a part of a page. Without the right they are disabled below a sentence about the role.
fn guarded(right: OperatorRight, controls: AnyView) -> AnyView {
    let blocked = !may(right);
    view! {
        {read_only(right)}
        <fieldset class="guard" disabled=blocked>{controls}</fieldset>
    }
    .into_any()
}
