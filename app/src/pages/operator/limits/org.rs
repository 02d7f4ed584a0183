//! The limits of one organization, and how much of them it uses.
//!
//! Must not show what it runs: sums only.

use std::future::Future;

use berth_types::ids::OrgId;
use berth_types::problems::Problem;
use berth_types::quotas::Quota;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;
use leptos::task::spawn_local;
use leptos_meta::Title;
use leptos_router::hooks::use_params_map;
use serde::{Deserialize, Serialize};

use super::super::super::confirm::ConfirmDialog;
use super::super::super::limits::form::{AllLimits, Frame, LimitForm};
use super::super::super::limits::{meters, replace, slugs};
use super::super::super::parts::{Call, CallProblem, Loading, every, ready};
use super::super::is_operator;
use super::{FIELDS, Save};
use crate::api;
use crate::api::Answer;
use crate::session::use_session;
use crate::ui::*;

/// What the page starts with.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    name: String,
    quota: Quota,
    offerings: Vec<String>,
}

fn load(org: Option<OrgId>) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let calls = org.map(|org| (org, api::quotas::of_any(org), api::accounts::list_orgs(), slugs()));
    async move {
        // What is no id cannot be an organization.
        let Some((org, quota, orgs, offerings)) = calls else { return Err(Problem::not_found()) };
        let quota = quota.await?;
        let orgs = orgs.await?.items;
        let known = orgs.into_iter().find(|known| known.org.id == org);
        let name = known.map_or_else(|| org.to_string(), |known| known.org.name);
        Ok(Loaded { name, quota, offerings: offerings.await? })
    }
}

/// The page with the limits of one organization.
#[component]
pub fn OrgLimitsPage() -> impl IntoView {
    if is_operator() { view! { <OneOrg/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn OneOrg() -> impl IntoView {
    let params = use_params_map();
    let org = Memo::new(move |_| {
        params.with(|params| params.get("org")).and_then(|text| text.parse::<OrgId>().ok())
    });
    let data: Resource<Answer<Loaded>> = Resource::new(move || org.get(), load);
    view! {
        <Suspense fallback=|| view! { <Loading/> }>
            {move || Suspend::new(async move {
                match data.await {
                    Err(problem) if problem.status == 404 => view! { <NotFound/> }.into_any(),
                    Err(problem) => view! { <ProblemNotice problem=problem/> }.into_any(),
                    Ok(loaded) => view! { <OrgLimits loaded=loaded/> }.into_any(),
                }
            })}
        </Suspense>
    }
}

#[component]
fn OrgLimits(loaded: Loaded) -> impl IntoView {
    let Loaded { name, quota, offerings } = loaded;
    let currency = use_session().me.currency;
    let org = quota.org;
    let form = LimitForm::of(&quota.limits);
    let quota = RwSignal::new(quota);
    every(10_000, move || {
        let fresh = api::quotas::of_any(org);
        spawn_local(async move {
            // The form keeps what is typed; only what is used moves.
            if let Ok(fresh) = fresh.await {
                replace(quota, fresh);
            }
        });
    });
    let heading = format!("Limits of {name}");
    let title = format!("{heading} · Berth");
    let whose = move || {
        if quota.with(|quota| quota.is_default) {
            "It has the limits of every organization."
        } else {
            "It has limits of its own."
        }
    };
    let of_table = currency.clone();
    view! {
        <Title text=title/>
        <div class="page">
            <nav class="crumbs" aria-label="Where you are">
                <ol>
                    <li><a href="/operator/limits">"Limits"</a></li>
                    <li><span aria-current="page" class="quiet">{name}</span></li>
                </ol>
            </nav>
            <div class="page__head"><h1>{heading}</h1></div>
            <section class="section">
                <div class="section__head">
                    <h2>"Now"</h2>
                    <div class="section__aside">{whose}</div>
                </div>
                {move || quota.with(|quota| meters::table(quota, &of_table))}
            </section>
            <OwnForm org=org form=form quota=quota offerings=offerings currency=currency/>
        </div>
    }
}

#[component]
fn OwnForm(
    org: OrgId,
    form: LimitForm,
    quota: RwSignal<Quota>,
    offerings: Vec<String>,
    currency: String,
) -> impl IntoView {
    let ready = ready();
    let call = Call::idle();
    let said = RwSignal::new("");
    let asking = RwSignal::new(false);
    let frame = Frame { form, call, base: "", prefix: "own".to_owned(), currency, ready };
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        said.set("");
        match form.limits("") {
            Err(errors) => call.problem.set(Some(Problem::invalid(errors))),
            Ok(limits) => call.run(api::quotas::set(org, &limits), move |fresh: Quota| {
                form.show(&fresh.limits);
                quota.set(fresh);
                said.set("Saved. They hold from now on.");
            }),
        }
    };
    let back = view! {
        <button
            class="btn"
            type="button"
            disabled=move || !ready.get() || call.pending.get() || quota.with(|quota| quota.is_default)
            on:click=move |_| asking.set(true)
        >
            "Use the defaults again"
        </button>
    }
    .into_any();
    view! {
        <form class="form card" method="post" on:submit=submit>
            <h2 class="card__title">"Limits of its own"</h2>
            <p class="prose">
                "They take the place of the limits of every organization, all of them: an empty field does not limit. What runs goes on."
            </p>
            <CallProblem call=call beside_fields=FIELDS/>
            <AllLimits frame=frame offerings=offerings/>
            <Save call=call said=said text="Save its limits" other=back/>
        </form>
        <DefaultsDialog org=org form=form quota=quota said=said open=asking/>
    }
}

#[component]
fn DefaultsDialog(
    org: OrgId,
    form: LimitForm,
    quota: RwSignal<Quota>,
    said: RwSignal<&'static str>,
    open: RwSignal<bool>,
) -> impl IntoView {
    let call = Call::idle();
    let clear = move |()| {
        call.run(api::quotas::clear(org), move |fresh: Quota| {
            form.show(&fresh.limits);
            quota.set(fresh);
            said.set("It has the limits of every organization again.");
            open.set(false);
        });
    };
    view! {
        <ConfirmDialog
            id="defaults"
            title="Use the defaults again?"
            open=open
            call=call
            keep="Keep its own"
            verb="Use the defaults"
            confirm=Callback::new(clear)
        >
            <p>
                "Its own limits are forgotten, and those of every organization hold for it from now on. What runs goes on. This cannot be undone; you can type the limits again."
            </p>
        </ConfirmDialog>
    }
}
