//! Nodes that wait for an approval: their reports beside the expectation of their join token, and the approval or
//! the removal by the operator.

use berth_types::ids::NodeId;
use berth_types::nodes::{ApproveNode, Gpu, Node, SeenBoard};
use berth_types::operators::OperatorRight;
use leptos::prelude::*;

use super::super::super::confirm::ConfirmDialog;
use super::super::super::parts::Call;
use super::super::may;
use super::aside::is_gone;
use super::boards_text;
use super::dialog::replace;
use crate::api;

/// The decision about a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Approve,
    Remove,
}

/// The signals of the banners and the dialog.
#[derive(Clone, Copy)]
pub struct ApprovalState {
    /// The nodes that wait.
    pub waiting: RwSignal<Vec<Node>>,
    /// The nodes of the list.
    pub nodes: RwSignal<Vec<Node>>,
    /// The node and the decision of the dialog.
    pub chosen: RwSignal<Option<(NodeId, Decision)>>,
    /// True with an open dialog.
    pub open: RwSignal<bool>,
}

impl ApprovalState {
    fn open_dialog(self, node: NodeId, decision: Decision) {
        self.chosen.set(Some((node, decision)));
        self.open.set(true);
    }
}

/// Returns the report of a node: `4 × A30; address 10.0.0.1; labels rack=r1`.
fn report_text(node: &Node) -> String {
    let labels: Vec<String> =
        node.reported_labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let boards = match boards_text(node) {
        text if node.gpus.is_empty() => format!("boards: {text}"),
        text => text,
    };
    let address = node.address.as_ref().map(|address| format!("address {address}"));
    let labels = (!labels.is_empty()).then(|| format!("labels {}", labels.join(", ")));
    [Some(boards), address, labels].into_iter().flatten().collect::<Vec<String>>().join("; ")
}

/// Returns the boards of a node, so that the approval is refused if the node reports others meanwhile.
fn seen_boards(node: &Node) -> Vec<SeenBoard> {
    let seen = |gpu: &Gpu| SeenBoard { uuid: gpu.uuid.clone(), model: gpu.model.clone() };
    node.gpus.iter().map(seen).collect()
}

/// Returns the banner of a node that waits.
fn banner(node: &Node, state: ApprovalState, ready: ReadSignal<bool>) -> Option<AnyView> {
    let awaiting = node.awaiting_approval.as_ref()?;
    let title = format!("{} awaits your approval", node.name);
    let report = format!("It reports {}.", report_text(node));
    let (reason, id, text) = (awaiting.reason.clone(), node.id, node.id.to_string());
    let (approve, remove) = (format!("Approve {}", node.name), format!("Remove {}", node.name));
    let controls = may(OperatorRight::ManageFleet).then(|| {
        view! {
            <button
                class="btn"
                type="button"
                aria-label=approve
                disabled=move || !ready.get()
                on:click=move |_| state.open_dialog(id, Decision::Approve)
            >
                "Approve"
            </button>
            <button
                class="btn btn--danger"
                type="button"
                aria-label=remove
                disabled=move || !ready.get()
                on:click=move |_| state.open_dialog(id, Decision::Remove)
            >
                "Remove"
            </button>
        }
    });
    Some(
        view! {
            <div class="banner banner--warn" role="status">
                <div class="banner__text">
                    <strong class="banner__title">{title}</strong>
                    {reason}
                    " "
                    {report}
                    " Until your approval it gets no jobs, secrets or data, and no organization sees it."
                    <span class="banner__id">{text}</span>
                </div>
                {controls}
            </div>
        }
        .into_any(),
    )
}

/// Returns the button that removes a lost node with a revoked certificate.
pub fn remove_button(state: ApprovalState, node: &Node, ready: ReadSignal<bool>) -> Option<AnyView> {
    let (id, label) = (node.id, format!("Remove {}", node.name));
    (may(OperatorRight::ManageFleet) && is_gone(node)).then(|| {
        view! {
            <button
                class="menu__item menu__item--danger"
                type="button"
                aria-label=label
                disabled=move || !ready.get()
                on:click=move |_| state.open_dialog(id, Decision::Remove)
            >
                "Remove"
            </button>
        }
        .into_any()
    })
}

