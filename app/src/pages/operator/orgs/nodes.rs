//! Dialog of the dedicated nodes of an organization, with the setting "own nodes only".

use berth_types::accounts::OrgSummary;
use berth_types::nodes::{OrgNode, OrgNodes, PutOrgNodes};
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::super::super::dialog_form::DialogForm;
use super::super::super::parts::{Call, CallProblem};
use super::super::super::text::counted;
use super::OrgsState;
use crate::api;

/// Returns the number of dedicated nodes beyond those of the list.
fn more_text(nodes: &OrgNodes) -> Option<String> {
    let listed = u32::try_from(nodes.nodes.len()).unwrap_or(u32::MAX);
    let more = nodes.node_count.saturating_sub(listed);
    (more > 0).then(|| format!("{more} more"))
}

/// Returns the list of the nodes, each with a link to its boards.
fn node_list(nodes: &OrgNodes) -> AnyView {
    if nodes.nodes.is_empty() {
        let text = "No node is dedicated to this organization. Dedicate one in the menu of a node on the page Nodes.";
        return view! { <p class="quiet">{text}</p> }.into_any();
    }
    let link = |node: &OrgNode| {
        let (path, name) = (format!("/operator/nodes/{}", node.id), node.name.clone());
        view! { <li><a href=path>{name}</a></li> }.into_any()
    };
    let links: Vec<AnyView> = nodes.nodes.iter().map(link).collect();
    let more = more_text(nodes).map(|text| view! { <li class="quiet">{text}</li> });
    view! { <ul>{links}{more}</ul> }.into_any()
}

/// The dialog with the nodes and the setting.
#[component]
pub fn OrgNodesDialog(
    /// The signals of the page.
    state: OrgsState,
) -> impl IntoView {
    let call = Call::idle();
    let open = state.dedicating;
    let nodes = RwSignal::new(None::<OrgNodes>);
    let own_only = RwSignal::new(false);
    let title = Signal::derive(move || state.title("Nodes of", "Nodes"));
    let reset = move |()| {
        nodes.set(None);
        let Some((org, _)) = state.org() else { return };
        let found = api::nodes::of_org(org);
        spawn_local(async move {
            let found = found.await;
            // The dialog may be that of another organization by now.
            let is_shown =
                |shown: &Option<OrgSummary>| shown.as_ref().is_some_and(|shown| shown.org.id == org);
            if state.chosen.try_with_untracked(is_shown) != Some(true) {
                return;
            }
            match found {
                Ok(found) => {
                    let _ = own_only.try_set(found.own_nodes_only);
                    let _ = nodes.try_set(Some(found));
                }
                Err(problem) => {
                    let _ = call.problem.try_set(Some(problem));
                }
            }
        });
    };
    let is_read = Memo::new(move |_| nodes.with(Option::is_some));
    let submit = move |()| {
        let Some((org, name)) = state.org().filter(|_| is_read.get_untracked()) else { return };
        let body = PutOrgNodes { own_nodes_only: own_only.get_untracked() };
        call.run(api::nodes::restrict_org(org, &body), move |saved: OrgNodes| {
            let count =
                counted(usize::try_from(saved.node_count).unwrap_or(0), "dedicated node", "dedicated nodes");
            let effect =
                if saved.own_nodes_only { "own nodes only" } else { "all nodes that are open to it" };
            state.status.set(format!("{name}: {count}, {effect}."));
            open.set(false);
        });
    };
    view! {
        <DialogForm
            id="org-nodes"
            title=title
            open=open
            call=call
            keep="Cancel"
            verb="Save"
            reset=Callback::new(reset)
            submit=Callback::new(submit)
        >
            <p>"Only the work of this organization goes to its dedicated nodes."</p>
            <CallProblem call=call beside_fields=&[]/>
            {move || nodes.with(|nodes| nodes.as_ref().map(node_list))}
            <label class="check">
                <input
                    type="checkbox"
                    prop:checked=move || own_only.get()
                    disabled=move || !is_read.get()
                    on:change=move |event| own_only.set(event_target_checked(&event))
                />
                <span>
                    "Own nodes only"
                    <span class="check__hint">
                        "Its jobs, reservations, secrets and volumes go to no other node. Without a free dedicated node its jobs wait."
                    </span>
                </span>
            </label>
        </DialogForm>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_beyond_the_list_are_counted() {
        let node =
            OrgNode { id: "node_00000000000000000000000001".parse().unwrap(), name: "pier-01".to_owned() };
        let nodes = |node_count| OrgNodes { own_nodes_only: false, node_count, nodes: vec![node.clone()] };
        assert_eq!(more_text(&nodes(1)), None);
        assert_eq!(more_text(&nodes(3)).as_deref(), Some("2 more"));
    }
}
