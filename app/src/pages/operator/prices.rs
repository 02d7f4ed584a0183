//! Prices: what each offering costs an hour, and setting a new version of it.
//!
//! Must not change what was ordered before: that is the portal's promise, and the page says so.

pub mod change;
pub mod draft;
pub mod history;

use std::future::Future;

use berth_types::offerings::{Offering, Price};
use leptos::prelude::*;

use self::change::ChangeDialog;
use self::history::History;
use super::super::launch::offers::berth;
use super::super::parts::{Loading, ready};
use super::super::words::price_text;
use super::is_operator;
use crate::api;
use crate::api::Answer;
use crate::session::{Page, use_session};
use crate::ui::*;

fn load() -> impl Future<Output = Answer<Vec<Offering>>> + Send + 'static {
    let offerings = api::money::offerings();
    async move { Ok(offerings.await?.items) }
}

/// The page with all prices.
#[component]
pub fn PricesPage() -> impl IntoView {
    if is_operator() { view! { <Prices/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn Prices() -> impl IntoView {
    let data: Resource<Answer<Vec<Offering>>> = Resource::new(|| (), |()| load());
    view! {
        <Page title="Prices".to_owned()>
            <p class="page__lead">
                "A change holds for what is ordered after it. Running and waiting jobs keep the price version they were ordered at."
            </p>
            <Suspense fallback=|| view! { <Loading/> }>
                {move || Suspend::new(async move {
                    match data.await {
                        Err(problem) => view! { <ProblemNotice problem=problem/> }.into_any(),
                        Ok(offerings) if offerings.is_empty() => view! { <Nothing/> }.into_any(),
                        Ok(offerings) => view! { <PriceView offerings=offerings/> }.into_any(),
                    }
                })}
            </Suspense>
        </Page>
    }
}

#[component]
fn Nothing() -> impl IntoView {
    view! {
        <div class="empty">
            <p class="empty__text">"There is nothing to price yet. Offerings follow from the boards of the nodes that join."</p>
            <a class="btn" href="/operator/nodes">"Add a node"</a>
        </div>
    }
}

/// What the parts of the page act on.
#[derive(Clone, Copy)]
pub struct Desk {
    offerings: RwSignal<Vec<Offering>>,
    /// The one whose price is changed.
    chosen: RwSignal<Option<Offering>>,
    changing: RwSignal<bool>,
    /// The one whose price was changed last.
    touched: RwSignal<Option<String>>,
    said: RwSignal<String>,
    ready: ReadSignal<bool>,
}

impl Desk {
    /// Takes in a price that was set; an answer to that does not tell what is free.
    fn take(self, fresh: Offering, words: String) {
        let slug = fresh.slug;
        let price = fresh.price;
        self.offerings.update(|all| {
            if let Some(known) = all.iter_mut().find(|known| known.slug == slug) {
                known.price = price;
            }
        });
        self.said.set(words);
        self.touched.set(Some(slug));
    }
}

#[component]
fn PriceView(offerings: Vec<Offering>) -> impl IntoView {
    let currency = use_session().me.currency;
    let all = offerings.clone();
    let desk = Desk {
        offerings: RwSignal::new(offerings),
        chosen: RwSignal::new(None),
        changing: RwSignal::new(false),
        touched: RwSignal::new(None),
        said: RwSignal::new(String::new()),
        ready: ready(),
    };
    let history = |offering: Offering| view! { <History desk=desk offering=offering/> }.into_any();
    let histories: Vec<AnyView> = all.into_iter().map(history).collect();
    let unpriced = Memo::new(move |_| {
        desk.offerings.with(|all| all.iter().filter(|offering| offering.price.version == 0).count())
    });
    let rows = move || {
        desk.offerings.with(|all| all.iter().map(|offering| row(offering, desk)).collect::<Vec<AnyView>>())
    };
    view! {
        {move || warning(unpriced.get())}
        <section class="section">
            <div class="section__head">
                <h2>"Now"</h2>
                <div class="section__aside" role="status">{move || desk.said.get()}</div>
            </div>
            <div class="table-wrap">
                <table class="table" role="table">
                    <caption class="visually-hidden">"Prices an hour"</caption>
                    <thead role="rowgroup">
                        <tr role="row">
                            <th role="columnheader" scope="col">"Offering"</th>
                            <th role="columnheader" scope="col">"Berth"</th>
                            <th role="columnheader" scope="col" class="num">"On demand"</th>
                            <th role="columnheader" scope="col" class="num">"Reserved"</th>
                            <th role="columnheader" scope="col" class="num">"Preemptible"</th>
                            <th role="columnheader" scope="col" class="num">"Version"</th>
                            <th role="columnheader" scope="col" class="num">"Free"</th>
                            <th role="columnheader" scope="col" class="table__actions">
                                <span class="visually-hidden">"Actions"</span>
                            </th>
                        </tr>
                    </thead>
                    <tbody role="rowgroup">{rows}</tbody>
                </table>
            </div>
        </section>
        <section class="section">
            <div class="section__head"><h2>"Every version"</h2></div>
            <div class="card">{histories}</div>
        </section>
        <ChangeDialog desk=desk currency=currency/>
    }
}

fn warning(unpriced: usize) -> Option<AnyView> {
    (unpriced > 0).then(|| {
        view! {
            <div class="banner banner--warn">
                <div class="banner__text">
                    <strong class="banner__title">{format!("{unpriced} without a price")}</strong>
                    "Nobody can order them until you set one. A price of 0 gives them away."
                </div>
            </div>
        }
        .into_any()
    })
}

/// A price for one way of ordering, which is that on demand where there is no other.
fn hourly(micros: Option<i64>, currency: &str) -> AnyView {
    match micros {
        Some(micros) => {
            let text = price_text(micros, currency);
            view! { {text}<span class="unit">"/h"</span> }.into_any()
        }
        None => view! { <span class="quiet">"same"</span> }.into_any(),
    }
}

/// The prices of the ways to order, or that there is none.
fn prices(price: &Price) -> [AnyView; 3] {
    if price.version == 0 {
        let none = || view! { <span class="quiet">"–"</span> }.into_any();
        return [view! { <span class="warn">"not priced"</span> }.into_any(), none(), none()];
    }
    [
        hourly(Some(price.per_hour_micros), &price.currency),
        hourly(price.reserved_per_hour_micros, &price.currency),
        hourly(price.preemptible_per_hour_micros, &price.currency),
    ]
}

fn row(offering: &Offering, desk: Desk) -> AnyView {
    let name = match &offering.mig_profile {
        Some(profile) => format!("{} {profile}", offering.gpu_model),
        None => offering.gpu_model.clone(),
    };
    let slug = offering.slug.clone();
    let bar = berth(offering);
    let simulated =
        offering.simulated.then(|| view! { " " <span class="tag tag--simulated">"simulated"</span> });
    let free = format!("{} of {}", offering.available, offering.capacity);
    let [on_demand, reserved, preemptible] = prices(&offering.price);
    let label = format!("Change the price of {slug}");
    let this = offering.clone();
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name}{simulated}<span class="table__sub mono">{slug}</span></th>
            <td role="cell" data-label="Berth">{bar}</td>
            <td role="cell" class="num" data-label="On demand">{on_demand}</td>
            <td role="cell" class="num" data-label="Reserved">{reserved}</td>
            <td role="cell" class="num" data-label="Preemptible">{preemptible}</td>
            <td role="cell" class="num" data-label="Version">{offering.price.version}</td>
            <td role="cell" class="num" data-label="Free">{free}</td>
            <td role="cell" class="table__actions">
                <button
                    class="btn btn--small"
                    type="button"
                    aria-label=label
                    disabled=move || !desk.ready.get()
                    on:click=move |_| {
                        desk.chosen.set(Some(this.clone()));
                        desk.changing.set(true);
                    }
                >
                    "Change"
                </button>
            </td>
        </tr>
    }
    .into_any()
}
