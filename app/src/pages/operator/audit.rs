//! Page of the audit events, newest first, with a filter in the URL. An event without a text here appears as recorded.

mod filter;

use std::future::Future;

use berth_types::Page as Rows;
use berth_types::invoices::BillingSettings;
use berth_types::quotas::{AuditContext, AuditEvent, Limits};
use berth_types::reservations::ReservationPolicy;
use leptos::prelude::*;
use leptos::task::spawn_local;
use leptos_router::hooks::use_query_map;
use serde::{Deserialize, Serialize};

use self::filter::{AuditListing, filter_form};
use super::super::curl::ListCurl;
use super::super::invoices::text::rate_text;
use super::super::limits::kinds::limits_text;
use super::super::load_more::LoadMore;
use super::super::org_data::answer_view;
use super::super::parts::{Call, every_visible};
use super::super::text::{counted, size_text};
use super::is_operator;
use super::reservations::terms::policy_text;
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
    if is_operator() { view! { <Audit/> }.into_any() } else { view! { <NotFound/> }.into_any() }
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
    view! {
        <div class="empty">
            <p class="empty__text">
                "No audit events yet. Changes of limits, prices, credits, invoices, reservations and nodes appear here with user and time."
            </p>
            <a class="btn" href="/operator/limits">"Set limits"</a>
        </div>
    }
    .into_any()
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

/// Returns the text of an action, or the recorded action without one.
pub(in crate::pages) fn action_text(action: &str) -> &str {
    match action {
        "account.deleted" => "Account deleted",
        "account.disabled" => "Account disabled",
        "account.enabled" => "Account enabled",
        "email.verification_asked" => "Verification link requested",
        "email.verified" => "E-mail address verified",
        "password.changed" => "Password changed",
        "password.reset" => "Password set by a link",
        "password.reset_asked" => "Password link requested",
        "session.ended" => "Session ended",
        "sessions.ended" => "All sessions ended",
        "join_token.created" => "Join token created",
        "quota.set" => "Limits set",
        "quota.cleared" => "Default limits restored",
        "quota.requested" => "Limits or credit requested",
        "quota.granted" => "Request granted",
        "quota.declined" => "Request declined",
        "reservation.extended" => "Reservation extended",
        "reservation.cancelled" => "Reservation cancelled or returned",
        "reservation.approved" => "Reservation approved",
        "reservation.declined" => "Reservation declined",
        "reservation_policy.set" => "Reservation terms set",
        "retention.removed" => "Old jobs removed",
        "retention.set" => "Retention of ended jobs set",
        "maintenance.planned" => "Maintenance planned",
        "node.approved" => "Node approved",
        "node.removed" => "Node removed",
        "node.labels_set" => "Labels of a node set",
        "node.dedicated" => "Dedication of a node set",
        "org.own_nodes_set" => "Use of own nodes only set",
        "attempt.start_refused" => "Start refused on a dedicated node",
        "node.drain_set" => "Drain started",
        "node.drain_called_off" => "Drain cancelled",
        "node.drained" => "Drain completed",
        "node.shutdown" => "Host shutdown reported",
        "node.lost" => "Node counted as lost",
        "node.declared_lost" => "Node declared lost",
        "node.returned" => "Lost node reconnected",
        "node.cloned" => "Copied node detected",
        "node.revoked" => "Node certificate revoked",
        "node.boards_left_out" => "Boards of another node excluded",
        "gpu.approved" => "Board approved",
        "gpu.quarantined" => "Board put out of service",
        "gpu.cleared" => "Board put back into service",
        "gpu.released" => "Board released",
        "gpu.check_asked" => "Board check requested",
        "gpu.mode_asked" => "MIG mode requested",
        "attempt.late" => "Attempt reported after its loss",
        "jobs.stopped" => "Jobs stopped",
        "terminal.opened" => "Terminal opened",
        "terminal.closed" => "Terminal closed",
        "port.opened" => "Port opened",
        "file.removed" => "File deleted",
        "rack.budget_set" => "Rack power budget set",
        "rack.budget_removed" => "Rack power budget removed",
        "price.set" => "Price set",
        "credit.granted" => "Credit granted",
        "credit.taken_back" => "Account debited",
        "credit_limit.set" => "Credit limit set",
        "budget.created" => "Budget created",
        "budget.deleted" => "Budget deleted",
        "secret.created" => "Secret created",
        "secret.replaced" => "Secret value replaced",
        "secret.deleted" => "Secret deleted",
        "volume.created" => "Volume created",
        "volume.deleted" => "Volume deleted",
        "volume.file_put" => "File uploaded to a volume",
        "volume.file_removed" => "File deleted from a volume",
        "webhook.created" => "Webhook created",
        "webhook.deleted" => "Webhook deleted",
        "webhook.passed_on" => "Webhook passed to an owner",
        "webhook.stopped" => "Webhook stopped",
        "member.role_changed" => "Role of a member changed",
        "member.removed" => "Member removed",
        "member.left" => "Member left",
        "attempt.meter_refused" => "Meter refused",
        "token.created" => "Token created",
        "token.revoked" => "Token revoked",
        "token.refused" => "Token refused",
        "service_account.created" => "Service account created",
        "service_account.disabled" => "Service account disabled",
        "service_account.enabled" => "Service account enabled",
        "service_account.deleted" => "Service account deleted",
        "member.joined" => "Member joined",
        "factor.added" => "Authenticator app added",
        "factor.removed" => "Authenticator app removed",
        "factor.codes_replaced" => "Recovery codes replaced",
        "sign_in_policy.set" => "Sign-in policy set",
        "invitation.created" => "Invitation created",
        "invitation.resent" => "Invitation resent",
        "invitation.withdrawn" => "Invitation withdrawn",
        "invoice.paid" => "Invoice marked as paid",
        "invoice.voided" => "Invoice voided",
        "billing_settings.set" => "Invoice settings set",
        "portal_settings.set" => "Portal settings set",
        "portal_logo.set" => "Portal logo set",
        "portal_logo.removed" => "Portal logo removed",
        "access.denied" => "Access denied",
        "auto_recharge.set" => "Automatic recharge set",
        "job.cancelled" => "Job cancelled",
        "node.cordoned" => "Node cordoned",
        "node.uncordoned" => "Node uncordoned",
        "portal.set_up" => "Portal set up",
        "session.started" => "Signed in",
        "session.refused" => "Sign-in refused",
        "sso.domain_confirmed" => "Domain confirmed",
        "sso.domain_refused" => "Domain no longer confirmed",
        "sso.ended" => "Access ended by single sign-on",
        "sso.linked" => "Single sign-on linked",
        "sso.provider_removed" => "Single sign-on removed",
        "sso.provider_set" => "Single sign-on set",
        "sso.refused" => "Single sign-on refused",
        "user.signed_up" => "Signed up",
        other => other,
    }
}

