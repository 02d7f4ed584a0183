//! The berth bar: a board as a row of memory slices, for offerings, devices of a job and the cluster map.

use berth_types::nodes::{Gpu, Tile};
use leptos::prelude::*;

/// The size of a bar.
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
    /// The fill level, 0 to 20.
    pub level: u32,
    /// The accessible name.
    pub aria: String,
}

/// Returns the text of a run of slices: `slice 3`, `slices 0 to 3`.
fn slices(start: u32, size: u32) -> String {
    match size {
        1 => format!("slice {start}"),
        2 => format!("slices {start} and {}", start + 1),
        _ => format!("slices {start} to {}", (start + size).saturating_sub(1)),
    }
}

/// Returns thousandths as a percentage: `25 %`, `12.5 %`.
pub fn percent(milli: u32) -> String {
    match milli % 10 {
        0 => format!("{} %", milli / 10),
        rest => format!("{}.{rest} %", milli / 10),
    }
}

/// Groups ascending numbers into runs of consecutive numbers, each with start and length.
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

/// Returns the part of the board as text: slices, or a share, which has no fixed slices.
fn part_text(tile: &Tile) -> String {
    match tile.gpu_milli {
        Some(milli) => format!("{} of a board", percent(milli)),
        None => slices(tile.placement.start, tile.placement.size),
    }
}

/// Sums the shares of a shared board in thousandths; `None` for other boards.
fn shared_milli(gpu: &Gpu) -> Option<u32> {
    let mut shares = gpu.tiles.iter().filter_map(|tile| tile.gpu_milli).peekable();
    shares.peek()?;
    Some(shares.sum())
}

/// Returns the tiles of a board.
pub fn board_tiles(gpu: &Gpu) -> Vec<BarTile> {
    gpu.tiles
        .iter()
        .map(|tile| {
            let place = part_text(tile);
            let profile = match (&tile.profile, tile.gpu_milli) {
                (Some(profile), _) => profile.clone(),
                (None, Some(_)) => place.clone(),
                (None, None) => "whole board".to_owned(),
            };
            let label = match (&tile.quarantined, &tile.owner) {
                (Some(_), _) => "quarantined".to_owned(),
                (None, Some(owner)) => owner.job_name.clone(),
                (None, None) => "in use".to_owned(),
            };
            let aria = match (&tile.quarantined, &tile.owner) {
                (Some(reason), _) => format!("quarantined, {place}: {reason}"),
                // The name begins with the visible text.
                (None, Some(owner)) if tile.gpu_milli.is_some() => {
                    format!("{} {profile}, of {}", owner.job_name, owner.org_name)
                }
                (None, Some(owner)) => {
                    format!("{} {profile}, {place}, of {}", owner.job_name, owner.org_name)
                }
                (None, None) => format!("in use by another organization, {place}"),
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

/// Lists the cells without a tile.
fn free_cells(tiles: &[BarTile], cells: u32) -> Vec<u32> {
    (0..cells).filter(|c| !tiles.iter().any(|t| (t.start..t.start + t.size).contains(c))).collect()
}

/// A board as a row of cells.
#[component]
pub fn BerthBar(
    tiles: Vec<BarTile>,
    /// Memory slices of the board.
    cells: u32,
    /// Free cells without a fitting profile.
    #[prop(optional)]
    blocked: Vec<u32>,
    /// True for a board out of service.
    #[prop(optional)]
    quarantined: bool,
    /// True for a board with shares: its free part is one cell.
    #[prop(optional)]
    undivided: bool,
    size: BarSize,
    /// The accessible name.
    label: String,
) -> impl IntoView {
    let interactive = size == BarSize::Full && !tiles.is_empty();
    let free = free_cells(&tiles, cells);
    let gaps = if undivided { runs(&free) } else { free.into_iter().map(|cell| (cell, 1)).collect() };
    let cell_views = gaps
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
    let on_key = move |ev: leptos::ev::KeyboardEvent| {
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
    let tile_views = tiles
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
            on:keydown=on_key
        >
            {tile_views}
            {cell_views}
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
            // A failed focus has no further effect.
            let _ = tile.focus();
        }
    }
    #[cfg(not(feature = "hydrate"))]
    let _ = (bar, index);
}

/// A board with caption, and its tiles as a table.
#[component]
pub fn GpuBar(
    gpu: Gpu,
    node_name: String,
    /// The free devices as text.
    free: String,
    size: BarSize,
) -> impl IntoView {
    let tiles = board_tiles(&gpu);
    let used = gpu.cells as usize - free_cells(&tiles, gpu.cells).len();
    let caption = format!("GPU {}: {}", gpu.index, gpu.model);
    let shared = shared_milli(&gpu);
    let summary = match (&gpu.quarantined, shared) {
        (Some(_), _) => "quarantined".to_owned(),
        (None, Some(used)) => format!("shared, {} free", percent(1_000_u32.saturating_sub(used))),
        (None, None) => free,
    };
    let label = match shared {
        Some(used) => {
            format!("Board {} of {node_name}: {} in use by shares", gpu.index, percent(used))
        }
        None => {
            format!("Board {} of {node_name}: {used} of {} memory slices in use", gpu.index, gpu.cells)
        }
    };
    let part_head = if shared.is_some() { "Share" } else { "Slices" };
    let rows = gpu
        .tiles
        .iter()
        .map(part_text)
        .zip(&tiles)
        .map(|(part, tile)| {
            view! {
                <tr role="row">
                    <th role="rowheader" scope="row">{part}</th>
                    <td role="cell" data-label="Use">{tile.label.clone()}</td>
                    <td role="cell" data-label="Profile">{tile.meta.clone()}</td>
                </tr>
            }
        })
        .collect_view();
    let table = (!tiles.is_empty()).then(|| {
        view! {
            <details class="berth__twin">
                <summary>"Show as table"</summary>
                <div class="table-wrap table-wrap--bare">
                    <table class="table" role="table">
                        <thead role="rowgroup">
                            <tr role="row">
                                <th role="columnheader" scope="col">{part_head}</th>
                                <th role="columnheader" scope="col">"Use"</th>
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
            {table}
        </div>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_become_text() {
        assert_eq!(slices(3, 1), "slice 3");
        assert_eq!(slices(4, 2), "slices 4 and 5");
        assert_eq!(slices(0, 4), "slices 0 to 3");
        assert_eq!((percent(250), percent(125)), ("25 %".to_owned(), "12.5 %".to_owned()));
    }

    #[test]
    fn consecutive_numbers_are_one_run() {
        assert_eq!(runs(&[0, 1, 2, 5, 7, 8]), [(0, 3), (5, 1), (7, 2)]);
        assert!(runs(&[]).is_empty());
    }

    #[test]
    fn a_share_has_no_slices() {
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
        let aria: Vec<String> = board_tiles(&shared).into_iter().map(|tile| tile.aria).collect();
        assert_eq!(aria, ["n 10 % of a board, of Kelda", "n 12.5 % of a board, of Kelda"]);
        assert_eq!(shared_milli(&gpu(Vec::new())), None);
    }
}
