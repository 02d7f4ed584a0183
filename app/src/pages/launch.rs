//! Launching a job: a form, and beside it what the job would cost.
//!
//! Must not refuse what the portal would accept, nor submit twice: one key stands for one wish.

pub mod advanced;
pub mod draft;
pub mod form;
pub mod idle;
pub mod inside;
pub mod keeping;
pub mod labels;
pub mod more;
pub mod offers;
pub mod part;
pub mod ports;
pub mod preview;
pub mod secrets;
pub mod units;
pub mod volumes;
pub mod what;

use std::future::Future;

use berth_types::ids::{OrgId, ReservationId};
use berth_types::jobs::{Job, Priority};
use berth_types::offerings::Offering;
use berth_types::problems::Problem;
use berth_types::reservations::{Reservation, ReservationState};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;
use leptos::task::spawn_local;
use leptos_router::hooks::use_query_map;
use serde::{Deserialize, Serialize};

use self::advanced::AdvancedPart;
use self::form::{EnvRows, FileRows, Form};
use self::inside::RunsIn;
use self::keeping::KeepingPart;
use self::labels::LabelLines;
use self::more::PlacementAndRetries;
use self::offers::{Offers, first_choice};
use self::part::{Part, go_to_first_wrong};
use self::ports::PortFields;
use self::preview::{CurlLine, Preview, Request};
use self::secrets::SecretLines;
use self::units::LimitUnit;
use self::volumes::VolumeLines;
use self::what::WhatRuns;
use super::of_org::of_org;
use super::parts::{Call, CallProblem, FieldError, FormKey, every, leave, ready};
use crate::api;
use crate::api::Answer;
use crate::session::Page;
use crate::ui::*;

const FIELDS: &[&str] = &[
    "/name",
    "/offering",
    "/count",
    "/nodes",
    "/command",
    "/script",
    "/max_duration_s",
    "/files",
    "/env",
    "/depends_on",
    "/gpu_milli",
    "/topology",
    "/retry/max",
    "/checkpoint/dir",
    "/checkpoint/every_s",
    "/checkpoint/keep",
    "/checkpoint/grace_s",
    "/artifacts",
    "/image",
    "/registry",
    "/reservation",
    "/labels",
    "/ports",
    "/secrets",
    "/volumes",
    "/stop_when_idle",
    "/network",
    "/lease_s",
    "/cpus",
    "/memory_mib",
];

/// What the form starts with.
#[derive(Clone, Serialize, Deserialize)]
struct Choices {
    org: OrgId,
    offerings: Vec<Offering>,
    /// Those that a job can run in, now or later.
    reservations: Vec<Reservation>,
}

fn load(org: OrgId) -> impl Future<Output = Answer<Choices>> + Send + 'static {
    let offerings = api::money::offerings();
    let of = |state: ReservationState| api::reservations::list(org, Some(state), None, 100);
    let (active, scheduled) = (of(ReservationState::Active), of(ReservationState::Scheduled));
    async move {
        let offerings = offerings.await?.items;
        // Without them a job still runs outside of any.
        let reservations = [active.await, scheduled.await].into_iter().flatten().flat_map(|page| page.items);
        Ok(Choices { org, offerings, reservations: reservations.collect() })
    }
}

/// The page with the launch form.
#[component]
pub fn LaunchPage() -> impl IntoView {
    let draw = |choices: Choices| {
        if choices.offerings.is_empty() {
            view! { <NothingToOrder/> }.into_any()
        } else {
            view! { <LaunchForm choices=choices/> }.into_any()
        }
    };
    view! { <Page title="Launch job".to_owned()>{of_org(load, draw)}</Page> }
}

#[component]
fn NothingToOrder() -> impl IntoView {
    view! {
        <div class="empty">
            <p class="empty__text">
                "There is nothing to order yet: no node with a GPU has joined this portal. Once one has, its boards and their slices are listed here."
            </p>
            <a class="btn" href="/cluster">"Open the cluster"</a>
        </div>
    }
}

/// Errors at a pointer and below it, in one text: rows of files and variables share a place.
fn below(call: Call, pointer: &'static str) -> Signal<Option<String>> {
    Signal::derive(move || {
        let problem = call.problem.get()?;
        let prefix = format!("{pointer}/");
        let details: Vec<String> = problem
            .errors
            .iter()
            .filter_map(|error| {
                if error.pointer == pointer {
                    return Some(error.detail.clone());
                }
                let key = error.pointer.strip_prefix(prefix.as_str())?;
                Some(format!("{}: {}", key.replace("~1", "/").replace("~0", "~"), error.detail))
            })
            .collect();
        (!details.is_empty()).then(|| details.join(" "))
    })
}

