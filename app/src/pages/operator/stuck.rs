//! Page of the stuck jobs with cause and remedy, and a link to the page of the remedy.

use std::future::Future;

use berth_types::Page as Rows;
use berth_types::ids::{JobId, NodeId};
use berth_types::operations::{Stuck, StuckCause, StuckHelp};
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::super::curl::ListCurl;
use super::super::limits::replace;
use super::super::load_more::{LoadMore, append, joined, refresh_limit};
use super::super::org_data::answer_view;
use super::super::parts::{Call, every_visible};
use super::is_operator;
use crate::api;
use crate::api::Answer;
use crate::api::escape::escaped;
use crate::session::Page;
use crate::ui::*;

fn load() -> impl Future<Output = Answer<Rows<Stuck>>> + Send + 'static {
    api::operations::stuck(None, refresh_limit(0))
}

/// Returns the identity of an entry: a rank may be stuck for two causes.
fn key(stuck: &Stuck) -> (JobId, u32, NodeId, StuckCause) {
    (stuck.job, stuck.attempt, stuck.node, stuck.cause)
}

/// The page of all stuck jobs.
#[component]
pub fn StuckPage() -> impl IntoView {
    if is_operator() { view! { <AllStuck/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn AllStuck() -> impl IntoView {
    let data: Resource<Answer<Rows<Stuck>>> = Resource::new(|| (), |()| load());
    view! {
        <Page title="Needs attention".to_owned()>
            <p class="page__lead">"Jobs without progress that need an operator, oldest first."</p>
            {answer_view(data, |first| view! { <List first=first/> }.into_any())}
        </Page>
    }
}

#[component]
fn List(first: Rows<Stuck>) -> impl IntoView {
    let (stuck, cursor) = (RwSignal::new(first.items), RwSignal::new(first.next_cursor));
    let more = Call::idle();
    every_visible(10_000, move || {
        let fresh = api::operations::stuck(None, refresh_limit(stuck.with_untracked(Vec::len)));
        spawn_local(async move {
            // The next round repeats a failed request.
            let Ok(fresh) = fresh.await else { return };
            // The page may have been left during the request.
            let (Some(known), Some(from)) = (stuck.try_get_untracked(), cursor.try_get_untracked()) else {
                return;
            };
            let Rows { items, next_cursor } = joined(known, from, fresh, key);
            replace(stuck, items);
            replace(cursor, next_cursor);
        });
    });
    let load_more = move |()| {
        let from = cursor.get_untracked();
        more.run(api::operations::stuck(from.clone(), refresh_limit(0)), move |page: Rows<Stuck>| {
            // The page does not follow on a list that was replaced meanwhile.
            if cursor.try_get_untracked() == Some(from) {
                stuck.update(|stuck| append(stuck, page.items, key));
                cursor.set(page.next_cursor);
            }
        });
    };
    view! {
        {move || stuck.with(|stuck| table(stuck))}
        <LoadMore cursor=cursor call=more load=Callback::new(load_more)/>
        <ListCurl path="/operator/stuck" label="Stuck jobs with curl"/>
    }
}

fn table(stuck: &[Stuck]) -> AnyView {
    if stuck.is_empty() {
        return empty(
            "Nothing needs attention. A job appears here if its node is not connected for 2 minutes, if it has devices but no process for 10 minutes, if it does not stop within its grace period, or if its cleanup fails.",
        );
    }
    let rows: Vec<AnyView> = stuck.iter().map(row).collect();
    table_of(
        "Stuck jobs, oldest first",
        &[("Job", ""), STATE, ("Node", ""), ("Since", ""), ("Cause", ""), ("Remedy", "")],
        rows,
    )
}

/// Returns path and label of the page of the remedy.
fn remedy_link(stuck: &Stuck) -> (String, &'static str) {
    match stuck.help {
        StuckHelp::StopJob => (format!("/operator/jobs?org={}&node={}", stuck.org, stuck.node), "Show jobs"),
        StuckHelp::SeeNode | StuckHelp::DrainNode => {
            (format!("/operator/nodes?name={}", escaped(&stuck.node_name)), "Show node")
        }
        StuckHelp::ResetBoard => (format!("/operator/nodes/{}", stuck.node), "Show boards"),
    }
}

fn row(stuck: &Stuck) -> AnyView {
    let name = stuck.job_name.clone();
    let below = format!("{}, attempt {}", stuck.job, stuck.attempt);
    let org = stuck.org_name.clone();
    let node = stuck.node_name.clone();
    let (path, label) = remedy_link(stuck);
    let elsewhere = (stuck.over && !stuck.state.ended())
        .then(|| view! { <span class="table__sub">"without this attempt"</span> });
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name} " of " {org}<span class="table__sub mono">{below}</span></th>
            <td role="cell" class="table__state" data-label="State"><StateBadge state=stuck.state/>{elsewhere}</td>
            <td role="cell" data-label="Node">{node}</td>
            <td role="cell" class="nowrap" data-label="Since"><When at=stuck.since/></td>
            <td role="cell" class="table__lead" data-label="Cause">{stuck.cause.text()}</td>
            <td role="cell" class="table__lead" data-label="Remedy">
                {stuck.help.text()} " " <a href=path>{label}</a>
            </td>
        </tr>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remedy_leads_to_the_node() {
        let path = |help: &str| {
            let stuck = serde_json::json!({
                "job": "job_00000000000000000000000001", "job_name": "a", "org": "org_00000000000000000000000001",
                "org_name": "b", "state": "running", "attempt": 1, "node": "node_00000000000000000000000001",
                "node_name": "pier 9+", "cause": "node_silent", "help": help, "since": "2026-03-01T09:00:00Z",
            });
            remedy_link(&serde_json::from_value(stuck).unwrap()).0
        };
        assert_eq!(["see_node", "drain_node"].map(path), ["/operator/nodes?name=pier%209%2B"; 2]);
        assert_eq!(path("reset_board"), "/operator/nodes/node_00000000000000000000000001");
    }
}
