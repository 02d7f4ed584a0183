//! Page of the reservations: calendar, form with quote, and list. Prices and free capacity come from the portal.

mod booking;
mod calendar;
mod calendar_state;
mod change;
mod choice;
mod clock;
mod columns;
mod detail;
mod draft;
mod form;
mod grid;
mod list;
mod live;
mod quote;
mod steps;
mod table;
mod text;
mod zone;

pub use detail::ReservationPage;

use std::future::Future;

use berth_types::ids::OrgId;
use berth_types::nodes::Node;
use berth_types::offerings::Offering;
use berth_types::reservations::{CalendarRow, Reservation};
use futures::try_join;
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use self::booking::Booking;
use self::calendar::Schedule;
use self::choice::{Choice, first_window};
use self::form::Form;
use self::list::List;
use super::org_data::org_view;
use super::parts::{every_visible, now_ms, ready};
use crate::address::org_link;
use crate::api;
use crate::api::Answer;
use crate::session::Page;

/// The number of reservations in an answer.
const PAGE: u32 = 50;

/// A board as a row of the calendar.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Board {
    uuid: String,
    /// `quay-1 · GPU 0 · H100-80GB`.
    label: String,
    node: String,
    /// The number of memory slices.
    cells: u32,
}

fn board(node: &str, index: u32, model: &str, uuid: &str, cells: u32) -> Board {
    Board {
        uuid: uuid.to_owned(),
        label: format!("{node} · GPU {index} · {model}"),
        node: node.to_owned(),
        cells: cells.max(1),
    }
}

/// Returns the boards in the order of the calendar, so that rows keep their place when it arrives.
fn node_boards(nodes: &[Node]) -> Vec<Board> {
    let mut nodes: Vec<&Node> = nodes.iter().collect();
    nodes.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
    let sorted_boards = |node: &&Node| {
        let mut gpus: Vec<_> = node.gpus.iter().collect();
        gpus.sort_by_key(|gpu| gpu.index);
        let name = node.name.clone();
        gpus.into_iter()
            .map(move |gpu| board(&name, gpu.index, &gpu.model, &gpu.uuid, gpu.cells))
            .collect::<Vec<_>>()
    };
    nodes.iter().flat_map(sorted_boards).collect()
}

fn row_boards(rows: &[CalendarRow]) -> Vec<Board> {
    rows.iter()
        .map(|row| board(&row.node_name, row.gpu_index, &row.model, &row.gpu_uuid, row.cells))
        .collect()
}

/// The first data of the page. The calendar loads in the browser, because the server has no local date.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    org: OrgId,
    boards: Vec<Board>,
    offerings: Vec<Offering>,
    reservations: Vec<Reservation>,
    cursor: Option<String>,
}

fn load(org: OrgId) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let nodes = api::nodes::list(org);
    let offerings = api::money::offerings();
    let reservations = api::reservations::list(org, None, None, PAGE);
    async move {
        let (nodes, offerings, page) = try_join!(nodes, offerings, reservations)?;
        let (boards, offerings) = (node_boards(&nodes.items), offerings.items);
        Ok(Loaded { org, boards, offerings, reservations: page.items, cursor: page.next_cursor })
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
    let Loaded { org, boards, offerings, reservations, cursor } = loaded;
    let ready = ready();
    let zone = RwSignal::new(zone::Zone::Utc);
    let choice = Choice::none(zone);
    // The Unix time in milliseconds; 0 before hydration.
    let now = RwSignal::new(0_i64);
    Effect::new(move || {
        zone.set(zone::stored());
        choice.set(first_window(now_ms()));
        now.set(now_ms());
    });
    every_visible(15_000, move || now.set(now_ms()));
    let form = Form::new(&offerings, choice);
    let orderable = offerings.iter().any(|offering| offering.price.version > 0);
    let booking = if orderable {
        view! { <Booking org=org offerings=offerings form=form ready=ready/> }.into_any()
    } else {
        view! { <NoPrices/> }.into_any()
    };
    view! {
        <Schedule org=org boards=boards choice=choice now=now ready=ready/>
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boards_have_the_order_of_the_calendar() {
        let gpu = |index: u32| {
            serde_json::json!({
                "uuid": format!("GPU-{index}"), "index": index, "model": "A30", "memory_mib": 1, "cells": 4,
                "blocked_cells": [], "mig_enabled": false, "tiles": [],
            })
        };
        let node = |name: &str, number: u32| -> Node {
            serde_json::from_value(serde_json::json!({
                "id": format!("node_{number:0>26}"), "name": name, "state": "ready", "simulated": true,
                "unisolated": false, "driver_version": "1", "worker_version": "1", "gpus": [gpu(1), gpu(0)],
            }))
            .unwrap()
        };
        let row = |name: &str, number: u32, index: u32| -> CalendarRow {
            serde_json::from_value(serde_json::json!({
                "node": format!("node_{number:0>26}"), "node_name": name, "gpu_uuid": format!("GPU-{index}"),
                "gpu_index": index, "model": "A30", "cells": 4, "spans": [],
            }))
            .unwrap()
        };
        let nodes = [node("quay-2", 1), node("quay-1", 2)];
        let rows = [row("quay-1", 2, 0), row("quay-1", 2, 1), row("quay-2", 1, 0), row("quay-2", 1, 1)];
        assert_eq!(node_boards(&nodes), row_boards(&rows));
        assert_eq!(row_boards(&rows).first().map(|b| b.label.as_str()), Some("quay-1 · GPU 0 · A30"));
    }
}
