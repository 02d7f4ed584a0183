//! Form of an invitation, and its link on a portal without a mail server.
//!
//! The portal checks the address; its errors are shown at the field.

use berth_types::accounts::Role;
use berth_types::members::{NewInvitation, SentInvitation};
use leptos::prelude::*;

use super::super::card_form::CardForm;
use super::super::parts::Call;
use super::super::roles::RoleField;
use super::PageState;
use crate::api;
use crate::ui::*;

const FIELDS: &[&str] = &["/email", "/role"];

/// The e-mail address and the role of an invitation.
#[component]
pub(super) fn InviteForm(
    /// The state of the page.
    state: PageState,
) -> impl IntoView {
    let call = Call::idle();
    let email = RwSignal::new(String::new());
    let role = RwSignal::new(Role::Member);
    let submit = move |()| {
        let body =
            NewInvitation { email: email.get_untracked().trim().to_owned(), role: role.get_untracked() };
        call.run(api::members::invite(state.org, &body), move |made: SentInvitation| {
            state.sent.set(Some((made.invitation.email.clone(), made.link)));
            state.invitations.update(|all| all.insert(0, made.invitation));
            state.reload_changes();
            email.set(String::new());
        });
    };
    view! {
        <CardForm
            title="New invitation"
            call=call
            beside_fields=FIELDS
            verb="Send invitation"
            submit=Callback::new(submit)
        >
            <div class="field-row">
                <Field
                    label="E-mail"
                    name="invite-email"
                    kind="email"
                    value=email
                    hint=Some("The invitation link works once and expires after 7 days.".to_owned())
                    error=call.field("/email")
                />
                <RoleField id="invite-role" role=role error=call.field("/role")/>
            </div>
        </CardForm>
    }
}

/// The link of the latest invitation. It is shown once.
#[component]
pub(super) fn InvitationLink(
    /// The e-mail address, and the link on a portal without a mail server.
    sent: RwSignal<Option<(String, Option<String>)>>,
) -> impl IntoView {
    move || {
        let (email, link) = sent.get()?;
        let link = link?;
        Some(view! {
            <section class="secret" role="status">
                <p>
                    <strong>"Copy the link now and send it to " <span class="break">{email}</span> "."</strong>
                    " This portal sends no mail; give the link to the person yourself. It is shown here, only once. Anyone with the link can accept the invitation: do not share it with others. It works once and expires after 7 days."
                </p>
                <CopyBlock text=Signal::derive(move || link.clone()) label="Invitation link".to_owned()/>
            </section>
        })
    }
}
