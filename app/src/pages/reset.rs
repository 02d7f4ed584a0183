//! Page to set a new password by a link in a mail.

use berth_types::people::{CompletePasswordReset, EndedSessions};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;
use leptos_meta::Title;

use super::link_secret::{IncompleteLink, is_incomplete, link_secret};
use super::parts::{Brand, Call, CallProblem, PasswordField, Submit, focus_soon};
use crate::api;

const FIELDS: &[&str] = &["/password"];

/// The form of a new password.
#[component]
pub fn ResetPage() -> impl IntoView {
    let secret = link_secret();
    let incomplete = is_incomplete(secret);
    let call = Call::idle();
    let password = RwSignal::new(String::new());
    let done = RwSignal::new(false);
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let body =
            CompletePasswordReset { token: secret.get_untracked(), password: password.get_untracked() };
        call.run(api::people::complete_reset(&body), move |_: EndedSessions| {
            done.set(true);
            focus_soon("#password-set".to_owned());
        });
    };
    view! {
        <Title text="Set a new password"/>
        <main class="auth" id="main">
            <Brand/>
            <form class="auth__card" method="post" hidden=move || done.get() || incomplete.get() on:submit=submit>
                <h1>"Set a new password"</h1>
                <p class="auth__lead">
                    "All sessions of your account end. API tokens stay valid: revoke them on the page Tokens if somebody else has them."
                </p>
                <CallProblem call=call beside_fields=FIELDS/>
                <PasswordField value=password error=call.field("/password") fresh=true/>
                <Submit call=call>"Set password"</Submit>
            </form>
            <div class="auth__card" role="status" hidden=move || !done.get()>
                <h1 id="password-set" tabindex="-1">"Password set"</h1>
                <p>"All sessions of your account have ended. Sign in with the new password."</p>
                <a class="btn btn--primary" href="/sign-in">"Sign in"</a>
            </div>
            <IncompleteLink title="Set a new password" incomplete=incomplete/>
            <p class="auth__foot" hidden=move || done.get()>
                "Link used or expired? " <a href="/forgot">"Request another link"</a>
            </p>
        </main>
    }
}
