//! Accepting an invitation: as whoever is signed in, by signing in, or with a new account.
//!
//! The secret is what follows the `#` of the address, which browsers send to nobody; it goes to the portal
//! in a body only. Must not put it into a path, a query or storage.

use berth_types::accounts::{Me, SignIn, User};
use berth_types::members::{AcceptInvitation, InvitationInfo, Joined};
use berth_types::problems::Problem;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;
use leptos::task::spawn_local;
use leptos_meta::Title;
use leptos_router::hooks::use_location;

use super::parts::{Brand, Call, CallProblem, Loading, PasswordField, Submit, leave_for};
use crate::api;
use crate::api::Answer;
use crate::session::remember;
use crate::ui::*;

const NEW_FIELDS: &[&str] = &["/name", "/password"];
const SIGN_IN_FIELDS: &[&str] = &["/password"];

/// An invitation with its secret.
#[derive(Clone)]
struct Found {
    token: String,
    info: InvitationInfo,
}

/// Shows what the invitation is about, and takes whoever accepts it in.
#[component]
pub fn JoinPage() -> impl IntoView {
    let me: Resource<Answer<Me>> = Resource::new(|| (), |()| api::accounts::me());
    view! {
        <Title text="Join an organization"/>
        <main class="auth" id="main">
            <Brand/>
            <Suspense fallback=|| view! { <Loading/> }>
                {move || Suspend::new(async move {
                    // Whoever is not signed in has a form for it.
                    let mine = me.await.ok().map(|me| me.user.email);
                    view! { <Joining mine=mine/> }
                })}
            </Suspense>
        </main>
    }
}

#[component]
fn Joining(
    /// The address of whoever is signed in.
    mine: Option<String>,
) -> impl IntoView {
    let here = use_location();
    let found = RwSignal::new(None::<Answer<Found>>);
    // Another link opened in this window changes no more than what follows the `#`.
    Effect::new(move || {
        here.hash.track();
        let hash = window().location().hash().unwrap_or_default();
        let token = hash.trim_start_matches('#').to_owned();
        let info = api::members::look(token.clone());
        spawn_local(async move {
            let answer = info.await.map(|info| Found { token, info });
            let _ = found.try_set(Some(answer));
        });
    });
    move || match found.get() {
        None => view! {
            <div class="auth__card">
                <h1>"Invitation"</h1>
                <Loading/>
            </div>
        }
        .into_any(),
        Some(Err(problem)) => view! { <Nothing problem=problem/> }.into_any(),
        Some(Ok(found)) => view! { <Invited found=found mine=mine.clone()/> }.into_any(),
    }
}

/// The link leads nowhere, or not any more.
#[component]
fn Nothing(problem: Problem) -> impl IntoView {
    view! {
        <div class="auth__card">
            <h1>"Invitation"</h1>
            <ProblemNotice problem=problem/>
            <p>"If you accepted it already, you are in: open Berth."</p>
            <a class="btn" href="/">"Open Berth"</a>
        </div>
    }
}

#[component]
fn Invited(found: Found, mine: Option<String>) -> impl IntoView {
    let Found { token, info } = found;
    let known = RwSignal::new(false);
    match mine {
        Some(mine) if mine == info.email => view! { <AcceptCard token=token info=info/> }.into_any(),
        Some(mine) => view! { <OtherPerson info=info mine=mine/> }.into_any(),
        None => view! {
            {move || {
                let (token, info) = (token.clone(), info.clone());
                if known.get() {
                    view! { <SignInCard token=token info=info/> }.into_any()
                } else {
                    view! { <NewCard token=token info=info/> }.into_any()
                }
            }}
            <p class="auth__foot">
                {move || if known.get() { "No account yet? " } else { "Have an account with this address? " }}
                <button class="link-button" type="button" on:click=move |_| known.update(|known| *known = !*known)>
                    {move || if known.get() { "Create one" } else { "Sign in" }}
                </button>
            </p>
        }
        .into_any(),
    }
}

