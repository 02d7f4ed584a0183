//! Explanation of a queued job: one sentence, each blocker with the change that removes it, own jobs in the way,
//! and changes with which the job would start now.
//!
//! An expected start always appears with its basis. A refresh draws only what changed.

use berth_types::jobs::{Blocker, Explanation, JobState, SuggestedChange};
use berth_types::time::Timestamp;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::super::parts::interval;
use super::super::rows::again_page;
use super::super::text::sentence;
use super::super::waits::{BlockingObjects, suggestion_price};
use super::LiveJob;
use crate::address::use_org_links;
use crate::api;
use crate::ui::*;

/// Milliseconds between two requests; the queue changes without an event of this job.
const REFRESH_MS: u64 = 5_000;

/// The panel of a queued job.
#[component]
pub fn Waiting(
    /// The job.
    live: LiveJob,
    /// The first explanation.
    seed: Option<Explanation>,
) -> impl IntoView {
    let explanation = RwSignal::new(seed);
    let refresh = move || {
        spawn_local(async move {
            // After a failed request the old explanation stays.
            if let Ok(fresh) = api::jobs::explanation(live.org, live.id).await
                && explanation.try_with_untracked(|known| known.as_ref() != Some(&fresh)) == Some(true)
            {
                explanation.set(Some(fresh));
            }
        });
    };
    Effect::new(move || {
        if live.state.get() == JobState::Queued {
            refresh();
            interval(REFRESH_MS, refresh);
        }
    });
    let zone = use_zone();
    let lead = Memo::new(move |_| {
        let text = match explanation.get() {
            Some(explanation) => lead_text(&explanation),
            None => {
                let reasons = live.job.with(|job| job.reasons.join(" "));
                if reasons.is_empty() { "Starting shortly.".to_owned() } else { reasons }
            }
        };
        zoned(&text, zone.get())
    });
    let start =
        Memo::new(move |_| explanation.with(|known| known.as_ref().map(|known| known.earliest_start)));
    let offer = Memo::new(move |_| {
        let text = explanation.with(|known| known.as_ref().map(offer_text)).unwrap_or_default();
        zoned(&text, zone.get())
    });
    let basis = Memo::new(move |_| {
        let text = explanation.with(|known| known.as_ref().map(|known| sentence(&known.basis)));
        zoned(&text.unwrap_or_default(), zone.get())
    });
    let blockers = Memo::new(move |_| {
        explanation.with(|known| known.as_ref().map(|known| known.blockers.clone())).unwrap_or_default()
    });
    let suggested = Memo::new(move |_| {
        explanation
            .with(|known| known.as_ref().map(|known| known.suggested_changes.clone()))
            .unwrap_or_default()
    });
    let codes = move || {
        blockers.with(|all| all.iter().map(|blocker| blocker.code.clone()).enumerate().collect::<Vec<_>>())
    };
    view! {
        <section class="why" aria-label="Why this job waits">
            <p class="why__lead">{move || lead.get()}" "{move || start_view(start.get())}</p>
            <p class="why__offer" hidden=move || offer.with(String::is_empty)>{move || offer.get()}</p>
            <ul class="why__list" hidden=move || blockers.with(Vec::is_empty)>
                <For
                    each=codes
                    key=|code: &(usize, String)| code.clone()
                    children=move |(at, code): (usize, String)| line(at, &code, blockers)
                />
            </ul>
            <BlockingObjects blockers=blockers/>
            <Suggestions live=live suggested=suggested/>
            <p class="why__basis" hidden=move || basis.with(String::is_empty)>{move || basis.get()}</p>
        </section>
    }
}

