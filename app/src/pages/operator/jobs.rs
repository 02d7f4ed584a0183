//! Jobs of everyone: whose they are, where they are and what became of them, by what is chosen; and
//! stopping those that are meant.
//!
//! Must not hold the choice anywhere but in the address, nor show what a tenant runs.

pub mod stop;

use std::future::Future;

use berth_types::accounts::OrgSummary;
use berth_types::jobs::JobState;
use berth_types::money::money_text;
use berth_types::nodes::Node;
use berth_types::operations::{JobFilter, OperatedJob};
use berth_types::time::duration_text;
use leptos::prelude::*;
use leptos_router::hooks::use_query_map;
use serde::{Deserialize, Serialize};

use self::stop::StopDialog;
use super::super::more::More;
use super::super::parts::{Call, Loading, ready};
use super::super::words::{offering_text, state_words};
use super::is_operator;
use crate::api;
use crate::api::Answer;
use crate::session::Page;
use crate::ui::*;

/// What the page starts with.
#[derive(Clone, Serialize, Deserialize)]
struct First {
    filter: JobFilter,
    jobs: Vec<OperatedJob>,
    cursor: Option<String>,
    orgs: Vec<OrgSummary>,
    nodes: Vec<Node>,
}

fn load(filter: JobFilter) -> impl Future<Output = Answer<First>> + Send + 'static {
    let jobs = api::operations::jobs(api::operations::query_of(&filter), None);
    let orgs = api::accounts::list_orgs();
    let nodes = api::nodes::operator_list();
    async move {
        let page = jobs.await?;
        let (orgs, nodes) = (orgs.await?.items, nodes.await?.items);
        Ok(First { filter, jobs: page.items, cursor: page.next_cursor, orgs, nodes })
    }
}

/// What an address chooses; what cannot be read chooses nothing.
fn chosen(get: impl Fn(&str) -> Option<String>) -> JobFilter {
    let text = |name: &str| get(name).map(|t| t.trim().to_owned()).filter(|t| !t.is_empty());
    JobFilter {
        org: text("org").and_then(|id| id.parse().ok()),
        node: text("node").and_then(|id| id.parse().ok()),
        state: text("state").and_then(|name| JobState::parse(&name)),
        offering: text("offering"),
        label: text("label"),
    }
}

