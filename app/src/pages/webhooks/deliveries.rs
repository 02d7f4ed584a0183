//! Deliveries of a webhook with their results, and the button to resend.

use berth_types::Page as Rows;
use berth_types::ids::{DeliveryId, OrgId, WebhookId};
use berth_types::problems::Problem;
use berth_types::webhooks::{Delivery, Webhook};
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::super::limits::replace;
use super::super::load_more::{LoadMore, append, joined, refresh_limit};
use super::super::parts::{Call, CallProblem, Loading, every_visible, ready};
use crate::api;
use crate::ui::*;

/// The interval of requests.
const REFRESH_MS: u64 = 5_000;

/// The deliveries of the selected webhook. They are loaded after hydration and are last on the page, so that
/// nothing else moves.
#[component]
pub fn Deliveries(
    /// The organization of the webhooks.
    org: OrgId,
    /// All webhooks.
    hooks: RwSignal<Vec<Webhook>>,
    /// The selected webhook.
    selected: RwSignal<Option<WebhookId>>,
) -> impl IntoView {
    let ready = ready();
    let rows = RwSignal::new(None::<(WebhookId, Vec<Delivery>)>);
    let cursor = RwSignal::new(None::<String>);
    let problem = RwSignal::new(None::<Problem>);
    let (resend_call, more) = (Call::idle(), Call::idle());
    let status = RwSignal::new("");
    let load = move |show_errors: bool| {
        let Some(id) = selected.get_untracked() else { return };
        let shown = rows.with_untracked(|rows| rows.as_ref().map_or(0, |(_, list)| list.len()));
        let answer = api::webhooks::deliveries(org, id, None, refresh_limit(shown));
        spawn_local(async move {
            let answer = answer.await;
            // An answer for another webhook would appear under the wrong URL.
            if selected.try_get_untracked() != Some(Some(id)) {
                return;
            }
            match answer {
                Ok(page) => {
                    problem.set(None);
                    let known = rows.try_get_untracked().flatten().filter(|(hook, _)| *hook == id);
                    let known = known.map(|(_, list)| list).unwrap_or_default();
                    let from = cursor.try_get_untracked().flatten();
                    let Rows { items, next_cursor } = joined(known, from, page, |one| one.id);
                    replace(rows, Some((id, items)));
                    replace(cursor, next_cursor);
                }
                // A failed refresh leaves the shown deliveries.
                Err(found) if show_errors => problem.set(Some(found)),
                Err(_) => {}
            }
        });
    };
    Effect::new(move || {
        let id = selected.get();
        status.set("");
        problem.set(None);
        if rows.with_untracked(|rows| rows.as_ref().map(|(hook, _)| *hook)) != id {
            rows.set(None);
            cursor.set(None);
        }
        load(true);
    });
    every_visible(REFRESH_MS, move || load(false));
    let resend = move |id: DeliveryId| {
        status.set("");
        resend_call.run(api::webhooks::redeliver(org, id), move |()| {
            status.set("Resending.");
            load(true);
        });
    };
    let load_more = Callback::new(move |()| {
        let Some(id) = selected.get_untracked() else { return };
        let from = cursor.get_untracked();
        let next = api::webhooks::deliveries(org, id, from.clone(), refresh_limit(0));
        more.run(next, move |page: Rows<Delivery>| {
            // The page does not follow on a list that was replaced meanwhile.
            if cursor.try_get_untracked() != Some(from) {
                return;
            }
            rows.update(|rows| {
                if let Some((_, list)) = rows {
                    append(list, page.items, |one| one.id);
                }
            });
            cursor.set(page.next_cursor);
        });
    });
    let list = move |id: WebhookId| {
        rows.with(|rows| match rows {
            Some((hook, list)) if *hook == id && list.is_empty() => no_deliveries(),
            Some((hook, list)) if *hook == id => {
                table(list.iter().map(|one| row(one, ready, resend_call, resend)).collect())
            }
            // The notice above has the error.
            _ if problem.with(Option::is_some) => ().into_any(),
            _ => view! { <Loading/> }.into_any(),
        })
    };
    let section = move |id: WebhookId| {
        let url = move || {
            hooks.with(|hooks| {
                hooks.iter().find(|hook| hook.id == id).map(|hook| hook.url.clone()).unwrap_or_default()
            })
        };
        view! {
            <section class="section">
                <div class="section__head">
                    <h2>"Deliveries"</h2>
                    <span class="mono quiet break">{url}</span>
                    <div class="section__aside" role="status">{move || status.get()}</div>
                </div>
                {move || problem.get().map(|problem| view! { <ProblemNotice problem=problem/> })}
                <CallProblem call=resend_call beside_fields=&[]/>
                {move || list(id)}
                <LoadMore cursor=cursor call=more load=load_more/>
            </section>
        }
    };
    move || selected.get().map(section)
}

