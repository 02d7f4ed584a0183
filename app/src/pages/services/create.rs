//! Page of a new service: name, program and devices first, everything else below.

use std::future::Future;

use berth_service_types::scaling::Scaling;
use berth_service_types::services::{NewService, Service, ServiceAccess, ServiceProtocol};
use berth_types::ids::OrgId;
use berth_types::offerings::Offering;
use berth_types::problems::{FieldError as Wrong, Problem};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use super::super::curl::{self, CopyAsCurl};
use super::super::launch::lists::Lists;
use super::super::launch::offers::first_choice;
use super::super::launch::rows::{PairSignals, Rows};
use super::super::launch::section::FormSection;
use super::super::org_data::org_view;
use super::super::parts::{Call, CallProblem, FormKey, Submit, focus_soon, origin, redirect};
use super::super::text::explain_repeat;
use super::draft::{Program, RevisionDraft, ScalingDraft, ServiceDraft, local_problem};
use super::form::{
    Choices, JobSection, OfferingFields, ReplicaSection, RevisionForm, RolloutSection, ScalingFields,
    ScalingForm, ScriptFields,
};
use super::model_fields::{ModelFields, ModelForm, model_rows};
use super::no_offerings;
use crate::address::use_org_links;
use crate::api;
use crate::api::Answer;
use crate::session::{Page, RoleNotice, use_session};
use crate::ui::*;

const FIELDS: &[&str] = &[
    "/name",
    "/access",
    "/protocol",
    "/hosts",
    "/models",
    "/max_body_bytes",
    "/scaling",
    "/model",
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

/// The parts of a request whose fields the form has beside those of the service.
const BASES: &[&str] = &["/revision/job", "/revision"];

const REPEATED: &str = "Open the list of services. To create a further service, load this page again.";

/// The first data of the form.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    org: OrgId,
    offerings: Vec<Offering>,
}

fn load(org: OrgId) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let offerings = api::money::org_offerings(org);
    async move { Ok(Loaded { org, offerings: offerings.await?.items }) }
}

/// The page of a new service.
#[component]
pub fn NewServicePage() -> impl IntoView {
    let draw = |loaded: Loaded| {
        if loaded.offerings.is_empty() {
            no_offerings()
        } else {
            view! { <ServiceForm loaded=loaded/> }.into_any()
        }
    };
    view! {
        <Page title="New service".to_owned()>
            <p class="page__lead">
                "A service answers requests at one address. Its replicas are jobs that the portal starts and stops by demand. For a model file in a volume, choose volume, file and devices; the rest has defaults."
            </p>
            <RoleNotice action="create services"/>
            {org_view(load, draw)}
        </Page>
    }
}

/// The signals of the form.
#[derive(Clone, Copy)]
struct Fields {
    name: RwSignal<String>,
    program: RwSignal<Program>,
    model: ModelForm,
    revision: RevisionForm,
    protocol: RwSignal<ServiceProtocol>,
    models: Rows<PairSignals>,
    access: RwSignal<ServiceAccess>,
    hosts: RwSignal<String>,
    body_kib: RwSignal<String>,
    scaling: ScalingForm,
}

impl Fields {
    fn new(offering: String) -> Self {
        let text = |text: &str| RwSignal::new(text.to_owned());
        Self {
            name: text(""),
            program: RwSignal::new(Program::Model),
            model: ModelForm::empty(),
            revision: RevisionForm::new(RevisionDraft::new(offering, Program::Model)),
            protocol: RwSignal::new(ServiceProtocol::Http),
            models: Rows::new(Vec::new()),
            access: RwSignal::new(ServiceAccess::Organization),
            hosts: text(""),
            body_kib: text("1024"),
            scaling: ScalingForm::new(ScalingDraft::new(&Scaling::default())),
        }
    }

    /// Returns the present input, with a subscription to all fields.
    fn draft(self, is_whole_board: bool) -> ServiceDraft {
        let program = self.program.get();
        let mut revision = self.revision.draft(is_whole_board);
        // The server of a model is a script, because only a shell replaces the variable of the port.
        revision.job.as_script |= program == Program::Model;
        ServiceDraft {
            name: self.name.get(),
            program,
            model: self.model.draft(),
            revision,
            protocol: self.protocol.get(),
            models: self.models.inputs(),
            access: self.access.get(),
            hosts: self.hosts.get(),
            body_kib: self.body_kib.get(),
            scaling: self.scaling.draft(),
        }
    }

