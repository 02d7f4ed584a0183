//! Silent and lost nodes: the effect on their attempts, and the declaration of a loss by the operator.

use berth_types::nodes::{Node, Silence, SilenceState};
use berth_types::operators::OperatorRight;
use leptos::prelude::*;

use super::super::super::confirm::ConfirmDialog;
use super::super::super::parts::Call;
use super::super::super::text::counted;
use super::super::may;
use super::aside::is_gone;
use super::dialog::NodeDialog;
use crate::api;
use crate::ui::*;

/// Returns the button of a silent node with attempts or with a revoked certificate.
pub fn lost_button(
    dialog: NodeDialog,
    node: &Node,
    class: &'static str,
    ready: ReadSignal<bool>,
) -> Option<AnyView> {
    let silence = node.silence.as_ref()?;
    let needs_end = silence.attempts > 0 || node.certified_until.is_none();
    let can_be_lost = may(OperatorRight::ManageFleet) && silence.state != SilenceState::Lost && needs_end;
    let label = format!("Declare {} lost", node.name);
    can_be_lost.then(|| dialog.button(node.id, class, "Declare lost", label, ready))
}

/// Returns the number of attempts with their noun.
fn attempts_text(silence: &Silence) -> String {
    counted(usize::try_from(silence.attempts).unwrap_or(usize::MAX), "attempt", "attempts")
}

/// Returns the effect of a silent or lost node.
fn effect(silence: &Silence) -> AnyView {
    let at = silence.lost_at.map(|at| view! { <When at=at/> });
    match (silence.state, silence.attempts, at) {
        (SilenceState::Lost, _, at) => {
            let cause = silence.why.clone().unwrap_or_default();
            view! {
                {cause}
                " Since "
                {at}
                ", its attempts count as ended. Jobs are retried on other nodes if their retry policy permits it. After the worker reconnects, remaining processes are stopped and the devices are proved clean before new jobs."
            }
            .into_any()
        }
        (SilenceState::Suspect, 0, _) => {
            "No attempts run on this node, and no new jobs are placed on it.".into_any()
        }
        (SilenceState::Suspect, _, Some(at)) => {
            let attempts = attempts_text(silence);
            view! {
                {attempts}
                " may still run on this node; no retry before "
                {at}
                ". If the node stays unconnected, its worker stops them by then. Only proved use is charged, and no new jobs are placed on this node."
            }
            .into_any()
        }
        (SilenceState::Suspect, _, None) => {
            let attempts = attempts_text(silence);
            view! {
                {attempts}
                " may still run on this node, without a lease: no retry until the node reconnects or you declare it lost. Only proved use is charged, and no new jobs are placed on this node."
            }
            .into_any()
        }
    }
}

/// Returns the banner of a silent or lost node; `None` for a lost node with a revoked certificate.
pub fn silence_banner(node: &Node, state: NodeDialog, ready: ReadSignal<bool>) -> Option<AnyView> {
    let silence = node.silence.as_ref().filter(|_| !is_gone(node))?;
    let lost = silence.state == SilenceState::Lost;
    let title = format!("{} is {}", node.name, if lost { "lost" } else { "not connected" });
    let seen = node.last_seen_at.map(|at| view! { " Last seen " <When at=at/> "." });
    let name = node.id.to_string();
    let button = lost_button(state, node, "btn", ready);
    Some(
        view! {
            <div class="banner banner--error" role="alert">
                <div class="banner__text">
                    <strong class="banner__title">{title}</strong>
                    {effect(silence)}
                    {seen}
                    <span class="banner__id">{name}</span>
                </div>
                {button}
            </div>
        }
        .into_any(),
    )
}

/// The confirmation of a declared loss.
#[component]
pub fn LostDialog(
    /// The signals of the page.
    state: NodeDialog,
) -> impl IntoView {
    let call = Call::idle();
    let NodeDialog { chosen, open, .. } = state;
    let node = state.node();
    let title = Signal::derive(move || match node.get() {
        Some(node) => format!("Declare {} lost?", node.name),
        None => "Declare a node lost?".to_owned(),
    });
    let ends = move || {
        let silence = node.get().and_then(|node| node.silence);
        silence.map(|silence| {
            if silence.attempts == 0 {
                return "No attempts run on this node. It counts as lost at once.".to_owned();
            }
            let (end, are) = if silence.attempts == 1 { ("ends", "is") } else { ("end", "are") };
            format!(
                "{} on this node {end} now and {are} charged for proved use only. Jobs with a retry policy for lost nodes are retried on other nodes at once.",
                attempts_text(&silence)
            )
        })
    };
    let until = move || {
        let at = node.get().and_then(|node| node.silence).and_then(|silence| silence.lost_at);
        match at {
            Some(at) => {
                view! { " Without your declaration, this happens at " <When at=at/> ", after the end of the leases." }.into_any()
            }
            None => ().into_any(),
        }
    };
    let declare = move |()| {
        let Some(id) = chosen.get_untracked() else { return };
        state.change(call, id, api::nodes::declare_lost(id), move || open.set(false));
    };
    view! {
        <ConfirmDialog
            id="node-lost"
            title=title
            open=open
            call=call
            keep="Wait"
            verb="Declare lost"
            confirm=Callback::new(declare)
        >
            <p>{ends} {until}</p>
            <p>
                "Declare a node lost only if its host is off. If the host still runs, a job may run twice until the end of its lease. Its power in the rack is free at once, so the rack may draw more than its budget. The audit log records your name."
            </p>
        </ConfirmDialog>
    }
}
