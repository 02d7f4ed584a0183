//! Page of the nodes: state, boards, versions, actions and join tokens. The filter is in the URL, and the portal
//! applies it. A join token is kept only on its page.

mod add;
mod approval;
pub mod aside;
mod classes;
mod dedication;
mod dialog;
mod drain;
mod labels;
mod list;
mod lost;
mod pool;
mod reserve;
mod trust;

use std::collections::BTreeMap;

use berth_types::ids::NodeId;
use berth_types::nodes::{Gpu, Node, NodeState, PatchNode};
use berth_types::operators::OperatorRight;
use leptos::prelude::*;
use leptos::task::spawn_local;
use leptos_router::hooks::use_query_map;

use self::add::AddNode;
use self::approval::{ApprovalState, WaitingNodes, remove_button};
use self::aside::{ReleaseDialog, aside_banner, state_lines};
use self::classes::{StorageClasses, host_mounts_text};
use self::dedication::{DedicationDialog, dedication_text};
use self::dialog::{NodeDialog, replace};
use self::drain::Drains;
use self::labels::{LabelsDialog, label_chips};
use self::list::{Loaded, MAX_REFRESHED, PAGE, filter_form, load, load_waiting, parse, refreshed};
use self::lost::{LostDialog, lost_button, silence_banner};
use self::pool::PoolDialog;
use self::reserve::BurstReserve;
use self::trust::{TrustDialog, clone_banner, left_out_banner};
use super::super::curl::ListCurl;
use super::super::load_more::LoadMore;
use super::super::org_data::answer_view;
use super::super::parts::{Call, CallProblem, every_visible, ready};
use super::super::text::counted;
use super::{is_operator, may, read_only};
use crate::api;
use crate::api::Answer;
use crate::session::Page;
use crate::ui::*;

