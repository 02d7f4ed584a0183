//! Set-up page of a new portal: creates the first operator and signs in.
//!
//! The setup token and the password exist only in signals of the form.

use berth_types::accounts::{PortalInfo, Setup, SignIn, User};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;
use leptos_meta::Title;

use super::org_data::answer_view;
use super::parts::{Brand, Call, CallProblem, PasswordField, Submit, redirect};
use crate::api;
use crate::api::Answer;
use crate::ui::*;

const FIELDS: &[&str] = &["/token", "/name", "/email", "/password"];

/// The set-up page of a portal without an operator.
#[component]
pub fn SetupPage() -> impl IntoView {
    let info: Resource<Answer<PortalInfo>> = Resource::new(|| (), |()| api::accounts::info());
    view! {
        <Title text="Set up Berth"/>
        <main class="auth" id="main">
            <Brand/>
            {answer_view(info, |info| {
                if info.needs_setup {
                    view! { <SetupForm/> }.into_any()
                } else {
                    view! { <SetupDone/> }.into_any()
                }
            })}
        </main>
    }
}

/// The page after the set-up, with a link to the sign-in.
#[component]
fn SetupDone() -> impl IntoView {
    view! {
        <div class="auth__card">
            <h1>"Set-up is complete"</h1>
            <p>"This portal already has an operator, and the setup token is no longer valid. Nothing was changed."</p>
            <a class="btn btn--primary" href="/sign-in">"Sign in"</a>
        </div>
    }
}

#[component]
fn SetupForm() -> impl IntoView {
    let next = redirect();
    let call = Call::idle();
    let token = RwSignal::new(String::new());
    let name = RwSignal::new(String::new());
    let email = RwSignal::new(String::new());
    let password = RwSignal::new(String::new());
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let credentials =
            SignIn { email: email.get_untracked().trim().to_owned(), password: password.get_untracked() };
        let body = Setup {
            token: token.get_untracked().trim().to_owned(),
            email: credentials.email.clone(),
            password: credentials.password.clone(),
            name: name.get_untracked().trim().to_owned(),
        };
        let work = async move {
            let _operator: User = api::accounts::set_up(&body).await?;
            api::accounts::sign_in(&credentials).await
        };
        call.run(work, move |_: User| next.set(Some("/operator/nodes".to_owned())));
    };
    let tiles = vec![sample(0, 4, 1, "plain"), sample(4, 2, 5, "stripes"), sample(6, 1, 3, "dots")];
    view! {
        <form class="auth__card auth__card--wide" method="post" on:submit=submit>
            <ol class="steps" aria-label="Steps">
                <li class="steps__step" aria-current="step">"Operator"</li>
                <li class="steps__step">"First node"</li>
                <li class="steps__step">"Prices"</li>
            </ol>
            <h1>"Set up Berth"</h1>
            <p class="auth__lead">
                "Create the first operator. " <code class="nowrap">"berth-portal serve"</code> " prints the setup token at its start."
            </p>
            <BerthBar
                tiles=tiles
                cells=8
                size=BarSize::Row
                label="Board with three slices".to_owned()
            />
            <CallProblem call=call beside_fields=FIELDS/>
            <Field
                label="Setup token"
                name="token"
                kind="text"
                value=token
                hint=Some("Valid once.".to_owned())
                error=call.field("/token")
            />
            <div class="field-row">
                <PersonNameField value=name error=call.field("/name")/>
                <EmailField value=email error=call.field("/email")/>
            </div>
            <PasswordField value=password error=call.field("/password") fresh=true/>
            <Submit call=call>{move || if call.pending.get() { "Creating operator" } else { "Create operator" }}</Submit>
        </form>
    }
}

/// Returns a tile of the drawing above the form.
fn sample(start: u32, size: u32, hue: u32, pattern: &str) -> BarTile {
    BarTile {
        start,
        size,
        label: String::new(),
        meta: String::new(),
        hue,
        pattern: pattern.to_owned(),
        own: true,
        foreign: false,
        level: 0,
        aria: String::new(),
    }
}
