//! The replicas of a service, the decision about their number, and the dialog of the rule.

use berth_service_types::scaling::{Scaling, ScalingDecision};
use berth_service_types::services::{PatchService, Service, ServiceReplica};
use berth_types::ids::JobId;
use berth_types::problems::Problem;
use leptos::prelude::*;
use serde::de::IgnoredAny;

use super::super::dialog_form::DialogForm;
use super::super::parts::{Call, CallProblem};
use super::super::text::{limit_text, number, sentence};
use super::draft::ScalingDraft;
use super::form::{ScalingFields, ScalingForm};
use super::replica_bar;
use super::schedule::schedule_text;
use super::state::LiveService;
use crate::address::org_link;
use crate::api;
use crate::ui::*;

/// The section of the replicas.
#[component]
pub fn Replicas(live: LiveService) -> impl IntoView {
    let open = RwSignal::new(false);
    let none = Memo::new(move |_| live.service.with(|service| service.replicas.is_empty()));
    let decision = Memo::new(move |_| live.service.with(present_decision));
    let rule = Memo::new(move |_| live.service.with(|service| rule_text(&service.scaling)));
    let bar =
        Memo::new(move |_| live.service.with(|service| (service.replicas.clone(), service.scaling.clone())));
    let ready = live.ready;
    // The jobs of ended replicas too, with the logs of those that failed.
    let jobs = org_link(&live.service.with_untracked(|service| jobs_page(&service.name)));
    let button = live.writes.then(|| {
        view! {
            <button
                class="btn btn--small"
                type="button"
                disabled=move || !ready.get()
                on:click=move |_| open.set(true)
            >
                "Change scaling"
            </button>
        }
    });
    view! {
        <section class="section">
            <div class="section__head">
                <h2>"Replicas"</h2>
                // A memo without a read follows nothing.
                {move || bar.with(|_| live.service.with_untracked(replica_bar))}
                <div class="section__aside">
                    {button}
                    <a class="btn btn--small" href=jobs>"Jobs of this service"</a>
                </div>
            </div>
            <p class="prose">{move || rule.get()} " " {move || decision.get().map(|one| decision_view(&one))}</p>
            {move || if none.get() { empty("No replicas at present.") } else { table(live) }}
        </section>
        <ScalingDialog live=live open=open/>
    }
}

/// Returns the page of all jobs with the name of a service, also of deleted ones. The portal sets their label.
fn jobs_page(service: &str) -> String {
    format!("/jobs?label=berth-service%3D{service}")
}

/// Returns the rule for the number of replicas as a sentence.
fn rule_text(scaling: &Scaling) -> String {
    let Scaling { min_replicas, max_replicas, target_requests, idle_s, .. } = *scaling;
    let range = match (min_replicas, max_replicas) {
        (1, 1) => "The service keeps 1 replica".to_owned(),
        (min, max) if min == max => format!("The service keeps {min} replicas"),
        (min, max) => {
            let each = if target_requests == 1 {
                "request".to_owned()
            } else {
                format!("{target_requests} requests")
            };
            format!("The service has {min} to {max} replicas, one for each {each}")
        }
    };
    let sleep = if min_replicas == 0 {
        format!(", and falls asleep after {} without a request", limit_text(idle_s.into()))
    } else {
        String::new()
    };
    let schedule = schedule_text(&scaling.schedule, &scaling.time_zone);
    let schedule = if schedule.is_empty() { schedule } else { format!(" Schedule: {schedule}.") };
    let shadow =
        if scaling.shadow { " Shadow mode: the decisions and the schedule are not applied." } else { "" };
    format!("{range}{sleep}.{schedule}{shadow}")
}

/// Returns the last decision about the number of replicas; absent for a stopped service, for which none is made.
fn present_decision(service: &Service) -> Option<ScalingDecision> {
    service.decision.clone().filter(|_| !service.stopped)
}

/// Shows a decision about the number of replicas.
fn decision_view(decision: &ScalingDecision) -> AnyView {
    let load = format!(" ({} in flight, {} waiting)", number(decision.in_flight), number(decision.waiting));
    let reason = sentence(&decision.reason);
    let verb = if decision.applied { "Wanted now: " } else { "Would be wanted now: " };
    view! {
        {verb} {decision.replicas} {load} ". " {reason} " " <span class="quiet"><When at=decision.at/></span>
    }
    .into_any()
}

/// Returns the table. The row and the link of a replica stay the same after a refresh. A job without a submission has no
/// page to link to.
fn table(live: LiveService) -> AnyView {
    let service = live.service;
    let ids =
        move || service.with(|service| service.replicas.iter().map(|one| one.job).collect::<Vec<JobId>>());
    let find =
        move |id: JobId| service.with(|service| service.replicas.iter().find(|one| one.job == id).cloned());
    let one = move |id: JobId| {
        let replica = Memo::new(move |_| find(id));
        let cells = move || replica.with(|replica| replica.as_ref().map(cells));
        let submitted =
            Memo::new(move |_| replica.with(|replica| replica.as_ref().is_some_and(|one| one.submitted)));
        let link = org_link(&format!("/jobs/{id}"));
        let job = move || match submitted.get() {
            true => view! { <a class="mono" href=link.clone()>{id.to_string()}</a> }.into_any(),
            false => view! { <span class="mono">{id.to_string()}</span> }.into_any(),
        };
        view! {
            <tr role="row">
                <th role="rowheader" scope="row">{job}</th>
                {cells}
            </tr>
        }
    };
    let rows = view! { <For each=ids key=|id: &JobId| *id children=one/> }.into_any();
    live_table(
        "Replicas",
        &[("Job", ""), STATE, ("Revision", "num"), ("Node", ""), ("Ready since", ""), ("Created", "")],
        rows,
    )
}

