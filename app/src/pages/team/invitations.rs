//! Invitations that nobody has accepted yet: sending them again, taking them back.
//!
//! Must not show a link: a new one is shown above, once.

use berth_types::ids::InvitationId;
use berth_types::members::{Invitation, SentInvitation};
use leptos::prelude::*;

use super::super::parts::{Call, CallProblem, every, now_ms, ready};
use super::Desk;
use crate::api;
use crate::ui::*;

/// Whether an invitation has expired is looked at so often.
const AGAIN_MS: u64 = 30_000;

/// The table of open invitations.
#[component]
pub(super) fn Invitations(
    /// What the page is about.
    desk: Desk,
) -> impl IntoView {
    let ready = ready();
    let call = Call::idle();
    let said = RwSignal::new(String::new());
    // Known in the browser only, so that the first drawing is the portal's.
    let now = RwSignal::new(None::<i64>);
    Effect::new(move || now.set(Some(now_ms())));
    every(AGAIN_MS, move || {
        let _ = now.try_set(Some(now_ms()));
    });
    let resend = move |id: InvitationId| {
        said.set(String::new());
        call.run(api::members::resend(desk.org, id), move |made: SentInvitation| {
            let SentInvitation { invitation, link } = made;
            if invitation.mailed_at.is_some() {
                said.set(format!("{} is invited again. Links from before do nothing now.", invitation.email));
            }
            desk.sent.set(Some((invitation.email.clone(), link)));
            desk.invitations.update(|all| {
                if let Some(known) = all.iter_mut().find(|known| known.id == id) {
                    *known = invitation;
                }
            });
            desk.look_again();
        });
    };
    let withdraw = move |id: InvitationId| {
        said.set(String::new());
        call.run(api::members::withdraw(desk.org, id), move |()| {
            desk.invitations.update(|all| all.retain(|known| known.id != id));
            // The link that is still shown may be this one's.
            desk.sent.set(None);
            said.set("The invitation was withdrawn; its link does nothing now.".to_owned());
            desk.look_again();
        });
    };
    let row = move |one: &Invitation| {
        let id = one.id;
        let resend_label = format!("Send again the invitation of {}", one.email);
        let withdraw_label = format!("Withdraw the invitation of {}", one.email);
        let email = one.email.clone();
        let by = one.created_by.clone();
        let mailed = match one.mailed_at {
            Some(at) => view! { <When at=at/> }.into_any(),
            None => view! { <span class="quiet">"not sent"</span> }.into_any(),
        };
        let ends = one.expires_at;
        let expired = move || now.get().is_some_and(|now| ends.millis() <= now);
        let ended =
            move || expired().then(|| view! { <span class="table__sub">"expired; send it again"</span> });
        view! {
            <tr role="row">
                <th role="rowheader" scope="row"><span class="break">{email}</span></th>
                <td role="cell" data-label="Role">{one.role.name()}</td>
                <td role="cell" data-label="Invited by">{by}</td>
                <td role="cell" class="nowrap" data-label="Mailed">{mailed}</td>
                <td role="cell" class="nowrap" data-label="Expires"><When at=ends/>{ended}</td>
                <td role="cell" class="table__actions">
                    <span class="btn-grid">
                        <button
                            class="btn btn--small"
                            type="button"
                            aria-label=resend_label
                            disabled=move || !ready.get() || call.pending.get()
                            on:click=move |_| resend(id)
                        >
                            "Send again"
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
        desk.invitations.with(|all| {
            if all.is_empty() {
                return nobody();
            }
            let rows: Vec<AnyView> = all.iter().map(row).collect();
            table(rows)
        })
    };
    view! {
        <section class="section">
            <div class="section__head">
                <h2>"Invitations"</h2>
                <div class="section__aside" role="status">{move || said.get()}</div>
            </div>
            <CallProblem call=call beside_fields=&[]/>
            {body}
        </section>
    }
}

fn nobody() -> AnyView {
    empty("Nobody is invited at present. Send an invitation above, and it stands here until it is accepted.")
}

fn table(rows: Vec<AnyView>) -> AnyView {
    table_of(
        "Invitations that nobody has accepted yet",
        &[
            ("E-mail", ""),
            ("Role", ""),
            ("Invited by", ""),
            ("Mailed", "nowrap"),
            ("Expires", "nowrap"),
            ACTIONS,
        ],
        rows,
    )
}
