//! Page of the limits of one organization with their use, and of its grant of RDMA.

use std::future::Future;

use berth_types::ids::OrgId;
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use berth_types::quotas::Quota;
use berth_types::rdma::RdmaGrant;
use futures::try_join;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;
use leptos::task::spawn_local;
use leptos_meta::Title;
use leptos_router::hooks::use_params_map;
use serde::{Deserialize, Serialize};

use super::super::super::confirm::ConfirmDialog;
use super::super::super::limits::form::{AllLimits, Frame, LimitForm};
use super::super::super::limits::{meters, replace, slugs};
use super::super::super::org_data::object_view;
use super::super::super::parts::{Call, CallProblem, every_visible, ready};
use super::super::{guarded, is_operator};
use super::rdma::RdmaGrantForm;
use super::{FIELDS, SaveLimits};
use crate::api;
use crate::api::Answer;
use crate::identity::window_title;
use crate::session::use_session;
use crate::ui::*;

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    name: String,
    quota: Quota,
    rdma: RdmaGrant,
    offerings: Vec<String>,
}

fn load(org: Option<OrgId>) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let calls = org.map(|org| {
        let grant = api::nodes::rdma_grant_of(org);
        (org, api::quotas::get_any(org), grant, api::accounts::org(org), slugs())
    });
    async move {
        // Other text than an id is not found.
        let Some((org, quota, grant, orgs, offerings)) = calls else { return Err(Problem::not_found()) };
        let (quota, rdma, orgs, offerings) = try_join!(quota, grant, orgs, offerings)?;
        let known = orgs.items.into_iter().next();
        let name = known.map_or_else(|| org.to_string(), |known| known.org.name);
        Ok(Loaded { name, quota, rdma, offerings })
    }
}

/// The page of the limits of one organization.
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
    object_view(data, |loaded| view! { <OrgLimits loaded=loaded/> }.into_any())
}

#[component]
fn OrgLimits(loaded: Loaded) -> impl IntoView {
    let Loaded { name, quota, rdma, offerings } = loaded;
    let currency = use_session().me.currency;
    let org = quota.org;
    let form = LimitForm::new(&quota.limits);
    let quota = RwSignal::new(quota);
    every_visible(10_000, move || {
        let fresh = api::quotas::get_any(org);
        spawn_local(async move {
            // The form keeps its input; only the use is updated.
            if let Ok(fresh) = fresh.await {
                replace(quota, fresh);
            }
        });
    });
    let heading = format!("Limits of {name}");
    let title = window_title(&heading);
    let origin = move || {
        if quota.with(|quota| quota.is_default) { "Default limits apply" } else { "Own limits apply" }
    };
    let table_currency = currency.clone();
    view! {
        <Title text=title/>
        <div class="page">
            <Crumbs list="Limits" path="/operator/limits" name=name/>
            <div class="page__head"><h1>{heading}</h1></div>
            <section class="section">
                <div class="section__head">
                    <h2>"Current use"</h2>
                    <div class="section__aside">{origin}</div>
                </div>
                {move || quota.with(|quota| meters::table(quota, &table_currency))}
            </section>
            {guarded(
                OperatorRight::ManageOrgs,
                view! { <OwnForm org=org form=form quota=quota offerings=offerings currency=currency/> }.into_any(),
            )}
            {guarded(
                OperatorRight::ManageFleet,
                view! { <RdmaGrantForm org=org grant=rdma/> }.into_any(),
            )}
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
    let status = RwSignal::new("");
    let confirming = RwSignal::new(false);
    let frame = Frame { form, call, base: "", prefix: "own".to_owned(), currency, ready };
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        status.set("");
        match form.limits("") {
            Err(errors) => call.problem.set(Some(Problem::invalid(errors))),
            Ok(limits) => call.run(api::quotas::set(org, &limits), move |fresh: Quota| {
                form.set_limits(&fresh.limits);
                quota.set(fresh);
                status.set("Saved. The limits apply at once.");
            }),
        }
    };
    let restore = view! {
        <button
            class="btn"
            type="button"
            disabled=move || !ready.get() || call.pending.get() || quota.with(|quota| quota.is_default)
            on:click=move |_| confirming.set(true)
        >
            "Restore defaults"
        </button>
    }
    .into_any();
    view! {
        <form class="form card" method="post" on:submit=submit>
            <h2 class="card__title">"Own limits"</h2>
            <p class="prose">
                "Own limits replace all default limits: an empty field means no limit. Running jobs continue."
            </p>
            <CallProblem call=call beside_fields=FIELDS/>
            <AllLimits frame=frame offerings=offerings/>
            <SaveLimits call=call status=status label="Save limits" other=restore/>
        </form>
        <DefaultsDialog org=org form=form quota=quota status=status open=confirming/>
    }
}

#[component]
fn DefaultsDialog(
    org: OrgId,
    form: LimitForm,
    quota: RwSignal<Quota>,
    status: RwSignal<&'static str>,
    open: RwSignal<bool>,
) -> impl IntoView {
    let call = Call::idle();
    let clear = move |()| {
        call.run(api::quotas::clear(org), move |fresh: Quota| {
            form.set_limits(&fresh.limits);
            quota.set(fresh);
            status.set("Default limits restored.");
            open.set(false);
        });
    };
    view! {
        <ConfirmDialog
            id="defaults"
            title="Restore default limits?"
            open=open
            call=call
            keep="Keep own limits"
            verb="Restore defaults"
            confirm=Callback::new(clear)
        >
            <p>
                "The own limits of this organization are deleted and replaced by the default limits at once. Running jobs continue. This cannot be undone."
            </p>
        </ConfirmDialog>
    }
}
