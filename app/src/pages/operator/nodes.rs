//! Nodes as their operator sees them: state, boards, versions, cordons, and how to add one.
//!
//! Must not keep a join token longer than it is shown.

use std::future::Future;

use berth_types::nodes::{JoinToken, NewJoinToken, Node, NodeState, PatchNode};
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::super::parts::{Call, CallProblem, Loading, every, ready};
use super::super::words::counted;
use super::is_operator;
use crate::api;
use crate::api::Answer;
use crate::session::Page;
use crate::ui::*;

fn load() -> impl Future<Output = Answer<Vec<Node>>> + Send + 'static {
    let nodes = api::nodes::operator_list();
    async move { Ok(nodes.await?.items) }
}

/// The page with all nodes.
#[component]
pub fn NodesPage() -> impl IntoView {
    if is_operator() { view! { <Nodes/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn Nodes() -> impl IntoView {
    let data: Resource<Answer<Vec<Node>>> = Resource::new(|| (), |()| load());
    view! {
        <Page title="Nodes".to_owned()>
            <AddNode/>
            <Suspense fallback=|| view! { <Loading/> }>
                {move || Suspend::new(async move {
                    match data.await {
                        Err(problem) => view! { <ProblemNotice problem=problem/> }.into_any(),
                        Ok(nodes) => view! { <NodeList nodes=nodes/> }.into_any(),
                    }
                })}
            </Suspense>
        </Page>
    }
}

/// Makes a one-time ticket and shows the line to run on the host.
#[component]
fn AddNode() -> impl IntoView {
    let ready = ready();
    let call = Call::idle();
    let ticket = RwSignal::new(None::<JoinToken>);
    let make = move |_: leptos::ev::MouseEvent| {
        let body = NewJoinToken { valid_s: None };
        call.run(api::nodes::join_token(&body), move |made: JoinToken| ticket.set(Some(made)));
    };
    let shown = move || {
        ticket.with(|ticket| {
            ticket.as_ref().map(|ticket| {
                let command = ticket.command.clone();
                let expires = ticket.expires_at;
                view! {
                    <section class="secret" role="status">
                        <p>
                            <strong>"Run this on the host that has the GPUs."</strong>
                            " The ticket in it works once, until " <When at=expires/>
                            ", and is not shown again. The node appears below when it has joined."
                        </p>
                        <CopyBlock
                            text=Signal::derive(move || command.clone())
                            label="The line to run on the host".to_owned()
                        />
                    </section>
                }
            })
        })
    };
    view! {
        <p>
            <button
                class="btn btn--primary"
                type="button"
                disabled=move || !ready.get() || call.pending.get()
                aria-busy=move || call.pending.get().then_some("true")
                on:click=make
            >
                "Add a node"
            </button>
        </p>
        <CallProblem call=call beside_fields=&[]/>
        {shown}
    }
}

#[component]
fn NodeList(nodes: Vec<Node>) -> impl IntoView {
    let ready = ready();
    let nodes = RwSignal::new(nodes);
    let call = Call::idle();
    every(5_000, move || {
        spawn_local(async move {
            if let Ok(fresh) = load().await {
                nodes.maybe_update(|nodes| {
                    let moved = *nodes != fresh;
                    *nodes = fresh;
                    moved
                });
            }
        });
    });
    // One switch for all rows: a node is cordoned or not, and the answer replaces its row.
    let switch = move |node: &Node, cordoned: bool| {
        let body = PatchNode { cordoned };
        call.run(api::nodes::patch(node.id, &body), move |fresh: Node| {
            nodes.update(|nodes| {
                if let Some(known) = nodes.iter_mut().find(|known| known.id == fresh.id) {
                    *known = fresh;
                }
            });
        });
    };
    let rows = move || {
        let all = nodes.get();
        all.iter().map(|node| row(node, call, ready, switch)).collect::<Vec<AnyView>>()
    };
    let none = Memo::new(move |_| nodes.with(Vec::is_empty));
    view! {
        <CallProblem call=call beside_fields=&[]/>
        {move || nodes.with(|nodes| nodes.iter().filter_map(silent).collect::<Vec<AnyView>>())}
        {move || {
            if none.get() {
                view! {
                    <div class="empty">
                        <p class="empty__text">
                            "No node has joined yet. Add one: it takes one line on a host with a GPU, or on any Linux host with simulated boards."
                        </p>
                    </div>
                }
                    .into_any()
            } else {
                view! {
                    <div class="table-wrap">
                        <table class="table" role="table">
                            <caption class="visually-hidden">"Nodes"</caption>
                            <thead role="rowgroup">
                                <tr role="row">
                                    <th role="columnheader" scope="col">"Node"</th>
                                    <th role="columnheader" scope="col" class="table__state">"State"</th>
                                    <th role="columnheader" scope="col">"Boards"</th>
                                    <th role="columnheader" scope="col">"In use"</th>
                                    <th role="columnheader" scope="col">"Driver"</th>
                                    <th role="columnheader" scope="col">"Worker"</th>
                                    <th role="columnheader" scope="col" class="num">"Last seen"</th>
                                    <th role="columnheader" scope="col" class="table__actions">
                                        <span class="visually-hidden">"Actions"</span>
                                    </th>
                                </tr>
                            </thead>
                            <tbody role="rowgroup">{rows}</tbody>
                        </table>
                    </div>
                }
                    .into_any()
            }
        }}
    }
}

/// What it means that a node does not answer.
fn silent(node: &Node) -> Option<AnyView> {
    if node.state != NodeState::Unreachable {
        return None;
    }
    let title = format!("{} is silent", node.name);
    let id = node.id.to_string();
    let seen = node.last_seen_at.map(|at| view! { " It was last seen " <When at=at/> "." });
    Some(
        view! {
            <div class="banner banner--error" role="alert">
                <div class="banner__text">
                    <strong class="banner__title">{title}</strong>
                    "Nothing new is placed there. Its jobs may go on without telling; they are charged for proved use only."
                    {seen}
                    <span class="banner__id">{id}</span>
                </div>
            </div>
        }
        .into_any(),
    )
}

/// `8 × H100 80 GB, 2 × A30 24 GB`.
fn boards_text(node: &Node) -> String {
    let mut models: Vec<(&str, usize)> = Vec::new();
    for gpu in &node.gpus {
        match models.iter_mut().find(|(model, _)| *model == gpu.model) {
            Some((_, count)) => *count += 1,
            None => models.push((gpu.model.as_str(), 1)),
        }
    }
    if models.is_empty() {
        return "none".to_owned();
    }
    models.into_iter().map(|(model, count)| format!("{count} × {model}")).collect::<Vec<_>>().join(", ")
}

/// Every board of a node as one small bar: a cell a board, taken ones filled.
/// How much of a board is taken, in twentieths; a little of it shows as one.
fn twentieths(gpu: &berth_types::nodes::Gpu) -> u32 {
    let taken: u32 = gpu.tiles.iter().map(|tile| tile.placement.size).sum();
    (taken.saturating_mul(20) / gpu.cells.max(1)).clamp(1, 20)
}

fn in_use(node: &Node) -> AnyView {
    if node.gpus.is_empty() {
        return ().into_any();
    }
    let used = node.gpus.iter().filter(|gpu| !gpu.tiles.is_empty()).count();
    let label = format!("{used} of {} in use", counted(node.gpus.len(), "board", "boards"));
    let tile = |(start, gpu): (u32, &berth_types::nodes::Gpu)| {
        let owner = gpu.tiles.first()?.owner.as_ref();
        Some(BarTile {
            start,
            size: 1,
            label: String::new(),
            meta: String::new(),
            hue: owner.map_or(1, |owner| owner.hue),
            pattern: owner.map_or_else(|| "plain".to_owned(), |owner| owner.pattern.clone()),
            own: false,
            foreign: owner.is_none(),
            level: twentieths(gpu),
            aria: owner.map_or_else(|| "taken".to_owned(), |owner| owner.org_name.clone()),
        })
    };
    let tiles: Vec<BarTile> = (0_u32..).zip(&node.gpus).filter_map(tile).collect();
    let cells = u32::try_from(node.gpus.len()).unwrap_or(1);
    view! {
        <BerthBar
            tiles=tiles
            cells=cells
            blocked=Vec::new()
            quarantined=false
            size=BarSize::Inline
            label=label
        />
    }
    .into_any()
}

fn row(
    node: &Node,
    call: Call,
    ready: ReadSignal<bool>,
    switch: impl Fn(&Node, bool) + Copy + 'static,
) -> AnyView {
    let name = node.name.clone();
    let simulated = node.simulated.then(|| view! { " " <span class="tag tag--simulated">"simulated"</span> });
    let unisolated = node.unisolated.then(|| view! { " " <span class="tag tag--warn">"not isolated"</span> });
    let driver = node.driver_version.clone();
    let worker = node.worker_version.clone();
    let seen = match node.last_seen_at {
        Some(at) => view! { <When at=at/> }.into_any(),
        None => "never".into_any(),
    };
    let cordoned = node.state == NodeState::Cordoned;
    let verb = if cordoned { "Uncordon" } else { "Cordon" };
    let label = format!("{verb} {}", node.name);
    let what = if cordoned { "Take new jobs again" } else { "Runs what it runs, takes nothing new" };
    let this = node.clone();
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name}{simulated}{unisolated}</th>
            <td role="cell" class="table__state" data-label="State"><NodeBadge state=node.state/></td>
            <td role="cell" data-label="Boards">{boards_text(node)}</td>
            <td role="cell" data-label="In use">{in_use(node)}</td>
            <td role="cell" data-label="Driver">{driver}</td>
            <td role="cell" data-label="Worker">{worker}</td>
            <td role="cell" class="num" data-label="Last seen">{seen}</td>
            <td role="cell" class="table__actions">
                <button
                    class="btn btn--small"
                    type="button"
                    title=what
                    aria-label=label
                    disabled=move || !ready.get() || call.pending.get()
                    on:click=move |_| switch(&this, !cordoned)
                >
                    {verb}
                </button>
            </td>
        </tr>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boards_are_counted_by_model() {
        let gpu = |model: &str| {
            serde_json::json!({
                "uuid": "GPU", "index": 0, "model": model, "memory_mib": 1, "cells": 1, "blocked_cells": [],
                "mig_enabled": false, "tiles": [],
            })
        };
        let node: Node = serde_json::from_value(serde_json::json!({
            "id": "node_00000000000000000000000001", "name": "pier-01", "state": "ready", "simulated": true,
            "unisolated": true, "driver_version": "1", "worker_version": "1",
            "gpus": [gpu("H100"), gpu("A30"), gpu("H100")],
        }))
        .unwrap();
        assert_eq!(boards_text(&node), "2 × H100, 1 × A30");
        assert_eq!(boards_text(&Node { gpus: Vec::new(), ..node }), "none");
    }
}
