//! The berth bar: a board drawn as its memory slices. The same picture for an offering, a job's
//! devices and the cluster map.

use berth_types::nodes::Gpu;
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

/// The tiles of a board on the map.
pub fn tiles_of(gpu: &Gpu) -> Vec<BarTile> {
    gpu.tiles
        .iter()
        .map(|tile| {
            let place = slices(tile.placement.start, tile.placement.size);
            let profile = tile.profile.clone().unwrap_or_else(|| "whole board".to_owned());
            let label = match (&tile.quarantined, &tile.owner) {
                (Some(_), _) => "quarantined".to_owned(),
                (None, Some(owner)) => owner.job_name.clone(),
                (None, None) => "taken".to_owned(),
            };
            let aria = match (&tile.quarantined, &tile.owner) {
                (Some(reason), _) => format!("quarantined, {place}: {reason}"),
                (None, Some(owner)) => {
                    // First what the tile shows, as it shows it.
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
    size: BarSize,
    /// The whole bar in words.
    label: String,
) -> impl IntoView {
    let interactive = size == BarSize::Full && !tiles.is_empty();
    let empty = free(&tiles, cells)
        .into_iter()
        .map(|cell| {
            let class = if quarantined {
                "cell cell--quarantined"
            } else if blocked.contains(&cell) {
                "cell cell--blocked"
            } else {
                "cell"
            };
            view! { <span class=class aria-hidden="true" data-start=cell.to_string() data-size="1"></span> }
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
    let summary = match &gpu.quarantined {
        Some(_) => "quarantined".to_owned(),
        None if open == gpu.cells as usize => "free".to_owned(),
        None if open == 0 => "full".to_owned(),
        None => format!("{usable} of {} slices free", gpu.cells),
    };
    let label =
        format!("Board {} of {node_name}: {taken} of {} memory slices are taken", gpu.index, gpu.cells);
    let rows = tiles
        .iter()
        .map(|tile| {
            view! {
                <tr role="row">
                    <th role="rowheader" scope="row">{slices(tile.start, tile.size)}</th>
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
                                <th role="columnheader" scope="col">"Slices"</th>
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
    }
}
