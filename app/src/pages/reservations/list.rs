//! List of the reservations of an organization, newest first.

use berth_types::ids::OrgId;
use berth_types::money::{column_decimals, column_text};
use berth_types::reservations::Reservation;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::PAGE;
use super::form::Form;
use super::text::{cell_counts, devices_text, length_text, used_text};
use crate::address::org_link;
use crate::api;
use crate::pages::curl::ListCurl;
use crate::pages::load_more::{LoadMore, merge_newest};
use crate::pages::parts::{Call, every_visible};
use crate::pages::rows::{bar_text, board_cells, own_tile};
use crate::pages::text::counted;
use crate::ui::*;

/// Milliseconds between two requests.
const REFRESH_MS: u64 = 15_000;
/// The number of cells of a bar.
const PARTS: u32 = 20;

/// Inserts or updates a reservation in a list, newest first. A reservation with an older generation is ignored.
fn merge(known: &mut Vec<Reservation>, fresh: Reservation) {
    // Ids sort by creation.
    merge_newest(known, fresh, |one| one.id, |one| one.generation);
}

/// The list or its empty state.
#[component]
pub fn List(
    /// The organization.
    org: OrgId,
    /// The first page.
    first: Vec<Reservation>,
    /// The cursor of the next page.
    cursor: Option<String>,
    /// The form, with the curl command of the empty state.
    form: Form,
) -> impl IntoView {
    let all = RwSignal::new(first);
    let cursor = RwSignal::new(cursor);
    let more = Call::idle();
    every_visible(REFRESH_MS, move || {
        spawn_local(async move {
            // The next round repeats a failed request.
            if let Ok(fresh) = api::reservations::list(org, None, None, PAGE).await {
                all.maybe_update(|all| {
                    let before = all.clone();
                    fresh.items.into_iter().for_each(|one| merge(all, one));
                    *all != before
                });
            }
        });
    });
    let load_more = move |()| {
        let next = api::reservations::list(org, None, cursor.get_untracked(), PAGE);
        more.run(next, move |page: berth_types::Page<Reservation>| {
            all.update(|all| page.items.into_iter().for_each(|one| merge(all, one)));
            cursor.set(page.next_cursor);
        });
    };
    let none = Memo::new(move |_| all.with(Vec::is_empty));
    let line = form.curl(org);
    view! {
        <section class="section" aria-labelledby="reservations-title">
            <div class="section__head">
                <h2 id="reservations-title">"Your reservations"</h2>
                <div class="section__aside">{move || count_text(all.with(Vec::len), cursor.get().is_some())}</div>
            </div>
            {move || {
                if none.get() {
                    view! {
                        <div class="empty">
                            <p class="empty__text">
                                "No reservations yet. Choose a time above to see the price, the terms and conflicts."
                            </p>
                            <CopyBlock text=line label="Quote with curl".to_owned()/>
                        </div>
                    }
                        .into_any()
                } else {
                    table(&all.get())
                }
            }}
            <LoadMore cursor=cursor call=more load=Callback::new(load_more)/>
            <ListCurl path=Signal::derive(move || format!("/orgs/{org}/reservations")) label="Reservations with curl"/>
        </section>
    }
}

fn count_text(count: usize, more: bool) -> String {
    match (count, more) {
        (0, _) => String::new(),
        (_, true) => format!("newest {}", counted(count, "reservation", "reservations")),
        (_, false) => counted(count, "reservation", "reservations"),
    }
}

fn table(all: &[Reservation]) -> AnyView {
    let decimals = column_decimals(all.iter().map(cost_micros));
    let rows: Vec<AnyView> = all.iter().map(|one| row(one, decimals)).collect();
    table_of(
        "Reservations",
        &[("Reservation", ""), STATE, ("Time", ""), ("Devices", ""), ("Used", ""), ("Cost", "num")],
        rows,
    )
}

/// The charges of an ended reservation, whose rest is released; the price of any other.
fn cost_micros(one: &Reservation) -> i64 {
    if one.state.holds() { one.total_micros } else { one.posted_micros }
}

