//! The berth bar: a board drawn as its memory slices. The same picture for an offering, a job's
//! devices and the cluster map.

use berth_types::nodes::{Gpu, Tile};
use leptos::prelude::*;

/// How large a bar is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarSize {
    Inline,
    Row,
    Full,
}

/// One occupied run of slices.
#[derive(Clone, Debug, PartialEq)]
pub struct BarTile {
    pub start: u32,
    pub size: u32,
    pub label: String,
    pub meta: String,
    /// 1 to 8.
    pub hue: u32,
    /// `plain`, `stripes` or `dots`.
    pub pattern: String,
    pub own: bool,
    pub foreign: bool,
    /// How full it is, 0 to 20.
    pub level: u32,
    /// The tile in words.
    pub aria: String,
}

/// `slice 3`, `slices 0 to 3`.
fn slices(start: u32, size: u32) -> String {
    match size {
        1 => format!("slice {start}"),
        2 => format!("slices {start} and {}", start + 1),
        _ => format!("slices {start} to {}", (start + size).saturating_sub(1)),
    }
}

/// Thousandths as a percentage: `25 %`, `12.5 %`.
pub fn percent(milli: u32) -> String {
    match milli % 10 {
        0 => format!("{} %", milli / 10),
        rest => format!("{}.{rest} %", milli / 10),
    }
}

/// Rising numbers as runs of neighbours: where each run starts, and how many it has.
pub fn runs(numbers: &[u32]) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((start, size)) if start.saturating_add(*size) == number => *size += 1,
            _ => runs.push((number, 1)),
        }
    }
    runs
}

/// What of its board a tile has: slices, or a share, which follows no slices wherever it is drawn.
fn part_of(tile: &Tile) -> String {
    match tile.gpu_milli {
        Some(milli) => format!("{} of a board", percent(milli)),
        None => slices(tile.placement.start, tile.placement.size),
    }
}

/// Thousandths of a shared board that are taken; nothing for a board that is not shared.
fn shared_milli(gpu: &Gpu) -> Option<u32> {
    let mut shares = gpu.tiles.iter().filter_map(|tile| tile.gpu_milli).peekable();
    shares.peek()?;
    Some(shares.sum())
}

/// The tiles of a board on the map.
pub fn tiles_of(gpu: &Gpu) -> Vec<BarTile> {
    gpu.tiles
        .iter()
        .map(|tile| {
            let place = part_of(tile);
            let profile = match (&tile.profile, tile.gpu_milli) {
                (Some(profile), _) => profile.clone(),
                (None, Some(_)) => place.clone(),
                (None, None) => "whole board".to_owned(),
            };
            let label = match (&tile.quarantined, &tile.owner) {
                (Some(_), _) => "quarantined".to_owned(),
                (None, Some(owner)) => owner.job_name.clone(),
                (None, None) => "taken".to_owned(),
            };
            let aria = match (&tile.quarantined, &tile.owner) {
                (Some(reason), _) => format!("quarantined, {place}: {reason}"),
                // First what the tile shows, as it shows it.
                (None, Some(owner)) if tile.gpu_milli.is_some() => {
                    format!("{} {profile}, of {}", owner.job_name, owner.org_name)
                }
                (None, Some(owner)) => {
                    format!("{} {profile}, {place}, of {}", owner.job_name, owner.org_name)
                }
                (None, None) => format!("taken by another organization, {place}"),
            };
            BarTile {
                start: tile.placement.start,
                size: tile.placement.size,
                label,
                meta: if tile.owner.is_some() { profile } else { String::new() },
                hue: u32::from(tile.owner.is_some()),
                pattern: if tile.owner.is_some() { "plain".to_owned() } else { String::new() },
                own: tile.owner.is_some() && tile.quarantined.is_none(),
                foreign: tile.owner.is_none(),
                level: 0,
                aria,
            }
        })
        .collect()
}

/// The cells that no tile covers.
fn free(tiles: &[BarTile], cells: u32) -> Vec<u32> {
    (0..cells).filter(|c| !tiles.iter().any(|t| (t.start..t.start + t.size).contains(c))).collect()
}

