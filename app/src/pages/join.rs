//! Page to accept an invitation: with the present session, after a sign-in, or with a new account.
//!
//! The secret follows the `#` of the address, which browsers do not send. It goes to the portal in a body only,
//! never in a path, a query or storage.

use berth_types::accounts::{Me, SignIn, User};
use berth_types::members::{AcceptInvitation, InvitationInfo, Joined};
use berth_types::problems::Problem;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;
use leptos::task::spawn_local;
use leptos_meta::Title;

use super::call_button::CallButton;
use super::link_secret::{IncompleteLink, is_incomplete, link_secret};
use super::parts::{Brand, Call, CallProblem, Loading, PasswordField, Submit, open_url};
use crate::address::org_path;
use crate::api;
use crate::api::Answer;
use crate::identity::use_identity;
use crate::ui::*;

const NEW_FIELDS: &[&str] = &["/name", "/password"];
const SIGN_IN_FIELDS: &[&str] = &["/password"];

/// An invitation with its secret.
#[derive(Clone)]
struct FoundInvitation {
    token: String,
    info: InvitationInfo,
}

/// The page with the invitation.
#[component]
pub fn JoinPage() -> impl IntoView {
    let me: Resource<Answer<Me>> = Resource::new(|| (), |()| api::accounts::me());
    view! {
        <Title text="Join an organization"/>
        <main class="auth" id="main">
            <Brand/>
            <Suspense fallback=|| view! { <Loading/> }>
                {move || suspended(async move {
                    // Without a session the page shows forms.
                    let session_email = me.await.ok().map(|me| me.user.email);
                    move || view! { <InvitationView session_email=session_email/> }.into_any()
                })}
            </Suspense>
        </main>
    }
}

#[component]
fn InvitationView(
    /// The e-mail address of the present session.
    session_email: Option<String>,
) -> impl IntoView {
    let secret = link_secret();
    let incomplete = is_incomplete(secret);
    let found = RwSignal::new(None::<Answer<FoundInvitation>>);
    Effect::new(move || {
        let token = secret.get();
        if token.is_empty() {
            found.set(None);
            return;
        }
        let info = api::members::invitation_info(token.clone());
        spawn_local(async move {
            let answer = info.await.map(|info| FoundInvitation { token, info });
            let _ = found.try_set(Some(answer));
        });
    });
    move || match found.get() {
        None => view! {
            <div class="auth__card" hidden=move || incomplete.get()>
                <h1>"Invitation"</h1>
                <Loading/>
            </div>
            <IncompleteLink title="Invitation" incomplete=incomplete/>
        }
        .into_any(),
        Some(Err(problem)) => view! { <InvalidInvitation problem=problem/> }.into_any(),
        Some(Ok(found)) => {
            view! { <ValidInvitation found=found session_email=session_email.clone()/> }.into_any()
        }
    }
}

/// The notice for an unknown or expired link.
#[component]
fn InvalidInvitation(problem: Problem) -> impl IntoView {
    let name = use_identity().name;
    let label = format!("Open {name}");
    view! {
        <div class="auth__card">
            <h1>"Invitation"</h1>
            <ProblemNotice problem=problem/>
            <p>"If you already accepted this invitation, you are a member: open " {name} "."</p>
            <a class="btn" href="/">{label}</a>
        </div>
    }
}

#[component]
fn ValidInvitation(found: FoundInvitation, session_email: Option<String>) -> impl IntoView {
    let FoundInvitation { token, info } = found;
    let has_account = RwSignal::new(false);
    match session_email {
        Some(email) if email == info.email => view! { <AcceptCard token=token info=info/> }.into_any(),
        Some(email) => view! { <OtherAccount info=info session_email=email/> }.into_any(),
        None => view! {
            {move || {
                let (token, info) = (token.clone(), info.clone());
                if has_account.get() {
                    view! { <SignInCard token=token info=info/> }.into_any()
                } else {
                    view! { <NewAccountCard token=token info=info/> }.into_any()
                }
            }}
            <p class="auth__foot">
                {move || if has_account.get() { "No account yet? " } else { "Have an account with this address? " }}
                <button class="link-button" type="button" on:click=move |_| has_account.update(|has| *has = !*has)>
                    {move || if has_account.get() { "Create account" } else { "Sign in" }}
                </button>
            </p>
        }
        .into_any(),
    }
}

