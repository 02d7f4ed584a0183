//! Preview of a job: price, maximum cost and placement before the launch.
//!
//! All values come from the plan of the portal, requested again after each relevant change.

use berth_types::ids::OrgId;
use berth_types::jobs::{Blocker, JobPlan, NewJob, SuggestedChange};
use berth_types::money::{available_text, money_text, reserved_text};
use berth_types::problems::FieldError;
use berth_types::time::Timestamp;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::super::curl::{self, CopyAsCurl};
use super::super::limits::credit_form::CreditRequest;
use super::super::parts::focus_soon;
use super::super::parts::{Call, every_visible, later, origin};
use super::super::rows::device_text;
use super::super::text;
use super::super::waits::{BlockingObjects, suggestion_price};
use super::draft::for_plan;
use super::form::Form;
use crate::api;
use crate::api::Answer;
use crate::session::use_session;
use crate::ui::*;

/// The request of the form, or its errors.
pub type Request = Result<NewJob, Vec<FieldError>>;

/// Milliseconds without a change before a request.
const DEBOUNCE_MS: u64 = 300;

/// Milliseconds between two requests without a change: free devices and the balance change beside the form.
const REFRESH_MS: u64 = 30_000;

/// The panel beside the form with the launch button.
#[component]
pub fn Preview(
    /// The organization of the job.
    org: OrgId,
    /// The present request.
    request: Memo<Request>,
    /// The form, for suggested changes.
    form: Form,
    /// The submission.
    call: Call,
    /// True after hydration.
    ready: ReadSignal<bool>,
) -> impl IntoView {
    let plan = RwSignal::new(None::<Answer<JobPlan>>);
    // The request of the shown plan.
    let planned = StoredValue::new(None::<NewJob>);
    let last_request = StoredValue::new(0_u64);
    let wanted = Memo::new(move |_| request.get().ok().map(for_plan));
    let inside =
        Memo::new(move |_| request.with(|job| job.as_ref().is_ok_and(|job| job.reservation.is_some())));
    let round = RwSignal::new(0_u64);
    every_visible(REFRESH_MS, move || round.update(|round| *round = round.wrapping_add(1)));
    Effect::new(move || {
        round.track();
        let Some(job) = wanted.get() else { return };
        // The first request needs no delay.
        later(if last_request.get_value() == 0 { 0 } else { DEBOUNCE_MS }, move || {
            let number = last_request.get_value().wrapping_add(1);
            last_request.set_value(number);
            spawn_local(async move {
                let answer = api::jobs::plan(org, &job).await;
                // A late answer to an older request has the wrong price.
                if last_request.try_get_value() != Some(number) {
                    return;
                }
                // A failed refresh leaves the plan. The next round repeats it.
                let is_lost =
                    answer.as_ref().is_err_and(|p| p.status == 0 || p.status == 429 || p.status >= 500);
                let is_known = planned.with_value(|planned| planned.as_ref() == Some(&job))
                    && plan.with_untracked(|plan| matches!(plan, Some(Ok(_))));
                if !(is_lost && is_known) {
                    planned.set_value(Some(job));
                    plan.set(Some(answer));
                }
            });
        });
    });
    let missing =
        Memo::new(
            move |_| if inside.get() { 0 } else { plan.with(|plan| plan.as_ref().map_or(0, missing_micros)) },
        );
    let is_short = Memo::new(move |_| missing.get() > 0);
    let is_old = Memo::new(move |_| wanted.with(Option::is_none) && plan.with(Option::is_some));
    let session = use_session();
    let runs = session.runs_in(org);
    let currency = session.me.currency;
    // An edit of the form redraws the remarks, but not the dialog.
    let request_credit = move || {
        let currency = currency.clone();
        is_short.get().then(|| view! { <CreditRequest org=org currency=currency missing_micros=missing/> })
    };
    view! {
        <aside class="summary" aria-label="Price and start">
            <h2 class="summary__title">"Price and start"</h2>
            {move || figures(plan.get(), inside.get(), request.get_untracked())}
            <div class="summary__actions">
                <button
                    class="btn btn--primary"
                    type="submit"
                    form="launch"
                    disabled=move || !ready.get() || !runs || call.pending.get()
                    aria-busy=move || call.pending.get().then_some("true")
                >
                    {move || if call.pending.get() { "Launching" } else { "Launch job" }}
                </button>
            </div>
            {move || is_old.get().then(|| view! { <p class="summary__note">"The price is that of the last valid input."</p> })}
            {move || remarks(plan.get(), inside.get())}
            <PlanWaits plan=plan form=form/>
            {request_credit}
        </aside>
    }
}

