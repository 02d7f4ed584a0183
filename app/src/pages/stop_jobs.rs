//! The bulk stop of the jobs of a list: its button, its dialog and its result. The request has the shown number
//! of jobs; the portal refuses it if more jobs match.

use berth_types::ids::OrgId;
use berth_types::jobs::{OrgJobFilter, StopOrgJobs};
use berth_types::operations::{JobFilter, StopJobs, StoppedJobs};
use leptos::prelude::*;

use super::dialog_form::DialogForm;
use super::parts::{Call, CallProblem, FormKey, ready};
use super::text::counted;
use crate::api;
use crate::ui::*;

const FIELDS: &[&str] = &["/reason"];

fn jobs_text(jobs: u64) -> String {
    counted(usize::try_from(jobs).unwrap_or(usize::MAX), "job", "jobs")
}

/// The jobs of a bulk stop.
#[derive(Debug, Clone)]
pub enum StopChoice {
    /// Jobs of all organizations, for operators. The stop has a reason.
    AllOrgs(JobFilter),
    /// Jobs of an organization, for its members.
    OneOrg(OrgId, OrgJobFilter),
}

impl StopChoice {
    /// Returns the label of the button.
    const fn verb(&self) -> &'static str {
        match self {
            Self::OneOrg(
                _,
                OrgJobFilter { state: None, ended: None, name: None, created_by: None, label: None },
            ) => "Stop all jobs",
            Self::AllOrgs(_) | Self::OneOrg(..) => "Stop matching jobs",
        }
    }

    /// Returns the matching jobs, for operators by organization: `3 jobs: 2 of lab, 1 of bobs.`
    fn matching_text(&self, matching: &StoppedJobs) -> String {
        if matching.matched == 0 {
            return "No matching jobs to stop: all are finished or stopping.".to_owned();
        }
        let jobs = jobs_text(matching.matched);
        match self {
            Self::AllOrgs(_) => {
                let of = matching.orgs.iter().map(|o| format!("{} of {}", o.jobs, o.org_name));
                format!("{jobs}: {}.", of.collect::<Vec<_>>().join(", "))
            }
            Self::OneOrg(..) => format!("{jobs}."),
        }
    }
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

/// The bulk stop of a page.
#[derive(Clone, Copy)]
pub struct BulkStop {
    choice: StoredValue<StopChoice>,
    /// True with an open dialog.
    open: RwSignal<bool>,
    /// The result of the last stop.
    status: RwSignal<String>,
    /// False before hydration.
    ready: ReadSignal<bool>,
}

impl BulkStop {
    /// Returns a stop without a result.
    pub fn new(choice: StopChoice) -> Self {
        Self {
            choice: StoredValue::new(choice),
            open: RwSignal::new(false),
            status: RwSignal::new(String::new()),
            ready: ready(),
        }
    }

    /// Returns the button that opens the dialog.
    pub fn button(self, class: &'static str) -> AnyView {
        let Self { open, ready, .. } = self;
        let verb = self.choice.with_value(StopChoice::verb);
        view! {
            <button class=class type="button" disabled=move || !ready.get() on:click=move |_| open.set(true)>
                {verb}
            </button>
        }
        .into_any()
    }

    /// Returns true after a stop.
    pub fn has_result(self) -> bool {
        self.status.with(|status| !status.is_empty())
    }

    /// Returns the result of the last stop.
    pub fn result(self) -> AnyView {
        view! { <p class="quiet" role="status">{move || self.status.get()}</p> }.into_any()
    }
}