    /// Keeps the script of the model in step with its fields until the user edits it, and the readiness path in step
    /// with the program.
    fn follow_program(self) {
        let (script, readiness) = (self.revision.job.script, self.revision.readiness_path);
        Effect::new(move |before: Option<Scripts>| {
            let (program, made) = (self.program.get(), self.model.draft().script());
            let before = before.unwrap_or_else(|| Scripts::new(program));
            if readiness.with_untracked(|path| *path == before.program.readiness_path()) {
                readiness.set(program.readiness_path().to_owned());
            }
            let present = script.get_untracked();
            let (wanted, scripts) = before.follow(program, made, present.clone());
            if present != wanted {
                script.set(wanted);
            }
            scripts
        });
    }
}

/// The scripts of the programs beside the present one, which is in its field.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Scripts {
    /// The present program.
    program: Program,
    /// The script that the fields of the model make.
    made: String,
    /// The script of the other program.
    other: String,
}

impl Scripts {
    /// Returns the state before any input.
    const fn new(program: Program) -> Self {
        Self { program, made: String::new(), other: String::new() }
    }

    /// Returns the script of the field after a change of the program or of the model, and the new state.
    fn follow(self, program: Program, made: String, present: String) -> (String, Self) {
        let (script, other) =
            if program == self.program { (present, self.other) } else { (self.other, present) };
        let is_made = program == Program::Model && (script.is_empty() || script == self.made);
        let script = if is_made { made.clone() } else { script };
        (script, Self { program, made, other })
    }
}

#[component]
fn ServiceForm(loaded: Loaded) -> impl IntoView {
    let Loaded { org, offerings } = loaded;
    let fields = Fields::new(first_choice(&offerings));
    let offering = fields.revision.job.offering;
    let choices = Choices::new(org, offerings, offering);
    let lists = Lists::new(org);
    fields.follow_program();
    Effect::new(move || fields.scaling.default_zone());
    let call = Call::idle();
    let key = FormKey::new(call);
    let next = redirect();
    let request: Memo<Result<NewService, Vec<Wrong>>> =
        Memo::new(move |_| fields.draft(choices.whole_board.get()).request());
    Effect::new(move || {
        if call.problem.with(Option::is_some) {
            focus_soon("#service-form [aria-invalid=\"true\"]".to_owned());
        }
    });
    let (links, refused) = (use_org_links(), !use_session().runs_in(org));
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let body = match request.get_untracked() {
            Ok(body) => body,
            Err(errors) => return call.problem.set(Some(Problem::invalid(errors))),
        };
        let has_model = fields.program.get_untracked() == Program::Model;
        let model_at = has_model.then(|| body.revision.job.volumes.len().saturating_sub(1));
        // One key for the whole form: a change after a lost answer must not create a second service.
        let answer = api::services::create(org, &body, key.for_text("service".to_owned()));
        let answer = async move { answer.await.map_err(|problem| local_problem(problem, BASES, model_at)) };
        let services = links.path("/services");
        call.run(explain_repeat(answer, REPEATED), move |made: Service| {
            // The form stays until the next page is loaded: a second click must not create a second service.
            call.pending.set(true);
            key.reset();
            next.set(Some(format!("{services}/{}", made.id)));
        });
    };
    view! {
        <form class="form" id="service-form" method="post" novalidate=true aria-label="New service" on:submit=submit>
            <CallProblem call=call beside_fields=FIELDS/>
            <fieldset class="form__section">
                <legend>"Program"</legend>
                <Field
                    label="Name"
                    name="name"
                    kind="text"
                    value=fields.name
                    hint=Some("Lower-case letters, digits and hyphens, such as chat. It is a part of the address. If you leave it empty, a model has the name of its file.".to_owned())
                    error=call.field("/name")
                />
                <ProgramChoice fields=fields lists=lists call=call/>
            </fieldset>
            <OfferingFields choices=choices chosen=offering call=call/>
            <fieldset class="form__section">
                <legend>"Advanced"</legend>
                <RequestSection fields=fields call=call/>
                <ReplicaSection form=fields.revision call=call/>
                <FormSection title="Scaling" call=call pointers=&["/scaling"] filled=false>
                    <ScalingFields form=fields.scaling call=call/>
                </FormSection>
                <RolloutSection form=fields.revision call=call filled=false/>
                <JobSection form=fields.revision lists=lists call=call/>
            </fieldset>
            <div class="form__actions"><Submit call=call disabled=refused>"Create service"</Submit></div>
            <CurlLine org=org request=request/>
        </form>
    }
}

/// The request as a curl command.
#[component]
fn CurlLine(org: OrgId, request: Memo<Result<NewService, Vec<Wrong>>>) -> impl IntoView {
    let origin = origin();
    let line = Signal::derive(move || {
        request.with(|request| match request {
            Err(_) => curl::INCOMPLETE.to_owned(),
            Ok(body) => {
                let body = serde_json::to_string(body).unwrap_or_default();
                curl::post(&origin.get(), &format!("/orgs/{org}/services"), &body)
            }
        })
    });
    view! { <CopyAsCurl line=line label="New service with curl"/> }
}

