//! Page of the jobs of all organizations with a filter and a bulk stop. The filter is in the URL. The list
//! shows no commands, files or logs.

mod suggest;

use std::future::Future;

use berth_types::jobs::JobState;
use berth_types::money::{column_decimals, column_text};
use berth_types::operations::{JobFilter, OperatedJob};
use berth_types::operators::OperatorRight;
use berth_types::time::duration_text;
use leptos::prelude::*;
use leptos_router::hooks::use_query_map;
use serde::{Deserialize, Serialize};

use self::suggest::{SuggestField, Suggested};
use super::super::curl::ListCurl;
use super::super::load_more::LoadMore;
use super::super::org_data::answer_view;
use super::super::parts::Call;
use super::super::saved_filters::SavedFilters;
use super::super::stop_jobs::{BulkStop, StopChoice, StopJobsDialog};
use super::super::text::{offering_text, state_text};
use super::{is_operator, may};
use crate::api;
use crate::api::Answer;
use crate::api::escape::escaped;
use crate::api::operations::{FoundJobs, JobSubjects};
use crate::session::Page;
use crate::ui::*;

/// The choice of an address: the texts that name objects, and the other conditions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Choice {
    subjects: JobSubjects,
    filter: JobFilter,
}

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    choice: Choice,
    found: FoundJobs,
}

fn load(choice: Choice) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let found = api::operations::find_jobs(choice.subjects.clone(), choice.filter.clone());
    async move { Ok(Loaded { choice, found: found.await? }) }
}

/// Parses the choice of a URL; invalid values are ignored.
fn parse_choice(get: impl Fn(&str) -> Option<String>) -> Choice {
    let text = |name: &str| get(name).map(|t| t.trim().to_owned()).filter(|t| !t.is_empty());
    let filter = JobFilter {
        org: None,
        node: None,
        state: text("state").and_then(|name| JobState::parse(&name)),
        offering: text("offering"),
        label: text("label"),
    };
    let subjects =
        JobSubjects { org: text("org").unwrap_or_default(), node: text("node").unwrap_or_default() };
    Choice { subjects, filter }
}

/// Returns the query of a choice without `?`; empty without conditions.
fn choice_query(choice: &Choice) -> String {
    let Choice { subjects, filter } = choice;
    let names = [("org", &subjects.org), ("node", &subjects.node)];
    let names = names.into_iter().filter(|(_, text)| !text.is_empty());
    let names = names.map(|(name, text)| format!("{name}={}", escaped(text)));
    let rest = Some(api::operations::filter_query(filter)).filter(|query| !query.is_empty());
    names.chain(rest).collect::<Vec<_>>().join("&")
}

