//! Inviting somebody, and the link to pass on where no mail leaves the portal.
//!
//! Must not judge an address: what the portal refuses stands beside its field.

use berth_types::accounts::Role;
use berth_types::members::{NewInvitation, SentInvitation};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::super::parts::{Call, CallProblem, Submit};
use super::super::roles::RoleField;
use super::Desk;
use crate::api;
use crate::ui::*;

const FIELDS: &[&str] = &["/email", "/role"];

/// An address, and a role.
#[component]
pub(super) fn InviteForm(
    /// What the page is about.
    desk: Desk,
) -> impl IntoView {
    let call = Call::idle();
    let email = RwSignal::new(String::new());
    let role = RwSignal::new(Role::Member);
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let body =
            NewInvitation { email: email.get_untracked().trim().to_owned(), role: role.get_untracked() };
        call.run(api::members::invite(desk.org, &body), move |made: SentInvitation| {
            desk.sent.set(Some((made.invitation.email.clone(), made.link)));
            desk.invitations.update(|all| all.insert(0, made.invitation));
            desk.look_again();
            email.set(String::new());
        });
    };
    view! {
        <form class="form card" method="post" on:submit=submit>
            <h2 class="card__title">"Invite somebody"</h2>
            <CallProblem call=call beside_fields=FIELDS/>
            <div class="field-row">
                <Field
                    label="E-mail"
                    name="invite-email"
                    kind="email"
                    value=email
                    hint=Some("They get a link that works once, for seven days.".to_owned())
                    error=call.field("/email")
                    autocomplete=Some("off")
                />
                <RoleField id="invite-role" role=role error=call.field("/role")/>
            </div>
            <div class="form__actions">
                <Submit call=call>"Send invitation"</Submit>
            </div>
        </form>
    }
}

/// The link of the invitation that was sent last, this one time.
#[component]
pub(super) fn Link(
    /// Its address, and its link where the portal tells it.
    sent: RwSignal<Option<(String, Option<String>)>>,
) -> impl IntoView {
    move || {
        let (email, link) = sent.get()?;
        let link = link?;
        Some(view! {
            <section class="secret" role="status">
                <p>
                    <strong>"Copy the link now, and give it to " <span class="break">{email}</span> "."</strong>
                    " This portal has no mail server, so the link is shown to you, this one time. Whoever has it can accept once, within seven days: pass it on to nobody else."
                </p>
                <CopyBlock text=Signal::derive(move || link.clone()) label="The link".to_owned()/>
            </section>
        })
    }
}
