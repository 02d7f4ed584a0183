//! Emptying a node: until when, why, how far it is, and calling it off.
//!
//! Must not count for itself: the portal says what is left.

use berth_types::ids::NodeId;
use berth_types::nodes::Node;
use berth_types::operations::{Drain, NewDrain};
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::super::super::parts::{Call, CallProblem, FieldError, Modal, Submit, every, now_ms, ready};
use super::super::super::words::counted;
use crate::api;
use crate::ui::*;

const FIELDS: &[&str] = &["/deadline_at", "/grace_s", "/reason"];

/// What the rows and the dialog share.
#[derive(Clone, Copy)]
pub struct DrainDesk {
    /// The node that the dialog is about, with its name.
    pub chosen: RwSignal<Option<(NodeId, String)>>,
    /// Whether the dialog is open.
    pub open: RwSignal<bool>,
}

impl DrainDesk {
    /// Nobody is asked about.
    pub fn closed() -> Self {
        Self { chosen: RwSignal::new(None), open: RwSignal::new(false) }
    }

    /// The item in the menu of a node.
    pub fn item(self, node: &Node, ready: ReadSignal<bool>) -> AnyView {
        let (id, name) = (node.id, node.name.clone());
        let label = format!("Drain {name}");
        let ask = move |_: leptos::ev::MouseEvent| {
            self.chosen.set(Some((id, name.clone())));
            self.open.set(true);
        };
        view! {
            <button class="menu__item" type="button" aria-label=label disabled=move || !ready.get() on:click=ask>
                "Drain"
            </button>
        }
        .into_any()
    }
}

/// How far it is.
fn progress_text(drain: &Drain) -> String {
    let left = usize::try_from(drain.attempts).unwrap_or(0);
    match (left, drain.stopping) {
        (0, _) if drain.by_host => {
            "Nothing is left on it. It takes work again when its worker is back.".to_owned()
        }
        (0, _) => "Nothing is left on it: it may be switched off.".to_owned(),
        (_, 0) => format!("{} left.", counted(left, "attempt is", "attempts are")),
        (_, stopping) => {
            format!("{} left, {stopping} of them stopping.", counted(left, "attempt is", "attempts are"))
        }
    }
}

/// What is typed: minutes from now until the deadline, nothing for none; seconds of grace.
fn read(minutes: &str, grace: &str, reason: &str, now_ms: i64) -> Result<NewDrain, Problem> {
    let number = |pointer: &str, text: &str, most: u32| {
        let text = text.trim();
        if text.is_empty() {
            return Ok(None);
        }
        let read = text.parse::<u32>().ok().filter(|n| *n <= most);
        read.map(Some).ok_or_else(|| {
            Problem::invalid_field(pointer, format!("A whole number up to {most}, or nothing."))
        })
    };
    let minutes = number("/deadline_at", minutes, 500_000)?;
    let grace_s = number("/grace_s", grace, 3_600)?;
    let now = Timestamp::from_micros(now_ms.saturating_mul(1_000));
    let deadline_at = minutes.map(|m| now.plus_seconds(i64::from(m) * 60));
    Ok(NewDrain { deadline_at, grace_s, reason: reason.trim().to_owned() })
}

/// Nodes that are emptied, and the dialog that begins it.
#[component]
pub fn Drains(
    /// What the rows share with it.
    desk: DrainDesk,
) -> impl IntoView {
    let ready = ready();
    let drains = RwSignal::new(Vec::<Drain>::new());
    let call = Call::idle();
    let look = move || {
        let fresh = api::operations::drains();
        spawn_local(async move {
            // What cannot be fetched now leaves what is shown; the next round tries again.
            if let Ok(fresh) = fresh.await {
                drains.maybe_update(|known| {
                    let moved = *known != fresh.items;
                    *known = fresh.items;
                    moved
                });
            }
        });
    };
    Effect::new(look);
    every(5_000, look);
    let banner = move |drain: &Drain| {
        let what = if drain.by_host { "is being shut down" } else { "is emptied" };
        let title = format!("{} {what}", drain.node_name);
        let progress = progress_text(drain);
        let label = format!("Call off the drain of {}", drain.node_name);
        let id = drain.node;
        let due = drain.deadline_at.filter(|_| drain.attempts > 0 && !drain.by_host);
        let deadline = due.map(|at| view! { " What still runs is told to stop at " <When at=at/> "." });
        let last = drain.ends_by.map(|at| view! { " It is empty at " <When at=at/> " at the latest." });
        let reason = (!drain.by_host).then(|| format!(" {}: {}", drain.started_by, drain.reason));
        let off = move |_: leptos::ev::MouseEvent| call.run(api::operations::call_off(id), move |()| look());
        view! {
            <div class="banner banner--info" role="status">
                <div class="banner__text">
                    <strong class="banner__title">{title}</strong>
                    {progress} {deadline} {last} {reason}
                </div>
                <button
                    class="btn btn--small"
                    type="button"
                    aria-label=label
                    disabled=move || !ready.get() || call.pending.get()
                    on:click=off
                >
                    "Call off"
                </button>
            </div>
        }
        .into_any()
    };
    view! {
        <CallProblem call=call beside_fields=&[]/>
        {move || drains.with(|drains| drains.iter().map(banner).collect::<Vec<AnyView>>())}
        <DrainDialog desk=desk done=Callback::new(move |()| look())/>
    }
}

