//! Dialogs of the traffic: a part of the requests for a revision, and the way back.

use berth_service_types::keys::InferenceKey;
use berth_service_types::revisions::{PutTraffic, RevisionState};
use berth_service_types::services::{CanaryKey, Service, ServiceProtocol};
use berth_types::ids::InferenceKeyId;
use berth_types::problems::Problem;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::de::IgnoredAny;

use super::super::confirm::ConfirmDialog;
use super::super::dialog_form::DialogForm;
use super::super::parts::{Call, CallProblem, FormKey, now_ms};
use super::state::LiveService;
use crate::api;
use crate::ui::*;

const FIELDS: &[&str] = &["/percent", KEYS];
const KEYS: &str = "/canary_keys";

/// An inference key in the dialog of the traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Choice {
    id: InferenceKeyId,
    name: String,
    /// The last characters of its secret; empty if only its name is known.
    hint: String,
    is_chosen: bool,
}

/// The keys of the dialog.
#[derive(Clone, Copy)]
struct Keys {
    /// Absent until they are loaded.
    all: RwSignal<Option<Vec<Choice>>>,
    /// True if only the present keys of the revision are known.
    failed: RwSignal<bool>,
}

/// Returns the present keys that may use a service, by name. Those of the revision with this number are chosen.
fn choices(keys: Vec<InferenceKey>, service: &Service, number: Option<i64>, now_ms: i64) -> Vec<Choice> {
    let revision = service.revisions.iter().find(|revision| Some(revision.number) == number);
    let is_chosen = |id: InferenceKeyId| {
        revision.is_some_and(|revision| revision.canary_keys.iter().any(|key| key.id == id))
    };
    let may_use = |names: &[String]| {
        names.is_empty()
            || match service.protocol {
                ServiceProtocol::OpenAi => service.models.iter().any(|model| names.contains(&model.name)),
                ServiceProtocol::Http => names.contains(&service.name),
            }
    };
    let is_present = |key: &InferenceKey| key.spec.expires_at.is_none_or(|at| at.millis() > now_ms);
    let mut all: Vec<Choice> = keys
        .into_iter()
        .filter(|key| is_present(key) && may_use(&key.spec.models))
        .map(|key| Choice { id: key.id, name: key.spec.name, hint: key.hint, is_chosen: is_chosen(key.id) })
        .collect();
    all.sort_by(|one, other| (&one.name, one.id).cmp(&(&other.name, other.id)));
    all
}

/// Returns the present keys of a revision.
fn present_choices(service: &Service, number: Option<i64>) -> Vec<Choice> {
    let revisions = service.revisions.iter().filter(|revision| Some(revision.number) == number);
    let choice =
        |key: &CanaryKey| Choice { id: key.id, name: key.name.clone(), hint: String::new(), is_chosen: true };
    revisions.flat_map(|revision| &revision.canary_keys).map(choice).collect()
}

/// Loads the keys of the dialog. Without the list the present keys of the revision can be kept or removed.
fn load_keys(live: LiveService, revision: RwSignal<Option<i64>>, keys: Keys, call: Call) {
    keys.all.set(None);
    keys.failed.set(false);
    let all = api::inference_keys::list(live.org);
    spawn_local(async move {
        let answer = all.await;
        // The page may have been left meanwhile, and the answer to an earlier opening may have come first.
        let number = revision.try_get_untracked().flatten();
        let (Some(service), Some(None)) = (live.service.try_get_untracked(), keys.all.try_get_untracked())
        else {
            return;
        };
        let known = match answer {
            Ok(all) => choices(all.items, &service, number, now_ms()),
            Err(problem) => {
                call.problem.set(Some(problem));
                keys.failed.set(true);
                present_choices(&service, number)
            }
        };
        keys.all.set(Some(known));
    });
}

/// Returns the part of a canary as input; empty for a revision that has none yet.
fn present_percent(service: &Service, number: Option<i64>) -> String {
    let mut canaries = service.revisions.iter().filter(|revision| revision.state == RevisionState::Canary);
    let canary = canaries.find(|revision| Some(revision.number) == number);
    canary.map_or_else(String::new, |canary| canary.weight_percent.to_string())
}

/// Returns the chosen keys.
fn chosen(keys: Option<&[Choice]>) -> Vec<InferenceKeyId> {
    keys.into_iter().flatten().filter(|key| key.is_chosen).map(|key| key.id).collect()
}

