//! Deletion of the person's own account.

use berth_types::people::DeleteAccount;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::super::parts::{Call, CallProblem, Modal, ready};
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
        "An operator's account cannot be deleted, because the portal needs its operator."
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
    Effect::new(move || {
        if open.get() {
            call.problem.set(None);
            password.set(String::new());
        }
    });
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let body = DeleteAccount { password: password.get_untracked() };
        call.run(api::people::delete_account(&body), |()| load_sign_in());
    };
    view! {
        <Modal id="delete-account" title="Delete your account?" open=open>
            <form method="post" on:submit=submit>
                <div class="dialog__body">
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
                </div>
                <div class="dialog__actions">
                    <button class="btn" type="button" on:click=move |_| open.set(false)>"Keep account"</button>
                    <button
                        class="btn btn--danger btn--primary"
                        type="submit"
                        aria-disabled=move || call.pending.get().then_some("true")
                        aria-busy=move || call.pending.get().then_some("true")
                    >
                        "Delete account"
                    </button>
                </div>
            </form>
        </Modal>
    }
}
