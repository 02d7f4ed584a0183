//! Second factors of the signed-in person: passkeys, the authenticator app and the recovery codes.
//!
//! The secret of a new app and new recovery codes exist only in signals of this page.

use berth_types::factors::{RecoveryCodes, SecondFactors as Loaded, TotpEnrolment};
use berth_types::passkeys::{Passkey, Passkeys};
use futures::try_join;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::account_passkeys::PasskeysCard;
use super::confirm::ConfirmDialog;
use super::parts::{Call, CallProblem, FieldError, Loading, Submit, focus_soon, ready};
use crate::api;
use crate::api::Answer;
use crate::api::escape::escaped;
use crate::session::{Page, use_session};
use crate::ui::*;

/// The page of second factors.
#[component]
pub fn SecondFactorsPage() -> impl IntoView {
    let required = use_session().me.second_factor_required;
    let active = RwSignal::new(false);
    let lead = move || match (required, active.get()) {
        (true, false) => {
            "Your account needs a second factor. Add a passkey or an authenticator app to continue."
        }
        (true, true) => "Your second factor is active. Continue to the portal.",
        (false, _) => "A second factor protects your account if somebody learns your password.",
    };
    view! {
        <Page title="Second factor".to_owned()>
            <p class="page__lead">{lead}</p>
            <SecondFactors active=active/>
        </Page>
    }
}

/// The second factors, as a part of a page.
#[component]
pub fn SecondFactors(
    /// Becomes true with a passkey or a confirmed app, after hydration.
    active: RwSignal<bool>,
) -> impl IntoView {
    let data: Resource<Answer<(Loaded, Passkeys)>> = Resource::new(
        || (),
        |()| {
            let (factors, passkeys) = (api::factors::list(), api::passkeys::list());
            async move { try_join!(factors, passkeys) }
        },
    );
    let retry = Retry::new(move || data.refetch());
    view! {
        <Suspense fallback=|| view! { <Loading/> }>
            {move || suspended(async move {
                let answer = data.await;
                move || match answer {
                    Err(problem) => view! { <RetryNotice problem=problem retry=retry/> }.into_any(),
                    Ok((loaded, passkeys)) => {
                        retry.succeeded();
                        view! { <Factors loaded=loaded passkeys=passkeys active=active/> }.into_any()
                    }
                }
            })}
        </Suspense>
    }
}

/// The state of the page.
#[derive(Clone, Copy)]
struct PageState {
    /// True with a confirmed app.
    has_app: RwSignal<bool>,
    /// The passkeys.
    passkeys: RwSignal<Vec<Passkey>>,
    /// The number of unused recovery codes.
    codes_left: RwSignal<i64>,
    /// The secret of an app before its confirmation.
    enrolment: RwSignal<Option<TotpEnrolment>>,
    /// The new recovery codes.
    new_codes: RwSignal<Vec<String>>,
}

impl PageState {
    fn show_codes(self, codes: Vec<String>) {
        self.codes_left.set(i64::try_from(codes.len()).unwrap_or(i64::MAX));
        self.new_codes.set(codes);
    }

    /// Returns true with a second factor.
    fn is_active(self) -> bool {
        self.has_app.get() || !self.passkeys.with(Vec::is_empty)
    }

    /// Forgets the recovery codes after the last second factor.
    fn forget_codes(self) {
        if !self.has_app.get_untracked() && self.passkeys.with_untracked(Vec::is_empty) {
            self.codes_left.set(0);
            self.new_codes.set(Vec::new());
        }
    }
}

