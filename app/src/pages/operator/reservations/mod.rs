//! Reservations of everybody, maintenance, and the terms of both.
//!
//! Must not show what runs inside a reservation: that is its tenant's.

pub mod lengths;
pub mod maintenance;
pub mod table;
pub mod terms;

use std::future::Future;

use berth_types::Page as Rows;
use berth_types::nodes::Node;
use berth_types::reservations::{Reservation, ReservationPolicy, ReservationState};
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::{Deserialize, Serialize};

use self::maintenance::MaintenanceForm;
use self::table::{Desk, EndDialog};
use self::terms::TermsForm;
use super::super::limits::replace;
use super::super::more::More;
use super::super::parts::{Call, CallProblem, Loading, every, ready};
use super::is_operator;
use crate::api;
use crate::api::Answer;
use crate::session::Page;
use crate::ui::*;

/// The newest reservations, and all that wait for approval.
#[derive(Clone, Serialize, Deserialize)]
struct Listed {
    newest: Rows<Reservation>,
    pending: Vec<Reservation>,
}

fn list() -> impl Future<Output = Answer<Listed>> + Send + 'static {
    // One that waits may be older than the first page reaches.
    let pending = api::operator_reservations::list(Some(ReservationState::Pending), None);
    let newest = api::operator_reservations::list(None, None);
    async move {
        let pending = pending.await?.items;
        Ok(Listed { newest: newest.await?, pending })
    }
}

/// What the page starts with.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    listed: Listed,
    nodes: Vec<Node>,
    policy: ReservationPolicy,
}

fn load() -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let (listed, nodes) = (list(), api::nodes::operator_list());
    let policy = api::operator_reservations::policy();
    async move {
        let (listed, nodes) = (listed.await?, nodes.await?.items);
        Ok(Loaded { listed, nodes, policy: policy.await? })
    }
}

/// Puts a reservation where it belongs in a list that is newest first, unless the list knows it better.
fn merge(all: &mut Vec<Reservation>, fresh: Reservation) {
    // Ids sort by creation, so the place of a new one is before the first older id.
    match all.iter_mut().find(|known| known.id == fresh.id) {
        Some(known) if known.generation <= fresh.generation => *known = fresh,
        Some(_) => {}
        None => {
            let place = all.iter().position(|known| known.id < fresh.id).unwrap_or(all.len());
            all.insert(place, fresh);
        }
    }
}

/// Takes in what was listed anew.
fn take_in(all: &mut Vec<Reservation>, listed: Listed) {
    // What is known to wait and does not wait any more was answered; how, the newest ones say.
    let waits = |known: &Reservation| listed.pending.iter().any(|fresh| fresh.id == known.id);
    all.retain(|known| known.state != ReservationState::Pending || waits(known));
    for fresh in listed.newest.items.into_iter().chain(listed.pending) {
        merge(all, fresh);
    }
}

/// The page with all reservations.
#[component]
pub fn ReservationsPage() -> impl IntoView {
    if is_operator() { view! { <Everybody/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn Everybody() -> impl IntoView {
    let data: Resource<Answer<Loaded>> = Resource::new(|| (), |()| load());
    view! {
        <Page title="Reservations".to_owned()>
            <Suspense fallback=|| view! { <Loading/> }>
                {move || Suspend::new(async move {
                    match data.await {
                        Err(problem) => view! { <ProblemNotice problem=problem/> }.into_any(),
                        Ok(loaded) => view! { <ReservationsView loaded=loaded/> }.into_any(),
                    }
                })}
            </Suspense>
        </Page>
    }
}

#[component]
fn ReservationsView(loaded: Loaded) -> impl IntoView {
    let Loaded { listed, nodes, policy } = loaded;
    let cursor = RwSignal::new(listed.newest.next_cursor.clone());
    let mut first = Vec::new();
    take_in(&mut first, listed);
    let all = RwSignal::new(first);
    let more = Call::idle();
    let desk = Desk::of(all, ready());
    every(10_000, move || {
        let fresh = list();
        spawn_local(async move {
            // What cannot be fetched now leaves what is shown; the next round tries again.
            if let Ok(fresh) = fresh.await {
                let mut next = all.get_untracked();
                take_in(&mut next, fresh);
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
    let of_state = move |pending: bool| {
        Memo::new(move |_| {
            let fits = |known: &&Reservation| (known.state == ReservationState::Pending) == pending;
            all.with(|all| all.iter().filter(fits).cloned().collect::<Vec<Reservation>>())
        })
    };
    let (waiting, others) = (of_state(true), of_state(false));
    let waiting_section = move || {
        waiting.with(|waiting| {
            (!waiting.is_empty()).then(|| {
                view! {
                    <section class="section">
                        <div class="section__head"><h2>"Waiting for your approval"</h2></div>
                        <p class="quiet">
                            "Their boards are held for them meanwhile. One that nobody approved when it was to begin is over, at no cost."
                        </p>
                        {table::table(waiting, "Reservations that wait for approval", desk)}
                    </section>
                }
            })
        })
    };
    let other_rows = move || {
        others.with(|others| {
            if others.is_empty() {
                empty("Nothing is reserved. What organizations reserve is listed here, and so is the maintenance that you plan below.")
            } else {
                table::table(others, "All reservations", desk)
            }
        })
    };
    view! {
        <CallProblem call=desk.call beside_fields=&[]/>
        {waiting_section}
        <section class="section">
            <div class="section__head"><h2>"All reservations"</h2></div>
            {other_rows}
            <More cursor=cursor call=more load=Callback::new(load_more)/>
        </section>
        <MaintenanceForm nodes=nodes all=all/>
        <TermsForm policy=policy/>
        <EndDialog desk=desk/>
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A reservation with a number of its own; the higher, the newer.
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
    fn an_answered_request_for_approval_waits_no_more() {
        let mut all = Vec::new();
        let old = reservation(1, "pending", 1);
        take_in(&mut all, Listed { newest: page(vec![reservation(3, "active", 2)]), pending: vec![old] });
        assert_eq!(all.len(), 2);
        // Both older than the first page: one was answered elsewhere, and nothing newer is known of it.
        let newest = page(vec![reservation(4, "scheduled", 1), reservation(3, "active", 1)]);
        take_in(&mut all, Listed { newest, pending: vec![reservation(2, "pending", 1)] });
        let id = |number: u32| format!("res_{number:0>26}");
        assert_eq!(states(&all), [(id(4), "scheduled"), (id(3), "active"), (id(2), "pending")]);
        assert_eq!(all[1].generation, 2, "older news changes nothing");
    }
}
