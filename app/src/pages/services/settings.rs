//! Dialog of the settings of a service: its callers, host names and models, and the rule for the steps of canaries.

use berth_service_types::revisions::RolloutRule;
use berth_service_types::services::{PatchService, Service, ServiceAccess, ServiceProtocol};
use berth_types::problems::{FieldError, Problem};
use leptos::prelude::*;
use serde::de::IgnoredAny;

use super::super::dialog_form::DialogForm;
use super::super::launch::rows::{PairSignals, Rows};
use super::super::parts::{Call, CallProblem};
use super::draft::{filled_models, number, parse_models, words};
use super::model_fields::model_rows;
use super::state::LiveService;
use crate::api;
use crate::ui::*;

/// The input of the dialog.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SettingsDraft {
    access: ServiceAccess,
    /// Host names with spaces, commas or line breaks between them.
    hosts: String,
    /// Name and context of each model; absent for a plain HTTP service.
    models: Option<Vec<(String, String)>>,
    requests: String,
    seconds: String,
    errors: String,
    automatic: bool,
}

impl SettingsDraft {
    /// Returns the input that changes nothing.
    fn new(service: &Service) -> Self {
        let models =
            service.models.iter().map(|model| (model.name.clone(), model.context_tokens.to_string()));
        Self {
            access: service.access,
            hosts: service.hosts.join(", "),
            models: (service.protocol == ServiceProtocol::OpenAi).then(|| models.collect()),
            requests: service.rollout.min_requests.to_string(),
            seconds: service.rollout.min_seconds.to_string(),
            errors: service.rollout.error_percent.to_string(),
            automatic: service.rollout.automatic,
        }
    }

    /// Parses the request with the fields that differ from the input at the opening: the others may have changed
    /// meanwhile.
    fn request(&self, opened: &Self) -> Result<PatchService, Vec<FieldError>> {
        let mut errors = Vec::new();
        let models = self.models.as_ref().filter(|_| self.models != opened.models);
        let models = models.map(|rows| parse_models(filled_models(rows), &mut errors));
        let rollout = (self.rule() != opened.rule()).then(|| self.parse_rule(&mut errors));
        if !errors.is_empty() {
            return Err(errors);
        }
        Ok(PatchService {
            access: (self.access != opened.access).then_some(self.access),
            hosts: (self.hosts != opened.hosts).then(|| words(&self.hosts)),
            models,
            rollout,
            ..PatchService::default()
        })
    }

    /// Returns the fields of the rule for the steps of canaries.
    fn rule(&self) -> ([&str; 3], bool) {
        ([self.requests.as_str(), self.seconds.as_str(), self.errors.as_str()], self.automatic)
    }

    fn parse_rule(&self, errors: &mut Vec<FieldError>) -> RolloutRule {
        let whole = "Enter a whole number.";
        let percent = "Enter a whole percentage, 0 to 100.";
        RolloutRule {
            min_requests: number(&self.requests, "/rollout/min_requests", whole, 0, errors),
            min_seconds: number(&self.seconds, "/rollout/min_seconds", whole, 0, errors),
            error_percent: number(&self.errors, "/rollout/error_percent", percent, 0, errors),
            automatic: self.automatic,
        }
    }
}

/// The signals of the dialog.
#[derive(Clone, Copy)]
struct Fields {
    access: RwSignal<ServiceAccess>,
    hosts: RwSignal<String>,
    has_models: bool,
    models: Rows<PairSignals>,
    requests: RwSignal<String>,
    seconds: RwSignal<String>,
    errors: RwSignal<String>,
    automatic: RwSignal<bool>,
}

impl Fields {
    fn new(draft: SettingsDraft) -> Self {
        Self {
            access: RwSignal::new(draft.access),
            hosts: RwSignal::new(draft.hosts),
            has_models: draft.models.is_some(),
            models: Rows::new(draft.models.unwrap_or_default()),
            requests: RwSignal::new(draft.requests),
            seconds: RwSignal::new(draft.seconds),
            errors: RwSignal::new(draft.errors),
            automatic: RwSignal::new(draft.automatic),
        }
    }

