//! Details of one board beside the map or the table: its slices, its jobs and its readings.

use berth_types::cluster::{Board, BoardState};
use berth_types::ids::OrgId;
use berth_types::nodes::{Gpu, TileOwner};
use berth_types::problems::Problem;
use leptos::html::Div;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::super::limits::replace;
use super::super::parts::{every_visible, focus_first};
use super::super::text::gib;
use super::text::{board_name, free_text, readings, state_text};
use crate::address::org_link;
use crate::api;
use crate::ui::*;

/// Milliseconds between two requests.
pub const REFRESH_MS: u64 = 3_000;

/// The open board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenBoard {
    /// The UUID of the board.
    pub uuid: String,
    /// The id of the element that gets the focus after the close.
    pub from: String,
}

/// The panel with the open board.
#[component]
pub fn BoardPanel(
    /// The organization.
    org: OrgId,
    /// The open board.
    opened: RwSignal<Option<OpenBoard>>,
) -> impl IntoView {
    move || opened.get().map(|board| view! { <Panel org=org board=board opened=opened/> })
}

#[component]
fn Panel(org: OrgId, board: OpenBoard, opened: RwSignal<Option<OpenBoard>>) -> impl IntoView {
    let OpenBoard { uuid, from } = board;
    let (uuid, from) = (StoredValue::new(uuid), StoredValue::new(from));
    let shown = RwSignal::new(None::<Board>);
    let problem = RwSignal::new(None::<Problem>);
    let load = move || {
        let Some(uuid) = uuid.try_get_value() else { return };
        let answer = api::nodes::board(org, &uuid);
        spawn_local(async move {
            match answer.await {
                Ok(fresh) => {
                    replace(shown, Some(fresh));
                    replace(problem, None);
                }
                Err(found) => replace(problem, Some(found)),
            }
        });
    };
    Effect::new(load);
    every_visible(REFRESH_MS, load);
    let panel = NodeRef::<Div>::new();
    Effect::new(move || {
        if let Some(panel) = panel.get() {
            // A failed focus has no further effect.
            let _ = panel.focus();
        }
    });
    let close = move || {
        let from = from.get_value();
        opened.set(None);
        focus_first(&format!("[id=\"{from}\"]"));
    };
    let name = move || {
        let name = |board: &Board| board_name(&board.node_name, board.gpu.index);
        shown.with(|board| board.as_ref().map_or_else(|| "Board".to_owned(), name))
    };
    // New readings alone do not build the slices anew, so that a slice keeps the focus.
    let fixed = Memo::new(move |_| shown.with(|board| board.as_ref().map(without_readings)));
    let readings = move || shown.with(|board| board.as_ref().map(|board| readings(&board.gpu)));
    view! {
        <div
            class="board-panel"
            role="dialog"
            aria-label=name
            tabindex="-1"
            node_ref=panel
            on:keydown=move |event: leptos::ev::KeyboardEvent| {
                if event.key() == "Escape" {
                    close();
                }
            }
        >
            <div class="board-panel__head">
                <h2>{name}</h2>
                <button class="btn btn--quiet btn--small" type="button" on:click=move |_| close()>"Close"</button>
            </div>
            {move || problem.get().map(|problem| view! { <ProblemNotice problem=problem/> })}
            {move || fixed.get().map(|board| details(&board))}
            <p class="quiet small num">{readings}</p>
        </div>
    }
}

/// Returns the board without the facts that change all the time.
fn without_readings(board: &Board) -> Board {
    let gpu =
        Gpu { power_watts: None, temperature_celsius: None, utilization_percent: None, ..board.gpu.clone() };
    let last_seen_at = board.last_seen_at.filter(|_| board.state == BoardState::NotConnected);
    Board { gpu, last_seen_at, ..board.clone() }
}

/// Returns the jobs of the organization, each once.
fn own_jobs(gpu: &Gpu) -> Vec<&TileOwner> {
    let mut jobs: Vec<&TileOwner> = Vec::new();
    for owner in gpu.tiles.iter().filter_map(|tile| tile.owner.as_ref()) {
        if jobs.iter().all(|known| known.job != owner.job) {
            jobs.push(owner);
        }
    }
    jobs
}

/// Returns links to the jobs of the organization on a board.
pub fn job_links(gpu: &Gpu) -> AnyView {
    let link = |owner: &TileOwner| {
        let path = org_link(&format!("/jobs/{}", owner.job));
        let name = owner.job_name.clone();
        view! { <a href=path>{name}</a> " " }
    };
    own_jobs(gpu).into_iter().map(link).collect_view().into_any()
}

/// Returns the warnings about a node as tags.
fn tags(board: &Board) -> AnyView {
    let simulated = board.simulated.then(|| view! { <span class="tag tag--simulated">"simulated"</span> });
    let unisolated = board.unisolated.then(|| view! { <span class="tag tag--warn">"not isolated"</span> });
    let label = |(key, value): (&String, &String)| {
        let text = format!("{key}={value}");
        view! { <span class="tag tag--label">{text}</span> }
    };
    let labels = board.labels.iter().map(label).collect_view();
    view! { <p class="tags">{simulated} {unisolated} {labels}</p> }.into_any()
}

fn details(board: &Board) -> AnyView {
    let quarantine = board.gpu.quarantined.as_ref().map(|reason| {
        let text = format!("Quarantined: {reason}");
        view! { <p class="map__note map__note--bad">{text}</p> }
    });
    let seen = board.last_seen_at.map(|at| {
        view! { <p class="map__note">"Last message of the worker: " <When at=at/></p> }
    });
    let jobs = (!own_jobs(&board.gpu).is_empty()).then(|| {
        view! { <p>"Your jobs: " {job_links(&board.gpu)}</p> }
    });
    let memory = gib(board.gpu.memory_mib);
    let state = state_text(board.state);
    let free = Some(free_text(&board.free)).filter(|text| !text.is_empty());
    let free = free.map_or_else(|| "no free device".to_owned(), |text| format!("free: {text}"));
    let (gpu, node) = (board.gpu.clone(), board.node_name.clone());
    view! {
        <p>
            <strong>{state}</strong>
            " · "
            {memory}
            " "
            <span class="unit">"GiB"</span>
        </p>
        {tags(board)}
        {quarantine}
        {seen}
        <GpuBar gpu=gpu node_name=node free=free size=BarSize::Full/>
        {jobs}
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_on_several_slices_is_one_job() {
        let tile = |start: u32, job: Option<u32>| {
            let owner = job.map(|number| {
                serde_json::json!({
                    "job": format!("job_{number:0>26}"), "job_name": format!("job-{number}"), "org_name": "Kelda",
                    "hue": 1, "pattern": "dots",
                })
            });
            serde_json::json!({"placement": {"start": start, "size": 1}, "owner": owner})
        };
        let tiles = [tile(0, Some(1)), tile(1, None), tile(2, Some(2)), tile(3, Some(1))];
        let gpu: Gpu = serde_json::from_value(serde_json::json!({
            "uuid": "GPU", "index": 0, "model": "H100", "memory_mib": 1, "cells": 8, "blocked_cells": [],
            "mig_enabled": true, "tiles": tiles,
        }))
        .unwrap();
        let names: Vec<&str> = own_jobs(&gpu).into_iter().map(|owner| owner.job_name.as_str()).collect();
        assert_eq!(names, ["job-1", "job-2"]);
    }
}
