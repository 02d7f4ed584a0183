//! Page of the reservations of all organizations, the maintenance and the reservation terms. Jobs in a
//! reservation are not shown.

pub mod lengths;
pub mod maintenance;
pub mod table;
pub mod terms;

use std::future::Future;

use berth_types::Page as Rows;
use berth_types::nodes::Node;
use berth_types::operators::OperatorRight;
use berth_types::reservations::{Reservation, ReservationPolicy, ReservationState};
use futures::try_join;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::{Deserialize, Serialize};

use self::maintenance::MaintenanceForm;
use self::table::{EndDialog, TableState};
use self::terms::TermsForm;
use super::super::curl::ListCurl;
use super::super::limits::replace;
use super::super::load_more::{LoadMore, merge_newest};
use super::super::org_data::answer_view;
use super::super::parts::{Call, CallProblem, every_visible, ready};
use super::{guarded, is_operator};
use crate::api;
use crate::api::Answer;
use crate::session::Page;
use crate::ui::*;

/// The newest reservations and all pending ones.
#[derive(Clone, Serialize, Deserialize)]
struct ReservationLists {
    newest: Rows<Reservation>,
    pending: Vec<Reservation>,
}

fn list() -> impl Future<Output = Answer<ReservationLists>> + Send + 'static {
    // A pending reservation may be older than the first page.
    let pending = api::operator_reservations::list(Some(ReservationState::Pending), None);
    let newest = api::operator_reservations::list(None, None);
    async move {
        let (pending, newest) = try_join!(pending, newest)?;
        Ok(ReservationLists { newest, pending: pending.items })
    }
}

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    lists: ReservationLists,
    nodes: Vec<Node>,
    policy: ReservationPolicy,
}

fn load() -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let (lists, nodes) = (list(), api::nodes::operator_list());
    let policy = api::operator_reservations::policy();
    async move {
        let (lists, nodes, policy) = try_join!(lists, nodes, policy)?;
        let mut nodes = nodes.items;
        // A node without an approval has no boards for jobs.
        nodes.retain(|node| node.awaiting_approval.is_none());
        Ok(Loaded { lists, nodes, policy })
    }
}

/// Inserts or updates a reservation in a list, newest first. A reservation with an older generation is ignored.
fn merge(all: &mut Vec<Reservation>, fresh: Reservation) {
    // Ids sort by creation.
    merge_newest(all, fresh, |one| one.id, |one| one.generation);
}

/// Merges new lists.
fn merge_lists(all: &mut Vec<Reservation>, lists: ReservationLists) {
    // A reservation that is no longer pending was decided.
    let is_pending = |known: &Reservation| lists.pending.iter().any(|fresh| fresh.id == known.id);
    all.retain(|known| known.state != ReservationState::Pending || is_pending(known));
    for fresh in lists.newest.items.into_iter().chain(lists.pending) {
        merge(all, fresh);
    }
}

