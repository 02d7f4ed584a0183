//! Page of one job: live state, cost, log, devices and metrics.
//!
//! All parts draw from one set of signals, which the event feed updates.

pub mod compare;
pub mod cost;
pub mod facts;
pub mod files;
pub mod head;
pub mod idle;
pub mod ports;
pub mod timeline;
pub mod waiting;

use std::future::Future;

use berth_types::Page;
use berth_types::events::{JobChange, JobCost, JobEvent};
use berth_types::files::JobFile;
use berth_types::ids::{JobId, OrgId};
use berth_types::jobs::{Explanation, Job, JobState};
use berth_types::metrics::Metrics;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use berth_types::volumes::{JobVolume, VolumeMode};
use futures::join;
use leptos::prelude::*;
use leptos_meta::Title;
use leptos_router::hooks::use_params_map;
use serde::{Deserialize, Serialize};

use self::cost::{CostFigures, Meter};
use self::facts::{Devices, Facts, FailureNotice, LostFiles};
use self::files::Files;
use self::head::Head;
use self::idle::IdleNotice;
use self::ports::Ports;
use self::timeline::{EventList, Timeline};
use self::waiting::{Preparing, Waiting};
use super::org_data::org_object_view;
use super::parts::{now_ms, ready, when_some};
use crate::address::org_link;
use crate::api;
use crate::api::Answer;
use crate::live;
use crate::live::{Feed, FeedBadge};
use crate::session::use_object_org;
use crate::ui::*;

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    job: Job,
    events: Vec<JobEvent>,
    explanation: Option<Explanation>,
    metrics: Metrics,
    /// True on a portal with a host name for ports.
    ports_on: bool,
    /// The first page of files.
    files: Answer<Page<JobFile>>,
}

fn load(org: OrgId, id: Option<JobId>) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let calls = id.map(|id| {
        let (job, events) = (api::jobs::get(org, id), api::jobs::events(org, id));
        let (explanation, metrics) = (api::jobs::explanation(org, id), api::jobs::metrics(org, id));
        (job, events, explanation, metrics, api::accounts::info(), api::jobs::files(org, id))
    });
    async move {
        // An invalid id is answered like an unknown one.
        let Some((job, events, explanation, metrics, info, files)) = calls else {
            return Err(Problem::not_found());
        };
        // Events first: the feed starts after the last event and so updates the events of a newer job. An
        // older job would stay outdated.
        let job = async move {
            let events = events.await?.items;
            let job = job.await?;
            let explanation = if job.state == JobState::Queued { explanation.await.ok() } else { None };
            let ports_on = !job.ports.is_empty() && info.await.is_ok_and(|info| info.ports);
            Ok::<_, Problem>((job, events, explanation, ports_on))
        };
        let (job, metrics, files) = join!(job, metrics, files);
        let (job, events, explanation, ports_on) = job?;
        // Without metrics the charts stay empty.
        let metrics = metrics.unwrap_or(Metrics { step_s: 1, series: Vec::new() });
        Ok(Loaded { job, events, explanation, metrics, ports_on, files })
    }
}

/// The signals of the page.
#[derive(Clone, Copy)]
pub struct LiveJob {
    /// The organization of the job.
    pub org: OrgId,
    /// The id of the job.
    pub id: JobId,
    /// The latest known job.
    pub job: RwSignal<Job>,
    /// The state; notifies only about a change of state.
    pub state: Memo<JobState>,
    /// All events, oldest first.
    pub events: RwSignal<Vec<JobEvent>>,
    /// The last known use and cost.
    pub meter: RwSignal<Meter>,
}

impl LiveJob {
    fn new(job: Job, events: Vec<JobEvent>) -> Self {
        let (org, id) = (job.org, job.id);
        let meter = RwSignal::new(Meter::from_job(&job, 0));
        let job = RwSignal::new(job);
        let state = Memo::new(move |_| job.with(|job| job.state));
        Self { org, id, job, state, events: RwSignal::new(events), meter }
    }

    /// Replaces the job by a copy from an answer or the feed, unless the known job is newer.
    pub fn apply(self, fresh: Job) {
        if self.job.with_untracked(|job| job.generation > fresh.generation) {
            return;
        }
        self.meter.set(Meter::from_job(&fresh, now_ms()));
        self.job.set(fresh);
    }

