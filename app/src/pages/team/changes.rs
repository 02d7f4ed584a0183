//! Table of the latest audit events of the organization, for its owners.
//!
//! Events without a text are shown as recorded.

use berth_types::ids::OrgId;
use berth_types::quotas::AuditEvent;
use leptos::prelude::*;

use super::super::operator::audit::{action_text, detail_text};
use crate::api;
use crate::session::use_session;
use crate::ui::*;

/// The latest changes.
#[component]
pub(super) fn Changes(
    org: OrgId,
    /// The audit events, newest first.
    changes: RwSignal<Vec<AuditEvent>>,
) -> impl IntoView {
    let currency = use_session().me.currency;
    let [csv, ndjson] = ["csv", "ndjson"].map(|format| api::quotas::audit_file(org, format));
    view! {
        <section class="section">
            <div class="section__head">
                <h2>"Recent changes"</h2>
                <div class="section__aside">
                    <a href=csv rel="external" download="audit-events.csv">"Download CSV"</a>
                    <a href=ndjson rel="external" download="audit-events.ndjson">"Download NDJSON"</a>
                </div>
            </div>
            {move || changes.with(|changes| table(changes, &currency))}
        </section>
    }
}

fn table(changes: &[AuditEvent], currency: &str) -> AnyView {
    if changes.is_empty() {
        return empty(
            "No changes yet. Changes of roles, invitations, limits, budgets and webhooks appear here with user and time.",
        );
    }
    table_of(
        "Recent changes, newest first",
        &[("Action", ""), ("User", ""), ("Time", "nowrap"), ("Details", "")],
        changes.iter().map(|change| row(change, currency)).collect(),
    )
}

fn row(change: &AuditEvent, currency: &str) -> AnyView {
    let action = action_text(&change.action).to_owned();
    let (recorded, user) = (change.action.clone(), change.actor.clone());
    view! {
        <tr role="row">
            <th role="rowheader" scope="row"><span title=recorded>{action}</span></th>
            <td role="cell" data-label="User">{user}</td>
            <td role="cell" class="nowrap" data-label="Time"><When at=change.at/></td>
            <td role="cell" class="table__lead" data-label="Details">
                <span class="break">{detail_text(change, currency)}</span>
            </td>
        </tr>
    }
    .into_any()
}
