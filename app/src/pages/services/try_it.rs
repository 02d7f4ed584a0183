//! Panel that sends a request to a service through a gateway, and shows the answer as it comes.
//!
//! The key of the panel is only in a signal of this page.

use berth_service_types::keys::{InferenceKey, NewInferenceKey};
use berth_service_types::services::{Service, ServiceAccess, ServiceProtocol};
use berth_types::time::Timestamp;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::super::call_button::CallButton;
use super::super::parts::{Call, CallProblem, FormKey, now_ms};
use super::chat::{Events, Progress, chat_text, completion_text, refusal_text};
use super::state::LiveService;
use super::text::{chat_body, path_fault, service_url};
use crate::address::org_link;
use crate::api;
use crate::api::gateways::{AnswerPart, ServiceRequest};
use crate::ui::*;

/// Bytes of the longest shown answer.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// Seconds of the life of a key of the panel.
const KEY_S: i64 = 3_600;

/// The methods of the panel.
const METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];

/// The input of the panel.
#[derive(Debug, Clone)]
struct Input {
    key: String,
    /// The model of a chat; the first one when empty.
    model: String,
    message: String,
    method: &'static str,
    path: String,
    body: String,
}

impl Input {
    /// Returns the request to a service through a gateway.
    fn request(self, gateway: &str, service: &Service) -> ServiceRequest {
        let url = service_url(gateway, service);
        let key = Some(self.key.trim().to_owned()).filter(|key| !key.is_empty());
        if service.protocol == ServiceProtocol::OpenAi {
            let first = || service.models.first().map(|model| model.name.clone());
            let model = Some(self.model).filter(|model| !model.is_empty()).or_else(first).unwrap_or_default();
            let body = chat_body(&model, &self.message);
            let url = format!("{url}/chat/completions");
            return ServiceRequest { url, method: "POST", key, body: Some((body, "application/json")) };
        }
        let kind =
            if self.body.trim_start().starts_with(['{', '[']) { "application/json" } else { "text/plain" };
        let body = Some(self.body).filter(|body| self.method != "GET" && !body.is_empty());
        // A browser does not send a fragment.
        let path = self.path.trim().trim_start_matches('/').replace('#', "%23");
        let url = format!("{url}{path}");
        ServiceRequest { url, method: self.method, key, body: body.map(|body| (body, kind)) }
    }
}

/// The signals of the panel.
#[derive(Clone, Copy)]
struct Panel {
    /// The address of the chosen gateway; the first one when empty.
    gateway: RwSignal<String>,
    key: RwSignal<String>,
    model: RwSignal<String>,
    message: RwSignal<String>,
    method: RwSignal<&'static str>,
    path: RwSignal<String>,
    body: RwSignal<String>,
    progress: RwSignal<Progress>,
    answer: RwSignal<String>,
}

impl Panel {
    fn new() -> Self {
        let text = |text: &str| RwSignal::new(text.to_owned());
        Self {
            gateway: text(""),
            key: text(""),
            model: text(""),
            message: text("Say hello in one sentence."),
            method: RwSignal::new("GET"),
            path: text("/"),
            body: text(""),
            progress: RwSignal::new(Progress::Idle),
            answer: text(""),
        }
    }

    /// Returns the present input.
    fn input(self) -> Input {
        Input {
            key: self.key.get_untracked(),
            model: self.model.get_untracked(),
            message: self.message.get_untracked(),
            method: self.method.get_untracked(),
            path: self.path.get_untracked(),
            body: self.body.get_untracked(),
        }
    }

    /// Shows a part of an answer. Returns false if the rest is not needed.
    fn show(self, part: AnswerPart, is_chat: bool, events: &mut Events, raw: &mut String) -> bool {
        match part {
            AnswerPart::Status(status) => self.progress.try_set(Progress::Answering(status)).is_none(),
            AnswerPart::Text(text) => {
                raw.push_str(&text);
                let shown = if is_chat { chat_text(events, &text) } else { text };
                let is_open = self.answer.try_update(|answer| answer.push_str(&shown)).is_some();
                is_open && raw.len() <= MAX_ANSWER_BYTES
            }
        }
    }

