//! Head of a job's page: name, state and actions. The buttons follow the job's own list of actions.

use berth_types::jobs::{Action as JobAction, ExtendJob, Job, JobState, Network};
use berth_types::money::{money_text, reserved_text};
use leptos::prelude::*;

use super::super::confirm::ConfirmDialog;
use super::super::dialog_form::DialogForm;
use super::super::launch::units::{LimitUnit, limit_seconds};
use super::super::parts::{Call, CallProblem, FormKey, ready};
use super::super::rows::again_page;
use super::super::text::limit_text;
use super::LiveJob;
use super::compare::CompareDialog;
use crate::address::org_link;
use crate::api;
use crate::session::use_session;
use crate::ui::*;

/// Name, state, id and actions with their dialogs.
#[component]
pub fn Head(
    /// The job.
    live: LiveJob,
) -> impl IntoView {
    let ready = ready();
    let job = live.job;
    let stopping = RwSignal::new(false);
    let extending = RwSignal::new(false);
    let comparing = RwSignal::new(false);
    let allows = move |action: JobAction| job.with(|job| job.actions.contains(&action));
    let can_stop = Memo::new(move |_| allows(JobAction::Cancel));
    let can_extend = Memo::new(move |_| allows(JobAction::Extend));
    let queued = move || live.state.get() == JobState::Queued;
    let (name, id) = job.with_untracked(|job| (job.name.clone(), job.id.to_string()));
    let simulated = job.with_untracked(|job| job.simulated);
    let has_host_network = job.with_untracked(|job| job.network == Network::Host);
    // A removed job has no submission to launch again.
    let removed = job.with_untracked(|job| job.removed_at.is_some());
    let again = (use_session().runs_in(live.org) && !removed)
        .then(|| view! { <a class="btn" href=org_link(&again_page(live.id))>"Launch again"</a> });
    view! {
        <div class="page__head">
            <h1>{name}</h1>
            {move || view! { <StateBadge state=live.state.get()/> }}
            <span class="id">{id}</span>
            {simulated.then(|| view! { <span class="tag tag--simulated">"simulated"</span> })}
            {has_host_network.then(|| view! { <span class="tag tag--warn">"Host network"</span> })}
            <div class="page__actions">
                {again}
                <button
                    class="btn"
                    type="button"
                    disabled=move || !ready.get()
                    on:click=move |_| comparing.set(true)
                >
                    "Compare with…"
                </button>
                {move || {
                    can_extend
                        .get()
                        .then(|| {
                            view! {
                                <button
                                    class="btn"
                                    type="button"
                                    disabled=move || !ready.get()
                                    on:click=move |_| extending.set(true)
                                >
                                    "Extend time limit"
                                </button>
                            }
                        })
                }}
                {move || {
                    can_stop
                        .get()
                        .then(|| {
                            view! {
                                <button
                                    class="btn btn--danger"
                                    type="button"
                                    disabled=move || !ready.get()
                                    on:click=move |_| stopping.set(true)
                                >
                                    {move || if queued() { "Cancel job" } else { "Stop job" }}
                                </button>
                            }
                        })
                }}
            </div>
        </div>
        <StopDialog live=live open=stopping/>
        <ExtendDialog live=live open=extending/>
        <CompareDialog live=live open=comparing/>
    }
}

/// Returns the consequences of a stop for the work and the money.
fn consequence(job: &Job) -> String {
    let held = reserved_text(job.held_micros, &job.currency);
    if job.state == JobState::Queued {
        return format!("The job has not started. Nothing is charged, and the reserved {held} is released.");
    }
    let cost = money_text(job.cost_micros, &job.currency);
    format!(
        "The job gets SIGTERM and has 10 s to save its work; then it is killed. You pay for the run time, about {cost} so far; the rest of the reserved {held} is released."
    )
}

#[component]
fn StopDialog(live: LiveJob, open: RwSignal<bool>) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::new(call);
    let job = live.job;
    let queued = move || live.state.get() == JobState::Queued;
    let title = Signal::derive(move || {
        let verb = if queued() { "Cancel" } else { "Stop" };
        job.with(|job| format!("{verb} {}?", job.name))
    });
    let label = move |waits: &'static str, runs: &'static str| {
        Signal::derive(move || if queued() { waits.to_owned() } else { runs.to_owned() })
    };
    let (keep, verb) = (label("Keep waiting", "Keep running"), label("Cancel job", "Stop job"));
    let stop = move |()| {
        call.run(api::jobs::cancel(live.org, live.id, key.for_text(live.id.to_string())), move |job: Job| {
            key.reset();
            live.apply(job);
            open.set(false);
        });
    };
    view! {
        <ConfirmDialog
            id="stop"
            title=title
            open=open
            call=call
            keep=keep
            verb=verb
            confirm=Callback::new(stop)
        >
            <p>{move || job.with(consequence)}</p>
        </ConfirmDialog>
    }
}

#[component]
fn ExtendDialog(live: LiveJob, open: RwSignal<bool>) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::new(call);
    let job = live.job;
    let limit = RwSignal::new(String::new());
    let unit = RwSignal::new(LimitUnit::Hours);
    let format_error = RwSignal::new(None::<String>);
    let portal_error = call.field("/max_duration_s");
    let error = Signal::derive(move || format_error.get().or_else(|| portal_error.get()));
    let submit = move |()| {
        let Some(max_duration_s) = limit_seconds(&limit.get_untracked(), unit.get_untracked()) else {
            format_error.set(Some("Enter a time, such as 90 minutes or 1.5 hours.".to_owned()));
            return;
        };
        format_error.set(None);
        let body = ExtendJob { max_duration_s };
        call.run(api::jobs::extend(live.org, live.id, &body, key.for_body(&body)), move |job: Job| {
            key.reset();
            live.apply(job);
            limit.set(String::new());
            open.set(false);
        });
    };
    let lead = move || {
        job.with(|job| {
            format!(
                "The current limit is {}. The new limit also counts from the start of the run. The additional maximum cost is reserved.",
                limit_text(job.max_duration_s)
            )
        })
    };
    view! {
        <DialogForm
            id="extend"
            title="Extend time limit"
            open=open
            call=call
            keep="Keep limit"
            verb="Extend time limit"
            submit=Callback::new(submit)
        >
            <p>{lead}</p>
            <div class="field-row">
                <div class="field">
                    <label class="field__label" for="new-limit">"New time limit"</label>
                    <input
                        id="new-limit"
                        inputmode="decimal"
                        autocomplete="off"
                        aria-describedby="new-limit-error"
                        aria-invalid=move || error.get().map(|_| "true")
                        prop:value=move || limit.get()
                        on:input=move |ev| limit.set(event_target_value(&ev))
                    />
                    <FieldError id="new-limit-error" error=error/>
                </div>
                <div class="field">
                    <label class="field__label" for="new-unit">"Unit"</label>
                    <select
                        id="new-unit"
                        on:change=move |ev| unit.set(LimitUnit::parse(&event_target_value(&ev)))
                    >
                        <option value="hours" selected=true>"hours"</option>
                        <option value="minutes">"minutes"</option>
                    </select>
                </div>
            </div>
            <CallProblem call=call beside_fields=&["/max_duration_s"]/>
        </DialogForm>
    }
}