#[component]
fn Factors(
    /// The second factors at the load.
    loaded: Loaded,
    /// The passkeys at the load.
    passkeys: Passkeys,
    /// Becomes true with a second factor.
    active: RwSignal<bool>,
) -> impl IntoView {
    let state = PageState {
        has_app: RwSignal::new(loaded.totp.is_some()),
        passkeys: RwSignal::new(passkeys.passkeys),
        codes_left: RwSignal::new(loaded.recovery_codes),
        enrolment: RwSignal::new(None),
        new_codes: RwSignal::new(Vec::new()),
    };
    Effect::new(move || active.set(state.is_active()));
    let added = Callback::new(move |codes: Vec<String>| {
        if !codes.is_empty() {
            state.show_codes(codes);
            focus_soon("#new-codes".to_owned());
        }
    });
    let removed = Callback::new(move |()| state.forget_codes());
    let codes = move || {
        let codes = state.new_codes.get();
        (!codes.is_empty()).then(|| view! { <NewCodes codes=codes/> })
    };
    let enrolment = move || state.enrolment.get().map(|made| view! { <ConfirmApp state=state made=made/> });
    view! {
        {codes}
        <PasskeysCard
            list=state.passkeys
            available=passkeys.available
            has_app=state.has_app
            added=added
            removed=removed
        />
        <AddApp state=state/>
        {enrolment}
        <PresentApp state=state/>
        <CodesCard state=state/>
    }
}

/// The recovery codes, shown once.
#[component]
fn NewCodes(codes: Vec<String>) -> impl IntoView {
    let required = use_session().me.second_factor_required;
    let text = codes.join("\n");
    let items: Vec<AnyView> =
        codes.into_iter().map(|code| view! { <li class="mono">{code}</li> }.into_any()).collect();
    view! {
        <section class="secret" role="status" id="new-codes" tabindex="-1">
            <p>
                <strong>"Save the recovery codes now."</strong>
                " They are shown only once; the portal stores only their hashes. Each code works once in place of the app or a passkey, for example after the loss of your phone."
            </p>
            <ul class="factor-codes" role="list" aria-label="Recovery codes">{items}</ul>
            <p class="row">
                <CopyButton text=text label="Copy codes"/>
                {required.then(continue_link)}
            </p>
        </section>
    }
}

/// Returns the link from the required second factor to the portal. The session has its rights only after a full
/// load.
fn continue_link() -> AnyView {
    view! { <a class="btn btn--primary" href="/" rel="external">"Continue"</a> }.into_any()
}

/// The card of an account without an app.
#[component]
fn AddApp(state: PageState) -> impl IntoView {
    let call = Call::idle();
    let ready = ready();
    let add = move |_| {
        call.run(api::factors::enrol(), move |made: TotpEnrolment| {
            state.enrolment.set(Some(made));
            focus_soon("#totp-code".to_owned());
        });
    };
    view! {
        <section
            class="card"
            aria-labelledby="add-app"
            hidden=move || state.has_app.get() || state.enrolment.with(Option::is_some)
        >
            <h2 class="card__title" id="add-app">"No authenticator app"</h2>
            <p>
                "An authenticator app on your phone shows a code of six digits. The sign-in then needs your password and this code."
            </p>
            <CallProblem call=call beside_fields=&[]/>
            <div class="form__actions">
                <button
                    class="btn btn--primary"
                    id="begin-app"
                    type="button"
                    disabled=move || !ready.get()
                    aria-disabled=move || call.pending.get().then_some("true")
                    aria-busy=move || call.pending.get().then_some("true")
                    on:click=add
                >
                    "Add authenticator app"
                </button>
            </div>
        </section>
    }
}

/// The secret of a new app and the form with its first code.
#[component]
fn ConfirmApp(state: PageState, made: TotpEnrolment) -> impl IntoView {
    let call = Call::idle();
    let code = RwSignal::new(String::new());
    let wrong = call.field("/code");
    let image = format!("data:image/svg+xml,{}", escaped(&made.svg));
    let secret = made.secret;
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        call.run(
            api::factors::confirm(code.get_untracked().trim().to_owned()),
            move |made: RecoveryCodes| {
                state.show_codes(made.codes);
                state.has_app.set(true);
                state.enrolment.set(None);
                focus_soon("#new-codes".to_owned());
            },
        );
    };
    let cancel = move |_: leptos::ev::MouseEvent| {
        state.enrolment.set(None);
        focus_soon("#begin-app".to_owned());
    };
    view! {
        <form class="form card" method="post" on:submit=submit>
            <h2 class="card__title">"New authenticator app"</h2>
            <p>"Scan the QR code with the app, or enter the secret in the app. Then enter the code of the app."</p>
            <img class="factor-qr" src=image alt="QR code of the secret" width="200" height="200"/>
            <CopyBlock text=Signal::derive(move || secret.clone()) label="Secret of the app".to_owned()/>
            <CallProblem call=call beside_fields=&["/code"]/>
            <div class="field">
                <label class="field__label" for="totp-code">"Code"</label>
                <input
                    id="totp-code"
                    name="totp-code"
                    type="text"
                    inputmode="numeric"
                    autocomplete="one-time-code"
                    spellcheck="false"
                    aria-describedby="totp-code-error"
                    aria-invalid=move || wrong.get().map(|_| "true")
                    prop:value=move || code.get()
                    on:input=move |ev| code.set(event_target_value(&ev))
                />
                <FieldError id="totp-code-error" error=wrong/>
            </div>
            <div class="form__actions">
                <button class="btn" type="button" on:click=cancel>"Cancel"</button>
                <Submit call=call>"Confirm app"</Submit>
            </div>
        </form>
    }
}

