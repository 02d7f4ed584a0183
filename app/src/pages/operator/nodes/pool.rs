//! The dialog for the pool of a node.

use berth_types::node_pools::NodePool;
use berth_types::nodes::PatchNode;
use leptos::prelude::*;

use super::super::super::dialog_form::DialogForm;
use super::super::super::parts::{Call, CallProblem};
use super::dialog::NodeDialog;
use crate::api;
use crate::ui::*;

/// The dialog for the pool of a node.
#[component]
pub fn PoolDialog(
    /// The signals of the page.
    state: NodeDialog,
) -> impl IntoView {
    let call = Call::idle();
    let NodeDialog { chosen, open, .. } = state;
    let pool = RwSignal::new(NodePool::Both);
    let node = state.node();
    // A refresh of the list changes no choice that is being made.
    let reset = move |()| {
        pool.set(node.with_untracked(|node| node.as_ref().map(|node| node.pool).unwrap_or_default()));
    };
    let title = Signal::derive(move || {
        node.get().map_or_else(|| "Pool".to_owned(), |node| format!("Pool of {}", node.name))
    });
    let option = |one: NodePool| {
        view! { <option value=one.name() prop:selected=move || pool.get() == one>{one.work_text()}</option> }
    };
    let options: Vec<AnyView> = NodePool::ALL.into_iter().map(|one| option(one).into_any()).collect();
    let choose = move |name: String| pool.set(NodePool::parse(&name).unwrap_or_default());
    let submit = move |()| {
        let Some(id) = chosen.get_untracked() else { return };
        let body = PatchNode { pool: Some(pool.get_untracked()), ..PatchNode::default() };
        state.change(call, id, api::nodes::patch(id, &body), move || open.set(false));
    };
    view! {
        <DialogForm
            id="node-pool"
            title=title
            open=open
            call=call
            keep="Cancel"
            verb="Save"
            reset=Callback::new(reset)
            submit=Callback::new(submit)
        >
            <p>
                "Waiting jobs follow the change at once. Running jobs and reservations stay on the node. In the pool for inference a waiting replica can preempt the preemptible jobs."
            </p>
            <CallProblem call=call beside_fields=&["/pool"]/>
            <SelectField
                label="Pool"
                id="node-pool-work"
                error=call.field("/pool")
                choose=Callback::new(choose)
            >
                {options}
            </SelectField>
        </DialogForm>
    }
}
