//! The list of nodes: its filter and order, from the URL and as a plain form, and its pages.

use std::future::Future;

use berth_types::Sort;
use berth_types::nodes::{Node, NodeFilter, NodeState};
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use crate::api;
use crate::api::Answer;

/// The filter and the order of the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeOrder {
    filter: NodeFilter,
    sort: Sort,
}

impl NodeOrder {
    /// Returns the query for the portal, without `?`.
    pub fn query(&self) -> String {
        let sort = match self.sort {
            Sort::Asc => "sort=asc",
            Sort::Desc => "sort=desc",
        };
        let filter = api::nodes::filter_query(&self.filter);
        if filter.is_empty() { sort.to_owned() } else { format!("{sort}&{filter}") }
    }

    /// Returns true if the filter has a condition.
    pub fn is_filtered(&self) -> bool {
        self.filter != NodeFilter::default()
    }
}

/// Parses filter and order of a URL; invalid values are ignored.
pub fn parse(get: impl Fn(&str) -> Option<String>) -> NodeOrder {
    let text = |name: &str| get(name).map(|t| t.trim().to_owned()).filter(|t| !t.is_empty());
    let sort = if text("sort").as_deref() == Some("desc") { Sort::Desc } else { Sort::Asc };
    let state = text("state").and_then(|name| NodeState::parse(&name));
    NodeOrder { filter: NodeFilter { state, model: text("model"), name: text("name") }, sort }
}

/// The number of nodes of a page.
pub const PAGE: usize = 50;
/// The most nodes of a refresh.
pub const MAX_REFRESHED: usize = 200;

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
pub struct Loaded {
    pub order: NodeOrder,
    pub nodes: Vec<Node>,
    pub cursor: Option<String>,
    /// The nodes that wait for an approval, whatever the filter.
    pub waiting: Vec<Node>,
}

/// Gets the first nodes that wait for an approval.
pub fn load_waiting() -> impl Future<Output = Answer<Vec<Node>>> + Send + 'static {
    let filter = NodeFilter { state: Some(NodeState::AwaitingApproval), ..NodeFilter::default() };
    let page = api::nodes::operator_page(api::nodes::filter_query(&filter), None, PAGE);
    async move { Ok(page.await?.items) }
}

/// Gets the first page of the list, and the nodes that wait for an approval.
pub fn load(order: NodeOrder) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let page = api::nodes::operator_page(order.query(), None, PAGE);
    let waiting = load_waiting();
    async move {
        let page = page.await?;
        Ok(Loaded { order, nodes: page.items, cursor: page.next_cursor, waiting: waiting.await? })
    }
}

/// Replaces the first nodes of a list by fresh ones. Without a further page the list has no other nodes.
pub fn refreshed(known: &[Node], fresh: Vec<Node>, has_more: bool) -> Vec<Node> {
    let tail = known.iter().skip(fresh.len()).filter(|_| has_more);
    let tail: Vec<Node> =
        tail.filter(|node| fresh.iter().all(|other| other.id != node.id)).cloned().collect();
    fresh.into_iter().chain(tail).collect()
}

/// Returns a text field of the filter.
fn field(id: &'static str, label: &'static str, name: &'static str, value: Option<&String>) -> AnyView {
    let value = value.cloned().unwrap_or_default();
    view! {
        <label class="filters__field" for=id>
            {label}
            <input class="input" id=id name=name autocomplete="off" maxlength="100" value=value/>
        </label>
    }
    .into_any()
}

/// Returns the form, which also works without scripts.
pub fn filter_form(order: &NodeOrder) -> AnyView {
    let NodeOrder { filter, sort } = order;
    let state = |one: NodeState| {
        let selected = filter.state == Some(one);
        view! { <option value=one.name() selected=selected>{one.word()}</option> }.into_any()
    };
    let states: Vec<AnyView> = NodeState::ALL.into_iter().map(state).collect();
    let any = filter.state.is_none();
    let descending = *sort == Sort::Desc;
    let clear = order
        .is_filtered()
        .then(|| view! { <a class="btn btn--quiet" href="/operator/nodes">"Clear filters"</a> });
    view! {
        <form class="filters" method="get" action="/operator/nodes" aria-label="Filter">
            {field("nodes-name", "Name", "name", filter.name.as_ref())}
            <label class="filters__field" for="nodes-state">
                "State"
                <select class="select" id="nodes-state" name="state">
                    <option value="" selected=any>"any"</option>
                    {states}
                </select>
            </label>
            {field("nodes-model", "Board model", "model", filter.model.as_ref())}
            <label class="filters__field" for="nodes-sort">
                "Order"
                <select class="select" id="nodes-sort" name="sort">
                    <option value="asc" selected=!descending>"A to Z"</option>
                    <option value="desc" selected=descending>"Z to A"</option>
                </select>
            </label>
            <button class="btn" type="submit">"Apply filter"</button>
            {clear}
        </form>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_and_order_are_parsed_from_a_url() {
        let parse = |query: &[(&str, &str)]| {
            parse(|name| query.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()))
        };
        let plain = parse(&[("state", "lost"), ("name", " "), ("sort", "up")]);
        assert_eq!((plain.query().as_str(), plain.is_filtered()), ("sort=asc", false));
        let found = parse(&[("state", "unreachable"), ("name", " pier"), ("sort", "desc")]);
        assert_eq!(found.query(), "sort=desc&state=unreachable&name=pier");
        assert!(found.is_filtered());
    }

    #[test]
    fn a_refresh_keeps_later_pages() {
        let numbered = |n: u32| {
            serde_json::from_value::<Node>(serde_json::json!({
                "id": format!("node_{n:0>26}"), "name": "pier", "state": "ready", "simulated": false,
                "unisolated": false, "driver_version": "550", "worker_version": "0.1", "gpus": [],
            }))
            .unwrap()
        };
        let ids = |nodes: &[Node]| nodes.iter().map(|node| node.id.to_string()).collect::<Vec<_>>();
        let known = [1, 2, 3, 4].map(numbered);
        let expected = [1, 2, 3, 4].map(|n| format!("node_{n:0>26}"));
        assert_eq!(ids(&refreshed(&known, [1, 2].map(numbered).to_vec(), true)), expected);
        assert_eq!(ids(&refreshed(&known, [1, 2].map(numbered).to_vec(), false)), expected[..2]);
        // A new node moves another one to the next page.
        let fresh = [1, 3].map(numbered).to_vec();
        assert_eq!(ids(&refreshed(&known, fresh, true)).len(), 3);
    }
}
