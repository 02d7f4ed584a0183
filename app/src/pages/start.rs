//! Start page for visitors without a session: the service in plain words and, if public, prices and free boards.

use berth_types::accounts::PortalInfo;
use berth_types::money::money_text;
use berth_types::portal::{Offer, OfferedModel, PortalIdentity};
use leptos::prelude::*;
use leptos::task::spawn_local;
use leptos_meta::Title;

use super::org_address::OrgRedirect;
use super::parts::{Brand, every_visible, when_some};
use super::text::{free_devices_text, gib, grouped};
use crate::api;
use crate::api::Answer;
use crate::identity::use_identity;
use crate::session::Session;
use crate::ui::*;

/// The time between two requests for the offer.
const REFRESH_MS: u64 = 30_000;

/// The page at `/`: the start page without a session, otherwise a redirect to the home page.
#[component]
pub fn RootPage() -> impl IntoView {
    match use_context::<Session>() {
        None => view! { <StartPage/> }.into_any(),
        Some(_) => view! { <OrgRedirect/> }.into_any(),
    }
}

/// The page at `/` without a session.
#[component]
fn StartPage() -> impl IntoView {
    let identity = use_identity();
    let public = identity.offer_public;
    let info: Resource<Answer<PortalInfo>> = Resource::new(|| (), |()| api::accounts::info());
    let offer: Resource<Answer<Option<Offer>>> =
        Resource::new(|| (), move |()| when_some(public.then(api::portal::offer)));
    view! {
        <Title text=identity.name.clone()/>
        <main class="start" id="main">
            <header class="start__head"><Brand/><a class="btn" href="/sign-in">"Sign in"</a></header>
            <div class="start__lead">
                <h1>"GPUs for your jobs"</h1>
                <p>
                    "Run programs and containers on whole GPUs or on a part of a GPU. Prepaid credit pays for the run time, counted in milliseconds."
                </p>
                <Suspense fallback=|| ()>
                    {move || suspended(async move {
                        let sign_up_open = info.await.is_ok_and(|info| info.sign_up_open);
                        move || ways_in(sign_up_open)
                    })}
                </Suspense>
            </div>
            <Suspense fallback=|| ()>
                {move || suspended(async move {
                    let offer = offer.await;
                    move || match offer {
                        Ok(Some(offer)) => view! { <OfferView offer=offer/> }.into_any(),
                        Ok(None) => ().into_any(),
                        // A part of the page: the rest works without it.
                        Err(_) => {
                            view! { <p class="quiet">"The prices do not load now. Reload the page in a minute."</p> }
                                .into_any()
                        }
                    }
                })}
            </Suspense>
            <Facts/>
            {foot(&identity)}
        </main>
    }
}

/// Returns the links to the sign-in and the sign-up.
fn ways_in(sign_up_open: bool) -> AnyView {
    if sign_up_open {
        view! {
            <p class="start__actions">
                <a class="btn btn--primary" href="/sign-up">"Sign up"</a>
                <span class="quiet">"A new organization with you as its owner."</span>
            </p>
        }
        .into_any()
    } else {
        view! {
            <p class="start__actions quiet">
                "Ask the operator for an account, or an owner of your organization for an invitation."
            </p>
        }
        .into_any()
    }
}

/// The service in four short facts.
#[component]
fn Facts() -> impl IntoView {
    view! {
        <section class="section" aria-labelledby="start-facts">
            <h2 id="start-facts">"The service in short"</h2>
            <dl class="start__facts">
                <div>
                    <dt>"Jobs"</dt>
                    <dd>"A command, a script or a container image, with live logs and metrics. You see why a job waits."</dd>
                </div>
                <div>
                    <dt>"Parts of a GPU"</dt>
                    <dd>"A MIG slice or a share costs less than a whole board. Jobs with several boards can span nodes."</dd>
                </div>
                <div>
                    <dt>"Cost"</dt>
                    <dd>"The price is fixed at the submission. Limits and budgets stop the spending where you set them."</dd>
                </div>
                <div>
                    <dt>"Reservations"</dt>
                    <dd>"Boards for a time window at a quoted price."</dd>
                </div>
            </dl>
        </section>
    }
}