fn no_deliveries() -> AnyView {
    empty("No deliveries yet. Each event of this webhook appears here with the result of its delivery.")
}

fn table(rows: Vec<AnyView>) -> AnyView {
    table_of(
        "Deliveries, newest first",
        &[
            ("Event", ""),
            STATE,
            ("Attempts", "num"),
            ("Result", ""),
            ("Created", "nowrap"),
            ("Next attempt", "nowrap"),
            ACTIONS,
        ],
        rows,
    )
}

/// Returns the result of the last attempt.
fn result_text(delivery: &Delivery) -> String {
    match (delivery.last_error.is_empty(), delivery.last_status) {
        (false, _) => delivery.last_error.clone(),
        (true, Some(status)) => format!("HTTP status {status}"),
        (true, None) if delivery.tries == 0 => "no attempt yet".to_owned(),
        (true, None) => String::new(),
    }
}

fn row(
    delivery: &Delivery,
    ready: ReadSignal<bool>,
    resend_call: Call,
    resend: impl Fn(DeliveryId) + Copy + Send + Sync + 'static,
) -> AnyView {
    let id = delivery.id;
    let kind = delivery.kind.clone();
    let subject = delivery.subject.clone();
    let label = format!("Resend: {kind}, {subject}");
    let next = match delivery.next_at {
        Some(at) => {
            view! { <td role="cell" class="nowrap" data-label="Next attempt"><When at=at/></td> }.into_any()
        }
        None => view! { <td role="cell" class="nowrap"></td> }.into_any(),
    };
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">
                <span class="mono">{kind}</span>
                <span class="table__sub break">{subject}</span>
            </th>
            <td role="cell" class="table__state" data-label="State"><DeliveryBadge state=delivery.state/></td>
            <td role="cell" class="num" data-label="Attempts">{delivery.tries}</td>
            <td role="cell" data-label="Result"><span class="break">{result_text(delivery)}</span></td>
            <td role="cell" class="nowrap" data-label="Created"><When at=delivery.created_at/></td>
            {next}
            <td role="cell" class="table__actions">
                <button
                    class="btn btn--small"
                    type="button"
                    aria-label=label
                    disabled=move || !ready.get() || resend_call.pending.get()
                    on:click=move |_| resend(id)
                >
                    "Resend"
                </button>
            </td>
        </tr>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::time::Timestamp;
    use berth_types::webhooks::DeliveryState;

    #[test]
    fn a_result_is_the_status_or_the_error() {
        let mut delivery = Delivery {
            id: format!("dlv_{:0>26}", 1).parse().unwrap(),
            kind: "job.succeeded".to_owned(),
            subject: "train is succeeded".to_owned(),
            state: DeliveryState::Pending,
            tries: 0,
            last_status: None,
            last_error: String::new(),
            created_at: Timestamp::from_micros(0),
            next_at: None,
            done_at: None,
        };
        assert_eq!(result_text(&delivery), "no attempt yet");
        (delivery.tries, delivery.last_error) = (1, "connection refused".to_owned());
        assert_eq!(result_text(&delivery), "connection refused");
        (delivery.last_status, delivery.last_error) = (Some(204), String::new());
        assert_eq!(result_text(&delivery), "HTTP status 204");
    }
}
