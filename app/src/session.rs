//! Who is signed in, the organization that is looked at, and the frame around their pages.
//!
//! Decides no right: what a person may not do, the portal refuses.

use berth_types::accounts::{Me, Role};
use berth_types::ids::OrgId;
use leptos::prelude::*;
use leptos_meta::Title;
use leptos_router::components::Outlet;
use leptos_router::hooks::use_location;

use crate::api;
use crate::pages::parts::ready;
use crate::rail::{RailGroups, SheetGroups};
use crate::ui::*;

const CHOSEN: &str = "berth.org";

/// The signed-in person and the organization they look at.
#[derive(Clone)]
pub struct Session {
    pub me: Me,
    pub org: RwSignal<Option<OrgId>>,
}

impl Session {
    /// Whether the person owns an organization. It only leaves out what the portal would refuse.
    pub fn owns(&self, org: OrgId) -> bool {
        self.me.memberships.iter().any(|member| member.org.id == org && member.role == Role::Owner)
    }

    /// Whether the person's role pays for an organization. It only leaves out buttons that the portal
    /// would refuse.
    pub fn pays_for(&self, org: OrgId) -> bool {
        let member = self.me.memberships.iter().find(|member| member.org.id == org);
        member.is_some_and(|member| matches!(member.role, Role::Owner | Role::Billing))
    }
}

/// The session of the page; pages stand inside [`Layout`], which gives it.
pub fn use_session() -> Session {
    expect_context::<Session>()
}

/// A page's title and frame.
#[component]
pub fn Page(
    /// Its heading, and what the window is called.
    title: String,
    /// Its main action.
    #[prop(optional)]
    actions: Option<AnyView>,
    children: Children,
) -> impl IntoView {
    let window_title = format!("{title} · Berth");
    view! {
        <Title text=window_title/>
        <div class="page">
            <div class="page__head">
                <h1>{title}</h1>
                {actions.map(|actions| view! { <div class="page__actions">{actions}</div> })}
            </div>
            {children()}
        </div>
    }
}

/// Rail, top bar and the page; sends whoever is not signed in to where they can be.
#[component]
pub fn Layout() -> impl IntoView {
    let me = Resource::new(|| (), |()| api::accounts::me());
    let info = Resource::new(|| (), |()| api::accounts::info());
    view! {
        <Suspense>
            {move || Suspend::new(async move {
                match me.await {
                    Ok(me) => view! { <SignedIn me=me/> }.into_any(),
                    Err(problem) if problem.status == 401 => {
                        let fresh = info.await.is_ok_and(|info| info.needs_setup);
                        view! { <Elsewhere fresh=fresh/> }.into_any()
                    }
                    Err(problem) => {
                        view! { <main class="main" id="main"><ProblemNotice problem=problem/></main> }.into_any()
                    }
                }
            })}
        </Suspense>
    }
}

/// Where somebody who is not signed in goes.
#[component]
fn Elsewhere(fresh: bool) -> impl IntoView {
    let here = use_location();
    let target = if fresh {
        "/setup".to_owned()
    } else {
        let (path, search) = (here.pathname.get_untracked(), here.search.get_untracked());
        let full = if search.is_empty() { path } else { format!("{path}?{search}") };
        if full == "/" { "/sign-in".to_owned() } else { format!("/sign-in?next={}", escaped(&full)) }
    };
    go(&target);
    view! { <main class="main" id="main"><p class="quiet"><a href=target>"Go on to sign in"</a></p></main> }
}