/// The page of all reservations.
#[component]
pub fn ReservationsPage() -> impl IntoView {
    if is_operator() { view! { <AllReservations/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn AllReservations() -> impl IntoView {
    let data: Resource<Answer<Loaded>> = Resource::new(|| (), |()| load());
    view! {
        <Page title="Reservations".to_owned()>
            {answer_view(data, |loaded| view! { <ReservationsView loaded=loaded/> }.into_any())}
        </Page>
    }
}

#[component]
fn ReservationsView(loaded: Loaded) -> impl IntoView {
    let Loaded { lists, nodes, policy } = loaded;
    let cursor = RwSignal::new(lists.newest.next_cursor.clone());
    let mut first = Vec::new();
    merge_lists(&mut first, lists);
    let all = RwSignal::new(first);
    let more = Call::idle();
    let state = TableState::new(all, ready());
    every_visible(10_000, move || {
        let fresh = list();
        spawn_local(async move {
            // The next round repeats a failed request.
            if let Ok(fresh) = fresh.await {
                let Some(mut next) = all.try_get_untracked() else { return };
                merge_lists(&mut next, fresh);
                replace(all, next);
            }
        });
    });
    let load_more = move |()| {
        let next = api::operator_reservations::list(None, cursor.get_untracked());
        more.run(next, move |page: Rows<Reservation>| {
            all.update(|all| page.items.into_iter().for_each(|fresh| merge(all, fresh)));
            cursor.set(page.next_cursor);
        });
    };
    let by_pending = move |pending: bool| {
        Memo::new(move |_| {
            let matches = |known: &&Reservation| (known.state == ReservationState::Pending) == pending;
            all.with(|all| all.iter().filter(matches).cloned().collect::<Vec<Reservation>>())
        })
    };
    let (pending, others) = (by_pending(true), by_pending(false));
    let pending_section = move || {
        pending.with(|pending| {
            (!pending.is_empty()).then(|| {
                view! {
                    <section class="section">
                        <div class="section__head"><h2>"Pending approval"</h2></div>
                        <p class="quiet">
                            "The boards are held until your decision. Without approval before its start, a reservation expires free of charge."
                        </p>
                        {table::table(pending, "Reservations pending approval", state)}
                    </section>
                }
            })
        })
    };
    let other_rows = move || {
        others.with(|others| {
            if others.is_empty() {
                empty(
                    "No reservations yet. Reservations of organizations and planned maintenance appear here.",
                )
            } else {
                table::table(others, "All reservations", state)
            }
        })
    };
    view! {
        <CallProblem call=state.call beside_fields=&[]/>
        {pending_section}
        <section class="section">
            <div class="section__head"><h2>"All reservations"</h2></div>
            {other_rows}
            <LoadMore cursor=cursor call=more load=Callback::new(load_more)/>
            <ListCurl path="/operator/reservations" label="Reservations with curl"/>
        </section>
        {guarded(OperatorRight::ManageFleet, view! { <MaintenanceForm nodes=nodes all=all/> }.into_any())}
        {guarded(OperatorRight::ManageMoney, view! { <TermsForm policy=policy/> }.into_any())}
        <EndDialog state=state/>
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a reservation; a higher number is newer.
    pub fn reservation(number: u32, state: &str, generation: i64) -> Reservation {
        let device = |node: &str| {
            serde_json::json!({
                "node": "node_00000000000000000000000001", "node_name": node, "gpu_uuid": "GPU", "gpu_index": 0,
                "cells": 8,
            })
        };
        serde_json::from_value(serde_json::json!({
            "id": format!("res_{number:0>26}"), "kind": "reservation", "name": "night training", "state": state,
            "org_name": "Kelda Lab", "offering": "h100-80gb", "nodes": 2, "gpus_per_node": 4, "topology": "any",
            "starts_at": "2026-03-01T09:00:00Z", "ends_at": "2026-03-01T11:00:00Z", "degraded_milli": 0,
            "devices": [device("pier-01"), device("pier-01"), device("pier-02")], "nano_per_second": 1,
            "price_version": 1, "currency": "USD", "total_micros": 48_200_000, "held_micros": 0, "posted_micros": 0,
            "credited_micros": 0, "elapsed_device_ms": 0, "used_device_ms": 0, "cancel_fee_micros": 0,
            "created_at": "2026-03-01T08:00:00Z", "created_by": "Ada", "generation": generation,
            "policy": ReservationPolicy::default(),
        }))
        .unwrap()
    }

    fn states(all: &[Reservation]) -> Vec<(String, &'static str)> {
        all.iter().map(|known| (known.id.to_string(), known.state.name())).collect()
    }

    fn page(items: Vec<Reservation>) -> Rows<Reservation> {
        Rows { items, next_cursor: None }
    }

    #[test]
    fn a_decided_reservation_is_no_longer_pending() {
        let mut all = Vec::new();
        let old = reservation(1, "pending", 1);
        let newest = page(vec![reservation(3, "active", 2)]);
        merge_lists(&mut all, ReservationLists { newest, pending: vec![old] });
        assert_eq!(all.len(), 2);
        // The old one was decided and is not on the first page.
        let newest = page(vec![reservation(4, "scheduled", 1), reservation(3, "active", 1)]);
        merge_lists(&mut all, ReservationLists { newest, pending: vec![reservation(2, "pending", 1)] });
        let id = |number: u32| format!("res_{number:0>26}");
        assert_eq!(states(&all), [(id(4), "scheduled"), (id(3), "active"), (id(2), "pending")]);
        assert_eq!(all[1].generation, 2, "an older generation is ignored");
    }
}
