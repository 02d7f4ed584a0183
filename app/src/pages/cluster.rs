//! Page of the cluster: all boards with the jobs of the organization.
//!
//! The organizations behind other tiles stay private.

use std::future::Future;

use berth_types::ids::OrgId;
use berth_types::nodes::{Gpu, Node, NodeState};
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::org_data::org_view;
use super::parts::every;
use super::text::counted;
use crate::api;
use crate::api::Answer;
use crate::session::Page;
use crate::ui::*;

/// Milliseconds between two requests.
const REFRESH_MS: u64 = 3_000;

fn load(org: OrgId) -> impl Future<Output = Answer<(OrgId, Vec<Node>)>> + Send + 'static {
    let nodes = api::nodes::list(org);
    async move { Ok((org, nodes.await?.items)) }
}

/// The page of all nodes.
#[component]
pub fn ClusterPage() -> impl IntoView {
    view! {
        <Page title="Cluster".to_owned()>
            {org_view(load, |(org, nodes): (OrgId, Vec<Node>)| view! { <Map org=org nodes=nodes/> }.into_any())}
        </Page>
    }
}

#[component]
fn Map(org: OrgId, nodes: Vec<Node>) -> impl IntoView {
    let nodes = RwSignal::new(nodes);
    // Failed requests since the last successful one.
    let missed = RwSignal::new(0_u32);
    every(REFRESH_MS, move || {
        spawn_local(async move {
            match api::nodes::list(org).await {
                Ok(fresh) => {
                    missed.set(0);
                    // Unchanged nodes are not redrawn, so that the focus stays.
                    nodes.maybe_update(|nodes| {
                        let moved = *nodes != fresh.items;
                        *nodes = fresh.items;
                        moved
                    });
                }
                Err(_) => missed.update(|missed| *missed = missed.saturating_add(1)),
            }
        });
    });
    let age = move || match missed.get() {
        0 => ().into_any(),
        missed => {
            let seconds = u64::from(missed).saturating_mul(REFRESH_MS) / 1_000;
            view! {
                <span class="live live--lost" role="status">
                    {format!("live view interrupted, retrying; data is {seconds} s old")}
                </span>
            }
            .into_any()
        }
    };
    view! {
        <div class="row">
            <Legend/>
            <span class="row__end">{age}</span>
        </div>
        {move || {
            let nodes = nodes.get();
            if nodes.is_empty() {
                empty("No nodes yet. The operator adds nodes under Nodes; their boards appear here within seconds.")
            } else {
                let cards: Vec<AnyView> = nodes.iter().map(node_card).collect();
                view! { <div class="map">{cards}</div> }.into_any()
            }
        }}
    }
}

/// Counts memory slices that a job can use.
pub fn free_cells(gpu: &Gpu) -> u32 {
    // A shared board accepts only further shares.
    if gpu.quarantined.is_some() || gpu.tiles.iter().any(|tile| tile.gpu_milli.is_some()) {
        return 0;
    }
    let taken: u32 = gpu.tiles.iter().map(|tile| tile.placement.size).sum();
    let blocked = u32::try_from(gpu.blocked_cells.len()).unwrap_or(u32::MAX);
    gpu.cells.saturating_sub(taken).saturating_sub(blocked)
}

/// Returns the free capacity: `2 of 8 boards free, 11 memory slices free`.
fn free_text(node: &Node) -> String {
    let boards = node.gpus.iter().filter(|gpu| gpu.tiles.is_empty() && gpu.quarantined.is_none()).count();
    let slices: u32 = node.gpus.iter().filter(|gpu| gpu.cells > 1).map(free_cells).sum();
    let boards = format!("{boards} of {} free", counted(node.gpus.len(), "board", "boards"));
    if node.gpus.iter().any(|gpu| gpu.cells > 1) {
        let slices = counted(usize::try_from(slices).unwrap_or(usize::MAX), "memory slice", "memory slices");
        format!("{boards}, {slices} free")
    } else {
        boards
    }
}

/// Returns the reported power, temperature and utilization.
fn readings(gpu: &Gpu) -> String {
    let power = gpu.power_watts.map(|watts| format!("{watts:.0} W"));
    let heat = gpu.temperature_celsius.map(|degrees| format!("{degrees:.0} °C"));
    let used = gpu.utilization_percent.map(|percent| format!("{percent:.0} % utilization"));
    let all: Vec<String> = [power, heat, used].into_iter().flatten().collect();
    if all.is_empty() { "no metrics".to_owned() } else { all.join(" · ") }
}

