//! The rule of the organization for the sign-in of its members, for owners.

use berth_types::factors::SignInPolicy;
use berth_types::ids::OrgId;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use crate::api;
use crate::pages::parts::{Call, CallProblem, Submit};

/// The form of the rule.
#[component]
pub(super) fn PolicyForm(
    /// The organization.
    org: OrgId,
    /// The present rule.
    policy: SignInPolicy,
) -> impl IntoView {
    let initial = policy.require_second_factor;
    let required = RwSignal::new(initial);
    let saved = RwSignal::new(false);
    let call = Call::idle();
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        saved.set(false);
        let input = SignInPolicy { require_second_factor: required.get_untracked() };
        call.run(api::factors::put_policy(org, &input), move |_: SignInPolicy| saved.set(true));
    };
    view! {
        <section class="section">
            <div class="section__head"><h2>"Sign-in"</h2></div>
            <form class="form card" method="post" on:submit=submit>
                <CallProblem call=call beside_fields=&[]/>
                <label class="check">
                    <input
                        type="checkbox"
                        name="require-second-factor"
                        checked=initial
                        on:change=move |ev| {
                            required.set(event_target_checked(&ev));
                            saved.set(false);
                        }
                    />
                    " Second factor required for all members"
                </label>
                <p class="field__hint">
                    "Members without a second factor add one at their next request and can do nothing else before. Tokens and running jobs continue."
                </p>
                <div class="form__actions">
                    <Submit call=call>"Save"</Submit>
                    <span class="quiet" role="status">{move || saved.get().then_some("Saved.")}</span>
                </div>
            </form>
        </section>
    }
}