    /// Sends the request and shows its answer.
    fn send(self, request: ServiceRequest, is_chat: bool) {
        self.answer.set(String::new());
        self.progress.set(Progress::Waiting);
        spawn_local(async move {
            let (mut events, mut raw) = (Events::default(), String::new());
            let show = |part: AnswerPart| self.show(part, is_chat, &mut events, &mut raw);
            let outcome = api::gateways::ask(request, show).await;
            // The page may have been left during the answer.
            let Some(progress) = self.progress.try_get_untracked() else { return };
            let Progress::Answering(status) = progress else {
                // The Stop button has set the state to idle.
                if progress == Progress::Waiting {
                    self.progress.set(Progress::Failed);
                }
                return;
            };
            let is_cut = raw.len() > MAX_ANSWER_BYTES;
            if status >= 400 {
                self.answer.set(refusal_text(&raw));
            } else if self.answer.with_untracked(String::is_empty) {
                // A server without streams gives one document.
                self.answer.set(if is_chat { completion_text(&raw) } else { raw });
            }
            self.progress.set(match outcome {
                Ok(()) if is_cut => Progress::Cut(status),
                Ok(()) => Progress::Ended(status),
                Err(_) => Progress::Failed,
            });
        });
    }

    /// Ends the request.
    fn stop(self) {
        self.progress.set(Progress::Idle);
        api::gateways::stop();
    }
}

/// The panel; absent without a gateway. It stays with its input when the gateways are silent for a while.
#[component]
pub fn TryIt(live: LiveService) -> impl IntoView {
    let any = Memo::new(move |before: Option<&bool>| {
        before == Some(&true) || live.gateways.with(|all| !all.is_empty())
    });
    move || any.get().then(|| view! { <TryPanel live=live/> })
}

#[component]
fn TryPanel(live: LiveService) -> impl IntoView {
    let panel = Panel::new();
    on_cleanup(api::gateways::stop);
    let is_chat = live.service.with_untracked(|service| service.protocol == ServiceProtocol::OpenAi);
    let running = Memo::new(move |_| panel.progress.get().is_running());
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let is_refused = !is_chat && panel.path.with_untracked(|path| path_fault(path).is_some());
        if is_refused || running.get_untracked() {
            return;
        }
        let chosen = panel.gateway.get_untracked();
        let first = || live.gateways.with_untracked(|all| all.first().map(|one| one.url.clone()));
        let Some(gateway) = Some(chosen).filter(|url| !url.is_empty()).or_else(first) else {
            return panel.progress.set(Progress::NoGateway);
        };
        let request = live.service.with_untracked(|service| panel.input().request(&gateway, service));
        panel.send(request, is_chat);
    };
    let ready = live.ready;
    let inputs = if is_chat {
        view! { <ChatInputs live=live panel=panel/> }.into_any()
    } else {
        view! { <HttpInputs panel=panel/> }.into_any()
    };
    let shown = Memo::new(move |_| {
        panel.progress.get() != Progress::Idle || panel.answer.with(|text| !text.is_empty())
    });
    view! {
        <section class="section" aria-label="Try it">
            <div class="section__head"><h2>"Try it"</h2></div>
            <form class="form card" method="post" aria-label="Try the service" on:submit=submit>
                <KeyInputs live=live panel=panel/>
                <GatewaySelect live=live panel=panel/>
                {inputs}
                <div class="form__actions">
                    <button
                        class="btn btn--primary"
                        type="submit"
                        disabled=move || !ready.get()
                        aria-disabled=move || running.get().then_some("true")
                    >
                        "Send request"
                    </button>
                    <button
                        class="btn"
                        type="button"
                        hidden=move || !running.get()
                        on:click=move |_| panel.stop()
                    >
                        "Stop answer"
                    </button>
                    <span class="quiet" role="status">{move || panel.progress.get().text()}</span>
                </div>
                // A long answer scrolls, also by keyboard.
                <pre
                    class="answer"
                    role="log"
                    aria-label="Answer"
                    tabindex="0"
                    hidden=move || !shown.get()
                >
                    {move || panel.answer.get()}
                </pre>
            </form>
        </section>
    }
}

