//! Page to launch a job: the form with a preview of price and start.
//!
//! Checks only the format of input. One idempotency key prevents a second submission.

pub mod advanced;
pub mod again;
pub mod boards;
pub mod checkpoint;
pub mod dependencies;
pub mod draft;
pub mod env;
pub mod files;
pub mod form;
pub mod idle;
pub mod kept_draft;
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
pub mod stored_draft;
pub mod templates;
pub mod units;
pub mod volumes;

use std::future::Future;

use berth_types::ids::{JobId, OrgId, ReservationId};
use berth_types::jobs::{Job, NewJob, Priority};
use berth_types::offerings::Offering;
use berth_types::problems::Problem;
use berth_types::reservations::{Reservation, ReservationState};
use berth_types::templates::JobTemplate;
use futures::join;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;
use leptos::task::spawn_local;
use leptos_router::hooks::use_query_map;
use serde::{Deserialize, Serialize};

use self::advanced::AdvancedSection;
use self::again::change_text;
use self::boards::{BoardCards, chosen_model};
use self::checkpoint::CheckpointSection;
use self::dependencies::DependencyRows;
use self::draft::Draft;
use self::env::EnvRows;
use self::files::FileRows;
use self::form::Form;
use self::kept_draft::{DraftBar, KeptDraft};
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
use self::templates::TemplateRow;
use self::units::LimitUnit;
use self::volumes::VolumeRows;
use super::org_data::data_view;
use super::parts::{Call, CallProblem, FieldError, FormKey, every_visible, ready, redirect, when_some};
use super::text::explain_repeat;
use crate::address::{org_link, use_org_links};
use crate::api;
use crate::api::Answer;
use crate::session::{Page, RoleNotice, use_session};
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
    "/rdma",
    "/lease_s",
    "/cpus",
    "/memory_mib",
];

const REPEATED: &str = "Open the list of jobs. To launch a further job, load this page again.";

/// The first data of the form.
#[derive(Clone, Serialize, Deserialize)]
struct Choices {
    org: OrgId,
    offerings: Vec<Offering>,
    /// Active and scheduled reservations.
    reservations: Vec<Reservation>,
    /// The templates of the portal.
    templates: Vec<JobTemplate>,
    /// True if the organization has the grant of RDMA.
    rdma_granted: bool,
    /// The submission of the job in the address.
    again: Option<Answer<NewJob>>,
}

