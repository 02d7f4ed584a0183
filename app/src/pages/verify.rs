//! Page to verify an e-mail address by a link in a mail. Programs that open the links of mails verify nothing, because
//! the page waits for its button.

use berth_types::people::{CompleteVerification, VerifiedEmail};
use leptos::prelude::*;
use leptos_meta::Title;

use super::call_button::CallButton;
use super::link_secret::{IncompleteLink, is_incomplete, link_secret};
use super::parts::{Brand, Call, CallProblem, focus_soon, open_url};
use crate::api;
use crate::api::Answer;
use crate::identity::use_identity;

/// The button that verifies the address.
#[component]
pub fn VerifyPage() -> impl IntoView {
    let secret = link_secret();
    let incomplete = is_incomplete(secret);
    let call = Call::idle();
    // The sentence about the verified address.
    let verified = RwSignal::new(None::<String>);
    let verify = move |()| {
        let body = CompleteVerification { token: secret.get_untracked() };
        let work = async move {
            let answer: Answer<VerifiedEmail> = api::people::complete_verification(&body).await;
            // An older link of a verified address is not valid any more.
            if answer.as_ref().is_err_and(|problem| problem.code == "link.not_valid")
                && let Ok(me) = api::accounts::me().await
                && me.email_verified_at.is_some()
            {
                return Ok(format!("This link is not valid any more. {} is verified.", me.user.email));
            }
            answer.map(|done| done.email)
        };
        call.run(work, move |text: String| {
            verified.set(Some(text));
            focus_soon("#address-verified".to_owned());
        });
    };
    let label = format!("Open {}", use_identity().name);
    view! {
        <Title text="Verify your e-mail address"/>
        <main class="auth" id="main">
            <Brand/>
            <div class="auth__card" hidden=move || verified.with(Option::is_some) || incomplete.get()>
                <h1>"Verify your e-mail address"</h1>
                <p class="auth__lead">"The link in the mail proves that the address is yours."</p>
                <CallProblem call=call beside_fields=&[]/>
                <CallButton call=call class="btn btn--primary" send=Callback::new(verify)>"Verify address"</CallButton>
                <p class="quiet">"A link works once, for seven days. Your address may be verified already: see the page Your account, which otherwise sends another link."</p>
            </div>
            <div class="auth__card" role="status" hidden=move || verified.with(Option::is_none)>
                <h1 id="address-verified" tabindex="-1">"Your address is verified"</h1>
                <p class="break">{move || verified.get()}</p>
                // A full load: the data of an open session is outdated.
                <button class="btn btn--primary" type="button" on:click=move |_| open_url("/")>{label}</button>
            </div>
            <IncompleteLink title="Verify your e-mail address" incomplete=incomplete/>
        </main>
    }
}
