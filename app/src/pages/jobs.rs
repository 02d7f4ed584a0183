//! Page of the jobs of an organization: live, newest first, with a filter by state.
//!
//! The filter is part of the address, so that a filtered list can be shared.

use std::future::Future;

use berth_types::events::JobChange;
use berth_types::ids::OrgId;
use berth_types::jobs::{Job, JobState};
use berth_types::money::{column_decimals, column_text};
use berth_types::time::duration_text;
use leptos::prelude::*;
use leptos::task::spawn_local;
use leptos_router::hooks::use_query_map;
use serde::{Deserialize, Serialize};

use super::curl;
use super::load_more::LoadMore;
use super::org_data::data_view;
use super::parts::{Call, origin, when_some};
use super::rows::{board_cell, merge, name_cell, offering_cell};
use super::text::{counted, state_text};
use crate::address::{org_link, use_org_links};
use crate::api;
use crate::api::Answer;
use crate::live;
use crate::live::{FeedBadge, FeedState};
use crate::session::{Page, use_session};
use crate::ui::*;

const PAGE: u32 = 50;

/// The states of the filter, without short ones.
const FILTERS: [JobState; 6] = [
    JobState::Queued,
    JobState::Running,
    JobState::Succeeded,
    JobState::Failed,
    JobState::Cancelled,
    JobState::TimedOut,
];

/// The first page of the list.
#[derive(Clone, Serialize, Deserialize)]
struct FirstPage {
    org: OrgId,
    state: Option<JobState>,
    jobs: Vec<Job>,
    cursor: Option<String>,
}

fn load(org: OrgId, state: Option<JobState>) -> impl Future<Output = Answer<FirstPage>> + Send + 'static {
    let page = api::jobs::list(org, state, None, PAGE);
    async move {
        let page = page.await?;
        Ok(FirstPage { org, state, jobs: page.items, cursor: page.next_cursor })
    }
}

/// The page of all jobs.
#[component]
pub fn JobsPage() -> impl IntoView {
    let org = use_session().org;
    let query = use_query_map();
    let state =
        Memo::new(move |_| query.with(|query| query.get("state")).and_then(|name| JobState::parse(&name)));
    let data: Resource<Answer<Option<FirstPage>>> = Resource::new(
        move || (org.get(), state.get()),
        |(org, state): (Option<OrgId>, Option<JobState>)| when_some(org.map(|org| load(org, state))),
    );
    let launch = view! { <a class="btn btn--primary" href=org_link("/launch")>"Launch job"</a> }.into_any();
    view! {
        <Page title="Jobs".to_owned() actions=launch>
            <Filter state=state/>
            {data_view(data, |first: FirstPage| view! { <JobList first=first/> }.into_any())}
        </Page>
    }
}

/// The filter by state; a choice opens the address of its list.
#[component]
fn Filter(state: Memo<Option<JobState>>) -> impl IntoView {
    let links = use_org_links();
    let choice = move |value: Option<JobState>| {
        let text = value.map_or_else(|| "all".to_owned(), state_text);
        let path = value.map_or_else(|| "/jobs".to_owned(), |state| format!("/jobs?state={}", state.name()));
        let at_first = state.get_untracked() == value;
        view! {
            <label>
                <input
                    type="radio"
                    name="state"
                    checked=at_first
                    prop:checked=move || { state.get() == value }
                    on:change=move |_| go(&links.path(&path))
                />
                {text}
            </label>
        }
    };
    view! {
        <div class="filters">
            <div class="segmented" role="radiogroup" aria-label="State">
                {choice(None)} {FILTERS.map(|state| choice(Some(state))).into_iter().collect_view()}
            </div>
        </div>
    }
}

