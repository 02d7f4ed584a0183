//! The signed-in user, the chosen organization, and the frame of the pages.
//!
//! The portal checks all rights; the pages only hide buttons without effect.

use berth_types::accounts::{Me, Role};
use berth_types::ids::OrgId;
use leptos::prelude::*;
use leptos_meta::Title;
use leptos_router::components::Outlet;
use leptos_router::hooks::use_location;

use crate::api;
use crate::pages::parts::ready;
use crate::pages::retry::{Retry, RetryNotice};
use crate::rail::{RailGroups, SheetGroups};
use crate::ui::*;

/// The key of the chosen organization in the local storage.
const ORG_KEY: &str = "berth.org";

/// The signed-in user and the chosen organization.
#[derive(Clone)]
pub struct Session {
    pub me: Me,
    pub org: RwSignal<Option<OrgId>>,
}

impl Session {
    /// Tells whether the user owns an organization.
    pub fn owns(&self, org: OrgId) -> bool {
        self.me.memberships.iter().any(|member| member.org.id == org && member.role == Role::Owner)
    }

    /// Tells whether the user's role can pay for an organization.
    pub fn pays_for(&self, org: OrgId) -> bool {
        let member = self.me.memberships.iter().find(|member| member.org.id == org);
        member.is_some_and(|member| matches!(member.role, Role::Owner | Role::Billing))
    }

    /// Tells whether the user's role can run jobs of an organization.
    pub fn runs_in(&self, org: OrgId) -> bool {
        let member = self.me.memberships.iter().find(|member| member.org.id == org);
        member.is_some_and(|member| matches!(member.role, Role::Owner | Role::Member))
    }
}

/// Returns the session of a page inside [`Layout`].
pub fn use_session() -> Session {
    expect_context::<Session>()
}

/// The title and the frame of a page.
#[component]
pub fn Page(
    /// The heading and the title of the window.
    title: String,
    /// The main action.
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

/// The rail, the top bar and the page; without a session a redirect to the sign-in or the set-up.
#[component]
pub fn Layout() -> impl IntoView {
    let me = Resource::new(|| (), |()| api::accounts::me());
    let retry = Retry::new(move || me.refetch());
    let info = Resource::new(|| (), |()| api::accounts::info());
    view! {
        <Suspense>
            {move || Suspend::new(async move {
                match me.await {
                    Ok(me) => view! { <SignedIn me=me/> }.into_any(),
                    Err(problem) if problem.status == 401 => {
                        let fresh = info.await.is_ok_and(|info| info.needs_setup);
                        view! { <SignInRedirect fresh=fresh/> }.into_any()
                    }
                    Err(problem) => {
                        view! {
                            <main class="main" id="main"><RetryNotice problem=problem retry=retry/></main>
                        }
                        .into_any()
                    }
                }
            })}
        </Suspense>
    }
}

/// The redirect without a session.
#[component]
fn SignInRedirect(fresh: bool) -> impl IntoView {
    let here = use_location();
    let target = if fresh {
        "/setup".to_owned()
    } else {
        let (path, search) = (here.pathname.get_untracked(), here.search.get_untracked());
        let full = if search.is_empty() { path } else { format!("{path}?{search}") };
        if full == "/" { "/sign-in".to_owned() } else { format!("/sign-in?next={}", percent_encoded(&full)) }
    };
    go(&target);
    view! { <main class="main" id="main"><p class="quiet"><a href=target>"Continue to sign-in"</a></p></main> }
}

/// Percent-encodes a path for a query, except unreserved characters and `/`.
fn percent_encoded(path: &str) -> String {
    path.bytes()
        .map(|b| match b {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                char::from(b).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect()
}

/// Returns the organization of the local storage.
#[cfg(feature = "hydrate")]
fn stored_org() -> Option<OrgId> {
    web_sys::window()?.local_storage().ok()??.get_item(ORG_KEY).ok()??.parse().ok()
}

#[cfg(not(feature = "hydrate"))]
fn stored_org() -> Option<OrgId> {
    let _ = ORG_KEY;
    None
}

/// Stores the organization for the next load of a page.
pub fn store_org(org: OrgId) {
    #[cfg(feature = "hydrate")]
    if let Some(Ok(Some(storage))) = web_sys::window().map(|w| w.local_storage()) {
        // Without storage the choice is lost at the next load.
        let _ = storage.set_item(ORG_KEY, &org.to_string());
    }
    #[cfg(not(feature = "hydrate"))]
    let _ = org;
}

#[component]
fn SignedIn(me: Me) -> impl IntoView {
    let org = RwSignal::new(me.memberships.first().map(|m| m.org.id));
    provide_context(Session { me: me.clone(), org });
    let orgs: Vec<OrgId> = me.memberships.iter().map(|m| m.org.id).collect();
    let member_of = orgs.clone();
    Effect::new(move || {
        if let Some(last) = stored_org().filter(|org| member_of.contains(org)) {
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
            store_org(id);
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
    // A phone has no room for the choice of the rail.
    let in_sheet = several.then(|| {
        view! {
            <label class="rail__group" for="org-in-sheet">"Organization"</label>
            <select class="select" id="org-in-sheet" on:change=choose>{options()}</select>
        }
    });
    let signing_out = RwSignal::new(false);
    // A click before hydration would be lost.
    let hydrated = ready();
    let sign_out = move |_| {
        signing_out.set(true);
        let request = api::accounts::sign_out();
        leptos::task::spawn_local(async move {
            // After a failed request the sign-in page shows the state of the session.
            let _ = request.await;
            load_sign_in();
        });
    };
    let operator = me.user.operator;
    // Both lists together need lower lines.
    let rail = if operator && !orgs.is_empty() { "rail rail--long" } else { "rail" };
    let more_open = NodeRef::<leptos::html::Details>::new();
    let location = use_location();
    // A navigation closes the sheet.
    Effect::new(move || {
        location.pathname.track();
        if let Some(details) = more_open.get_untracked() {
            details.set_open(false);
        }
    });
    let roles: Vec<(OrgId, &'static str)> =
        me.memberships.iter().map(|m| (m.org.id, m.role.name())).collect();
    let role_text = move || {
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
                <div class="rail__org" hidden=orgs.is_empty()>
                    <label class="visually-hidden" for="org">"Organization"</label>
                    <select
                        class="select select--bare"
                        id="org"
                        disabled=move || !hydrated.get()
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
                                disabled=move || !hydrated.get() || signing_out.get()
                                on:click=sign_out
                            >
                                "Sign out"
                            </button>
                        </div>
                    </details>
                </nav>
                <div class="rail__foot">
                    <p>{me.user.name.clone()}<br/>{role_text}</p>
                    <p>
                        <button
                            class="btn btn--quiet btn--small"
                            type="button"
                            disabled=move || !hydrated.get() || signing_out.get()
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

/// Opens the sign-in page by a full load, so that no data of the session remains.
fn load_sign_in() {
    #[cfg(feature = "hydrate")]
    if let Some(window) = web_sys::window() {
        // Drafts of forms.
        if let Ok(Some(storage)) = window.session_storage() {
            // Fails only without storage.
            let _ = storage.clear();
        }
        // Fails only for an invalid address.
        let _ = window.location().assign("/sign-in");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_survives_inside_a_query() {
        assert_eq!(percent_encoded("/jobs?state=queued&x=ü"), "/jobs%3Fstate%3Dqueued%26x%3D%C3%BC");
    }
}
