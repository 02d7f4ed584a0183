//! What an organization may use, how much of it is used, and asking for more.
//!
//! Must not judge a limit: what waits, what is refused and what is granted is the portal's word.

pub mod ask;
pub mod form;
pub mod kinds;
pub mod lines;
pub mod meters;
pub mod numbers;
pub mod requests;

use std::future::Future;

use berth_types::ids::OrgId;
use berth_types::quotas::{Quota, QuotaRequest};
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::{Deserialize, Serialize};

use self::ask::AskForm;
use super::of_org::of_org;
use super::parts::every;
use crate::api;
use crate::api::Answer;
use crate::session::{Page, use_session};
use crate::ui::*;

/// What the page starts with.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    org: OrgId,
    quota: Quota,
    requests: Vec<QuotaRequest>,
    offerings: Vec<String>,
}

fn load(org: OrgId) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let (quota, requests) = (api::quotas::get(org), api::quotas::requests(org));
    let offerings = slugs();
    async move {
        let (quota, requests) = (quota.await?, requests.await?.items);
        Ok(Loaded { org, quota, requests, offerings: offerings.await? })
    }
}

/// The slugs of everything that can be ordered.
pub fn slugs() -> impl Future<Output = Answer<Vec<String>>> + Send + 'static {
    let offerings = api::money::offerings();
    async move { Ok(offerings.await?.items.into_iter().map(|offering| offering.slug).collect()) }
}

/// The page with all limits.
#[component]
pub fn LimitsPage() -> impl IntoView {
    view! {
        <Page title="Limits".to_owned()>
            <p class="page__lead">
                "How much your organization may use. What runs is never stopped by a limit: what goes beyond one waits, or is refused and says why."
            </p>
            {of_org(load, |loaded: Loaded| view! { <LimitsView loaded=loaded/> }.into_any())}
        </Page>
    }
}

/// Whose limits these are.
fn origin_words(is_default: bool) -> &'static str {
    if is_default {
        "These are the limits of every organization."
    } else {
        "These limits were set for your organization."
    }
}

#[component]
fn LimitsView(loaded: Loaded) -> impl IntoView {
    let Loaded { org, quota, requests, offerings } = loaded;
    let currency = use_session().me.currency;
    let quota = RwSignal::new(quota);
    let requests = RwSignal::new(requests);
    every(10_000, move || {
        let (fresh_quota, fresh_requests) = (api::quotas::get(org), api::quotas::requests(org));
        spawn_local(async move {
            // What cannot be fetched now leaves what is shown; the next round tries again.
            if let Ok(fresh) = fresh_quota.await {
                replace(quota, fresh);
            }
            if let Ok(fresh) = fresh_requests.await {
                replace(requests, fresh.items);
            }
        });
    });
    let of_table = currency.clone();
    let of_requests = currency.clone();
    let none = Memo::new(move |_| requests.with(Vec::is_empty));
    view! {
        <section class="section">
            <div class="section__head">
                <h2>"Now"</h2>
                <div class="section__aside">{move || origin_words(quota.with(|quota| quota.is_default))}</div>
            </div>
            {move || quota.with(|quota| meters::table(quota, &of_table))}
            <p class="quiet">{move || counted_month(&quota.with(|quota| quota.month.clone()))}</p>
        </section>
        <AskForm org=org quota=quota requests=requests offerings=offerings currency=currency/>
        <section class="section">
            <div class="section__head"><h2>"What you asked for"</h2></div>
            {move || {
                if none.get() {
                    empty("Nothing yet. When a limit is in your way, ask for more above: the operator of this portal sees it at once, and the answer appears here.")
                } else {
                    requests.with(|requests| requests::table(requests, &of_requests, false))
                }
            }}
        </section>
    }
}

/// Which month board hours are counted for.
fn counted_month(month: &str) -> String {
    format!(
        "Board hours are counted for {month}, by UTC; what a job did not use of its limit is given back when it ends."
    )
}

/// Sets a signal only where something moved, so that nothing is drawn anew without a cause.
pub fn replace<T: PartialEq + Send + Sync + 'static>(signal: RwSignal<T>, fresh: T) {
    signal.maybe_update(|known| {
        let moved = *known != fresh;
        *known = fresh;
        moved
    });
}
