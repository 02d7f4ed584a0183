//! What a node proves itself with: until when it is good, whether it was copied, how to take it back and
//! how to give a new one; and whether it names boards that are another's.
//!
//! Must not keep a join token longer than its dialog is open.

use berth_types::ids::NodeId;
use berth_types::nodes::{JoinToken, NewJoinToken, Node};
use leptos::prelude::*;

use super::super::super::parts::{Call, CallProblem, Modal};
use crate::api;
use crate::ui::*;

/// What the rows and the dialog share.
#[derive(Clone, Copy)]
pub struct Trust {
    /// The nodes of the page.
    pub nodes: RwSignal<Vec<Node>>,
    /// The one that the dialog is about.
    pub chosen: RwSignal<Option<NodeId>>,
    /// Whether the dialog is open.
    pub open: RwSignal<bool>,
}

/// A banner for a node whose certificate is held twice: what it means and what to do.
pub fn suspected(node: &Node) -> Option<AnyView> {
    let why = node.suspect.clone()?;
    let title = format!("{} may have been copied", node.name);
    let id = node.id.to_string();
    Some(
        view! {
            <div class="banner banner--error" role="alert">
                <div class="banner__text">
                    <strong class="banner__title">{title}</strong>
                    {why}
                    " The daemon that was there first goes on; no other is let in. Find out which host is the right one, revoke the node's certificate, and run a new join token on that host."
                    <span class="banner__id">{id}</span>
                </div>
            </div>
        }
        .into_any(),
    )
}

/// A banner for a node that reports boards of another: what it means and what to do.
pub fn left_out(node: &Node) -> Option<AnyView> {
    let why = node.left_out.clone()?;
    let title = format!("{} reports boards of another node", node.name);
    let id = node.id.to_string();
    Some(
        view! {
            <div class="banner banner--warn" role="status">
                <div class="banner__text">
                    <strong class="banner__title">{title}</strong>
                    {why}
                    " Nothing is placed on them here. If they were carried to this host, take the other node out and restart the worker on this one; if not, find out why it names them."
                    <span class="banner__id">{id}</span>
                </div>
            </div>
        }
        .into_any(),
    )
}

/// The node's certificate, and what can be done about it.
#[component]
pub fn TrustDialog(
    /// What the page shares with it.
    trust: Trust,
) -> impl IntoView {
    let call = Call::idle();
    let ticket = RwSignal::new(None::<JoinToken>);
    let Trust { nodes, chosen, open } = trust;
    // What was made for one node is not meant for the next.
    Effect::new(move || {
        open.track();
        call.problem.set(None);
        ticket.set(None);
    });
    let node = Memo::new(move |_| {
        let id = chosen.get()?;
        nodes.with(|nodes| nodes.iter().find(|node| node.id == id).cloned())
    });
    let title = Signal::derive(move || match node.get() {
        Some(node) => format!("Certificate of {}", node.name),
        None => "Certificate".to_owned(),
    });
    let state = move || {
        match node.get().and_then(|node| node.certified_until) {
        Some(at) => view! {
            "It is good until " <When at=at/>
            ", and its worker renews it before. After that, only a new join token brings the node back."
        }
        .into_any(),
        None => "It has none that is good. A new join token, run on its host, brings the node back with what it still runs.".into_any(),
    }
    };
    let make = move |_: leptos::ev::MouseEvent| {
        let Some(id) = chosen.get_untracked() else { return };
        let body = NewJoinToken { valid_s: None };
        call.run(api::nodes::node_join_token(id, &body), move |made: JoinToken| ticket.set(Some(made)));
    };
    let revoke = move |_: leptos::ev::MouseEvent| {
        let Some(id) = chosen.get_untracked() else { return };
        call.run(api::nodes::revoke(id), move |fresh: Node| {
            ticket.set(None);
            nodes.update(|nodes| {
                if let Some(known) = nodes.iter_mut().find(|known| known.id == fresh.id) {
                    *known = fresh;
                }
            });
        });
    };
    let shown = move || {
        ticket.get().map(|ticket| {
            let command = ticket.command.clone();
            view! {
                <section class="secret" role="status">
                    <p>
                        <strong>"Run this on the node's host."</strong>
                        " The ticket in it works once, for this node only, until " <When at=ticket.expires_at/>
                        ". What the node had before is revoked when it is used."
                    </p>
                    <CopyBlock
                        text=Signal::derive(move || command.clone())
                        label="The line to run on the node's host".to_owned()
                    />
                </section>
            }
        })
    };
    view! {
        <Modal id="node-trust" title=title open=open>
            <div class="dialog__body">
                <p>{state}</p>
                <p>
                    "Revoking ends its session at once. Its jobs go on without telling until their leases end; they are charged for proved use only."
                </p>
                <CallProblem call=call beside_fields=&[]/>
                {shown}
            </div>
            <div class="dialog__actions">
                <button class="btn" type="button" on:click=move |_| open.set(false)>"Close"</button>
                <button class="btn" type="button" disabled=move || call.pending.get() on:click=make>
                    "New join token"
                </button>
                <button
                    class="btn btn--danger btn--primary"
                    type="button"
                    disabled=move || call.pending.get()
                    aria-busy=move || call.pending.get().then_some("true")
                    on:click=revoke
                >
                    "Revoke"
                </button>
            </div>
        </Modal>
    }
}