    fn on_event(self, name: &str, data: &str) {
        match name {
            "change" => {
                let Ok(change) = serde_json::from_str::<JobChange>(data) else { return };
                if let Some(event) = change.event {
                    self.events.update(|events| append(events, event));
                }
                self.apply(change.job);
            }
            "cost" => {
                let Ok(cost) = serde_json::from_str::<JobCost>(data) else { return };
                if cost.job == self.id {
                    let has_ended = self.job.with_untracked(|job| job.state.ended());
                    self.meter.update(|meter| meter.apply(&cost, has_ended, now_ms()));
                }
            }
            _ => {}
        }
    }
}

/// Appends an event, unless it is known.
fn append(events: &mut Vec<JobEvent>, event: JobEvent) {
    if events.last().is_none_or(|last| last.seq < event.seq) {
        events.push(event);
    }
}

fn last_seq(events: &[JobEvent]) -> i64 {
    events.last().map_or(0, |event| event.seq)
}

/// The page of one job.
#[component]
pub fn JobPage() -> impl IntoView {
    let org = use_object_org();
    let params = use_params_map();
    let id = Memo::new(move |_| {
        params.with(|params| params.get("job")).and_then(|text| text.parse::<JobId>().ok())
    });
    let data: Resource<Answer<Option<Loaded>>> = Resource::new(
        move || (org.get(), id.get()),
        |(org, id): (Option<OrgId>, Option<JobId>)| when_some(org.map(|org| load(org, id))),
    );
    org_object_view(data, |loaded| view! { <JobView loaded=loaded/> }.into_any())
}

/// The choice of a rank of a job on several nodes.
#[component]
fn Ranks(ranks: u32, chosen: RwSignal<u32>) -> impl IntoView {
    let choice = move |rank: u32| {
        view! {
            <label>
                <input
                    type="radio"
                    name="rank"
                    checked={rank == chosen.get_untracked()}
                    prop:checked=move || { chosen.get() == rank }
                    on:change=move |_| chosen.set(rank)
                />
                {format!("rank {rank}")}
            </label>
        }
    };
    view! {
        <div class="segmented" role="radiogroup" aria-label="Rank">
            {(0..ranks).map(choice).collect_view()}
        </div>
    }
}

/// The choice of an attempt of a job with several; `None` for the latest.
#[component]
fn Attempts(latest: Memo<u32>, chosen: RwSignal<Option<u32>>) -> impl IntoView {
    let option = move |attempt: Option<u32>, latest: u32| {
        let value = attempt.map(|attempt| attempt.to_string()).unwrap_or_default();
        let text = attempt.map_or_else(|| format!("{latest}, latest"), |attempt| attempt.to_string());
        let is_chosen = move || chosen.get() == attempt;
        view! {
            <option value=value selected={chosen.get_untracked() == attempt} prop:selected=is_chosen>
                {text}
            </option>
        }
    };
    move || {
        let latest = latest.get();
        (latest > 1).then(|| {
            let earlier = (1..latest).rev().map(Some);
            let options = std::iter::once(None).chain(earlier).map(|attempt| option(attempt, latest));
            view! {
                <label class="filters__field">
                    "Attempt"
                    <select
                        class="select"
                        on:change=move |event| chosen.set(event_target_value(&event).parse().ok())
                    >
                        {options.collect_view()}
                    </select>
                </label>
            }
        })
    }
}

/// The text in place of a log that retention has removed.
fn removed_log(at: Timestamp) -> impl IntoView {
    view! {
        <p class="quiet">
            "Log removed on " <When at=at/>
            ", with the submission and the files. The retention of ended jobs is on the page "
            <a href=org_link("/volumes")>"Volumes"</a>"."
        </p>
    }
}

/// True while the worker of an ended job can still hand over its changes of a volume.
fn awaits_files(job: &Job) -> bool {
    let is_open = |volume: &JobVolume| {
        let has_result = volume.kept_version.is_some() || volume.note.is_some();
        volume.mode == VolumeMode::Rw && volume.version.is_some() && !has_result
    };
    job.removed_at.is_none() && job.volumes.iter().any(is_open)
}

