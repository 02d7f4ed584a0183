//! Explanation of a queued job: one sentence, then each blocker with the change that removes it.
//!
//! An expected start always appears with its basis.

use berth_types::jobs::{Blocker, Explanation, JobState};
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::super::parts::interval;
use super::super::text::sentence;
use super::LiveJob;
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
            if let Ok(fresh) = api::jobs::explanation(live.org, live.id).await {
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
    let text = move || match explanation.get() {
        Some(explanation) => explanation_view(&explanation),
        None => {
            let reasons = live.job.with(|job| job.reasons.join(" "));
            let lead = if reasons.is_empty() { "Starting shortly.".to_owned() } else { reasons };
            view! { <p class="why__lead">{lead}</p> }.into_any()
        }
    };
    view! { <section class="why" aria-label="Why this job waits">{text}</section> }
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

fn explanation_view(explanation: &Explanation) -> AnyView {
    let lead = match (explanation.smallest_change.trim(), explanation.blockers.first()) {
        ("", None) => "Starting shortly.".to_owned(),
        (_, Some(first)) => sentence(&first.detail),
        (change, None) => sentence(change),
    };
    let single = explanation.blockers.len() == 1;
    let items: Vec<AnyView> = explanation.blockers.iter().map(|b| blocker(b, single)).collect();
    let earliest = match explanation.earliest_start {
        Some(at) => view! { "Expected start: " <When at=at/> ". " }.into_any(),
        None => "No estimate yet. ".into_any(),
    };
    let basis = sentence(&explanation.basis);
    // The smallest change has its own line, unless a blocker has the same text.
    let change = explanation.smallest_change.clone();
    let known = change.is_empty() || explanation.blockers.iter().any(|b| b.change == change);
    let change = (!known).then(|| view! { <p class="why__offer">{sentence(&change)}</p> });
    view! {
        <p class="why__lead">{lead}" "{earliest}</p>
        {change}
        <ul class="why__list">{items}</ul>
        <p class="why__basis">{basis}</p>
    }
    .into_any()
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
fn blocker(blocker: &Blocker, single: bool) -> AnyView {
    let kind = kind_label(&blocker.code);
    let detail = (!single).then(|| view! { <span>{blocker.detail.clone()}</span> });
    let change = blocker.change.clone();
    view! {
        <li class="why__item">
            <span class="why__kind">{kind}</span>
            {detail}
            <span class="why__change">{change}</span>
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