/// The page of all nodes.
#[component]
pub fn NodesPage() -> impl IntoView {
    if is_operator() { view! { <Nodes/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn Nodes() -> impl IntoView {
    let query = use_query_map();
    let order = Memo::new(move |_| query.with(|query| parse(|name| query.get(name))));
    let data: Resource<Answer<Loaded>> = Resource::new(move || order.get(), load);
    let classes = Resource::new(|| (), |()| api::storage_classes::list());
    let pool = Resource::new(|| (), |()| api::nodes::inference_pool());
    view! {
        <Page title="Nodes".to_owned()>
            {read_only(OperatorRight::ManageFleet)}
            {may(OperatorRight::ManageFleet).then(|| view! { <AddNode/> })}
            {answer_view(data, |loaded| view! { <NodeList loaded=loaded/> }.into_any())}
            <BurstReserve data=pool/>
            <StorageClasses data=classes/>
        </Page>
    }
}

/// The dialogs of the rows.
#[derive(Clone, Copy)]
struct Dialogs {
    trust: NodeDialog,
    labels: NodeDialog,
    dedication: NodeDialog,
    pool: NodeDialog,
    drain: NodeDialog,
    lost: NodeDialog,
    release: NodeDialog,
    approval: ApprovalState,
}

impl Dialogs {
    fn closed(nodes: RwSignal<Vec<Node>>, approval: ApprovalState) -> Self {
        let closed = || NodeDialog::closed(nodes);
        Self {
            trust: closed(),
            labels: closed(),
            dedication: closed(),
            pool: closed(),
            drain: closed(),
            lost: closed(),
            release: closed(),
            approval,
        }
    }
}

#[component]
fn NodeList(loaded: Loaded) -> impl IntoView {
    let ready = ready();
    let form = filter_form(&loaded.order);
    let Loaded { order, nodes, cursor, waiting } = loaded;
    let is_filtered = order.is_filtered();
    let nodes = RwSignal::new(nodes);
    let approval = ApprovalState {
        waiting: RwSignal::new(waiting),
        nodes,
        chosen: RwSignal::new(None),
        open: RwSignal::new(false),
    };
    let cursor = RwSignal::new(cursor);
    let query = StoredValue::new(order.query());
    let call = Call::idle();
    let more = Call::idle();
    let load_more = move |()| {
        let next = api::nodes::operator_page(query.get_value(), cursor.get_untracked(), PAGE);
        more.run(next, move |page: berth_types::Page<Node>| {
            nodes.update(|nodes| nodes.extend(page.items));
            cursor.set(page.next_cursor);
        });
    };
    let dialogs = Dialogs::closed(nodes, approval);
    every_visible(5_000, move || {
        let limit = nodes.with_untracked(Vec::len).clamp(PAGE, MAX_REFRESHED);
        let fresh = api::nodes::operator_page(query.get_value(), None, limit);
        let waiting = load_waiting();
        spawn_local(async move {
            if let Ok(fresh) = waiting.await
                && more.pending.try_get_untracked().is_some()
            {
                approval.waiting.maybe_update(|nodes| {
                    let changed = *nodes != fresh;
                    *nodes = fresh;
                    changed
                });
            }
            // The next round repeats a failed request. A page that arrives during the request stays.
            if let Ok(page) = fresh.await
                && more.pending.try_get_untracked() == Some(false)
            {
                let next = page.next_cursor;
                nodes.maybe_update(|nodes| {
                    let fresh = refreshed(nodes, page.items, next.is_some());
                    if fresh.len() <= limit {
                        cursor.set(next);
                    }
                    let changed = *nodes != fresh;
                    *nodes = fresh;
                    changed
                });
            }
        });
    });
    // The answer replaces the row of the node.
    let set_cordoned = move |node: &Node, cordoned: bool| {
        let body = PatchNode { cordoned: Some(cordoned), ..PatchNode::default() };
        call.run(api::nodes::patch(node.id, &body), move |fresh: Node| replace(nodes, fresh));
    };
    // An open menu stays with its node when the rows move.
    let rows = move || {
        let ids = move || nodes.with(|nodes| nodes.iter().map(|node| node.id).collect::<Vec<NodeId>>());
        let find = move |id: NodeId| nodes.with(|nodes| nodes.iter().find(|node| node.id == id).cloned());
        let one = move |id: NodeId| {
            let node = Memo::new(move |_| find(id));
            move || node.with(|node| Some(row(node.as_ref()?, call, ready, dialogs, set_cordoned)))
        };
        view! { <For each=ids key=|id: &NodeId| *id children=one/> }.into_any()
    };
    let none = Memo::new(move |_| nodes.with(Vec::is_empty));
    view! {
        {form}
        <CallProblem call=call beside_fields=&[]/>
        <WaitingNodes state=approval ready=ready/>
        <TrustDialog state=dialogs.trust/>
        <LabelsDialog state=dialogs.labels/>
        <DedicationDialog state=dialogs.dedication/>
        <PoolDialog state=dialogs.pool/>
        <Drains state=dialogs.drain/>
        <LostDialog state=dialogs.lost/>
        <ReleaseDialog state=dialogs.release/>
        {move || nodes.with(|nodes| nodes.iter().filter_map(clone_banner).collect::<Vec<AnyView>>())}
        {move || nodes.with(|nodes| nodes.iter().filter_map(left_out_banner).collect::<Vec<AnyView>>())}
        {move || nodes.with(|nodes| nodes.iter().filter_map(|node| silence_banner(node, dialogs.lost, ready)).collect::<Vec<AnyView>>())}
        {move || nodes.with(|nodes| nodes.iter().filter_map(|node| aside_banner(node, dialogs.release, ready)).collect::<Vec<AnyView>>())}
        {move || {
            if none.get() && is_filtered {
                empty_filtered("No nodes match the filter.", "/operator/nodes")
            } else if none.get() {
                empty("No nodes yet. Add a node with one command on a GPU host, or on any Linux host with simulated boards.")
            } else {
                live_table(
                    "Nodes",
                    &[
                        ("Node", ""), STATE, ("Boards", ""), ("In use", ""), ("Driver", ""), ("Worker", ""),
                        ("Last seen", "num"), ACTIONS,
                    ],
                    rows(),
                )
            }
        }}
        <LoadMore cursor=cursor call=more load=Callback::new(load_more)/>
        <ListCurl
            path=Signal::derive(move || query.with_value(|query| format!("/operator/nodes?{query}")))
            label="Nodes with curl"
        />
    }
}

/// Returns the boards by model: `8 × H100 80 GB, 2 × A30 24 GB`.
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

/// Returns the NVLink islands: `NVLink: GPUs 0–3; GPUs 4–7`; `None` without NVLink.
fn nvlink_text(node: &Node) -> Option<String> {
    let mut islands: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for gpu in &node.gpus {
        if let Some(island) = gpu.nvlink_island {
            islands.entry(island).or_default().push(gpu.index);
        }
    }
    let island = |mut boards: Vec<u32>| {
        boards.sort_unstable();
        let run = |(start, size): (u32, u32)| match size {
            1 => start.to_string(),
            _ => format!("{start}–{}", start.saturating_add(size).saturating_sub(1)),
        };
        format!("GPUs {}", runs(&boards).into_iter().map(run).collect::<Vec<_>>().join(", "))
    };
    let islands: Vec<String> = islands.into_values().map(island).collect();
    (!islands.is_empty()).then(|| format!("NVLink: {}", islands.join("; ")))
}

/// Returns the used part of a board in twentieths, at least one.
fn twentieths(gpu: &Gpu) -> u32 {
    let shared: u32 = gpu.tiles.iter().filter_map(|tile| tile.gpu_milli).sum();
    let used: u32 = gpu.tiles.iter().map(|tile| tile.placement.size).sum();
    let twentieths = if shared > 0 {
        shared.saturating_mul(20) / 1_000
    } else {
        used.saturating_mul(20) / gpu.cells.max(1)
    };
    twentieths.clamp(1, 20)
}

/// Returns the boards of a node as a small bar with one cell for each board.
fn in_use(node: &Node) -> AnyView {
    if node.gpus.is_empty() {
        return ().into_any();
    }
    let used = node.gpus.iter().filter(|gpu| !gpu.tiles.is_empty()).count();
    let label = format!("{used} of {} in use", counted(node.gpus.len(), "board", "boards"));
    let tile = |(start, gpu): (u32, &Gpu)| {
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
            aria: owner.map_or_else(|| "in use".to_owned(), |owner| owner.org_name.clone()),
        })
    };
    let tiles: Vec<BarTile> = (0_u32..).zip(&node.gpus).filter_map(tile).collect();
    let cells = u32::try_from(node.gpus.len()).unwrap_or(1);
    view! {
        <BerthBar
            tiles=tiles
            cells=cells
            size=BarSize::Inline
            label=label
        />
    }
    .into_any()
}

/// Returns the isolation of a node: its sandbox, its limits, the network between ranks, the clearing of GPU memory
/// between jobs, and the reasons for missing images or boards.
fn isolation_text(node: &Node) -> Option<String> {
    let sandbox = node.isolation.get("sandbox")?;
    let limits: Vec<String> = ["memory", "cpu", "pids", "network"]
        .iter()
        .filter_map(|name| Some(format!("{name}: {}", node.isolation.get(*name)?)))
        .collect();
    let off =
        |name: &str| node.isolation.get(name).map_or_else(String::new, |text| format!("; {name}: {text}"));
    let memory = node.isolation.get("gpu_memory");
    let memory = memory.map_or_else(String::new, |text| format!("; GPU memory between jobs: {text}"));
    let gangs = node.isolation.get("gang_network");
    let gangs = gangs.map_or_else(String::new, |text| format!("; network between ranks: {text}"));
    Some(format!("{sandbox}; {}{gangs}{memory}{}{}", limits.join(", "), off("images"), off("boards")))
}

/// The tags after the name of a node.
fn tags(node: &Node) -> AnyView {
    let simulated = node.simulated.then(|| view! { " " <span class="tag tag--simulated">"simulated"</span> });
    let unisolated = node.unisolated.then(|| view! { " " <span class="tag tag--warn">"not isolated"</span> });
    let has_host_network = node.isolation.get("network").is_some_and(|text| text.starts_with("host"));
    let host_network =
        has_host_network.then(|| view! { " " <span class="tag tag--warn">"host network"</span> });
    view! { {simulated}{unisolated}{host_network} }.into_any()
}

fn row(
    node: &Node,
    call: Call,
    ready: ReadSignal<bool>,
    dialogs: Dialogs,
    set_cordoned: impl Fn(&Node, bool) + Copy + Send + 'static,
) -> AnyView {
    let name = node.name.clone();
    let tags = tags(node);
    let boards = format!("/operator/nodes/{}", node.id);
    let to_boards = boards.clone();
    let boards_label = format!("Boards of {}", node.name);
    let menu = format!("Actions of {}", node.name);
    let labels = label_chips(node);
    let dedicated = dedication_text(node).map(|text| view! { <span class="table__sub">{text}</span> });
    let pool = node.pool.text().map(|text| view! { <span class="table__sub">{text}</span> });
    let isolation = isolation_text(node).map(|text| view! { <span class="table__sub">{text}</span> });
    let mounts = host_mounts_text(node).map(|text| view! { <span class="table__sub">{text}</span> });
    let nvlink = nvlink_text(node).map(|text| view! { <span class="table__sub">{text}</span> });
    let driver = node.driver_version.clone();
    let worker = node.worker_version.clone().unwrap_or_default();
    let seen = match node.last_seen_at {
        Some(at) => view! { <When at=at/> }.into_any(),
        None => "never".into_any(),
    };
    let cordoned = matches!(node.state, NodeState::Cordoned | NodeState::Draining);
    let verb = if cordoned { "Uncordon" } else { "Cordon" };
    let label = format!("{verb} {}", node.name);
    let effect = if cordoned { "Accept new jobs again" } else { "No new jobs; running jobs continue" };
    let this = node.clone();
    let manages = may(OperatorRight::ManageFleet);
    let item = |dialog: NodeDialog, text: &'static str, label: String| {
        dialog.button(node.id, "menu__item", text, label, ready)
    };
    let certificate = item(dialogs.trust, "Certificate", format!("Certificate of {}", node.name));
    let drain = manages.then(|| item(dialogs.drain, "Drain", format!("Drain {}", node.name)));
    let edit_labels = manages.then(|| item(dialogs.labels, "Labels", format!("Labels of {}", node.name)));
    let dedicate = manages.then(|| item(dialogs.dedication, "Dedicate", format!("Dedicate {}", node.name)));
    let set_pool = manages.then(|| item(dialogs.pool, "Pool", format!("Pool of {}", node.name)));
    let declare_lost = lost_button(dialogs.lost, node, "menu__item menu__item--danger", ready);
    let remove = remove_button(dialogs.approval, node, ready);
    let cordon = manages.then(|| {
        view! {
            <button
                class="menu__item"
                type="button"
                title=effect
                aria-label=label
                disabled=move || !ready.get() || call.pending.get()
                on:click=move |_| set_cordoned(&this, !cordoned)
            >
                {verb}
            </button>
        }
    });
    view! {
        <tr role="row">
            <th role="rowheader" scope="row"><a href=boards>{name}</a>{tags}{dedicated}{pool}{labels}</th>
            <td role="cell" class="table__state" data-label="State"><NodeBadge state=node.state/>{state_lines(node)}</td>
            <td role="cell" data-label="Boards">{boards_text(node)}{nvlink}</td>
            <td role="cell" data-label="In use">{in_use(node)}</td>
            <td role="cell" data-label="Driver">{driver}</td>
            <td role="cell" data-label="Worker">{worker}{isolation}{mounts}</td>
            <td role="cell" class="num" data-label="Last seen">{seen}</td>
            <td role="cell" class="table__actions">
                <Menu label=menu>
                    <a class="menu__item" href=to_boards aria-label=boards_label>"Boards"</a>
                    {certificate}
                    {cordon}
                    {edit_labels}
                    {dedicate}
                    {set_pool}
                    {drain}
                    {declare_lost}
                    {remove}
                </Menu>
            </td>
        </tr>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::nodes::{HostMount, Tile};

    /// A node with a board for each model and island.
    fn node(boards: &[(&str, Option<u32>)]) -> Node {
        let gpu = |(index, (model, island)): (usize, &(&str, Option<u32>))| {
            serde_json::json!({
                "uuid": "GPU", "index": index, "model": model, "memory_mib": 1, "cells": 8, "blocked_cells": [],
                "mig_enabled": false, "nvlink_island": island, "tiles": [],
            })
        };
        let gpus: Vec<serde_json::Value> = boards.iter().enumerate().map(gpu).collect();
        serde_json::from_value(serde_json::json!({
            "id": "node_00000000000000000000000001", "name": "pier-01", "state": "ready", "simulated": true,
            "unisolated": true, "driver_version": "1", "worker_version": "1", "gpus": gpus,
        }))
        .unwrap()
    }

    #[test]
    fn boards_are_counted_by_model() {
        assert_eq!(boards_text(&node(&[("H100", None), ("A30", None), ("H100", None)])), "2 × H100, 1 × A30");
        assert_eq!(boards_text(&node(&[])), "none");
    }

    #[test]
    fn nvlink_islands_are_listed() {
        assert_eq!(nvlink_text(&node(&[("H100", None), ("A30", None)])), None);
        let one = node(&[("H100", Some(1)); 8]);
        assert_eq!(nvlink_text(&one).as_deref(), Some("NVLink: GPUs 0–7"));
        let (a, b) = (("H100", Some(1)), ("A100", Some(2)));
        let two = node(&[a, a, ("A30", None), b, b, a]);
        assert_eq!(nvlink_text(&two).as_deref(), Some("NVLink: GPUs 0–1, 5; GPUs 3–4"));
    }

    #[test]
    fn host_mounts_have_their_free_space() {
        let mut node = node(&[]);
        assert_eq!(host_mounts_text(&node), None);
        let mount = |name: &str, file_system: &str| HostMount {
            name: name.to_owned(),
            file_system: file_system.to_owned(),
            total_bytes: 4 << 30,
            free_bytes: 1 << 30,
        };
        node.host_mounts = vec![mount("home", ""), mount("scratch", "lustre")];
        let text = host_mounts_text(&node).unwrap();
        assert!(text.starts_with("Host mounts: home (unknown type, "), "{text}");
        assert!(text.contains("scratch (lustre, "), "{text}");
    }

    #[test]
    fn isolation_has_a_short_text() {
        let mut node = node(&[]);
        assert_eq!(isolation_text(&node), None, "a worker without a report");
        for (name, text) in [("sandbox", "bubblewrap 0.8"), ("memory", "cgroup v1"), ("seccomp", "on")] {
            node.isolation.insert(name.to_owned(), text.to_owned());
        }
        assert_eq!(isolation_text(&node).as_deref(), Some("bubblewrap 0.8; memory: cgroup v1"));
        node.isolation.insert("pids".to_owned(), "not limited".to_owned());
        let text = "bubblewrap 0.8; memory: cgroup v1, pids: not limited";
        assert_eq!(isolation_text(&node).as_deref(), Some(text));
        node.isolation.insert("network".to_owned(), "host".to_owned());
        let text = format!("{text}, network: host");
        assert_eq!(isolation_text(&node).as_ref(), Some(&text));
        node.isolation.insert("images".to_owned(), "off: podman is not installed".to_owned());
        let text = format!("{text}; images: off: podman is not installed");
        assert_eq!(isolation_text(&node).as_ref(), Some(&text));
        node.isolation.insert("boards".to_owned(), "waiting for NVML".to_owned());
        let text = format!("{text}; boards: waiting for NVML");
        assert_eq!(isolation_text(&node), Some(text));
        node.isolation.insert("gpu_memory".to_owned(), "cleared between organizations".to_owned());
        let text = isolation_text(&node).unwrap_or_default();
        assert!(text.contains("; GPU memory between jobs: cleared between organizations; images:"), "{text}");
        node.isolation.insert("gang_network".to_owned(), "VXLAN, not encrypted".to_owned());
        let text = isolation_text(&node).unwrap_or_default();
        assert!(text.contains("; network between ranks: VXLAN, not encrypted; GPU memory"), "{text}");
    }

    #[test]
    fn the_used_part_of_a_board_is_the_sum_of_its_tiles() {
        let tile = |milli: Option<u32>| {
            let placement = serde_json::json!({"start": 0, "size": 4});
            serde_json::from_value(serde_json::json!({"placement": placement, "gpu_milli": milli})).unwrap()
        };
        let board = node(&[("H100", None)]).gpus.remove(0);
        let full = |tiles: Vec<Tile>| twentieths(&Gpu { tiles, ..board.clone() });
        assert_eq!((full(vec![tile(None)]), full(vec![tile(Some(100)), tile(Some(150))])), (10, 5));
        assert_eq!(full(vec![tile(Some(1))]), 1);
    }
}
