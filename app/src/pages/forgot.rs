//! Page to request a link for a new password. It does not reveal the existence of an account.

use berth_types::people::NewPasswordReset;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;
use leptos_meta::Title;

use super::parts::{Brand, Call, CallProblem, Submit, focus_soon};
use crate::api;
use crate::ui::*;

const FIELDS: &[&str] = &["/email"];

/// The request for a link by e-mail address.
#[component]
pub fn ForgotPage() -> impl IntoView {
    let call = Call::idle();
    let email = RwSignal::new(String::new());
    let sent = RwSignal::new(false);
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let body = NewPasswordReset { email: email.get_untracked().trim().to_owned() };
        call.run(api::people::request_reset(&body), move |()| {
            sent.set(true);
            focus_soon("#link-requested".to_owned());
        });
    };
    let back = move |_: leptos::ev::MouseEvent| {
        sent.set(false);
        focus_soon("#email".to_owned());
    };
    view! {
        <Title text="Set a new password"/>
        <main class="auth" id="main">
            <Brand/>
            <form class="auth__card" method="post" hidden=move || sent.get() on:submit=submit>
                <h1>"Set a new password"</h1>
                <p class="auth__lead">"The portal mails a link to the address of your account."</p>
                <CallProblem call=call beside_fields=FIELDS/>
                <EmailField value=email error=call.field("/email")/>
                <Submit call=call>"Send link"</Submit>
            </form>
            <div class="auth__card" role="status" hidden=move || !sent.get()>
                <h1 id="link-requested" tabindex="-1">"Link requested"</h1>
                <p>
                    "If an account has the address " <strong class="break">{move || email.get()}</strong>
                    ", a mail with a link is on its way. The link works once, for 10 minutes. Your present password works until you set a new one."
                </p>
                <p class="quiet">
                    "No mail after some minutes? Check the spam folder. On a portal without a mail server the operator has the link."
                </p>
                <p>
                    <button class="link-button" type="button" on:click=back>"Use another address"</button>
                </p>
            </div>
            <p class="auth__foot"><a href="/sign-in">"Sign in"</a></p>
        </main>
    }
}
