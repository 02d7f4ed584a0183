//! Home page of an organization: running, queued and finished jobs, balance and runway.
//!
//! All amounts come from the portal.

use std::future::Future;

use berth_types::ids::OrgId;
use berth_types::jobs::{Job, JobState};
use berth_types::ledger::Balance;
use berth_types::money::money_text;
use berth_types::quotas::Quota;
use berth_types::time::duration_text;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::{Deserialize, Serialize};

use super::curl;
use super::limits::lines::closest_limit;
use super::org_data::org_view;
use super::parts::{every, origin};
use super::rows::{again_cell, board_cell, merge, name_cell, offering_cell};
use super::text::{counted, offering_text, runway};
use crate::api;
use crate::api::Answer;
use crate::live;
use crate::live::{FeedBadge, FeedState};
use crate::session::{Page, use_session};
use crate::ui::*;

/// The maximum number of finished jobs on the page.
const MAX_FINISHED: usize = 6;

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Overview {
    org: OrgId,
    /// Absent without the right to see money.
    balance: Option<Balance>,
    /// Absent after a failed request.
    quota: Option<Quota>,
    jobs: Vec<Job>,
}

fn load(org: OrgId) -> impl Future<Output = Answer<Overview>> + Send + 'static {
    let balance = api::money::balance(org);
    let quota = api::quotas::get(org);
    let recent = api::jobs::list(org, None, None, 50);
    // An old job that still runs or waits is not among the newest.
    let running = api::jobs::list(org, Some(JobState::Running), None, 100);
    let queued = api::jobs::list(org, Some(JobState::Queued), None, 100);
    async move {
        let balance = match balance.await {
            Ok(balance) => Some(balance),
            Err(problem) if problem.status == 403 => None,
            Err(problem) => return Err(problem),
        };
        let quota = quota.await.ok();
        let mut jobs = recent.await?.items;
        for job in running.await?.items.into_iter().chain(queued.await?.items) {
            merge(&mut jobs, job);
        }
        Ok(Overview { org, balance, quota, jobs })
    }
}

/// The first page after the sign-in.
#[component]
pub fn HomePage() -> impl IntoView {
    let launch = view! { <a class="btn btn--primary" href="/launch">"Launch job"</a> }.into_any();
    view! {
        <Page title="Home".to_owned() actions=launch>
            {org_view(load, |overview: Overview| view! { <HomeView overview=overview/> }.into_any())}
        </Page>
    }
}

#[component]
fn HomeView(overview: Overview) -> impl IntoView {
    let Overview { org, balance, quota, jobs } = overview;
    let balance = RwSignal::new(balance);
    let quota = RwSignal::new(quota);
    let jobs = RwSignal::new(jobs);
    let refresh = move || {
        spawn_local(async move {
            // After a failed refresh the old data stays; the badge shows its age.
            if let Ok(fresh) = load(org).await {
                balance.set(fresh.balance);
                if fresh.quota.is_some() {
                    quota.set(fresh.quota);
                }
                jobs.update(|jobs| fresh.jobs.into_iter().for_each(|job| merge(jobs, job)));
            }
        });
    };
    let runs = use_session().runs_in(org);
    let feed = live::open_org(org, move |change| jobs.update(|jobs| merge(jobs, change.job)));
    // A reconnected feed misses earlier changes.
    Effect::new(move |was: Option<FeedState>| {
        let now = feed.state.get();
        if now == FeedState::Live && was.is_some_and(|was| was != FeedState::Live) {
            refresh();
        }
        now
    });
    // Balance and cost change without an event.
    every(10_000, refresh);

    let none = Memo::new(move |_| jobs.with(Vec::is_empty));
    move || {
        if none.get() {
            view! {
                <NoJobs org=org balance=balance/>
                <ClosestLimit quota=quota/>
            }
            .into_any()
        } else {
            view! {
                <Figures balance=balance jobs=jobs/>
                <ClosestLimit quota=quota/>
                <section class="section">
                    <div class="section__head">
                        <h2>"Running"</h2>
                        <div class="section__aside"><FeedBadge feed=feed/></div>
                    </div>
                    {move || running(&jobs.get())}
                </section>
                {move || queued(&jobs.get())}
                {move || finished(&jobs.get(), runs)}
            }
            .into_any()
        }
    }
}

