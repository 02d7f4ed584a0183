//! Prices: what each offering costs an hour, and setting a new version of it.
//!
//! Must not change what was ordered before: that is the portal's promise, and the page says so.

use std::future::Future;

use berth_types::money::parse_amount_micros;
use berth_types::offerings::{NewPrice, Offering};
use berth_types::problems::Problem;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::super::launch::offers::berth;
use super::super::parts::{Call, CallProblem, FieldError, Loading, ready};
use super::super::words::{price_text, typed_amount};
use super::is_operator;
use crate::api;
use crate::api::Answer;
use crate::session::Page;
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
                        Ok(offerings) => view! { <PriceTable offerings=offerings/> }.into_any(),
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

#[component]
fn PriceTable(offerings: Vec<Offering>) -> impl IntoView {
    let ready = ready();
    let unpriced = offerings.iter().filter(|offering| offering.price.version == 0).count();
    let warning = (unpriced > 0).then(|| {
        view! {
            <div class="banner banner--warn">
                <div class="banner__text">
                    <strong class="banner__title">{format!("{unpriced} without a price")}</strong>
                    "Nobody can order them until you set one. A price of 0 gives them away."
                </div>
            </div>
        }
    });
    let rows: Vec<AnyView> = offerings
        .into_iter()
        .enumerate()
        .map(|(i, offering)| view! { <PriceRow number=i offering=offering ready=ready/> }.into_any())
        .collect();
    view! {
        {warning}
        <div class="table-wrap">
            <table class="table" role="table">
                <caption class="visually-hidden">"Prices"</caption>
                <thead role="rowgroup">
                    <tr role="row">
                        <th role="columnheader" scope="col">"Offering"</th>
                        <th role="columnheader" scope="col">"Berth"</th>
                        <th role="columnheader" scope="col" class="num">"Price now"</th>
                        <th role="columnheader" scope="col" class="num">"Version"</th>
                        <th role="columnheader" scope="col" class="num">"Free"</th>
                        <th role="columnheader" scope="col" class="num">"New price an hour"</th>
                        <th role="columnheader" scope="col" class="table__actions">
                            <span class="visually-hidden">"Actions"</span>
                        </th>
                    </tr>
                </thead>
                <tbody role="rowgroup">{rows}</tbody>
            </table>
        </div>
    }
}

#[component]
fn PriceRow(number: usize, offering: Offering, ready: ReadSignal<bool>) -> impl IntoView {
    let call = Call::idle();
    let name = match &offering.mig_profile {
        Some(profile) => format!("{} {profile}", offering.gpu_model),
        None => offering.gpu_model.clone(),
    };
    let slug = offering.slug.clone();
    let bar = berth(&offering);
    let simulated =
        offering.simulated.then(|| view! { " " <span class="tag tag--simulated">"simulated"</span> });
    let free = format!("{} of {}", offering.available, offering.capacity);
    let first =
        if offering.price.version > 0 { typed_amount(offering.price.per_hour_micros) } else { String::new() };
    let price = RwSignal::new(offering.price);
    let amount = RwSignal::new(first);
    let (input_id, error_id, form_id) =
        (format!("price-{number}"), format!("price-{number}-error"), format!("price-form-{number}"));
    let label = format!("New price of {name} an hour");
    let submit = {
        let slug = slug.clone();
        move |event: SubmitEvent| {
            event.prevent_default();
            let Some(per_hour_micros) = parse_amount_micros(&amount.get_untracked()) else {
                let detail = "Give an amount such as 2.41, with six decimals at most.";
                call.problem.set(Some(Problem::invalid_field("/per_hour_micros", detail)));
                return;
            };
            let body = NewPrice {
                offering: slug.clone(),
                per_hour_micros,
                reserved_per_hour_micros: None,
                preemptible_per_hour_micros: None,
                effective_from: None,
            };
            call.run(api::money::set_price(&body), move |fresh: Offering| {
                amount.set(typed_amount(fresh.price.per_hour_micros));
                price.set(fresh.price);
            });
        }
    };
    let now = move || {
        let price = price.get();
        if price.version == 0 {
            view! { <span class="warn">"not priced"</span> }.into_any()
        } else {
            let text = price_text(price.per_hour_micros, &price.currency);
            view! { {text}<span class="unit">"/h"</span> }.into_any()
        }
    };
    let version = move || price.with(|price| price.version);
    let changed = move || {
        price.with(|price| {
            price.version == 0 || parse_amount_micros(&amount.get()) != Some(price.per_hour_micros)
        })
    };
    let error = call.field("/per_hour_micros");
    let form_of_button = form_id.clone();
    let describing = error_id.clone();
    let for_input = input_id.clone();
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name}{simulated}<span class="table__sub mono">{slug}</span></th>
            <td role="cell" data-label="Berth">{bar}</td>
            <td role="cell" class="num" data-label="Price now">{now}</td>
            <td role="cell" class="num" data-label="Version">{version}</td>
            <td role="cell" class="num" data-label="Free">{free}</td>
            <td role="cell" class="num" data-label="New price an hour">
                <form id=form_id method="post" on:submit=submit>
                    <label class="visually-hidden" for=for_input>{label}</label>
                    <input
                        class="input num"
                        id=input_id
                        inputmode="decimal"
                        autocomplete="off"
                        size="8"
                        aria-describedby=describing
                        aria-invalid=move || error.get().map(|_| "true")
                        prop:value=move || amount.get()
                        on:input=move |ev| amount.set(event_target_value(&ev))
                    />
                </form>
                <FieldError id=error_id error=error/>
                <CallProblem call=call beside_fields=&["/per_hour_micros"]/>
            </td>
            <td role="cell" class="table__actions">
                <button
                    class="btn btn--small"
                    type="submit"
                    form=form_of_button
                    disabled=move || !ready.get() || call.pending.get() || !changed()
                    aria-busy=move || call.pending.get().then_some("true")
                >
                    "Save"
                </button>
            </td>
        </tr>
    }
}
