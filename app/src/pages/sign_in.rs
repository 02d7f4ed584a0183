//! Sign-in page.
//!
//! The page does not reveal the existence of an account, and redirects only within this site.

use berth_types::accounts::{PortalInfo, SignIn, User};
use berth_types::factors::{FactorKind, SecondFactorSignIn};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;
use leptos_meta::Title;
use leptos_router::hooks::use_query_map;

use super::link_secret::link_secret;
use super::parts::{Brand, Call, CallProblem, FieldError, PasswordField, Submit, focus_soon, redirect};
use super::passkey_entry::PasskeyEntry;
use super::sso_entry::{SsoEntry, SsoNotice};
use crate::api;
use crate::api::Answer;
use crate::api::accounts::SignInStep;
use crate::identity::use_identity;
use crate::ui::*;

const FIELDS: &[&str] = &["/email", "/password"];
/// Characters of a challenge. Names of places in the page are shorter.
const CHALLENGE_CHARS: usize = 43;

/// Returns the path after the sign-in: the requested path if it is on this site, or else the home page.
///
/// A browser reads `//host` and `/\host` as another site, so the second character is checked too.
pub fn safe_next(requested: Option<&str>) -> String {
    let inside = |path: &&str| {
        let mut chars = path.chars();
        chars.next() == Some('/')
            && !matches!(chars.next(), Some('/' | '\\'))
            && !path.chars().any(|c| c.is_control() || c == '\\')
    };
    // The pages without a session would lead back to themselves.
    let entry = |path: &str| {
        matches!(path.split('?').next(), Some("/sign-in" | "/sign-up" | "/setup" | "/forgot" | "/reset"))
    };
    requested.filter(inside).filter(|path| !entry(path)).unwrap_or("/").to_owned()
}

/// The sign-in by e-mail address and password, and by a code for an account with a second factor, or by a passkey.
#[component]
pub fn SignInPage() -> impl IntoView {
    let info: Resource<Answer<PortalInfo>> = Resource::new(|| (), |()| api::accounts::info());
    let title = format!("Sign in to {}", use_identity().name);
    let query = use_query_map();
    let next = redirect();
    let call = Call::idle();
    let email = RwSignal::new(String::new());
    let password = RwSignal::new(String::new());
    let challenge = RwSignal::new(None::<String>);
    // A first step by single sign-on does not tell its factors.
    let by_passkey = RwSignal::new(true);
    let target = Callback::new(move |()| {
        let requested = query.with_untracked(|query| query.get("next"));
        safe_next(requested.as_deref())
    });
    // A single sign-on that needs the second factor of the account returns with the challenge after the `#`.
    let step = link_secret();
    Effect::new(move || {
        let found = step.get();
        if found.len() >= CHALLENGE_CHARS {
            challenge.set(Some(found));
        }
    });
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let credentials =
            SignIn { email: email.get_untracked().trim().to_owned(), password: password.get_untracked() };
        let target = target.run(());
        call.run(api::accounts::begin_sign_in(&credentials), move |step: SignInStep| match step {
            SignInStep::SignedIn(_) => next.set(Some(target)),
            SignInStep::Challenge(step) => {
                by_passkey.set(step.second_factor.contains(&FactorKind::Passkey));
                challenge.set(Some(step.challenge));
            }
        });
    };
    view! {
        <Title text=title/>
        <main class="auth" id="main">
            <Brand/>
            <form
                class="auth__card"
                method="post"
                hidden=move || challenge.with(Option::is_some)
                on:submit=submit
            >
                <h1>"Sign in"</h1>
                <SsoNotice/>
                <CallProblem call=call beside_fields=FIELDS/>
                <EmailField value=email error=call.field("/email")/>
                <PasswordField value=password error=call.field("/password") fresh=false/>
                <Submit call=call>{move || if call.pending.get() { "Signing in" } else { "Sign in" }}</Submit>
                <Suspense fallback=|| ()>
                    {move || suspended(async move {
                        let (sso, passkeys) = info.await.map_or((false, false), |info| (info.sso, info.passkeys));
                        move || {
                            let alone = RwSignal::new(None::<String>);
                            let passkey = passkeys.then(|| {
                                view! {
                                    <PasskeyEntry
                                        label="Sign in with a passkey"
                                        call=call
                                        challenge=alone
                                        target=target
                                        next=next
                                    />
                                }
                            });
                            view! {
                                {passkey}
                                {sso.then(|| view! { <SsoEntry email=email/> })}
                            }
                            .into_any()
                        }
                    })}
                </Suspense>
                <p><a href="/forgot">"Set a new password by mail"</a></p>
            </form>
            <CodeForm
                info=info
                challenge=challenge
                by_passkey=by_passkey
                password=password
                first=call
                target=target
                next=next
            />
            <Suspense fallback=|| ()>
                {move || suspended(async move {
                    let info = info.await;
                    move || match info {
                        Ok(info) if info.needs_setup => {
                            view! {
                                <p class="auth__foot">
                                    "This portal has no operator yet. " <a href="/setup">"Set up the portal"</a>
                                </p>
                            }
                                .into_any()
                        }
                        Ok(info) if info.sign_up_open => {
                            view! {
                                <p class="auth__foot">
                                    "No account? " <a href="/sign-up">"Create an organization"</a>
                                </p>
                            }
                                .into_any()
                        }
                        _ => {
                            view! {
                                <p class="auth__foot">
                                    "No account? Ask the operator of this portal for one, or an owner of your organization for an invitation."
                                </p>
                            }
                                .into_any()
                        }
                    }
                })}
            </Suspense>
        </main>
    }
}

