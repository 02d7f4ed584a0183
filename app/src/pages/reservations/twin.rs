//! The calendar in words: a table of what is on which board, with links to one's own.
//!
//! Must not say more than the tiles do.

use leptos::prelude::*;

use super::Board;
use super::calendar::Shown;
use super::columns::Block;
use super::zone::Zone;

/// The table, closed until somebody wants it.
#[component]
pub fn Twin(
    /// What is shown.
    shown: Shown,
) -> impl IntoView {
    let open = RwSignal::new(false);
    let table = move || {
        // Nobody reads a closed table, and it is made anew with every look at the calendar.
        if !open.get() {
            return ().into_any();
        }
        let Some(frame) = shown.frame.get() else { return ().into_any() };
        let zone = shown.choice.zone.get();
        let rows: Vec<AnyView> = shown.boards.with(|boards| {
            let of_board = |board: &Board| {
                let blocks = shown.blocks(board, &frame).unwrap_or_default();
                blocks.iter().map(|block| row(board, block, zone)).collect::<Vec<AnyView>>()
            };
            boards.iter().flat_map(of_board).collect()
        });
        if rows.is_empty() {
            return view! { <p class="quiet">"Nothing is on any board in this time."</p> }.into_any();
        }
        view! {
            <div class="table-wrap table-wrap--bare">
                <table class="table" role="table">
                    <caption class="visually-hidden">"What is on which board"</caption>
                    <thead role="rowgroup">
                        <tr role="row">
                            <th role="columnheader" scope="col">"Board"</th>
                            <th role="columnheader" scope="col">"What"</th>
                            <th role="columnheader" scope="col">"From"</th>
                            <th role="columnheader" scope="col">"Until"</th>
                        </tr>
                    </thead>
                    <tbody role="rowgroup">{rows}</tbody>
                </table>
            </div>
        }
        .into_any()
    };
    let element = NodeRef::<leptos::html::Details>::new();
    let toggled = move |_: leptos::ev::Event| {
        if let Some(details) = element.get_untracked() {
            open.set(details.open());
        }
    };
    view! {
        <details class="berth__twin" node_ref=element on:toggle=toggled>
            <summary>"The same in words"</summary>
            {table}
        </details>
    }
}

fn row(board: &Board, block: &Block, zone: Zone) -> AnyView {
    let name = board.label.clone();
    let words = block.words.clone();
    let path = block.path.clone();
    let what = if path.is_empty() { words.into_any() } else { view! { <a href=path>{words}</a> }.into_any() };
    let from = zone.wall(block.from).stamp();
    let until = block.until.map_or_else(|| "nobody knows".to_owned(), |at| zone.wall(at).stamp());
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name}</th>
            <td role="cell" data-label="What">{what}</td>
            <td role="cell" class="nowrap" data-label="From">{from}</td>
            <td role="cell" class="nowrap" data-label="Until">{until}</td>
        </tr>
    }
    .into_any()
}