/// The objects in the way of a job that would wait, and the changes with which it would start now.
#[component]
fn PlanWaits(
    /// The latest plan.
    plan: RwSignal<Option<Answer<JobPlan>>>,
    /// The form, for the changes.
    form: Form,
) -> impl IntoView {
    let known = move |plan: &Option<Answer<JobPlan>>| {
        // Before the begin of its reservation, nothing else is known about the start.
        let plan = plan.as_ref().and_then(|plan| plan.as_ref().ok());
        plan.filter(|plan| plan.reservation_starts_at.is_none()).cloned()
    };
    let waits = Memo::new(move |_| plan.with(known));
    let blockers = Memo::new(move |_| waits.get().map(|plan| plan.blockers).unwrap_or_default());
    let suggested = Memo::new(move |_| waits.get().map(|plan| plan.suggested_changes).unwrap_or_default());
    let none = Memo::new(move |_| {
        let behind = |blocker: &Blocker| !blocker.objects.is_empty() || blocker.others > 0;
        suggested.with(Vec::is_empty) && !blockers.with(|all| all.iter().any(behind))
    });
    let title = move || match suggested.with(Vec::len) {
        0 => "In the way".to_owned(),
        count => text::counted(count, "change lets the job start now", "changes let the job start now"),
    };
    let item = move |suggestion: SuggestedChange| {
        let SuggestedChange { label, change, .. } = suggestion.clone();
        let name = format!("Use this change: {label}");
        // The button leaves with its suggestion, so the next step gets the focus.
        let apply = move |_: leptos::ev::MouseEvent| {
            form.apply(&change);
            focus_soon("button[form=\"launch\"]".to_owned());
        };
        view! {
            <li class="why__object">
                <span class="why__change">{label}</span>
                " "
                <span class="why__price">{suggestion_price(&suggestion)}</span>
                " "
                <button class="btn btn--small" type="button" aria-label=name on:click=apply>"Use this change"</button>
            </li>
        }
        .into_any()
    };
    let key = |one: &SuggestedChange| (one.label.clone(), one.per_hour_micros, one.worst_case_micros);
    view! {
        <details class="more" hidden=move || none.get()>
            <summary>{title}</summary>
            <ul class="why__list" aria-label="Changes with which the job starts now" hidden=move || suggested.with(Vec::is_empty)>
                <For each=move || suggested.get() key=key children=item/>
            </ul>
            <BlockingObjects blockers=blockers/>
        </details>
    }
}

/// The request of the form as a curl command.
#[component]
pub fn CurlLine(
    /// The organization of the job.
    org: OrgId,
    /// The present request.
    request: Memo<Request>,
) -> impl IntoView {
    let origin = origin();
    let line = Signal::derive(move || {
        let path = format!("/orgs/{org}/jobs");
        match request.get() {
            Ok(job) => curl::post(&origin.get(), &path, &serde_json::to_string(&job).unwrap_or_default()),
            Err(_) => curl::INCOMPLETE.to_owned(),
        }
    });
    view! {
        <CopyAsCurl line=line label="Job with curl"/>
    }
}

fn row(name: &'static str, class: &'static str, value: AnyView) -> AnyView {
    view! { <div class=class><dt>{name}</dt><dd>{value}</dd></div> }.into_any()
}

fn figures(plan: Option<Answer<JobPlan>>, inside: bool, request: Request) -> AnyView {
    let Some(Ok(plan)) = plan else {
        // The same rows avoid a layout shift.
        let blank = || "–".into_any();
        return view! {
            <dl class="summary__rows" aria-live="polite">
                {row("Price", "summary__row summary__row--lead", blank())}
                {row("Maximum cost", "summary__row", blank())}
                {row("Available", "summary__row", blank())}
                {row("Start", "summary__row", blank())}
            </dl>
        }
        .into_any();
    };
    // The plan of a job in a reservation has the price without the reservation.
    let (hourly, worst) = if inside { (0, 0) } else { (plan.per_hour_micros, plan.worst_case_micros) };
    // The price of one device keeps its own digits, as in its row.
    let one_device = request.is_ok_and(|job| job.count == 1 && job.nodes == 1);
    let price = if one_device {
        money_text(hourly, &plan.currency)
    } else {
        text::price_text(hourly, &plan.currency)
    };
    let price = view! { {price}<span class="unit">"/h"</span> }.into_any();
    let maximum = reserved_text(worst, &plan.currency);
    let available = available_text(plan.available_micros, &plan.currency);
    let short = !inside && !plan.affordable;
    let available_class = if short { "summary__row summary__row--short" } else { "summary__row" };
    let start = start_text(&plan);
    view! {
        <dl class="summary__rows" aria-live="polite">
            {row("Price", "summary__row summary__row--lead", price)}
            {row("Maximum cost", "summary__row", maximum.into_any())}
            {row("Available", available_class, available.into_any())}
            {row("Start", "summary__row", start.into_any())}
        </dl>
    }
    .into_any()
}