    fn set(self, draft: SettingsDraft) {
        self.access.set(draft.access);
        self.hosts.set(draft.hosts);
        self.models.replace(draft.models.unwrap_or_default());
        self.requests.set(draft.requests);
        self.seconds.set(draft.seconds);
        self.errors.set(draft.errors);
        self.automatic.set(draft.automatic);
    }

    fn draft(self) -> SettingsDraft {
        SettingsDraft {
            access: self.access.get(),
            hosts: self.hosts.get(),
            models: self.has_models.then(|| self.models.inputs()),
            requests: self.requests.get(),
            seconds: self.seconds.get(),
            errors: self.errors.get(),
            automatic: self.automatic.get(),
        }
    }
}

/// The dialog of the settings.
#[component]
pub fn SettingsDialog(
    /// The service.
    live: LiveService,
    /// True with an open dialog.
    open: RwSignal<bool>,
) -> impl IntoView {
    let call = Call::idle();
    let present = move || live.service.with_untracked(SettingsDraft::new);
    let opened = StoredValue::new(present());
    let fields = Fields::new(present());
    let reset = move |()| {
        opened.set_value(present());
        fields.set(present());
    };
    let submit = move |()| {
        let draft = untrack(move || fields.draft());
        let body = match opened.with_value(|opened| draft.request(opened)) {
            Ok(body) => body,
            Err(errors) => return call.problem.set(Some(Problem::invalid(errors))),
        };
        call.run(api::services::patch(live.org, live.id, &body), move |_: IgnoredAny| {
            live.reload();
            open.set(false);
        });
    };
    let title = Signal::derive(move || live.service.with(|service| format!("Settings of {}", service.name)));
    let models = fields.has_models.then(|| model_rows(fields.models, call));
    view! {
        <DialogForm
            id="change-settings"
            title=title
            open=open
            call=call
            keep="Keep settings"
            verb="Change settings"
            reset=Callback::new(reset)
            submit=Callback::new(submit)
        >
            <CallProblem call=call beside_fields=&["/access", "/hosts", "/models", "/rollout"]/>
            <CallerFields fields=fields call=call/>
            {models}
            <RuleFields fields=fields call=call/>
        </DialogForm>
    }
}

/// Access and host names.
#[component]
fn CallerFields(fields: Fields, call: Call) -> impl IntoView {
    let option = move |access: ServiceAccess, value: &'static str, text: &'static str| {
        view! { <option value=value prop:selected=move || { fields.access.get() == access }>{text}</option> }
    };
    view! {
        <SelectField
            label="Access"
            id="service-access"
            hint="Public: everybody who reaches a gateway, without a key. You pay for the replicas. The tokens of a request without a key are free."
            error=call.field("/access")
            choose=Callback::new(move |name: String| {
                fields.access.set(ServiceAccess::parse(&name).unwrap_or_default());
            })
        >
            {option(ServiceAccess::Organization, "organization", "Inference keys of the organization")}
            {option(ServiceAccess::Public, "public", "Public")}
        </SelectField>
        <Field
            label="Host names"
            name="service-hosts"
            kind="text"
            value=fields.hosts
            hint=Some("Comma-separated, at most 8, such as chat.example.org. Each needs a TXT record that the page of the service shows. An operator points the names to the gateways.".to_owned())
            error=call.list_field("/hosts")
        />
    }
}