/// The first lines of every card: organization, role and e-mail address.
fn card_head(info: &InvitationInfo) -> AnyView {
    let title = format!("Join {}", info.organization);
    let email = info.email.clone();
    view! {
        <h1 class="break">{title}</h1>
        <p class="auth__lead">
            "Invited as " <strong>{info.role.name()}</strong> ". " {info.role.description()}
            " Invited address: " <span class="break">{email}</span> "."
        </p>
    }
    .into_any()
}

/// Opens a page with the new organization by a full load, since the session data is outdated.
fn open_org(joined: &Joined, signed_in: bool) {
    let home = org_path(&joined.organization.slug, "/");
    open_url(&if signed_in { home } else { format!("/sign-in?next={home}") });
}

#[component]
fn AcceptCard(token: String, info: InvitationInfo) -> impl IntoView {
    let call = Call::idle();
    let accept = move |()| {
        let body = AcceptInvitation { token: token.clone(), name: None, password: None };
        call.run(api::members::accept(&body), |joined: Joined| open_org(&joined, true));
    };
    view! {
        <div class="auth__card">
            {card_head(&info)}
            <CallProblem call=call beside_fields=&[]/>
            <CallButton call=call class="btn btn--primary" send=Callback::new(accept)>"Join organization"</CallButton>
        </div>
    }
}

/// The notice for a session with another e-mail address than the invitation.
#[component]
fn OtherAccount(info: InvitationInfo, session_email: String) -> impl IntoView {
    let call = Call::idle();
    let head = card_head(&info);
    let email = info.email.clone();
    let sign_out = move |()| {
        call.run(api::accounts::sign_out(), |()| {
            // Opens the same link without a session.
            let _ = window().location().reload();
        });
    };
    view! {
        <div class="auth__card">
            {head}
            <div class="banner banner--warn" role="status">
                <div class="banner__text">
                    <strong class="banner__title">"Signed in with another account"</strong>
                    "Current account: " <span class="break">{session_email}</span> ". Sign out, then accept the invitation as "
                    <span class="break">{email}</span> "."
                </div>
            </div>
            <CallProblem call=call beside_fields=&[]/>
            <CallButton call=call class="btn btn--primary" send=Callback::new(sign_out)>"Sign out"</CallButton>
        </div>
    }
}

#[component]
fn NewAccountCard(token: String, info: InvitationInfo) -> impl IntoView {
    let call = Call::idle();
    let name = RwSignal::new(String::new());
    let password = RwSignal::new(String::new());
    let lines = card_head(&info);
    let email = info.email;
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let credentials = SignIn { email: email.clone(), password: password.get_untracked() };
        let body = AcceptInvitation {
            token: token.clone(),
            name: Some(name.get_untracked().trim().to_owned()),
            password: Some(credentials.password.clone()),
        };
        let work = async move {
            let joined: Joined = api::members::accept(&body).await?;
            // The account exists even after a failed sign-in; then the user signs in by hand.
            let signed_in: Answer<User> = api::accounts::sign_in(&credentials).await;
            Ok::<(Joined, bool), Problem>((joined, signed_in.is_ok()))
        };
        call.run(work, |(joined, signed_in): (Joined, bool)| open_org(&joined, signed_in));
    };
    view! {
        <form class="auth__card" method="post" on:submit=submit>
            {lines}
            <CallProblem call=call beside_fields=NEW_FIELDS/>
            <PersonNameField value=name error=call.field("/name")/>
            <PasswordField value=password error=call.field("/password") fresh=true/>
            <Submit call=call>"Create account and join"</Submit>
        </form>
    }
}

#[component]
fn SignInCard(token: String, info: InvitationInfo) -> impl IntoView {
    let call = Call::idle();
    let password = RwSignal::new(String::new());
    let lines = card_head(&info);
    let email = info.email;
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let credentials = SignIn { email: email.clone(), password: password.get_untracked() };
        let body = AcceptInvitation { token: token.clone(), name: None, password: None };
        let work = async move {
            let _user: User = api::accounts::sign_in(&credentials).await?;
            api::members::accept(&body).await
        };
        call.run(work, |joined: Joined| open_org(&joined, true));
    };
    view! {
        <form class="auth__card" method="post" on:submit=submit>
            {lines}
            <CallProblem call=call beside_fields=SIGN_IN_FIELDS/>
            <PasswordField value=password error=call.field("/password") fresh=false/>
            <Submit call=call>"Sign in and join"</Submit>
        </form>
    }
}
