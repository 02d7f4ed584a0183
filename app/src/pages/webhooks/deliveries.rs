//! What was sent to a webhook, what came of it, and sending it again.
//!
//! Must not say more than the portal recorded: what a receiver did with it, nobody here knows.

use berth_types::ids::{DeliveryId, OrgId, WebhookId};
use berth_types::problems::Problem;
use berth_types::webhooks::{Delivery, Webhook};
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::super::limits::replace;
use super::super::parts::{Call, CallProblem, Loading, every, ready};
use crate::api;
use crate::ui::*;

/// Deliveries are looked at so often while the page is open.
const AGAIN_MS: u64 = 5_000;

/// The deliveries of the chosen webhook. They come when the page is alive, and stand last in it, so that
/// nothing moves when they do.
#[component]
pub fn Deliveries(
    /// Whose webhooks they are.
    org: OrgId,
    /// All webhooks.
    hooks: RwSignal<Vec<Webhook>>,
    /// The one that is looked at.
    chosen: RwSignal<Option<WebhookId>>,
) -> impl IntoView {
    let ready = ready();
    let rows = RwSignal::new(None::<(WebhookId, Vec<Delivery>)>);
    let problem = RwSignal::new(None::<Problem>);
    let again = Call::idle();
    let said = RwSignal::new("");
    let look = move |loud: bool| {
        let Some(id) = chosen.get_untracked() else { return };
        let answer = api::webhooks::deliveries(org, id);
        spawn_local(async move {
            let answer = answer.await;
            // An answer about another webhook would stand under the wrong address.
            if chosen.try_get_untracked() != Some(Some(id)) {
                return;
            }
            match answer {
                Ok(page) => {
                    problem.set(None);
                    replace(rows, Some((id, page.items)));
                }
                // What cannot be looked at again leaves what is shown.
                Err(found) if loud => problem.set(Some(found)),
                Err(_) => {}
            }
        });
    };
    Effect::new(move || {
        chosen.track();
        said.set("");
        problem.set(None);
        look(true);
    });
    every(AGAIN_MS, move || look(false));
    let send_again = move |id: DeliveryId| {
        said.set("");
        again.run(api::webhooks::redeliver(org, id), move |()| {
            said.set("It is sent again.");
            look(true);
        });
    };
    let list = move |id: WebhookId| {
        rows.with(|rows| match rows {
            Some((of, list)) if *of == id && list.is_empty() => nothing(),
            Some((of, list)) if *of == id => {
                let lines: Vec<AnyView> = list.iter().map(|one| row(one, ready, again, send_again)).collect();
                table(lines)
            }
            // The notice above says why nothing came.
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
                    <div class="section__aside" role="status">{move || said.get()}</div>
                </div>
                {move || problem.get().map(|problem| view! { <ProblemNotice problem=problem/> })}
                <CallProblem call=again beside_fields=&[]/>
                {move || list(id)}
            </section>
        }
    };
    move || chosen.get().map(section)
}

fn nothing() -> AnyView {
    empty(
        "Nothing was sent yet. As soon as something happens of which this webhook hears, it stands here with the answer that came.",
    )
}

fn table(lines: Vec<AnyView>) -> AnyView {
    table_of(
        "Deliveries, newest first",
        &[
            ("What", ""),
            STATE,
            ("Tries", "num"),
            ("Answer", ""),
            ("When", "nowrap"),
            ("Next try", "nowrap"),
            ACTIONS,
        ],
        lines,
    )
}

/// What came of the last try.
fn outcome(delivery: &Delivery) -> String {
    match (delivery.last_error.is_empty(), delivery.last_status) {
        (false, _) => delivery.last_error.clone(),
        (true, Some(status)) => format!("It answered {status}."),
        (true, None) if delivery.tries == 0 => "not tried yet".to_owned(),
        (true, None) => String::new(),
    }
}

fn row(
    delivery: &Delivery,
    ready: ReadSignal<bool>,
    again: Call,
    send_again: impl Fn(DeliveryId) + Copy + Send + Sync + 'static,
) -> AnyView {
    let id = delivery.id;
    let kind = delivery.kind.clone();
    let subject = delivery.subject.clone();
    let label = format!("Send again: {kind}, {subject}");
    let next = match delivery.next_at {
        Some(at) => {
            view! { <td role="cell" class="nowrap" data-label="Next try"><When at=at/></td> }.into_any()
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
            <td role="cell" class="num" data-label="Tries">{delivery.tries}</td>
            <td role="cell" data-label="Answer"><span class="break">{outcome(delivery)}</span></td>
            <td role="cell" class="nowrap" data-label="When"><When at=delivery.created_at/></td>
            {next}
            <td role="cell" class="table__actions">
                <button
                    class="btn btn--small"
                    type="button"
                    aria-label=label
                    disabled=move || !ready.get() || again.pending.get()
                    on:click=move |_| send_again(id)
                >
                    "Send again"
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
    fn an_outcome_is_the_answer_or_why_there_was_none() {
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
        assert_eq!(outcome(&delivery), "not tried yet");
        (delivery.tries, delivery.last_error) = (1, "connection refused".to_owned());
        assert_eq!(outcome(&delivery), "connection refused");
        (delivery.last_status, delivery.last_error) = (Some(204), String::new());
        assert_eq!(outcome(&delivery), "It answered 204.");
    }
}
