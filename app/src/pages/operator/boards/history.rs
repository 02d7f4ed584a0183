//! History of the health of a board: its faults, checks and releases from the audit events. It loads on opening.

use berth_types::Page as Rows;
use berth_types::quotas::AuditEvent;
use leptos::prelude::*;

use super::super::super::parts::{Call, CallProblem};
use super::super::audit::action_text;
use crate::api;
use crate::ui::*;

/// The closed history of a board.
#[component]
pub fn History(
    /// The UUID of the board.
    uuid: String,
) -> impl IntoView {
    let call = Call::idle();
    let events = RwSignal::new(None::<Vec<AuditEvent>>);
    let load = move || {
        call.run(api::quotas::audit_about(uuid.clone()), move |page: Rows<AuditEvent>| {
            events.set(Some(page.items));
        });
    };
    let details = NodeRef::<leptos::html::Details>::new();
    let open = {
        let load = load.clone();
        move |_: leptos::ev::MouseEvent| {
            // The click comes before the change of the state.
            if details.get_untracked().is_some_and(|details| !details.open()) {
                load();
            }
        }
    };
    // The history may be open before hydration.
    Effect::new(move || {
        if details.get().is_some_and(|details| details.open()) {
            load();
        }
    });
    let rows = move || {
        events.with(|events| match events {
            None if call.problem.with(Option::is_some) => ().into_any(),
            None => view! { <p class="quiet">"Loading history…"</p> }.into_any(),
            Some(events) if events.is_empty() => {
                view! { <p class="quiet">"No faults, checks or releases yet."</p> }.into_any()
            }
            Some(events) => table("Latest 20 health events, newest first", events),
        })
    };
    view! {
        <details class="more" node_ref=details>
            <summary on:click=open>"Health history"</summary>
            <CallProblem call=call beside_fields=&[]/>
            {rows}
        </details>
    }
}

/// Returns a table of events.
pub fn table(caption: &'static str, events: &[AuditEvent]) -> AnyView {
    let row = |event: &AuditEvent| {
        let actor = event.actor.clone();
        let action = action_text(&event.action).to_owned();
        let detail = event.detail.clone();
        view! {
            <tr role="row">
                <th role="rowheader" scope="row">{action}<span class="table__sub">{actor}</span></th>
                <td role="cell" class="nowrap" data-label="Time"><When at=event.at/></td>
                <td role="cell" class="table__lead" data-label="Details">{detail}</td>
            </tr>
        }
        .into_any()
    };
    let rows: Vec<AnyView> = events.iter().map(row).collect();
    table_of(caption, &[("Event", ""), ("Time", "nowrap"), ("Details", "")], rows)
}
