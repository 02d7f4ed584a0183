//! Page of a comparison: two to six jobs beside each other, with their readings as lines of common charts.
//!
//! The jobs are in the address, so that a comparison can be shared. The answers of the portal become rows and lines
//! during the load, because the files and readings of six jobs may have many megabytes.

pub mod chart;
pub mod choice;
pub mod csv;
pub mod lines;
pub mod rows;
pub mod select;
pub mod table;

use std::future::Future;

use berth_types::ids::{JobId, OrgId};
use berth_types::jobs::JobState;
use berth_types::metrics::Metrics;
use futures::future::join_all;
use futures::join;
use leptos::prelude::*;
use leptos_router::hooks::use_query_map;
use serde::{Deserialize, Serialize};

use self::chart::ReadingCharts;
use self::choice::{Choice, MAX_JOBS, MIN_JOBS};
use self::lines::Charts;
use self::rows::{Column, ComparedJob, Section, sections};
use super::org_data::data_view;
use super::parts::{ready, when_some};
use super::text::counted;
use crate::address::org_link;
use crate::api;
use crate::api::Answer;
use crate::session::{Page, use_session};
use crate::ui::CopyButton;

/// The data of the page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Comparison {
    /// The heads of the columns; empty for an address with fewer than two jobs.
    columns: Vec<Column>,
    sections: Vec<Section>,
    charts: Charts,
    /// The number of further jobs in the address.
    left_out: usize,
    /// True with the right to see submissions.
    with_submissions: bool,
}

impl Comparison {
    fn new(choice: &Choice, jobs: &[Option<ComparedJob>], with_submissions: bool) -> Self {
        let readings: Vec<_> =
            jobs.iter().map(|job| job.as_ref().map(|one| (one.job.started_at, &one.metrics))).collect();
        Self {
            columns: Column::list(&choice.jobs, jobs),
            sections: sections(jobs),
            charts: Charts::new(&readings),
            left_out: choice.left_out,
            with_submissions,
        }
    }
}

/// Returns an answer; `None` without access or after a deletion.
fn find_allowed<T>(answer: Answer<T>) -> Answer<Option<T>> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(problem) if matches!(problem.status, 403 | 404) => Ok(None),
        Err(problem) => Err(problem),
    }
}

/// Reads a job; `None` for a job without access or after its deletion. `runs` is the right to see submissions.
fn read(
    org: OrgId,
    id: JobId,
    runs: bool,
) -> impl Future<Output = Answer<Option<ComparedJob>>> + Send + 'static {
    let (job, events) = (api::jobs::get(org, id), api::jobs::events(org, id));
    let metrics = api::jobs::metrics(org, id);
    let submission = when_some(runs.then(|| api::jobs::submission(org, id)));
    async move {
        let (job, events, metrics, submission) = join!(job, events, metrics, submission);
        let Some(job) = find_allowed(job)? else { return Ok(None) };
        let events = find_allowed(events)?.map(|page| page.items).unwrap_or_default();
        let first_start = events.iter().find(|event| event.state == JobState::Running).map(|event| event.at);
        Ok(Some(ComparedJob {
            first_start: first_start.or(job.started_at),
            job,
            // Without metrics the charts stay empty, and without submission its rows are absent.
            metrics: find_allowed(metrics)?.unwrap_or(Metrics { step_s: 1, series: Vec::new() }),
            submission: find_allowed(submission)?.flatten(),
        }))
    }
}

fn load(org: OrgId, choice: Choice, runs: bool) -> impl Future<Output = Answer<Comparison>> + Send + 'static {
    let few = choice.jobs.len() < MIN_JOBS;
    let choice = if few { Choice::default() } else { choice };
    let calls = join_all(choice.jobs.iter().map(|id| read(org, *id, runs)));
    async move {
        let jobs = calls.await.into_iter().collect::<Answer<Vec<Option<ComparedJob>>>>()?;
        Ok(Comparison::new(&choice, &jobs, runs))
    }
}

/// The page of a comparison.
#[component]
pub fn ComparePage() -> impl IntoView {
    let session = use_session();
    let org = session.org;
    let query = use_query_map();
    let choice =
        Memo::new(move |_| query.with(|query| Choice::parse(&query.get_all("job").unwrap_or_default())));
    let data: Resource<Answer<Option<Comparison>>> = Resource::new(
        move || (org.get(), choice.get()),
        move |(org, choice): (Option<OrgId>, Choice)| {
            when_some(org.map(|org| load(org, choice, session.runs_in(org))))
        },
    );
    let list = view! { <a class="btn" href=org_link("/jobs")>"All jobs"</a> }.into_any();
    view! {
        <Page title="Comparison of jobs".to_owned() actions=list>{data_view(data, comparison_view)}</Page>
    }
}

fn comparison_view(comparison: Comparison) -> AnyView {
    let Comparison { columns, sections, charts, left_out, with_submissions } = comparison;
    if columns.is_empty() {
        return view! {
            <div class="empty">
                <p class="empty__text">
                    "A comparison needs two to six jobs. Check them in the list of jobs, then choose Compare."
                </p>
                <a class="btn" href=org_link("/jobs")>"Open jobs"</a>
            </div>
        }
        .into_any();
    }
    let ready = ready();
    let only = RwSignal::new(false);
    let csv = csv::csv(&columns, &sections);
    let count = counted(columns.len(), "job", "jobs");
    let more = (left_out > 0).then(|| {
        let text = format!("The address has {left_out} more. A comparison has at most {MAX_JOBS} jobs.");
        view! { <p class="quiet">{text}</p> }
    });
    let hidden = (!with_submissions).then(|| {
        view! {
            <p class="quiet">
                "Variables, secrets and contents of files are absent: your role cannot see submissions."
            </p>
        }
    });
    view! {
        <section class="section" aria-labelledby="compare-values">
            <div class="section__head">
                <h2 id="compare-values">{count}</h2>
                <label class="check">
                    <input
                        type="checkbox"
                        disabled=move || !ready.get()
                        prop:checked=move || only.get()
                        on:change=move |event| only.set(event_target_checked(&event))
                    />
                    <span>"Only differences"</span>
                </label>
                <div class="section__aside"><CopyButton text=csv label="Copy as CSV"/></div>
            </div>
            {more}
            {table::table(&columns, &sections, only)}
            {hidden}
        </section>
        <ReadingCharts charts=charts columns=columns/>
    }
    .into_any()
}