fn load(org: OrgId, from: Option<JobId>) -> impl Future<Output = Answer<Choices>> + Send + 'static {
    let again = from.map(|job| api::jobs::submission(org, job));
    let offerings = api::money::org_offerings(org);
    let templates = api::jobs::templates();
    let rdma = api::nodes::rdma_grant(org);
    let in_state = |state: ReservationState| api::reservations::list(org, Some(state), None, 100);
    let (active, scheduled) = (in_state(ReservationState::Active), in_state(ReservationState::Scheduled));
    async move {
        let again = async move {
            match again {
                None => None,
                Some(submission) => Some(submission.await),
            }
        };
        let (offerings, templates, rdma, active, scheduled, again) =
            join!(offerings, templates, rdma, active, scheduled, again);
        let offerings = offerings?.items;
        // The form also works without templates, reservations and the choice of RDMA.
        let rdma_granted = rdma.is_ok_and(|grant| grant.granted);
        let templates = templates.map(|all| all.templates).unwrap_or_default();
        let reservations = [active, scheduled].into_iter().flatten().flat_map(|page| page.items);
        let reservations = reservations.collect();
        let again = match again {
            // The form also works without an unknown job.
            Some(Err(problem)) if !matches!(problem.status, 403 | 404) => return Err(problem),
            again => again,
        };
        Ok(Choices { org, offerings, reservations, templates, rdma_granted, again })
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
    let org = use_session().org;
    let query = use_query_map();
    let from =
        Memo::new(move |_| query.with(|query| query.get("from")).and_then(|id| id.parse::<JobId>().ok()));
    let data: Resource<Answer<Option<Choices>>> = Resource::new(
        move || (org.get(), from.get()),
        |(org, from): (Option<OrgId>, Option<JobId>)| when_some(org.map(|org| load(org, from))),
    );
    view! {
        <Page title="Launch job".to_owned()>
            // The form stays, because it also shows prices and free devices.
            <RoleNotice action="launch jobs"/>
            {data_view(data, draw)}
        </Page>
    }
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

/// Returns the first input of the form and the sentences about it. `blank` is the form without input.
fn first_input(again: Option<Answer<NewJob>>, blank: &Draft) -> (Draft, String) {
    match again {
        None => (blank.clone(), String::new()),
        Some(Err(problem)) => {
            let text =
                format!("The submission of this job cannot be read; the form is empty. {}", problem.detail);
            (blank.clone(), text)
        }
        Some(Ok(job)) => {
            let (draft, absent) = Draft::from_submission(&job);
            let mut text = format!("Filled from the submission of {}.", job.name);
            if !absent.is_empty() {
                text.push_str(&format!(" Not in the form: {}.", absent.join(", ")));
            }
            (draft, text)
        }
    }
}

/// The form with its input over reloads.
#[component]
fn LaunchForm(choices: Choices) -> impl IntoView {
    let Choices { org, offerings, reservations, templates, rdma_granted, again } = choices;
    let ([from, asked], change) = use_query_map().with_untracked(|query| {
        let named = ["from", "reservation"].map(|name| query.get(name).unwrap_or_default());
        (named, api::jobs::parse_change(|name| query.get(name)))
    });
    let blank = Draft::new(first_choice(&offerings));
    let changed = api::jobs::change_query(&change);
    let again = again.map(|answer| answer.map(|job| change.apply(job)));
    let (mut first, mut notice) = first_input(again, &blank);
    if !changed.is_empty() && first != blank {
        notice.push_str(&format!(" Changed: {}.", change_text(&change)));
    }
    let requested = asked.parse::<ReservationId>().ok().or(first.reservation);
    let reservation = reservations.iter().find(|one| Some(one.id) == requested);
    first.reservation = reservation.map(|one| one.id);
    if let Some(one) = reservation {
        first.offering.clone_from(&one.offering);
    }
    let missing = requested.filter(|_| first.reservation.is_none());
    let offerings = RwSignal::new(offerings);
    let is_priced = move |slug: &String| {
        offerings.with_untracked(|all| all.iter().any(|o| o.slug == *slug && o.price.version > 0))
    };
    // The browser knows the last offering, unlike the portal.
    let last = move || last_offering(org).filter(is_priced);
    let kept = KeptDraft::new((org, format!("{from} {asked} {changed}")), (first, blank), notice, last);
    // The free capacity changes while the form is open.
    every_visible(10_000, move || {
        spawn_local(async move {
            if let Ok(fresh) = api::money::org_offerings(org).await {
                offerings.set(fresh.items);
            }
        });
    });
    view! {
        <TemplateRow kept=kept templates=templates offerings=offerings/>
        <DraftBar kept=kept/>
        // Each start has its own fields: kept ones would keep the text of the user.
        <For each=move || [kept.number.get()] key=|number| *number let:_number>
            {
                let start = kept.start.get_untracked();
                let requested = start.reservation.or(missing);
                view! {
                    <FormBody
                        org=org
                        start=start
                        kept=kept
                        offerings=offerings
                        reservations=reservations.clone()
                        requested=requested
                        rdma_granted=rdma_granted
                    />
                }
            }
        </For>
    }
}

/// The fields and the preview. Another start of the kept draft draws them again.
#[component]
fn FormBody(
    org: OrgId,
    /// The first input.
    start: Draft,
    kept: KeptDraft,
    offerings: RwSignal<Vec<Offering>>,
    reservations: Vec<Reservation>,
    /// The reservation of the first input, or a requested one that is not in the list.
    requested: Option<ReservationId>,
    /// True if the organization has the grant of RDMA.
    rdma_granted: bool,
) -> impl IntoView {
    let form = Form::new(start);
    let lists = Lists::new(org);
    kept.follow(form);
    let ready = ready();
    let next = redirect();
    let call = Call::idle();
    let key = FormKey::new(call);
    let model = chosen_model(offerings, form.offering);
    let whole_board = Memo::new(move |_| {
        let slug = form.offering.get();
        offerings.with(|all| all.iter().any(|o| o.slug == slug && o.mig_profile.is_none()))
    });
    let slice = Memo::new(move |_| {
        let slug = form.offering.get();
        offerings.with(|all| all.iter().any(|o| o.slug == slug && o.mig_profile.is_some()))
    });
    // A process of CUDA uses one slice only.
    Effect::new(move || {
        if slice.get() && form.count.with_untracked(|count| count != "1") {
            form.count.set("1".to_owned());
        }
    });
    let request: Memo<Request> = Memo::new(move |_| {
        let mut draft = form.draft();
        // Slices have no shares: the input stays in its field, but does not count.
        if !whole_board.get() {
            draft.share.clear();
        }
        draft.request()
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
        let (jobs, kept_key) = (links.path("/jobs"), kept.key());
        let answer = api::jobs::submit(org, &job, idempotency_key);
        call.run(explain_repeat(answer, REPEATED), move |job: Job| {
            // The form stays until the next page is loaded: a second click must not launch a second job.
            call.pending.set(true);
            key.reset();
            store_offering(org, &job.offering);
            kept.forget(&kept_key);
            next.set(Some(format!("{jobs}/{}", job.id)));
        });
    };
    view! {
        <div class="split">
            <form class="form" id="launch" method="post" on:submit=submit>
                <CallProblem call=call beside_fields=FIELDS/>
                <fieldset class="form__section">
                    <legend>"Resources"</legend>
                    <ReservationSelect reservations=reservations requested=requested form=form error=call.field("/reservation")/>
                    <BoardCards offerings=offerings chosen=form.offering model=model/>
                    <Offers offerings=offerings chosen=form.offering model=model error=call.field("/offering")/>
                    <div class="field-row">
                        <Field
                            label="Devices"
                            name="count"
                            kind="number"
                            value=form.count
                            hint=Some("On each node, a job uses one slice, or one or more whole boards.".to_owned())
                            disabled=slice
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
                    <legend>"Program"</legend>
                    <Field
                        label="Name"
                        name="name"
                        kind="text"
                        value=form.name
                        error=call.field("/name")
                    />
                    <ProgramFields form=form call=call/>
                    <FileRows rows=form.files call=call/>
                    <EnvRows rows=form.env call=call/>
                    <FormSection
                        title="Secrets, volumes, ports and labels"
                        call=call
                        pointers=&["/secrets", "/volumes", "/ports", "/labels"]
                        filled=untrack(move || form.has_extras())
                    >
                        <SecretRows rows=form.secrets lists=lists call=call/>
                        <VolumeRows rows=form.volumes lists=lists call=call/>
                        <PortRows form=form call=call/>
                        <LabelRows rows=form.labels lists=lists call=call/>
                    </FormSection>
                </fieldset>
                <fieldset class="form__section">
                    <legend>"Scheduling"</legend>
                    <PriorityChoice form=form/>
                    <DependencyRows rows=form.after lists=lists call=call/>
                </fieldset>
                <PlacementAndRetries form=form call=call whole_board=whole_board/>
                <CheckpointSection fields=form.checkpoint call=call/>
                <AdvancedSection fields=form.advanced call=call rdma_granted=rdma_granted/>
                <CurlLine org=org request=request/>
            </form>
            <Preview org=org request=request form=form call=call ready=ready/>
        </div>
    }
}

/// The time limit and its unit.
#[component]
fn Limit(form: Form, call: Call) -> impl IntoView {
    let error = call.field("/max_duration_s");
    let option = move |unit: LimitUnit| {
        view! { <option value=unit.name() selected={unit == form.unit.get_untracked()}>{unit.name()}</option> }
    };
    view! {
        <div class="field">
            <label class="field__label" for="limit">"Time limit"</label>
            <input
                id="limit"
                name="limit"
                inputmode="decimal"
                value=form.limit.get_untracked()
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
                prop:value=move || form.unit.get().name()
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
                    checked={value == form.priority.get_untracked()}
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
