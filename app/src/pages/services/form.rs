//! Signals and fields that the forms of services share.

use berth_service_types::revisions::ReplicaProtocol;
use berth_types::offerings::Offering;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::super::launch::boards::{BoardCards, chosen_model};
use super::super::launch::draft::Draft;
use super::super::launch::env::EnvRows;
use super::super::launch::files::FileRows;
use super::super::launch::form::Form;
use super::super::launch::labels::LabelRows;
use super::super::launch::lists::Lists;
use super::super::launch::offers::Offers;
use super::super::launch::program::ProgramFields;
use super::super::launch::rows::Rows;
use super::super::launch::secrets::SecretRows;
use super::super::launch::section::FormSection;
use super::super::launch::volumes::VolumeRows;
use super::super::parts::{Call, every_visible};
use super::draft::{RevisionDraft, ScalingDraft};
use super::schedule::{ScheduleFields, WindowSignals, form_zone};
use crate::api;
use crate::ui::zone::browser_zone;
use crate::ui::*;

/// The pointers of a revision's fields in the form.
pub const REVISION_FIELDS: &[&str] = &[
    "/port",
    "/replica_protocol",
    "/readiness_path",
    "/ready_within_s",
    "/concurrency",
    "/canary_percent",
    "/note",
    "/offering",
    "/command",
    "/script",
    "/image",
    "/registry",
    "/max_duration_s",
    "/count",
    "/cpus",
    "/memory_mib",
    "/files",
    "/env",
    "/secrets",
    "/volumes",
    "/labels",
];

/// The signals of the rule for the number of replicas.
#[derive(Clone, Copy)]
pub struct ScalingForm {
    min: RwSignal<String>,
    max: RwSignal<String>,
    target: RwSignal<String>,
    up: RwSignal<String>,
    down: RwSignal<String>,
    idle: RwSignal<String>,
    shadow: RwSignal<bool>,
    schedule: Rows<WindowSignals>,
    zone: RwSignal<String>,
}

impl ScalingForm {
    /// Returns a form with this input.
    pub fn new(draft: ScalingDraft) -> Self {
        Self {
            min: RwSignal::new(draft.min),
            max: RwSignal::new(draft.max),
            target: RwSignal::new(draft.target),
            up: RwSignal::new(draft.up),
            down: RwSignal::new(draft.down),
            idle: RwSignal::new(draft.idle),
            shadow: RwSignal::new(draft.shadow),
            schedule: Rows::new(draft.schedule),
            zone: RwSignal::new(draft.zone),
        }
    }

    /// Replaces the input.
    pub fn set(self, draft: ScalingDraft) {
        self.min.set(draft.min);
        self.max.set(draft.max);
        self.target.set(draft.target);
        self.up.set(draft.up);
        self.down.set(draft.down);
        self.idle.set(draft.idle);
        self.shadow.set(draft.shadow);
        self.schedule.replace(draft.schedule);
        self.zone.set(draft.zone);
        self.default_zone();
    }

    /// Sets the time zone of the browser in a form without windows. Before hydration it is unknown.
    pub fn default_zone(self) {
        let windows = untrack(move || self.schedule.count());
        self.zone.update(|zone| *zone = form_zone(windows, std::mem::take(zone), browser_zone()));
    }

    /// Returns the present input, with a subscription.
    pub fn draft(self) -> ScalingDraft {
        ScalingDraft {
            min: self.min.get(),
            max: self.max.get(),
            target: self.target.get(),
            up: self.up.get(),
            down: self.down.get(),
            idle: self.idle.get(),
            shadow: self.shadow.get(),
            schedule: self.schedule.inputs(),
            zone: self.zone.get(),
        }
    }
}

/// The fields of the rule for the number of replicas.
#[component]
pub fn ScalingFields(
    /// The signals.
    form: ScalingForm,
    /// The request of the form.
    call: Call,
) -> impl IntoView {
    view! {
        <div class="field-row">
            <NumberField
                label="Least replicas"
                id="min-replicas"
                unit="replicas"
                value=form.min
                hint="0 lets the service fall asleep without requests."
                error=call.field("/scaling/min_replicas")
            />
            <NumberField
                label="Most replicas"
                id="max-replicas"
                unit="replicas"
                value=form.max
                hint="1 to 100."
                error=call.field("/scaling/max_replicas")
            />
            <NumberField
                label="Requests for each replica"
                id="target-requests"
                unit="requests"
                value=form.target
                hint="In flight and waiting; more requests start another replica."
                error=call.field("/scaling/target_requests")
            />
        </div>
        <div class="field-row">
            <NumberField
                label="Delay upwards"
                id="up-delay"
                unit="s"
                value=form.up
                hint="Higher demand for this time starts a replica."
                error=call.field("/scaling/up_delay_s")
            />
            <NumberField
                label="Delay downwards"
                id="down-delay"
                unit="s"
                value=form.down
                hint="Lower demand for this time stops a replica."
                error=call.field("/scaling/down_delay_s")
            />
            <NumberField
                label="Time until sleep"
                id="idle-time"
                unit="s"
                value=form.idle
                hint="Time without a request before the service sleeps. Counts only if Least replicas is 0."
                error=call.field("/scaling/idle_s")
            />
        </div>
        <label class="check">
            <input
                type="checkbox"
                name="shadow"
                prop:checked=move || form.shadow.get()
                on:change=move |event| form.shadow.set(event_target_checked(&event))
            />
            <span>
                "Show decisions without effect"
                <span class="check__hint">"The number of replicas stays at Least replicas. If Least replicas is 0, it stays at 1. The schedule has no effect. The page shows the decisions."</span>
            </span>
        </label>
        <ScheduleFields rows=form.schedule zone=form.zone call=call/>
    }
}

