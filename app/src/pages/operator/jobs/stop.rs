//! Dialog of the bulk stop. The request has the shown number of jobs; the portal refuses it if more jobs
//! match.

use berth_types::operations::{JobFilter, StopJobs, StoppedJobs};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::super::super::parts::{Call, CallProblem, FieldError, FormKey, Modal};
use super::super::super::text::counted;
use crate::api;

const FIELDS: &[&str] = &["/reason"];

fn jobs_text(jobs: u64) -> String {
    counted(usize::try_from(jobs).unwrap_or(usize::MAX), "job", "jobs")
}

/// Returns the matching jobs by organization: `3 jobs: 2 of lab, 1 of bobs.`
fn matching_text(matching: &StoppedJobs) -> String {
    if matching.matched == 0 {
        return "No matching jobs to stop: all are finished or stopping.".to_owned();
    }
    let orgs: Vec<String> = matching.orgs.iter().map(|o| format!("{} of {}", o.jobs, o.org_name)).collect();
    format!("{}: {}.", jobs_text(matching.matched), orgs.join(", "))
}

/// Returns the result of a stop.
fn result_text(done: &StoppedJobs) -> String {
    match done.left {
        0 => format!("Stop requested for {}.", jobs_text(done.stopped)),
        left => format!(
            "Stop requested for {}; {left} remaining. Repeat the stop for these.",
            jobs_text(done.stopped)
        ),
    }
}

/// The confirmation of a bulk stop.
#[component]
pub fn StopDialog(
    /// The filter of the jobs.
    filter: StoredValue<JobFilter>,
    /// True with an open dialog.
    open: RwSignal<bool>,
    /// The result of the last stop.
    status: RwSignal<String>,
    /// Runs after a stop.
    done: Callback<()>,
) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::new(call);
    let reason = RwSignal::new(String::new());
    let matching = RwSignal::new(None::<StoppedJobs>);
    let request = move |expected: Option<u64>| StopJobs {
        filter: filter.get_value(),
        reason: reason.get_untracked().trim().to_owned(),
        expected,
    };
    // Each opening loads the number again.
    Effect::new(move || {
        if open.get() {
            call.problem.set(None);
            matching.set(None);
            call.run(api::operations::preview_stop(&request(None)), move |now: StoppedJobs| {
                matching.set(Some(now))
            });
        }
    });
    let matched = move || matching.with(|matching| matching.as_ref().map_or(0, |m| m.matched));
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let body = request(Some(matched()));
        call.run(api::operations::stop(&body, key.for_body(&body)), move |now: StoppedJobs| {
            key.reset();
            status.set(result_text(&now));
            reason.set(String::new());
            open.set(false);
            done.run(());
        });
    };
    let text = move || {
        matching.with(|matching| matching.as_ref().map_or_else(|| "Counting…".to_owned(), matching_text))
    };
    let wrong_reason = call.field("/reason");
    view! {
        <Modal id="stop-jobs" title="Stop matching jobs?" open=open>
            <form method="post" on:submit=submit>
                <div class="dialog__body">
                    <p role="status">{text}</p>
                    <p>"Each job gets its stop signal and grace period, is charged for its run time, and is not retried."</p>
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
                        <p class="field__hint" id="stop-reason-hint">"Shown to the job owners with your name."</p>
                        <FieldError id="stop-reason-error" error=wrong_reason/>
                    </div>
                </div>
                <div class="dialog__actions">
                    <button class="btn" type="button" on:click=move |_| open.set(false)>"Keep jobs"</button>
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
    fn a_stop_has_a_preview_and_a_result() {
        let org = "org_00000000000000000000000001".parse().unwrap();
        let orgs = vec![JobsOfOrg { org, org_name: "lab".to_owned(), jobs: 2 }];
        let mut answer = StoppedJobs { matched: 2, orgs, stopped: 0, left: 2 };
        assert_eq!(matching_text(&answer), "2 jobs: 2 of lab.");
        (answer.stopped, answer.left) = (2, 0);
        assert_eq!(result_text(&answer), "Stop requested for 2 jobs.");
        answer.left = 7;
        assert_eq!(
            result_text(&answer),
            "Stop requested for 2 jobs; 7 remaining. Repeat the stop for these."
        );
        assert!(
            matching_text(&StoppedJobs { matched: 0, orgs: vec![], stopped: 0, left: 0 })
                .starts_with("No matching")
        );
    }
}
