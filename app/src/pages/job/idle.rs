//! What a job's page says of devices that stand idle, and of a job that was stopped for it.
//!
//! Must not judge a reading: the portal says what was idle, and what that cost.

use berth_types::jobs::{Job, Underuse};
use berth_types::money::money_text;
use leptos::prelude::*;

use super::LiveJob;

/// The last hour in which the devices stood idle, while the job runs.
#[component]
pub fn IdleNotice(
    /// The job.
    live: LiveJob,
) -> impl IntoView {
    move || live.job.with(|job| job.underused.map(|idle| banner(title(&idle), advice(job, &idle))))
}

fn title(idle: &Underuse) -> String {
    format!("GPU utilisation was {} % in the hour until {}", idle.percent, idle.until.minute())
}

fn advice(job: &Job, idle: &Underuse) -> String {
    let cost = match job.reservation {
        Some(_) => "That hour is paid with its reservation.".to_owned(),
        None => format!("That hour cost {}.", money_text(idle.cost_micros, &job.currency)),
    };
    let next = match job.stop_when_idle {
        Some(rule) => format!("It is stopped when it stays below {} % for as long as you set.", rule.below_percent),
        None => "If it waits for data or for nothing, mend that or stop it. If it needs no more, a smaller offering costs less. A job launched with \"Stop when idle\" ends by itself.".to_owned(),
    };
    format!("{cost} {next}")
}

/// In place of a failure: it was to end then.
pub fn stopped_idle(job: &Job, detail: &str) -> AnyView {
    let paid = format!(
        "You pay {} for what it used; nothing more is set aside for it. It was launched with \"Stop when idle\", and is not tried again.",
        money_text(job.cost_micros, &job.currency)
    );
    banner(detail.to_owned(), paid)
}

fn banner(title: String, text: String) -> AnyView {
    view! {
        <div class="banner banner--warn" role="status">
            <div class="banner__text"><strong class="banner__title">{title}</strong>{text}</div>
        </div>
    }
    .into_any()
}