/// Returns the cells of a replica after its job.
fn cells(replica: &ServiceReplica) -> AnyView {
    let ready = match replica.ready_since {
        Some(at) => view! { <When at=at/> }.into_any(),
        None => "–".into_any(),
    };
    let nodes = if replica.nodes.is_empty() { "–".to_owned() } else { replica.nodes.join(", ") };
    view! {
        <td role="cell" class="table__state" data-label="State"><ReplicaBadge replica=replica.clone()/></td>
        <td role="cell" class="num" data-label="Revision">{replica.revision_number}</td>
        <td role="cell" data-label="Node"><span class="break">{nodes}</span></td>
        <td role="cell" class="nowrap" data-label="Ready since">{ready}</td>
        <td role="cell" class="nowrap" data-label="Created"><When at=replica.created_at/></td>
    }
    .into_any()
}

/// The dialog of the rule for the number of replicas.
#[component]
fn ScalingDialog(live: LiveService, open: RwSignal<bool>) -> impl IntoView {
    let call = Call::idle();
    let present = move || live.service.with_untracked(|service| ScalingDraft::new(&service.scaling));
    let form = ScalingForm::new(present());
    let reset = move |()| form.set(present());
    let submit = move |()| {
        let mut errors = Vec::new();
        let scaling = untrack(|| form.draft()).parse(&mut errors);
        if !errors.is_empty() {
            call.problem.set(Some(Problem::invalid(errors)));
            return;
        }
        let body = PatchService { scaling: Some(scaling), ..PatchService::default() };
        call.run(api::services::patch(live.org, live.id, &body), move |_: IgnoredAny| {
            live.reload();
            open.set(false);
        });
    };
    view! {
        <DialogForm
            id="change-scaling"
            title="Scaling"
            open=open
            call=call
            keep="Keep scaling"
            verb="Change scaling"
            reset=Callback::new(reset)
            submit=Callback::new(submit)
        >
            <CallProblem call=call beside_fields=&["/scaling"]/>
            <ScalingFields form=form call=call/>
        </DialogForm>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_names_its_schedule() {
        let window = serde_json::json!([{
            "begin": {"day": "monday", "minute": 480}, "end": {"day": "monday", "minute": 1080}, "floor": 2,
        }]);
        let scaling = Scaling {
            max_replicas: 4,
            schedule: serde_json::from_value(window).unwrap(),
            shadow: true,
            ..Scaling::default()
        };
        assert_eq!(
            rule_text(&scaling),
            "The service has 1 to 4 replicas, one for each 4 requests. Schedule: Monday 08:00 to Monday 18:00 \
             at least 2 replicas (UTC). Shadow mode: the decisions and the schedule are not applied."
        );
    }

    #[test]
    fn a_stopped_service_has_no_present_decision() {
        let service = |stopped: bool| -> Service {
            serde_json::from_value(serde_json::json!({
                "id": "svc_00000000000000000000000001", "org": "org_00000000000000000000000001", "name": "chat",
                "state": "asleep", "protocol": "http", "access": "public", "hosts": [], "path": "/s/lab/chat",
                "models": [], "max_body_bytes": 10, "scaling": {}, "rollout": {}, "stopped": stopped, "revisions": [],
                "replicas": [], "created_at": "2026-11-20T09:00:00Z", "created_by": "Ada",
                "decision": {"at": "2026-11-20T09:00:00Z", "replicas": 2, "applied": true, "reason": "2 replicas",
                    "in_flight": 8, "waiting": 0},
                "token_price": {"prompt_micros_per_million": 0, "completion_micros_per_million": 0},
                "last_day": {"requests": 0, "errors": 0, "prompt_tokens": 0, "completion_tokens": 0, "token_micros": 0},
            }))
            .unwrap()
        };
        assert_eq!(present_decision(&service(false)).map(|one| one.replicas), Some(2));
        assert_eq!(present_decision(&service(true)), None);
    }

    #[test]
    fn a_rule_is_one_sentence() {
        let rule = |min_replicas: u32, max_replicas: u32| Scaling {
            min_replicas,
            max_replicas,
            ..Scaling::default()
        };
        for (scaling, text) in [
            (rule(1, 1), "The service keeps 1 replica."),
            (rule(3, 3), "The service keeps 3 replicas."),
            (rule(1, 4), "The service has 1 to 4 replicas, one for each 4 requests."),
            (
                Scaling { target_requests: 1, ..rule(1, 4) },
                "The service has 1 to 4 replicas, one for each request.",
            ),
            (
                rule(0, 4),
                "The service has 0 to 4 replicas, one for each 4 requests, and falls asleep after 10 min without a request.",
            ),
            (
                Scaling { shadow: true, ..rule(2, 2) },
                "The service keeps 2 replicas. Shadow mode: the decisions and the schedule are not applied.",
            ),
        ] {
            assert_eq!(rule_text(&scaling), text);
        }
    }
}