/// A board as a row of cells.
#[component]
pub fn BerthBar(
    tiles: Vec<BarTile>,
    /// Memory slices of the board.
    cells: u32,
    /// Free cells that nothing fits into.
    blocked: Vec<u32>,
    /// The whole board is out of use.
    #[prop(optional)]
    quarantined: bool,
    /// The board is shared by parts that follow no slices: what is free of it is one cell.
    #[prop(optional)]
    undivided: bool,
    size: BarSize,
    /// The whole bar in words.
    label: String,
) -> impl IntoView {
    let interactive = size == BarSize::Full && !tiles.is_empty();
    let open = free(&tiles, cells);
    let gaps = if undivided { runs(&open) } else { open.into_iter().map(|cell| (cell, 1)).collect() };
    let empty = gaps
        .into_iter()
        .map(|(cell, wide)| {
            let class = if quarantined {
                "cell cell--quarantined"
            } else if undivided {
                "cell cell--rest"
            } else if blocked.contains(&cell) {
                "cell cell--blocked"
            } else {
                "cell"
            };
            let (start, size) = (cell.to_string(), wide.to_string());
            view! { <span class=class aria-hidden="true" data-start=start data-size=size></span> }
        })
        .collect_view();
    let count = tiles.len();
    let focused = RwSignal::new(0usize);
    let bar = NodeRef::<leptos::html::Div>::new();
    let walk = move |ev: leptos::ev::KeyboardEvent| {
        let now = focused.get_untracked();
        let next = match ev.key().as_str() {
            "ArrowRight" | "ArrowDown" => (now + 1).min(count.saturating_sub(1)),
            "ArrowLeft" | "ArrowUp" => now.saturating_sub(1),
            "Home" => 0,
            "End" => count.saturating_sub(1),
            _ => return,
        };
        ev.prevent_default();
        focused.set(next);
        focus_tile(bar, next);
    };
    let drawn = tiles
        .into_iter()
        .enumerate()
        .map(|(i, tile)| {
            let class = match (tile.own, tile.foreign) {
                (true, _) => "tile tile--own",
                (false, true) => "tile tile--foreign",
                (false, false) => "tile",
            };
            let inside = (size != BarSize::Inline).then(|| {
                let meta = (!tile.meta.is_empty()).then(|| view! { " " <span class="tile__meta">{tile.meta.clone()}</span> });
                view! { <span class="tile__label">{tile.label.clone()}</span> {meta} }
            });
            view! {
                <span
                    class=class
                    data-start=tile.start.to_string()
                    data-size=tile.size.to_string()
                    data-hue=(tile.hue > 0).then(|| tile.hue.to_string())
                    data-pattern=(!tile.pattern.is_empty()).then_some(tile.pattern)
                    data-level=(tile.level > 0).then(|| tile.level.to_string())
                    role=interactive.then_some("option")
                    tabindex=move || interactive.then(|| if focused.get() == i { "0" } else { "-1" })
                    aria-selected=move || interactive.then(|| if focused.get() == i { "true" } else { "false" })
                    aria-label=interactive.then_some(tile.aria)
                >
                    {inside}
                </span>
            }
        })
        .collect_view();
    let class = match size {
        BarSize::Inline => "berth-bar berth-bar--inline",
        BarSize::Row => "berth-bar berth-bar--row",
        BarSize::Full => "berth-bar berth-bar--full",
    };
    view! {
        <div
            class=class
            role=if interactive { "listbox" } else { "img" }
            aria-orientation=interactive.then_some("horizontal")
            aria-label=label
            data-cells=cells.to_string()
            node_ref=bar
            on:keydown=walk
        >
            {drawn}
            {empty}
        </div>
    }
}

fn focus_tile(bar: NodeRef<leptos::html::Div>, index: usize) {
    #[cfg(feature = "hydrate")]
    {
        use wasm_bindgen::JsCast;
        let found = bar
            .get_untracked()
            .and_then(|bar| bar.query_selector(&format!(".tile:nth-of-type({})", index + 1)).ok().flatten())
            .and_then(|tile| tile.dyn_into::<web_sys::HtmlElement>().ok());
        if let Some(tile) = found {
            // A tile that cannot be focused is only not focused.
            let _ = tile.focus();
        }
    }
    #[cfg(not(feature = "hydrate"))]
    let _ = (bar, index);
}

