//! Page of one service: state, address, revisions, replicas, figures, and a panel to try it.

use berth_types::ids::{OrgId, ServiceId};
use leptos::prelude::*;
use leptos_meta::Title;
use leptos_router::hooks::use_params_map;

use super::super::org_data::org_object_view;
use super::super::parts::when_some;
use super::head::{Address, Head};
use super::promise::PromiseSection;
use super::promise_state::{self, LoadedPromise};
use super::replicas::Replicas;
use super::revisions::Revisions;
use super::state::{LiveService, Loaded, load_first};
use super::try_it::TryIt;
use super::usage::Figures;
use super::{RefreshBadge, refresh, refresh_every};
use crate::address::org_link;
use crate::api::Answer;
use crate::identity::window_title;
use crate::session::use_object_org;
use crate::ui::*;

/// The page of one service.
#[component]
pub fn ServicePage() -> impl IntoView {
    let org = use_object_org();
    let params = use_params_map();
    let id = Memo::new(move |_| {
        params.with(|params| params.get("service")).and_then(|text| text.parse::<ServiceId>().ok())
    });
    let data: Resource<Answer<Option<Loaded>>> = Resource::new(
        move || (org.get(), id.get()),
        |(org, id): (Option<OrgId>, Option<ServiceId>)| when_some(org.map(|org| load_first(org, id))),
    );
    org_object_view(data, |loaded| view! { <ServiceView loaded=loaded/> }.into_any())
}

#[component]
fn ServiceView(loaded: Loaded) -> impl IntoView {
    let name = loaded.service.name.clone();
    let live = LiveService::new(loaded);
    refresh(live.failed, move || live.load(), move |fresh: (u32, Loaded)| live.apply(fresh));
    let promise = live.promise;
    refresh_every(
        promise_state::REFRESH_MS,
        promise.failed,
        move || promise.load(),
        move |fresh: (u32, LoadedPromise)| promise.apply(fresh),
    );
    let title = window_title(&name);
    view! {
        <Title text=title/>
        <div class="page">
            <div class="crumb-row">
                <Crumbs list="Services" path=Signal::derive(org_link("/services")) name=name/>
                <RefreshBadge failed=live.failed/>
            </div>
            <Head live=live/>
            <Address live=live/>
            <TryIt live=live/>
            <Revisions live=live/>
            <Replicas live=live/>
            <Figures live=live/>
            <PromiseSection live=live/>
        </div>
    }
}
