//! The signed-in user, the organization of the address, and the frame of the pages.
//!
//! The portal checks all rights; the pages only hide buttons without effect.

#[cfg(feature = "hydrate")]
use std::sync::atomic::{AtomicBool, Ordering};

use berth_types::accounts::{Me, Org, Role};
use berth_types::ids::OrgId;
use leptos::prelude::*;
use leptos_meta::Title;
use leptos_router::components::Outlet;
use leptos_router::hooks::{use_location, use_url};

use crate::address::{OrgLinks, is_object, list_of, org_path, parse_org_path};
use crate::api;
use crate::cookies::{cookie, store_cookie};
use crate::identity::window_title;
use crate::rail::{RailGroups, SheetGroups, all_links};
use crate::theme::ThemeSwitch;
use crate::ui::*;

/// The cookie with the slug of the last organization of this browser. It decides only about pages without an
/// organization in their address. The server reads it too, so that both render the same page.
const LAST_ORG: &str = "berth_org";

/// The signed-in user and the organization of the address.
#[derive(Clone)]
pub struct Session {
    pub me: Me,
    /// The present name of the user, which the page of the account changes.
    pub name: RwSignal<String>,
    /// The organization of the address, or else the last one of this browser; absent without a membership.
    pub org: Memo<Option<OrgId>>,
}

impl Session {
    /// Returns true if the user owns an organization.
    pub fn owns(&self, org: OrgId) -> bool {
        self.me.memberships.iter().any(|member| member.org.id == org && member.role == Role::Owner)
    }

    /// Returns true if the user's role can see the money of an organization.
    pub fn sees_money(&self, org: OrgId) -> bool {
        self.me.memberships.iter().any(|member| member.org.id == org && member.role != Role::Viewer)
    }

    /// Returns true if the user's role can pay for an organization.
    pub fn pays_for(&self, org: OrgId) -> bool {
        let member = self.me.memberships.iter().find(|member| member.org.id == org);
        member.is_some_and(|member| matches!(member.role, Role::Owner | Role::Billing))
    }

    /// Returns true if the user's role can run jobs of an organization.
    pub fn runs_in(&self, org: OrgId) -> bool {
        let member = self.me.memberships.iter().find(|member| member.org.id == org);
        member.is_some_and(|member| matches!(member.role, Role::Owner | Role::Member))
    }

    /// Returns the sentence for a member whose role cannot run jobs, about an action such as `launch jobs`.
    fn refusal(&self, org: OrgId, action: &str) -> Option<String> {
        let member = self.me.memberships.iter().find(|member| member.org.id == org)?;
        let role = member.role.name();
        (!self.runs_in(org)).then(|| {
            format!("Your role here is {role}, which cannot {action}. Ask an owner of the organization.")
        })
    }
}

/// The banner of a form for a member whose role cannot send it.
#[component]
pub fn RoleNotice(
    /// The action of the form: `launch jobs`.
    action: &'static str,
) -> impl IntoView {
    let session = use_session();
    let refusal = move || session.org.get().and_then(|org| session.refusal(org, action));
    move || {
        refusal().map(|text| {
            view! { <div class="banner banner--warn" role="status"><div class="banner__text">{text}</div></div> }
        })
    }
}

/// Returns the session of a page inside [`Layout`].
pub fn use_session() -> Session {
    expect_context::<Session>()
}

