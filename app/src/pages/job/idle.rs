//! Notices of a job's page about idle devices. The portal decides about idle hours and their cost.

use berth_types::jobs::{Job, Underuse};
use berth_types::money::money_text;
use leptos::prelude::*;

use super::super::text::limit_text;
use super::LiveJob;
use crate::ui::{Zone, use_zone};

/// The notice about the last hour with idle devices of a running job.
#[component]
pub fn IdleNotice(
    /// The job.
    live: LiveJob,
) -> impl IntoView {
    let zone = use_zone();
    move || {
        live.job.with(|job| job.underused.map(|idle| banner(title(&idle, zone.get()), advice(job, &idle))))
    }
}

fn title(idle: &Underuse, zone: Zone) -> String {
    format!("GPU utilization was {} % in the hour until {}", idle.percent, zone.minute(idle.until))
}

fn advice(job: &Job, idle: &Underuse) -> String {
    let cost = match job.reservation {
        Some(_) => "This hour is paid with the reservation.".to_owned(),
        None => format!("This hour cost {}.", money_text(idle.cost_micros, &job.currency)),
    };
    let next = match job.stop_when_idle {
        Some(rule) => format!("The job is stopped after {} below {} %.", limit_text(rule.for_s.into()), rule.below_percent),
        None => "Check whether the job waits for data. Stop the job if it has no work, or launch it on a smaller offering. A job launched with \"Stop when idle\" stops by itself.".to_owned(),
    };
    format!("{cost} {next}")
}

/// Returns the notice of a job that was stopped as idle, as submitted.
pub fn stopped_idle(job: &Job, detail: &str) -> AnyView {
    let paid = format!(
        "You pay {} for the run time; the rest of the reserved money is released. The job was launched with \"Stop when idle\" and is not retried.",
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