/// The nodes that wait, each with its report, and the confirmation of a decision.
#[component]
pub fn WaitingNodes(
    /// The signals of the page.
    state: ApprovalState,
    /// True after hydration.
    ready: ReadSignal<bool>,
) -> impl IntoView {
    let banners = move || {
        state.waiting.with(|nodes| {
            nodes.iter().filter_map(|node| banner(node, state, ready)).collect::<Vec<AnyView>>()
        })
    };
    view! {
        <ApprovalDialog state=state/>
        {banners}
    }
}

#[component]
fn ApprovalDialog(
    /// The signals of the page.
    state: ApprovalState,
) -> impl IntoView {
    let call = Call::idle();
    let ApprovalState { waiting, nodes, chosen, open } = state;
    let target = Memo::new(move |_| {
        let (id, decision) = chosen.get()?;
        let find = |nodes: &Vec<Node>| nodes.iter().find(|node| node.id == id).cloned();
        // A removed node may be an approved one.
        let listed = || nodes.with(find).filter(|_| decision == Decision::Remove);
        Some((waiting.with(find).or_else(listed)?, decision))
    });
    let removes = move || chosen.get().is_some_and(|(_, decision)| decision == Decision::Remove);
    let title = Signal::derive(move || match target.get() {
        Some((node, Decision::Approve)) => format!("Approve {}?", node.name),
        Some((node, Decision::Remove)) => format!("Remove {}?", node.name),
        None if removes() => "Removal of a node".to_owned(),
        None => "Approval of a node".to_owned(),
    });
    let report = move || match target.get() {
        Some((node, Decision::Approve)) => format!("It reports {}. ", report_text(&node)),
        Some((_, Decision::Remove)) | None => String::new(),
    };
    let effect = move || match target.get() {
        Some((_, Decision::Approve)) => {
            "After the approval, jobs with their data and secrets are placed on this host. Boards that it reports later need an approval of their own."
        }
        Some((_, Decision::Remove)) => {
            "The node, its certificate and its unused join tokens are deleted. Records of its jobs keep its name. Its host can join again as a new node, with a new join token."
        }
        None if removes() => "The node is not in the list any more.",
        None => "The node no longer waits for an approval.",
    };
    let verb = Signal::derive(move || match chosen.get() {
        Some((_, Decision::Remove)) => "Remove".to_owned(),
        Some((_, Decision::Approve)) | None => "Approve".to_owned(),
    });
    let confirm = move |()| {
        let Some((node, decision)) = target.get_untracked() else { return };
        let id = node.id;
        let is_shown = move || chosen.try_get_untracked() == Some(Some((id, decision)));
        match decision {
            Decision::Approve => {
                let body = ApproveNode { boards: Some(seen_boards(&node)) };
                call.run_for(is_shown, api::nodes::approve(id, &body), move |fresh: Node, shown| {
                    if shown {
                        open.set(false);
                    }
                    waiting.update(|nodes| nodes.retain(|node| node.id != id));
                    replace(nodes, fresh);
                });
            }
            Decision::Remove => call.run_for(is_shown, api::nodes::remove(id), move |(), shown| {
                if shown {
                    open.set(false);
                }
                waiting.update(|nodes| nodes.retain(|node| node.id != id));
                nodes.update(|nodes| nodes.retain(|node| node.id != id));
            }),
        }
    };
    view! {
        <ConfirmDialog
            id="node-approval"
            title=title
            open=open
            call=call
            keep="Cancel"
            verb=verb
            disabled=Signal::derive(move || target.with(Option::is_none))
            confirm=Callback::new(confirm)
        >
            <p>{report} {effect}</p>
        </ConfirmDialog>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_boards_address_and_labels() {
        let mut node: Node = serde_json::from_value(serde_json::json!({
            "id": "node_00000000000000000000000001", "name": "pier-01", "state": "awaiting_approval",
            "simulated": true, "unisolated": true, "driver_version": "1", "gpus": [],
        }))
        .unwrap();
        assert_eq!(report_text(&node), "boards: none");
        node.address = Some("10.0.0.1".to_owned());
        node.reported_labels.insert("rack".to_owned(), "r1".to_owned());
        assert_eq!(report_text(&node), "boards: none; address 10.0.0.1; labels rack=r1");
    }
}