/// Returns the details of an event; a recorded JSON document becomes text.
pub(in crate::pages) fn detail_text(event: &AuditEvent, currency: &str) -> String {
    let text = match event.action.as_str() {
        "quota.set" => serde_json::from_str::<Limits>(&event.detail).ok().map(|limits| {
            let lines = limits_text(&limits, currency);
            if lines.is_empty() { "no limits".to_owned() } else { lines.join(", ") }
        }),
        "reservation_policy.set" => {
            serde_json::from_str::<ReservationPolicy>(&event.detail).ok().map(|policy| policy_text(&policy))
        }
        "billing_settings.set" => {
            serde_json::from_str::<BillingSettings>(&event.detail).ok().map(|set| settings_text(&set))
        }
        "volume.created" | "volume.deleted" | "retention.removed" => Some(sized(&event.detail)),
        _ => None,
    };
    text.unwrap_or_else(|| event.detail.clone())
}

/// Writes a size at the end, such as `1073741824 bytes`, in binary units.
fn sized(detail: &str) -> String {
    let Some(rest) = detail.strip_suffix(" bytes") else { return detail.to_owned() };
    let (lead, number) = match rest.rsplit_once(' ') {
        Some((lead, number)) => (format!("{lead} "), number),
        None => (String::new(), rest),
    };
    number.parse::<u64>().map_or_else(|_| detail.to_owned(), |bytes| format!("{lead}{}", size_text(bytes)))
}

/// Returns the invoice settings in one line.
fn settings_text(settings: &BillingSettings) -> String {
    let taxes: Vec<String> =
        settings.taxes.iter().map(|tax| format!("{} {}", tax.name, rate_text(tax.basis_points))).collect();
    let taxes = if taxes.is_empty() { "no taxes".to_owned() } else { taxes.join(", ") };
    let due = counted(usize::try_from(settings.due_days).unwrap_or(0), "day", "days");
    format!("{taxes}; due after {due}; billed by {}", settings.seller.replace('\n', ", "))
}

/// Returns the subject of an event, as a link if it has a page.
fn subject(event: &AuditEvent) -> AnyView {
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
    use super::*;
    use berth_types::quotas::AUDIT_ACTIONS;

    fn event(number: u32, action: &str, detail: &str) -> AuditEvent {
        AuditEvent {
            id: format!("aud_{number:0>26}").parse().unwrap(),
            at: berth_types::time::Timestamp::from_micros(0),
            actor: "Operator".to_owned(),
            action: action.to_owned(),
            subject: "default".to_owned(),
            detail: detail.to_owned(),
            context: AuditContext::default(),
        }
    }

    #[test]
    fn recorded_details_become_text() {
        let text = |action: &str, detail: &str| detail_text(&event(1, action, detail), "USD");
        assert_eq!(text("quota.set", r#"{"boards_milli":125}"#), "Boards at once: 0.125");
        assert_eq!(text("quota.set", "{}"), "no limits");
        assert_eq!(text("quota.granted", "until May"), "until May");
        // An unknown document stays unchanged.
        assert_eq!(text("quota.set", r#"{"unknown":1}"#), r#"{"unknown":1}"#);
        let terms = serde_json::to_string(&ReservationPolicy::default()).unwrap();
        assert!(text("reservation_policy.set", &terms).starts_with("Free cancellation until 1 d before"));
        let invoices =
            r#"{"seller":"Harbour\nKade 4","taxes":[{"name":"VAT","basis_points":1900}],"due_days":14}"#;
        assert_eq!(
            text("billing_settings.set", invoices),
            "VAT 19 %; due after 14 days; billed by Harbour, Kade 4"
        );
        assert_eq!(text("volume.created", "1073741824 bytes"), "1.0 GiB");
        assert_eq!(text("volume.deleted", "3 files, 1536 bytes"), "3 files, 1.5 KiB");
        assert_eq!(text("volume.deleted", "some bytes"), "some bytes");
        // Only a recorded size is a number of bytes.
        assert_eq!(text("quota.granted", "1024 bytes"), "1024 bytes");
    }

    #[test]
    fn each_action_of_the_portal_has_a_text() {
        let raw: Vec<&&str> = AUDIT_ACTIONS.iter().filter(|action| action_text(action) == **action).collect();
        assert_eq!(raw, Vec::<&&str>::new());
        assert_eq!(action_text("terminal.opened"), "Terminal opened");
        assert_eq!(action_text("moon.landed"), "moon.landed");
    }

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
