//! Page to verify an e-mail address by a link in a mail. Programs that open the links of mails verify nothing, because
//! the page waits for its button.

use berth_types::people::{CompleteVerification, VerifiedEmail};
use leptos::prelude::*;
use leptos_meta::Title;

use super::call_button::CallButton;
use super::link_secret::link_secret;
use super::parts::{Brand, Call, CallProblem, focus_soon, open_url};
use crate::api;
use crate::identity::use_identity;

/// The button that verifies the address.
#[component]
pub fn VerifyPage() -> impl IntoView {
    let secret = link_secret();
    let call = Call::idle();
    let verified = RwSignal::new(None::<VerifiedEmail>);
    let verify = move |()| {
        let body = CompleteVerification { token: secret.get_untracked() };
        call.run(api::people::complete_verification(&body), move |done: VerifiedEmail| {
            verified.set(Some(done));
            focus_soon("#address-verified".to_owned());
        });
    };
    let label = format!("Open {}", use_identity().name);
    let email = move || verified.with(|done| done.as_ref().map(|done| done.email.clone()));
    view! {
        <Title text="Verify your e-mail address"/>
        <main class="auth" id="main">
            <Brand/>
            <div class="auth__card" hidden=move || verified.with(Option::is_some)>
                <h1>"Verify your e-mail address"</h1>
                <p class="auth__lead">"The link in the mail proves that the address is yours."</p>
                <CallProblem call=call beside_fields=&[]/>
                <CallButton call=call class="btn btn--primary" send=Callback::new(verify)>"Verify address"</CallButton>
                <p class="quiet">"A link works once, for seven days. The page Your account sends another one."</p>
            </div>
            <div class="auth__card" role="status" hidden=move || verified.with(Option::is_none)>
                <h1 id="address-verified" tabindex="-1">"Address verified"</h1>
                <p class="break">{email}</p>
                // A full load: the data of an open session is outdated.
                <button class="btn btn--primary" type="button" on:click=move |_| open_url("/")>{label}</button>
            </div>
        </main>
    }
}