/// The confirmation of a bulk stop.
#[component]
pub fn StopJobsDialog(
    /// The bulk stop of the page.
    stop: BulkStop,
    /// Runs after a stop.
    done: Callback<()>,
) -> impl IntoView {
    let BulkStop { choice, open, status, .. } = stop;
    let (call, counting) = (Call::idle(), Call::idle());
    let key = FormKey::new(call);
    let reason = RwSignal::new(String::new());
    let matching = RwSignal::new(None::<StoppedJobs>);
    let typed = move || reason.with_untracked(|reason| reason.trim().to_owned());
    let count = move || {
        let found = move |now: StoppedJobs| matching.set(Some(now));
        match choice.get_value() {
            StopChoice::AllOrgs(filter) => {
                let body = StopJobs { filter, reason: typed(), expected: None };
                counting.run(api::operations::preview_stop(&body), found);
            }
            StopChoice::OneOrg(org, filter) => {
                let body = StopOrgJobs { filter, expected: None };
                counting.run(api::jobs::preview_stop(org, &body), found);
            }
        }
    };
    // Each opening loads the number again.
    let reset = move |()| {
        counting.problem.set(None);
        matching.set(None);
        count();
    };
    // So does the refusal of a number that is too small by now.
    Effect::new(move || {
        if call.problem.with(|problem| problem.as_ref().is_some_and(|problem| problem.code == "jobs.more")) {
            count();
        }
    });
    let matched = move || matching.with(|matching| matching.as_ref().map_or(0, |m| m.matched));
    let submit = move |()| {
        let expected = Some(matched());
        let stopped = move |now: StoppedJobs| {
            key.reset();
            status.set(result_text(&now));
            reason.set(String::new());
            open.set(false);
            done.run(());
        };
        match choice.get_value() {
            StopChoice::AllOrgs(filter) => {
                let body = StopJobs { filter, reason: typed(), expected };
                call.run(api::operations::stop(&body, key.for_body(&body)), stopped);
            }
            StopChoice::OneOrg(org, filter) => {
                let body = StopOrgJobs { filter, expected };
                call.run(api::jobs::stop(org, &body, key.for_body(&body)), stopped);
            }
        }
    };
    let text = move || {
        let text = |m: &StoppedJobs| choice.with_value(|choice| choice.matching_text(m));
        matching.with(|matching| matching.as_ref().map_or_else(|| "Counting…".to_owned(), text))
    };
    let (title, has_reason) =
        choice.with_value(|choice| (format!("{}?", choice.verb()), matches!(choice, StopChoice::AllOrgs(_))));
    let reason_field = move || {
        view! {
            <TextField
                label="Reason"
                id="stop-reason"
                max_length=200
                value=reason
                hint="Shown to the job owners with your name."
                error=call.field("/reason")
            />
        }
    };
    let verb = Signal::derive(move || format!("Stop {}", jobs_text(matched())));
    view! {
        <DialogForm
            id="stop-jobs"
            title=title
            open=open
            call=call
            keep="Keep jobs"
            verb=verb
            danger=true
            disabled=Signal::derive(move || counting.pending.get() || matched() == 0)
            reset=Callback::new(reset)
            submit=Callback::new(submit)
        >
            <p role="status">{text}</p>
            <p>"Each job gets its stop signal and grace period, is charged for its run time, and is not retried."</p>
            <CallProblem call=counting beside_fields=&[]/>
            <CallProblem call=call beside_fields=FIELDS/>
            {has_reason.then(reason_field)}
        </DialogForm>
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::operations::JobsOfOrg;

    #[test]
    fn a_stop_has_a_preview_and_a_result() {
        let org: OrgId = "org_00000000000000000000000001".parse().unwrap();
        let orgs = vec![JobsOfOrg { org, org_name: "lab".to_owned(), jobs: 2 }];
        let mut answer = StoppedJobs { matched: 2, orgs, stopped: 0, left: 2 };
        let all = StopChoice::AllOrgs(JobFilter::default());
        assert_eq!(all.matching_text(&answer), "2 jobs: 2 of lab.");
        let one = StopChoice::OneOrg(org, OrgJobFilter::default());
        assert_eq!(one.matching_text(&answer), "2 jobs.");
        (answer.stopped, answer.left) = (2, 0);
        assert_eq!(result_text(&answer), "Stop requested for 2 jobs.");
        answer.left = 7;
        assert_eq!(
            result_text(&answer),
            "Stop requested for 2 jobs; 7 remaining. Repeat the stop for these."
        );
        let none = StoppedJobs { matched: 0, orgs: vec![], stopped: 0, left: 0 };
        assert!(one.matching_text(&none).starts_with("No matching"));
    }

    #[test]
    fn a_button_names_the_choice() {
        let org: OrgId = "org_00000000000000000000000001".parse().unwrap();
        assert_eq!(StopChoice::AllOrgs(JobFilter::default()).verb(), "Stop matching jobs");
        assert_eq!(StopChoice::OneOrg(org, OrgJobFilter::default()).verb(), "Stop all jobs");
        let active = OrgJobFilter { ended: Some(false), ..OrgJobFilter::default() };
        assert_eq!(StopChoice::OneOrg(org, active).verb(), "Stop matching jobs");
    }
}