/// The signals of a revision.
#[derive(Clone, Copy)]
pub struct RevisionForm {
    /// The job of a replica.
    pub job: Form,
    pub port: RwSignal<String>,
    replica_protocol: RwSignal<ReplicaProtocol>,
    pub readiness_path: RwSignal<String>,
    ready_within: RwSignal<String>,
    concurrency: RwSignal<String>,
    canary: RwSignal<String>,
    note: RwSignal<String>,
}

impl RevisionForm {
    /// Returns a form with this input.
    pub fn new(draft: RevisionDraft) -> Self {
        Self {
            job: Form::new(draft.job),
            port: RwSignal::new(draft.port),
            replica_protocol: RwSignal::new(draft.replica_protocol),
            readiness_path: RwSignal::new(draft.readiness_path),
            ready_within: RwSignal::new(draft.ready_within),
            concurrency: RwSignal::new(draft.concurrency),
            canary: RwSignal::new(draft.canary),
            note: RwSignal::new(draft.note),
        }
    }

    /// Returns the present input, with a subscription. Slices have no shares: a share of another offering does not
    /// count.
    pub fn draft(self, is_whole_board: bool) -> RevisionDraft {
        let job = self.job.draft();
        let share = if is_whole_board { job.share.clone() } else { String::new() };
        RevisionDraft {
            job: Draft { share, ..job },
            port: self.port.get(),
            replica_protocol: self.replica_protocol.get(),
            readiness_path: self.readiness_path.get(),
            ready_within: self.ready_within.get(),
            concurrency: self.concurrency.get(),
            canary: self.canary.get(),
            note: self.note.get(),
        }
    }
}

/// The offerings with their present free capacity.
#[derive(Clone, Copy)]
pub struct Choices {
    pub offerings: RwSignal<Vec<Offering>>,
    model: Memo<Option<String>>,
    /// True if the chosen offering is a whole board.
    pub whole_board: Memo<bool>,
}

impl Choices {
    /// Returns the offerings of an organization, refreshed during the life of the calling component.
    pub fn new(org: berth_types::ids::OrgId, offerings: Vec<Offering>, chosen: RwSignal<String>) -> Self {
        let offerings = RwSignal::new(offerings);
        every_visible(10_000, move || {
            let fresh = api::money::org_offerings(org);
            spawn_local(async move {
                // The next round repeats a failed request.
                if let Ok(fresh) = fresh.await {
                    let _closed = offerings.try_set(fresh.items);
                }
            });
        });
        let model = chosen_model(offerings, chosen);
        let whole_board = Memo::new(move |_| {
            let slug = chosen.get();
            offerings.with(|all| all.iter().any(|one| one.slug == slug && one.mig_profile.is_none()))
        });
        Self { offerings, model, whole_board }
    }
}

/// The choice of the offering.
#[component]
pub fn OfferingFields(
    choices: Choices,
    /// The slug of the chosen offering.
    chosen: RwSignal<String>,
    /// The request of the form.
    call: Call,
) -> impl IntoView {
    let Choices { offerings, model, .. } = choices;
    view! {
        <fieldset class="form__section">
            <legend>"Devices of a replica"</legend>
            <BoardCards offerings=offerings chosen=chosen model=model/>
            <Offers offerings=offerings chosen=chosen model=model error=call.field("/offering")/>
        </fieldset>
    }
}

/// A command or a script with its image.
#[component]
pub fn ScriptFields(form: RevisionForm, call: Call) -> impl IntoView {
    view! {
        <p class="field__hint">
            "The program listens on 127.0.0.1 and the port in the variable PORT. A command runs without a shell, so use a script to pass $PORT as an argument."
        </p>
        <ProgramFields form=form.job call=call/>
    }
}