#[component]
fn LaunchForm(choices: Choices) -> impl IntoView {
    let Choices { org, offerings, reservations } = choices;
    let asked = use_query_map()
        .with_untracked(|query| query.get("reservation"))
        .and_then(|id| id.parse::<ReservationId>().ok());
    let form = Form::with_offering(first_choice(&offerings));
    let offerings = RwSignal::new(offerings);
    let ready = ready();
    let next = leave();
    let call = Call::idle();
    let key = FormKey::beside(call);
    let whole_board = Memo::new(move |_| {
        let slug = form.offering.get();
        offerings.with(|all| all.iter().any(|o| o.slug == slug && o.mig_profile.is_none()))
    });
    let request: Memo<Request> = Memo::new(move |_| {
        let mut draft = form.draft();
        // A slice is not shared further: what was typed for a board stays in its field, but is not meant.
        if !whole_board.get() {
            draft.share.clear();
        }
        draft.request()
    });

    // Free places move while the form is open.
    every(10_000, move || {
        spawn_local(async move {
            if let Ok(fresh) = api::money::offerings().await {
                offerings.set(fresh.items);
            }
        });
    });
    Effect::new(move || {
        if call.problem.with(Option::is_some) {
            go_to_first_wrong();
        }
    });
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let job = match request.get_untracked() {
            Ok(job) => job,
            Err(errors) => {
                call.problem.set(Some(Problem::invalid(errors)));
                return;
            }
        };
        // One job for one form: what is changed after an answer was lost is no second one.
        let once = key.of("job".to_owned());
        call.run(api::jobs::submit(org, &job, once), move |job: Job| {
            key.done();
            next.set(Some(format!("/jobs/{}", job.id)));
        });
    };
    view! {
        <div class="split">
            <form class="form" id="launch" method="post" on:submit=submit>
                <CallProblem call=call beside_fields=FIELDS/>
                <fieldset class="form__section">
                    <legend>"What runs"</legend>
                    <Field
                        label="Name"
                        name="name"
                        kind="text"
                        value=form.name
                        error=call.field("/name")
                        autocomplete=Some("off")
                    />
                    <WhatRuns form=form call=call/>
                    <FileRows pairs=form.files error=below(call, "/files")/>
                    <EnvRows pairs=form.env error=below(call, "/env")/>
                    <Part title="Secrets, volumes, ports and labels" call=call pointers=&["/secrets", "/volumes", "/ports", "/labels"]>
                        <SecretLines value=form.secrets error=below(call, "/secrets")/>
                        <VolumeLines value=form.volumes error=below(call, "/volumes")/>
                        <PortFields form=form call=call/>
                        <LabelLines value=form.labels error=below(call, "/labels")/>
                    </Part>
                </fieldset>
                <fieldset class="form__section">
                    <legend>"Where it runs"</legend>
                    <RunsIn reservations=reservations asked=asked form=form error=call.field("/reservation")/>
                    <Offers offerings=offerings chosen=form.offering error=call.field("/offering")/>
                    <div class="field-row">
                        <Field
                            label="Devices"
                            name="count"
                            kind="number"
                            value=form.count
                            error=call.field("/count")
                        />
                        <Field
                            label="Nodes"
                            name="nodes"
                            kind="number"
                            value=form.nodes
                            hint=Some("With as many devices on each.".to_owned())
                            error=call.field("/nodes")
                        />
                        <Limit form=form call=call/>
                    </div>
                </fieldset>
                <fieldset class="form__section">
                    <legend>"When it runs"</legend>
                    <PriorityChoice form=form/>
                    <Field
                        label="Start after"
                        name="depends_on"
                        kind="text"
                        value=form.after
                        hint=Some("Ids of jobs that must succeed first, separated by blanks. Empty: no other job.".to_owned())
                        error=call.field("/depends_on")
                        autocomplete=Some("off")
                    />
                </fieldset>
                <PlacementAndRetries form=form call=call whole_board=whole_board/>
                <KeepingPart fields=form.keeping call=call/>
                <AdvancedPart fields=form.advanced call=call/>
                <CurlLine org=org request=request/>
            </form>
            <Preview org=org request=request call=call ready=ready/>
        </div>
    }
}

/// The time limit and its unit.
#[component]
fn Limit(form: Form, call: Call) -> impl IntoView {
    let error = call.field("/max_duration_s");
    let option = move |unit: LimitUnit| {
        view! { <option value=unit.name() selected={unit == LimitUnit::Hours}>{unit.name()}</option> }
    };
    view! {
        <div class="field">
            <label class="field__label" for="limit">"Time limit"</label>
            <input
                id="limit"
                name="limit"
                inputmode="decimal"
                value="1"
                aria-describedby="limit-hint limit-error"
                aria-invalid=move || error.get().map(|_| "true")
                prop:value=move || form.limit.get()
                on:input=move |ev| form.limit.set(event_target_value(&ev))
            />
            <p class="field__hint" id="limit-hint">"It is stopped then. You can extend it while it runs."</p>
            <FieldError id="limit-error" error=error/>
        </div>
        <div class="field">
            <label class="field__label" for="unit">"Unit"</label>
            <select
                id="unit"
                name="unit"
                on:change=move |ev| form.unit.set(LimitUnit::parse(&event_target_value(&ev)))
            >
                {option(LimitUnit::Minutes)}
                {option(LimitUnit::Hours)}
            </select>
        </div>
    }
}

/// The place in the queue.
#[component]
fn PriorityChoice(form: Form) -> impl IntoView {
    let choice = move |value: Priority, text: &'static str| {
        view! {
            <label>
                <input
                    type="radio"
                    name="priority"
                    checked={value == Priority::Normal}
                    prop:checked=move || { form.priority.get() == value }
                    on:change=move |_| form.priority.set(value)
                />
                {text}
            </label>
        }
    };
    view! {
        <div class="field">
            <span class="field__label" id="priority">"Priority"</span>
            <div class="segmented" role="radiogroup" aria-labelledby="priority">
                {choice(Priority::Low, "low")} {choice(Priority::Normal, "normal")} {choice(Priority::High, "high")}
            </div>
            <p class="field__hint">"Jobs of a higher priority are placed first. The price is the same."</p>
            <label class="check">
                <input
                    type="checkbox"
                    name="preemptible"
                    prop:checked=move || form.preemptible.get()
                    on:change=move |ev| form.preemptible.set(event_target_checked(&ev))
                />
                "Preemptible: it may be stopped for a more important job, and is tried again"
            </label>
        </div>
    }
}
