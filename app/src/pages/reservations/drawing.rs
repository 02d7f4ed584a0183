//! The drawing of a row: the bands of a model, or the tiles of a board. It is hidden from screen readers: the cells
//! have the same text.

use leptos::prelude::*;

use super::capacity::Bands;
use super::columns::{Block, BlockKind};
use super::rows::Drawing;
use crate::address::org_link;

/// Draws the columns of a row with this number of memory slices.
pub fn draw(drawing: &Drawing, slices: u32) -> Vec<AnyView> {
    match drawing {
        Drawing::Bands(bands) => vec![draw_bands(bands)],
        Drawing::Tiles(blocks) => blocks.iter().map(|block| tile(block, slices)).collect(),
    }
}

/// Returns the bands from the free boards at the bottom to the unavailable ones at the top.
fn draw_bands(bands: &Bands) -> AnyView {
    let frame = format!("0 0 {} {}", bands.columns, bands.boards.max(1));
    let band = |class: &'static str, path: &String| {
        let path = path.clone();
        view! { <path class=class d=path></path> }
    };
    let needed = bands.needed.map(|top| format!("M0 {top}h{}", bands.columns)).unwrap_or_default();
    view! {
        <svg class="capacity__bands" viewBox=frame preserveAspectRatio="none" aria-hidden="true" focusable="false">
            {band("capacity__free", &bands.free)}
            {band("capacity__own", &bands.own)}
            {band("capacity__others", &bands.others)}
            {band("capacity__unavailable", &bands.unavailable)}
            {band("capacity__needed", &needed)}
        </svg>
    }
    .into_any()
}

fn tile_class(block: &Block) -> &'static str {
    match (block.kind, block.own) {
        (BlockKind::Maintenance, _) => "tile tile--maintenance",
        (BlockKind::Upcoming, true) => "tile tile--own tile--reserved",
        (BlockKind::Active, true) => "tile tile--own",
        (BlockKind::Job | BlockKind::HeldStart, true) => "tile tile--own tile--job",
        (BlockKind::Upcoming | BlockKind::Active, false) => "tile tile--foreign",
        (BlockKind::Job | BlockKind::HeldStart, false) => "tile tile--foreign tile--job",
    }
}

/// Returns a tile over its cells. The table has its link for screen readers.
fn tile(block: &Block, slices: u32) -> AnyView {
    let class = tile_class(block);
    let (start, size) = (block.start.to_string(), block.size.to_string());
    let (top, high) = (block.top.to_string(), block.high.to_string());
    let hue = block.own.then_some("1");
    let pattern = block.own.then_some("plain");
    // A flat tile has no space for a label.
    let tall = block.high.saturating_mul(4) >= slices.saturating_mul(3);
    let label = (tall && !block.label.is_empty()).then(|| {
        let label = block.label.clone();
        view! { <span class="tile__label">{label}</span> }
    });
    let title = block.text.clone();
    if block.path.is_empty() {
        return view! {
            <span
                class=class
                aria-hidden="true"
                title=title
                data-start=start
                data-size=size
                data-top=top
                data-high=high
                data-hue=hue
                data-pattern=pattern
            >
                {label}
            </span>
        }
        .into_any();
    }
    let path = org_link(&block.path);
    view! {
        <a
            class=class
            href=path
            aria-hidden="true"
            tabindex="-1"
            draggable="false"
            title=title
            data-start=start
            data-size=size
            data-top=top
            data-high=high
            data-hue=hue
            data-pattern=pattern
        >
            {label}
        </a>
    }
    .into_any()
}
