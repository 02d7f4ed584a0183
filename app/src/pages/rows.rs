//! Cells of a job in a table, and updates of a job list from a live feed. Without requests to the portal.

use berth_types::ids::JobId;
use berth_types::jobs::{Device, Job, Network, Placement};
use leptos::prelude::*;

use super::load_more::merge_newest;
use super::text::offering_text;
use crate::address::org_link;
use crate::ui::*;

/// Inserts or updates a job in a list, newest first. A job with an older generation is ignored.
pub fn merge(jobs: &mut Vec<Job>, job: Job) {
    // Ids sort by creation.
    merge_newest(jobs, job, |job| job.id, |job| job.generation);
}

/// Returns the name as a link with a line below it.
pub fn name_cell(job: &Job, below: String) -> AnyView {
    let path = org_link(&format!("/jobs/{}", job.id));
    let name = job.name.clone();
    let simulated = job.simulated.then(|| view! { " " <span class="tag tag--simulated">"simulated"</span> });
    let host = (job.network == Network::Host)
        .then(|| view! { " " <span class="tag tag--warn">"Host network"</span> });
    view! {
        <th role="rowheader" scope="row">
            <a href=path>{name}</a>
            {simulated}
            {host}
            <span class="table__sub mono">{below}</span>
        </th>
    }
    .into_any()
}

/// Returns the offering with the number of devices.
pub fn offering_cell(job: &Job) -> AnyView {
    let text = offering_text(&job.offering, job.count);
    view! { <td role="cell" data-label="Offering"><span class="nowrap">{text}</span></td> }.into_any()
}

/// Returns the page of the launch form with the submission of a job.
pub fn again_page(job: JobId) -> String {
    format!("/launch?from={job}")
}

/// Returns the cell with the link to launch an ended job again; empty without the right to run jobs.
pub fn again_cell(job: &Job, runs: bool) -> AnyView {
    let link = (runs && job.state.ended()).then(|| {
        let path = org_link(&again_page(job.id));
        view! { <a class="btn btn--small" href=path aria-label="Launch again">"Again"</a> }
    });
    view! { <td role="cell" class="table__actions">{link}</td> }.into_any()
}

/// The cells of a shared board: 5 % each, because shares have no slices.
const SHARED_CELLS: u32 = 20;

/// Returns the number of cells of a device's board.
pub fn board_cells(device: &Device) -> u32 {
    if device.gpu_milli.is_some() { SHARED_CELLS } else { device.cells }
}

/// Returns the cells of a device on its board: its share from the left, its slices, or the whole board.
pub fn device_cells(device: &Device) -> Placement {
    match (device.gpu_milli, device.placement) {
        (Some(milli), _) => {
            let nearest = milli.saturating_mul(SHARED_CELLS).saturating_add(500) / 1_000;
            // A share has at least one cell and never the whole board.
            Placement { start: 0, size: nearest.clamp(1, SHARED_CELLS - 1) }
        }
        (None, Some(slices)) => slices,
        (None, None) => Placement { start: 0, size: device.cells },
    }
}

/// Returns the tile of the organization's own job on a device.
pub fn own_tile(device: &Device, name: &str, label: String) -> BarTile {
    let place = device_cells(device);
    let last = place.start + place.size.saturating_sub(1);
    let part = if let Some(milli) = device.gpu_milli {
        format!("{} of the board", percent(milli))
    } else if place.size >= device.cells {
        "the whole board".to_owned()
    } else if place.size == 1 {
        format!("memory slice {last}")
    } else {
        format!("memory slices {} to {last}", place.start)
    };
    BarTile {
        start: place.start,
        size: place.size,
        label,
        meta: String::new(),
        hue: 1,
        pattern: "plain".to_owned(),
        own: true,
        foreign: false,
        level: 0,
        aria: format!("{name}, {part}"),
    }
}

