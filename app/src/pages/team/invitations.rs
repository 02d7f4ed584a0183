//! Table of open invitations with the buttons to resend and to withdraw.
//!
//! The link of a resent invitation is shown above the table, once.

use berth_types::ids::InvitationId;
use berth_types::members::{Invitation, SentInvitation};
use leptos::prelude::*;

use super::super::parts::{Call, CallProblem, every_visible, now_ms, ready};
use super::PageState;
use crate::api;
use crate::ui::*;

/// The interval of the checks for expired invitations.
const CHECK_MS: u64 = 30_000;

/// The table of open invitations.
#[component]
pub(super) fn Invitations(
    /// The state of the page.
    state: PageState,
) -> impl IntoView {
    let ready = ready();
    let call = Call::idle();
    let status = RwSignal::new(String::new());
    // Set in the browser only, so that its first rendering equals the rendering of the portal.
    let now = RwSignal::new(None::<i64>);
    Effect::new(move || now.set(Some(now_ms())));
    every_visible(CHECK_MS, move || {
        let _ = now.try_set(Some(now_ms()));
    });
    let resend = move |id: InvitationId| {
        status.set(String::new());
        call.run(api::members::resend(state.org, id), move |made: SentInvitation| {
            let SentInvitation { invitation, link } = made;
            if invitation.mailed_at.is_some() {
                status.set(format!("New link sent to {}. Earlier links are invalid.", invitation.email));
            }
            state.sent.set(Some((invitation.email.clone(), link)));
            state.invitations.update(|all| {
                if let Some(known) = all.iter_mut().find(|known| known.id == id) {
                    *known = invitation;
                }
            });
            state.reload_changes();
        });
    };
    let withdraw = move |id: InvitationId| {
        status.set(String::new());
        call.run(api::members::withdraw(state.org, id), move |()| {
            state.invitations.update(|all| all.retain(|known| known.id != id));
            // The shown link may belong to this invitation.
            state.sent.set(None);
            status.set("Invitation withdrawn. Its link is invalid.".to_owned());
            state.reload_changes();
        });
    };
    let row = move |one: &Invitation| {
        let id = one.id;
        let resend_label = format!("Resend the invitation of {}", one.email);
        let withdraw_label = format!("Withdraw the invitation of {}", one.email);
        let email = one.email.clone();
        let by = one.created_by.clone();
        let mailed = match one.mailed_at {
            Some(at) => view! { <When at=at/> }.into_any(),
            None => view! { <span class="quiet">"not sent"</span> }.into_any(),
        };
        let expires_at = one.expires_at;
        let expired = move || now.get().is_some_and(|now| expires_at.millis() <= now);
        let expired_note =
            move || expired().then(|| view! { <span class="table__sub">"expired; resend it"</span> });
        view! {
            <tr role="row">
                <th role="rowheader" scope="row"><span class="break">{email}</span></th>
                <td role="cell" data-label="Role">{one.role.name()}</td>
                <td role="cell" data-label="Invited by">{by}</td>
                <td role="cell" class="nowrap" data-label="E-mail sent">{mailed}</td>
                <td role="cell" class="nowrap" data-label="Expires"><When at=expires_at/>{expired_note}</td>
                <td role="cell" class="table__actions">
                    <span class="btn-grid">
                        <button
                            class="btn btn--small"
                            type="button"
                            aria-label=resend_label
                            disabled=move || !ready.get() || call.pending.get()
                            on:click=move |_| resend(id)
                        >
                            "Resend"
                        </button>
                        <button
                            class="btn btn--danger btn--small"
                            type="button"
                            aria-label=withdraw_label
                            disabled=move || !ready.get() || call.pending.get()
                            on:click=move |_| withdraw(id)
                        >
                            "Withdraw"
                        </button>
                    </span>
                </td>
            </tr>
        }
        .into_any()
    };
    let body = move || {
        state.invitations.with(|all| {
            if all.is_empty() {
                return no_invitations();
            }
            let rows: Vec<AnyView> = all.iter().map(row).collect();
            table(rows)
        })
    };
    view! {
        <section class="section">
            <div class="section__head">
                <h2>"Invitations"</h2>
                <div class="section__aside" role="status">{move || status.get()}</div>
            </div>
            <CallProblem call=call beside_fields=&[]/>
            {body}
        </section>
    }
}

fn no_invitations() -> AnyView {
    empty("No open invitations. Invitations appear here until they are accepted.")
}

fn table(rows: Vec<AnyView>) -> AnyView {
    table_of(
        "Open invitations",
        &[
            ("E-mail", ""),
            ("Role", ""),
            ("Invited by", ""),
            ("E-mail sent", "nowrap"),
            ("Expires", "nowrap"),
            ACTIONS,
        ],
        rows,
    )
}
