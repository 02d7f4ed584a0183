//! What was done on purpose in the organization lately, for its owners.
//!
//! Must not leave anything out: what has no words is shown as it was recorded.

use berth_types::quotas::AuditEvent;
use leptos::prelude::*;

use super::super::operator::audit::{action_text, detail_text};
use crate::session::use_session;
use crate::ui::*;

/// The newest changes.
#[component]
pub(super) fn Changes(
    /// What was done, newest first.
    changes: RwSignal<Vec<AuditEvent>>,
) -> impl IntoView {
    let currency = use_session().me.currency;
    view! {
        <section class="section">
            <div class="section__head"><h2>"Recent changes"</h2></div>
            {move || changes.with(|changes| table(changes, &currency))}
        </section>
    }
}

fn table(changes: &[AuditEvent], currency: &str) -> AnyView {
    if changes.is_empty() {
        return empty(
            "Nothing was changed yet. Roles, invitations, limits, budgets and webhooks that somebody changes are recorded here, with who did it and when.",
        );
    }
    table_of(
        "Recent changes, newest first",
        &[("What", ""), ("Who", ""), ("When", "nowrap"), ("Detail", "")],
        changes.iter().map(|change| row(change, currency)).collect(),
    )
}

fn row(change: &AuditEvent, currency: &str) -> AnyView {
    let what = action_text(&change.action).to_owned();
    let who = change.actor.clone();
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{what}</th>
            <td role="cell" data-label="Who">{who}</td>
            <td role="cell" class="nowrap" data-label="When"><When at=change.at/></td>
            <td role="cell" class="table__lead" data-label="Detail">
                <span class="break">{detail_text(change, currency)}</span>
            </td>
        </tr>
    }
    .into_any()
}