/// A path inside a query: everything but unreserved characters and `/` is percent-encoded.
fn escaped(path: &str) -> String {
    path.bytes()
        .map(|b| match b {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                char::from(b).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect()
}

/// The organization chosen before, if the person is still in it.
#[cfg(feature = "hydrate")]
fn chosen() -> Option<OrgId> {
    web_sys::window()?.local_storage().ok()??.get_item(CHOSEN).ok()??.parse().ok()
}

#[cfg(not(feature = "hydrate"))]
fn chosen() -> Option<OrgId> {
    let _ = CHOSEN;
    None
}

/// Looks at this organization from the next page on that is loaded.
pub fn remember(org: OrgId) {
    #[cfg(feature = "hydrate")]
    if let Some(Ok(Some(storage))) = web_sys::window().map(|w| w.local_storage()) {
        // A browser that keeps nothing only forgets the choice.
        let _ = storage.set_item(CHOSEN, &org.to_string());
    }
    #[cfg(not(feature = "hydrate"))]
    let _ = org;
}

#[component]
fn SignedIn(me: Me) -> impl IntoView {
    let org = RwSignal::new(me.memberships.first().map(|m| m.org.id));
    provide_context(Session { me: me.clone(), org });
    let known: Vec<OrgId> = me.memberships.iter().map(|m| m.org.id).collect();
    let ours = known.clone();
    Effect::new(move || {
        if let Some(last) = chosen().filter(|org| ours.contains(org)) {
            org.set(Some(last));
        }
    });
    let names: Vec<(OrgId, String)> = me.memberships.iter().map(|m| (m.org.id, m.org.name.clone())).collect();
    let shown_names = names.clone();
    let org_name = move || {
        let now = org.get();
        shown_names.iter().find(|(id, _)| Some(*id) == now).map(|(_, name)| name.clone()).unwrap_or_default()
    };
    let choose = move |ev| {
        if let Ok(id) = event_target_value(&ev).parse::<OrgId>() {
            remember(id);
            org.set(Some(id));
        }
    };
    let several = names.len() > 1;
    let options = move || {
        let names = names.iter().cloned();
        names
            .map(|(id, name)| {
                view! { <option value=id.to_string() selected=move || org.get() == Some(id)>{name}</option> }
            })
            .collect_view()
    };
    // On a phone the rail's own choice has no place.
    let in_sheet = several.then(|| {
        view! {
            <label class="rail__group" for="org-in-sheet">"Organization"</label>
            <select class="select" id="org-in-sheet" on:change=choose>{options()}</select>
        }
    });
    let leaving = RwSignal::new(false);
    // Until the page is alive a press would be lost.
    let alive = ready();
    let sign_out = move |_| {
        leaving.set(true);
        let done = api::accounts::sign_out();
        leptos::task::spawn_local(async move {
            // Even when the portal does not answer, the sign-in page is the way to find out.
            let _ = done.await;
            leave_for_sign_in();
        });
    };
    let operator = me.user.operator;
    // Both lists of places need lower lines to fit.
    let rail = if operator && !known.is_empty() { "rail rail--long" } else { "rail" };
    let more_open = NodeRef::<leptos::html::Details>::new();
    let location = use_location();
    // Going somewhere closes the sheet that led there.
    Effect::new(move || {
        location.pathname.track();
        if let Some(details) = more_open.get_untracked() {
            details.set_open(false);
        }
    });
    let roles: Vec<(OrgId, &'static str)> =
        me.memberships.iter().map(|m| (m.org.id, m.role.name())).collect();
    let rights = move || {
        let role = roles.iter().find(|(id, _)| org.get() == Some(*id)).map(|(_, role)| *role);
        role.into_iter().chain(operator.then_some("operator")).collect::<Vec<_>>().join(", ")
    };
    view! {
        <a class="skip" href="#main">"Skip to content"</a>
        <div class="shell">
            <header class="topbar">
                <a class="brand" href="/"><Mark class="brand__mark"/>"Berth"</a>
                <span class="topbar__org">{org_name}</span>
            </header>
            <div class=rail>
                <a class="rail__brand" href="/"><Mark class="rail__mark"/>"Berth"</a>
                <div class="rail__org" hidden=known.is_empty()>
                    <label class="visually-hidden" for="org">"Organization"</label>
                    <select
                        class="select select--bare"
                        id="org"
                        disabled=move || !alive.get()
                        on:change=choose
                    >
                        {options()}
                    </select>
                </div>
                <nav class="rail__nav" aria-label="Main">
                    <RailGroups operator=operator/>
                    <details class="rail__more" node_ref=more_open>
                        <summary>"More"</summary>
                        <div class="rail__sheet">
                            <SheetGroups operator=operator/>
                            {in_sheet}
                            <p class="rail__group">{me.user.email.clone()}</p>
                            <button
                                class="rail__link link-button"
                                type="button"
                                disabled=move || !alive.get() || leaving.get()
                                on:click=sign_out
                            >
                                "Sign out"
                            </button>
                        </div>
                    </details>
                </nav>
                <div class="rail__foot">
                    <p>{me.user.name.clone()}<br/>{rights}</p>
                    <p>
                        <button
                            class="btn btn--quiet btn--small"
                            type="button"
                            disabled=move || !alive.get() || leaving.get()
                            on:click=sign_out
                        >
                            "Sign out"
                        </button>
                    </p>
                </div>
            </div>
            <main class="main" id="main" tabindex="-1"><Outlet/></main>
        </div>
    }
}

/// A full load, so that nothing of the session stays in the page.
fn leave_for_sign_in() {
    #[cfg(feature = "hydrate")]
    if let Some(window) = web_sys::window() {
        // Refused only for addresses of another kind.
        let _ = window.location().assign("/sign-in");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_survives_inside_a_query() {
        assert_eq!(escaped("/jobs?state=queued&x=ü"), "/jobs%3Fstate%3Dqueued%26x%3D%C3%BC");
    }
}
