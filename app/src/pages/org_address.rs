//! Frame of the pages below `/orgs/{slug}`, and redirects of addresses without an organization.

use std::future::Future;

use berth_types::accounts::Org;
use leptos::prelude::*;
use leptos_meta::Title;
use leptos_router::components::Outlet;
use leptos_router::hooks::use_location;
use serde::de::IgnoredAny;

use super::parts::{Loading, NoOrg};
use crate::address::{is_object, org_path, parse_org_path, use_org_links};
use crate::api;
use crate::identity::window_title;
use crate::session::{Page, use_session};
use crate::ui::*;

/// The maximum number of organizations that are asked for an object.
const MAX_ASKED: usize = 20;
/// The maximum number of characters of an unknown slug on the page.
const MAX_SLUG_CHARS: usize = 60;

fn member_orgs() -> Vec<Org> {
    use_session().me.memberships.into_iter().map(|member| member.org).collect()
}

/// The pages of the organization of the address, or a notice about an unknown organization.
#[component]
pub fn OrgLayout() -> impl IntoView {
    let orgs = member_orgs();
    let pathname = use_location().pathname;
    let unknown = Memo::new(move |_| {
        pathname.with(|path| {
            let (slug, _) = parse_org_path(path)?;
            let known = orgs.iter().any(|org| org.slug == slug);
            (!known).then(|| slug.chars().take(MAX_SLUG_CHARS).collect::<String>())
        })
    });
    move || match unknown.get() {
        None => view! { <Outlet/> }.into_any(),
        Some(slug) => view! { <UnknownOrg slug=slug/> }.into_any(),
    }
}

/// The notice about an organization that does not exist or has other members, with the same text for both.
#[component]
fn UnknownOrg(
    /// The slug of the address.
    slug: String,
) -> impl IntoView {
    set_status(404);
    let link = |org: Org| {
        let path = org_path(&org.slug, "/");
        view! { <li><a class="break" href=path>{org.name}</a></li> }
    };
    let links: Vec<_> = member_orgs().into_iter().map(link).collect();
    let own = (!links.is_empty()).then(|| view! { <p>"Your organizations:"</p> <ul>{links}</ul> });
    view! {
        <Title text=window_title("Organization not found")/>
        <div class="page">
            <div class="page__head"><h1>"Organization not found"</h1></div>
            <div class="empty">
                <p class="empty__text">
                    "No organization named " <span class="break">{slug}</span> ", or you are not a member of it."
                </p>
                {own}
            </div>
        </div>
    }
}

/// Finds the organization with the object of a page; asks nothing for the page of a list.
fn find_org(orgs: &[Org], page: &str) -> impl Future<Output = Option<String>> + Send + 'static + use<> {
    // One organization needs no search.
    let asked = if is_object(page) && orgs.len() > 1 { MAX_ASKED } else { 0 };
    let calls: Vec<_> = orgs
        .iter()
        .take(asked)
        .map(|org| (org.slug.clone(), api::get::<IgnoredAny>(format!("/orgs/{}{page}", org.id))))
        .collect();
    async move {
        for (slug, call) in calls {
            if call.await.is_ok() {
                return Some(slug);
            }
        }
        None
    }
}

/// The redirect of an address without an organization: to the organization of the object, or else to the last
/// one of this browser.
#[component]
pub fn OrgRedirect() -> impl IntoView {
    let session = use_session();
    let here = use_location();
    let (page, search) = (here.pathname.get_untracked(), here.search.get_untracked());
    let mut orgs = member_orgs();
    if orgs.is_empty() && session.me.user.operator {
        return view! { <Redirected path="/operator".to_owned()/> }.into_any();
    }
    if orgs.is_empty() {
        return view! { <Page title="Home".to_owned()><NoOrg/></Page> }.into_any();
    }
    let last = session.org.get_untracked();
    orgs.sort_by_key(|org| Some(org.id) != last);
    let last_path = use_org_links().path(&page);
    let searched = page.clone();
    let found: Resource<Option<String>> = Resource::new(|| (), move |()| find_org(&orgs, &searched));
    view! {
        <Suspense fallback=|| view! { <Loading/> }>
            {move || {
                let (page, search, last_path) = (page.clone(), search.clone(), last_path.clone());
                suspended(async move {
                    let path = found.await.map_or(last_path, |slug| org_path(&slug, &page));
                    let path = if search.is_empty() { path } else { format!("{path}?{search}") };
                    move || view! { <Redirected path=path/> }.into_any()
                })
            }}
        </Suspense>
    }
    .into_any()
}

/// A redirect with its link, for a browser that does not follow it.
#[component]
fn Redirected(
    /// The new address.
    path: String,
) -> impl IntoView {
    redirect_to(&path);
    view! { <p class="quiet"><a href=path>"Continue"</a></p> }
}
