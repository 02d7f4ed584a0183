//! Pages of services: models and other servers of an organization behind one address.

pub mod chat;
pub mod create;
pub mod draft;
pub mod form;
pub mod head;
pub mod model;
pub mod model_fields;
pub mod new_revision;
pub mod one;
pub mod promise;
pub mod promise_dialogs;
pub mod promise_state;
pub mod promise_text;
pub mod replicas;
pub mod revisions;
pub mod schedule;
pub mod settings;
pub mod state;
pub mod text;
pub mod traffic;
pub mod try_it;
pub mod usage;

use std::future::Future;

use berth_service_types::services::Service;
use berth_types::ids::{OrgId, ServiceId};
use berth_types::money::{column_decimals, column_text};
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::{Deserialize, Serialize};

use self::text::{bar_cells, phases, replica_tiles, replicas_text, tokens, traffic_text};
use super::curl::{self, ListCurl};
use super::limits::replace;
use super::org_data::org_view;
use super::parts::{every_visible, origin};
use super::text::number;
use crate::address::org_link;
use crate::api;
use crate::api::Answer;
use crate::session::{Page, use_session};
use crate::ui::*;

/// The interval of requests of a shown page.
pub const REFRESH_MS: u64 = 5_000;

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    org: OrgId,
    services: Vec<Service>,
}

fn load(org: OrgId) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let services = api::services::list(org);
    async move { Ok(Loaded { org, services: services.await?.items }) }
}

/// The page of all services.
#[component]
pub fn ServicesPage() -> impl IntoView {
    let session = use_session();
    let may_create = move || session.org.get().is_some_and(|org| session.runs_in(org));
    let create = move || {
        may_create()
            .then(|| view! { <a class="btn btn--primary" href=org_link("/services/new")>"New service"</a> })
    };
    view! {
        <Page title="Services".to_owned() actions=create.into_any()>
            {org_view(load, |loaded: Loaded| view! { <ServiceList loaded=loaded/> }.into_any())}
        </Page>
    }
}

/// The mark of a page that refreshes itself.
#[component]
pub fn RefreshBadge(
    /// True after a failed refresh.
    failed: RwSignal<bool>,
) -> impl IntoView {
    let class = move || if failed.get() { "live live--lost" } else { "live live--on" };
    let text = move || if failed.get() { "live view interrupted, retrying" } else { "live" };
    view! { <span class=class role="status">{text}</span> }
}

/// Runs `load` in each interval of [`REFRESH_MS`] and passes its answer to `apply`.
pub fn refresh<T: 'static, F: Future<Output = Answer<T>> + 'static>(
    failed: RwSignal<bool>,
    load: impl Fn() -> F + Clone + 'static,
    apply: impl Fn(T) + Clone + 'static,
) {
    refresh_every(REFRESH_MS, failed, load, apply);
}

/// Runs `load` every `ms` milliseconds and passes its answer to `apply`, one request at a time. A failed request sets
/// `failed`.
pub fn refresh_every<T: 'static, F: Future<Output = Answer<T>> + 'static>(
    ms: u64,
    failed: RwSignal<bool>,
    load: impl Fn() -> F + Clone + 'static,
    apply: impl Fn(T) + Clone + 'static,
) {
    let busy = StoredValue::new(false);
    every_visible(ms, move || {
        if busy.get_value() {
            return;
        }
        busy.set_value(true);
        let (fresh, apply) = (load(), apply.clone());
        spawn_local(async move {
            let fresh = fresh.await;
            // The page may have been left during the request.
            if busy.try_set_value(false).is_some() {
                return;
            }
            failed.set(fresh.is_err());
            if let Ok(fresh) = fresh {
                apply(fresh);
            }
        });
    });
}

#[component]
fn ServiceList(loaded: Loaded) -> impl IntoView {
    let Loaded { org, services } = loaded;
    let services = RwSignal::new(services);
    let failed = RwSignal::new(false);
    refresh(failed, move || load(org), move |fresh: Loaded| replace(services, fresh.services));
    let none = Memo::new(move |_| services.with(Vec::is_empty));
    view! {
        {move || {
            if none.get() {
                view! { <NoServices org=org/> }.into_any()
            } else {
                view! {
                    <section class="section">
                        <div class="section__head">
                            <p class="quiet">"Figures of the last 24 hours."</p>
                            <div class="section__aside"><RefreshBadge failed=failed/></div>
                        </div>
                        {table(services)}
                    </section>
                }
                    .into_any()
            }
        }}
        <ListCurl path=Signal::derive(move || format!("/orgs/{org}/services")) label="Services with curl"/>
    }
}

