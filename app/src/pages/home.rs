//! Home page of an organization: the first running, queued and finished jobs, balance and runway.
//!
//! All amounts and numbers come from the portal.

use std::future::Future;

use berth_types::ids::OrgId;
use berth_types::jobs::{Job, JobState};
use berth_types::ledger::Balance;
use berth_types::money::{available_text, column_decimals, column_text, price_text, reserved_text};
use berth_types::overview::{JobCounts, MAX_COUNTED};
use berth_types::quotas::Quota;
use berth_types::time::duration_text;
use futures::join;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::{Deserialize, Serialize};

use super::curl;
use super::launch::offers::first_choice;
use super::limits::lines::closest_limit;
use super::org_data::org_view;
use super::parts::{every_visible, origin, when_some};
use super::rows::{again_cell, board_cell, merge, name_cell, offering_cell};
use super::text::{number, offering_text, runway};
use crate::address::org_link;
use crate::api;
use crate::api::Answer;
use crate::live;
use crate::live::{FeedBadge, FeedState};
use crate::session::{Page, use_session};
use crate::ui::*;

/// The maximum numbers of jobs on the page.
const MAX_RUNNING: usize = 8;
const MAX_QUEUED: usize = 5;
const MAX_FINISHED: usize = 6;

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Overview {
    org: OrgId,
    /// Absent without the right to see money.
    balance: Option<Balance>,
    /// Absent after a failed request.
    quota: Option<Quota>,
    counts: JobCounts,
    jobs: Vec<Job>,
    /// The offering of the example; absent without a priced offering, and with jobs.
    example: Option<String>,
}

fn load(org: OrgId) -> impl Future<Output = Answer<Overview>> + Send + 'static {
    load_as(org, use_session().sees_money(org))
}

/// Loads the data of the page; without the right to see money no balance.
fn load_as(org: OrgId, sees_money: bool) -> impl Future<Output = Answer<Overview>> + Send + 'static {
    let balance = sees_money.then(|| api::money::balance(org));
    let quota = api::quotas::get(org);
    let counts = api::jobs::counts(org);
    let offerings = api::money::org_offerings(org);
    let recent = api::jobs::list(org, None, None, 50);
    // An old job that still runs or waits is not among the newest.
    let running = api::jobs::list(org, Some(JobState::Running), None, limit(MAX_RUNNING));
    let queued = api::jobs::list(org, Some(JobState::Queued), None, limit(MAX_QUEUED));
    async move {
        let (balance, quota, counts, recent, running, queued) =
            join!(when_some(balance), quota, counts, recent, running, queued);
        let balance = match balance {
            // The role changed meanwhile.
            Err(problem) if problem.status == 403 => None,
            balance => balance?,
        };
        let (quota, counts) = (quota.ok(), counts?);
        let mut jobs = recent?.items;
        for job in running?.items.into_iter().chain(queued?.items) {
            merge(&mut jobs, job);
        }
        // Only the page without jobs has the example, and it is complete without it.
        let example = if jobs.is_empty() {
            offerings.await.ok().map(|page| first_choice(&page.items)).filter(|slug| !slug.is_empty())
        } else {
            None
        };
        Ok(Overview { org, balance, quota, counts, jobs, example })
    }
}

fn limit(jobs: usize) -> u32 {
    u32::try_from(jobs).unwrap_or(u32::MAX)
}

/// The first page after the sign-in.
#[component]
pub fn HomePage() -> impl IntoView {
    let session = use_session();
    let launch = move || {
        let runs = session.org.get().is_some_and(|org| session.runs_in(org));
        runs.then(|| view! { <a class="btn btn--primary" href=org_link("/launch")>"Launch job"</a> })
    };
    view! {
        <Page title="Home".to_owned() actions=launch.into_any()>
            {org_view(load, |overview: Overview| view! { <HomeView overview=overview/> }.into_any())}
        </Page>
    }
    .into_any()
}

