//! Page of the portal's loops with their last runs and errors.

use std::future::Future;

use berth_types::operations::PortalLoop;
use berth_types::time::duration_text;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::super::org_data::answer_view;
use super::super::parts::every_visible;
use super::is_operator;
use crate::api;
use crate::api::Answer;
use crate::session::Page;
use crate::ui::*;

fn load() -> impl Future<Output = Answer<Vec<PortalLoop>>> + Send + 'static {
    let loops = api::operations::loops();
    async move { Ok(loops.await?.items) }
}

/// The page of the loops.
#[component]
pub fn SystemPage() -> impl IntoView {
    if is_operator() { view! { <System/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn System() -> impl IntoView {
    let data: Resource<Answer<Vec<PortalLoop>>> = Resource::new(|| (), |()| load());
    view! {
        <Page title="System".to_owned()>
            <p class="page__lead">
                "Loops are the repeated tasks of the portal. A failed run is repeated after the interval."
            </p>
            {answer_view(data, |loops| view! { <List loops=loops/> }.into_any())}
        </Page>
    }
}

#[component]
fn List(loops: Vec<PortalLoop>) -> impl IntoView {
    let loops = RwSignal::new(loops);
    every_visible(5_000, move || {
        let fresh = load();
        spawn_local(async move {
            // The next round repeats a failed request.
            if let Ok(fresh) = fresh.await {
                loops.maybe_update(|known| {
                    let changed = *known != fresh;
                    *known = fresh;
                    changed
                });
            }
        });
    });
    move || loops.with(|loops| table(loops))
}

fn table(loops: &[PortalLoop]) -> AnyView {
    if loops.is_empty() {
        return empty("No loops running yet.");
    }
    let rows: Vec<AnyView> = loops.iter().map(row).collect();
    table_of(
        "Loops of the portal",
        &[
            ("Loop", ""),
            ("Interval", "num"),
            ("Last run", ""),
            ("Last duration", "num"),
            ("Last result", ""),
            ("Failed runs", "num"),
            ("Last error", ""),
        ],
        rows,
    )
}

fn last_run(portal_loop: &PortalLoop) -> AnyView {
    match portal_loop.last_run_at {
        Some(at) => view! { <When at=at/> }.into_any(),
        None => view! { <span class="quiet">"not yet"</span> }.into_any(),
    }
}

fn last_error(portal_loop: &PortalLoop) -> AnyView {
    match &portal_loop.last_error {
        Some(error) => {
            let detail = error.detail.clone();
            view! { <When at=error.at/> ": " {detail} }.into_any()
        }
        None => view! { <span class="quiet">"none since the portal start"</span> }.into_any(),
    }
}

fn row(portal_loop: &PortalLoop) -> AnyView {
    let name = portal_loop.name.clone();
    let runs = format!("{} of {}", portal_loop.failures, portal_loop.runs);
    let result = match (portal_loop.last_run_at, portal_loop.last_failed) {
        (None, _) => "",
        (Some(_), true) => "failed",
        (Some(_), false) => "succeeded",
    };
    let took = portal_loop.last_run_at.map_or_else(String::new, |_| duration_text(portal_loop.last_took_ms));
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name}</th>
            <td role="cell" class="num" data-label="Interval">{duration_text(portal_loop.period_ms)}</td>
            <td role="cell" class="nowrap" data-label="Last run">{last_run(portal_loop)}</td>
            <td role="cell" class="num" data-label="Last duration">{took}</td>
            <td role="cell" data-label="Last result">{result}</td>
            <td role="cell" class="num" data-label="Failed runs">{runs}</td>
            <td role="cell" class="table__lead" data-label="Last error">{last_error(portal_loop)}</td>
        </tr>
    }
    .into_any()
}
