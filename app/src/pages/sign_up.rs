//! Sign-up page: creates an account with its organization and signs in.
//!
//! A portal with closed sign-up shows no form.

use berth_types::accounts::{PortalInfo, SignIn, SignUp, SignedUp, User};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;
use leptos_meta::Title;

use super::org_data::answer_view;
use super::parts::{Brand, Call, CallProblem, PasswordField, Submit, redirect};
use crate::address::org_path;
use crate::api;
use crate::api::Answer;
use crate::ui::*;

const FIELDS: &[&str] = &["/name", "/email", "/password", "/organization"];

/// The sign-up page of a portal with open sign-up.
#[component]
pub fn SignUpPage() -> impl IntoView {
    let info: Resource<Answer<PortalInfo>> = Resource::new(|| (), |()| api::accounts::info());
    view! {
        <Title text="Create an organization"/>
        <main class="auth" id="main">
            <Brand/>
            {answer_view(info, |info| {
                if info.sign_up_open {
                    view! { <SignUpForm/> }.into_any()
                } else {
                    view! { <Closed/> }.into_any()
                }
            })}
            <p class="auth__foot">"Have an account? " <a href="/sign-in">"Sign in"</a></p>
        </main>
    }
}

#[component]
fn Closed() -> impl IntoView {
    view! {
        <div class="auth__card">
            <h1>"Sign-up is closed"</h1>
            <p>
                "The operator of this portal creates the accounts. Ask the operator for one, or an owner of your organization for an invitation."
            </p>
        </div>
    }
}

#[component]
fn SignUpForm() -> impl IntoView {
    let next = redirect();
    let call = Call::idle();
    let name = RwSignal::new(String::new());
    let email = RwSignal::new(String::new());
    let password = RwSignal::new(String::new());
    let organization = RwSignal::new(String::new());
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let credentials =
            SignIn { email: email.get_untracked().trim().to_owned(), password: password.get_untracked() };
        let body = SignUp {
            email: credentials.email.clone(),
            password: credentials.password.clone(),
            name: name.get_untracked().trim().to_owned(),
            organization: organization.get_untracked().trim().to_owned(),
        };
        let work = async move {
            let made: SignedUp = api::accounts::sign_up(&body).await?;
            let _user: User = api::accounts::sign_in(&credentials).await?;
            Answer::Ok(org_path(&made.organization.slug, "/launch"))
        };
        call.run(work, move |launch: String| next.set(Some(launch)));
    };
    view! {
        <form class="auth__card" method="post" on:submit=submit>
            <h1>"Create an organization"</h1>
            <p class="auth__lead">"You become its owner and can launch jobs."</p>
            <CallProblem call=call beside_fields=FIELDS/>
            <PersonNameField value=name error=call.field("/name")/>
            <EmailField value=email error=call.field("/email")/>
            <Field
                label="Organization"
                name="organization"
                kind="text"
                value=organization
                hint=Some("Shown to all members. Jobs, credit and tokens belong to the organization.".to_owned())
                error=call.field("/organization")
                autocomplete=Some("organization")
            />
            <PasswordField value=password error=call.field("/password") fresh=true/>
            <Submit call=call>{move || if call.pending.get() { "Creating" } else { "Create organization" }}</Submit>
        </form>
    }
}
