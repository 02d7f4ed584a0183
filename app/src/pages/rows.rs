//! How a job stands in a table, and how a list of jobs takes in what a live feed says.
//!
//! Must not fetch: it draws and merges what it is given.

use berth_types::jobs::{Device, Job, Placement};
use leptos::prelude::*;

use super::words::offering_text;
use crate::ui::*;

/// Puts a job where it belongs in a list that is newest first, unless the list knows it better.
pub fn merge(jobs: &mut Vec<Job>, job: Job) {
    // Ids sort by creation, so the place of a new job is before the first older id.
    match jobs.iter_mut().find(|known| known.id == job.id) {
        Some(known) if known.generation <= job.generation => *known = job,
        Some(_) => {}
        None => {
            let place = jobs.iter().position(|known| known.id < job.id).unwrap_or(jobs.len());
            jobs.insert(place, job);
        }
    }
}

/// The name as a link, with one more line below it.
pub fn name_cell(job: &Job, below: String) -> AnyView {
    let path = format!("/jobs/{}", job.id);
    let name = job.name.clone();
    let simulated = job.simulated.then(|| view! { " " <span class="tag tag--simulated">"simulated"</span> });
    view! {
        <th role="rowheader" scope="row">
            <a href=path>{name}</a>
            {simulated}
            <span class="table__sub mono">{below}</span>
        </th>
    }
    .into_any()
}

/// What was ordered, on one line.
pub fn offering_cell(job: &Job) -> AnyView {
    let text = offering_text(&job.offering, job.count);
    view! { <td role="cell" data-label="Offering"><span class="nowrap">{text}</span></td> }.into_any()
}

/// Cells in which a shared board is drawn: a share follows no slices, and a twentieth can still be seen.
const SHARED_CELLS: u32 = 20;

/// Cells in which the board of a device is drawn.
pub fn cells_of(device: &Device) -> u32 {
    if device.gpu_milli.is_some() { SHARED_CELLS } else { device.cells }
}

/// Cells of the board that a device is: its share from the left, its slices, or else the whole board.
pub fn place_of(device: &Device) -> Placement {
    match (device.gpu_milli, device.placement) {
        (Some(milli), _) => {
            let nearest = milli.saturating_mul(SHARED_CELLS).saturating_add(500) / 1_000;
            // Neither nothing nor the whole board, however small or large it is.
            Placement { start: 0, size: nearest.clamp(1, SHARED_CELLS - 1) }
        }
        (None, Some(slices)) => slices,
        (None, None) => Placement { start: 0, size: device.cells },
    }
}

/// The tile of one's own job on a device.
pub fn own_tile(device: &Device, name: &str, label: String) -> BarTile {
    let place = place_of(device);
    let last = place.start + place.size.saturating_sub(1);
    let part = if let Some(milli) = device.gpu_milli {
        format!("{} of the board", percent(milli))
    } else if place.size >= device.cells {
        "the whole board".to_owned()
    } else if place.size == 1 {
        format!("slice {last}")
    } else {
        format!("slices {} to {last}", place.start)
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

/// Where a device is, in words: `pier-01, GPU 0`.
pub fn device_words(device: &Device) -> String {
    format!("{}, GPU {}", device.node_name, device.gpu_index)
}

/// The bar of a device in words: `pier-01, GPU 0: train`, and how much of the board where it is shared.
pub fn bar_words(device: &Device, name: &str) -> String {
    let share = device.gpu_milli.map(|milli| format!(", {} of the board", percent(milli)));
    format!("{}: {name}{}", device_words(device), share.unwrap_or_default())
}

/// The first board of a job as a small bar, and how many more there are; empty while it waits.
pub fn board_cell(job: &Job) -> AnyView {
    let Some(device) = job.devices.first() else {
        return view! { <td role="cell" data-label="Board"></td> }.into_any();
    };
    let label = bar_words(device, &job.name);
    let tiles = vec![own_tile(device, &job.name, String::new())];
    let cells = cells_of(device);
    let shared = device.gpu_milli.is_some();
    let mut place = format!("{} / {}", device.node_name, device.gpu_index);
    if job.devices.len() > 1 {
        place = format!("{place} and {} more", job.devices.len() - 1);
    }
    view! {
        <td role="cell" data-label="Board">
            <span class="row">
                <BerthBar
                    tiles=tiles
                    cells=cells
                    blocked=Vec::new()
                    quarantined=false
                    undivided=shared
                    size=BarSize::Inline
                    label=label
                />
                <span class="quiet nowrap">{place}</span>
            </span>
        </td>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::ids::JobId;

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
    fn a_share_is_drawn_as_much_of_the_board_as_it_is() {
        let device = |milli: Option<u32>| -> Device {
            serde_json::from_value(serde_json::json!({
                "node": "node_00000000000000000000000001", "node_name": "pier-01", "gpu_uuid": "GPU", "gpu_index": 0,
                "cells": 8, "gpu_milli": milli,
            }))
            .unwrap()
        };
        let drawn = |milli: Option<u32>| (place_of(&device(milli)).size, cells_of(&device(milli)));
        assert_eq!([1, 100, 250, 999].map(|milli| drawn(Some(milli))), [(1, 20), (2, 20), (5, 20), (19, 20)]);
        assert_eq!(drawn(None), (8, 8));
        assert_eq!(own_tile(&device(Some(125)), "n", String::new()).aria, "n, 12.5 % of the board");
        assert_eq!(bar_words(&device(Some(125)), "n"), "pier-01, GPU 0: n, 12.5 % of the board");
        assert_eq!(bar_words(&device(None), "n"), "pier-01, GPU 0: n");
    }

    #[test]
    fn newer_jobs_come_first_and_older_news_is_dropped() {
        let mut jobs = vec![job(3, 1), job(1, 1)];
        merge(&mut jobs, job(2, 1));
        merge(&mut jobs, job(4, 1));
        merge(&mut jobs, job(3, 5));
        merge(&mut jobs, job(3, 2));
        let seen: Vec<_> = jobs.iter().map(|job| (job.id.to_string(), job.generation)).collect();
        let expected: Vec<_> =
            [(4, 1), (3, 5), (2, 1), (1, 1)].map(|(n, g)| (format!("job_{n:0>26}"), g)).into();
        assert_eq!(seen, expected);
    }
}
