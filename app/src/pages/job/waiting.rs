//! Why a job waits: one sentence first, then each obstacle and what would lift it.
//!
//! Must not soften what the portal says, nor promise a time without what it rests on.

use berth_types::jobs::{Blocker, Explanation, JobState};
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::super::parts::interval;
use super::super::words::sentence;
use super::LiveJob;
use crate::api;
use crate::ui::*;

/// Milliseconds between two explanations: the queue moves without this job changing.
const AGAIN_MS: u64 = 5_000;

/// The panel of a queued job.
#[component]
pub fn Waiting(
    /// The job.
    live: LiveJob,
    /// The explanation that the page came with.
    seed: Option<Explanation>,
) -> impl IntoView {
    let why = RwSignal::new(seed);
    let ask = move || {
        spawn_local(async move {
            // Without an answer the last explanation stays.
            if let Ok(fresh) = api::jobs::explanation(live.org, live.id).await {
                why.set(Some(fresh));
            }
        });
    };
    Effect::new(move || {
        if live.state.get() == JobState::Queued {
            ask();
            interval(AGAIN_MS, ask);
        }
    });
    let said = move || match why.get() {
        Some(why) => explained(&why),
        None => {
            let reasons = live.job.with(|job| job.reasons.join(" "));
            let lead = if reasons.is_empty() { "It is being placed.".to_owned() } else { reasons };
            view! { <p class="why__lead">{lead}</p> }.into_any()
        }
    };
    view! { <section class="why" aria-label="Why this job waits">{said}</section> }
}

/// How far the preparation of a job is that has its place.
#[component]
pub fn Preparing(
    /// The job.
    live: LiveJob,
) -> impl IntoView {
    move || {
        let words = live.job.with(|job| match job.state {
            JobState::Assigned | JobState::Starting => job.reasons.join(" "),
            _ => String::new(),
        });
        (!words.is_empty()).then(|| {
            view! {
                <section class="why" aria-label="How far its preparation is">
                    <p class="why__lead">{words}</p>
                </section>
            }
        })
    }
}

fn explained(why: &Explanation) -> AnyView {
    let lead = match (why.smallest_change.trim(), why.blockers.first()) {
        ("", None) => "Nothing is in its way: it starts in a moment.".to_owned(),
        (_, Some(first)) => sentence(&first.detail),
        (change, None) => sentence(change),
    };
    let alone = why.blockers.len() == 1;
    let items: Vec<AnyView> = why.blockers.iter().map(|b| blocker(b, alone)).collect();
    let earliest = match why.earliest_start {
        Some(at) => view! { "Expected to start " <When at=at/> ". " }.into_any(),
        None => "Nobody can say yet when it starts. ".into_any(),
    };
    let basis = sentence(&why.basis);
    // What would start it is worth its own line, unless an obstacle says the same.
    let change = why.smallest_change.clone();
    let known = change.is_empty() || why.blockers.iter().any(|b| b.change == change);
    let change = (!known).then(|| view! { <p class="why__offer">{sentence(&change)}</p> });
    view! {
        <p class="why__lead">{lead}" "{earliest}</p>
        {change}
        <ul class="why__list">{items}</ul>
        <p class="why__basis">{basis}</p>
    }
    .into_any()
}

/// What kind of obstacle a code stands for.
fn kind(code: &str) -> &'static str {
    match code.split('.').next() {
        Some("capacity") => "Capacity",
        Some("queue") => "Queue",
        Some("health") => "Health",
        Some("node") => "Node",
        Some("window") => "Calendar",
        Some("dependency") => "Other jobs",
        Some("request") => "Request",
        Some("quota") => "Limits",
        Some("reservation") => "Reservation",
        _ => "Other",
    }
}

/// One obstacle; the only one has been said above.
fn blocker(blocker: &Blocker, alone: bool) -> AnyView {
    let kind = kind(&blocker.code);
    let detail = (!alone).then(|| view! { <span>{blocker.detail.clone()}</span> });
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
    use super::kind;

    #[test]
    fn codes_have_kinds() {
        assert_eq!(kind("capacity.busy"), "Capacity");
        assert_eq!(kind("queue.ahead"), "Queue");
        assert_eq!(kind("health.quarantined"), "Health");
        assert_eq!(kind("node.unavailable"), "Node");
        assert_eq!(kind("window.promised"), "Calendar");
        assert_eq!(kind("dependency.waiting"), "Other jobs");
        assert_eq!(kind("policy.new"), "Other");
    }
}
