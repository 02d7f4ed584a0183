//! Timeline of a job's states and list of its events.
//!
//! Each step is an event of the portal; only the last step of a running job, its time limit, is in the future.

use berth_types::events::JobEvent;
use berth_types::jobs::{Job, JobState};
use berth_types::time::{Timestamp, duration_text};
use leptos::prelude::*;

use super::super::parts::{interval, now_ms};
use super::super::text::state_text;
use super::LiveJob;
use crate::ui::*;

/// The maximum number of steps; of more steps the timeline shows the last.
const MAX_STEPS: usize = 8;
/// The label that the portal gives to the jobs of replicas.
const REPLICA_LABEL: &str = "berth-service";

/// A past or present state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    state: JobState,
    at: Timestamp,
    /// The duration in milliseconds; absent for the last step.
    took_ms: Option<i64>,
}

/// Lists the states in order; events without a change of state are no steps.
fn steps(events: &[JobEvent], job: &Job) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for event in events {
        if let Some(last) = steps.last_mut() {
            if last.state == event.state {
                continue;
            }
            last.took_ms = Some(event.at.millis_since(last.at));
        }
        steps.push(Step { state: event.state, at: event.at, took_ms: None });
    }
    if steps.is_empty() {
        steps.push(Step { state: job.state, at: job.created_at, took_ms: None });
    }
    steps.split_off(steps.len().saturating_sub(MAX_STEPS))
}

/// Returns the reason for which a service ended a replica, from the stop before the end or from the end.
fn stop_reason<'a>(job: &Job, events: &'a [JobEvent]) -> Option<&'a str> {
    let end = events.iter().position(|event| event.state.ended())?;
    let mut last = events.get(..=end)?.iter().rev();
    let (end, before) = (last.next()?, last.next());
    let stop = before.filter(|event| event.state == JobState::Stopping).unwrap_or(end);
    let is_replica = job.state == JobState::Cancelled && job.labels.contains_key(REPLICA_LABEL);
    is_replica.then_some(stop.detail.as_str())
}

/// Returns the notice of a replica that its service ended.
pub fn stopped_replica(job: &Job, events: &[JobEvent]) -> Option<AnyView> {
    let reason = stop_reason(job, events)?.to_owned();
    let title = view! { <strong class="banner__title">{reason}</strong> };
    Some(view! { <div class="banner banner--info" role="status">{title}</div> }.into_any())
}

/// Returns the end of a running job by its time limit.
fn limit_at(job: &Job) -> Option<Timestamp> {
    let seconds = i64::try_from(job.max_duration_s).ok()?;
    (job.state == JobState::Running).then(|| job.started_at.map(|at| at.plus_seconds(seconds))).flatten()
}

/// The timeline.
#[component]
pub fn Timeline(
    /// The job.
    live: LiveJob,
) -> impl IntoView {
    // The server and the first client render have no clock; afterwards the last step counts.
    let now = RwSignal::new(0_i64);
    Effect::new(move || {
        now.set(now_ms());
        if !live.state.get().ended() {
            interval(1_000, move || now.set(now_ms()));
        }
    });
    let all = Memo::new(move |_| live.events.with(|events| live.job.with(|job| steps(events, job))));
    let next = Memo::new(move |_| live.job.with(limit_at));
    let items = move || {
        let steps = all.get();
        let last = steps.len().saturating_sub(1);
        let mut items: Vec<AnyView> =
            steps.into_iter().enumerate().map(|(i, step)| item(step, i == last, now)).collect();
        items.extend(next.get().map(|at| limit_step(at, now)));
        items
    };
    view! { <ol class="timeline" aria-label="States of this job">{items}</ol> }
}

/// The list of all events.
#[component]
pub fn EventList(
    /// The job.
    live: LiveJob,
) -> impl IntoView {
    view! {
        <details class="more">
            <summary>"Event history"</summary>
            <ul class="list">{move || live.events.with(|events| events.iter().map(event_item).collect::<Vec<_>>())}</ul>
        </details>
    }
}

