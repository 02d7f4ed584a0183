//! The rule of the organization for the sign-in of its members, for owners.

use berth_types::factors::SignInPolicy;
use berth_types::ids::OrgId;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use crate::api;
use crate::pages::confirm::ConfirmDialog;
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
    // The rule that the portal has.
    let present = RwSignal::new(initial);
    let saved = RwSignal::new(false);
    let asking = RwSignal::new(false);
    let call = Call::idle();
    let save = move || {
        let input = SignInPolicy { require_second_factor: required.get_untracked() };
        call.run(api::factors::put_policy(org, &input), move |policy: SignInPolicy| {
            present.set(policy.require_second_factor);
            saved.set(true);
            asking.set(false);
        });
    };
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        saved.set(false);
        if required.get_untracked() && !present.get_untracked() {
            asking.set(true);
        } else {
            save();
        }
    };
    // The dialog shows the problem of its request.
    let beside = move || (!asking.get()).then(|| view! { <CallProblem call=call beside_fields=&[]/> });
    view! {
        <section class="section">
            <div class="section__head"><h2>"Sign-in"</h2></div>
            <form class="form card" method="post" on:submit=submit>
                {beside}
                <label class="check">
                    <input
                        type="checkbox"
                        name="require-second-factor"
                        checked=initial
                        prop:checked=move || required.get()
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
        <ConfirmDialog
            id="require-second-factor"
            title="Require a second factor?"
            open=asking
            call=call
            keep="Keep present rule"
            verb="Require second factor"
            confirm=Callback::new(move |()| save())
        >
            <p>"Members without one can do nothing else until they add it. Jobs and tokens continue."</p>
        </ConfirmDialog>
    }
}