#[component]
fn JobView(loaded: Loaded) -> impl IntoView {
    let Loaded { job, events, explanation, metrics, ports_on, files } = loaded;
    let name = job.name.clone();
    let finished = job.state.ended();
    let removed_at = job.removed_at;
    let has_log = finished && job.attempt > 0 && removed_at.is_none();
    let finished_text = if has_log { "finished, log complete" } else { "finished" };
    // The log of the failed rank shows the cause.
    let (ranks, rank) = (job.nodes, RwSignal::new(job.failed_rank.unwrap_or(0)));
    let attempt = RwSignal::new(None::<u32>);
    let has_events = !finished || awaits_files(&job);
    let live = LiveJob::new(job, events);
    let (org, id) = (live.org, live.id);
    let feed: Option<Feed> = has_events.then(|| {
        live::open(
            move || {
                let after = live.events.with_untracked(|events| last_seq(events));
                format!("/api/v1/orgs/{org}/jobs/{id}/events?after={after}")
            },
            &["change", "cost", "beat", "end"],
            move |name: &str, data: &str, _id: &str| live.on_event(name, data),
        )
    });
    // Memos, so that log and charts are not recreated at each change of the job.
    let placed = Memo::new(move |_| live.job.with(|job| job.attempt > 0));
    let latest = Memo::new(move |_| live.job.with(|job| job.attempt));
    let shown = Memo::new(move |_| attempt.get().unwrap_or_else(|| latest.get()));
    let queued = Memo::new(move |_| live.state.get() == JobState::Queued);
    let running = Memo::new(move |_| live.state.get() == JobState::Running);
    let ended = Memo::new(move |_| live.state.get().ended());
    let unplaced = move || {
        if live.state.get().ended() {
            "Never started; no log or metrics."
        } else {
            "Log, devices and metrics appear here after the start."
        }
    };
    let ready = ready();
    let no_metrics = finished && metrics.series.is_empty();
    let metrics = StoredValue::new(metrics);
    let title = name.clone();
    view! {
        <Title text=title/>
        <div class="page">
            <div class="crumb-row">
                <Crumbs list="Jobs" path=Signal::derive(org_link("/jobs")) name=name/>
                // The age of the whole page; the data of a finished job has no age.
                {move || match feed.filter(|_| !ended.get()) {
                    Some(feed) => view! { <FeedBadge feed=feed/> }.into_any(),
                    None => view! { <span class="live live--ended">{finished_text}</span> }.into_any(),
                }}
            </div>
            <Head live=live/>
            <FailureNotice live=live/>
            <LostFiles live=live/>
            <IdleNotice live=live/>
            <Timeline live=live/>
            {move || queued.get().then(|| view! { <Waiting live=live seed=explanation.clone()/> })}
            <Preparing live=live/>
            <CostFigures live=live/>
            {move || {
                if placed.get() {
                    view! {
                        <section class="section">
                            <div class="section__head">
                                <h2>"Log"</h2>
                                {removed_at.is_none().then(|| view! { <Attempts latest=latest chosen=attempt/> })}
                                {(ranks > 1 && removed_at.is_none()).then(|| view! { <Ranks ranks=ranks chosen=rank/> })}
                            </div>
                            {removed_at.map(removed_log)}
                            {removed_at.is_none().then_some(move || {
                                let (shown, is_chosen) = (shown.get(), attempt.with_untracked(Option::is_some));
                                let silent = live.job.with_untracked(|job| job.started_at.is_none());
                                view! {
                                    <LogView
                                        org=org
                                        job=id
                                        rank=rank.get()
                                        attempt=shown
                                        several={latest.get_untracked() > 1}
                                        finished={finished || is_chosen}
                                        silent={silent && !is_chosen}
                                    />
                                }
                            })}
                        </section>
                        <Ports live=live can_open=ports_on rank=rank running=running ready=ready/>
                        <section class="section">
                            <div class="section__head"><h2>"Terminal"</h2></div>
                            <TerminalView org=org job=id rank=rank running=running ready=ready/>
                        </section>
                        <section class="section">
                            <div class="section__head"><h2>"Devices"</h2></div>
                            <Devices live=live/>
                        </section>
                        <section class="section">
                            <div class="section__head"><h2>"Metrics"</h2></div>
                            {if no_metrics {
                                view! { <p class="quiet">"No metrics: the job finished before the first reading, or the readings have expired."</p> }.into_any()
                            } else {
                                view! { <Charts org=org job=id seed=metrics.get_value() finished=finished/> }.into_any()
                            }}
                        </section>
                    }
                        .into_any()
                } else {
                    view! { <p class="quiet">{unplaced}</p> }.into_any()
                }
            }}
            <Files live=live seed=files/>
            <EventList live=live/>
            <Facts live=live/>
        </div>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_appended_once() {
        let event = |seq: i64| JobEvent {
            job: "job_00000000000000000000000001".parse().unwrap(),
            seq,
            at: berth_types::time::Timestamp::from_micros(seq),
            state: JobState::Queued,
            attempt: 0,
            detail: String::new(),
        };
        let mut events = Vec::new();
        for seq in [1, 2, 2, 1, 3] {
            append(&mut events, event(seq));
        }
        assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!((last_seq(&events), last_seq(&[])), (3, 0));
    }
}