/// Returns the time of day of a step, or its date and time on another day. `now_ms` is 0 without a clock.
fn time_text(zone: Zone, at: Timestamp, now_ms: i64) -> String {
    let now = Timestamp::from_micros(now_ms.saturating_mul(1_000));
    let is_today = now_ms == 0 || zone.wall(at).day() == zone.wall(now).day();
    if is_today { zone.clock_s(at) } else { zone.minute(at) }
}

fn item(step: Step, last: bool, now: RwSignal<i64>) -> AnyView {
    let finished = step.state.ended();
    let place = if last && !finished { "timeline__step--now" } else { "timeline__step--done" };
    let class = format!("timeline__step {place} state--{}", step.state.name());
    let current = (last && !finished).then_some("step");
    let at = step.at.to_string();
    let (exact, zone) = (at.clone(), use_zone());
    let took = move || match step.took_ms {
        Some(took) => duration_text(took),
        None if last && !finished && now.get() > 0 => {
            duration_text(now.get().saturating_sub(step.at.millis()))
        }
        None => String::new(),
    };
    view! {
        <li class=class aria-current=current>
            <span class="timeline__dot">{shape(step.state)}</span>
            <span class="timeline__name">{state_text(step.state)}</span>
            <time class="timeline__time" datetime=at title=exact>{move || time_text(zone.get(), step.at, now.get())}</time>
            <span class="timeline__took">{took}</span>
        </li>
    }
    .into_any()
}

fn limit_step(at: Timestamp, now: RwSignal<i64>) -> AnyView {
    let (exact, zone) = (at.to_string(), use_zone());
    view! {
        <li class="timeline__step timeline__step--next state--timed_out">
            <span class="timeline__dot">{shape(JobState::TimedOut)}</span>
            <span class="timeline__name">"time limit"</span>
            <time class="timeline__time" datetime=exact.clone() title=exact>"by " {move || time_text(zone.get(), at, now.get())}</time>
        </li>
    }
    .into_any()
}

fn event_item(event: &JobEvent) -> AnyView {
    let detail = if event.detail.is_empty() { state_text(event.state) } else { event.detail.clone() };
    let zone = use_zone();
    let attempt = (event.attempt > 1).then(|| format!("attempt {}", event.attempt));
    view! {
        <li class="list__item">
            <span class="list__main">{move || zoned(&detail, zone.get())}<span class="list__note"><When at=event.at/> " " {attempt}</span></span>
            <StateBadge state=event.state/>
        </li>
    }
    .into_any()
}