/// Returns node and board of a device: `pier-01, GPU 0`.
pub fn device_text(device: &Device) -> String {
    format!("{}, GPU {}", device.node_name, device.gpu_index)
}

/// Returns the label of a device's bar: `pier-01, GPU 0: train`, with the share of a shared board.
pub fn bar_text(device: &Device, name: &str) -> String {
    let share = device.gpu_milli.map(|milli| format!(", {} of the board", percent(milli)));
    format!("{}: {name}{}", device_text(device), share.unwrap_or_default())
}

/// Returns the first board of a job as a small bar with the number of further boards; empty without a board.
pub fn board_cell(job: &Job) -> AnyView {
    let Some(device) = job.devices.first() else {
        return view! { <td role="cell" data-label="Board"></td> }.into_any();
    };
    let label = bar_text(device, &job.name);
    let tiles = vec![own_tile(device, &job.name, String::new())];
    let cells = board_cells(device);
    let shared = device.gpu_milli.is_some();
    let place = format!("{} / {}", device.node_name, device.gpu_index);
    let more = job.devices.len() - 1;
    let more = (more > 0).then(|| view! { <span class="table__sub">{format!("and {more} more")}</span> });
    view! {
        <td role="cell" data-label="Board">
            <span class="row">
                <BerthBar
                    tiles=tiles
                    cells=cells
                    undivided=shared
                    size=BarSize::Inline
                    label=label
                />
                <span class="quiet nowrap">{place}</span>
            </span>
            {more}
        </td>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(number: u128, generation: i64) -> Job {
        let id: JobId = format!("job_{:0>26}", number).parse().unwrap();
        serde_json::from_value(serde_json::json!({
            "id": id, "org": "org_00000000000000000000000001", "name": "n", "state": "queued", "reasons": [],
            "attempt": 0, "offering": "o", "simulated": false, "count": 1, "priority": "normal",
            "max_duration_s": 60, "devices": [], "created_at": "2026-03-01T09:00:00Z", "created_by": "a",
            "metered_ms": 0, "cost_micros": 0, "held_micros": 0, "nano_per_second": 1, "currency": "USD",
            "price_version": 1, "generation": generation, "actions": [],
        }))
        .unwrap()
    }

    #[test]
    fn a_share_has_its_part_of_the_cells() {
        let device = |milli: Option<u32>| -> Device {
            serde_json::from_value(serde_json::json!({
                "node": "node_00000000000000000000000001", "node_name": "pier-01", "gpu_uuid": "GPU", "gpu_index": 0,
                "cells": 8, "gpu_milli": milli,
            }))
            .unwrap()
        };
        let drawn = |milli: Option<u32>| (device_cells(&device(milli)).size, board_cells(&device(milli)));
        assert_eq!([1, 100, 250, 999].map(|milli| drawn(Some(milli))), [(1, 20), (2, 20), (5, 20), (19, 20)]);
        assert_eq!(drawn(None), (8, 8));
        assert_eq!(own_tile(&device(Some(125)), "n", String::new()).aria, "n, 12.5 % of the board");
        assert_eq!(bar_text(&device(Some(125)), "n"), "pier-01, GPU 0: n, 12.5 % of the board");
        assert_eq!(bar_text(&device(None), "n"), "pier-01, GPU 0: n");
    }

    #[test]
    fn newer_jobs_come_first_and_older_generations_are_ignored() {
        let mut jobs = vec![job(3, 1), job(1, 1)];
        merge(&mut jobs, job(2, 1));
        merge(&mut jobs, job(4, 1));
        merge(&mut jobs, job(3, 5));
        merge(&mut jobs, job(3, 2));
        let merged: Vec<_> = jobs.iter().map(|job| (job.id.to_string(), job.generation)).collect();
        let expected: Vec<_> =
            [(4, 1), (3, 5), (2, 1), (1, 1)].map(|(n, g)| (format!("job_{n:0>26}"), g)).into();
        assert_eq!(merged, expected);
    }
}
