//! Stopping the jobs that are chosen: how many of whom, why, and only then.
//!
//! Must not stop more than it has shown: the number is sent along, and the portal refuses a larger one.

use berth_types::operations::{JobFilter, StopJobs, StoppedJobs};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::super::super::parts::{Call, CallProblem, FieldError, FormKey, Modal};
use super::super::super::words::counted;
use crate::api;

const FIELDS: &[&str] = &["/reason"];

fn jobs_text(jobs: u64) -> String {
    counted(usize::try_from(jobs).unwrap_or(usize::MAX), "job", "jobs")
}

/// `3 jobs: 2 of lab, 1 of bobs.`
fn meant_text(meant: &StoppedJobs) -> String {
    if meant.matched == 0 {
        return "No job that is chosen can be stopped: they are over, or stop already.".to_owned();
    }
    let of: Vec<String> = meant.orgs.iter().map(|o| format!("{} of {}", o.jobs, o.org_name)).collect();
    format!("{}: {}.", jobs_text(meant.matched), of.join(", "))
}

/// What became of an order.
fn done_text(done: &StoppedJobs) -> String {
    match done.left {
        0 => format!("{} told to stop.", jobs_text(done.stopped)),
        left => format!("{} told to stop, {left} are left; stop these too.", jobs_text(done.stopped)),
    }
}

/// The question before it.
#[component]
pub fn StopDialog(
    /// Which jobs.
    filter: StoredValue<JobFilter>,
    /// Whether it is open.
    open: RwSignal<bool>,
    /// What became of the last order.
    said: RwSignal<String>,
    /// Runs when jobs were told to stop.
    done: Callback<()>,
) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::beside(call);
    let reason = RwSignal::new(String::new());
    let meant = RwSignal::new(None::<StoppedJobs>);
    let order = move |expected: Option<u64>| StopJobs {
        filter: filter.get_value(),
        reason: reason.get_untracked().trim().to_owned(),
        expected,
    };
    // The number is looked up each time it is opened.
    Effect::new(move || {
        if open.get() {
            call.problem.set(None);
            meant.set(None);
            call.run(api::operations::preview_stop(&order(None)), move |now: StoppedJobs| {
                meant.set(Some(now))
            });
        }
    });
    let matched = move || meant.with(|meant| meant.as_ref().map_or(0, |m| m.matched));
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let body = order(Some(matched()));
        call.run(api::operations::stop(&body, key.of_body(&body)), move |now: StoppedJobs| {
            key.done();
            said.set(done_text(&now));
            reason.set(String::new());
            open.set(false);
            done.run(());
        });
    };
    let text = move || meant.with(|meant| meant.as_ref().map_or_else(|| "Counting…".to_owned(), meant_text));
    let wrong_reason = call.field("/reason");
    view! {
        <Modal id="stop-jobs" title="Stop these jobs?" open=open>
            <form method="post" on:submit=submit>
                <div class="dialog__body">
                    <p role="status">{text}</p>
                    <p>"They get their signal and time to stop, are charged for what they used, and do not start again."</p>
                    <CallProblem call=call beside_fields=FIELDS/>
                    <div class="field field--wide">
                        <label class="field__label" for="stop-reason">"Reason"</label>
                        <input
                            id="stop-reason"
                            autocomplete="off"
                            maxlength="200"
                            aria-describedby="stop-reason-hint stop-reason-error"
                            aria-invalid=move || wrong_reason.get().map(|_| "true")
                            prop:value=move || reason.get()
                            on:input=move |ev| reason.set(event_target_value(&ev))
                        />
                        <p class="field__hint" id="stop-reason-hint">"Their owners see it beside your name."</p>
                        <FieldError id="stop-reason-error" error=wrong_reason/>
                    </div>
                </div>
                <div class="dialog__actions">
                    <button class="btn" type="button" on:click=move |_| open.set(false)>"Stop nothing"</button>
                    <button
                        class="btn btn--danger btn--primary"
                        type="submit"
                        disabled=move || call.pending.get() || matched() == 0
                        aria-busy=move || call.pending.get().then_some("true")
                    >
                        {move || format!("Stop {}", jobs_text(matched()))}
                    </button>
                </div>
            </form>
        </Modal>
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::operations::JobsOfOrg;

    #[test]
    fn an_order_is_said_before_and_after() {
        let org = "org_00000000000000000000000001".parse().unwrap();
        let orgs = vec![JobsOfOrg { org, org_name: "lab".to_owned(), jobs: 2 }];
        let mut order = StoppedJobs { matched: 2, orgs, stopped: 0, left: 2 };
        assert_eq!(meant_text(&order), "2 jobs: 2 of lab.");
        (order.stopped, order.left) = (2, 0);
        assert_eq!(done_text(&order), "2 jobs told to stop.");
        order.left = 7;
        assert_eq!(done_text(&order), "2 jobs told to stop, 7 are left; stop these too.");
        assert!(
            meant_text(&StoppedJobs { matched: 0, orgs: vec![], stopped: 0, left: 0 }).starts_with("No job")
        );
    }
}