fn row(one: &Reservation, decimals: usize) -> AnyView {
    let path = org_link(&format!("/reservations/{}", one.id));
    let name = one.name.clone();
    let devices = devices_text(&one.offering, one.nodes, one.gpus_per_node);
    let length = length_text(one.ends_at.millis_since(one.starts_at) / 1_000);
    let cost = column_text(cost_micros(one), &one.currency, decimals);
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">
                <a href=path>{name}</a>
                <span class="table__sub mono">{devices}</span>
            </th>
            <td role="cell" class="table__state" data-label="State"><ReservationBadge state=one.state/></td>
            <td role="cell" data-label="Time">
                <span class="nowrap"><When at=one.starts_at/></span>
                <span class="table__sub nowrap">"to " <When at=one.ends_at/> ", " {length}</span>
            </td>
            {devices_cell(one)}
            {used_cell(one)}
            <td role="cell" class="num" data-label="Cost">{cost}</td>
        </tr>
    }
    .into_any()
}

/// Returns the first board as a small bar with the number of further boards.
fn devices_cell(one: &Reservation) -> AnyView {
    let Some(device) = one.devices.first() else {
        return view! { <td role="cell" data-label="Devices"></td> }.into_any();
    };
    let label = bar_text(device, &one.name);
    let tiles = vec![own_tile(device, &one.name, String::new())];
    let cells = board_cells(device);
    let mut place = format!("{} / {}", device.node_name, device.gpu_index);
    if one.devices.len() > 1 {
        place = format!("{place} and {} more", one.devices.len() - 1);
    }
    view! {
        <td role="cell" data-label="Devices">
            <span class="row">
                <BerthBar
                    tiles=tiles
                    cells=cells
                    size=BarSize::Inline
                    label=label
                />
                <span class="quiet nowrap">{place}</span>
            </span>
        </td>
    }
    .into_any()
}

/// Returns the used part of the elapsed time as a bar.
fn used_cell(one: &Reservation) -> AnyView {
    let text = used_text(one);
    let idle = one.elapsed_device_ms.saturating_sub(one.used_device_ms).max(0);
    let parts = cell_counts(&[one.used_device_ms, idle], PARTS);
    let used = parts.first().copied().unwrap_or(0);
    let tile = BarTile {
        start: 0,
        size: used,
        label: String::new(),
        meta: String::new(),
        hue: 1,
        pattern: "plain".to_owned(),
        own: true,
        foreign: false,
        level: 0,
        aria: text.clone(),
    };
    let tiles = if used > 0 { vec![tile] } else { Vec::new() };
    let label = text.clone();
    view! {
        <td role="cell" data-label="Used">
            <span class="row">
                <BerthBar
                    tiles=tiles
                    cells=PARTS
                    undivided=true
                    size=BarSize::Inline
                    label=label
                />
                <span class="quiet nowrap num">{text}</span>
            </span>
        </td>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(number: u32, generation: i64) -> Reservation {
        serde_json::from_value(serde_json::json!({
            "id": format!("res_{number:0>26}"), "kind": "reservation", "name": "n", "state": "scheduled",
            "nodes": 1, "gpus_per_node": 1, "topology": "any", "starts_at": "2026-11-22T09:00:00Z",
            "ends_at": "2026-11-22T11:00:00Z", "degraded_milli": 0, "devices": [], "nano_per_second": 1,
            "price_version": 1, "currency": "USD", "total_micros": 1, "held_micros": 1, "posted_micros": 0,
            "credited_micros": 0, "elapsed_device_ms": 0, "used_device_ms": 0, "cancel_fee_micros": 0,
            "created_at": "2026-11-20T09:00:00Z", "created_by": "a", "generation": generation,
            "policy": berth_types::reservations::ReservationPolicy::default(),
        }))
        .unwrap()
    }

    #[test]
    fn newer_reservations_come_first_and_older_generations_are_ignored() {
        let mut all = vec![one(3, 1), one(1, 1)];
        for (number, generation) in [(2, 1), (4, 1), (3, 5), (3, 2)] {
            merge(&mut all, one(number, generation));
        }
        let merged: Vec<_> = all.iter().map(|one| (one.id.to_string(), one.generation)).collect();
        let expected: Vec<_> =
            [(4, 1), (3, 5), (2, 1), (1, 1)].map(|(n, g)| (format!("res_{n:0>26}"), g)).into();
        assert_eq!(merged, expected);
    }

    #[test]
    fn the_count_tells_about_further_pages() {
        assert_eq!(count_text(0, false), "");
        assert_eq!(count_text(1, false), "1 reservation");
        assert_eq!(count_text(50, true), "newest 50 reservations");
    }
}
