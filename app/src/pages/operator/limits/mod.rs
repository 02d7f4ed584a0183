//! Page of the default limits and of the organizations' requests for other limits. A limit applies to later
//! placements and submissions.

pub mod decide;
pub mod org;
mod rdma;

use std::future::Future;

use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use berth_types::quotas::{Limits, QuotaRequest, QuotaRequestState};
use futures::try_join;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::{Deserialize, Serialize};

use self::decide::PendingRequests;
use super::super::limits::form::{AllLimits, Frame, LimitForm};
use super::super::limits::{replace, requests, slugs};
use super::super::org_data::answer_view;
use super::super::parts::{Call, CallProblem, Submit, every_visible, ready};
use super::{guarded, is_operator};
use crate::api;
use crate::api::Answer;
use crate::session::{Page, use_session};
use crate::ui::*;

/// The pointers of the fields with their own errors.
const FIELDS: &[&str] = &[
    "/boards_milli",
    "/devices",
    "/running_jobs",
    "/queued_jobs",
    "/spend_per_hour_micros",
    "/board_hours_per_month",
    "/reserved_boards_milli",
    "/guaranteed_boards_milli",
    "/weight_milli",
];

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    defaults: Limits,
    requests: Vec<QuotaRequest>,
    offerings: Vec<String>,
}

fn load() -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let (defaults, requests) = (api::quotas::defaults(), api::quotas::all_requests());
    let offerings = slugs();
    async move {
        let (defaults, requests, offerings) = try_join!(defaults, requests, offerings)?;
        Ok(Loaded { defaults, requests: requests.items, offerings })
    }
}

/// The page of the default limits and the requests.
#[component]
pub fn LimitsPage() -> impl IntoView {
    if is_operator() { view! { <DefaultLimits/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn DefaultLimits() -> impl IntoView {
    let data: Resource<Answer<Loaded>> = Resource::new(|| (), |()| load());
    view! {
        <Page title="Limits".to_owned()>
            <p class="page__lead">
                "A limit never stops a running job: a job beyond a limit waits or is refused."
            </p>
            {answer_view(data, |loaded| view! { <LimitsView loaded=loaded/> }.into_any())}
        </Page>
    }
}

#[component]
fn LimitsView(loaded: Loaded) -> impl IntoView {
    let Loaded { defaults, requests, offerings } = loaded;
    let currency = use_session().me.currency;
    let all = RwSignal::new(requests);
    every_visible(10_000, move || {
        let fresh = api::quotas::all_requests();
        spawn_local(async move {
            // The next round repeats a failed request.
            if let Ok(fresh) = fresh.await {
                replace(all, fresh.items);
            }
        });
    });
    let decided = Memo::new(move |_| {
        let is_decided = |request: &&QuotaRequest| request.state != QuotaRequestState::Pending;
        all.with(|all| all.iter().filter(is_decided).cloned().collect::<Vec<QuotaRequest>>())
    });
    let table_currency = currency.clone();
    let decided_section = move || {
        decided.with(|decided| {
            (!decided.is_empty()).then(|| {
                view! {
                    <section class="section">
                        <div class="section__head"><h2>"Decided requests"</h2></div>
                        {requests::table(decided, &table_currency, true)}
                    </section>
                }
            })
        })
    };
    view! {
        <PendingRequests all=all currency=currency.clone()/>
        {guarded(
            OperatorRight::ManageOrgs,
            view! { <DefaultsForm defaults=defaults offerings=offerings currency=currency/> }.into_any(),
        )}
        {decided_section}
    }
}

/// The form of the default limits.
#[component]
fn DefaultsForm(defaults: Limits, offerings: Vec<String>, currency: String) -> impl IntoView {
    let ready = ready();
    let call = Call::idle();
    let status = RwSignal::new("");
    let form = LimitForm::new(&defaults);
    let frame = Frame { form, call, base: "", prefix: "default".to_owned(), currency, ready };
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        status.set("");
        match form.limits("") {
            Err(errors) => call.problem.set(Some(Problem::invalid(errors))),
            Ok(limits) => call.run(api::quotas::set_defaults(&limits), move |fresh: Limits| {
                form.set_limits(&fresh);
                status.set("Saved. The limits apply at once.");
            }),
        }
    };
    view! {
        <form class="form card" method="post" on:submit=submit>
            <h2 class="card__title">"Default limits"</h2>
            <p class="prose">
                "The default limits apply to every organization without own limits. An empty field means no limit. Set the limits of one organization under "
                <a href="/operator/orgs">"Organizations"</a> "."
            </p>
            <CallProblem call=call beside_fields=FIELDS/>
            <AllLimits frame=frame offerings=offerings/>
            <SaveLimits call=call status=status label="Save limits"/>
        </form>
    }
}

/// The buttons of a form of limits with the result of the last request.
#[component]
fn SaveLimits(
    call: Call,
    status: RwSignal<&'static str>,
    label: &'static str,
    /// A further button.
    #[prop(optional)]
    other: Option<AnyView>,
) -> impl IntoView {
    view! {
        <div class="form__actions">
            <Submit call=call>{label}</Submit>
            {other}
            <span class="quiet" role="status">{move || status.get()}</span>
        </div>
    }
}
