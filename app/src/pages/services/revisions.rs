//! The revisions of a service: table, traffic and the way to a new one.

use berth_service_types::revisions::{Revision, RevisionState, RolloutRule};
use berth_types::Page;
use berth_types::ids::RevisionId;
use leptos::prelude::*;

use super::super::load_more::{LoadMore, append};
use super::super::parts::Call;
use super::super::text::{counted, limit_text, sentence};
use super::state::LiveService;
use super::text::canary_keys_text;
use super::traffic::{RollBackDialog, TrafficDialog};
use crate::address::org_link;
use crate::api;
use crate::ui::*;

/// The number of revisions of a further page.
const PAGE: u32 = 50;

/// The dialogs of the traffic.
#[derive(Clone, Copy)]
struct Dialogs {
    /// The number of the revision that gets traffic.
    revision: RwSignal<Option<i64>>,
    sending: RwSignal<bool>,
    rolling_back: RwSignal<bool>,
}

/// The section of the revisions.
#[component]
pub fn Revisions(live: LiveService) -> impl IntoView {
    let dialogs = Dialogs {
        revision: RwSignal::new(None),
        sending: RwSignal::new(false),
        rolling_back: RwSignal::new(false),
    };
    let more = Call::idle();
    let load_more = move |()| {
        let next = api::services::revisions(live.org, live.id, live.cursor.get_untracked(), PAGE);
        more.run(next, move |page: Page<Revision>| {
            live.revisions.update(|known| append(known, page.items, |revision| revision.id));
            live.cursor.set(page.next_cursor);
        });
    };
    let buttons = live.writes.then(|| buttons(live, dialogs));
    let rule = Memo::new(move |_| live.service.with(|service| rule_text(service.rollout)));
    let keys = Memo::new(move |_| live.service.with(|service| canary_keys_text(&service.revisions)));
    view! {
        <section class="section">
            <div class="section__head">
                <h2>"Revisions"</h2>
                {buttons}
            </div>
            <p class="prose">{move || rule.get()}</p>
            {move || keys.with(|text| {
                (!text.is_empty()).then(|| view! { <p class="prose break">{text.clone()}</p> })
            })}
            {table(live, dialogs)}
            <LoadMore cursor=live.cursor call=more load=Callback::new(load_more)/>
        </section>
        <TrafficDialog live=live revision=dialogs.revision open=dialogs.sending/>
        <RollBackDialog live=live open=dialogs.rolling_back/>
    }
}

/// Returns the rule for the steps of canaries in sentences.
fn rule_text(rule: RolloutRule) -> String {
    let requests = counted(usize::try_from(rule.min_requests).unwrap_or(usize::MAX), "request", "requests");
    let time = limit_text(rule.min_seconds.into());
    let by_person = if rule.automatic {
        ""
    } else {
        " The next step does not begin by itself: a person sends more traffic."
    };
    format!("Each step of a canary gets at least {requests} and lasts at least {time}.{by_person}")
}

/// Returns true for a revision on its way to become live.
const fn is_on_its_way(revision: &Revision) -> bool {
    matches!(revision.state, RevisionState::Staging | RevisionState::Canary)
}

/// Returns true if a person can go back: to an earlier revision, or from one on its way. A first revision that does not
/// start stays on its way, and keeps a new one from its begin.
fn can_go_back(all: &[Revision]) -> bool {
    all.len() > 1 || all.iter().any(is_on_its_way)
}

fn buttons(live: LiveService, dialogs: Dialogs) -> AnyView {
    let can_go_back = Memo::new(move |_| live.revisions.with(|all| can_go_back(all)));
    let ready = live.ready;
    let path = org_link(&format!("/services/{}/new-revision", live.id));
    view! {
        <div class="section__aside">
            <button
                class="btn btn--small"
                type="button"
                hidden=move || !can_go_back.get()
                disabled=move || !ready.get()
                on:click=move |_| dialogs.rolling_back.set(true)
            >
                "Roll back"
            </button>
            <a class="btn btn--small" href=path>"New revision"</a>
        </div>
    }
    .into_any()
}

