//! Page of the cluster: all boards as a map or as a table, and the details of one board.
//!
//! The organizations behind other tiles stay private. The filter is a part of the address.

mod choice;
mod filters;
mod layout;
mod map;
mod panel;
mod summary;
mod table;
mod text;

use std::future::Future;

use berth_types::cluster::ClusterMap;
use berth_types::ids::OrgId;
use leptos::prelude::*;
use leptos::task::spawn_local;
use leptos_router::hooks::use_query_map;
use serde::{Deserialize, Serialize};

use self::choice::Choice;
use self::filters::{Filters, Views};
use self::map::BoardMap;
use self::panel::{BoardPanel, OpenBoard, REFRESH_MS};
use self::summary::{ModelSummary, summaries};
use self::table::BoardTable;
use super::limits::replace;
use super::org_data::org_view;
use super::parts::{Loading, every_visible};
use super::text::{counted, grouped};
use crate::address::use_org_links;
use crate::api;
use crate::api::Answer;
use crate::session::Page;
use crate::ui::*;

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    org: OrgId,
    map: ClusterMap,
    /// The tag of the map for later requests.
    tag: Option<String>,
}

fn load(org: OrgId) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let answer = api::nodes::map(org, None);
    async move {
        let (map, tag) = answer.await?.unwrap_or_default();
        Ok(Loaded { org, map, tag })
    }
}

/// The page of all boards.
#[component]
pub fn ClusterPage() -> impl IntoView {
    view! {
        <Page title="Cluster".to_owned()>
            {org_view(load, |loaded: Loaded| view! { <Cluster loaded=loaded/> }.into_any())}
        </Page>
    }
}

#[component]
fn Cluster(loaded: Loaded) -> impl IntoView {
    let Loaded { org, map, tag } = loaded;
    let map = RwSignal::new(map);
    let tag = StoredValue::new(tag);
    // Failed requests since the last successful one.
    let missed = RwSignal::new(0_u32);
    every_visible(REFRESH_MS, move || {
        let Some(known) = tag.try_get_value() else { return };
        let answer = api::nodes::map(org, known);
        spawn_local(async move {
            match answer.await {
                Ok(changed) => {
                    replace(missed, 0);
                    if let Some((fresh, fresh_tag)) = changed {
                        tag.set_value(fresh_tag);
                        replace(map, fresh);
                    }
                }
                Err(_) => missed.update(|missed| *missed = missed.saturating_add(1)),
            }
        });
    });
    let query = use_query_map();
    let choice = Memo::new(move |_| query.with(|query| Choice::parse(|name| query.get(name))));
    let none = Memo::new(move |_| map.with(|map| map.nodes.is_empty()));
    move || {
        if none.get() {
            return empty(
                "No boards yet. The operator adds nodes under Nodes; their boards appear here within seconds.",
            );
        }
        view! { <Boards org=org map=map choice=choice missed=missed/> }.into_any()
    }
}

#[component]
fn Boards(
    org: OrgId,
    map: RwSignal<ClusterMap>,
    choice: Memo<Choice>,
    missed: RwSignal<u32>,
) -> impl IntoView {
    let opened = RwSignal::new(None::<OpenBoard>);
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
    let summary = Memo::new(move |_| map.with(summaries));
    let matching = Memo::new(move |_| {
        map.with(|map| {
            let boards = map.nodes.iter().flat_map(|node| node.boards.iter().map(move |board| (node, board)));
            choice.with(|choice| {
                boards.filter(|(node, board)| choice.filter.matches(&map.facts(node, board))).count()
            })
        })
    });
    let total =
        Memo::new(move |_| map.with(|map| map.nodes.iter().map(|node| node.boards.len()).sum::<usize>()));
    let ready = ready();
    let is_table = Memo::new(move |_| choice.with(|choice| choice.table));
    let links = use_org_links();
    let clear = move || links.tracked_path(&Choice::unfiltered(&choice.get()).page());
    let matches = move || {
        choice.with(Choice::is_filtered).then(|| {
            let number = grouped(i64::try_from(matching.get()).unwrap_or(i64::MAX));
            let text = format!("{number} of {} match the filter. ", counted(total.get(), "board", "boards"));
            view! { {text} <a href=clear>"Clear filter"</a> }
        })
    };
    view! {
        <Views choice=choice/>
        <Filters map=map choice=choice/>
        <div class="stack">
            <ul class="boards__summary">{move || summary.get().into_iter().map(summary_line).collect_view()}</ul>
            <div class="row boards__status">
                <p role="status">{matches}</p>
                <span class="row__end">{age}</span>
            </div>
            {move || {
                if is_table.get() && !ready.get() {
                    // The table loads its own rows. A load inside a rendered load does not hydrate safely.
                    view! { <Loading/> }.into_any()
                } else if is_table.get() {
                    view! { <BoardTable org=org map=map choice=choice opened=opened/> }.into_any()
                } else {
                    view! {
                        <Legend choice=choice/>
                        <BoardMap map=map choice=choice opened=opened/>
                    }
                        .into_any()
                }
            }}
        </div>
        <BoardPanel org=org opened=opened/>
    }
}

fn summary_line(summary: ModelSummary) -> AnyView {
    let text = format!(": {}", summary.text());
    view! { <li><strong>{summary.model}</strong>{text}</li> }.into_any()
}

/// The classes and the texts of the legend by state.
const STATES: [(&str, &str); 9] = [
    ("board board--full board--own board--n1 o0", "your jobs"),
    ("board board--full board--n1 x0", "in use by others"),
    ("board board--free board--n1", "free"),
    ("board board--partly-free board--n4 x0 x1", "partly free"),
    ("board board--full board--n1 b0", "free memory, too small for any slice"),
    ("board board--quarantined board--n1", "quarantined"),
    ("board board--draining board--n1", "node draining"),
    ("board board--cordoned board--n1", "node cordoned"),
    ("board board--not-connected board--n1", "node not connected"),
];

/// The classes and the texts of the legend by use.
const USE: [(&str, &str); 5] = [
    ("board board--used board--used-0", "not in use"),
    ("board board--used board--used-1", "up to a quarter in use"),
    ("board board--used board--used-2", "up to half"),
    ("board board--used board--used-3", "more than half"),
    ("board board--used board--used-4", "all in use"),
];

/// The legend of the map.
#[component]
fn Legend(choice: Memo<Choice>) -> impl IntoView {
    let by_use = Memo::new(move |_| choice.with(|choice| choice.by_use));
    let entry = |(class, text): &(&'static str, &'static str)| {
        let (class, text) = (*class, *text);
        view! { <li><span class=class aria-hidden="true"></span> {text}</li> }
    };
    let entries = move || {
        let all: &[(&'static str, &'static str)] = if by_use.get() { &USE } else { &STATES };
        all.iter().map(entry).collect_view()
    };
    view! { <ul class="legend">{entries}</ul> }
}