/// The page of all jobs.
#[component]
pub fn AllJobsPage() -> impl IntoView {
    if is_operator() { view! { <AllJobs/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn AllJobs() -> impl IntoView {
    let query = use_query_map();
    let choice = Memo::new(move |_| query.with(|query| parse_choice(|name| query.get(name))));
    let data: Resource<Answer<Loaded>> = Resource::new(move || choice.get(), load);
    let list = Signal::derive(|| Some("operator".to_owned()));
    let query = Signal::derive(move || choice.with(choice_query));
    let open = |query: String| go(format!("/operator/jobs?{query}").trim_end_matches('?'));
    view! {
        <Page title="All jobs".to_owned()>
            <SavedFilters list=list query=query open=Callback::new(open)/>
            {answer_view(data, |loaded| view! { <JobsView loaded=loaded/> }.into_any())}
        </Page>
    }
}

/// Returns a select field of the filter with its options.
fn select(
    id: &'static str,
    label: &'static str,
    name: &'static str,
    options: Vec<(String, String, bool)>,
) -> AnyView {
    let none = !options.iter().any(|(.., selected)| *selected);
    let options: Vec<AnyView> = options
        .into_iter()
        .map(|(value, text, selected)| {
            view! { <option value=value selected=selected>{text}</option> }.into_any()
        })
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

/// Returns the filter as a plain form, which also works without scripts.
fn filter_form(choice: Choice) -> AnyView {
    let clear = (!choice_query(&choice).is_empty())
        .then(|| view! { <a class="btn btn--quiet" href="/operator/jobs">"Clear filters"</a> });
    let Choice { subjects, filter } = choice;
    let states = JobState::ALL.map(|s| (s.name().to_owned(), state_text(s), filter.state == Some(s)));
    let label = filter.label.unwrap_or_default();
    view! {
        <form class="filters" method="get" action="/operator/jobs" aria-label="Filter">
            {select("jobs-state", "State", "state", states.into())}
            <SuggestField
                kind=Suggested::Orgs
                id="jobs-org"
                label="Organization"
                name="org"
                placeholder="slug or ID"
                value=subjects.org
            />
            <SuggestField
                kind=Suggested::Nodes
                id="jobs-node"
                label="Node"
                name="node"
                placeholder="name or ID"
                value=subjects.node
            />
            <label class="filters__field" for="jobs-label">
                "Label"
                <input class="input" id="jobs-label" name="label" autocomplete="off" placeholder="key=value" value=label/>
            </label>
            <button class="btn" type="submit">"Apply filter"</button>
            {clear}
        </form>
    }
    .into_any()
}

#[component]
fn JobsView(loaded: Loaded) -> impl IntoView {
    let Loaded { choice, found } = loaded;
    let form = filter_form(choice);
    // Without its object the filter would be wider than the choice, also for a stop.
    let list = match found {
        Some((filter, page)) => view! { <JobList filter=filter page=page/> }.into_any(),
        None => {
            empty("No organization or node has this name. Choose one of the suggestions, or enter its ID.")
        }
    };
    view! {
        {form}
        {list}
    }
}

#[component]
fn JobList(filter: JobFilter, page: berth_types::Page<OperatedJob>) -> impl IntoView {
    let csv = api::operations::jobs_csv(&filter);
    let is_filtered = filter != JobFilter::default();
    let jobs = RwSignal::new(page.items);
    let cursor = RwSignal::new(page.next_cursor);
    let more = Call::idle();
    let query = StoredValue::new(api::operations::filter_query(&filter));
    let stop = BulkStop::new(StopChoice::AllOrgs(filter));
    let load_more = move |()| {
        let next = api::operations::jobs(query.get_value(), cursor.get_untracked());
        more.run(next, move |page: berth_types::Page<OperatedJob>| {
            jobs.update(|jobs| jobs.extend(page.items));
            cursor.set(page.next_cursor);
        });
    };
    // Stopped jobs have other states.
    let reload = move || {
        let fresh = api::operations::jobs(query.get_value(), None);
        more.run(fresh, move |page: berth_types::Page<OperatedJob>| {
            jobs.set(page.items);
            cursor.set(page.next_cursor);
        });
    };
    let path = Signal::derive(move || query.with_value(|query| format!("/operator/jobs?{query}")));
    view! {
        <section class="section">
            <div class="section__head">
                {stop.result()}
                <div class="section__aside">
                    <a href=csv rel="external" download="jobs.csv">"Download CSV"</a>
                    {may(OperatorRight::ManageWork).then(|| stop.button("btn btn--small"))}
                </div>
            </div>
            {move || jobs.with(|jobs| table(jobs, is_filtered))}
        </section>
        <LoadMore cursor=cursor call=more load=Callback::new(load_more)/>
        <ListCurl path=path label="Jobs with curl"/>
        <StopJobsDialog stop=stop done=Callback::new(move |()| reload())/>
    }
}

fn table(jobs: &[OperatedJob], is_filtered: bool) -> AnyView {
    if jobs.is_empty() {
        return if is_filtered {
            empty_filtered("No jobs match the filter.", "/operator/jobs")
        } else {
            empty("No jobs yet. Jobs of all organizations appear here.")
        };
    }
    let decimals = column_decimals(jobs.iter().map(|job| job.cost_micros));
    let rows: Vec<AnyView> = jobs.iter().map(|job| row(job, decimals)).collect();
    table_of(
        "Jobs of all organizations, newest first",
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

fn row(job: &OperatedJob, decimals: usize) -> AnyView {
    let name = job.name.clone();
    let cost = column_text(job.cost_micros, &job.currency, decimals);
    let id = job.id.to_string();
    let org = job.org_name.clone();
    let creator = job.created_by.clone();
    let offering = offering_text(&job.offering, job.count.saturating_mul(job.nodes));
    let further = if job.nodes > 1 { format!(" and {} more", job.nodes - 1) } else { String::new() };
    let node = job.node_name.as_ref().map(|name| format!("{name}{further}"));
    let failure = job.failure.as_ref().map(|failure| {
        let text = failure.detail.clone();
        view! { <span class="table__sub">{text}</span> }
    });
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name}<span class="table__sub mono break">{id}</span>{failure}</th>
            <td role="cell" class="table__state" data-label="State"><StateBadge state=job.state/></td>
            <td role="cell" data-label="Organization">{org}<span class="table__sub">{creator}</span></td>
            <td role="cell" data-label="Offering">{offering}</td>
            <td role="cell" data-label="Node">{node}</td>
            <td role="cell" data-label="Submitted"><When at=job.created_at/></td>
            <td role="cell" class="num" data-label="Metered">{duration_text(job.metered_ms)}</td>
            <td role="cell" class="num" data-label="Cost">{cost}</td>
        </tr>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_parsed_from_a_url() {
        let parse = |query: &[(&str, &str)]| {
            parse_choice(|name| query.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()))
        };
        let named = parse(&[("state", ""), ("label", " "), ("org", " lab ")]);
        assert_eq!((named.filter, named.subjects.org.as_str()), (JobFilter::default(), "lab"));
        let filter = parse(&[("state", "timed_out"), ("label", " team=a ")]).filter;
        assert_eq!((filter.state, filter.label.as_deref()), (Some(JobState::TimedOut), Some("team=a")));
    }
}
