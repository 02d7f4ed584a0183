//! Deletion of the person's own account.

use berth_types::people::DeleteAccount;
use leptos::prelude::*;

use super::super::dialog_form::DialogForm;
use super::super::parts::{Call, CallProblem, ready};
use crate::api;
use crate::session::load_sign_in;
use crate::ui::*;

const FIELDS: &[&str] = &["/password"];

/// The section with the button, and its dialog.
#[component]
pub fn Deletion(
    /// True for an operator, whose account cannot be deleted.
    operator: bool,
) -> impl IntoView {
    let ready = ready();
    let open = RwSignal::new(false);
    let text = if operator {
        "An operator's account cannot be deleted. An owner removes the operator on the page Operators first."
    } else {
        "The deletion removes your account with its address, password, second factor, sessions, memberships and API tokens. The ledger, invoices, jobs and audit events of your organizations stay. Your name also stays in volumes, secrets, webhooks, budgets, quota requests, reservations, payments and terminals that you made. You cannot delete the account while you are the only owner of an organization with open jobs, reservations, a balance or other members."
    };
    view! {
        <section class="card">
            <h2 class="card__title">"Delete account"</h2>
            <p>{text}</p>
            <p>
                <button
                    class="btn btn--danger"
                    type="button"
                    disabled=move || operator || !ready.get()
                    on:click=move |_| open.set(true)
                >
                    "Delete account"
                </button>
            </p>
        </section>
        <DeleteDialog open=open/>
    }
}

#[component]
fn DeleteDialog(open: RwSignal<bool>) -> impl IntoView {
    let call = Call::idle();
    let password = RwSignal::new(String::new());
    let reset = move |()| password.set(String::new());
    let submit = move |()| {
        let body = DeleteAccount { password: password.get_untracked() };
        call.run(api::people::delete_account(&body), |()| load_sign_in());
    };
    view! {
        <DialogForm
            id="delete-account"
            title="Delete your account?"
            open=open
            call=call
            keep="Keep account"
            verb="Delete account"
            danger=true
            reset=Callback::new(reset)
            submit=Callback::new(submit)
        >
            <p>
                "You lose access to all your organizations, and your API tokens are refused at once. Jobs continue and are charged to their organizations. This cannot be undone."
            </p>
            <CallProblem call=call beside_fields=FIELDS/>
            <Field
                label="Password"
                name="delete-password"
                kind="password"
                value=password
                error=call.field("/password")
                autocomplete=Some("current-password")
            />
        </DialogForm>
    }
}