#[component]
fn HomeView(overview: Overview) -> impl IntoView {
    let Overview { org, balance, quota, counts, jobs, example } = overview;
    let counts = RwSignal::new(counts);
    let balance = RwSignal::new(balance);
    let quota = RwSignal::new(quota);
    let jobs = RwSignal::new(jobs);
    let sees_money = use_session().sees_money(org);
    let refresh = move || {
        spawn_local(async move {
            // After a failed refresh the old data stays; the badge shows its age.
            if let Ok(fresh) = load_as(org, sees_money).await {
                balance.set(fresh.balance);
                if fresh.quota.is_some() {
                    quota.set(fresh.quota);
                }
                counts.set(fresh.counts);
                jobs.update(|jobs| fresh.jobs.into_iter().for_each(|job| merge(jobs, job)));
            }
        });
    };
    // True after a change that the counts do not have yet.
    let stale = StoredValue::new(false);
    let runs = use_session().runs_in(org);
    let feed = live::open_org(org, move |change| {
        jobs.update(|jobs| merge(jobs, change.job));
        stale.set_value(true);
    });
    // A burst of changes costs one count a second.
    every_visible(1_000, move || {
        if !stale.get_value() {
            return;
        }
        stale.set_value(false);
        let fresh = api::jobs::counts(org);
        spawn_local(async move {
            // The next refresh repeats a failed request.
            if let Ok(fresh) = fresh.await {
                counts.set(fresh);
            }
        });
    });
    // A reconnected feed misses earlier changes.
    Effect::new(move |was: Option<FeedState>| {
        let now = feed.state.get();
        if now == FeedState::Live && was.is_some_and(|was| was != FeedState::Live) {
            refresh();
        }
        now
    });
    // Balance and cost change without an event.
    every_visible(10_000, refresh);

    let none = Memo::new(move |_| jobs.with(Vec::is_empty));
    move || {
        if none.get() {
            view! {
                <NoJobs org=org balance=balance example=example.clone().filter(|_| runs)/>
                <ClosestLimit quota=quota/>
            }
            .into_any()
        } else {
            view! {
                <Figures balance=balance counts=counts/>
                <ClosestLimit quota=quota/>
                <section class="section">
                    <div class="section__head">
                        <h2>"Running"</h2>
                        <div class="section__aside">
                            <FeedBadge feed=feed/>
                            " "
                            <a href=org_link("/jobs?state=running")>{move || all_text(counts.get().running)}</a>
                        </div>
                    </div>
                    {move || running(&jobs.get())}
                </section>
                {move || queued(&jobs.get(), counts.get().queued)}
                {move || finished(&jobs.get(), counts.get().ended, runs)}
            }
            .into_any()
        }
    }
}

/// The empty state with an example request.
#[component]
fn NoJobs(
    org: OrgId,
    balance: RwSignal<Option<Balance>>,
    /// The offering of the example.
    example: Option<String>,
) -> impl IntoView {
    let origin = origin();
    let example = example.map(|offering| {
        let line = Signal::derive(move || curl::job_on(&origin.get(), &org.to_string(), &offering));
        view! { <CopyBlock text=line label="First job with curl".to_owned()/> }
    });
    let billing = org_link("/billing");
    let credit = move || {
        let balance = balance.get()?;
        if balance.available_micros <= 0 {
            let billing = billing.clone();
            return Some(view! { " No credit yet. " <a href=billing>"Request credit"</a> }.into_any());
        }
        let available = available_text(balance.available_micros, &balance.currency);
        Some(format!(" Available credit: {available}.").into_any())
    };
    view! {
        <div class="empty">
            <p class="empty__text">
                "No jobs yet. Launch a program on a GPU or on a part of a GPU; you pay per millisecond of run time."
                {credit}
            </p>
            {example}
        </div>
    }
}

const fn has_devices(state: JobState) -> bool {
    matches!(state, JobState::Assigned | JobState::Starting | JobState::Running | JobState::Stopping)
}

/// Returns the label of the link to all jobs of a section.
fn all_text(count: u64) -> String {
    format!("All {}", number(count))
}

/// Returns the label of the link to the ended jobs, whose count has a limit: `All 12`, `All 10,000+`.
fn all_ended_text(count: u64) -> String {
    let beyond = if count >= MAX_COUNTED { "+" } else { "" };
    format!("{}{beyond}", all_text(count))
}

#[component]
fn Figures(balance: RwSignal<Option<Balance>>, counts: RwSignal<JobCounts>) -> impl IntoView {
    let money = move || balance.get().map(|balance| money_figures(&balance));
    let unit = |count: u64| if count == 1 { "job" } else { "jobs" };
    let running = move || counts.get().running;
    let queued = move || counts.get().queued;
    view! {
        <dl class="stats">
            {money}
            <div class="stat">
                <dt class="stat__label">"Running"</dt>
                <dd class="stat__value">{move || number(running())}<span class="stat__unit">{move || unit(running())}</span></dd>
                <dd class="stat__note">"including starting and stopping jobs"</dd>
            </div>
            <div class="stat">
                <dt class="stat__label">"Queued"</dt>
                <dd class="stat__value">{move || number(queued())}<span class="stat__unit">{move || unit(queued())}</span></dd>
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
            view! { <p class="quiet">"Closest limit: "{text}". "<a href=org_link("/limits")>"All limits"</a></p> }
        })
    }
}

