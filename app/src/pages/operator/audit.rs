//! Who did what when: limits, money, reservations and terms that somebody changed on purpose, newest
//! first.
//!
//! Must not leave anything out or tidy it up: what has no words here is shown as it was recorded.

use std::future::Future;

use berth_types::Page as Rows;
use berth_types::invoices::BillingSettings;
use berth_types::quotas::{AuditEvent, Limits};
use berth_types::reservations::ReservationPolicy;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::super::invoices::words::rate_text;
use super::super::limits::kinds::described;
use super::super::more::More;
use super::super::parts::{Call, Loading, every};
use super::super::words::counted;
use super::is_operator;
use super::reservations::terms::policy_text;
use crate::api;
use crate::api::Answer;
use crate::session::{Page, use_session};
use crate::ui::*;

fn load() -> impl Future<Output = Answer<Rows<AuditEvent>>> + Send + 'static {
    api::quotas::audit(None)
}

/// The page with everything that was done.
#[component]
pub fn AuditPage() -> impl IntoView {
    if is_operator() { view! { <Audit/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn Audit() -> impl IntoView {
    let data: Resource<Answer<Rows<AuditEvent>>> = Resource::new(|| (), |()| load());
    view! {
        <Page title="Audit".to_owned()>
            <p class="page__lead">"What was changed on purpose, by whom and when. The portal never changes or removes an entry."</p>
            <Suspense fallback=|| view! { <Loading/> }>
                {move || Suspend::new(async move {
                    match data.await {
                        Err(problem) => view! { <ProblemNotice problem=problem/> }.into_any(),
                        Ok(first) => view! { <Record first=first/> }.into_any(),
                    }
                })}
            </Suspense>
        </Page>
    }
}

/// Puts events that are not known yet in front; the record is newest first and never changes a row.
fn prepend(known: &mut Vec<AuditEvent>, fresh: Vec<AuditEvent>) -> bool {
    let mut all: Vec<AuditEvent> =
        fresh.into_iter().filter(|event| !known.iter().any(|known| known.id == event.id)).collect();
    let some = !all.is_empty();
    all.append(known);
    *known = all;
    some
}

#[component]
fn Record(first: Rows<AuditEvent>) -> impl IntoView {
    let currency = use_session().me.currency;
    let events = RwSignal::new(first.items);
    let cursor = RwSignal::new(first.next_cursor);
    let more = Call::idle();
    every(10_000, move || {
        let fresh = load();
        spawn_local(async move {
            // What cannot be fetched now leaves what is shown; the next round tries again.
            if let Ok(fresh) = fresh.await {
                events.maybe_update(|events| prepend(events, fresh.items));
            }
        });
    });
    let load_more = move |()| {
        let next = api::quotas::audit(cursor.get_untracked());
        more.run(next, move |page: Rows<AuditEvent>| {
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
        {move || events.with(|events| table(events, &currency))}
        <More cursor=cursor call=more load=Callback::new(load_more)/>
    }
}

fn table(events: &[AuditEvent], currency: &str) -> AnyView {
    if events.is_empty() {
        return view! {
            <div class="empty">
                <p class="empty__text">
                    "Nothing was changed yet. Limits and prices that are set, money that is granted or taken back, requests that are answered, reservations that are approved or taken back, and maintenance are recorded here, with who did it and when."
                </p>
                <a class="btn" href="/operator/limits">"Set limits"</a>
            </div>
        }
        .into_any();
    }
    let rows: Vec<AnyView> = events.iter().map(|event| row(event, currency)).collect();
    table_of(
        "What was done, newest first",
        &[("What", ""), ("Who", ""), ("When", "nowrap"), ("To", ""), ("Detail", "")],
        rows,
    )
}

/// An action in words; one that has none reads as it was recorded.
pub(in crate::pages) fn action_text(action: &str) -> &str {
    match action {
        "quota.set" => "set limits",
        "quota.cleared" => "gave the default limits again",
        "quota.requested" => "asked for other limits",
        "quota.granted" => "granted a request for limits",
        "quota.declined" => "declined a request for limits",
        "reservation.extended" => "made a reservation longer",
        "reservation.cancelled" => "ended a reservation",
        "reservation.approved" => "approved a reservation",
        "reservation.declined" => "declined a reservation",
        "reservation_policy.set" => "set the terms of reservations",
        "maintenance.planned" => "planned maintenance",
        "node.drain_set" => "began to empty a node",
        "node.drain_called_off" => "called off emptying a node",
        "node.drained" => "emptied a node",
        "node.shutdown" => "noted that a host is being shut down",
        "attempt.late" => "heard of an attempt that had counted as lost",
        "jobs.stopped" => "stopped jobs of the organization",
        "rack.budget_set" => "set what a rack feeds",
        "rack.budget_removed" => "removed a rack's power budget",
        "price.set" => "set a price",
        "credit.granted" => "granted credit",
        "credit.taken_back" => "took money back",
        "credit_limit.set" => "set a credit limit",
        "budget.created" => "made a budget",
        "budget.deleted" => "deleted a budget",
        "secret.created" => "made a secret",
        "secret.replaced" => "gave a secret a new value",
        "secret.deleted" => "deleted a secret",
        "volume.created" => "made a volume",
        "volume.deleted" => "deleted a volume",
        "volume.file_put" => "put a file into a volume",
        "volume.file_removed" => "took a file out of a volume",
        "webhook.created" => "made a webhook",
        "webhook.deleted" => "deleted a webhook",
        "member.role_changed" => "changed a member's role",
        "member.removed" => "removed a member",
        "member.left" => "left the organization",
        "member.joined" => "joined the organization",
        "invitation.created" => "invited somebody",
        "invitation.resent" => "sent an invitation again",
        "invitation.withdrawn" => "withdrew an invitation",
        "invoice.paid" => "marked an invoice paid",
        "invoice.voided" => "took an invoice back",
        "billing_settings.set" => "set what invoices say",
        other => other,
    }
}

/// What was recorded beside an action, in words where it is a form of ours.
pub(in crate::pages) fn detail_text(event: &AuditEvent, currency: &str) -> String {
    let words = match event.action.as_str() {
        "quota.set" => serde_json::from_str::<Limits>(&event.detail).ok().map(|limits| {
            let words = described(&limits, currency);
            if words.is_empty() { "no limits".to_owned() } else { words.join(", ") }
        }),
        "reservation_policy.set" => {
            serde_json::from_str::<ReservationPolicy>(&event.detail).ok().map(|policy| policy_text(&policy))
        }
        "billing_settings.set" => {
            serde_json::from_str::<BillingSettings>(&event.detail).ok().map(|set| settings_text(&set))
        }
        _ => None,
    };
    words.unwrap_or_else(|| event.detail.clone())
}

/// What invoices say, in one line.
fn settings_text(settings: &BillingSettings) -> String {
    let taxes: Vec<String> =
        settings.taxes.iter().map(|tax| format!("{} {}", tax.name, rate_text(tax.basis_points))).collect();
    let taxes = if taxes.is_empty() { "no taxes".to_owned() } else { taxes.join(", ") };
    let due = counted(usize::try_from(settings.due_days).unwrap_or(0), "day", "days");
    format!("{taxes}; due after {due}; billed by {}", settings.seller.replace('\n', ", "))
}

/// What it was done to, with a way there where there is one.
fn subject(event: &AuditEvent) -> AnyView {
    let id = event.subject.clone();
    if id == "default" {
        return match event.action.as_str() {
            "quota.set" => view! { <a href="/operator/limits">"every organization"</a> }.into_any(),
            _ => "everybody".into_any(),
        };
    }
    if id.starts_with("org_") {
        let path = format!("/operator/limits/{id}");
        return view! { <a class="id" href=path>{id}</a> }.into_any();
    }
    view! { <span class="id">{id}</span> }.into_any()
}

fn row(event: &AuditEvent, currency: &str) -> AnyView {
    let what = action_text(&event.action).to_owned();
    let recorded = (what != event.action).then(|| {
        let action = event.action.clone();
        view! { <span class="table__sub mono">{action}</span> }
    });
    let who = event.actor.clone();
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{what}{recorded}</th>
            <td role="cell" data-label="Who">{who}</td>
            <td role="cell" class="nowrap" data-label="When"><When at=event.at/></td>
            <td role="cell" class="table__lead" data-label="To">{subject(event)}</td>
            <td role="cell" class="table__lead" data-label="Detail">{detail_text(event, currency)}</td>
        </tr>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u32, action: &str, detail: &str) -> AuditEvent {
        AuditEvent {
            id: format!("aud_{number:0>26}").parse().unwrap(),
            at: berth_types::time::Timestamp::from_micros(0),
            actor: "Operator".to_owned(),
            action: action.to_owned(),
            subject: "default".to_owned(),
            detail: detail.to_owned(),
        }
    }

    #[test]
    fn what_was_recorded_reads_in_words() {
        let said = |action: &str, detail: &str| detail_text(&event(1, action, detail), "USD");
        assert_eq!(said("quota.set", r#"{"boards_milli":125}"#), "Boards at once: 0.125");
        assert_eq!(said("quota.set", "{}"), "no limits");
        assert_eq!(said("quota.granted", "until May"), "until May");
        // What cannot be read any more is shown as it is.
        assert_eq!(said("quota.set", r#"{"unknown":1}"#), r#"{"unknown":1}"#);
        let terms = serde_json::to_string(&ReservationPolicy::default()).unwrap();
        assert!(said("reservation_policy.set", &terms).starts_with("Free until 1 d before"));
        let invoices =
            r#"{"seller":"Harbour\nKade 4","taxes":[{"name":"VAT","basis_points":1900}],"due_days":14}"#;
        assert_eq!(
            said("billing_settings.set", invoices),
            "VAT 19 %; due after 14 days; billed by Harbour, Kade 4"
        );
        assert_eq!(action_text("quota.set"), "set limits");
        assert_eq!(action_text("moon.landed"), "moon.landed");
    }

    #[test]
    fn new_events_come_first_and_known_ones_once() {
        let mut events = vec![event(2, "a", ""), event(1, "a", "")];
        assert!(prepend(&mut events, vec![event(3, "a", ""), event(2, "a", "")]));
        let order: Vec<String> = events.iter().map(|event| event.id.to_string()).collect();
        assert_eq!(order, [3, 2, 1].map(|number| format!("aud_{number:0>26}")));
        assert!(!prepend(&mut events, vec![event(3, "a", "")]));
    }
}
