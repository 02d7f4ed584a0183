//! The button for a sign-in by a passkey.

use berth_types::accounts::User;
use berth_types::passkeys::PasskeySignIn;
use leptos::prelude::*;

use super::parts::{Call, ready};
use crate::{api, passkeys};

/// The button for a sign-in by a passkey: alone, or as the second factor of a sign-in.
#[component]
pub fn PasskeyEntry(
    /// The label.
    label: &'static str,
    /// The request of the form, which shows its problem.
    call: Call,
    /// The challenge of the first step; absent for a sign-in by the passkey alone.
    challenge: RwSignal<Option<String>>,
    /// Returns the path after the sign-in.
    target: Callback<(), String>,
    /// Gets the path after the sign-in.
    next: RwSignal<Option<String>>,
) -> impl IntoView {
    let ready = ready();
    let begin = move |_: leptos::ev::MouseEvent| {
        let (target, challenge) = (target.run(()), challenge.get_untracked());
        let request = async move {
            let begun = api::passkeys::begin_sign_in().await?;
            let credential = passkeys::sign(&begun.options).await?;
            api::passkeys::sign_in(&PasskeySignIn { credential, challenge }).await
        };
        call.run(request, move |_: User| next.set(Some(target)));
    };
    view! {
        <div class="field">
            <button
                class="btn"
                type="button"
                disabled=move || !ready.get()
                aria-disabled=move || call.pending.get().then_some("true")
                on:click=begin
            >
                {label}
            </button>
        </div>
    }
}