/// The second step of a sign-in.
#[component]
fn CodeForm(
    /// The public facts about the portal.
    info: Resource<Answer<PortalInfo>>,
    /// The challenge of the first step; without one the form is hidden.
    challenge: RwSignal<Option<String>>,
    /// True if a passkey can complete the sign-in.
    by_passkey: RwSignal<bool>,
    /// The password of the first step.
    password: RwSignal<String>,
    /// The request of the first step.
    first: Call,
    /// Returns the path after the sign-in.
    target: Callback<(), String>,
    /// Gets the path after the sign-in.
    next: RwSignal<Option<String>>,
) -> impl IntoView {
    let call = Call::idle();
    let code = RwSignal::new(String::new());
    let wrong = call.field("/code");
    let input = NodeRef::<leptos::html::Input>::new();
    Effect::new(move || {
        if challenge.with(Option::is_some)
            && let Some(input) = input.get()
        {
            let _ = input.focus();
        }
    });
    let restart = move || {
        challenge.set(None);
        password.set(String::new());
        code.set(String::new());
        call.problem.set(None);
        first.problem.set(None);
        focus_soon("#email".to_owned());
    };
    // Without its challenge the form has no use.
    Effect::new(move || {
        let ended = call.problem.get().filter(|problem| problem.code == "auth.challenge");
        if ended.is_some() {
            restart();
            first.problem.set(ended);
        }
    });
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let Some(challenge) = challenge.get_untracked() else { return };
        let body = SecondFactorSignIn { challenge, code: code.get_untracked().trim().to_owned() };
        let target = target.run(());
        call.run(api::accounts::complete_sign_in(&body), move |_: User| next.set(Some(target)));
    };
    view! {
        <form class="auth__card" method="post" hidden=move || challenge.with(Option::is_none) on:submit=submit>
            <h1>"Second factor"</h1>
            <CallProblem call=call beside_fields=&["/code"]/>
            <div class="field">
                <label class="field__label" for="code">"Code"</label>
                <input
                    id="code"
                    name="code"
                    type="text"
                    autocomplete="one-time-code"
                    autocapitalize="none"
                    spellcheck="false"
                    aria-describedby="code-hint code-error"
                    aria-invalid=move || wrong.get().map(|_| "true")
                    node_ref=input
                    prop:value=move || code.get()
                    on:input=move |ev| code.set(event_target_value(&ev))
                />
                <p class="field__hint" id="code-hint">"Six digits of the authenticator app, or a recovery code."</p>
                <FieldError id="code-error" error=wrong/>
            </div>
            <Submit call=call>"Continue"</Submit>
            <Suspense fallback=|| ()>
                {move || suspended(async move {
                    let offered = info.await.is_ok_and(|info| info.passkeys);
                    move || {
                        offered
                            .then(|| {
                                view! {
                                    <div hidden=move || !by_passkey.get()>
                                        <PasskeyEntry
                                            label="Use a passkey"
                                            call=call
                                            challenge=challenge
                                            target=target
                                            next=next
                                        />
                                    </div>
                                }
                            })
                            .into_any()
                    }
                })}
            </Suspense>
            <p>
                <button class="link-button" type="button" on:click=move |_| restart()>"Enter the password again"</button>
            </p>
        </form>
    }
}

#[cfg(test)]
mod tests {
    use super::safe_next;

    #[test]
    fn only_paths_of_this_site_are_followed() {
        assert_eq!(safe_next(Some("/jobs?state=running")), "/jobs?state=running");
        assert_eq!(safe_next(Some("/")), "/");
        for other in
            ["//evil.example", "/\\evil.example", "https://evil.example", "jobs", "", "/a\nb", "/\t/e"]
        {
            assert_eq!(safe_next(Some(other)), "/", "{other:?}");
        }
        assert_eq!(safe_next(None), "/");
    }
}
