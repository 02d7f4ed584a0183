//! Reservations: the calendar of all boards, booking a time beside its price, and what was booked.
//!
//! Must not compute a price or decide what is free: the portal quotes both.

mod booking;
mod calendar;
mod change;
mod choice;
mod clock;
mod columns;
mod detail;
mod draft;
mod grid;
mod list;
mod quote;
mod steps;
mod twin;
mod words;
mod zone;

pub use detail::ReservationPage;

use std::future::Future;

use berth_types::ids::OrgId;
use berth_types::nodes::Node;
use berth_types::offerings::Offering;
use berth_types::reservations::{CalendarRow, Reservation};
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use self::booking::{Booking, Form};
use self::calendar::Schedule;
use self::choice::{Choice, first_window};
use self::list::List;
use super::of_org::of_org;
use super::parts::{every, now_ms, ready};
use crate::api;
use crate::api::Answer;
use crate::session::Page;

/// Reservations in one answer.
const PAGE: u32 = 50;

/// A row of the calendar.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Board {
    uuid: String,
    /// `quay-1 · GPU 0 · H100-80GB`.
    label: String,
    node: String,
    /// Memory slices.
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

/// The boards as the calendar will have them, known before it is asked: so their rows have their place.
fn boards_of_nodes(nodes: &[Node]) -> Vec<Board> {
    let mut nodes: Vec<&Node> = nodes.iter().collect();
    nodes.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
    let of_node = |node: &&Node| {
        let mut gpus: Vec<_> = node.gpus.iter().collect();
        gpus.sort_by_key(|gpu| gpu.index);
        let name = node.name.clone();
        gpus.into_iter()
            .map(move |gpu| board(&name, gpu.index, &gpu.model, &gpu.uuid, gpu.cells))
            .collect::<Vec<_>>()
    };
    nodes.iter().flat_map(of_node).collect()
}

fn boards_of_rows(rows: &[CalendarRow]) -> Vec<Board> {
    rows.iter()
        .map(|row| board(&row.node_name, row.gpu_index, &row.model, &row.gpu_uuid, row.cells))
        .collect()
}

/// What the page starts with. The calendar itself is asked for in the browser, which alone knows what
/// today is.
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
        let boards = boards_of_nodes(&nodes.await?.items);
        let offerings = offerings.await?.items;
        let page = reservations.await?;
        Ok(Loaded { org, boards, offerings, reservations: page.items, cursor: page.next_cursor })
    }
}

/// The page with calendar, form and list.
#[component]
pub fn ReservationsPage() -> impl IntoView {
    view! {
        <Page title="Reservations".to_owned()>
            <p class="page__lead">
                "Reserve boards for a time to come: at a price that is fixed before, with a place that nobody else gets."
            </p>
            {of_org(load, |loaded: Loaded| view! { <Desk loaded=loaded/> }.into_any())}
        </Page>
    }
}

/// Calendar, form and list, around one choice of a time.
#[component]
fn Desk(loaded: Loaded) -> impl IntoView {
    let Loaded { org, boards, offerings, reservations, cursor } = loaded;
    let ready = ready();
    let zone = RwSignal::new(zone::Zone::Utc);
    let choice = Choice::none(zone);
    // Milliseconds since the epoch; 0 until the page is alive.
    let now = RwSignal::new(0_i64);
    Effect::new(move || {
        zone.set(zone::chosen());
        choice.set(first_window(now_ms()));
        now.set(now_ms());
    });
    every(15_000, move || now.set(now_ms()));
    let form = Form::new(&offerings, choice);
    let orderable = offerings.iter().any(|offering| offering.price.version > 0);
    let booking = if orderable {
        view! { <Booking org=org offerings=offerings form=form ready=ready/> }.into_any()
    } else {
        view! { <NothingToReserve/> }.into_any()
    };
    view! {
        <Schedule org=org boards=boards choice=choice now=now ready=ready/>
        {booking}
        <List org=org first=reservations cursor=cursor form=form/>
    }
}

#[component]
fn NothingToReserve() -> impl IntoView {
    view! {
        <div class="empty">
            <p class="empty__text">
                "There is nothing to reserve yet: no offering has a price. Once a node with a GPU has joined and its operator has set one, it can be chosen here."
            </p>
            <a class="btn" href="/cluster">"Open the cluster"</a>
        </div>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_their_place_before_the_calendar_comes() {
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
        assert_eq!(boards_of_nodes(&nodes), boards_of_rows(&rows));
        assert_eq!(boards_of_rows(&rows).first().map(|b| b.label.as_str()), Some("quay-1 · GPU 0 · A30"));
    }
}