/// A board with its caption, and the same in words.
#[component]
pub fn GpuBar(gpu: Gpu, node_name: String, size: BarSize) -> impl IntoView {
    let tiles = tiles_of(&gpu);
    let open = free(&tiles, gpu.cells).len();
    let usable = free(&tiles, gpu.cells).iter().filter(|cell| !gpu.blocked_cells.contains(cell)).count();
    let taken = gpu.cells as usize - open;
    let caption = format!("GPU {}: {}", gpu.index, gpu.model);
    let shared = shared_milli(&gpu);
    let summary = match (&gpu.quarantined, shared) {
        (Some(_), _) => "quarantined".to_owned(),
        (None, Some(taken)) => format!("shared, {} left", percent(1_000_u32.saturating_sub(taken))),
        (None, None) if open == gpu.cells as usize => "free".to_owned(),
        (None, None) if open == 0 => "full".to_owned(),
        (None, None) => format!("{usable} of {} slices free", gpu.cells),
    };
    let label = match shared {
        Some(taken) => {
            format!("Board {} of {node_name}: {} of it is taken by shares", gpu.index, percent(taken))
        }
        None => {
            format!("Board {} of {node_name}: {taken} of {} memory slices are taken", gpu.index, gpu.cells)
        }
    };
    let parts = if shared.is_some() { "Part" } else { "Slices" };
    let rows = gpu
        .tiles
        .iter()
        .map(part_of)
        .zip(&tiles)
        .map(|(part, tile)| {
            view! {
                <tr role="row">
                    <th role="rowheader" scope="row">{part}</th>
                    <td role="cell" data-label="Holds">{tile.label.clone()}</td>
                    <td role="cell" data-label="Profile">{tile.meta.clone()}</td>
                </tr>
            }
        })
        .collect_view();
    let twin = (!tiles.is_empty()).then(|| {
        view! {
            <details class="berth__twin">
                <summary>"The same in words"</summary>
                <div class="table-wrap table-wrap--bare">
                    <table class="table" role="table">
                        <thead role="rowgroup">
                            <tr role="row">
                                <th role="columnheader" scope="col">{parts}</th>
                                <th role="columnheader" scope="col">"Holds"</th>
                                <th role="columnheader" scope="col">"Profile"</th>
                            </tr>
                        </thead>
                        <tbody role="rowgroup">{rows}</tbody>
                    </table>
                </div>
            </details>
        }
    });
    view! {
        <div class="berth">
            <div class="berth__caption"><span>{caption}</span><span>{summary}</span></div>
            <BerthBar
                tiles=tiles
                cells=gpu.cells
                blocked=gpu.blocked_cells.clone()
                quarantined=gpu.quarantined.is_some()
                undivided=shared.is_some()
                size=size
                label=label
            />
            {twin}
        </div>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_said_plainly() {
        assert_eq!(slices(3, 1), "slice 3");
        assert_eq!(slices(4, 2), "slices 4 and 5");
        assert_eq!(slices(0, 4), "slices 0 to 3");
        assert_eq!((percent(250), percent(125)), ("25 %".to_owned(), "12.5 %".to_owned()));
    }

    #[test]
    fn neighbours_are_one_run() {
        assert_eq!(runs(&[0, 1, 2, 5, 7, 8]), [(0, 3), (5, 1), (7, 2)]);
        assert!(runs(&[]).is_empty());
    }

    #[test]
    fn a_share_is_no_slice() {
        let owner = serde_json::json!({
            "job": "job_00000000000000000000000001", "job_name": "n", "org_name": "Kelda", "hue": 1, "pattern": "dots",
        });
        let place = serde_json::json!({"start": 0, "size": 1});
        let tile = |milli: u32| serde_json::json!({"placement": place, "gpu_milli": milli, "owner": owner});
        let gpu = |tiles: Vec<serde_json::Value>| -> Gpu {
            serde_json::from_value(serde_json::json!({
                "uuid": "GPU", "index": 0, "model": "H100", "memory_mib": 1, "cells": 8, "blocked_cells": [],
                "mig_enabled": false, "tiles": tiles,
            }))
            .unwrap()
        };
        let shared = gpu(vec![tile(100), tile(125)]);
        assert_eq!(shared_milli(&shared), Some(225));
        let aria: Vec<String> = tiles_of(&shared).into_iter().map(|tile| tile.aria).collect();
        assert_eq!(aria, ["n 10 % of a board, of Kelda", "n 12.5 % of a board, of Kelda"]);
        assert_eq!(shared_milli(&gpu(Vec::new())), None);
    }
}