/// The page with jobs of everyone.
#[component]
pub fn AllJobsPage() -> impl IntoView {
    if is_operator() { view! { <AllJobs/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn AllJobs() -> impl IntoView {
    let query = use_query_map();
    let filter = Memo::new(move |_| query.with(|query| chosen(|name| query.get(name))));
    let data: Resource<Answer<First>> = Resource::new(move || filter.get(), load);
    view! {
        <Page title="All jobs".to_owned()>
            <Suspense fallback=|| view! { <Loading/> }>
                {move || Suspend::new(async move {
                    match data.await {
                        Err(problem) => view! { <ProblemNotice problem=problem/> }.into_any(),
                        Ok(first) => view! { <Found first=first/> }.into_any(),
                    }
                })}
            </Suspense>
        </Page>
    }
}

/// One choice of the filter: its name, and what can be chosen.
fn select(
    id: &'static str,
    label: &'static str,
    name: &'static str,
    options: Vec<(String, String, bool)>,
) -> AnyView {
    let none = !options.iter().any(|(.., picked)| *picked);
    let options: Vec<AnyView> = options
        .into_iter()
        .map(|(value, text, picked)| view! { <option value=value selected=picked>{text}</option> }.into_any())
        .collect();
    view! {
        <label class="filters__field" for=id>
            {label}
            <select class="select" id=id name=name>
                <option value="" selected=none>"any"</option>
                {options}
            </select>
        </label>
    }
    .into_any()
}

/// A plain form: what it chooses is in the address, also without scripts.
fn filter_form(first: &First) -> AnyView {
    let filter = &first.filter;
    let states = JobState::ALL.map(|s| (s.name().to_owned(), state_words(s), filter.state == Some(s)));
    let orgs = first
        .orgs
        .iter()
        .map(|o| (o.org.id.to_string(), o.org.name.clone(), filter.org == Some(o.org.id)))
        .collect();
    let nodes =
        first.nodes.iter().map(|n| (n.id.to_string(), n.name.clone(), filter.node == Some(n.id))).collect();
    let label = filter.label.clone().unwrap_or_default();
    view! {
        <form class="filters" method="get" action="/operator/jobs" aria-label="Which jobs">
            {select("jobs-state", "State", "state", states.into())}
            {select("jobs-org", "Organization", "org", orgs)}
            {select("jobs-node", "Node", "node", nodes)}
            <label class="filters__field" for="jobs-label">
                "Label"
                <input class="input" id="jobs-label" name="label" autocomplete="off" placeholder="key=value" value=label/>
            </label>
            <button class="btn" type="submit">"Show"</button>
        </form>
    }
    .into_any()
}

#[component]
fn Found(first: First) -> impl IntoView {
    let ready = ready();
    let form = filter_form(&first);
    let First { filter, jobs, cursor, .. } = first;
    let csv = api::operations::jobs_csv(&filter);
    let jobs = RwSignal::new(jobs);
    let cursor = RwSignal::new(cursor);
    let more = Call::idle();
    let stopping = RwSignal::new(false);
    let said = RwSignal::new(String::new());
    let query = StoredValue::new(api::operations::query_of(&filter));
    let filter = StoredValue::new(filter);
    let load_more = move |()| {
        let from = cursor.get_untracked().and_then(|c| c.parse().ok());
        let next = api::operations::jobs(query.get_value(), from);
        more.run(next, move |page: berth_types::Page<OperatedJob>| {
            jobs.update(|jobs| jobs.extend(page.items));
            cursor.set(page.next_cursor);
        });
    };
    // What was stopped stands otherwise in the list.
    let reload = move || {
        let fresh = api::operations::jobs(query.get_value(), None);
        more.run(fresh, move |page: berth_types::Page<OperatedJob>| {
            jobs.set(page.items);
            cursor.set(page.next_cursor);
        });
    };
    view! {
        {form}
        <section class="section">
            <div class="section__head">
                <p class="quiet" role="status">{move || said.get()}</p>
                <div class="section__aside">
                    <a href=csv rel="external" download="jobs.csv">"Download CSV"</a>
                    <button
                        class="btn btn--small"
                        type="button"
                        disabled=move || !ready.get()
                        on:click=move |_| stopping.set(true)
                    >
                        "Stop these jobs"
                    </button>
                </div>
            </div>
            {move || jobs.with(|jobs| table(jobs))}
        </section>
        <More cursor=cursor call=more load=Callback::new(load_more)/>
        <StopDialog filter=filter open=stopping said=said done=Callback::new(move |()| reload())/>
    }
}

fn table(jobs: &[OperatedJob]) -> AnyView {
    if jobs.is_empty() {
        return empty("No job is like that. Choose less, or look at all of them.");
    }
    let rows: Vec<AnyView> = jobs.iter().map(row).collect();
    table_of(
        "Jobs of everyone, newest first",
        &[
            ("Job", ""),
            STATE,
            ("Organization", ""),
            ("Offering", ""),
            ("Node", ""),
            ("Submitted", ""),
            ("Metered", "num"),
            ("Cost", "num"),
        ],
        rows,
    )
}

fn row(job: &OperatedJob) -> AnyView {
    let name = job.name.clone();
    let id = job.id.to_string();
    let org = job.org_name.clone();
    let by = job.created_by.clone();
    let offering = offering_text(&job.offering, job.count.saturating_mul(job.nodes));
    let others = if job.nodes > 1 { format!(" and {} more", job.nodes - 1) } else { String::new() };
    let node = job.node_name.as_ref().map(|name| format!("{name}{others}"));
    let why = job.failure.as_ref().map(|failure| {
        let text = failure.detail.clone();
        view! { <span class="table__sub">{text}</span> }
    });
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name}<span class="table__sub mono">{id}</span>{why}</th>
            <td role="cell" class="table__state" data-label="State"><StateBadge state=job.state/></td>
            <td role="cell" data-label="Organization">{org}<span class="table__sub">{by}</span></td>
            <td role="cell" data-label="Offering">{offering}</td>
            <td role="cell" data-label="Node">{node}</td>
            <td role="cell" class="nowrap" data-label="Submitted"><When at=job.created_at/></td>
            <td role="cell" class="num" data-label="Metered">{duration_text(job.metered_ms)}</td>
            <td role="cell" class="num" data-label="Cost">{money_text(job.cost_micros, &job.currency)}</td>
        </tr>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_chooses() {
        let of = |query: &[(&str, &str)]| {
            chosen(|name| query.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(of(&[("state", ""), ("label", " "), ("org", "nobody")]), JobFilter::default());
        let filter = of(&[("state", "timed_out"), ("label", " team=a ")]);
        assert_eq!((filter.state, filter.label.as_deref()), (Some(JobState::TimedOut), Some("team=a")));
    }
}