/// Returns the icon of a state; its name follows below.
fn shape(state: JobState) -> AnyView {
    let drawn = match state {
        JobState::Queued => {
            view! { <circle cx="6" cy="6" r="4.25" fill="none" stroke="currentColor" stroke-width="1.5"></circle> }
                .into_any()
        }
        JobState::Assigned | JobState::Starting => view! {
            <circle
                cx="6"
                cy="6"
                r="4.25"
                fill="none"
                stroke="currentColor"
                stroke-width="1.5"
                stroke-opacity=".3"
            ></circle>
            <path d="M6 1.75a4.25 4.25 0 0 1 0 8.5" fill="none" stroke="currentColor" stroke-width="1.75"></path>
        }
        .into_any(),
        JobState::Running => view! { <circle cx="6" cy="6" r="5" fill="currentColor"></circle> }.into_any(),
        JobState::Stopping => view! {
            <circle cx="6" cy="6" r="4.25" fill="none" stroke="currentColor" stroke-width="1.5"></circle>
            <circle cx="6" cy="6" r="1.75" fill="currentColor"></circle>
        }
        .into_any(),
        JobState::Succeeded => {
            view! { <path d="M1.75 6.5 4.75 9.5 10.25 3" fill="none" stroke="currentColor" stroke-width="1.75"></path> }
                .into_any()
        }
        JobState::Failed => {
            view! { <path d="m2.5 2.5 7 7m0-7-7 7" fill="none" stroke="currentColor" stroke-width="1.75"></path> }
                .into_any()
        }
        JobState::Cancelled => {
            view! { <rect x="1.5" y="4.9" width="9" height="2.2" fill="currentColor"></rect> }.into_any()
        }
        JobState::TimedOut => view! {
            <circle cx="6" cy="6" r="4.5" fill="none" stroke="currentColor" stroke-width="1.4"></circle>
            <path d="M6 3.25V6l1.9 1.4" fill="none" stroke="currentColor" stroke-width="1.4"></path>
        }
        .into_any(),
    };
    view! { <svg viewBox="0 0 12 12" width="12" height="12" aria-hidden="true" focusable="false">{drawn}</svg> }
        .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(seq: i64, state: JobState, second: i64) -> JobEvent {
        JobEvent {
            job: "job_00000000000000000000000001".parse().unwrap(),
            seq,
            at: Timestamp::from_micros(second * 1_000_000),
            state,
            attempt: 1,
            detail: String::new(),
        }
    }

    fn job() -> Job {
        serde_json::from_value(serde_json::json!({
            "id": "job_00000000000000000000000001", "org": "org_00000000000000000000000001", "name": "n",
            "state": "running", "reasons": [], "attempt": 1, "offering": "o", "simulated": false, "count": 1,
            "priority": "normal", "max_duration_s": 60, "devices": [], "created_at": "2026-03-01T09:00:00Z",
            "created_by": "a", "started_at": "2026-03-01T09:00:05Z", "metered_ms": 0, "cost_micros": 0,
            "held_micros": 0, "nano_per_second": 1, "currency": "USD", "price_version": 1, "generation": 1,
            "actions": [],
        }))
        .unwrap()
    }

    #[test]
    fn a_step_ends_with_the_next_state() {
        let events = [
            event(1, JobState::Queued, 0),
            event(2, JobState::Queued, 3),
            event(3, JobState::Assigned, 38),
            event(4, JobState::Running, 40),
        ];
        let took: Vec<_> = steps(&events, &job()).iter().map(|step| (step.state, step.took_ms)).collect();
        assert_eq!(
            took,
            [(JobState::Queued, Some(38_000)), (JobState::Assigned, Some(2_000)), (JobState::Running, None)]
        );
    }

    #[test]
    fn without_events_the_job_has_one_step() {
        let job = job();
        assert_eq!(steps(&[], &job), [Step { state: JobState::Running, at: job.created_at, took_ms: None }]);
        assert_eq!(limit_at(&job).map(|at| at.to_string()).as_deref(), Some("2026-03-01T09:01:05Z"));
        assert_eq!(limit_at(&Job { state: JobState::Failed, ..job }), None);
    }

    #[test]
    fn a_stopped_replica_has_its_reason() {
        use JobState::{Cancelled, Queued, Stopping};
        let labels = [("berth-service".to_owned(), "chat".to_owned())].into();
        let replica = Job { state: Cancelled, labels, ..job() };
        let said = |state, detail: &str| JobEvent { detail: detail.to_owned(), ..event(1, state, 0) };
        let mut events = vec![said(Stopping, "Not ready in time."), said(Cancelled, "Exit code 143.")];
        assert_eq!(stop_reason(&replica, &events), Some("Not ready in time."));
        assert_eq!(stop_reason(&Job { state: Cancelled, ..job() }, &events), None);
        events.insert(1, said(Queued, "Waits again."));
        assert_eq!(stop_reason(&replica, &events), Some("Exit code 143."));
    }

    #[test]
    fn a_time_of_another_day_has_its_date() {
        let at: Timestamp = "2026-03-01T23:59:05Z".parse().unwrap();
        let text = |later_s: i64| time_text(Zone::Utc, at, at.plus_seconds(later_s).millis());
        assert_eq!((text(0), text(55)), ("23:59:05 UTC".to_owned(), "2026-03-01 23:59 UTC".to_owned()));
        assert_eq!(text(-7 * 86_400), "2026-03-01 23:59 UTC");
        assert_eq!(time_text(Zone::Utc, at, 0), "23:59:05 UTC");
    }

    #[test]
    fn the_last_steps_are_shown() {
        let events: Vec<JobEvent> = (0..40)
            .map(|i| event(i, if i % 2 == 0 { JobState::Queued } else { JobState::Assigned }, i))
            .collect();
        assert_eq!(steps(&events, &job()).len(), MAX_STEPS);
    }
}