/// The checkboxes of the keys.
#[component]
fn KeyChoices(
    keys: Keys,
    /// The first error of the chosen keys.
    error: Signal<Option<String>>,
) -> impl IntoView {
    let Keys { all, failed } = keys;
    let hint = move || {
        if failed.get() {
            Some("The other inference keys are not loaded. Open the dialog again to choose one of them.")
        } else if all.with(|all| all.as_ref().is_some_and(Vec::is_empty)) {
            Some("No inference key may use this service.")
        } else {
            None
        }
    };
    let choose = move |id: InferenceKeyId, value: bool| {
        all.update(|keys| {
            for key in keys.iter_mut().flatten().filter(|key| key.id == id) {
                key.is_chosen = value;
            }
        });
    };
    let checkbox = move |key: Choice| {
        let Choice { id, name, hint, .. } = key;
        let hint = (!hint.is_empty()).then(|| {
            view! { <span class="check__hint mono">{format!("…{hint}")}</span> }
        });
        view! {
            <label class="check">
                <input
                    type="checkbox"
                    name="canary-key"
                    prop:checked=move || all.with(|keys| keys.iter().flatten().any(|key| key.id == id && key.is_chosen))
                    on:change=move |event| choose(id, event_target_checked(&event))
                />
                <span>
                    <span class="break">{name}</span>
                    {hint}
                </span>
            </label>
        }
    };
    view! {
        <fieldset class="field" aria-describedby="traffic-keys-hint traffic-keys-error">
            <legend class="field__label">"Keys that always use this revision"</legend>
            <p class="field__hint" id="traffic-keys-hint">
                "All their requests go to it while it is a canary with a ready replica, also at 0 %. At most 20."
            </p>
            {move || hint().map(|text| view! { <p class="field__hint">{text}</p> })}
            <For each=move || all.get().unwrap_or_default() key=|key: &Choice| key.id children=checkbox/>
            <FieldError id="traffic-keys-error" error=error/>
        </fieldset>
    }
}

