//! Page of the person's own account: address, name, password, sessions, deletion.

mod deletion;
mod identities;
mod name;
mod password;
mod sessions;
mod text;

use berth_types::accounts::Me;
use berth_types::people::BrowserSession;
use berth_types::sso::Identities;
use leptos::prelude::*;

use self::deletion::Deletion;
use self::identities::identities_view;
use self::name::NameForm;
use self::password::PasswordForm;
use self::sessions::Sessions;
use super::call_button::CallButton;
use super::parts::{Call, CallProblem, Loading};
use crate::api;
use crate::api::Answer;
use crate::session::{Page, use_session};
use crate::ui::*;

/// The page of the signed-in person.
#[component]
pub fn AccountPage() -> impl IntoView {
    let me = use_session().me;
    let operator = me.user.operator;
    let sessions: Resource<Answer<berth_types::Page<BrowserSession>>> =
        Resource::new(|| (), |()| api::people::sessions());
    let identities: Resource<Answer<Identities>> = Resource::new(|| (), |()| api::sso::identities());
    let retry = Retry::new(move || sessions.refetch());
    view! {
        <Page title="Your account".to_owned()>
            <Profile me=me/>
            <NameForm/>
            <PasswordForm changed=Callback::new(move |()| sessions.refetch())/>
            <Transition fallback=|| view! { <Loading/> }>
                {move || suspended(async move {
                    let answer = sessions.await;
                    move || match answer {
                        Err(problem) => view! { <RetryNotice problem=problem retry=retry/> }.into_any(),
                        Ok(page) => {
                            retry.succeeded();
                            view! { <Sessions sessions=page.items/> }.into_any()
                        }
                    }
                })}
            </Transition>
            <Suspense fallback=|| ()>
                {move || suspended(async move {
                    let answer = identities.await;
                    // Without an answer the page is complete but for this list.
                    move || answer.map_or_else(|_| ().into_any(), |found| identities_view(&found.identities))
                })}
            </Suspense>
            <Deletion operator=operator/>
        </Page>
    }
}

/// The address with its state.
#[component]
fn Profile(me: Me) -> impl IntoView {
    let state = match me.email_verified_at {
        Some(at) => view! { "verified on " <When at=at/> }.into_any(),
        None => view! { <Unverified/> }.into_any(),
    };
    view! {
        <section class="card">
            <h2 class="card__title">"Profile"</h2>
            <dl class="kv">
                <dt>"E-mail"</dt>
                <dd class="break">{me.user.email}</dd>
                <dt>"Verification"</dt>
                <dd>{state}</dd>
                <dt>"Second factor"</dt>
                <dd><a href="/account/second-factors">"Manage second factor"</a></dd>
            </dl>
        </section>
    }
}

/// The button for another link to an address that is not verified.
#[component]
fn Unverified() -> impl IntoView {
    let call = Call::idle();
    let sent = RwSignal::new(false);
    let send = move |()| {
        call.run(api::people::send_verification(), move |()| sent.set(true));
    };
    view! {
        <p>"not verified"</p>
        <CallProblem call=call beside_fields=&[]/>
        <p>
            <CallButton call=call class="btn btn--small" send=Callback::new(send)>"Send link again"</CallButton>
        </p>
        <p class="quiet said" role="status">
            {move || if sent.get() { "A mail with a link is on its way. The link works for seven days." } else { "" }}
        </p>
    }
}