/// Returns the organization of the page of one object. It stays during a navigation to the page of a list, so
/// that the leaving page does not look for its object in another organization.
pub fn use_object_org() -> Memo<Option<OrgId>> {
    let (org, pathname) = (use_session().org, use_location().pathname);
    Memo::new(move |known: Option<&Option<OrgId>>| {
        let now = org.get();
        let of_object = pathname.with(|path| parse_org_path(path).is_some_and(|(_, page)| is_object(page)));
        if of_object { now } else { known.copied().unwrap_or(now) }
    })
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
    let window_title = window_title(&title);
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

/// The rail, the top bar and the page. Without a session: the start page, or a redirect to the sign-in or the
/// set-up.
#[component]
pub fn Layout() -> impl IntoView {
    let me = Resource::new(|| (), |()| api::accounts::me());
    let retry = Retry::new(move || me.refetch());
    let info = Resource::new(|| (), |()| api::accounts::info());
    let in_cookie = cookie(LAST_ORG);
    // The browser takes over the value of the server, because another tab may have changed the cookie.
    let last = Resource::new(|| (), move |()| std::future::ready(in_cookie.clone()));
    view! {
        <Suspense>
            {move || suspended(async move {
                let (me, last) = (me.await, last.await);
                let is_visitor = matches!(&me, Err(problem) if problem.status == 401);
                let fresh = is_visitor && info.await.is_ok_and(|info| info.needs_setup);
                move || match me {
                    Ok(me) if me.second_factor_required => {
                        view! { <Unenrolled me=me last=last/> }.into_any()
                    }
                    Ok(me) => view! { <SignedIn me=me last=last/> }.into_any(),
                    Err(_) if is_visitor => view! { <Visitor fresh=fresh/> }.into_any(),
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

/// The view without a session: the start page at `/`, otherwise a redirect.
#[component]
fn Visitor(fresh: bool) -> impl IntoView {
    // The address of the route, which stays while the route is left.
    let url = use_url();
    let at_start = Memo::new(move |_| url.with(|url| url.path() == "/"));
    move || {
        if at_start.get() && !fresh {
            view! { <Outlet/> }.into_any()
        } else {
            view! { <SignInRedirect fresh=fresh/> }.into_any()
        }
    }
}

/// The path of the page of second factors.
const FACTORS_PATH: &str = "/account/second-factors";

/// The view of a person without a required second factor: the page of second factors, otherwise a redirect to it.
#[component]
fn Unenrolled(
    me: Me,
    /// The slug in the cookie.
    last: Option<String>,
) -> impl IntoView {
    let url = use_url();
    let at_page = Memo::new(move |_| url.with(|url| url.path() == FACTORS_PATH));
    move || {
        if at_page.get() {
            view! { <SignedIn me=me.clone() last=last.clone()/> }.into_any()
        } else {
            view! { <FactorRedirect/> }.into_any()
        }
    }
}

/// The redirect without a required second factor.
#[component]
fn FactorRedirect() -> impl IntoView {
    redirect_to(FACTORS_PATH);
    view! {
        <main class="main" id="main">
            <p class="quiet"><a href=FACTORS_PATH>"Continue to the second factor"</a></p>
        </main>
    }
}

/// The redirect without a session.
#[component]
fn SignInRedirect(fresh: bool) -> impl IntoView {
    let url = use_url();
    let target = if fresh {
        "/setup".to_owned()
    } else {
        let (path, search) = url.with_untracked(|url| (url.path().to_owned(), url.search().to_owned()));
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

/// Returns the slug of the shown organization: of the address, or else the last one. It is empty without a
/// membership.
fn shown_slug(orgs: &[Org], last: Option<String>) -> Memo<String> {
    let slugs: Vec<String> = orgs.iter().map(|org| org.slug.clone()).collect();
    let first = last.filter(|last| slugs.contains(last)).or_else(|| slugs.first().cloned());
    let last = RwSignal::new(first.unwrap_or_default());
    let pathname = use_location().pathname;
    let slug = Memo::new(move |_| {
        let of_address = pathname.with(|path| {
            let (slug, _) = parse_org_path(path)?;
            slugs.iter().find(|known| *known == slug).cloned()
        });
        of_address.unwrap_or_else(|| last.get())
    });
    Effect::new(move || {
        let slug = slug.get();
        if !slug.is_empty() {
            store_cookie(LAST_ORG, &slug);
            last.set(slug);
        }
    });
    slug
}

#[component]
fn SignedIn(
    me: Me,
    /// The slug in the cookie.
    last: Option<String>,
) -> impl IntoView {
    let orgs: Vec<Org> = me.memberships.iter().map(|m| m.org.clone()).collect();
    let slug = shown_slug(&orgs, last);
    let shown = me.memberships.clone();
    let shown =
        Memo::new(move |_| slug.with(|slug| shown.iter().find(|member| member.org.slug == *slug).cloned()));
    let org = Memo::new(move |_| shown.with(|shown| shown.as_ref().map(|member| member.org.id)));
    let name = RwSignal::new(me.user.name.clone());
    provide_context(Session { me: me.clone(), name, org });
    provide_context(OrgLinks::new(slug));
    let org_name = move || shown.with(|shown| shown.as_ref().map(|m| m.org.name.clone())).unwrap_or_default();
    let pathname = use_location().pathname;
    let choose_slug = move |slug: String| {
        // An object belongs to one organization.
        let page = pathname.with_untracked(|path| {
            parse_org_path(path).map_or_else(|| "/".to_owned(), |(_, page)| list_of(page))
        });
        go(&org_path(&slug, &page));
    };
    let choose = move |ev| choose_slug(event_target_value(&ev));
    let several = orgs.len() > 1;
    let none = orgs.is_empty();
    let tenant = !none;
    let palette = PaletteData {
        links: all_links(tenant, me.operator_role),
        orgs: orgs.iter().map(|org| (org.slug.clone(), org.name.clone())).collect(),
        org,
        pages: OrgLinks::new(slug),
        choose: Callback::new(choose_slug),
        open: RwSignal::new(false),
    };
    let palette_open = palette.open;
    let slot = expect_context::<PaletteSlot>();
    slot.set(Some(palette));
    // Its signals end with this frame.
    on_cleanup(move || {
        let _ = slot.try_set(None);
    });
    let options = move || {
        let option = |org: Org| {
            let (value, initial) = (org.slug, slug.get_untracked());
            let known = value.clone();
            let selected = initial == value;
            view! {
                <option value=value selected=selected prop:selected=move || slug.with(|slug| *slug == known)>
                    {org.name}
                </option>
            }
        };
        orgs.iter().cloned().map(option).collect_view()
    };
    // A click before hydration would be lost.
    let hydrated = ready();
    // A phone has no room for the choice of the rail.
    let in_sheet = several.then(|| {
        view! {
            <label class="rail__group" for="org-in-sheet">"Organization"</label>
            <select class="select" id="org-in-sheet" disabled=move || !hydrated.get() on:change=choose>
                {options()}
            </select>
        }
    });
    let signing_out = RwSignal::new(false);
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
    let start = if operator { "/operator" } else { "/" };
    let home = move || if none { start.to_owned() } else { slug.with(|slug| org_path(slug, "/")) };
    // Both lists together need lower lines.
    let rail = if operator && tenant { "rail rail--long" } else { "rail" };
    let more_open = NodeRef::<leptos::html::Details>::new();
    // A navigation closes the sheet. The first run is none: the sheet may be open since before hydration.
    Effect::new(move |before: Option<()>| {
        pathname.track();
        if before.is_some()
            && let Some(details) = more_open.get_untracked()
        {
            details.set_open(false);
        }
    });
    let account_label = move || format!("Your account: {}", name.get());
    let unverified = me.email_verified_at.is_none().then(|| unverified_banner(&me.user.email));
    let operator_text = me.operator_role.map(|role| format!("operator ({})", role.name()));
    let role_text = move || {
        let role = shown.with(|shown| shown.as_ref().map(|member| member.role.name()));
        let roles = role.map(str::to_owned).into_iter().chain(operator_text.clone());
        roles.collect::<Vec<_>>().join(", ")
    };
    view! {
        <a class="skip" href="#main">"Skip to content"</a>
        <div class="shell">
            <header class="topbar">
                <a class="brand" href=home><PortalName mark="brand__mark"/></a>
                <span class="topbar__org">{org_name}</span>
            </header>
            // Screen readers jump between landmarks, which have all text of a page.
            <section class=rail aria-label="Sidebar">
                <a class="rail__brand" href=home><PortalName mark="rail__mark"/></a>
                <div class="rail__find"><PaletteButton open=palette_open/></div>
                <div class="rail__org" hidden=none>
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
                    <RailGroups tenant=tenant operator=me.operator_role/>
                    <details class="rail__more" node_ref=more_open>
                        <summary>"More"</summary>
                        <div class="rail__sheet">
                            <SheetGroups tenant=tenant operator=me.operator_role/>
                            {in_sheet}
                            <PaletteButton open=palette_open/>
                            <ThemeSwitch id="theme-in-sheet"/>
                            <ZoneSelect id="zone-in-sheet"/>
                            // The portal serves the documents outside of the app.
                            <a class="rail__link" href="/docs" rel="external">"Documentation"</a>
                            <p class="rail__group">{me.user.email.clone()}</p>
                            <a class="rail__link" href="/account">"Your account"</a>
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
                    <p><a href="/account" aria-label=account_label>{move || name.get()}</a><br/>{role_text}</p>
                    <p class="rail__theme"><ThemeSwitch id="theme"/></p>
                    <p class="rail__theme"><ZoneSelect id="zone"/></p>
                    <p><a href="/docs" rel="external">"Documentation"</a></p>
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
            </section>
            <main class="main" id="main" tabindex="-1">{unverified}<Outlet/></main>
        </div>
    }
}

/// Returns the notice of an e-mail address that is not verified.
fn unverified_banner(email: &str) -> AnyView {
    let email = email.to_owned();
    view! {
        <div class="banner banner--warn" role="status">
            <div class="banner__text">
                <strong class="banner__title">"E-mail address not verified"</strong>
                "Open the link in the mail to " <span class="break">{email}</span>
                ". Until then you get no other mail, and you cannot invite people or request credit. The page "
                <a href="/account">"Your account"</a> " sends the link again."
            </div>
        </div>
    }
    .into_any()
}

/// True after the end of the session, until the page is left.
#[cfg(feature = "hydrate")]
static ENDED: AtomicBool = AtomicBool::new(false);

/// Returns true after the end of the session: a page that is being left stores no input.
#[cfg(feature = "hydrate")]
pub fn has_ended() -> bool {
    ENDED.load(Ordering::Relaxed)
}

/// Opens the sign-in page by a full load, so that no data of the session remains.
pub fn load_sign_in() {
    #[cfg(feature = "hydrate")]
    if let Some(window) = web_sys::window() {
        ENDED.store(true, Ordering::Relaxed);
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