/// The empty state with an example request.
#[component]
fn NoJobs(org: OrgId, balance: RwSignal<Option<Balance>>) -> impl IntoView {
    let origin = origin();
    let line = Signal::derive(move || curl::first_job(&origin.get(), &org.to_string()));
    let credit = move || {
        balance.with(|balance| {
            balance.as_ref().map(|balance| {
                if balance.available_micros <= 0 {
                    return " No credit yet: request credit from the operator of this portal.".to_owned();
                }
                format!(" Available credit: {}.", money_text(balance.available_micros, &balance.currency))
            })
        })
    };
    view! {
        <div class="empty">
            <p class="empty__text">
                "No jobs yet. Launch a program on a GPU or on a part of a GPU; you pay per millisecond of run time."
                {credit}
            </p>
            <CopyBlock text=line label="First job with curl".to_owned()/>
        </div>
    }
}

const fn has_devices(state: JobState) -> bool {
    matches!(state, JobState::Assigned | JobState::Starting | JobState::Running | JobState::Stopping)
}

#[component]
fn Figures(balance: RwSignal<Option<Balance>>, jobs: RwSignal<Vec<Job>>) -> impl IntoView {
    let count = move |wanted: fn(JobState) -> bool| {
        jobs.with(|jobs| jobs.iter().filter(|job| wanted(job.state)).count())
    };
    let money = move || balance.get().map(|balance| money_figures(&balance));
    let unit = |count: usize| if count == 1 { "job" } else { "jobs" };
    let running = move || count(has_devices);
    let queued = move || count(|state| state == JobState::Queued);
    view! {
        <dl class="stats">
            {money}
            <div class="stat">
                <dt class="stat__label">"Running"</dt>
                <dd class="stat__value">{running}<span class="stat__unit">{move || unit(running())}</span></dd>
                <dd class="stat__note">"including starting and stopping jobs"</dd>
            </div>
            <div class="stat">
                <dt class="stat__label">"Queued"</dt>
                <dd class="stat__value">{queued}<span class="stat__unit">{move || unit(queued())}</span></dd>
            </div>
        </dl>
    }
}

/// The limit with the largest used part, in one line; nothing without limits.
#[component]
fn ClosestLimit(quota: RwSignal<Option<Quota>>) -> impl IntoView {
    let currency = use_session().me.currency;
    let text = Memo::new(move |_| {
        quota.with(|quota| {
            let quota = quota.as_ref()?;
            closest_limit(&quota.limits, &quota.used)?.sentence(&currency)
        })
    });
    move || {
        text.get().map(|text| {
            view! { <p class="quiet">"Closest limit: "{text}". "<a href="/limits">"All limits"</a></p> }
        })
    }
}

fn money_figures(balance: &Balance) -> AnyView {
    let text = |micros: i64| money_text(micros, &balance.currency);
    let hours = runway(balance.available_micros, balance.burn_per_hour_micros);
    let runway_note = if hours.is_some() { "at the current cost" } else { "no jobs charged now" };
    let runway = match hours {
        Some(hours) => view! { {hours}<span class="stat__unit">"h"</span> }.into_any(),
        None => view! { "–" }.into_any(),
    };
    view! {
        <div class="stat">
            <dt class="stat__label">"Available"</dt>
            <dd class="stat__value">{text(balance.available_micros)}</dd>
            <dd class="stat__note">{format!("{} reserved for jobs and reservations", text(balance.held_micros))}</dd>
        </div>
        <div class="stat">
            <dt class="stat__label">"Runway"</dt>
            <dd class="stat__value">{runway}</dd>
            <dd class="stat__note">{runway_note}</dd>
        </div>
        <div class="stat">
            <dt class="stat__label">"Current cost"</dt>
            <dd class="stat__value">{text(balance.burn_per_hour_micros)}<span class="stat__unit">"/h"</span></dd>
            <dd class="stat__note">"all running jobs"</dd>
        </div>
    }
    .into_any()
}

