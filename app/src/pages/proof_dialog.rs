//! Dialog for a fresh proof of identity, on every page. The refused request is sent again after the proof.

use berth_types::factors::{NewProof, SecondFactors};
use berth_types::passkeys::PasskeyProof;
use berth_types::problems::Problem;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::parts::{Call, CallProblem, Modal, Submit};
use crate::{api, passkeys, proof};

/// The dialog with a code, or with the password for a person without a second factor.
#[component]
pub fn ProofDialog() -> impl IntoView {
    let open = RwSignal::new(false);
    let call = Call::idle();
    let password = RwSignal::new(String::new());
    let code = RwSignal::new(String::new());
    // Most steps ask only people with a second factor. The portal refuses the password of these people.
    let by_code = RwSignal::new(true);
    let by_passkey = RwSignal::new(false);
    let factors = Call::idle();
    Effect::new(move || proof::show_in(open));
    Effect::new(move |before: Option<bool>| {
        let now = open.get();
        if before == Some(true) && !now {
            // The end of the dialog by Escape or by the button.
            proof::answer(false);
            password.set(String::new());
            code.set(String::new());
        }
        if now {
            call.problem.set(None);
            factors.run(api::factors::list(), move |found: SecondFactors| {
                by_code.set(found.totp.is_some() || found.passkeys > 0);
                by_passkey.set(found.passkeys > 0);
            });
        }
        now
    });
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let proof = if by_code.get_untracked() {
            NewProof { code: Some(code.get_untracked().trim().to_owned()), password: None }
        } else {
            NewProof { password: Some(password.get_untracked()), code: None }
        };
        call.run(api::factors::prove(&proof), move |()| {
            proof::answer(true);
            open.set(false);
        });
    };
    let prove_by_passkey = move |_: leptos::ev::MouseEvent| {
        let request = async move {
            let begun = api::passkeys::begin_sign_in().await?;
            let credential = passkeys::sign(&begun.options).await?;
            api::passkeys::prove(&PasskeyProof { credential }).await
        };
        call.run(request, move |()| {
            proof::answer(true);
            open.set(false);
        });
    };
    view! {
        <Modal id="proof" title="Identity check" open=open>
            // Hidden fields would attract password managers on every page.
            <Show when=move || open.get()>
                <form method="post" on:submit=submit>
                    <div class="dialog__body">
                        <p>
                            {move || match (by_code.get(), by_passkey.get()) {
                                (_, true) => "This step needs a passkey or a code",
                                (true, false) => "This step needs a code",
                                (false, false) => "This step needs your password",
                            }}
                            " again after 15 minutes. Your request continues afterwards."
                        </p>
                        <p class="quiet" hidden=move || by_code.get()>
                            "Without a password, sign out and sign in again. Then repeat this step."
                        </p>
                        <div id="proof-problem"><CallProblem call=call beside_fields=&[]/></div>
                        <ProofField by_code=false shown=by_code value=password call=call/>
                        <ProofField by_code=true shown=by_code value=code call=call/>
                    </div>
                    <div class="dialog__actions">
                        <button class="btn" type="button" on:click=move |_| open.set(false)>"Cancel"</button>
                        <button
                            class="btn"
                            type="button"
                            hidden=move || !by_passkey.get()
                            aria-disabled=move || call.pending.get().then_some("true")
                            on:click=prove_by_passkey
                        >
                            "Use a passkey"
                        </button>
                        <Submit call=call>"Confirm"</Submit>
                    </div>
                </form>
            </Show>
        </Modal>
    }
}

/// The field for the password or for a code. It has the focus at its appearance.
#[component]
fn ProofField(
    /// True for the field of a code.
    by_code: bool,
    /// The kind of the visible field.
    shown: RwSignal<bool>,
    /// The input.
    value: RwSignal<String>,
    /// The request of the dialog, which shows its problem.
    call: Call,
) -> impl IntoView {
    let input = NodeRef::<leptos::html::Input>::new();
    Effect::new(move || {
        if shown.get() == by_code
            && let Some(input) = input.get()
        {
            let _ = input.focus();
        }
    });
    let wrong = move || {
        let is_wrong = |problem: &Problem| {
            !problem.errors.is_empty()
                || matches!(problem.code.as_str(), "auth.wrong_code" | "auth.wrong_password")
        };
        shown.get() == by_code && call.problem.with(|problem| problem.as_ref().is_some_and(is_wrong))
    };
    let (id, label, kind, complete) = if by_code {
        ("proof-code", "Code of the app, or a recovery code", "text", "one-time-code")
    } else {
        ("proof-password", "Your password", "password", "current-password")
    };
    view! {
        <div class="field" hidden=move || shown.get() != by_code>
            <label class="field__label" for=id>{label}</label>
            <input
                id=id
                name=id
                type=kind
                autocomplete=complete
                spellcheck="false"
                aria-describedby="proof-problem"
                aria-invalid=move || wrong().then_some("true")
                node_ref=input
                prop:value=move || value.get()
                on:input=move |ev| value.set(event_target_value(&ev))
            />
        </div>
    }
}
