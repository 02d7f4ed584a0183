//! What the job on the form would cost and where it would start, before it is launched.
//!
//! Must not compute a price: the portal's plan is shown, and asked for again when the form changes.

use berth_types::ids::OrgId;
use berth_types::jobs::{Blocker, JobPlan, NewJob};
use berth_types::money::money_text;
use berth_types::problems::FieldError;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::super::parts::{Call, later, origin};
use super::super::rows::device_words;
use super::super::{curl, words};
use super::draft::for_plan;
use crate::api;
use crate::api::Answer;
use crate::ui::*;

/// The form as a request, or what keeps it from being one.
pub type Request = Result<NewJob, Vec<FieldError>>;

/// Milliseconds without a change before the portal is asked.
const SETTLED_MS: u64 = 300;

/// The panel beside the form, with its button.
#[component]
pub fn Preview(
    /// The organization that would pay.
    org: OrgId,
    /// What the form means now.
    request: Memo<Request>,
    /// The submission.
    call: Call,
    /// Hydrated.
    ready: ReadSignal<bool>,
) -> impl IntoView {
    let plan = RwSignal::new(None::<Answer<JobPlan>>);
    let asked = StoredValue::new(0_u64);
    let wanted = Memo::new(move |_| request.get().ok().map(for_plan));
    let inside =
        Memo::new(move |_| request.with(|job| job.as_ref().is_ok_and(|job| job.reservation.is_some())));
    Effect::new(move || {
        let Some(job) = wanted.get() else { return };
        // The first price needs no pause: nobody is typing yet.
        later(if asked.get_value() == 0 { 0 } else { SETTLED_MS }, move || {
            let number = asked.get_value().wrapping_add(1);
            asked.set_value(number);
            spawn_local(async move {
                let answer = api::jobs::plan(org, &job).await;
                // An answer to an older form would show the wrong price.
                if asked.try_get_value() == Some(number) {
                    plan.set(Some(answer));
                }
            });
        });
    });
    view! {
        <aside class="summary" aria-label="What this job costs">
            <h2 class="summary__title">"This job"</h2>
            {move || figures(plan.get(), inside.get())}
            <div class="summary__actions">
                <button
                    class="btn btn--primary"
                    type="submit"
                    form="launch"
                    disabled=move || !ready.get() || call.pending.get()
                    aria-busy=move || call.pending.get().then_some("true")
                >
                    {move || if call.pending.get() { "Launching" } else { "Launch job" }}
                </button>
            </div>
            {move || remarks(plan.get(), inside.get())}
        </aside>
    }
}

/// The request of the form as a curl line.
#[component]
pub fn CurlLine(
    /// The organization that would pay.
    org: OrgId,
    /// What the form means now.
    request: Memo<Request>,
) -> impl IntoView {
    let origin = origin();
    let line = Signal::derive(move || {
        let path = format!("/orgs/{org}/jobs");
        match request.get() {
            Ok(job) => curl::post(&origin.get(), &path, &serde_json::to_string(&job).unwrap_or_default()),
            Err(_) => "Complete the form to get the line.".to_owned(),
        }
    });
    view! {
        <details class="more">
            <summary>"Copy as curl"</summary>
            <CopyBlock text=line label="The same job with curl".to_owned()/>
        </details>
    }
}

fn row(name: &'static str, class: &'static str, value: AnyView) -> AnyView {
    view! { <div class=class><dt>{name}</dt><dd>{value}</dd></div> }.into_any()
}

fn figures(plan: Option<Answer<JobPlan>>, inside: bool) -> AnyView {
    let Some(Ok(plan)) = plan else {
        // The same rows, so that nothing moves when the answer comes.
        let blank = || "–".into_any();
        return view! {
            <dl class="summary__rows" aria-live="polite">
                {row("Price", "summary__row summary__row--lead", blank())}
                {row("At most", "summary__row", blank())}
                {row("Available", "summary__row", blank())}
                {row("Start", "summary__row", blank())}
            </dl>
        }
        .into_any();
    };
    let text = |micros: i64| money_text(micros, &plan.currency);
    // What runs in a reservation is paid with it: the plan says what it would cost outside of any.
    let (hourly, worst) = if inside { (0, 0) } else { (plan.per_hour_micros, plan.worst_case_micros) };
    let price = words::price_text(hourly, &plan.currency);
    let price = view! { {price}<span class="unit">"/h"</span> }.into_any();
    let at_most = text(worst);
    let available = text(plan.available_micros);
    let short = !inside && !plan.affordable;
    let available_class = if short { "summary__row summary__row--short" } else { "summary__row" };
    let start = if plan.blockers.is_empty() { "at once" } else { "after a wait" };
    view! {
        <dl class="summary__rows" aria-live="polite">
            {row("Price", "summary__row summary__row--lead", price)}
            {row("At most", "summary__row", at_most.into_any())}
            {row("Available", available_class, available.into_any())}
            {row("Start", "summary__row", start.into_any())}
        </dl>
    }
    .into_any()
}

fn remarks(plan: Option<Answer<JobPlan>>, inside: bool) -> AnyView {
    match plan {
        None => view! { <p class="summary__note">"Asking for the price."</p> }.into_any(),
        Some(Err(problem)) => {
            let faults: Vec<AnyView> = problem
                .errors
                .iter()
                .map(|error| {
                    let detail = error.detail.clone();
                    view! { <p class="field__error">{detail}</p> }.into_any()
                })
                .collect();
            let lead = if faults.is_empty() { problem.detail.clone() } else { String::new() };
            view! { <p class="summary__note">{lead}</p> {faults} }.into_any()
        }
        Some(Ok(plan)) => plan_remarks(&plan, inside),
    }
}

fn plan_remarks(plan: &JobPlan, inside: bool) -> AnyView {
    let text = |micros: i64| money_text(micros, &plan.currency);
    let money = if inside {
        "Paid with the reservation: nothing more is set aside or charged.".to_owned()
    } else if plan.affordable {
        format!(
            "{} is set aside until it ends. You pay for the milliseconds used; the rest comes back. Price version {}.",
            text(plan.worst_case_micros),
            plan.price_version
        )
    } else {
        format!(
            "You are short of {}. Choose a shorter limit, fewer devices or a smaller offering, or ask your operator for credit.",
            text(plan.worst_case_micros.saturating_sub(plan.available_micros))
        )
    };
    let money_class = if inside || plan.affordable { "summary__note" } else { "field__error" };
    let places: Vec<String> = plan.placement.iter().map(device_words).collect();
    let place = (!places.is_empty()).then(|| {
        let text = format!("Starts on {}.", places.join("; "));
        view! { <p class="summary__note">{text}</p> }
    });
    let waits: Vec<AnyView> = plan.blockers.iter().map(wait).collect();
    view! { <p class=money_class>{money}</p> {place} {waits} }.into_any()
}

fn wait(blocker: &Blocker) -> AnyView {
    let detail = blocker.detail.clone();
    let change = words::sentence(&blocker.change);
    view! { <p class="summary__note">"It would wait. "{detail}" "<strong>{change}</strong></p> }.into_any()
}
