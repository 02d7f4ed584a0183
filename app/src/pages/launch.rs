//! Page to launch a job: the form with a preview of price and start.
//!
//! Checks only the format of input. One idempotency key prevents a second submission.

pub mod advanced;
pub mod checkpoint;
pub mod dependencies;
pub mod draft;
pub mod env;
pub mod files;
pub mod form;
pub mod idle;
pub mod inputs;
pub mod labels;
pub mod last_offering;
pub mod lists;
pub mod offers;
pub mod placement;
pub mod ports;
pub mod preview;
pub mod program;
pub mod reservation;
pub mod rows;
pub mod secrets;
pub mod section;
pub mod units;
pub mod volumes;

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

use self::advanced::AdvancedSection;
use self::checkpoint::CheckpointSection;
use self::dependencies::DependencyRows;
use self::draft::Draft;
use self::env::EnvRows;
use self::files::FileRows;
use self::form::Form;
use self::labels::LabelRows;
use self::last_offering::{last_offering, store_offering};
use self::lists::Lists;
use self::offers::{Offers, first_choice};
use self::placement::PlacementAndRetries;
use self::ports::PortRows;
use self::preview::{CurlLine, Preview, Request};
use self::program::ProgramFields;
use self::reservation::ReservationSelect;
use self::secrets::SecretRows;
use self::section::{FormSection, focus_first_invalid};
use self::units::LimitUnit;
use self::volumes::VolumeRows;
use super::org_data::org_view;
use super::parts::{Call, CallProblem, FieldError, FormKey, every, ready, redirect};
use crate::address::{org_link, use_org_links};
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

/// The first data of the form.
#[derive(Clone, Serialize, Deserialize)]
struct Choices {
    org: OrgId,
    offerings: Vec<Offering>,
    /// Active and scheduled reservations.
    reservations: Vec<Reservation>,
}

fn load(org: OrgId) -> impl Future<Output = Answer<Choices>> + Send + 'static {
    let offerings = api::money::offerings();
    let in_state = |state: ReservationState| api::reservations::list(org, Some(state), None, 100);
    let (active, scheduled) = (in_state(ReservationState::Active), in_state(ReservationState::Scheduled));
    async move {
        let offerings = offerings.await?.items;
        // The form also works without reservations.
        let reservations = [active.await, scheduled.await].into_iter().flatten().flat_map(|page| page.items);
        Ok(Choices { org, offerings, reservations: reservations.collect() })
    }
}

/// The page of the launch form.
#[component]
pub fn LaunchPage() -> impl IntoView {
    let draw = |choices: Choices| {
        if choices.offerings.is_empty() {
            view! { <NoOfferings/> }.into_any()
        } else {
            view! { <LaunchForm choices=choices/> }.into_any()
        }
    };
    view! { <Page title="Launch job".to_owned()>{org_view(load, draw)}</Page> }
}

#[component]
fn NoOfferings() -> impl IntoView {
    view! {
        <div class="empty">
            <p class="empty__text">
                "No offerings yet. Boards and slices appear here when a node with a GPU has joined this portal."
            </p>
            <a class="btn" href=org_link("/cluster")>"Open cluster"</a>
        </div>
    }
}

