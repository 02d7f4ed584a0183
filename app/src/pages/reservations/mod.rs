//! Page of the reservations: capacity, form with quote, and list. Prices and free capacity come from the portal.

mod board_calendar;
mod boards_state;
mod booking;
mod calendar;
mod calendar_state;
mod capacity;
mod capacity_state;
mod change;
mod choice;
mod clock;
mod columns;
mod detail;
mod draft;
mod drawing;
mod form;
mod grid;
mod list;
mod live;
mod quote;
mod rows;
mod steps;
mod table;
mod text;
mod zone;

pub use detail::ReservationPage;

use std::future::Future;

use berth_types::ids::OrgId;
use berth_types::offerings::Offering;
use berth_types::reservations::Reservation;
use futures::try_join;
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use self::booking::Booking;
use self::calendar::Schedule;
use self::capacity::{ModelRow, free_now, model_rows};
use self::choice::{Choice, first_window};
use self::form::Form;
use self::list::List;
use super::org_data::org_view;
use super::parts::{every_visible, now_ms, ready};
use crate::address::org_link;
use crate::api;
use crate::api::Answer;
use crate::session::Page;
use crate::ui::use_zone;

/// The number of reservations in an answer.
const PAGE: u32 = 50;

/// The first data of the page. The columns load in the browser, because the server has no local date.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    org: OrgId,
    models: Vec<ModelRow>,
    /// The free boards of each model.
    free: Vec<(String, u32)>,
    offerings: Vec<Offering>,
    reservations: Vec<Reservation>,
    cursor: Option<String>,
}

fn load(org: OrgId) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let capacity = api::reservations::capacity(org, None);
    let offerings = api::money::org_offerings(org);
    let reservations = api::reservations::list(org, None, None, PAGE);
    async move {
        let (capacity, offerings, page) = try_join!(capacity, offerings, reservations)?;
        let (models, free) = (model_rows(&capacity.models), free_now(&capacity.models));
        let offerings = offerings.items;
        Ok(Loaded { org, models, free, offerings, reservations: page.items, cursor: page.next_cursor })
    }
}

/// The page of calendar, form and list.
#[component]
pub fn ReservationsPage() -> impl IntoView {
    view! {
        <Page title="Reservations".to_owned()>
            <p class="page__lead">
                "Reserve boards for a time window at a fixed price."
            </p>
            {org_view(load, |loaded: Loaded| view! { <ReservationsView loaded=loaded/> }.into_any())}
        </Page>
    }
}

/// Calendar, form and list with a common time choice.
#[component]
fn ReservationsView(loaded: Loaded) -> impl IntoView {
    let Loaded { org, models, free, offerings, reservations, cursor } = loaded;
    let ready = ready();
    let choice = Choice::new(use_zone());
    // The Unix time in milliseconds; 0 before hydration.
    let now = RwSignal::new(0_i64);
    Effect::new(move || {
        choice.set(first_window(now_ms()));
        now.set(now_ms());
    });
    every_visible(15_000, move || now.set(now_ms()));
    let form = Form::new(&offerings, choice);
    let booking = if form.orderable {
        view! { <Booking org=org offerings=offerings form=form ready=ready/> }.into_any()
    } else {
        view! { <NoPrices/> }.into_any()
    };
    view! {
        <Schedule org=org models=models free=free form=form now=now ready=ready/>
        {booking}
        <List org=org first=reservations cursor=cursor form=form/>
    }
}

#[component]
fn NoPrices() -> impl IntoView {
    view! {
        <div class="empty">
            <p class="empty__text">
                "No offering has a price yet. Offerings appear here after the operator adds nodes and sets prices."
            </p>
            <a class="btn" href=org_link("/cluster")>"Open cluster"</a>
        </div>
    }
}
