//! Nodes that are set aside for jobs on several nodes after a bad link, and their release.

use berth_types::ids::NodeId;
use berth_types::nodes::Node;
use berth_types::operators::OperatorRight;
use leptos::prelude::*;

use super::super::super::parts::Call;
use super::super::may;
use crate::ui::*;

/// Returns the banner of a node that is set aside, with the button of its release.
pub fn aside_banner(
    node: &Node,
    call: Call,
    ready: ReadSignal<bool>,
    release: impl Fn(NodeId) + Copy + Send + 'static,
) -> Option<AnyView> {
    let aside = node.set_aside.clone()?;
    let title = format!("{} is set aside for jobs on several nodes", node.name);
    let (id, name) = (node.id, node.id.to_string());
    let label = format!("Release {}", node.name);
    let button = may(OperatorRight::ManageFleet).then(|| {
        view! {
            <button
                class="btn"
                type="button"
                aria-label=label
                disabled=move || !ready.get() || call.pending.get()
                on:click=move |_| release(id)
            >
                "Release"
            </button>
        }
    });
    Some(
        view! {
            <div class="banner banner--warn" role="status">
                <div class="banner__text">
                    <strong class="banner__title">{title}</strong>
                    {aside.reason}
                    " Until "
                    <When at=aside.until/>
                    ", the node takes jobs on one node only. Check the cables, the switch and the adapters, then release the node. A release also forgets the measurements of its links."
                    <span class="banner__id">{name}</span>
                </div>
                {button}
            </div>
        }
        .into_any(),
    )
}