/// Returns the first error of the chosen keys.
fn keys_error(problem: &Problem) -> Option<String> {
    let is_of_keys = |pointer: &str| {
        pointer.strip_prefix(KEYS).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    problem.errors.iter().find(|error| is_of_keys(&error.pointer)).map(|error| error.detail.clone())
}

/// The dialog of the traffic of a revision.
#[component]
pub fn TrafficDialog(
    live: LiveService,
    /// The number of the revision.
    revision: RwSignal<Option<i64>>,
    open: RwSignal<bool>,
) -> impl IntoView {
    let call = Call::idle();
    let percent = RwSignal::new(String::new());
    let keys = Keys { all: RwSignal::new(None), failed: RwSignal::new(false) };
    let title = Signal::derive(move || match revision.get() {
        Some(number) => format!("Send traffic to revision {number}"),
        None => "Send traffic".to_owned(),
    });
    let reset = move |()| {
        let number = revision.get_untracked();
        percent.set(live.service.with_untracked(|service| present_percent(service, number)));
        load_keys(live, revision, keys, call);
    };
    let submit = move |()| {
        let Some(revision) = revision.get_untracked() else { return };
        let Ok(percent) =
            percent.with_untracked(|text| text.trim().trim_end_matches('%').trim_end().parse::<u8>())
        else {
            let detail = "Enter a whole percentage from 0 to 100.";
            call.problem.set(Some(Problem::invalid_field("/percent", detail)));
            return;
        };
        // A live revision has no keys of its own.
        let canary_keys =
            if percent == 100 { Vec::new() } else { keys.all.with_untracked(|keys| chosen(keys.as_deref())) };
        let body = PutTraffic { revision, percent, canary_keys };
        call.run(api::services::put_traffic(live.org, live.id, &body), move |_: IgnoredAny| {
            live.reload();
            open.set(false);
        });
    };
    view! {
        <DialogForm
            id="send-traffic"
            title=title
            open=open
            call=call
            keep="Keep traffic"
            verb="Send traffic"
            disabled=Signal::derive(move || keys.all.with(Option::is_none))
            reset=Callback::new(reset)
            submit=Callback::new(submit)
        >
            <p>
                "The live revision answers the other requests. If you change the part, automatic steps end, and the part stays until a person changes it. With 100 % this revision becomes the live one and has no keys of its own. The former live revision ends its last requests."
            </p>
            <CallProblem call=call beside_fields=FIELDS/>
            <NumberField
                label="Part of the requests"
                id="traffic-percent"
                unit="%"
                value=percent
                hint="0 to 100."
                inputmode="numeric"
                error=call.field("/percent")
            />
            <KeyChoices
                keys=keys
                error=Signal::derive(move || call.problem.with(|problem| problem.as_ref().and_then(keys_error)))
            />
        </DialogForm>
    }
}

/// The dialog of the way back to the former revision.
#[component]
pub fn RollBackDialog(live: LiveService, open: RwSignal<bool>) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::new(call);
    let roll_back = move |()| {
        let answer = api::services::roll_back(live.org, live.id, key.for_text("rollback".to_owned()));
        call.run(answer, move |_: IgnoredAny| {
            key.reset();
            live.reload();
            open.set(false);
        });
    };
    let title = Signal::derive(move || live.service.with(|service| format!("Roll back {}?", service.name)));
    view! {
        <ConfirmDialog
            id="roll-back"
            title=title
            open=open
            call=call
            keep="Keep revision"
            verb="Roll back"
            confirm=Callback::new(roll_back)
        >
            <p>
                "A rollout in progress ends and its revision gets no more requests. Without a rollout the former revision gets all requests as soon as its replicas are ready. Requests in progress continue to their end."
            </p>
        </ConfirmDialog>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8, name: &str, models: &[&str], expires_at: Option<&str>) -> InferenceKey {
        serde_json::from_value(serde_json::json!({
            "id": format!("ikey_{number:026}"), "name": name, "models": models, "hint": "abcd",
            "requests_per_minute": null, "tokens_per_minute": null, "day_budget_micros": null,
            "month_budget_micros": null, "total_budget_micros": null, "expires_at": expires_at,
            "created_at": "2026-11-20T09:00:00Z", "created_by": "Ada",
            "this_month": {"requests": 0, "errors": 0, "prompt_tokens": 0, "completion_tokens": 0, "token_micros": 0},
        }))
        .unwrap()
    }

    fn service(protocol: &str, canary_key: u8) -> Service {
        let keys = serde_json::json!([{"id": format!("ikey_{canary_key:026}"), "name": "x"}]);
        serde_json::from_value(serde_json::json!({
            "id": "svc_00000000000000000000000001", "org": "org_00000000000000000000000001", "name": "chat",
            "state": "ready", "protocol": protocol, "access": "organization", "hosts": [], "path": "/s/lab/chat",
            "models": [{"name": "llama", "context_tokens": 10}], "max_body_bytes": 10, "scaling": {},
            "rollout": {}, "stopped": false, "replicas": [],
            "revisions": [{"id": "rev_00000000000000000000000001", "number": 4, "state": "canary",
                "weight_percent": 0, "canary_keys": keys}],
            "created_at": "2026-11-20T09:00:00Z", "created_by": "Ada",
            "token_price": {"prompt_micros_per_million": 0, "completion_micros_per_million": 0},
            "last_day": {"requests": 0, "errors": 0, "prompt_tokens": 0, "completion_tokens": 0, "token_micros": 0},
        }))
        .unwrap()
    }

    #[test]
    fn the_dialog_has_the_present_keys_that_may_use_the_service() {
        let at = "2026-11-20T09:00:01Z";
        let now_ms = 1_795_165_200_000;
        let keys = || {
            vec![
                key(1, "zeta", &[], None),
                key(2, "of the model", &["llama"], None),
                key(3, "of the service", &["chat"], Some(at)),
                key(4, "of others", &["gemma"], None),
                key(5, "ended", &[], Some("2026-11-20T09:00:00Z")),
            ]
        };
        assert_eq!(at.parse::<berth_types::time::Timestamp>().unwrap().millis(), now_ms + 1_000);
        let names = |protocol: &str, number: Option<i64>| {
            let all = choices(keys(), &service(protocol, 1), number, now_ms);
            let name = |key: Choice| format!("{}{}", key.name, if key.is_chosen { " +" } else { "" });
            all.into_iter().map(name).collect::<Vec<String>>()
        };
        assert_eq!(names("openai", Some(4)), ["of the model", "zeta +"]);
        assert_eq!(names("http", Some(4)), ["of the service", "zeta +"]);
        assert_eq!(names("http", None), ["of the service", "zeta"]);
        assert_eq!(chosen(Some(choices(keys(), &service("http", 1), Some(4), now_ms).as_slice())).len(), 1);
        assert!(chosen(None).is_empty());
    }

    #[test]
    fn without_the_list_a_revision_keeps_its_present_keys() {
        let present = present_choices(&service("http", 7), Some(4));
        assert_eq!(chosen(Some(present.as_slice())), [key(7, "x", &[], None).id]);
        assert_eq!((present[0].name.as_str(), present[0].hint.as_str()), ("x", ""));
        assert!(present_choices(&service("http", 7), Some(3)).is_empty());
        assert!(present_choices(&service("http", 7), None).is_empty());
    }

    #[test]
    fn only_a_canary_has_a_part_at_the_opening() {
        let mut service = service("http", 1);
        let percents = [Some(4), Some(3), None].map(|number| present_percent(&service, number));
        assert_eq!(percents, ["0", "", ""]);
        service.revisions[0].weight_percent = 10;
        assert_eq!(present_percent(&service, Some(4)), "10");
        service.revisions[0].state = RevisionState::Staging;
        assert_eq!(present_percent(&service, Some(4)), "");
    }

    #[test]
    fn the_first_error_of_the_keys_is_beside_them() {
        let error = |pointer: &str| keys_error(&Problem::invalid_field(pointer, "Bad."));
        assert_eq!(error("/canary_keys").as_deref(), Some("Bad."));
        assert_eq!(error("/canary_keys/3").as_deref(), Some("Bad."));
        assert_eq!(error("/percent"), None);
        assert_eq!(error("/canary_keys_of_others"), None);
    }
}