/// The key of the request; absent for a public service.
#[component]
fn KeyInputs(live: LiveService, panel: Panel) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::new(call);
    let made = RwSignal::new(false);
    let needs_key =
        Memo::new(move |_| live.service.with(|service| service.access == ServiceAccess::Organization));
    let create = move |()| {
        let body = live.service.with_untracked(|service| key_of_panel(service, now_ms()));
        let answer = api::inference_keys::create(live.org, &body, key.for_body(&body));
        call.run(answer, move |created: InferenceKey| {
            key.reset();
            panel.key.set(created.secret.unwrap_or_default());
            made.set(true);
        });
    };
    let writes = live.manages;
    move || {
        needs_key.get().then(|| {
            let button = writes.then(|| {
                view! {
                    <CallButton call=call class="btn" send=Callback::new(create)>
                        "Create a key for one hour"
                    </CallButton>
                }
            });
            view! {
                <Field
                    label="Inference key"
                    name="try-key"
                    kind="password"
                    value=panel.key
                    hint=Some("Stays on this page only. Keys for programs are on the page Inference keys.".to_owned())
                    error=Signal::derive(|| None)
                />
                <p class="row">
                    {button}
                    <a href=org_link("/inference-keys")>"Inference keys"</a>
                    <span class="quiet" role="status">
                        {move || if made.get() { "Key created. It ends in one hour." } else { "" }}
                    </span>
                </p>
                <CallProblem call=call beside_fields=&[]/>
            }
        })
    }
}

/// Returns a key for one hour and this service only.
fn key_of_panel(service: &Service, now_ms: i64) -> NewInferenceKey {
    let models = match service.protocol {
        ServiceProtocol::OpenAi => service.models.iter().map(|model| model.name.clone()).collect(),
        ServiceProtocol::Http => vec![service.name.clone()],
    };
    NewInferenceKey {
        name: format!("Try {}", service.name),
        models,
        requests_per_minute: None,
        tokens_per_minute: None,
        day_budget_micros: None,
        month_budget_micros: None,
        total_budget_micros: None,
        expires_at: Some(Timestamp::from_micros(now_ms.saturating_mul(1_000)).plus_seconds(KEY_S)),
    }
}

/// The choice of the gateway; absent with one gateway.
#[component]
fn GatewaySelect(live: LiveService, panel: Panel) -> impl IntoView {
    let several = Memo::new(move |_| live.gateways.with(|all| all.len() > 1));
    let options = move || {
        let option = |(name, url): (String, String)| {
            let known = url.clone();
            let chosen = move || panel.gateway.with(|gateway| *gateway == known);
            view! { <option value=url prop:selected=chosen>{name}</option> }.into_any()
        };
        let all = live.gateways.get();
        all.into_iter().map(|one| option((one.name, one.url))).collect::<Vec<AnyView>>()
    };
    move || {
        several.get().then(|| {
            view! {
                <SelectField
                    label="Gateway"
                    id="try-gateway"
                    choose=Callback::new(move |url: String| panel.gateway.set(url))
                >
                    {options}
                </SelectField>
            }
        })
    }
}

/// The message of a chat, and its model if there are several.
#[component]
fn ChatInputs(live: LiveService, panel: Panel) -> impl IntoView {
    let models = Memo::new(move |_| {
        live.service
            .with(|service| service.models.iter().map(|one| one.name.clone()).collect::<Vec<String>>())
    });
    // A change of the service can remove the chosen model.
    Effect::new(move || {
        if !models.with(|all| panel.model.with_untracked(|chosen| all.contains(chosen))) {
            panel.model.set(String::new());
        }
    });
    let option = move |name: String| {
        let (known, value) = (name.clone(), name.clone());
        let chosen = move || panel.model.with(|model| *model == known);
        view! { <option value=value prop:selected=chosen>{name}</option> }.into_any()
    };
    let options = move || models.get().into_iter().map(option).collect::<Vec<AnyView>>();
    let several = Memo::new(move |_| models.with(|all| all.len() > 1));
    let select = move || {
        several.get().then(|| {
            view! {
                <SelectField
                    label="Model"
                    id="try-model"
                    choose=Callback::new(move |model: String| panel.model.set(model))
                >
                    {options}
                </SelectField>
            }
        })
    };
    view! {
        {select}
        <TextArea
            label="Message"
            id="try-message"
            rows=3
            max_length=20_000
            value=panel.message
            hint="The answer appears token by token."
            error=Signal::derive(|| None)
        />
    }
}