#[component]
fn DrainDialog(desk: DrainDesk, done: Callback<()>) -> impl IntoView {
    let DrainDesk { chosen, open } = desk;
    let call = Call::idle();
    let minutes = RwSignal::new(String::new());
    let grace = RwSignal::new(String::new());
    let reason = RwSignal::new(String::new());
    // What was typed for one node is not meant for the next.
    Effect::new(move || {
        if open.get() {
            call.problem.set(None);
            minutes.set("60".to_owned());
            grace.set(String::new());
            reason.set(String::new());
        }
    });
    let title = Signal::derive(move || match chosen.get() {
        Some((_, name)) => format!("Drain {name}"),
        None => "Drain".to_owned(),
    });
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let Some((id, _)) = chosen.get_untracked() else { return };
        let body = read(&minutes.get_untracked(), &grace.get_untracked(), &reason.get_untracked(), now_ms());
        match body {
            Err(problem) => call.problem.set(Some(problem)),
            Ok(body) => call.run(api::operations::drain(id, &body), move |_: Drain| {
                open.set(false);
                done.run(());
            }),
        }
    };
    let text_field = move |id: &'static str,
                           label: &'static str,
                           value: RwSignal<String>,
                           pointer: &'static str,
                           hint: &'static str| {
        let (hint_id, error_id) = (format!("{id}-hint"), format!("{id}-error"));
        let described = format!("{hint_id} {error_id}");
        let wrong = call.field(pointer);
        view! {
            <div class="field field--wide">
                <label class="field__label" for=id>{label}</label>
                <input
                    id=id
                    autocomplete="off"
                    maxlength="200"
                    aria-describedby=described
                    aria-invalid=move || wrong.get().map(|_| "true")
                    prop:value=move || value.get()
                    on:input=move |ev| value.set(event_target_value(&ev))
                />
                <p class="field__hint" id=hint_id>{hint}</p>
                <FieldError id=error_id error=wrong/>
            </div>
        }
        .into_any()
    };
    view! {
        <Modal id="drain" title=title open=open>
            <form method="post" on:submit=submit>
                <div class="dialog__body">
                    <p>
                        "It takes nothing new from now on. What still runs at the deadline gets its signal and its time, and waits for another place where its retry policy has it so."
                    </p>
                    <CallProblem call=call beside_fields=FIELDS/>
                    {text_field("drain-minutes", "Minutes until the deadline", minutes, "/deadline_at", "Empty: everything may run to its own end.")}
                    {text_field("drain-grace", "Most seconds to stop", grace, "/grace_s", "Empty: what each job asked for.")}
                    {text_field("drain-reason", "Reason", reason, "/reason", "Shown to those whose jobs are there.")}
                </div>
                <div class="dialog__actions">
                    <button class="btn" type="button" on:click=move |_| open.set(false)>"Leave it"</button>
                    <Submit call=call>"Drain"</Submit>
                </div>
            </form>
        </Modal>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_becomes_a_drain() {
        let drain = read(" 10 ", "", " firmware ", 1_000).unwrap();
        assert_eq!(drain.deadline_at, Some(Timestamp::from_micros(1_000_000).plus_seconds(600)));
        assert_eq!((drain.grace_s, drain.reason.as_str()), (None, "firmware"));
        assert_eq!(
            read("", "30", "x", 0).unwrap(),
            NewDrain { deadline_at: None, grace_s: Some(30), reason: "x".into() }
        );
        let wrong =
            |minutes: &str, grace: &str| read(minutes, grace, "x", 0).unwrap_err().errors.remove(0).pointer;
        assert_eq!((wrong("soon", ""), wrong("", "3601")), ("/deadline_at".into(), "/grace_s".into()));
    }

    #[test]
    fn progress_is_said() {
        let mut drain: Drain = serde_json::from_value(serde_json::json!({
            "node": "node_00000000000000000000000001", "node_name": "pier-01", "reason": "x", "started_by": "y",
            "started_at": "2026-11-21T09:00:00Z", "attempts": 2, "stopping": 0,
        }))
        .unwrap();
        assert_eq!(progress_text(&drain), "2 attempts are left.");
        drain.stopping = 1;
        assert_eq!(progress_text(&drain), "2 attempts are left, 1 of them stopping.");
        drain.attempts = 0;
        assert!(progress_text(&drain).ends_with("it may be switched off."));
        drain.by_host = true;
        assert!(progress_text(&drain).ends_with("when its worker is back."));
    }
}
