//! The notice about an act that waits for a second operator, on the page of the act, and the sentence about it in the
//! dialog of the act.

use berth_types::change_requests::ChangeRequest;
use leptos::prelude::*;
use leptos::task::spawn_local;

use crate::api;

/// The sentence of a dialog about an act that waits for a second operator.
const WAITS: &str = "Another operator must approve this within 24 hours. Until then nothing changes.";

/// Returns a signal that is true with the rule for a second operator. It is false before the answer of the portal.
pub fn second_operator_required() -> ReadSignal<bool> {
    let required = RwSignal::new(false);
    Effect::new(move || {
        let policy = api::change_requests::policy();
        spawn_local(async move {
            // Without an answer the notice after the act says that it waits.
            if let Ok(policy) = policy.await {
                let _ = required.try_set(policy.second_operator);
            }
        });
    });
    required.read_only()
}

/// The sentence of a dialog about the time at which its act takes effect.
#[component]
pub fn EffectTime(
    /// True for an act that waits for a second operator.
    #[prop(into)]
    waits: Signal<bool>,
    /// The sentence about an act that takes effect at once.
    at_once: &'static str,
) -> impl IntoView {
    view! { <p>{move || if waits.get() { WAITS } else { at_once }}</p> }
}

/// Returns the text about a waiting act.
fn waiting_text(request: &ChangeRequest) -> String {
    format!(
        "Nothing was changed yet. Another operator approves or rejects within 24 hours: {}. ",
        request.detail.lines().next().unwrap_or_default()
    )
}

/// The notice about the last act of the page that waits. Hidden without one.
#[component]
pub fn WaitingNotice(waiting: RwSignal<Option<ChangeRequest>>) -> impl IntoView {
    let none = move || waiting.with(Option::is_none);
    let text = move || waiting.with(|waiting| waiting.as_ref().map(waiting_text).unwrap_or_default());
    view! {
        <div role="status">
            <div class="banner banner--warn" hidden=none>
                <div class="banner__text">
                    <strong class="banner__title">"Waiting for a second operator"</strong>
                    {text}
                    <a href="/operator/changes">"Change requests"</a>
                </div>
            </div>
        </div>
    }
}