/// The prices with the free boards, refreshed.
#[component]
fn OfferView(offer: Offer) -> impl IntoView {
    let offer = RwSignal::new(offer);
    every_visible(REFRESH_MS, move || {
        let fresh = api::portal::offer();
        spawn_local(async move {
            // The next round repeats a failed request.
            if let Ok(fresh) = fresh.await {
                let _ = offer.try_set(fresh);
            }
        });
    });
    view! {
        <section class="section" aria-labelledby="start-prices">
            <h2 id="start-prices">"Prices and free boards"</h2>
            {move || offer.with(table)}
        </section>
    }
}

fn table(offer: &Offer) -> AnyView {
    if offer.models.is_empty() {
        return empty("No boards yet.");
    }
    let rows = offer.models.iter().map(|model| row(model, &offer.currency)).collect();
    table_of(
        "Prices and free boards by model",
        &[
            ("Board", ""),
            ("Memory", "num"),
            ("Whole board", "num"),
            ("Slices from", "num"),
            ("Free boards", "num"),
        ],
        rows,
    )
}

/// Returns a price an hour, or a dash without one.
fn hourly(micros: Option<i64>, currency: &str) -> AnyView {
    match micros {
        Some(micros) => view! { {money_text(micros, currency)}<span class="unit">"/h"</span> }.into_any(),
        None => "–".into_any(),
    }
}

/// Returns the free boards of all; free slices where no whole board is in service.
fn free_boards(model: &OfferedModel) -> AnyView {
    if model.capacity == 0 {
        let slices =
            model.slice_profile.as_deref().map(|profile| (u64::from(model.available_slices), profile));
        return free_devices_text(0, slices).into_any();
    }
    let (available, capacity) = (grouped(model.available.into()), grouped(model.capacity.into()));
    view! { {available}<span class="unit">{format!(" of {capacity}")}</span> }.into_any()
}

fn row(model: &OfferedModel, currency: &str) -> AnyView {
    let name = model.gpu_model.clone();
    let simulated =
        model.simulated.then(|| view! { " " <span class="tag tag--simulated">"simulated"</span> });
    let free = free_boards(model);
    // Without a whole board there is nothing to buy at its price.
    let board_price = model.per_hour_micros.filter(|_| model.capacity > 0 || model.slice_profile.is_none());
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name}{simulated}</th>
            <td role="cell" class="num" data-label="Memory">{gib(model.memory_mib)}<span class="unit">" GiB"</span></td>
            <td role="cell" class="num" data-label="Whole board">{hourly(board_price, currency)}</td>
            <td role="cell" class="num" data-label="Slices from">
                {hourly(model.slice_per_hour_micros, currency)}
            </td>
            <td role="cell" class="num" data-label="Free boards">{free}</td>
        </tr>
    }
    .into_any()
}

/// Returns the operator's name with the addresses for support, terms and the API.
fn foot(identity: &PortalIdentity) -> AnyView {
    let support = identity.support_email.clone().map(|email| {
        let link = format!("mailto:{email}");
        view! { <li>"Support: " <a href=link>{email}</a></li> }
    });
    let terms = identity.terms_url.clone().map(|url| {
        view! { <li><a href=url rel="noreferrer">"Terms of use"</a></li> }
    });
    let name = identity.name.clone();
    let operator = (name != PortalIdentity::default().name).then(|| {
        view! { <li>{format!("Operated by {name}")}</li> }
    });
    view! {
        <footer class="start__foot">
            <ul role="list">
                {operator}
                {support}
                {terms}
                // The portal serves these pages outside of the app.
                <li><a href="/docs" rel="external">"Documentation"</a></li>
                <li><a href="/api/docs" rel="external">"API reference"</a></li>
            </ul>
        </footer>
    }
    .into_any()
}
