//! Overview for operators: figures, findings that need attention, free capacity, power, and the latest acts.
//! Each figure links to its page.

mod attention;
mod tables;

use std::future::Future;

use berth_types::jobs::Priority;
use berth_types::money::money_text;
use berth_types::nodes::NodeState;
use berth_types::operators::OperatorRight;
use berth_types::overview::OperatorOverview;
use berth_types::time::duration_text;
use leptos::prelude::*;
use leptos::task::spawn_local;

use self::attention::{Finding, findings};
use super::super::org_data::answer_view;
use super::super::parts::every_visible;
use super::super::text::{number, size_text};
use super::{is_operator, may};
use crate::api;
use crate::api::Answer;
use crate::session::Page;
use crate::ui::*;

fn load() -> impl Future<Output = Answer<OperatorOverview>> + Send + 'static {
    api::operations::overview()
}

/// The first page of an operator.
#[component]
pub fn OverviewPage() -> impl IntoView {
    if is_operator() { view! { <Overview/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn Overview() -> impl IntoView {
    let data: Resource<Answer<OperatorOverview>> = Resource::new(|| (), |()| load());
    view! {
        <Page title="Overview".to_owned()>
            {answer_view(data, |first| view! { <OverviewView first=first/> }.into_any())}
        </Page>
    }
}

#[component]
fn OverviewView(first: OperatorOverview) -> impl IntoView {
    let overview = RwSignal::new(first);
    every_visible(10_000, move || {
        let fresh = load();
        spawn_local(async move {
            // The next round repeats a failed request.
            if let Ok(fresh) = fresh.await {
                overview.set(fresh);
            }
        });
    });
    // A section is drawn again only after a change of its own data, so that a link keeps the focus.
    let zone = use_zone();
    let found = Memo::new(move |_| overview.with(|overview| findings(overview, zone.get())));
    let capacity = Memo::new(move |_| overview.with(|o| o.cluster.capacity.clone()));
    let racks = Memo::new(move |_| overview.with(|o| (o.rack_count, o.racks.clone())));
    let events = Memo::new(move |_| overview.with(|o| (o.audit_events.clone(), o.currency.clone())));
    let changes = may(OperatorRight::Inspect).then(|| {
        view! {
            <section class="section">
                <div class="section__head">
                    <h2>"Latest changes"</h2>
                    <div class="section__aside"><a href="/operator/audit">"All changes"</a></div>
                </div>
                {move || events.with(|(events, currency)| tables::changes(events, currency))}
            </section>
        }
    });
    view! {
        <Figures overview=overview/>
        <section class="section">
            <div class="section__head"><h2>"Needs attention"</h2></div>
            {move || found.with(|found| attention_list(found))}
        </section>
        <section class="section">
            <div class="section__head">
                <h2>"Free capacity"</h2>
                <div class="section__aside"><a href="/operator/nodes">"All nodes"</a></div>
            </div>
            {move || capacity.with(|capacity| tables::capacity(capacity))}
        </section>
        <section class="section">
            <div class="section__head">
                <h2>"Power by rack"</h2>
                <div class="section__aside"><a href="/operator/fleet">{move || racks.with(|(all, _)| tables::all_racks(*all))}</a></div>
            </div>
            {move || racks.with(|(_, racks)| tables::power(racks))}
        </section>
        {changes}
    }
}

fn attention_list(found: &[Finding]) -> AnyView {
    if found.is_empty() {
        return view! {
            <p class="quiet">
                "Nothing needs attention: all nodes are connected, all boards are in service, no job is stuck and no request waits."
            </p>
        }
        .into_any();
    }
    let item = |finding: &Finding| {
        let Finding { title, note, path } = finding.clone();
        view! {
            <li class="list__item">
                <span class="list__main"><a href=path>{title}</a><span class="list__note">{note}</span></span>
            </li>
        }
        .into_any()
    };
    let items: Vec<AnyView> = found.iter().map(item).collect();
    view! { <ul class="list table-wrap" role="list" aria-label="Findings">{items}</ul> }.into_any()
}

/// Returns the number of nodes in a state.
fn nodes_in(overview: &OperatorOverview, state: NodeState) -> u64 {
    overview.cluster.states.iter().filter(|one| one.state == state).map(|one| one.nodes).sum()
}

/// Returns the states of nodes without those of ready nodes: `1 draining, 2 not connected`.
fn other_states(overview: &OperatorOverview) -> String {
    let others = overview.cluster.states.iter().filter(|one| one.state != NodeState::Ready && one.nodes > 0);
    let texts: Vec<String> =
        others.map(|one| format!("{} {}", number(one.nodes), one.state.word())).collect();
    if texts.is_empty() { "no nodes in other states".to_owned() } else { texts.join(", ") }
}

/// Returns the age of the oldest queued job, and the queue by priority.
fn queue_text(overview: &OperatorOverview) -> String {
    let Some(oldest) = overview.work.oldest_queued_at else { return "no job waits".to_owned() };
    let age = duration_text(overview.at.millis_since(oldest));
    let class = |priority: Priority| match priority {
        Priority::Low => "low",
        Priority::Normal => "normal",
        Priority::High => "high",
    };
    let classes: Vec<String> = overview
        .work
        .queue
        .iter()
        .map(|one| format!("{} {}", number(one.jobs), class(one.priority)))
        .collect();
    format!("oldest {age}; {}", classes.join(", "))
}

/// Returns the free space of the data directory.
fn free_disk(overview: &OperatorOverview) -> String {
    overview.disk.map_or_else(|| "unknown".to_owned(), |disk| size_text(disk.free_bytes))
}

/// Returns the mark below which uploads are refused.
fn disk_mark(overview: &OperatorOverview) -> String {
    match overview.disk.map(|disk| disk.min_free_bytes) {
        Some(mark) if mark > 0 => format!("uploads need {}", size_text(mark)),
        _ => "no mark is set".to_owned(),
    }
}

/// One figure with a link.
#[component]
fn Figure(
    path: &'static str,
    label: &'static str,
    #[prop(into)] value: Signal<String>,
    #[prop(into)] note: Signal<String>,
) -> impl IntoView {
    view! {
        <div class="stat">
            <dt class="stat__label"><a href=path>{label}</a></dt>
            <dd class="stat__value">{move || value.get()}</dd>
            <dd class="stat__note">{move || note.get()}</dd>
        </div>
    }
}

#[component]
fn Figures(overview: RwSignal<OperatorOverview>) -> impl IntoView {
    let text = move |draw: fn(&OperatorOverview) -> String| Signal::derive(move || overview.with(draw));
    let ready = text(|o| {
        let all: u64 = o.cluster.states.iter().map(|one| one.nodes).sum();
        format!("{} of {}", number(nodes_in(o, NodeState::Ready)), number(all))
    });
    let running = text(|o| number(o.work.running_jobs));
    let devices = text(|o| {
        let noun = if o.work.running_devices == 1 { "device" } else { "devices" };
        format!("{} {noun}", number(o.work.running_devices))
    });
    let month = text(|o| money_text(o.revenue.month_micros, &o.currency));
    view! {
        <dl class="stats">
            <Figure path="/operator/nodes" label="Ready nodes" value=ready note=text(other_states)/>
            <Figure path="/operator/jobs?state=running" label="Running jobs" value=running note=devices/>
            <Figure
                path="/operator/jobs?state=queued"
                label="Queued jobs"
                value=text(|o| number(o.work.queued_jobs))
                note=text(queue_text)
            />
            <Figure
                path="/operator/orgs"
                label="Charges today"
                value=text(|o| money_text(o.revenue.today_micros, &o.currency))
                note=text(|_| "of all organizations, UTC".to_owned())
            />
            <Figure
                path="/operator/invoices"
                label="Charges this month"
                value=month
                note=text(|_| "of all organizations, UTC".to_owned())
            />
            <Figure path="/operator/system" label="Free disk" value=text(free_disk) note=text(disk_mark)/>
        </dl>
    }
}
