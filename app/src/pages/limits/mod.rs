//! Page of the limits of an organization, their use and requests for other limits.

pub mod credit_form;
pub mod form;
pub mod kinds;
pub mod lines;
pub mod meters;
pub mod network;
pub mod numbers;
pub mod request_form;
pub mod requests;

use std::future::Future;

use berth_types::egress::EgressPolicy;
use berth_types::ids::OrgId;
use berth_types::quotas::{Quota, QuotaRequest};
use futures::{join, try_join};
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::{Deserialize, Serialize};

use self::network::NetworkSection;
use self::request_form::LimitRequestForm;
use super::org_data::org_view;
use super::parts::every_visible;
use crate::api;
use crate::api::Answer;
use crate::session::{Page, use_session};
use crate::ui::*;

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    org: OrgId,
    quota: Quota,
    requests: Vec<QuotaRequest>,
    offerings: Vec<String>,
    policy: EgressPolicy,
}

fn load(org: OrgId) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let (quota, requests) = (api::quotas::get(org), api::quotas::requests(org));
    let (offerings, policy) = (slugs(), api::egress::policy(org));
    async move {
        let (quota, requests, offerings, policy) = try_join!(quota, requests, offerings, policy)?;
        Ok(Loaded { org, quota, requests: requests.items, offerings, policy })
    }
}

/// Lists the slugs of all offerings.
pub fn slugs() -> impl Future<Output = Answer<Vec<String>>> + Send + 'static {
    let offerings = api::money::offerings();
    async move { Ok(offerings.await?.items.into_iter().map(|offering| offering.slug).collect()) }
}

/// The page of all limits.
#[component]
pub fn LimitsPage() -> impl IntoView {
    view! {
        <Page title="Limits".to_owned()>
            <p class="page__lead">
                "Limits of your organization. A limit never stops a running job: a job beyond a limit waits or is refused."
            </p>
            {org_view(load, |loaded: Loaded| view! { <LimitsView loaded=loaded/> }.into_any())}
        </Page>
    }
}

/// Returns the origin of the limits.
fn origin_text(is_default: bool) -> &'static str {
    if is_default { "Default limits of this portal" } else { "Limits set for your organization" }
}

#[component]
fn LimitsView(loaded: Loaded) -> impl IntoView {
    let Loaded { org, quota, requests, offerings, policy } = loaded;
    let session = use_session();
    let owns = session.owns(org);
    let currency = session.me.currency;
    let quota = RwSignal::new(quota);
    let requests = RwSignal::new(requests);
    every_visible(10_000, move || {
        let (fresh_quota, fresh_requests) = (api::quotas::get(org), api::quotas::requests(org));
        spawn_local(async move {
            let (fresh_quota, fresh_requests) = join!(fresh_quota, fresh_requests);
            // The next round repeats a failed request.
            if let Ok(fresh) = fresh_quota {
                replace(quota, fresh);
            }
            if let Ok(fresh) = fresh_requests {
                replace(requests, fresh.items);
            }
        });
    });
    let table_currency = currency.clone();
    let request_currency = currency.clone();
    let none = Memo::new(move |_| requests.with(Vec::is_empty));
    view! {
        <section class="section">
            <div class="section__head">
                <h2>"Current use"</h2>
                <div class="section__aside">{move || origin_text(quota.with(|quota| quota.is_default))}</div>
            </div>
            {move || quota.with(|quota| meters::table(quota, &table_currency))}
            <p class="quiet">{move || month_text(&quota.with(|quota| quota.month.clone()))}</p>
        </section>
        <NetworkSection policy=policy/>
        {if owns {
            view! {
                <LimitRequestForm org=org quota=quota requests=requests offerings=offerings currency=currency/>
            }
            .into_any()
        } else {
            view! { <p class="quiet">"Owners of the organization request other limits."</p> }.into_any()
        }}
        <section class="section">
            <div class="section__head"><h2>"Your requests"</h2></div>
            {move || {
                if none.get() {
                    empty("No requests yet. The answer of the operator to a request appears here.")
                } else {
                    requests.with(|requests| requests::table(requests, &request_currency, false))
                }
            }}
            <p class="quiet">
                "The operator can grant other values than requested. The table above has the limits in force, and the ledger on the page Billing has granted credit."
            </p>
        </section>
    }
}

/// Returns the month of the counted board-hours.
fn month_text(month: &str) -> String {
    format!(
        "Board-hours are counted for {month} (UTC). When a job ends early, its unused time no longer counts."
    )
}

/// Sets a signal to another value; an equal value causes no redraw.
pub fn replace<T: PartialEq + Send + Sync + 'static>(signal: RwSignal<T>, fresh: T) {
    signal.maybe_update(|known| {
        let moved = *known != fresh;
        *known = fresh;
        moved
    });
}