/// The section about readiness and requests of a replica.
#[component]
pub fn ReplicaSection(form: RevisionForm, call: Call) -> impl IntoView {
    let protocol = form.replica_protocol.get_untracked();
    view! {
        <FormSection
            title="Port and readiness"
            call=call
            pointers=&["/port", "/replica_protocol", "/readiness_path", "/ready_within_s", "/concurrency"]
            filled=false
        >
            <div class="field-row">
                <NumberField
                    label="Port"
                    id="service-port"
                    unit="TCP"
                    value=form.port
                    hint="The program finds this number in the variable PORT."
                    error=call.field("/port")
                />
                <NumberField
                    label="Requests at the same time"
                    id="concurrency"
                    unit="requests"
                    value=form.concurrency
                    hint="A gateway sends at most this number to a replica at the same time. Further requests wait at the gateway."
                    error=call.field("/concurrency")
                />
            </div>
            <SelectField
                label="Protocol of the replica"
                id="replica-protocol"
                hint="gRPC needs HTTP/2; WebSocket needs HTTP/1.1."
                error=call.field("/replica_protocol")
                choose=Callback::new(move |name: String| {
                    form.replica_protocol.set(ReplicaProtocol::parse(&name).unwrap_or_default());
                })
            >
                <option value="http1" selected={protocol == ReplicaProtocol::Http1}>"HTTP/1.1"</option>
                <option value="http2" selected={protocol == ReplicaProtocol::Http2}>"HTTP/2"</option>
            </SelectField>
            <div class="field-row">
                <Field
                    label="Readiness path"
                    name="readiness-path"
                    kind="text"
                    value=form.readiness_path
                    hint=Some("A replica is ready when a GET of this path answers 200. With HTTP/2, grpc: or grpc:NAME uses the gRPC health check: the replica is ready when it answers SERVING.".to_owned())
                    error=call.field("/readiness_path")
                />
                <NumberField
                    label="Ready within"
                    id="ready-within"
                    unit="s"
                    value=form.ready_within
                    hint="A later replica counts as failed."
                    error=call.field("/ready_within_s")
                />
            </div>
        </FormSection>
    }
}

/// The section about the steps of a rollout and the note of the revision.
#[component]
pub fn RolloutSection(
    form: RevisionForm,
    call: Call,
    /// True with an open section.
    filled: bool,
) -> impl IntoView {
    view! {
        <FormSection title="Rollout" call=call pointers=&["/canary_percent", "/note"] filled=filled>
            <Field
                label="Canary steps"
                name="canary-percent"
                kind="text"
                value=form.canary
                hint=Some("Percentages of the requests, such as 10, 50. The revision gets them step by step and returns to 0 if it is worse. Empty: all requests as soon as it is ready.".to_owned())
                error=call.list_field("/canary_percent")
            />
            <TextField
                label="Note"
                id="revision-note"
                max_length=300
                value=form.note
                hint="What this revision changes."
                error=call.field("/note")
            />
        </FormSection>
    }
}

/// The section about the job of a replica.
#[component]
pub fn JobSection(
    form: RevisionForm,
    /// The lists of the organization.
    lists: Lists,
    call: Call,
) -> impl IntoView {
    let job = form.job;
    let unit = Signal::derive(move || job.unit.get().name().to_owned());
    let filled = untrack(move || job.env.count() > 0 || job.files.count() > 0 || job.has_extras());
    view! {
        <FormSection
            title="Job of a replica"
            call=call
            pointers=&["/count", "/cpus", "/memory_mib", "/max_duration_s", "/env", "/files", "/secrets", "/volumes", "/labels"]
            filled=filled
        >
            <div class="field-row">
                <Field
                    label="Devices"
                    name="count"
                    kind="number"
                    value=job.count
                    hint=Some("A replica has one slice, or several boards of one node.".to_owned())
                    error=call.field("/count")
                />
                <NumberField
                    label="CPU cores"
                    id="cpus"
                    unit="cores"
                    value=job.advanced.cpus
                    hint="Empty: any number."
                    error=call.field("/cpus")
                />
                <NumberField
                    label="Host memory"
                    id="memory_mib"
                    unit="MiB"
                    value=job.advanced.memory
                    hint="Empty: any size."
                    error=call.field("/memory_mib")
                />
                <NumberField
                    label="Greatest age"
                    id="replica-age"
                    unit=unit
                    value=job.limit
                    hint="A new replica is ready before the old one ends."
                    error=call.field("/max_duration_s")
                />
            </div>
            <label class="check">
                <input
                    type="checkbox"
                    name="preemptible"
                    prop:checked=move || job.preemptible.get()
                    on:change=move |event| job.preemptible.set(event_target_checked(&event))
                />
                "Preemptible: a job of higher priority can stop a replica, which is then replaced"
            </label>
            <EnvRows rows=job.env call=call/>
            <FileRows rows=job.files call=call/>
            <SecretRows rows=job.secrets lists=lists call=call/>
            <VolumeRows rows=job.volumes lists=lists call=call/>
            <LabelRows rows=job.labels lists=lists call=call/>
        </FormSection>
    }
}
