//! Nodes that are set aside for jobs on several nodes after a bad link, and their release; the present maintenance of
//! nodes.

use berth_types::nodes::{Node, NodeMaintenance, SilenceState};
use berth_types::operators::OperatorRight;
use leptos::prelude::*;

use super::super::super::confirm::ConfirmDialog;
use super::super::super::parts::Call;
use super::super::super::text::counted;
use super::super::may;
use super::dialog::NodeDialog;
use crate::api;
use crate::ui::*;

/// Returns the present maintenance of a node as a line.
pub fn maintenance_line(maintenance: &NodeMaintenance) -> AnyView {
    let boards = counted(usize::try_from(maintenance.boards).unwrap_or(usize::MAX), "board", "boards");
    let reason = format!(": {}", maintenance.reason);
    view! { {format!("Maintenance of {boards} until ")} <When at=maintenance.until/> {reason} }.into_any()
}

/// Returns true for a lost node with a revoked certificate: its worker cannot reconnect by itself.
pub fn is_gone(node: &Node) -> bool {
    let is_lost = node.silence.as_ref().is_some_and(|silence| silence.state == SilenceState::Lost);
    is_lost && node.certified_until.is_none()
}

/// Returns the lines below the state of a node: its maintenance, or the way back of a revoked node.
pub fn state_lines(node: &Node) -> AnyView {
    let line = node.maintenance.as_ref().map(maintenance_line);
    let line = line.map(|line| view! { <span class="table__sub">{line}</span> });
    let gone = is_gone(node).then(|| {
        view! {
            <span class="table__sub">
                "Lost, certificate revoked. For its return create a join token under Certificate, or else remove it."
            </span>
        }
    });
    view! { {line}{gone} }.into_any()
}

/// Returns the banner of a node that is set aside, with the button of its release.
pub fn aside_banner(node: &Node, dialog: NodeDialog, ready: ReadSignal<bool>) -> Option<AnyView> {
    let aside = node.set_aside.clone()?;
    let title = format!("{} is set aside for jobs on several nodes", node.name);
    let label = format!("Release {}", node.name);
    let button =
        may(OperatorRight::ManageFleet).then(|| dialog.button(node.id, "btn", "Release", label, ready));
    Some(
        view! {
            <div class="banner banner--warn" role="status">
                <div class="banner__text">
                    <strong class="banner__title">{title}</strong>
                    {aside.reason}
                    " Until "
                    <When at=aside.until/>
                    ", the node takes jobs on one node only. Check the cables, the switch and the adapters, then release the node."
                    <span class="banner__id">{node.id.to_string()}</span>
                </div>
                {button}
            </div>
        }
        .into_any(),
    )
}

/// The confirmation of a release.
#[component]
pub fn ReleaseDialog(
    /// The signals of the page.
    state: NodeDialog,
) -> impl IntoView {
    let call = Call::idle();
    let NodeDialog { chosen, open, .. } = state;
    let node = state.node();
    let name = move || node.get().map_or_else(|| "a node".to_owned(), |node| node.name);
    let title = Signal::derive(move || format!("Release {}?", name()));
    let reason = move || node.get().and_then(|node| node.set_aside).map(|aside| aside.reason);
    let release = move |()| {
        let Some(id) = chosen.get_untracked() else { return };
        state.change(call, id, api::nodes::release(id), move || open.set(false));
    };
    view! {
        <ConfirmDialog
            id="node-release"
            title=title
            open=open
            call=call
            keep="Cancel"
            verb="Release"
            confirm=Callback::new(release)
        >
            <p>{reason}</p>
            <p>
                "The node takes jobs on several nodes again at once, and the measurements of its links are forgotten. Until a link has three new measurements, the portal compares it only with its least throughput."
            </p>
        </ConfirmDialog>
    }
}