/// Returns the start of a job in two words.
fn start_text(plan: &JobPlan) -> &'static str {
    match (plan.reservation_starts_at, plan.blockers.is_empty()) {
        (Some(_), _) => "with reservation",
        (None, true) => "immediately",
        (None, false) => "after waiting",
    }
}

fn remarks(plan: Option<Answer<JobPlan>>, inside: bool) -> AnyView {
    match plan {
        None => view! { <p class="summary__note">"Loading the price."</p> }.into_any(),
        Some(Err(problem)) => {
            let faults: Vec<AnyView> = problem
                .errors
                .iter()
                .map(|error| {
                    let text = labelled_error(error);
                    view! { <p class="field__error">{text}</p> }.into_any()
                })
                .collect();
            let lead = if faults.is_empty() { problem.detail.clone() } else { String::new() };
            view! { <p class="summary__note">{lead}</p> {faults} }.into_any()
        }
        Some(Ok(plan)) => plan_remarks(&plan, inside),
    }
}

/// Returns the missing money of a plan in micro-units; 0 for a problem.
fn missing_micros(plan: &Answer<JobPlan>) -> i64 {
    plan.as_ref().map_or(0, |plan| plan.worst_case_micros.saturating_sub(plan.available_micros).max(0))
}

fn plan_remarks(plan: &JobPlan, inside: bool) -> AnyView {
    let text = |micros: i64| reserved_text(micros, &plan.currency);
    let money = if inside {
        "Paid with the reservation: no further money is reserved or charged.".to_owned()
    } else if plan.affordable {
        format!(
            "{} is reserved until the job ends. You pay per millisecond of run time; the rest is released. Price version {}.",
            text(plan.worst_case_micros),
            plan.price_version
        )
    } else {
        format!(
            "{} more credit is required. Request credit from the operator, or choose a shorter time limit, fewer devices or a smaller offering.",
            text(plan.worst_case_micros.saturating_sub(plan.available_micros))
        )
    };
    let money_class = if inside || plan.affordable { "summary__note" } else { "field__error" };
    let places: Vec<String> = plan.placement.iter().map(device_text).collect();
    let place = (!places.is_empty()).then(|| {
        let text = format!("Placement: {}.", places.join("; "));
        view! { <p class="summary__note">{text}</p> }
    });
    let waits: Vec<AnyView> = match plan.reservation_starts_at {
        // Before the begin of its reservation, nothing else is known about the start.
        Some(begins) => {
            let zone = use_zone();
            let text = move || begin_text(begins, zone.get());
            vec![view! { <p class="summary__note">{text}</p> }.into_any()]
        }
        None => plan.blockers.iter().map(wait).collect(),
    };
    view! { <p class=money_class>{money}</p> {place} {waits} }.into_any()
}

/// Returns the remark about the begin of the job's reservation.
fn begin_text(begins: Timestamp, zone: Zone) -> String {
    format!("Starts when the reservation begins, on {}.", zone.minute(begins))
}

fn wait(blocker: &Blocker) -> AnyView {
    let zone = use_zone();
    let (detail, change) = (blocker.detail.clone(), text::sentence(&blocker.change));
    let detail = move || zoned(&detail, zone.get());
    let change = move || zoned(&change, zone.get());
    view! { <p class="summary__note">"The job would wait. "{detail}" "<strong>{change}</strong></p> }
        .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_of_a_later_reservation_starts_with_it() {
        let plan = |begins: Option<&str>, blocked: bool| -> JobPlan {
            let blocker = serde_json::json!({"code": "x", "detail": "It waits.", "change": "Wait."});
            let blockers = if blocked { vec![blocker] } else { Vec::new() };
            serde_json::from_value(serde_json::json!({
                "offering": "h100", "price_version": 1, "per_hour_micros": 0, "worst_case_micros": 0,
                "available_micros": 0, "affordable": true, "currency": "USD", "placement": [],
                "reservation_starts_at": begins, "blockers": blockers,
            }))
            .unwrap()
        };
        let later = plan(Some("2026-11-22T09:00:00Z"), true);
        assert_eq!(start_text(&later), "with reservation");
        assert_eq!(
            later.reservation_starts_at.map(|at| begin_text(at, Zone::Utc)).as_deref(),
            Some("Starts when the reservation begins, on 2026-11-22 09:00 UTC.")
        );
        assert_eq!(
            [false, true].map(|blocked| start_text(&plan(None, blocked))),
            ["immediately", "after waiting"]
        );
    }
}
