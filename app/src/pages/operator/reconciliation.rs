//! Page of the reconciliation: the result of the last check of the ledger and a button for another check.

use std::future::Future;

use berth_types::ledger::Reconciliation;
use berth_types::operators::OperatorRight;
use berth_types::time::duration_text;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::super::call_button::CallButton;
use super::super::limits::replace;
use super::super::org_data::answer_view;
use super::super::parts::{Call, CallProblem, every_visible};
use super::super::text::counted;
use super::{is_operator, may};
use crate::api;
use crate::api::Answer;
use crate::session::Page;
use crate::ui::*;

fn load() -> impl Future<Output = Answer<Reconciliation>> + Send + 'static {
    api::money::reconciliation()
}

/// The page of the reconciliation.
#[component]
pub fn ReconciliationPage() -> impl IntoView {
    if is_operator() { view! { <LastCheck/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn LastCheck() -> impl IntoView {
    let data: Resource<Answer<Reconciliation>> = Resource::new(|| (), |()| load());
    view! {
        <Page title="Reconciliation".to_owned()>
            <p class="page__lead">
                "Every hour, the portal checks each balance against its transfers, and each job, reservation and day of usage against its charges and reserved money."
            </p>
            {answer_view(data, |last| view! { <CheckResult last=last/> }.into_any())}
        </Page>
    }
}

#[component]
fn CheckResult(last: Reconciliation) -> impl IntoView {
    let call = Call::idle();
    let status = RwSignal::new("");
    let last = RwSignal::new(last);
    every_visible(60_000, move || {
        let fresh = load();
        spawn_local(async move {
            // The next round repeats a failed request.
            if let Ok(fresh) = fresh.await {
                replace(last, fresh);
            }
        });
    });
    let check = move |()| {
        status.set("");
        call.run(api::money::run_reconciliation(), move |fresh: Reconciliation| {
            last.set(fresh);
            status.set("Check finished.");
        });
    };
    let read_only = !may(OperatorRight::ManageMoney);
    view! {
        {move || last.with(result_banner)}
        {move || last.with(figures)}
        <CallProblem call=call beside_fields=&[]/>
        <div class="form__actions" hidden=read_only>
            <CallButton call=call class="btn" send=Callback::new(check)>"Run check"</CallButton>
            <span class="quiet" role="status">{move || status.get()}</span>
        </div>
    }
}

/// Returns the result with all mismatches.
fn result_banner(last: &Reconciliation) -> AnyView {
    if last.mismatches.is_empty() {
        return view! {
            <div class="banner banner--good">
                <div class="banner__text">
                    <strong class="banner__title">"The ledger is consistent"</strong>
                    "Each balance equals the sum of its transfers. The charges match jobs, reservations and usage."
                </div>
            </div>
        }
        .into_any();
    }
    let title = match last.mismatches.len() {
        1 => "1 mismatch in the ledger".to_owned(),
        count => format!("{} in the ledger", counted(count, "mismatch", "mismatches")),
    };
    let lines: Vec<AnyView> = last
        .mismatches
        .iter()
        .map(|mismatch| {
            let mismatch = mismatch.clone();
            view! { <li>{mismatch}</li> }.into_any()
        })
        .collect();
    view! {
        <div class="banner banner--error" role="alert">
            <div class="banner__text">
                <strong class="banner__title">{title}</strong>
                "The ledger was not changed. Find the cause first, then correct a balance by a credit or a debit. The portal's log has the same lines."
                <ul>{lines}</ul>
            </div>
        </div>
    }
    .into_any()
}

/// Returns time and extent of the last check.
fn figures(last: &Reconciliation) -> AnyView {
    let transfers = counted(usize::try_from(last.transfers).unwrap_or(0), "transfer", "transfers");
    let found = match last.mismatches.len() {
        0 => "no mismatches".to_owned(),
        count => counted(count, "mismatch", "mismatches"),
    };
    let rest = format!(": {transfers}, {found}, duration {}.", duration_text(last.took_ms));
    view! { <p>"Last check " <When at=last.at/> {rest}</p> }.into_any()
}