/// The choice between a model in a volume and a script, with the fields of the chosen one.
#[component]
fn ProgramChoice(fields: Fields, lists: Lists, call: Call) -> impl IntoView {
    let choice = move |program: Program, text: &'static str| {
        view! {
            <label>
                <input
                    type="radio"
                    name="program"
                    checked={fields.program.get_untracked() == program}
                    prop:checked=move || { fields.program.get() == program }
                    on:change=move |_| fields.program.set(program)
                />
                {text}
            </label>
        }
    };
    let inputs = move || match fields.program.get() {
        Program::Model => {
            let (model, job) = (fields.model, fields.revision.job);
            view! { <ModelFields model=model job=job lists=lists call=call/> }.into_any()
        }
        Program::Script => view! { <ScriptFields form=fields.revision call=call/> }.into_any(),
    };
    view! {
        <div class="segmented" role="radiogroup" aria-label="Program">
            {choice(Program::Model, "Model in a volume")} {choice(Program::Script, "Script")}
        </div>
        {inputs}
    }
}

/// The section about the requests of callers.
#[component]
fn RequestSection(fields: Fields, call: Call) -> impl IntoView {
    let is_script = Memo::new(move |_| fields.program.get() == Program::Script);
    let is_openai = Memo::new(move |_| is_script.get() && fields.protocol.get() == ServiceProtocol::OpenAi);
    let models = move || is_openai.get().then(|| model_rows(fields.models, call));
    let protocol = move || {
        is_script.get().then(|| {
            let chosen = fields.protocol.get_untracked();
            view! {
                <SelectField
                    label="Protocol"
                    id="protocol"
                    hint="With the interface of OpenAI, requests name a model and answers count tokens."
                    error=call.field("/protocol")
                    choose=Callback::new(move |name: String| {
                        fields.protocol.set(ServiceProtocol::parse(&name).unwrap_or_default());
                    })
                >
                    <option value="http" selected={chosen == ServiceProtocol::Http}>"HTTP"</option>
                    <option value="openai" selected={chosen == ServiceProtocol::OpenAi}>"OpenAI"</option>
                </SelectField>
            }
        })
    };
    view! {
        <FormSection
            title="Requests"
            call=call
            pointers=&["/protocol", "/access", "/hosts", "/models", "/max_body_bytes"]
            filled=false
        >
            {protocol}
            {models}
            <div class="field-row">
                <SelectField
                    label="Access"
                    id="access"
                    hint="Public: everybody who reaches a gateway, without a key. You pay for the replicas. The tokens of a request without a key are free."
                    error=call.field("/access")
                    choose=Callback::new(move |name: String| {
                        fields.access.set(ServiceAccess::parse(&name).unwrap_or_default());
                    })
                >
                    <option value="organization" selected=true>"Inference keys of the organization"</option>
                    <option value="public">"Public"</option>
                </SelectField>
                <NumberField
                    label="Body limit"
                    id="body-limit"
                    unit="KiB"
                    value=fields.body_kib
                    hint="The largest body of a request, at most 65,536 KiB."
                    error=call.field("/max_body_bytes")
                />
            </div>
            <Field
                label="Host names"
                name="hosts"
                kind="text"
                value=fields.hosts
                hint=Some("Comma-separated, at most 8, such as chat.example.org. Each needs a TXT record that the page of the service shows. An operator points the names to the gateways.".to_owned())
                error=call.list_field("/hosts")
            />
        </FormSection>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_keeps_its_script() {
        use Program::{Model, Script};
        // Each change with the text of the field before it, and the text after it.
        let changes = [
            (Model, "a", "", "a"),
            (Model, "b", "a", "b"),
            (Script, "b", "b", ""),
            (Model, "b", "typed", "b"),
            (Model, "c", "b", "c"),
            (Script, "c", "c", "typed"),
            (Model, "c", "typed again", "c"),
            (Model, "d", "c --edited", "c --edited"),
            (Script, "d", "c --edited", "typed again"),
            (Model, "d", "", "c --edited"),
            (Script, "d", "", ""),
            (Model, "d", "", "d"),
        ];
        let mut scripts = Scripts::new(Model);
        for (step, (program, made, field, expected)) in changes.into_iter().enumerate() {
            let (script, next) = scripts.follow(program, made.to_owned(), field.to_owned());
            assert_eq!(script, expected, "{step}");
            scripts = next;
        }
    }
}
