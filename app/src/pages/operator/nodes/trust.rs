//! Certificate of a node: validity, signs of a copy, revocation and renewal; and boards of another node. A
//! join token is kept only in its open dialog.

use berth_types::ids::NodeId;
use berth_types::nodes::{JoinToken, NewJoinToken, Node};
use berth_types::operators::OperatorRight;
use leptos::prelude::*;

use super::super::super::confirm::ConfirmDialog;
use super::super::super::parts::{Call, CallProblem, Modal};
use super::super::may;
use super::dialog::NodeDialog;
use crate::api;
use crate::ui::*;

/// Returns the banner of a node with a copied certificate.
pub fn clone_banner(node: &Node) -> Option<AnyView> {
    let cause = node.suspect.clone()?;
    let title = format!("{} may have been copied", node.name);
    let id = node.id.to_string();
    Some(
        view! {
            <div class="banner banner--error" role="alert">
                <div class="banner__text">
                    <strong class="banner__title">{title}</strong>
                    {cause}
                    " The first daemon stays connected; others are refused. Find the right host, revoke the node's certificate, and run a new join command on that host."
                    <span class="banner__id">{id}</span>
                </div>
            </div>
        }
        .into_any(),
    )
}

/// Returns the banner of a node that reports boards of another node.
pub fn left_out_banner(node: &Node) -> Option<AnyView> {
    let cause = node.left_out.clone()?;
    let title = format!("{} reports boards of another node", node.name);
    let id = node.id.to_string();
    Some(
        view! {
            <div class="banner banner--warn" role="status">
                <div class="banner__text">
                    <strong class="banner__title">{title}</strong>
                    {cause}
                    " No jobs are placed on these boards here. If the boards were moved to this host, revoke the certificate of the other node and restart the worker on this host. Otherwise find out why this worker reports them."
                    <span class="banner__id">{id}</span>
                </div>
            </div>
        }
        .into_any(),
    )
}

/// The certificate of a node with its actions.
#[component]
pub fn TrustDialog(
    /// The signals of the page.
    state: NodeDialog,
) -> impl IntoView {
    let call = Call::idle();
    // The node of the join token, and the token.
    let token = RwSignal::new(None::<(NodeId, JoinToken)>);
    let revoking = RwSignal::new(false);
    let NodeDialog { chosen, open, .. } = state;
    // A token for one node does not apply to the next.
    Effect::new(move || {
        open.track();
        call.problem.set(None);
        token.set(None);
    });
    let node = state.node();
    let title = Signal::derive(move || match node.get() {
        Some(node) => format!("Certificate of {}", node.name),
        None => "Certificate".to_owned(),
    });
    let validity = move || {
        match node.get().and_then(|node| node.certified_until) {
        Some(at) => view! {
            "Valid until " <When at=at/>
            ". The worker renews it before. After the expiry, the node needs a new join token."
        }
        .into_any(),
        None => "No valid certificate. Run a new join command on the host to reconnect the node; its running jobs continue.".into_any(),
    }
    };
    let create = move |_: leptos::ev::MouseEvent| {
        let Some(id) = chosen.get_untracked() else { return };
        let body = NewJoinToken::default();
        call.run_for(
            move || chosen.try_get_untracked() == Some(Some(id)),
            api::nodes::node_join_token(id, &body),
            move |created: JoinToken, _| token.set(Some((id, created))),
        );
    };
    let shown = move || {
        token.get().filter(|(id, _)| chosen.get() == Some(*id)).map(|(_, token)| {
            let command = token.command.clone();
            view! {
                <section class="secret" role="status">
                    <p>
                        <strong>"Run this command on the node's host."</strong>
                        " Its join token is valid once, for this node only, until " <When at=token.expires_at/>
                        ". Its use revokes the previous certificate."
                    </p>
                    <CopyBlock
                        text=Signal::derive(move || command.clone())
                        label="Join command".to_owned()
                    />
                </section>
            }
        })
    };
    let controls = may(OperatorRight::ManageFleet).then(|| {
        view! {
            <button
                class="btn"
                type="button"
                aria-disabled=move || call.pending.get().then_some("true")
                on:click=create
            >
                "Create join token"
            </button>
            <button
                class="btn btn--danger"
                type="button"
                on:click=move |_| revoking.set(true)
            >
                "Revoke certificate"
            </button>
        }
    });
    view! {
        <Modal id="node-trust" title=title open=open>
            <div class="dialog__body">
                <p>{validity}</p>
                <CallProblem call=call beside_fields=&[]/>
                {shown}
            </div>
            <div class="dialog__actions">
                <button class="btn" type="button" on:click=move |_| open.set(false)>"Close"</button>
                {controls}
            </div>
        </Modal>
        <RevokeDialog state=state node=node token=token open=revoking/>
    }
}

/// The confirmation of a revocation, above the dialog of the certificate.
#[component]
fn RevokeDialog(
    /// The signals of the page.
    state: NodeDialog,
    /// The node of the dialog.
    node: Memo<Option<Node>>,
    /// The join token, which ends with the certificate.
    token: RwSignal<Option<(NodeId, JoinToken)>>,
    /// True with an open dialog.
    open: RwSignal<bool>,
) -> impl IntoView {
    let call = Call::idle();
    let title = Signal::derive(move || match node.get() {
        Some(node) => format!("Revoke the certificate of {}?", node.name),
        None => "Revoke the certificate?".to_owned(),
    });
    let revoke = move |()| {
        let Some(id) = state.chosen.get_untracked() else { return };
        state.change(call, id, api::nodes::revoke(id), move || {
            token.set(None);
            open.set(false);
        });
    };
    view! {
        <ConfirmDialog
            id="node-revoke"
            title=title
            open=open
            call=call
            keep="Keep certificate"
            verb="Revoke certificate"
            confirm=Callback::new(revoke)
        >
            <p>
                "Revocation ends the node's session at once. Its jobs continue without contact until the end of their leases; only proved use is charged."
            </p>
        </ConfirmDialog>
    }
}
