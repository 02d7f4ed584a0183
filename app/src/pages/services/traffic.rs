//! Dialogs of the traffic: a part of the requests for a revision, and the way back.

use berth_service_types::revisions::PutTraffic;
use berth_types::problems::Problem;
use leptos::prelude::*;
use serde::de::IgnoredAny;

use super::super::confirm::ConfirmDialog;
use super::super::dialog_form::DialogForm;
use super::super::parts::{Call, CallProblem, FormKey};
use super::state::LiveService;
use crate::api;
use crate::ui::*;

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
    let title = Signal::derive(move || match revision.get() {
        Some(number) => format!("Send traffic to revision {number}"),
        None => "Send traffic".to_owned(),
    });
    let reset = move |()| {
        let present = revision.get_untracked().and_then(|number| {
            live.revisions.with_untracked(|all| {
                all.iter().find(|one| one.number == number).map(|one| one.weight_percent)
            })
        });
        percent.set(present.unwrap_or(0).to_string());
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
        let body = PutTraffic { revision, percent };
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
            reset=Callback::new(reset)
            submit=Callback::new(submit)
        >
            <p>
                "The live revision answers the other requests. With 100 % this revision becomes the live one, and the former one ends its last requests."
            </p>
            <CallProblem call=call beside_fields=&["/percent"]/>
            <NumberField
                label="Part of the requests"
                id="traffic-percent"
                unit="%"
                value=percent
                hint="0 to 100."
                inputmode="numeric"
                error=call.field("/percent")
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
                "A rollout in progress ends and its revision gets no more requests. Without a rollout the former revision gets all requests as soon as its replicas are ready. Requests in progress end as they are."
            </p>
        </ConfirmDialog>
    }
}
