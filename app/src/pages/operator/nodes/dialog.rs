//! A dialog for one node of the page.

use std::future::Future;

use berth_types::ids::NodeId;
use berth_types::nodes::Node;
use leptos::prelude::*;

use super::super::super::parts::Call;
use crate::api::Answer;

/// The signals of the rows and of the dialog.
#[derive(Clone, Copy)]
pub struct NodeDialog {
    /// The nodes of the page.
    pub nodes: RwSignal<Vec<Node>>,
    /// The node of the dialog.
    pub chosen: RwSignal<Option<NodeId>>,
    /// True with an open dialog.
    pub open: RwSignal<bool>,
}

impl NodeDialog {
    /// Returns a closed dialog for the nodes of a page.
    pub fn closed(nodes: RwSignal<Vec<Node>>) -> Self {
        Self { nodes, chosen: RwSignal::new(None), open: RwSignal::new(false) }
    }

    /// Returns the button of a node that opens the dialog.
    pub fn button(
        self,
        node: NodeId,
        class: &'static str,
        text: &'static str,
        label: String,
        ready: ReadSignal<bool>,
    ) -> AnyView {
        let open_dialog = move |_: leptos::ev::MouseEvent| {
            self.chosen.set(Some(node));
            self.open.set(true);
        };
        view! {
            <button class=class type="button" aria-label=label disabled=move || !ready.get() on:click=open_dialog>
                {text}
            </button>
        }
        .into_any()
    }

    /// Returns the node of the dialog, with each refresh of the list.
    pub fn node(self) -> Memo<Option<Node>> {
        Memo::new(move |_| {
            let id = self.chosen.get()?;
            self.nodes.with(|nodes| nodes.iter().find(|node| node.id == id).cloned())
        })
    }

    /// Sends a change of the node of the dialog. Its answer replaces the row of the node; `done` runs if the dialog
    /// still has the node.
    pub fn change(
        self,
        call: Call,
        node: NodeId,
        answer: impl Future<Output = Answer<Node>> + 'static,
        done: impl FnOnce() + 'static,
    ) {
        let is_shown = move || self.chosen.try_get_untracked() == Some(Some(node));
        call.run_for(is_shown, answer, move |fresh: Node, shown| {
            if shown {
                done();
            }
            replace(self.nodes, fresh);
        });
    }
}

/// Replaces a node of the page by its fresh state.
pub fn replace(nodes: RwSignal<Vec<Node>>, fresh: Node) {
    nodes.update(|nodes| {
        if let Some(known) = nodes.iter_mut().find(|known| known.id == fresh.id) {
            *known = fresh;
        }
    });
}
