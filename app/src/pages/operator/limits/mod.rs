//! Limits as the operator sets them: those of every organization, and what organizations ask for.
//!
//! Must not touch what runs: a limit only holds for what is placed or submitted after it.

pub mod decide;
pub mod org;

use std::future::Future;

use berth_types::problems::Problem;
use berth_types::quotas::{Limits, QuotaRequest, QuotaRequestState};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::{Deserialize, Serialize};

use self::decide::Waiting;
use super::super::limits::form::{AllLimits, Frame, LimitForm};
use super::super::limits::{replace, requests, slugs};
use super::super::parts::{Call, CallProblem, Loading, Submit, every, ready};
use super::is_operator;
use crate::api;
use crate::api::Answer;
use crate::session::{Page, use_session};
use crate::ui::*;

/// Where an error of a form of limits can stand beside its field.
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

/// What the page starts with.
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
        let (defaults, requests) = (defaults.await?, requests.await?.items);
        Ok(Loaded { defaults, requests, offerings: offerings.await? })
    }
}

/// The page with the limits of everybody.
#[component]
pub fn LimitsPage() -> impl IntoView {
    if is_operator() { view! { <Everybody/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn Everybody() -> impl IntoView {
    let data: Resource<Answer<Loaded>> = Resource::new(|| (), |()| load());
    view! {
        <Page title="Limits".to_owned()>
            <p class="page__lead">
                "A limit never stops what runs: jobs beyond it wait, or are refused when they are submitted."
            </p>
            <Suspense fallback=|| view! { <Loading/> }>
                {move || Suspend::new(async move {
                    match data.await {
                        Err(problem) => view! { <ProblemNotice problem=problem/> }.into_any(),
                        Ok(loaded) => view! { <LimitsView loaded=loaded/> }.into_any(),
                    }
                })}
            </Suspense>
        </Page>
    }
}

#[component]
fn LimitsView(loaded: Loaded) -> impl IntoView {
    let Loaded { defaults, requests, offerings } = loaded;
    let currency = use_session().me.currency;
    let all = RwSignal::new(requests);
    every(10_000, move || {
        let fresh = api::quotas::all_requests();
        spawn_local(async move {
            // What cannot be fetched now leaves what is shown; the next round tries again.
            if let Ok(fresh) = fresh.await {
                replace(all, fresh.items);
            }
        });
    });
    let decided = Memo::new(move |_| {
        let over = |request: &&QuotaRequest| request.state != QuotaRequestState::Pending;
        all.with(|all| all.iter().filter(over).cloned().collect::<Vec<QuotaRequest>>())
    });
    let of_decided = currency.clone();
    let answered = move || {
        decided.with(|decided| {
            (!decided.is_empty()).then(|| {
                view! {
                    <section class="section">
                        <div class="section__head"><h2>"Answered"</h2></div>
                        {requests::table(decided, &of_decided, true)}
                    </section>
                }
            })
        })
    };
    view! {
        <Waiting all=all currency=currency.clone()/>
        <DefaultsForm defaults=defaults offerings=offerings currency=currency/>
        {answered}
    }
}

/// The limits of every organization without its own.
#[component]
fn DefaultsForm(defaults: Limits, offerings: Vec<String>, currency: String) -> impl IntoView {
    let ready = ready();
    let call = Call::idle();
    let said = RwSignal::new("");
    let form = LimitForm::of(&defaults);
    let frame = Frame { form, call, base: "", prefix: "default".to_owned(), currency, ready };
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        said.set("");
        match form.limits("") {
            Err(errors) => call.problem.set(Some(Problem::invalid(errors))),
            Ok(limits) => call.run(api::quotas::set_defaults(&limits), move |fresh: Limits| {
                form.show(&fresh);
                said.set("Saved. They hold from now on.");
            }),
        }
    };
    view! {
        <form class="form card" method="post" on:submit=submit>
            <h2 class="card__title">"Every organization"</h2>
            <p class="prose">
                "These hold for every organization without limits of its own. An empty field does not limit. Those of one organization are set from "
                <a href="/operator/orgs">"Organizations"</a> "."
            </p>
            <CallProblem call=call beside_fields=FIELDS/>
            <AllLimits frame=frame offerings=offerings/>
            <Save call=call said=said text="Save limits"/>
        </form>
    }
}

/// The button of a form of limits, and what became of the last press.
#[component]
fn Save(
    call: Call,
    said: RwSignal<&'static str>,
    text: &'static str,
    /// What else can be done with the form.
    #[prop(optional)]
    other: Option<AnyView>,
) -> impl IntoView {
    view! {
        <div class="form__actions">
            <Submit call=call>{text}</Submit>
            {other}
            <span class="quiet" role="status">{move || said.get()}</span>
        </div>
    }
}