/// What it is about; the first lines of every card.
fn about(info: &InvitationInfo) -> AnyView {
    let title = format!("Join {}", info.organization);
    let email = info.email.clone();
    view! {
        <h1 class="break">{title}</h1>
        <p class="auth__lead">
            "You are invited as " <strong>{info.role.name()}</strong> ". " {info.role.words()}
            " The invitation is for " <span class="break">{email}</span> "."
        </p>
    }
    .into_any()
}

/// Looks at the new organization first, after a full load: what the page knew of the person is old.
fn enter(joined: &Joined, path: &str) {
    remember(joined.organization.id);
    leave_for(path);
}

#[component]
fn AcceptCard(token: String, info: InvitationInfo) -> impl IntoView {
    let call = Call::idle();
    let accept = move |_: leptos::ev::MouseEvent| {
        let body = AcceptInvitation { token: token.clone(), name: None, password: None };
        call.run(api::members::accept(&body), |joined: Joined| enter(&joined, "/"));
    };
    view! {
        <div class="auth__card">
            {about(&info)}
            <CallProblem call=call beside_fields=&[]/>
            <button
                class="btn btn--primary"
                type="button"
                disabled=move || call.pending.get()
                aria-busy=move || call.pending.get().then_some("true")
                on:click=accept
            >
                "Join organization"
            </button>
        </div>
    }
}

/// Somebody is signed in, and the invitation is for somebody else.
#[component]
fn OtherPerson(info: InvitationInfo, mine: String) -> impl IntoView {
    let call = Call::idle();
    let found = about(&info);
    let email = info.email.clone();
    let sign_out = move |_: leptos::ev::MouseEvent| {
        call.run(api::accounts::sign_out(), |()| {
            // The same link again, with nobody signed in.
            let _ = window().location().reload();
        });
    };
    view! {
        <div class="auth__card">
            {found}
            <div class="banner banner--warn" role="status">
                <div class="banner__text">
                    <strong class="banner__title">"You are signed in as another"</strong>
                    "You are " <span class="break">{mine}</span> " here. Sign out, then accept as "
                    <span class="break">{email}</span> "."
                </div>
            </div>
            <CallProblem call=call beside_fields=&[]/>
            <button
                class="btn btn--primary"
                type="button"
                disabled=move || call.pending.get()
                on:click=sign_out
            >
                "Sign out"
            </button>
        </div>
    }
}

#[component]
fn NewCard(token: String, info: InvitationInfo) -> impl IntoView {
    let call = Call::idle();
    let name = RwSignal::new(String::new());
    let password = RwSignal::new(String::new());
    let lines = about(&info);
    let email = info.email;
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let who = SignIn { email: email.clone(), password: password.get_untracked() };
        let body = AcceptInvitation {
            token: token.clone(),
            name: Some(name.get_untracked().trim().to_owned()),
            password: Some(who.password.clone()),
        };
        let work = async move {
            let joined: Joined = api::members::accept(&body).await?;
            // The account is made, whatever becomes of this: then they sign in themselves.
            let signed: Answer<User> = api::accounts::sign_in(&who).await;
            Ok::<(Joined, bool), Problem>((joined, signed.is_ok()))
        };
        call.run(work, |(joined, signed): (Joined, bool)| {
            enter(&joined, if signed { "/" } else { "/sign-in" })
        });
    };
    view! {
        <form class="auth__card" method="post" on:submit=submit>
            {lines}
            <CallProblem call=call beside_fields=NEW_FIELDS/>
            <Field
                label="Your name"
                name="name"
                kind="text"
                value=name
                error=call.field("/name")
                autocomplete=Some("name")
            />
            <PasswordField value=password error=call.field("/password") fresh=true/>
            <Submit call=call>"Create account and join"</Submit>
        </form>
    }
}

#[component]
fn SignInCard(token: String, info: InvitationInfo) -> impl IntoView {
    let call = Call::idle();
    let password = RwSignal::new(String::new());
    let lines = about(&info);
    let email = info.email;
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let who = SignIn { email: email.clone(), password: password.get_untracked() };
        let body = AcceptInvitation { token: token.clone(), name: None, password: None };
        let work = async move {
            let _who: User = api::accounts::sign_in(&who).await?;
            api::members::accept(&body).await
        };
        call.run(work, |joined: Joined| enter(&joined, "/"));
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
