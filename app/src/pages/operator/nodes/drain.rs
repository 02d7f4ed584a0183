//! Drains of nodes: start with deadline and reason, progress, and cancellation. The portal counts the
//! remaining attempts.

use berth_types::operations::{Drain, NewDrain};
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::super::super::dialog_form::DialogForm;
use super::super::super::parts::{Call, CallProblem, every_visible, now_ms, ready};
use super::super::super::text::counted;
use super::super::may;
use super::dialog::NodeDialog;
use crate::api;
use crate::ui::*;

const FIELDS: &[&str] = &["/deadline_at", "/grace_s", "/reason"];

/// Returns the progress of a drain.
fn progress_text(drain: &Drain) -> String {
    let left = usize::try_from(drain.attempts).unwrap_or(0);
    match (left, drain.stopping) {
        (0, _) if drain.by_host => {
            "No jobs left. The node accepts jobs again after its worker reconnects.".to_owned()
        }
        (0, _) => "No jobs left: the node can be shut down.".to_owned(),
        (_, 0) => format!("{} remaining.", counted(left, "attempt", "attempts")),
        (_, stopping) => {
            format!("{} remaining, {stopping} of them stopping.", counted(left, "attempt", "attempts"))
        }
    }
}

/// Parses the form: minutes from now to the deadline and seconds of grace, each optional.
///
/// # Errors
/// The first invalid field.
fn parse(minutes: &str, grace: &str, reason: &str, now_ms: i64) -> Result<NewDrain, Problem> {
    let number = |pointer: &str, text: &str, maximum: u32| {
        let text = text.trim();
        if text.is_empty() {
            return Ok(None);
        }
        let parsed = text.parse::<u32>().ok().filter(|n| *n <= maximum);
        parsed.map(Some).ok_or_else(|| {
            Problem::invalid_field(
                pointer,
                format!("Enter a whole number up to {maximum}, or leave the field empty."),
            )
        })
    };
    let minutes = number("/deadline_at", minutes, 500_000)?;
    let grace_s = number("/grace_s", grace, 3_600)?;
    let now = Timestamp::from_micros(now_ms.saturating_mul(1_000));
    let deadline_at = minutes.map(|m| now.plus_seconds(i64::from(m) * 60));
    Ok(NewDrain { deadline_at, grace_s, reason: reason.trim().to_owned() })
}

/// The present drains and the dialog for a new drain.
#[component]
pub fn Drains(
    /// The signals of the rows.
    state: NodeDialog,
) -> impl IntoView {
    let ready = ready();
    let drains = RwSignal::new(Vec::<Drain>::new());
    let call = Call::idle();
    let reload = move || {
        let fresh = api::operations::drains();
        spawn_local(async move {
            // The next round repeats a failed request.
            if let Ok(fresh) = fresh.await {
                drains.maybe_update(|known| {
                    let changed = *known != fresh.items;
                    *known = fresh.items;
                    changed
                });
            }
        });
    };
    Effect::new(reload);
    every_visible(5_000, reload);
    let manages = may(OperatorRight::ManageFleet);
    let banner = move |drain: &Drain| {
        let state = if drain.by_host { "is shutting down" } else { "is draining" };
        let title = format!("{} {state}: no new jobs", drain.node_name);
        let progress = progress_text(drain);
        let label = format!("Cancel drain of {}", drain.node_name);
        let id = drain.node;
        let due = drain.deadline_at.filter(|_| drain.attempts > 0 && !drain.by_host);
        let deadline = due.map(|at| view! { " Remaining attempts are stopped at " <When at=at/> "." });
        let last = drain.ends_by.map(|at| view! { " The drain ends at " <When at=at/> " at the latest." });
        let reason = (!drain.by_host).then(|| format!(" {}: {}", drain.started_by, drain.reason));
        let cancel = move |_: leptos::ev::MouseEvent| {
            call.run(api::operations::cancel_drain(id), move |()| reload());
        };
        let button = manages.then(|| {
            view! {
                <button
                    class="btn btn--small"
                    type="button"
                    aria-label=label
                    disabled=move || !ready.get() || call.pending.get()
                    on:click=cancel
                >
                    "Cancel drain"
                </button>
            }
        });
        view! {
            <div class="banner banner--info" role="status">
                <div class="banner__text">
                    <strong class="banner__title">{title}</strong>
                    {progress} {deadline} {last} {reason}
                </div>
                {button}
            </div>
        }
        .into_any()
    };
    view! {
        <CallProblem call=call beside_fields=&[]/>
        {move || drains.with(|drains| drains.iter().map(banner).collect::<Vec<AnyView>>())}
        <DrainDialog state=state done=Callback::new(move |()| reload())/>
    }
}