/// Changes of the submission with which it would start now, each with a link to the filled form.
#[component]
fn Suggestions(live: LiveJob, suggested: Memo<Vec<SuggestedChange>>) -> impl IntoView {
    let links = use_org_links();
    let item = move |suggestion: SuggestedChange| {
        let query = api::jobs::change_query(&suggestion.change);
        let path = links.link(&format!("{}&{query}", again_page(live.id)));
        let label = format!("Launch with this change: {}", suggestion.label);
        view! {
            <li class="why__item why__item--change">
                <span class="why__change">{suggestion.label.clone()}</span>
                <span class="why__price">{suggestion_price(&suggestion)}</span>
                <a class="btn btn--small" href=path aria-label=label>"Launch with this change"</a>
            </li>
        }
        .into_any()
    };
    let key = |one: &SuggestedChange| (one.label.clone(), one.per_hour_micros, one.worst_case_micros);
    view! {
        <div class="why__objects" hidden=move || suggested.with(Vec::is_empty)>
            <p class="why__kind">"Starts now with a change"</p>
            <ul class="why__list" aria-label="Starts now with a change">
                <For each=move || suggested.get() key=key children=item/>
            </ul>
            <p class="why__basis">
                "A launch with a change makes a new job. This job stays in the queue until you cancel it."
            </p>
        </div>
    }
}

/// The progress of a job between placement and start.
#[component]
pub fn Preparing(
    /// The job.
    live: LiveJob,
) -> impl IntoView {
    move || {
        let text = live.job.with(|job| match job.state {
            JobState::Assigned | JobState::Starting => job.reasons.join(" "),
            _ => String::new(),
        });
        (!text.is_empty()).then(|| {
            view! {
                <section class="why" aria-label="Preparation progress">
                    <p class="why__lead">{text}</p>
                </section>
            }
        })
    }
}

fn lead_text(explanation: &Explanation) -> String {
    match (explanation.smallest_change.trim(), explanation.blockers.first()) {
        ("", None) => "Starting shortly.".to_owned(),
        (_, Some(first)) => sentence(&first.detail),
        (change, None) => sentence(change),
    }
}

/// Returns the smallest change, unless a blocker has the same text: then it has its line there.
fn offer_text(explanation: &Explanation) -> String {
    let change = &explanation.smallest_change;
    let known = explanation.blockers.is_empty() || explanation.blockers.iter().any(|b| b.change == *change);
    if known { String::new() } else { sentence(change) }
}

/// Returns the expected start. `None` stands for no explanation yet.
fn start_view(start: Option<Option<Timestamp>>) -> AnyView {
    match start {
        Some(Some(at)) => view! { "Expected start: " <When at=at/> ". " }.into_any(),
        Some(None) => "No estimate yet. ".into_any(),
        None => "".into_any(),
    }
}

/// Returns the label of a blocker's code.
fn kind_label(code: &str) -> &'static str {
    match code.split('.').next() {
        Some("capacity") => "Capacity",
        Some("queue") => "Queue",
        Some("health") => "Health",
        Some("node") => "Node",
        Some("window") => "Calendar",
        Some("dependency") => "Dependency",
        Some("request") => "Request",
        Some("quota") => "Limits",
        Some("reservation") => "Reservation",
        _ => "Other",
    }
}

/// Returns the line of a blocker; the text of a single blocker is above.
fn line(at: usize, code: &str, blockers: Memo<Vec<Blocker>>) -> AnyView {
    let (kind, zone) = (kind_label(code), use_zone());
    let text = move |part: fn(&Blocker) -> &String| {
        let text = blockers.with(|all| all.get(at).map(part).cloned().unwrap_or_default());
        zoned(&text, zone.get())
    };
    let single = move || blockers.with(|all| all.len() == 1);
    view! {
        <li class="why__item">
            <span class="why__kind">{kind}</span>
            <span hidden=single>{move || text(|blocker| &blocker.detail)}</span>
            <span class="why__change">{move || text(|blocker| &blocker.change)}</span>
        </li>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::kind_label;

    #[test]
    fn codes_have_labels() {
        assert_eq!(kind_label("capacity.busy"), "Capacity");
        assert_eq!(kind_label("queue.ahead"), "Queue");
        assert_eq!(kind_label("health.quarantined"), "Health");
        assert_eq!(kind_label("node.unavailable"), "Node");
        assert_eq!(kind_label("window.promised"), "Calendar");
        assert_eq!(kind_label("dependency.waiting"), "Dependency");
        assert_eq!(kind_label("policy.new"), "Other");
    }
}
