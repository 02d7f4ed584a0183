//! Home: what runs, what waits and why, what it costs, how long the balance lasts.
//!
//! Must not compute money: every amount is one the portal answered.

use std::future::Future;

use berth_types::events::JobChange;
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
use super::limits::lines::tightest;
use super::of_org::of_org;
use super::parts::{every, origin};
use super::rows::{board_cell, merge, name_cell, offering_cell};
use super::words::{counted, offering_text, runway};
use crate::api;
use crate::api::Answer;
use crate::live;
use crate::live::{FeedBadge, FeedState};
use crate::session::{Page, use_session};
use crate::ui::*;

/// Ended jobs shown; the rest is on the page of jobs.
const RECENT: usize = 6;

/// What the page starts with.
#[derive(Clone, Serialize, Deserialize)]
struct Overview {
    org: OrgId,
    /// Absent for those who may not see money.
    balance: Option<Balance>,
    /// Absent when it could not be had: the page is of use without.
    quota: Option<Quota>,
    jobs: Vec<Job>,
}

fn load(org: OrgId) -> impl Future<Output = Answer<Overview>> + Send + 'static {
    let balance = api::money::balance(org);
    let quota = api::quotas::get(org);
    let recent = api::jobs::list(org, None, None, 50);
    // The newest jobs may not hold a long-running or a long-waiting one.
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

/// The first page after signing in.
#[component]
pub fn HomePage() -> impl IntoView {
    let launch = view! { <a class="btn btn--primary" href="/launch">"Launch job"</a> }.into_any();
    view! {
        <Page title="Home".to_owned() actions=launch>
            {of_org(load, |overview: Overview| view! { <Overall overview=overview/> }.into_any())}
        </Page>
    }
}