/// The method, the path and the body of a request.
#[component]
fn HttpInputs(panel: Panel) -> impl IntoView {
    let choose = move |name: String| {
        if let Some(method) = METHODS.into_iter().find(|method| *method == name) {
            panel.method.set(method);
        }
    };
    let options: Vec<AnyView> = METHODS
        .into_iter()
        .map(|method| view! { <option value=method selected={method == "GET"}>{method}</option> }.into_any())
        .collect();
    let has_body = Memo::new(move |_| panel.method.get() != "GET");
    view! {
        <div class="field-row">
            <SelectField label="Method" id="try-method" choose=Callback::new(choose)>{options}</SelectField>
            <Field
                label="Path"
                name="try-path"
                kind="text"
                value=panel.path
                hint=Some("Below the address of the service, with a query if needed.".to_owned())
                error=Signal::derive(move || panel.path.with(|path| path_fault(path)))
            />
        </div>
        {move || {
            has_body.get().then(|| {
                view! {
                    <TextArea
                        label="Body"
                        id="try-body"
                        rows=3
                        mono=true
                        value=panel.body
                        hint="Text, or JSON if it begins with a brace."
                        error=Signal::derive(|| None)
                    />
                }
            })
        }}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(protocol: &str) -> Service {
        serde_json::from_value(serde_json::json!({
            "id": "svc_00000000000000000000000001", "org": "org_00000000000000000000000001", "name": "chat",
            "state": "ready", "protocol": protocol, "access": "organization", "hosts": [], "path": "/s/lab/chat",
            "models": [{"name": "a", "context_tokens": 10}, {"name": "b", "context_tokens": 10}],
            "max_body_bytes": 10, "scaling": {}, "rollout": {}, "stopped": false, "revisions": [], "replicas": [],
            "created_at": "2026-11-20T09:00:00Z", "created_by": "Ada",
            "token_price": {"prompt_micros_per_million": 0, "completion_micros_per_million": 0},
            "last_day": {"requests": 0, "errors": 0, "prompt_tokens": 0, "completion_tokens": 0, "token_micros": 0},
        }))
        .unwrap()
    }

    #[test]
    fn a_key_of_the_panel_is_for_one_service_and_one_hour() {
        let key = key_of_panel(&service("openai"), 1_000);
        assert_eq!((key.name.as_str(), key.models.len()), ("Try chat", 2));
        assert_eq!(key.expires_at, Some(Timestamp::from_micros(3_601_000_000)));
        assert_eq!(key_of_panel(&service("http"), 0).models, ["chat"]);
    }

    #[test]
    fn a_request_has_the_address_of_the_service_and_the_key_in_no_address() {
        let input = Input {
            key: " sk-berth-x ".to_owned(),
            model: "b".to_owned(),
            message: "Hello".to_owned(),
            method: "GET",
            path: "/echo?a=1".to_owned(),
            body: "hi".to_owned(),
        };
        let chat = input.clone().request("https://gw.example", &service("openai"));
        assert_eq!((chat.url.as_str(), chat.method), ("https://gw.example/v1/chat/completions", "POST"));
        assert_eq!(chat.key.as_deref(), Some("sk-berth-x"));
        let (body, kind) = chat.body.unwrap();
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!((kind, body["model"].as_str()), ("application/json", Some("b")));
        assert_eq!(body["stream"].as_bool(), Some(true));
        let get = input.clone().request("https://gw.example/", &service("http"));
        assert_eq!((get.url.as_str(), get.body), ("https://gw.example/s/lab/chat/echo?a=1", None));
        let part = Input { path: "a#b?c#d".to_owned(), ..input.clone() };
        let part = part.request("https://gw.example", &service("http"));
        assert_eq!(part.url, "https://gw.example/s/lab/chat/a%23b?c%23d");
        let put = Input { method: "PUT", key: String::new(), ..input };
        let put = put.request("https://gw.example", &service("http"));
        assert_eq!((put.key, put.method), (None, "PUT"));
        assert_eq!(put.body, Some(("hi".to_owned(), "text/plain")));
    }
}