fn money_figures(balance: &Balance) -> AnyView {
    let currency = balance.currency.as_str();
    let reserved =
        format!("{} reserved for jobs and reservations", reserved_text(balance.held_micros, currency));
    let hours = runway(balance.available_micros, balance.burn_per_hour_micros);
    let runway_note = if hours.is_some() { "at the current cost" } else { "no jobs charged now" };
    let runway = match hours {
        Some(hours) => view! { {hours}<span class="stat__unit">"h"</span> }.into_any(),
        None => view! { "–" }.into_any(),
    };
    view! {
        <div class="stat">
            <dt class="stat__label">"Available"</dt>
            <dd class="stat__value">{available_text(balance.available_micros, currency)}</dd>
            <dd class="stat__note">{reserved}</dd>
        </div>
        <div class="stat">
            <dt class="stat__label">"Runway"</dt>
            <dd class="stat__value">{runway}</dd>
            <dd class="stat__note">{runway_note}</dd>
        </div>
        <div class="stat">
            <dt class="stat__label">"Current cost"</dt>
            <dd class="stat__value">{price_text(balance.burn_per_hour_micros, currency)}<span class="stat__unit">"/h"</span></dd>
            <dd class="stat__note">"all running jobs"</dd>
        </div>
    }
    .into_any()
}

fn running(jobs: &[Job]) -> AnyView {
    let jobs: Vec<&Job> = jobs.iter().filter(|job| has_devices(job.state)).take(MAX_RUNNING).collect();
    let decimals = column_decimals(jobs.iter().map(|job| job.cost_micros));
    let rows: Vec<AnyView> = jobs.into_iter().map(|job| running_row(job, decimals)).collect();
    if rows.is_empty() {
        return view! { <p class="quiet">"No running jobs."</p> }.into_any();
    }
    table_of(
        "Running jobs",
        &[("Job", ""), STATE, ("Board", ""), ("Run time", "num"), ("Cost so far", "num")],
        rows,
    )
}

fn running_row(job: &Job, decimals: usize) -> AnyView {
    let cost = column_text(job.cost_micros, &job.currency, decimals);
    view! {
        <tr role="row">
            {name_cell(job, offering_text(&job.offering, job.count))}
            <td role="cell" class="table__state" data-label="State"><StateBadge state=job.state/></td>
            {board_cell(job)}
            <td role="cell" class="num" data-label="Run time">{duration_text(job.metered_ms)}</td>
            <td role="cell" class="num" data-label="Cost so far">{cost}</td>
        </tr>
    }
    .into_any()
}

fn queued(jobs: &[Job], all: u64) -> AnyView {
    let waiting = jobs.iter().filter(|job| job.state == JobState::Queued);
    let rows: Vec<AnyView> = waiting.take(MAX_QUEUED).map(queued_row).collect();
    if rows.is_empty() {
        return ().into_any();
    }
    view! {
        <section class="section">
            <div class="section__head">
                <h2>"Queued"</h2>
                <div class="section__aside"><a href=org_link("/jobs?state=queued")>{all_text(all)}</a></div>
            </div>
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

fn finished(jobs: &[Job], all: u64, runs: bool) -> AnyView {
    let jobs: Vec<&Job> = jobs.iter().filter(|job| job.state.ended()).take(MAX_FINISHED).collect();
    let decimals = column_decimals(jobs.iter().map(|job| job.cost_micros));
    let rows: Vec<AnyView> = jobs.into_iter().map(|job| finished_row(job, decimals, runs)).collect();
    if rows.is_empty() {
        return ().into_any();
    }
    view! {
        <section class="section">
            <div class="section__head">
                <h2>"Finished"</h2>
                <div class="section__aside"><a href=org_link("/jobs")>{all_ended_text(all)}</a></div>
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

fn finished_row(job: &Job, decimals: usize, runs: bool) -> AnyView {
    let cost = column_text(job.cost_micros, &job.currency, decimals);
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
            <td role="cell" class="num" data-label="Cost">{cost}</td>
            {again_cell(job, runs)}
        </tr>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_at_its_limit_is_a_least_number() {
        assert_eq!(all_ended_text(0), "All 0");
        assert_eq!(all_ended_text(1_284), "All 1,284");
        assert_eq!(all_ended_text(MAX_COUNTED), "All 10,000+");
        assert_eq!(all_text(MAX_COUNTED), "All 10,000");
    }
}