#[component]
fn DrainDialog(state: NodeDialog, done: Callback<()>) -> impl IntoView {
    let NodeDialog { chosen, open, .. } = state;
    let call = Call::idle();
    let minutes = RwSignal::new(String::new());
    let grace = RwSignal::new(String::new());
    let reason = RwSignal::new(String::new());
    let reset = move |()| {
        minutes.set("60".to_owned());
        grace.set(String::new());
        reason.set(String::new());
    };
    let node = state.node();
    let title = Signal::derive(move || match node.get() {
        Some(node) => format!("Drain {}", node.name),
        None => "Drain".to_owned(),
    });
    let submit = move |()| {
        let Some(id) = chosen.get_untracked() else { return };
        let body = parse(&minutes.get_untracked(), &grace.get_untracked(), &reason.get_untracked(), now_ms());
        match body {
            Err(problem) => call.problem.set(Some(problem)),
            Ok(body) => call.run(api::operations::drain(id, &body), move |_: Drain| {
                open.set(false);
                done.run(());
            }),
        }
    };
    view! {
        <DialogForm
            id="drain"
            title=title
            open=open
            call=call
            keep="Back"
            verb="Drain"
            reset=Callback::new(reset)
            submit=Callback::new(submit)
        >
            <p>
                "The node accepts no new jobs from now on. At the deadline, remaining jobs get their stop signal and grace period. They are retried on other nodes if their retry policy permits it."
            </p>
            <CallProblem call=call beside_fields=FIELDS/>
            <TextField
                label="Deadline in minutes"
                id="drain-minutes"
                max_length=200
                value=minutes
                hint="Minutes from now. Empty: no deadline, jobs run to their end."
                error=call.field("/deadline_at")
            />
            <TextField
                label="Maximum grace in seconds"
                id="drain-grace"
                max_length=200
                value=grace
                hint="Empty: the grace period of each job."
                error=call.field("/grace_s")
            />
            <TextField
                label="Reason"
                id="drain-reason"
                max_length=200
                value=reason
                hint="Shown to the owners of the jobs."
                error=call.field("/reason")
            />
        </DialogForm>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_becomes_a_drain() {
        let drain = parse(" 10 ", "", " firmware ", 1_000).unwrap();
        assert_eq!(drain.deadline_at, Some(Timestamp::from_micros(1_000_000).plus_seconds(600)));
        assert_eq!((drain.grace_s, drain.reason.as_str()), (None, "firmware"));
        assert_eq!(
            parse("", "30", "x", 0).unwrap(),
            NewDrain { deadline_at: None, grace_s: Some(30), reason: "x".into() }
        );
        let wrong =
            |minutes: &str, grace: &str| parse(minutes, grace, "x", 0).unwrap_err().errors.remove(0).pointer;
        assert_eq!((wrong("soon", ""), wrong("", "3601")), ("/deadline_at".into(), "/grace_s".into()));
    }

    #[test]
    fn progress_has_a_text() {
        let mut drain: Drain = serde_json::from_value(serde_json::json!({
            "node": "node_00000000000000000000000001", "node_name": "pier-01", "reason": "x", "started_by": "y",
            "started_at": "2026-11-21T09:00:00Z", "attempts": 2, "stopping": 0,
        }))
        .unwrap();
        assert_eq!(progress_text(&drain), "2 attempts remaining.");
        drain.stopping = 1;
        assert_eq!(progress_text(&drain), "2 attempts remaining, 1 of them stopping.");
        drain.attempts = 0;
        assert!(progress_text(&drain).ends_with("the node can be shut down."));
        drain.by_host = true;
        assert!(progress_text(&drain).ends_with("after its worker reconnects."));
    }
}
