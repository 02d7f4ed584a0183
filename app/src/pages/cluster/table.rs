//! Table of the boards: the same facts as the map in words, in pages of the portal.

use std::future::Future;

use berth_types::Page;
use berth_types::cluster::{Board, ClusterMap, RACK_LABEL};
use berth_types::ids::OrgId;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::super::limits::replace;
use super::super::load_more::{LoadMore, append, joined};
use super::super::parts::{Call, Loading, ready};
use super::choice::Choice;
use super::panel::{OpenBoard, job_links};
use super::text::{board_name, free_text, state_text};
use crate::api;
use crate::api::Answer;
use crate::ui::*;

/// The boards of a page.
const PAGE: usize = 50;
/// The most boards that one request refreshes.
const MAX_REFRESHED: usize = 200;

/// The first page with its query.
type FirstPage = (String, Page<Board>);

fn load(org: OrgId, query: String) -> impl Future<Output = Answer<FirstPage>> + Send + 'static {
    let page = api::nodes::boards(org, &query, None, PAGE);
    async move { Ok((query, page.await?)) }
}

/// The table of the boards that match the filter.
#[component]
pub fn BoardTable(
    /// The organization.
    org: OrgId,
    /// The boards of the map: each change refreshes the table.
    map: RwSignal<ClusterMap>,
    /// The parameters of the address.
    choice: Memo<Choice>,
    /// The open board.
    opened: RwSignal<Option<OpenBoard>>,
) -> impl IntoView {
    let query = Memo::new(move |_| choice.with(Choice::list_query));
    let data: Resource<Answer<FirstPage>> =
        Resource::new(move || query.get(), move |query: String| load(org, query));
    let retry = Retry::new(move || data.refetch());
    view! {
        <Suspense fallback=|| view! { <Loading/> }>
            {move || suspended(async move {
                let answer = data.await;
                move || match answer {
                    Err(problem) => view! { <RetryNotice problem=problem retry=retry/> }.into_any(),
                    Ok((query, page)) => {
                        retry.succeeded();
                        view! { <Rows org=org map=map opened=opened query=query page=page/> }.into_any()
                    }
                }
            })}
        </Suspense>
    }
}

#[component]
fn Rows(
    org: OrgId,
    map: RwSignal<ClusterMap>,
    opened: RwSignal<Option<OpenBoard>>,
    query: String,
    page: Page<Board>,
) -> impl IntoView {
    let ready = ready();
    let query = StoredValue::new(query);
    let boards = RwSignal::new(page.items);
    let cursor = RwSignal::new(page.next_cursor);
    let more = Call::idle();
    let load_more = move |()| {
        let next = query.with_value(|query| api::nodes::boards(org, query, cursor.get_untracked(), PAGE));
        more.run(next, move |page: Page<Board>| {
            boards.update(|boards| append(boards, page.items, |board| board.uuid.clone()));
            cursor.set(page.next_cursor);
        });
    };
    Effect::new(move |before: Option<()>| {
        map.track();
        if before.is_none() {
            return;
        }
        let count = boards.with_untracked(Vec::len).clamp(PAGE, MAX_REFRESHED);
        let fresh = query.with_value(|query| api::nodes::boards(org, query, None, count));
        spawn_local(async move {
            // A failed refresh leaves the boards; the page shows the age of its data.
            // A page that arrives during the request stays.
            if let Ok(page) = fresh.await
                && more.pending.try_get_untracked() == Some(false)
            {
                let known = boards.get_untracked();
                let page = joined(known, cursor.get_untracked(), page, |board| board.uuid.clone());
                replace(boards, page.items);
                replace(cursor, page.next_cursor);
            }
        });
    });
    let none = Memo::new(move |_| boards.with(Vec::is_empty));
    let table = move || {
        if none.get() {
            return ().into_any();
        }
        let rows = view! { <For each=move || boards.get() key=row_key children=move |board: Board| row(&board, opened, ready)/> };
        table_of(
            "Boards",
            &[
                ("Board", ""),
                STATE,
                ("Model", ""),
                ("Rack", ""),
                ("Slices", ""),
                ("Free", ""),
                ("Your jobs", ""),
            ],
            vec![rows.into_any()],
        )
    };
    view! {
        {table}
        <LoadMore cursor=cursor call=more load=Callback::new(load_more)/>
    }
}

/// Returns the facts of a row. A row with the same facts is not built anew.
fn row_key(board: &Board) -> String {
    let Board { uuid, node_name, model, labels, state, free, gpu, .. } = board;
    format!("{uuid} {node_name} {} {model} {labels:?} {state:?} {free:?} {:?}", gpu.index, gpu.tiles)
}

fn row(board: &Board, opened: RwSignal<Option<OpenBoard>>, ready: ReadSignal<bool>) -> AnyView {
    let name = board_name(&board.node_name, board.gpu.index);
    let id = format!("row-{}", board.uuid);
    let target = OpenBoard { uuid: board.uuid.clone(), from: id.clone() };
    let rack = board.labels.get(RACK_LABEL).cloned().unwrap_or_else(|| "–".to_owned());
    let free = free_text(&board.free);
    let free = if free.is_empty() { "none".to_owned() } else { free };
    let (model, state) = (board.model.clone(), state_text(board.state));
    let label = format!("Slices of {name}");
    let is_shared = board.gpu.tiles.iter().any(|tile| tile.gpu_milli.is_some());
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">
                <button
                    class="link-button"
                    type="button"
                    id=id
                    disabled=move || !ready.get()
                    on:click=move |_| opened.set(Some(target.clone()))
                >
                    {name}
                </button>
            </th>
            <td role="cell" class="table__state" data-label="State">{state}</td>
            <td role="cell" data-label="Model">{model}</td>
            <td role="cell" data-label="Rack">{rack}</td>
            <td role="cell" data-label="Slices">
                <BerthBar
                    tiles=board_tiles(&board.gpu)
                    cells=board.gpu.cells
                    blocked=board.gpu.blocked_cells.clone()
                    quarantined=board.gpu.quarantined.is_some()
                    undivided=is_shared
                    size=BarSize::Inline
                    label=label
                />
            </td>
            <td role="cell" data-label="Free">{free}</td>
            <td role="cell" data-label="Your jobs">{job_links(&board.gpu)}</td>
        </tr>
    }
    .into_any()
}