/// The rule for the steps of canaries.
#[component]
fn RuleFields(fields: Fields, call: Call) -> impl IntoView {
    view! {
        <fieldset class="form__section">
            <legend>"Steps of a canary"</legend>
            <div class="field-row">
                <NumberField
                    label="Least requests"
                    id="step-requests"
                    unit="requests"
                    value=fields.requests
                    hint="A step needs this number of requests to the canary."
                    error=call.field("/rollout/min_requests")
                />
                <NumberField
                    label="Least time"
                    id="step-seconds"
                    unit="s"
                    value=fields.seconds
                    hint="A step lasts at least this time."
                    error=call.field("/rollout/min_seconds")
                />
                <NumberField
                    label="Permitted errors"
                    id="step-errors"
                    unit="%"
                    value=fields.errors
                    hint="This share may fail while the live revision has too few requests for a comparison."
                    error=call.field("/rollout/error_percent")
                />
            </div>
            <label class="check">
                <input
                    type="checkbox"
                    name="step-automatic"
                    prop:checked=move || fields.automatic.get()
                    on:change=move |event| fields.automatic.set(event_target_checked(&event))
                />
                <span>
                    "The next step follows by itself"
                    <span class="check__hint">"Otherwise a person sends more traffic. A worse canary is withdrawn in any case."</span>
                </span>
            </label>
        </fieldset>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(protocol: &str) -> Service {
        serde_json::from_value(serde_json::json!({
            "id": "svc_00000000000000000000000001", "org": "org_00000000000000000000000001", "name": "chat",
            "state": "ready", "protocol": protocol, "access": "public", "hosts": ["a.b", "c.d"],
            "path": "/s/lab/chat", "models": [{"name": "m", "context_tokens": 10}], "max_body_bytes": 10,
            "scaling": {}, "rollout": {"min_seconds": 9}, "stopped": false, "revisions": [], "replicas": [],
            "created_at": "2026-11-20T09:00:00Z", "created_by": "Ada",
            "token_price": {"prompt_micros_per_million": 0, "completion_micros_per_million": 0},
            "last_day": {"requests": 0, "errors": 0, "prompt_tokens": 0, "completion_tokens": 0, "token_micros": 0},
        }))
        .unwrap()
    }

    #[test]
    fn changed_settings_are_sent_and_no_others() {
        let openai = service("openai");
        let opened = SettingsDraft::new(&openai);
        let none = PatchService::default();
        let rows = vec![("n".to_owned(), "20".to_owned()), (String::new(), String::new())];
        let models =
            serde_json::from_value(serde_json::json!([{"name": "n", "context_tokens": 20}])).unwrap();
        let rule = RolloutRule { min_requests: 7, ..openai.rollout };
        let manual = RolloutRule { automatic: false, ..openai.rollout };
        let access = ServiceAccess::Organization;
        for (draft, expected) in [
            (opened.clone(), none.clone()),
            (
                SettingsDraft { access, ..opened.clone() },
                PatchService { access: Some(access), ..none.clone() },
            ),
            (
                SettingsDraft { hosts: "c.d e.f".to_owned(), ..opened.clone() },
                PatchService { hosts: Some(vec!["c.d".to_owned(), "e.f".to_owned()]), ..none.clone() },
            ),
            (
                SettingsDraft { models: Some(rows), ..opened.clone() },
                PatchService { models: Some(models), ..none.clone() },
            ),
            (
                SettingsDraft { requests: "7".to_owned(), ..opened.clone() },
                PatchService { rollout: Some(rule), ..none.clone() },
            ),
            (
                SettingsDraft { automatic: false, ..opened.clone() },
                PatchService { rollout: Some(manual), ..none },
            ),
        ] {
            assert_eq!(draft.request(&opened), Ok(expected));
        }
        let http = SettingsDraft::new(&service("http"));
        assert_eq!(http.request(&http).unwrap().models, None);
    }

    #[test]
    fn each_error_of_the_settings_has_its_pointer() {
        let bad = SettingsDraft {
            models: Some(vec![("m".to_owned(), "many".to_owned())]),
            requests: "few".to_owned(),
            seconds: "-1".to_owned(),
            errors: "256".to_owned(),
            ..SettingsDraft::new(&service("openai"))
        };
        let errors = bad.request(&SettingsDraft::new(&service("openai"))).unwrap_err();
        let found: Vec<String> = errors.into_iter().map(|error| error.pointer).collect();
        assert_eq!(
            found,
            [
                "/models/0/context_tokens",
                "/rollout/min_requests",
                "/rollout/min_seconds",
                "/rollout/error_percent"
            ]
        );
    }
}
