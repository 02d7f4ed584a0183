//! The stored bytes of the organization and their limit, and the retention of its ended jobs.

use berth_types::ids::OrgId;
use berth_types::problems::Problem;
use berth_types::storage::{OrgStorage, Retention, SetRetention};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::super::confirm::ConfirmDialog;
use super::super::limits::form::NumberField;
use super::super::parts::{Call, CallProblem, Submit};
use super::super::text::{counted, number, size_text};
use crate::api;

const FIELDS: &[&str] = &["/keep_ended_jobs_days"];
/// The used thousandths at which the meter warns.
const WARN_MILLI: u128 = 900;

/// Returns the used part of the limit in thousandths, at most 1000.
fn used_milli(storage: &OrgStorage) -> u128 {
    let limit = u128::from(storage.limit_bytes.max(1));
    (u128::from(storage.used_bytes) * 1_000 / limit).min(1_000)
}

/// `1 day`, `30 days`.
fn days_text(days: u32) -> String {
    counted(usize::try_from(days).unwrap_or(usize::MAX), "day", "days")
}

/// Returns the sentence about the retention.
fn retention_text(retention: &Retention) -> String {
    match retention.keep_ended_jobs_days {
        Some(days) => format!(
            "Submissions, logs and files of jobs are removed {} after the end of the job. Artifacts and checkpoints may be removed earlier. Name, times and cost of a job stay.",
            days_text(days)
        ),
        None => {
            "Submissions and logs of ended jobs stay without a time limit. Artifacts and checkpoints have their own, shorter time limit."
                .to_owned()
        }
    }
}

/// Returns the hint of the field.
fn hint_text(retention: &Retention) -> String {
    match retention.portal_days {
        Some(days) => format!(
            "1 to {}. Empty: the retention of this portal, {}.",
            number(u64::from(days)),
            days_text(days)
        ),
        None => "1 to 36,500. Empty: no time limit.".to_owned(),
    }
}

/// Parses the days; an empty text means the portal's days.
fn parse_days(text: &str) -> Option<SetRetention> {
    match text.trim() {
        "" => Some(SetRetention { keep_ended_jobs_days: None }),
        text => text.parse().ok().map(|days| SetRetention { keep_ended_jobs_days: Some(days) }),
    }
}

/// Returns the consequence of a choice.
fn consequence(choice: SetRetention, retention: &Retention) -> String {
    match choice.keep_ended_jobs_days.or(retention.portal_days) {
        Some(days) => format!(
            "The portal soon removes submissions, logs and files of jobs that ended more than {} ago. This cannot be undone. Invoices, usage and cost stay.",
            days_text(days)
        ),
        None => "Submissions and logs of ended jobs stay without a time limit.".to_owned(),
    }
}

fn figures(storage: &OrgStorage) -> AnyView {
    let milli = used_milli(storage);
    let class = if milli >= WARN_MILLI { "meter meter--warn" } else { "meter" };
    let nearly = if milli >= WARN_MILLI { ", nearly full" } else { "" };
    let used = format!("{} of {}{nearly}", size_text(storage.used_bytes), size_text(storage.limit_bytes));
    let label = format!("Storage: {} % used", milli / 10);
    let jobs = |count: u64| counted(usize::try_from(count).unwrap_or(usize::MAX), "job", "jobs");
    let jobs = match storage.limit_submissions {
        Some(limit) => format!("{} of {}", number(storage.submissions), jobs(limit)),
        None => jobs(storage.submissions),
    };
    let note = storage.without_credit.then(|| {
        view! { <p class="quiet">"Your organization has no credit yet, so a smaller limit applies. Credit raises it."</p> }
    });
    view! {
        <p>{used} " " <progress class=class value=milli.to_string() max="1000" aria-label=label></progress></p>
        {note}
        <dl class="kv">
            <dt>"Volumes and uploads"</dt>
            <dd>{size_text(storage.volume_bytes)}</dd>
            <dt>"Files of jobs"</dt>
            <dd>{size_text(storage.file_bytes)}</dd>
            <dt>"Submissions"</dt>
            <dd>{size_text(storage.submission_bytes)} ", " {jobs}</dd>
            <dt>"Logs of ended jobs"</dt>
            <dd>{size_text(storage.log_bytes)}</dd>
        </dl>
    }
    .into_any()
}

