//! Table of the calendar: the same spans as the tiles, with links to the organization's own.

use leptos::prelude::*;

use super::boards_state::{Board, BoardsState};
use super::columns::Block;
use crate::address::org_link;
use crate::ui::When;

/// The closed table.
#[component]
pub fn CalendarTable(
    /// The signals of the boards.
    state: BoardsState,
) -> impl IntoView {
    let open = RwSignal::new(false);
    let table = move || {
        // A closed table is not rendered, because each answer of the calendar changes it.
        if !open.get() {
            return ().into_any();
        }
        let Some(frame) = state.calendar.frame.get() else { return ().into_any() };
        let board_rows = |board: &Board| {
            let blocks = state.blocks(&board.uuid, &frame).unwrap_or_default();
            blocks.iter().map(|block| row(board, block)).collect::<Vec<AnyView>>()
        };
        let rows: Vec<AnyView> = state.shown().iter().flat_map(board_rows).collect();
        if rows.is_empty() {
            return view! { <p class="quiet">"No entries in this time range."</p> }.into_any();
        }
        view! {
            <div class="table-wrap table-wrap--bare">
                <table class="table" role="table">
                    <caption class="visually-hidden">"Calendar entries by board"</caption>
                    <thead role="rowgroup">
                        <tr role="row">
                            <th role="columnheader" scope="col">"Board"</th>
                            <th role="columnheader" scope="col">"Entry"</th>
                            <th role="columnheader" scope="col">"Start"</th>
                            <th role="columnheader" scope="col">"End"</th>
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
            <summary>"Show as table"</summary>
            {table}
        </details>
    }
}

fn row(board: &Board, block: &Block) -> AnyView {
    let name = board.label.clone();
    let text = block.text.clone();
    let entry = if block.path.is_empty() {
        text.into_any()
    } else {
        view! { <a href=org_link(&block.path)>{text}</a> }.into_any()
    };
    let start = block.from;
    let end = match block.until {
        Some(at) => view! { <When at=at/> }.into_any(),
        None => "unknown".into_any(),
    };
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name}</th>
            <td role="cell" data-label="Entry">{entry}</td>
            <td role="cell" class="nowrap" data-label="Start"><When at=start/></td>
            <td role="cell" class="nowrap" data-label="End">{end}</td>
        </tr>
    }
    .into_any()
}