#[component]
fn Overall(overview: Overview) -> impl IntoView {
    let Overview { org, balance, quota, jobs } = overview;
    let balance = RwSignal::new(balance);
    let quota = RwSignal::new(quota);
    let jobs = RwSignal::new(jobs);
    let refresh = move || {
        spawn_local(async move {
            // A failed refresh leaves what is shown; the badge says how old the live view is.
            if let Ok(fresh) = load(org).await {
                balance.set(fresh.balance);
                if fresh.quota.is_some() {
                    quota.set(fresh.quota);
                }
                jobs.update(|jobs| fresh.jobs.into_iter().for_each(|job| merge(jobs, job)));
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
                jobs.update(|jobs| merge(jobs, change.job));
            }
        },
    );
    // What changed while no feed was open is fetched once it is.
    Effect::new(move |was: Option<FeedState>| {
        let now = feed.state.get();
        if now == FeedState::Live && was.is_some_and(|was| was != FeedState::Live) {
            refresh();
        }
        now
    });
    // Balance and cost move without a job changing its state.
    every(10_000, refresh);

    let none = Memo::new(move |_| jobs.with(Vec::is_empty));
    move || {
        if none.get() {
            view! {
                <NothingYet org=org balance=balance/>
                <TightestLimit quota=quota/>
            }
            .into_any()
        } else {
            view! {
                <Figures balance=balance jobs=jobs/>
                <TightestLimit quota=quota/>
                <section class="section">
                    <div class="section__head">
                        <h2>"Running"</h2>
                        <div class="section__aside"><FeedBadge feed=feed/></div>
                    </div>
                    {move || running(&jobs.get())}
                </section>
                {move || waiting(&jobs.get())}
                {move || ended(&jobs.get())}
            }
            .into_any()
        }
    }
}

/// Empty teaches: one sentence, one action, the same as a curl line.
#[component]
fn NothingYet(org: OrgId, balance: RwSignal<Option<Balance>>) -> impl IntoView {
    let origin = origin();
    let line = Signal::derive(move || curl::first_job(&origin.get(), &org.to_string()));
    let credit = move || {
        balance.with(|balance| {
            balance.as_ref().map(|balance| {
                if balance.available_micros <= 0 {
                    return " You have no credit yet: ask the operator of this portal for some first."
                        .to_owned();
                }
                format!(" {} is available to you.", money_text(balance.available_micros, &balance.currency))
            })
        })
    };
    view! {
        <div class="empty">
            <p class="empty__text">
                "No jobs yet. Say what to run and on which part of a GPU; you pay for the milliseconds that it runs."
                {credit}
            </p>
            <CopyBlock text=line label="The same with curl".to_owned()/>
        </div>
    }
}

const fn is_on_board(state: JobState) -> bool {
    matches!(state, JobState::Assigned | JobState::Starting | JobState::Running | JobState::Stopping)
}

#[component]
fn Figures(balance: RwSignal<Option<Balance>>, jobs: RwSignal<Vec<Job>>) -> impl IntoView {
    let count = move |wanted: fn(JobState) -> bool| {
        jobs.with(|jobs| jobs.iter().filter(|job| wanted(job.state)).count())
    };
    let money = move || balance.get().map(|balance| money_figures(&balance));
    let unit = |count: usize| if count == 1 { "job" } else { "jobs" };
    let running = move || count(is_on_board);
    let queued = move || count(|state| state == JobState::Queued);
    view! {
        <dl class="stats">
            {money}
            <div class="stat">
                <dt class="stat__label">"Running"</dt>
                <dd class="stat__value">{running}<span class="stat__unit">{move || unit(running())}</span></dd>
            </div>
            <div class="stat">
                <dt class="stat__label">"Queued"</dt>
                <dd class="stat__value">{queued}<span class="stat__unit">{move || unit(queued())}</span></dd>
            </div>
        </dl>
    }
}

/// The limit that is nearest to being in the way, in one line; nothing where nothing limits.
#[component]
fn TightestLimit(quota: RwSignal<Option<Quota>>) -> impl IntoView {
    let currency = use_session().me.currency;
    let said = Memo::new(move |_| {
        quota.with(|quota| {
            let quota = quota.as_ref()?;
            tightest(&quota.limits, &quota.used)?.sentence(&currency)
        })
    });
    move || {
        said.get().map(|said| {
            view! { <p class="quiet">"Tightest limit: "{said}". "<a href="/limits">"All limits"</a></p> }
        })
    }
}

fn money_figures(balance: &Balance) -> AnyView {
    let text = |micros: i64| money_text(micros, &balance.currency);
    let lasts = runway(balance.available_micros, balance.burn_per_hour_micros);
    let rate_note = if lasts.is_some() { "at the present rate" } else { "nothing runs, nothing is spent" };
    let lasts = match lasts {
        Some(hours) => view! { {hours}<span class="stat__unit">"h"</span> }.into_any(),
        None => view! { "as it is" }.into_any(),
    };
    view! {
        <div class="stat">
            <dt class="stat__label">"Available"</dt>
            <dd class="stat__value">{text(balance.available_micros)}</dd>
            <dd class="stat__note">{format!("{} more is set aside", text(balance.held_micros))}</dd>
        </div>
        <div class="stat">
            <dt class="stat__label">"Lasts"</dt>
            <dd class="stat__value">{lasts}</dd>
            <dd class="stat__note">{rate_note}</dd>
        </div>
        <div class="stat">
            <dt class="stat__label">"Burn"</dt>
            <dd class="stat__value">{text(balance.burn_per_hour_micros)}<span class="stat__unit">"/h"</span></dd>
        </div>
    }
    .into_any()
}

fn running(jobs: &[Job]) -> AnyView {
    let rows: Vec<AnyView> = jobs.iter().filter(|job| is_on_board(job.state)).map(running_row).collect();
    if rows.is_empty() {
        return view! { <p class="quiet">"Nothing runs right now."</p> }.into_any();
    }
    table_of(
        "Running jobs",
        &[("Job", ""), STATE, ("Board", ""), ("Ran", "num"), ("Cost so far", "num")],
        rows,
    )
}

fn running_row(job: &Job) -> AnyView {
    view! {
        <tr role="row">
            {name_cell(job, offering_text(&job.offering, job.count))}
            <td role="cell" class="table__state" data-label="State"><StateBadge state=job.state/></td>
            {board_cell(job)}
            <td role="cell" class="num" data-label="Ran">{duration_text(job.metered_ms)}</td>
            <td role="cell" class="num" data-label="Cost so far">{money_text(job.cost_micros, &job.currency)}</td>
        </tr>
    }
    .into_any()
}

fn waiting(jobs: &[Job]) -> AnyView {
    let rows: Vec<AnyView> =
        jobs.iter().filter(|job| job.state == JobState::Queued).map(waiting_row).collect();
    if rows.is_empty() {
        return ().into_any();
    }
    view! {
        <section class="section">
            <div class="section__head"><h2>"Waiting"</h2></div>
            {table_of("Waiting jobs", &[("Job", ""), ("Why", ""), ("Since", "nowrap")], rows)}
        </section>
    }
    .into_any()
}

fn waiting_row(job: &Job) -> AnyView {
    let why = job.reasons.first().cloned().unwrap_or_else(|| "It is being placed.".to_owned());
    view! {
        <tr role="row">
            {name_cell(job, offering_text(&job.offering, job.count))}
            <td role="cell" data-label="Why">{why}</td>
            <td role="cell" class="nowrap" data-label="Since"><When at=job.created_at/></td>
        </tr>
    }
    .into_any()
}

fn ended(jobs: &[Job]) -> AnyView {
    let rows: Vec<AnyView> =
        jobs.iter().filter(|job| job.state.ended()).take(RECENT).map(ended_row).collect();
    if rows.is_empty() {
        return ().into_any();
    }
    let shown = counted(rows.len(), "job", "jobs");
    view! {
        <section class="section">
            <div class="section__head">
                <h2>"Ended"</h2>
                <div class="section__aside">{format!("the last {shown}")} " " <a href="/jobs">"All jobs"</a></div>
            </div>
            {table_of(
                "Jobs that ended",
                &[("Job", ""), STATE, ("Offering", ""), ("Ended", "nowrap"), ("Ran", "num"), ("Cost", "num")],
                rows,
            )}
        </section>
    }
    .into_any()
}

fn ended_row(job: &Job) -> AnyView {
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
            <td role="cell" class="nowrap" data-label="Ended"><When at=at/></td>
            <td role="cell" class="num" data-label="Ran">{duration_text(job.metered_ms)}</td>
            <td role="cell" class="num" data-label="Cost">{money_text(job.cost_micros, &job.currency)}</td>
        </tr>
    }
    .into_any()
}