#[component]
fn LaunchForm(choices: Choices) -> impl IntoView {
    let Choices { org, offerings, reservations } = choices;
    let requested = use_query_map()
        .with_untracked(|query| query.get("reservation"))
        .and_then(|id| id.parse::<ReservationId>().ok());
    let first = first_choice(&offerings);
    let form = Form::new(Draft::new(first.clone()));
    let lists = Lists::new(org);
    let offerings = RwSignal::new(offerings);
    let ready = ready();
    let next = redirect();
    let call = Call::idle();
    let key = FormKey::new(call);
    let whole_board = Memo::new(move |_| {
        let slug = form.offering.get();
        offerings.with(|all| all.iter().any(|o| o.slug == slug && o.mig_profile.is_none()))
    });
    let request: Memo<Request> = Memo::new(move |_| {
        let mut draft = form.draft();
        // Slices have no shares: the input stays in its field, but does not count.
        if !whole_board.get() {
            draft.share.clear();
        }
        draft.request()
    });

    // The browser knows the last offering, unlike the portal. A choice of the user stays.
    Effect::new(move || {
        let priced = |slug: &String| {
            offerings.with_untracked(|all| all.iter().any(|o| o.slug == *slug && o.price.version > 0))
        };
        let untouched = form.reservation.get_untracked().is_none() && form.offering.get_untracked() == first;
        if untouched && let Some(slug) = last_offering(org).filter(priced) {
            form.offering.set(slug);
        }
    });
    // The free capacity changes while the form is open.
    every(10_000, move || {
        spawn_local(async move {
            if let Ok(fresh) = api::money::offerings().await {
                offerings.set(fresh.items);
            }
        });
    });
    Effect::new(move || {
        if call.problem.with(Option::is_some) {
            focus_first_invalid();
        }
    });
    let links = use_org_links();
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let job = match request.get_untracked() {
            Ok(job) => job,
            Err(errors) => {
                call.problem.set(Some(Problem::invalid(errors)));
                return;
            }
        };
        // One key for the whole form: a change after a lost answer must not create a second job.
        let idempotency_key = key.for_text("job".to_owned());
        let jobs = links.path("/jobs");
        call.run(api::jobs::submit(org, &job, idempotency_key), move |job: Job| {
            key.reset();
            store_offering(org, &job.offering);
            next.set(Some(format!("{jobs}/{}", job.id)));
        });
    };
    view! {
        <div class="split">
            <form class="form" id="launch" method="post" on:submit=submit>
                <CallProblem call=call beside_fields=FIELDS/>
                <fieldset class="form__section">
                    <legend>"Program"</legend>
                    <Field
                        label="Name"
                        name="name"
                        kind="text"
                        value=form.name
                        error=call.field("/name")
                        autocomplete=Some("off")
                    />
                    <ProgramFields form=form call=call/>
                    <FileRows rows=form.files call=call/>
                    <EnvRows rows=form.env call=call/>
                    <FormSection title="Secrets, volumes, ports and labels" call=call pointers=&["/secrets", "/volumes", "/ports", "/labels"]>
                        <SecretRows rows=form.secrets lists=lists call=call/>
                        <VolumeRows rows=form.volumes lists=lists call=call/>
                        <PortRows form=form call=call/>
                        <LabelRows rows=form.labels lists=lists call=call/>
                    </FormSection>
                </fieldset>
                <fieldset class="form__section">
                    <legend>"Resources"</legend>
                    <ReservationSelect reservations=reservations requested=requested form=form error=call.field("/reservation")/>
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
                            hint=Some("Devices are counted per node.".to_owned())
                            error=call.field("/nodes")
                        />
                        <Limit form=form call=call/>
                    </div>
                </fieldset>
                <fieldset class="form__section">
                    <legend>"Scheduling"</legend>
                    <PriorityChoice form=form/>
                    <DependencyRows rows=form.after lists=lists call=call/>
                </fieldset>
                <PlacementAndRetries form=form call=call whole_board=whole_board/>
                <CheckpointSection fields=form.checkpoint call=call/>
                <AdvancedSection fields=form.advanced call=call/>
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
            <p class="field__hint" id="limit-hint">"The job is stopped at its time limit. You can extend the limit while the job runs."</p>
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

/// Priority and preemption.
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
            <p class="field__hint">"Jobs of higher priority start first, at the same price."</p>
            <label class="check">
                <input
                    type="checkbox"
                    name="preemptible"
                    prop:checked=move || form.preemptible.get()
                    on:change=move |ev| form.preemptible.set(event_target_checked(&ev))
                />
                "Preemptible: a job of higher priority can stop this job, which is then retried"
            </label>
        </div>
    }
}