/// The card of an account with an app.
#[component]
fn PresentApp(state: PageState) -> impl IntoView {
    let removal = Call::idle();
    let ready = ready();
    let open = RwSignal::new(false);
    let remove = move |()| {
        removal.run(api::factors::remove(), move |()| {
            open.set(false);
            state.has_app.set(false);
            state.forget_codes();
        });
    };
    view! {
        <section class="card" aria-labelledby="present-app" hidden=move || !state.has_app.get()>
            <h2 class="card__title" id="present-app">"Authenticator app active"</h2>
            <p>"Each sign-in with your password needs a code of the app, a passkey or a recovery code."</p>
            <div class="form__actions">
                <button
                    class="btn btn--danger"
                    type="button"
                    disabled=move || !ready.get()
                    on:click=move |_| open.set(true)
                >
                    "Remove authenticator app"
                </button>
            </div>
        </section>
        <ConfirmDialog
            id="remove-app"
            title="Remove the authenticator app?"
            open=open
            call=removal
            keep="Keep app"
            verb="Remove app"
            confirm=Callback::new(remove)
        >
            <p hidden=move || !state.passkeys.with(Vec::is_empty)>
                "The sign-in then needs only your password, and the recovery codes and all your other sessions end. You can add an app again at any time."
            </p>
            <p hidden=move || state.passkeys.with(Vec::is_empty)>
                "Your passkeys and the recovery codes stay. All your other sessions end. You can add an app again at any time."
            </p>
        </ConfirmDialog>
    }
}

/// The card of the recovery codes.
#[component]
fn CodesCard(state: PageState) -> impl IntoView {
    let required = use_session().me.second_factor_required;
    let ready = ready();
    let renewing = RwSignal::new(false);
    let left = move || match state.codes_left.get() {
        0 => "No recovery codes left. Replace them now.".to_owned(),
        1 => "1 recovery code left. Replace the codes soon.".to_owned(),
        many => format!("{many} recovery codes left."),
    };
    // New codes have this link of their own.
    let onward = move || (required && state.new_codes.with(Vec::is_empty)).then(continue_link);
    view! {
        <section class="card" aria-labelledby="codes-left" hidden=move || !state.is_active()>
            <h2 class="card__title" id="codes-left">"Recovery codes"</h2>
            <p>{left}</p>
            <div class="form__actions">
                {onward}
                <button
                    class="btn"
                    type="button"
                    disabled=move || !ready.get()
                    on:click=move |_| renewing.set(true)
                >
                    "Replace recovery codes"
                </button>
            </div>
        </section>
        <RenewDialog state=state open=renewing/>
    }
}

/// The confirmation of new recovery codes.
#[component]
fn RenewDialog(
    /// The state of the page.
    state: PageState,
    /// True with an open dialog.
    open: RwSignal<bool>,
) -> impl IntoView {
    let call = Call::idle();
    let renew = move |()| {
        call.run(api::factors::renew_codes(), move |made: RecoveryCodes| {
            open.set(false);
            state.show_codes(made.codes);
            focus_soon("#new-codes".to_owned());
        });
    };
    view! {
        <ConfirmDialog
            id="renew-codes"
            title="Replace the recovery codes?"
            open=open
            call=call
            keep="Keep codes"
            verb="Replace codes"
            confirm=Callback::new(renew)
        >
            <p>"All earlier recovery codes stop working at once, and all your other sessions end. The new codes are shown once."</p>
        </ConfirmDialog>
    }
}
