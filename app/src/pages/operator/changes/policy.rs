//! The rule for a second operator with its change by owners. Its end waits for another owner.

use berth_types::change_requests::{ChangePolicy, Outcome};
use berth_types::operators::OperatorRight;
use leptos::prelude::*;

use super::super::super::confirm::ConfirmDialog;
use super::super::super::parts::Call;
use super::super::may;
use super::ChangesState;
use crate::api;

/// The state of the rule, and for owners the button that changes it.
#[component]
pub fn PolicySection(
    /// The signals of the page.
    state: ChangesState,
) -> impl IntoView {
    let call = Call::idle();
    let open = RwSignal::new(false);
    let on = move || state.policy.get().second_operator;
    let change = move |()| {
        let input = ChangePolicy { second_operator: !state.policy.get_untracked().second_operator };
        call.run(api::change_requests::set_policy(&input), move |outcome: Outcome<ChangePolicy>| {
            match outcome {
                Outcome::Requested(request) => {
                    state.status.set("The end of the rule waits for another owner.".to_owned());
                    state.merge_all(vec![*request]);
                }
                Outcome::Done(policy) => state.policy.set(policy),
            }
            open.set(false);
        });
    };
    let title = Signal::derive(move || {
        if on() {
            "Stop requiring a second operator?".to_owned()
        } else {
            "Require a second operator?".to_owned()
        }
    });
    let verb = Signal::derive(move || {
        if on() { "Request the end".to_owned() } else { "Require second operator".to_owned() }
    });
    let controls = may(OperatorRight::ManagePortal).then(move || {
        view! {
            <p>
                <button
                    class="btn"
                    type="button"
                    disabled=move || !state.ready.get()
                    on:click=move |_| open.set(true)
                >
                    {move || if on() { "Stop requiring a second operator" } else { "Require a second operator" }}
                </button>
            </p>
            <ConfirmDialog
                id="change-policy"
                title=title
                open=open
                call=call
                keep="Keep as it is"
                verb=verb
                confirm=Callback::new(change)
            >
                <p>
                    {move || {
                        if on() {
                            "The end of the rule waits for another owner. Until then the rule applies."
                        } else {
                            "From now on these acts wait for another operator for at most 24 hours. The portal needs two owners, and the end of the rule needs both."
                        }
                    }}
                </p>
            </ConfirmDialog>
        }
    });
    let others = controls
        .is_none()
        .then(|| view! { <p class="quiet">"Operators with the role owner change this rule."</p> });
    view! {
        <section class="section">
            <div class="section__head"><h2>"Second operator"</h2></div>
            <p class="prose" role="status">
                {move || {
                    if on() {
                        "Required. Credits, debits, credit limits, prices, the closing of invoices, terminals and ports in jobs of organizations, and further rights of operators wait for another operator."
                    } else {
                        "Not required. Each operator alone moves money, opens jobs of organizations and gives rights, as the role allows."
                    }
                }}
            </p>
            {controls}
            {others}
        </section>
    }
}