/// The stored bytes, and the form of the retention for owners.
#[component]
pub(super) fn StorageView(
    /// The organization.
    org: OrgId,
    /// The stored bytes.
    storage: OrgStorage,
    /// The present retention.
    retention: Retention,
    /// True with the form.
    owns: bool,
) -> impl IntoView {
    let retention = RwSignal::new(retention);
    view! {
        <section class="section">
            <div class="section__head"><h2>"Storage"</h2></div>
            {figures(&storage)}
            <p class="quiet">{move || retention.with(retention_text)}</p>
        </section>
        {owns.then(|| view! { <RetentionForm org=org retention=retention/> })}
    }
}

#[component]
fn RetentionForm(org: OrgId, retention: RwSignal<Retention>) -> impl IntoView {
    let call = Call::idle();
    let chosen = retention.with_untracked(|retention| retention.chosen_days);
    let text = RwSignal::new(chosen.map_or_else(String::new, |days| days.to_string()));
    let choice = RwSignal::new(SetRetention { keep_ended_jobs_days: chosen });
    let open = RwSignal::new(false);
    let saved = RwSignal::new(false);
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        saved.set(false);
        match parse_days(&text.get_untracked()) {
            Some(days) => {
                call.problem.set(None);
                choice.set(days);
                open.set(true);
            }
            None => {
                let detail = "Enter a whole number of days, such as 30, or nothing.";
                call.problem.set(Some(Problem::invalid_field("/keep_ended_jobs_days", detail)));
            }
        }
    };
    let set = move |()| {
        let body = choice.get_untracked();
        call.run(api::storage::set_retention(org, &body), move |fresh: Retention| {
            retention.set(fresh);
            saved.set(true);
            open.set(false);
        });
    };
    view! {
        <form class="form card" method="post" on:submit=submit>
            <h2 class="card__title">"Retention of ended jobs"</h2>
            <CallProblem call=call beside_fields=FIELDS/>
            <NumberField
                label="Removal after the end of a job"
                id="retention-days"
                unit=Signal::derive(|| "days".to_owned())
                value=text
                hint=Signal::derive(move || retention.with(hint_text))
                error=call.field("/keep_ended_jobs_days")
                inputmode="numeric"
            />
            <div class="form__actions">
                <Submit call=call>"Set retention"</Submit>
            </div>
            <p class="quiet said" role="status">{move || saved.get().then_some("Retention set.")}</p>
        </form>
        <ConfirmDialog
            id="set-retention"
            title="Set the retention of ended jobs?"
            open=open
            call=call
            keep="Keep present retention"
            verb="Set retention"
            confirm=Callback::new(set)
        >
            <p>{move || retention.with(|retention| consequence(choice.get(), retention))}</p>
        </ConfirmDialog>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_whole_or_absent() {
        let days = |text: &str| parse_days(text).map(|set| set.keep_ended_jobs_days);
        assert_eq!((days(" "), days("30"), days(" 1 ")), (Some(None), Some(Some(30)), Some(Some(1))));
        for no in ["1.5", "-1", "ten"] {
            assert_eq!(days(no), None, "{no}");
        }
    }

    #[test]
    fn the_consequence_names_the_days() {
        let portal = Retention { keep_ended_jobs_days: Some(365), portal_days: Some(365), chosen_days: None };
        let set = |days| SetRetention { keep_ended_jobs_days: days };
        assert!(consequence(set(Some(1)), &portal).contains("more than 1 day ago"));
        assert!(consequence(set(None), &portal).contains("365 days"));
        let for_ever = Retention { keep_ended_jobs_days: None, portal_days: None, chosen_days: None };
        assert!(consequence(set(None), &for_ever).contains("without a time limit"));
        assert!(retention_text(&for_ever).contains("without a time limit"));
        assert!(hint_text(&portal).contains("1 to 365."));
    }

    #[test]
    fn a_meter_ends_at_its_limit() {
        let storage = |used_bytes, limit_bytes| OrgStorage {
            limit_bytes,
            without_credit: false,
            limit_submissions: None,
            used_bytes,
            file_bytes: 0,
            volume_bytes: 0,
            submission_bytes: 0,
            submissions: 0,
            log_bytes: 0,
        };
        assert_eq!(
            [used_milli(&storage(1, 2)), used_milli(&storage(3, 2)), used_milli(&storage(0, 0))],
            [500, 1_000, 0]
        );
    }
}