#[component]
fn JobList(first: FirstPage) -> impl IntoView {
    let FirstPage { org, state, jobs, cursor } = first;
    let jobs = RwSignal::new(jobs);
    let cursor = RwSignal::new(cursor);
    let more = Call::idle();
    let apply = move |job: Job| {
        jobs.update(|jobs| {
            if state.is_some_and(|state| state != job.state) {
                jobs.retain(|known| known.id != job.id);
            } else {
                merge(jobs, job);
            }
        });
    };
    let feed = live::open(
        move || format!("/api/v1/orgs/{org}/events"),
        &["change", "beat"],
        move |name: &str, data: &str, _id: &str| {
            if name == "change"
                && let Ok(change) = serde_json::from_str::<JobChange>(data)
            {
                apply(change.job);
            }
        },
    );
    // A reconnected feed misses earlier changes.
    Effect::new(move |was: Option<FeedState>| {
        let now = feed.state.get();
        if now == FeedState::Live && was.is_some_and(|was| was != FeedState::Live) {
            spawn_local(async move {
                if let Ok(fresh) = api::jobs::list(org, state, None, PAGE).await {
                    fresh.items.into_iter().for_each(apply);
                }
            });
        }
        now
    });
    let load_more = move |()| {
        let next = api::jobs::list(org, state, cursor.get_untracked(), PAGE);
        more.run(next, move |page: berth_types::Page<Job>| {
            jobs.update(|jobs| page.items.into_iter().for_each(|job| merge(jobs, job)));
            cursor.set(page.next_cursor);
        });
    };
    let csv = api::jobs::csv_path(org, state);
    let none = Memo::new(move |_| jobs.with(Vec::is_empty));
    view! {
        {move || {
            if none.get() {
                view! { <Empty org=org state=state/> }.into_any()
            } else {
                view! {
                    <section class="section">
                        <div class="section__head">
                            <p class="quiet">{move || count_text(jobs.with(Vec::len), cursor.get().is_some())}</p>
                            <div class="section__aside">
                                <a href=csv.clone() rel="external" download="jobs.csv">"Download CSV"</a>
                                <FeedBadge feed=feed/>
                            </div>
                        </div>
                        {move || table(&jobs.get())}
                    </section>
                }
                    .into_any()
            }
        }}
        <LoadMore cursor=cursor call=more load=Callback::new(load_more)/>
    }
}

fn count_text(count: usize, more: bool) -> String {
    let jobs = counted(count, "job", "jobs");
    if more { format!("Newest {jobs}") } else { jobs }
}

#[component]
fn Empty(org: OrgId, state: Option<JobState>) -> impl IntoView {
    let origin = origin();
    let Some(state) = state else {
        let line = Signal::derive(move || curl::first_job(&origin.get(), &org.to_string()));
        return view! {
            <div class="empty">
                <p class="empty__text">"No jobs yet. Launch a job with the form or with this request."</p>
                <CopyBlock text=line label="First job with curl".to_owned()/>
            </div>
        }
        .into_any();
    };
    let text = format!("No jobs match: state {}.", state_text(state));
    view! {
        <div class="empty">
            <p class="empty__text">{text}</p>
            <a class="btn" href=org_link("/jobs")>"Clear filters"</a>
        </div>
    }
    .into_any()
}

fn table(jobs: &[Job]) -> AnyView {
    let decimals = column_decimals(jobs.iter().map(|job| job.cost_micros));
    let rows: Vec<AnyView> = jobs.iter().map(|job| row(job, decimals)).collect();
    table_of(
        "Jobs",
        &[
            ("Job", ""),
            STATE,
            ("Offering", ""),
            ("Board", ""),
            ("Submitted by", ""),
            ("Started", "nowrap"),
            ("Run time", "num"),
            ("Cost", "num"),
        ],
        rows,
    )
}

fn row(job: &Job, decimals: usize) -> AnyView {
    let started = match job.started_at {
        Some(at) => view! { <When at=at/> }.into_any(),
        None => view! { <span class="quiet">"submitted "</span><When at=job.created_at/> }.into_any(),
    };
    let run_time = if job.metered_ms > 0 { duration_text(job.metered_ms) } else { "–".to_owned() };
    let by = job.created_by.clone();
    let cost = column_text(job.cost_micros, &job.currency, decimals);
    view! {
        <tr role="row">
            {name_cell(job, job.id.to_string())}
            <td role="cell" class="table__state" data-label="State"><StateBadge state=job.state/></td>
            {offering_cell(job)}
            {board_cell(job)}
            <td role="cell" data-label="Submitted by">{by}</td>
            <td role="cell" class="nowrap" data-label="Started">{started}</td>
            <td role="cell" class="num" data-label="Run time">{run_time}</td>
            <td role="cell" class="num" data-label="Cost">{cost}</td>
        </tr>
    }
    .into_any()
}