fn running(jobs: &[Job]) -> AnyView {
    let rows: Vec<AnyView> = jobs.iter().filter(|job| has_devices(job.state)).map(running_row).collect();
    if rows.is_empty() {
        return view! { <p class="quiet">"No running jobs."</p> }.into_any();
    }
    table_of(
        "Running jobs",
        &[("Job", ""), STATE, ("Board", ""), ("Run time", "num"), ("Cost so far", "num")],
        rows,
    )
}

fn running_row(job: &Job) -> AnyView {
    view! {
        <tr role="row">
            {name_cell(job, offering_text(&job.offering, job.count))}
            <td role="cell" class="table__state" data-label="State"><StateBadge state=job.state/></td>
            {board_cell(job)}
            <td role="cell" class="num" data-label="Run time">{duration_text(job.metered_ms)}</td>
            <td role="cell" class="num" data-label="Cost so far">{money_text(job.cost_micros, &job.currency)}</td>
        </tr>
    }
    .into_any()
}

fn queued(jobs: &[Job]) -> AnyView {
    let rows: Vec<AnyView> =
        jobs.iter().filter(|job| job.state == JobState::Queued).map(queued_row).collect();
    if rows.is_empty() {
        return ().into_any();
    }
    view! {
        <section class="section">
            <div class="section__head"><h2>"Queued"</h2></div>
            {table_of("Queued jobs", &[("Job", ""), ("Reason", ""), ("Submitted", "nowrap")], rows)}
        </section>
    }
    .into_any()
}

fn queued_row(job: &Job) -> AnyView {
    let reason = job.reasons.first().cloned().unwrap_or_else(|| "Starting shortly.".to_owned());
    view! {
        <tr role="row">
            {name_cell(job, offering_text(&job.offering, job.count))}
            <td role="cell" data-label="Reason">{reason}</td>
            <td role="cell" class="nowrap" data-label="Submitted"><When at=job.created_at/></td>
        </tr>
    }
    .into_any()
}

fn finished(jobs: &[Job], runs: bool) -> AnyView {
    let ended = jobs.iter().filter(|job| job.state.ended()).take(MAX_FINISHED);
    let rows: Vec<AnyView> = ended.map(|job| finished_row(job, runs)).collect();
    if rows.is_empty() {
        return ().into_any();
    }
    let shown = counted(rows.len(), "job", "jobs");
    view! {
        <section class="section">
            <div class="section__head">
                <h2>"Finished"</h2>
                <div class="section__aside">{format!("latest {shown}")} " " <a href="/jobs">"All jobs"</a></div>
            </div>
            {table_of(
                "Finished jobs",
                &[("Job", ""), STATE, ("Offering", ""), ("Finished", "nowrap"), ("Run time", "num"), ("Cost", "num"), ACTIONS],
                rows,
            )}
        </section>
    }
    .into_any()
}

fn finished_row(job: &Job, runs: bool) -> AnyView {
    let at = job.ended_at.unwrap_or(job.created_at);
    let below = match (&job.failure, job.exit_code) {
        (Some(failure), _) => failure.detail.clone(),
        (None, Some(code)) if code != 0 => format!("exit code {code}"),
        _ => job.id.to_string(),
    };
    view! {
        <tr role="row">
            {name_cell(job, below)}
            <td role="cell" class="table__state" data-label="State"><StateBadge state=job.state/></td>
            {offering_cell(job)}
            <td role="cell" class="nowrap" data-label="Finished"><When at=at/></td>
            <td role="cell" class="num" data-label="Run time">{duration_text(job.metered_ms)}</td>
            <td role="cell" class="num" data-label="Cost">{money_text(job.cost_micros, &job.currency)}</td>
            {again_cell(job, runs)}
        </tr>
    }
    .into_any()
}
