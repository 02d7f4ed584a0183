//! Page of the audit events, newest first, with a filter in the URL. An event without a text here appears as recorded.

mod filter;
mod texts;

use std::future::Future;

use berth_types::Page as Rows;
use berth_types::operators::OperatorRight;
use berth_types::quotas::{AuditContext, AuditEvent};
use leptos::prelude::*;
use leptos::task::spawn_local;
use leptos_router::hooks::use_query_map;
use serde::{Deserialize, Serialize};

use self::filter::{AuditListing, filter_form};
pub(in crate::pages) use self::texts::{action_text, detail_text};
use super::super::curl::ListCurl;
use super::super::load_more::LoadMore;
use super::super::org_data::answer_view;
use super::super::parts::{Call, every_visible};

use super::may;
use crate::api;
use crate::api::Answer;
use crate::session::{Page, use_session};
use crate::ui::*;

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    listing: AuditListing,
    first: Rows<AuditEvent>,
}

fn load(listing: AuditListing) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let first = api::quotas::audit(&listing.query(), None);
    async move { Ok(Loaded { listing, first: first.await? }) }
}

/// The page of all audit events.
#[component]
pub fn AuditPage() -> impl IntoView {
    if may(OperatorRight::Inspect) { view! { <Audit/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn Audit() -> impl IntoView {
    let query = use_query_map();
    let listing = Memo::new(move |_| query.with(|query| AuditListing::parse(|name| query.get(name))));
    let data: Resource<Answer<Loaded>> = Resource::new(move || listing.get(), load);
    view! {
        <Page title="Audit".to_owned()>
            <p class="page__lead">"Record of all deliberate acts with user and time. An audit event is never changed or deleted; a chain of hashes with signed checkpoints proves it."</p>
            {answer_view(data, |loaded| view! { <EventList loaded=loaded/> }.into_any())}
        </Page>
    }
}

/// The effect of the newest events on the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refresh {
    Unchanged,
    Added,
    /// The list has only the newest events, because events between them and the earlier list are missing.
    Replaced,
}

/// Inserts new events at the front. Recorded events never change.
fn prepend(known: &mut Vec<AuditEvent>, fresh: Vec<AuditEvent>) -> Refresh {
    let (total, is_known) =
        (fresh.len(), |event: &AuditEvent| known.iter().any(|known| known.id == event.id));
    let mut new: Vec<AuditEvent> = fresh.into_iter().filter(|event| !is_known(event)).collect();
    if new.is_empty() {
        return Refresh::Unchanged;
    }
    if new.len() == total {
        *known = new;
        return Refresh::Replaced;
    }
    new.append(known);
    *known = new;
    Refresh::Added
}

#[component]
fn EventList(loaded: Loaded) -> impl IntoView {
    let Loaded { listing, first } = loaded;
    let (form, is_filtered) = (filter_form(&listing), listing.is_filtered());
    let query = StoredValue::new(listing.query());
    let file = |format: &str| {
        let joint = if is_filtered { "&" } else { "" };
        format!("/api/v1/operator/audit-events?format={format}{joint}{}", listing.query())
    };
    let (csv, ndjson) = (file("csv"), file("ndjson"));
    let path = if is_filtered {
        format!("/operator/audit-events?{}", listing.query())
    } else {
        "/operator/audit-events".to_owned()
    };
    let currency = StoredValue::new(use_session().me.currency);
    let events = RwSignal::new(first.items);
    let none = Memo::new(move |_| events.with(Vec::is_empty));
    let cursor = RwSignal::new(first.next_cursor);
    let more = Call::idle();
    every_visible(10_000, move || {
        let Some(fresh) = query.try_with_value(|query| api::quotas::audit(query, None)) else { return };
        spawn_local(async move {
            // The next round repeats a failed request.
            if let Ok(fresh) = fresh.await {
                let mut refresh = Refresh::Unchanged;
                events.maybe_update(|events| {
                    refresh = prepend(events, fresh.items);
                    refresh != Refresh::Unchanged
                });
                if refresh == Refresh::Replaced {
                    cursor.set(fresh.next_cursor);
                }
            }
        });
    });
    let load_more = move |()| {
        let from = cursor.get_untracked();
        let next = query.with_value(|query| api::quotas::audit(query, from.clone()));
        more.run(next, move |page: Rows<AuditEvent>| {
            // The page does not follow on a list that was replaced meanwhile.
            if cursor.try_get_untracked() != Some(from) {
                return;
            }
            events.update(|events| {
                for event in page.items {
                    if !events.iter().any(|known| known.id == event.id) {
                        events.push(event);
                    }
                }
            });
            cursor.set(page.next_cursor);
        });
    };
    view! {
        {form}
        <div class="section__head">
            <div class="section__aside">
                <a href=csv rel="external" download="audit-events.csv">"Download CSV"</a>
                <a href=ndjson rel="external" download="audit-events.ndjson">"Download NDJSON"</a>
            </div>
        </div>
        {move || if none.get() { no_events(is_filtered) } else { table(events, currency) }}
        <LoadMore cursor=cursor call=more load=Callback::new(load_more)/>
        <ListCurl path=path label="Audit events with curl"/>
    }
}

fn no_events(is_filtered: bool) -> AnyView {
    if is_filtered {
        return empty("No entries match. Clear the filters to see all entries.");
    }
    empty_linked(
        "No audit events yet. Changes of limits, prices, credits, invoices, reservations and nodes appear here with user and time.",
        "/operator/limits",
        "Set limits",
    )
}

/// Returns the table of the events. A row with open details stays the same row after new events.
fn table(events: RwSignal<Vec<AuditEvent>>, currency: StoredValue<String>) -> AnyView {
    let one = move |event: AuditEvent| currency.with_value(|currency| row(&event, currency));
    let rows =
        view! { <For each=move || events.get() key=|event: &AuditEvent| event.id children=one/> }.into_any();
    table_of(
        "Audit events, newest first",
        &[("Action", ""), ("User", ""), ("Time", "nowrap"), ("Subject", ""), ("Details", "")],
        vec![rows],
    )
}

/// Returns the subject of an event, as a link if it has a page.
pub fn subject(event: &AuditEvent) -> AnyView {
    let id = event.subject.clone();
    if id == "default" {
        return match event.action.as_str() {
            "quota.set" => view! { <a href="/operator/limits">"all organizations"</a> }.into_any(),
            _ => "all organizations".into_any(),
        };
    }
    if id.starts_with("org_") {
        let path = format!("/operator/limits/{id}");
        return view! { <a class="id" href=path>{id}</a> }.into_any();
    }
    view! { <span class="id">{id}</span> }.into_any()
}

/// Returns the circumstances of an event, closed at first.
fn circumstances(context: &AuditContext, action: &str) -> AnyView {
    let title = match context.seq {
        Some(seq) => format!("Record of event {seq}"),
        None => format!("Record of {action}"),
    };
    let facts = [
        ("User id", context.actor_id.map(|id| id.to_string())),
        ("Token", context.token_id.map(|id| id.to_string())),
        ("Session", context.session.clone()),
        ("IP address", context.address.clone()),
        ("Request", context.request_id.map(|id| id.to_string())),
        ("Organization", context.org.map(|id| id.to_string())),
        ("Before", context.before.clone()),
        ("After", context.after.clone()),
        ("Number in the chain", context.seq.map(|seq| seq.to_string())),
        ("Hash", context.hash.clone()),
    ];
    let known = facts.into_iter().filter_map(|(name, value)| value.map(|value| (name, value)));
    let pairs: Vec<AnyView> =
        known.map(|(name, value)| view! { <dt>{name}</dt><dd>{value}</dd> }.into_any()).collect();
    if pairs.is_empty() {
        return ().into_any();
    }
    view! {
        <details class="more">
            <summary>{title}</summary>
            <dl class="kv">{pairs}</dl>
        </details>
    }
    .into_any()
}

fn row(event: &AuditEvent, currency: &str) -> AnyView {
    let action = action_text(&event.action).to_owned();
    let circumstances = circumstances(&event.context, &action);
    let (recorded, user) = (event.action.clone(), event.actor.clone());
    view! {
        <tr role="row">
            <th role="rowheader" scope="row"><span title=recorded>{action}</span></th>
            <td role="cell" data-label="User">{user}</td>
            <td role="cell" class="nowrap" data-label="Time"><When at=event.at/></td>
            <td role="cell" class="table__lead" data-label="Subject">{subject(event)}</td>
            <td role="cell" class="table__lead" data-label="Details">
                <span class="break">{detail_text(event, currency)}</span>
                {circumstances}
            </td>
        </tr>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::texts::tests::event;
    use super::*;

    #[test]
    fn new_events_come_first_and_each_event_once() {
        let mut events = vec![event(2, "a", ""), event(1, "a", "")];
        assert_eq!(prepend(&mut events, vec![event(3, "a", ""), event(2, "a", "")]), Refresh::Added);
        let order: Vec<String> = events.iter().map(|event| event.id.to_string()).collect();
        assert_eq!(order, [3, 2, 1].map(|number| format!("aud_{number:0>26}")));
        assert_eq!(prepend(&mut events, vec![event(3, "a", "")]), Refresh::Unchanged);
        assert_eq!(prepend(&mut events, Vec::new()), Refresh::Unchanged);
    }

    #[test]
    fn newest_events_without_a_known_one_replace_the_list() {
        let mut events = vec![event(2, "a", ""), event(1, "a", "")];
        assert_eq!(prepend(&mut events, vec![event(9, "a", ""), event(8, "a", "")]), Refresh::Replaced);
        let order: Vec<String> = events.iter().map(|event| event.id.to_string()).collect();
        assert_eq!(order, [9, 8].map(|number| format!("aud_{number:0>26}")));
        let mut none = Vec::new();
        assert_eq!(prepend(&mut none, vec![event(1, "a", "")]), Refresh::Replaced);
        assert_eq!(none.len(), 1);
    }
}