/// Returns the table. The row of a revision with its button stays the same after a refresh.
fn table(live: LiveService, dialogs: Dialogs) -> AnyView {
    let all = live.revisions;
    let ids = move || all.with(|all| all.iter().map(|revision| revision.id).collect::<Vec<RevisionId>>());
    let find = move |id: RevisionId| all.with(|all| all.iter().find(|revision| revision.id == id).cloned());
    let one = move |id: RevisionId| {
        let revision = Memo::new(move |_| find(id));
        let number = revision.with_untracked(|revision| revision.as_ref().map_or(0, |one| one.number));
        let cells = move || revision.with(|revision| revision.as_ref().map(cells));
        let is_candidate = Memo::new(move |_| {
            let has_live = all.with(|all| all.iter().any(|one| one.state == RevisionState::Live));
            has_live && revision.with(|revision| revision.as_ref().is_some_and(is_on_its_way))
        });
        let button = live.writes.then(|| traffic_button(number, live.ready, is_candidate, dialogs));
        view! {
            <tr role="row">
                <th role="rowheader" scope="row">{number}</th>
                {cells}
                <td role="cell" class="table__actions">{button}</td>
            </tr>
        }
    };
    let rows = view! { <For each=ids key=|id: &RevisionId| *id children=one/> }.into_any();
    live_table(
        "Revisions",
        &[
            ("Revision", ""),
            STATE,
            ("Traffic", "num"),
            ("Note", ""),
            ("Offering", ""),
            ("Created", ""),
            ACTIONS,
        ],
        rows,
    )
}

/// Returns the button for a revision on its way to become live; hidden for others.
fn traffic_button(
    number: i64,
    ready: ReadSignal<bool>,
    is_candidate: Memo<bool>,
    dialogs: Dialogs,
) -> AnyView {
    let label = format!("Send traffic to revision {number}");
    view! {
        <button
            class="btn btn--small"
            type="button"
            aria-label=label
            hidden=move || !is_candidate.get()
            disabled=move || !ready.get()
            on:click=move |_| {
                dialogs.revision.set(Some(number));
                dialogs.sending.set(true);
            }
        >
            "Send traffic"
        </button>
    }
    .into_any()
}

/// Returns the cells of a revision between its number and its button.
fn cells(revision: &Revision) -> AnyView {
    let detail = revision.detail.as_ref().filter(|_| revision.state != RevisionState::Live).map(|detail| {
        view! { <span class="table__sub">{sentence(detail)}</span> }
    });
    let by = format!("by {}", revision.created_by);
    view! {
        <td role="cell" class="table__state" data-label="State">
            <RevisionBadge state=revision.state/>
        </td>
        <td role="cell" class="num" data-label="Traffic">{format!("{} %", revision.weight_percent)}</td>
        <td role="cell" data-label="Note"><span class="break">{revision.spec.note.clone()}</span>{detail}</td>
        <td role="cell" data-label="Offering"><span class="nowrap">{revision.spec.job.offering.clone()}</span></td>
        <td role="cell" data-label="Created"><When at=revision.created_at/><span class="table__sub">{by}</span></td>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revision(number: i64, state: &str) -> Revision {
        let job = serde_json::json!({"name": "chat", "offering": "h100-80gb", "max_duration_s": 60});
        serde_json::from_value(serde_json::json!({
            "id": format!("rev_{number:026}"), "number": number, "state": state, "weight_percent": 0,
            "spec": {"job": job, "port": 8_000}, "created_at": "2026-11-20T09:00:00Z", "created_by": "Ada",
        }))
        .unwrap()
    }

    #[test]
    fn a_first_revision_on_its_way_can_be_rolled_back_too() {
        for (states, expected) in [
            (vec!["staging"], true),
            (vec!["canary"], true),
            (vec!["live"], false),
            (vec!["rolled_back"], false),
            (vec!["live", "retired"], true),
            (vec![], false),
        ] {
            let all: Vec<Revision> =
                (1..).zip(&states).map(|(number, state)| revision(number, state)).collect();
            assert_eq!(can_go_back(&all), expected, "{states:?}");
        }
    }

    #[test]
    fn a_rule_says_who_begins_the_next_step() {
        let rule = RolloutRule::default();
        assert_eq!(
            rule_text(rule),
            "Each step of a canary gets at least 50 requests and lasts at least 1 min."
        );
        let manual = RolloutRule { min_requests: 1, min_seconds: 90, automatic: false, ..rule };
        assert_eq!(
            rule_text(manual),
            "Each step of a canary gets at least 1 request and lasts at least 1 min 30 s. The next step does not begin by itself: a person sends more traffic."
        );
    }
}
