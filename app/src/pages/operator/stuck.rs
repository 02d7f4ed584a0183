//! What does not go on by itself: since when, why, and what helps.
//!
//! Must not act by itself: it leads to where somebody can.

use std::future::Future;

use berth_types::operations::{Stuck, StuckHelp};
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::super::parts::{Loading, every};
use super::is_operator;
use crate::api;
use crate::api::Answer;
use crate::session::Page;
use crate::ui::*;

fn load() -> impl Future<Output = Answer<Vec<Stuck>>> + Send + 'static {
    let stuck = api::operations::stuck();
    async move { Ok(stuck.await?.items) }
}

/// The page with all that is stuck.
#[component]
pub fn StuckPage() -> impl IntoView {
    if is_operator() { view! { <AllStuck/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn AllStuck() -> impl IntoView {
    let data: Resource<Answer<Vec<Stuck>>> = Resource::new(|| (), |()| load());
    view! {
        <Page title="Stuck".to_owned()>
            <p class="page__lead">"Jobs and remains of jobs that do not go on by themselves, the longest first."</p>
            <Suspense fallback=|| view! { <Loading/> }>
                {move || Suspend::new(async move {
                    match data.await {
                        Err(problem) => view! { <ProblemNotice problem=problem/> }.into_any(),
                        Ok(stuck) => view! { <List stuck=stuck/> }.into_any(),
                    }
                })}
            </Suspense>
        </Page>
    }
}

#[component]
fn List(stuck: Vec<Stuck>) -> impl IntoView {
    let stuck = RwSignal::new(stuck);
    every(10_000, move || {
        let fresh = load();
        spawn_local(async move {
            // What cannot be fetched now leaves what is shown; the next round tries again.
            if let Ok(fresh) = fresh.await {
                stuck.maybe_update(|known| {
                    let moved = *known != fresh;
                    *known = fresh;
                    moved
                });
            }
        });
    });
    move || stuck.with(|stuck| table(stuck))
}

fn table(stuck: &[Stuck]) -> AnyView {
    if stuck.is_empty() {
        return empty(
            "Nothing is stuck. A job stands here when its node is silent for two minutes, when it has a place for ten minutes and no process, when it does not stop in its time, and when what is left of it cannot be closed.",
        );
    }
    let rows: Vec<AnyView> = stuck.iter().map(row).collect();
    table_of(
        "What is stuck, the longest first",
        &[("Job", ""), STATE, ("Node", ""), ("Since", ""), ("Why", ""), ("What helps", "")],
        rows,
    )
}

/// Where something can be done about it, and its name.
fn way(stuck: &Stuck) -> (String, &'static str) {
    match stuck.help {
        StuckHelp::StopJob => (format!("/operator/jobs?org={}&node={}", stuck.org, stuck.node), "Jobs there"),
        StuckHelp::SeeNode | StuckHelp::DrainNode => ("/operator/nodes".to_owned(), "Nodes"),
    }
}

fn row(stuck: &Stuck) -> AnyView {
    let name = stuck.job_name.clone();
    let below = format!("{}, attempt {}", stuck.job, stuck.attempt);
    let org = stuck.org_name.clone();
    let node = stuck.node_name.clone();
    let (path, place) = way(stuck);
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name} " of " {org}<span class="table__sub mono">{below}</span></th>
            <td role="cell" class="table__state" data-label="State"><StateBadge state=stuck.state/></td>
            <td role="cell" data-label="Node">{node}</td>
            <td role="cell" class="nowrap" data-label="Since"><When at=stuck.since/></td>
            <td role="cell" class="table__lead" data-label="Why">{stuck.cause.text()}</td>
            <td role="cell" class="table__lead" data-label="What helps">
                {stuck.help.text()} " " <a href=path>{place}</a>
            </td>
        </tr>
    }
    .into_any()
}
