//! Page of the portal's loops with their last runs and errors, and of the destinations of the audit log.

use std::future::Future;

use berth_types::operations::{AuditDestination, AuditDestinationKind, LoopError, PortalLoop};
use berth_types::time::duration_text;
use futures::try_join;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::{Deserialize, Serialize};

use super::super::org_data::answer_view;
use super::super::parts::every_visible;
use super::super::text::counted;
use super::is_operator;
use crate::api;
use crate::api::Answer;
use crate::session::Page;
use crate::ui::*;

/// The data of the page.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Loaded {
    loops: Vec<PortalLoop>,
    destinations: Vec<AuditDestination>,
}

fn load() -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let (loops, destinations) = (api::operations::loops(), api::operations::audit_destinations());
    async move {
        let (loops, destinations) = try_join!(loops, destinations)?;
        Ok(Loaded { loops: loops.items, destinations: destinations.items })
    }
}

/// The page of the loops.
#[component]
pub fn SystemPage() -> impl IntoView {
    if is_operator() { view! { <System/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn System() -> impl IntoView {
    let data: Resource<Answer<Loaded>> = Resource::new(|| (), |()| load());
    view! {
        <Page title="System".to_owned()>
            <p class="page__lead">
                "Loops are the repeated tasks of the portal. A failed run is repeated after the interval."
            </p>
            {answer_view(data, |loaded| view! { <Lists loaded=loaded/> }.into_any())}
        </Page>
    }
}

#[component]
fn Lists(loaded: Loaded) -> impl IntoView {
    let loaded = RwSignal::new(loaded);
    every_visible(5_000, move || {
        let fresh = load();
        spawn_local(async move {
            // The next round repeats a failed request.
            if let Ok(fresh) = fresh.await {
                loaded.maybe_update(|known| {
                    let changed = *known != fresh;
                    *known = fresh;
                    changed
                });
            }
        });
    });
    view! {
        {move || loaded.with(|loaded| table(&loaded.loops))}
        <section class="section">
            <div class="section__head"><h2>"Audit log outside of the portal"</h2></div>
            {move || loaded.with(|loaded| destinations(&loaded.destinations))}
        </section>
    }
}

fn destinations(all: &[AuditDestination]) -> AnyView {
    if all.is_empty() {
        return empty(
            "The audit log is in the portal's database only. The options --audit-webhook, --audit-syslog and --audit-bucket of the portal send it to other systems.",
        );
    }
    let rows: Vec<AnyView> = all.iter().map(destination_row).collect();
    table_of(
        "Destinations of the audit log",
        &[
            ("Destination", ""),
            ("Address", ""),
            ("Last delivered entry", "num"),
            ("Entries behind", "num"),
            ("Last delivery", ""),
            ("Last result", ""),
            ("Last error", ""),
        ],
        rows,
    )
}

const fn kind_text(kind: AuditDestinationKind) -> &'static str {
    match kind {
        AuditDestinationKind::Bucket => "Bucket",
        AuditDestinationKind::Syslog => "Syslog",
        AuditDestinationKind::Webhook => "Webhook",
    }
}

fn destination_row(destination: &AuditDestination) -> AnyView {
    let address = destination.address.clone();
    let mark = match destination.seq {
        0 => "none yet".to_owned(),
        seq => seq.to_string(),
    };
    let behind = counted(usize::try_from(destination.events_behind).unwrap_or(0), "entry", "entries");
    let delivered = match destination.delivered_at {
        Some(at) => view! { <When at=at/> }.into_any(),
        None => view! { <span class="quiet">"not yet"</span> }.into_any(),
    };
    let result = match (destination.failing, destination.delivered_at) {
        (true, _) => "failed",
        (false, None) => "",
        (false, Some(_)) => "succeeded",
    };
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{kind_text(destination.name)}</th>
            <td role="cell" class="table__lead" data-label="Address"><span class="break">{address}</span></td>
            <td role="cell" class="num" data-label="Last delivered entry">{mark}</td>
            <td role="cell" class="num" data-label="Entries behind">{behind}</td>
            <td role="cell" class="nowrap" data-label="Last delivery">{delivered}</td>
            <td role="cell" data-label="Last result">{result}</td>
            <td role="cell" class="table__lead" data-label="Last error">{last_error(destination.last_error.as_ref())}</td>
        </tr>
    }
    .into_any()
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

fn last_error(error: Option<&LoopError>) -> AnyView {
    match error {
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
            <td role="cell" class="table__lead" data-label="Last error">{last_error(portal_loop.last_error.as_ref())}</td>
        </tr>
    }
    .into_any()
}