fn node_card(node: &Node) -> AnyView {
    let boards: Vec<AnyView> = node.gpus.iter().map(|gpu| board(gpu, &node.name)).collect();
    let name = node.name.clone();
    let label = node.name.clone();
    let class = if node.state == NodeState::Unreachable { "map__node map__node--lost" } else { "map__node" };
    let simulated = node.simulated.then(|| view! { <span class="tag tag--simulated">"simulated"</span> });
    let unisolated = node.unisolated.then(|| view! { <span class="tag tag--warn">"not isolated"</span> });
    let seen = node.last_seen_at.filter(|_| node.state == NodeState::Unreachable);
    let note = match seen {
        Some(at) => view! { "last seen " <When at=at/> }.into_any(),
        None => free_text(node).into_any(),
    };
    view! {
        <section class=class aria-label=label>
            <div class="map__head">
                <h2 class="map__name">{name}</h2>
                <NodeBadge state=node.state/>
                {simulated}
                {unisolated}
                <span class="map__aside">{note}</span>
            </div>
            <ul class="list">{boards}</ul>
        </section>
    }
    .into_any()
}

fn board(gpu: &Gpu, node: &str) -> AnyView {
    let note = gpu.quarantined.as_ref().map(|reason| {
        let text = format!("Quarantined: {reason}");
        view! { <p class="map__note map__note--bad">{text}</p> }
    });
    let readings = readings(gpu);
    let gpu = gpu.clone();
    let node = node.to_owned();
    view! {
        <li class="list__item">
            <div class="list__main">
                <GpuBar gpu=gpu node_name=node size=BarSize::Full/>
                <p class="quiet small num">{readings}</p>
                {note}
            </div>
        </li>
    }
    .into_any()
}

/// The legend of the bar patterns.
#[component]
fn Legend() -> impl IntoView {
    let entry = |class: &'static str, hue: Option<&'static str>, text: &'static str| {
        let pattern = hue.map(|_| "plain");
        view! {
            <li>
                <span class="berth-bar berth-bar--inline" aria-hidden="true" data-cells="1">
                    <span class=class data-start="0" data-size="1" data-hue=hue data-pattern=pattern></span>
                </span>
                " "
                {text}
            </li>
        }
    };
    view! {
        <ul class="legend">
            {entry("tile tile--own", Some("1"), "your jobs")}
            {entry("tile tile--foreign", None, "in use by others")}
            {entry("cell", None, "free")}
            {entry("cell cell--blocked", None, "free, no profile fits")}
            {entry("cell cell--quarantined", None, "quarantined")}
        </ul>
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::jobs::Placement;
    use berth_types::nodes::Tile;

    fn gpu(cells: u32, tiles: &[(u32, u32)], blocked: Vec<u32>) -> Gpu {
        let tile = |(start, size): &(u32, u32)| Tile {
            placement: Placement { start: *start, size: *size },
            profile: None,
            gpu_milli: None,
            quarantined: None,
            owner: None,
        };
        Gpu {
            uuid: "GPU-1".to_owned(),
            index: 0,
            model: "H100".to_owned(),
            memory_mib: 81_920,
            cells,
            blocked_cells: blocked,
            mig_enabled: cells > 1,
            nvlink_island: None,
            quarantined: None,
            tiles: tiles.iter().map(tile).collect(),
            power_watts: Some(71.6),
            temperature_celsius: None,
            utilization_percent: Some(0.0),
        }
    }

    #[test]
    fn free_slices_are_usable_slices() {
        assert_eq!(free_cells(&gpu(8, &[(0, 4), (4, 2)], vec![7])), 1);
        assert_eq!(free_cells(&gpu(1, &[], Vec::new())), 1);
        let broken = Gpu { quarantined: Some("a process is left".to_owned()), ..gpu(8, &[], Vec::new()) };
        assert_eq!(free_cells(&broken), 0);
        let mut shared = gpu(8, &[(0, 1)], Vec::new());
        shared.tiles.iter_mut().for_each(|tile| tile.gpu_milli = Some(100));
        assert_eq!(free_cells(&shared), 0);
    }

    #[test]
    fn absent_readings_are_left_out() {
        assert_eq!(readings(&gpu(8, &[], Vec::new())), "72 W · 0 % utilization");
        let silent = Gpu { power_watts: None, utilization_percent: None, ..gpu(8, &[], Vec::new()) };
        assert_eq!(readings(&silent), "no metrics");
    }
}