/// A first service: a server of the standard library of Python.
const FIRST_SERVICE: &str = r#"{"name":"hello","revision":{"job":{"name":"hello","offering":"h100-80gb.1g.10gb","script":"exec python3 -m http.server --bind 127.0.0.1 $PORT"},"port":8000}}"#;

#[component]
fn NoServices(org: OrgId) -> impl IntoView {
    let origin = origin();
    let line =
        Signal::derive(move || curl::post(&origin.get(), &format!("/orgs/{org}/services"), FIRST_SERVICE));
    let create = use_session()
        .runs_in(org)
        .then(|| view! { <p><a class="btn" href=org_link("/services/new")>"New service"</a></p> });
    view! {
        <div class="empty">
            <p class="empty__text">
                "No services yet. A service puts a model or any HTTP server behind one address: the portal keeps its replicas running on the cluster, follows the demand down to zero, and replaces revisions without a pause. Programs call it with an inference key."
            </p>
            {create}
            <CopyBlock text=line label="First service with curl".to_owned()/>
        </div>
    }
}

/// Returns the state of a form without anything on sale.
pub fn no_offerings() -> AnyView {
    view! {
        <div class="empty">
            <p class="empty__text">
                "No offerings yet. Boards and slices appear here when a node with a GPU has joined this portal."
            </p>
            <a class="btn" href=org_link("/cluster")>"Open cluster"</a>
        </div>
    }
    .into_any()
}

/// Returns the bar of the replicas of a service, with their numbers.
pub fn replica_bar(service: &Service) -> AnyView {
    let phases = phases(&service.replicas);
    let cells = bar_cells(phases.len(), service.scaling.max_replicas);
    let text = replicas_text(&phases);
    let label = format!("Replicas: {text}; at most {}", service.scaling.max_replicas);
    let tiles = replica_tiles(&phases, cells);
    view! {
        <span class="replicas">
            <BerthBar tiles=tiles cells=cells size=BarSize::Inline label=label/>
            <span class="table__sub">{text}</span>
        </span>
    }
    .into_any()
}

/// Returns the table. The row and the link of a service stay the same after a refresh, so the link keeps the focus.
fn table(services: RwSignal<Vec<Service>>) -> AnyView {
    let currency = StoredValue::new(use_session().me.currency);
    let decimals = Memo::new(move |_| {
        services.with(|all| column_decimals(all.iter().map(|service| service.last_day.token_micros)))
    });
    let ids = move || services.with(|all| all.iter().map(|service| service.id).collect::<Vec<ServiceId>>());
    let find = move |id: ServiceId| services.with(|all| all.iter().find(|service| service.id == id).cloned());
    let one = move |id: ServiceId| {
        let service = Memo::new(move |_| find(id));
        let name = service.with_untracked(|service| service.as_ref().map(|one| one.name.clone()));
        let cells = move || {
            service.with(|service| {
                service
                    .as_ref()
                    .map(|one| currency.with_value(|currency| cells(one, currency, decimals.get())))
            })
        };
        view! {
            <tr role="row">
                <th role="rowheader" scope="row"><a href=org_link(&format!("/services/{id}"))>{name}</a></th>
                {cells}
            </tr>
        }
    };
    let rows = view! { <For each=ids key=|id: &ServiceId| *id children=one/> }.into_any();
    live_table(
        "Services",
        &[
            ("Service", ""),
            STATE,
            ("Traffic", ""),
            ("Replicas", ""),
            ("Requests", "num"),
            ("Errors", "num"),
            ("Tokens", "num"),
            ("Cost of tokens", "num"),
        ],
        rows,
    )
}

/// Returns the cells of a service after its name.
fn cells(service: &Service, currency: &str, decimals: usize) -> AnyView {
    let used = service.last_day;
    let cost = column_text(used.token_micros, currency, decimals);
    view! {
        <td role="cell" class="table__state" data-label="State">
            <ServiceBadge state=service.state stopped=service.stopped/>
        </td>
        <td role="cell" data-label="Traffic">{traffic_text(&service.revisions)}</td>
        <td role="cell" data-label="Replicas">{replica_bar(service)}</td>
        <td role="cell" class="num" data-label="Requests">{number(used.requests)}</td>
        <td role="cell" class="num" data-label="Errors">{number(used.errors)}</td>
        <td role="cell" class="num" data-label="Tokens">{number(tokens(&used))}</td>
        <td role="cell" class="num" data-label="Cost of tokens">{cost}</td>
    }
    .into_any()
}
