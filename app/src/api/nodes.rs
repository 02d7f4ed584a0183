//! Nodes and join tokens.

use std::future::Future;

use berth_types::Page;
use berth_types::cluster::{Board, BoardFilter, ClusterMap};
use berth_types::diagnosis::NodeDiagnosis;
use berth_types::ids::{NodeId, OrgId};
use berth_types::node_pools::InferencePool;
use berth_types::nodes::{
    ApproveNode, Dedication, JoinToken, NewJoinToken, Node, NodeFilter, OrgNodes, PatchNode, PutOrgNodes,
};
use berth_types::rdma::RdmaGrant;

use super::escape::escaped;
use super::{Answer, Tagged, get, get_changed, list_all, send};

/// Gets all boards in a short form. `None`: they are unchanged since the answer with the tag `known`.
pub fn map(
    org: OrgId,
    known: Option<String>,
) -> impl Future<Output = Answer<Option<Tagged<ClusterMap>>>> + Send + 'static {
    get_changed(format!("/orgs/{org}/cluster"), known)
}

/// Returns a filter of boards as parts of a query; empty without conditions.
pub fn board_query(filter: &BoardFilter) -> Vec<String> {
    let text = |name: &str, value: &Option<String>| value.as_ref().map(|v| format!("{name}={}", escaped(v)));
    let parts = [
        text("model", &filter.model),
        text("rack", &filter.rack),
        text("label", &filter.label),
        filter.state.map(|state| format!("state={}", state.name())),
        text("fits", &filter.fits),
        filter.own.then(|| "own=true".to_owned()),
        filter.dedicated.then(|| "dedicated=true".to_owned()),
    ];
    parts.into_iter().flatten().collect()
}

/// Lists a page of the boards of a query by node and number.
pub fn boards(
    org: OrgId,
    query: &str,
    cursor: Option<String>,
    limit: usize,
) -> impl Future<Output = Answer<Page<Board>>> + Send + 'static + use<> {
    let cursor = cursor.map_or_else(String::new, |cursor| format!("&cursor={}", escaped(&cursor)));
    let query = if query.is_empty() { String::new() } else { format!("&{query}") };
    get(format!("/orgs/{org}/boards?limit={limit}{query}{cursor}"))
}

/// Gets a board with the tiles visible to an organization.
pub fn board(org: OrgId, uuid: &str) -> impl Future<Output = Answer<Board>> + Send + 'static + use<> {
    get(format!("/orgs/{org}/boards/{}", escaped(uuid)))
}

/// Lists the nodes with all owners, for operators.
pub fn operator_list() -> impl Future<Output = Answer<Page<Node>>> + Send + 'static {
    list_all("/operator/nodes".to_owned())
}

/// Lists the first 20 nodes with a text in their name, for operators.
pub fn suggest(text: &str) -> impl Future<Output = Answer<Page<Node>>> + Send + 'static + use<> {
    get(format!("/operator/nodes?limit=20&name={}", escaped(text)))
}

/// Returns a filter of nodes as a query without `?`; empty without conditions.
pub fn filter_query(filter: &NodeFilter) -> String {
    let parts = [
        filter.state.map(|state| format!("state={}", state.name())),
        filter.model.as_ref().map(|model| format!("model={}", escaped(model))),
        filter.name.as_ref().map(|name| format!("name={}", escaped(name))),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("&")
}

/// Lists a page of the nodes of a query by name, for operators.
pub fn operator_page(
    query: String,
    cursor: Option<String>,
    limit: usize,
) -> impl Future<Output = Answer<Page<Node>>> + Send + 'static {
    let cursor = cursor.map_or_else(String::new, |cursor| format!("&cursor={}", escaped(&cursor)));
    get(format!("/operator/nodes?limit={limit}&{query}{cursor}"))
}

/// Gets a node with all owners, for operators.
pub fn operator_get(node: NodeId) -> impl Future<Output = Answer<Node>> + Send + 'static {
    get(format!("/operator/nodes/{node}"))
}

/// Gets the latest checks of a node's host, for operators.
pub fn diagnosis(node: NodeId) -> impl Future<Output = Answer<NodeDiagnosis>> + Send + 'static {
    get(format!("/operator/nodes/{node}/diagnosis"))
}

/// Approves a node with its present boards.
pub fn approve(node: NodeId, input: &ApproveNode) -> impl Future<Output = Answer<Node>> + Send + 'static {
    send("POST", format!("/operator/nodes/{node}/approve"), input, None)
}

/// Removes a node without an approval, or a lost node with a revoked certificate.
pub fn remove(node: NodeId) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", format!("/operator/nodes/{node}"), &(), None)
}

/// Changes the cordon, the labels or the pool of a node.
pub fn patch(node: NodeId, input: &PatchNode) -> impl Future<Output = Answer<Node>> + Send + 'static {
    send("PATCH", format!("/operator/nodes/{node}"), input, None)
}

/// Releases a node that is set aside for jobs on several nodes.
pub fn release(node: NodeId) -> impl Future<Output = Answer<Node>> + Send + 'static {
    send("DELETE", format!("/operator/nodes/{node}/set-aside"), &(), None)
}

/// Dedicates a node to an organization, or opens it to all.
pub fn dedicate(node: NodeId, input: &Dedication) -> impl Future<Output = Answer<Node>> + Send + 'static {
    send("PUT", format!("/operator/nodes/{node}/dedication"), input, None)
}

/// Gets the settings of the pool for inference.
pub fn inference_pool() -> impl Future<Output = Answer<InferencePool>> + Send + 'static {
    get("/operator/inference-pool".to_owned())
}

/// Replaces the settings of the pool for inference.
pub fn set_inference_pool(
    input: &InferencePool,
) -> impl Future<Output = Answer<InferencePool>> + Send + 'static {
    send("PUT", "/operator/inference-pool", input, None)
}

/// Gets the dedicated nodes of an organization, for operators.
pub fn of_org(org: OrgId) -> impl Future<Output = Answer<OrgNodes>> + Send + 'static {
    get(format!("/operator/orgs/{org}/nodes"))
}

/// Sets the use of own nodes only by an organization.
pub fn restrict_org(
    org: OrgId,
    input: &PutOrgNodes,
) -> impl Future<Output = Answer<OrgNodes>> + Send + 'static {
    send("PUT", format!("/operator/orgs/{org}/nodes"), input, None)
}

/// Gets the grant of RDMA of the own organization.
pub fn rdma_grant(org: OrgId) -> impl Future<Output = Answer<RdmaGrant>> + Send + 'static {
    get(format!("/orgs/{org}/rdma"))
}

/// Gets the grant of RDMA of an organization, for operators.
pub fn rdma_grant_of(org: OrgId) -> impl Future<Output = Answer<RdmaGrant>> + Send + 'static {
    get(format!("/operator/orgs/{org}/rdma"))
}

/// Grants RDMA to an organization, or revokes it.
pub fn set_rdma_grant(
    org: OrgId,
    input: &RdmaGrant,
) -> impl Future<Output = Answer<RdmaGrant>> + Send + 'static {
    send("PUT", format!("/operator/orgs/{org}/rdma"), input, None)
}

/// Creates a join token for a new node.
pub fn join_token(input: &NewJoinToken) -> impl Future<Output = Answer<JoinToken>> + Send + 'static {
    send("POST", "/operator/join-tokens", input, None)
}

/// Creates a join token for a new certificate of a node.
pub fn node_join_token(
    node: NodeId,
    input: &NewJoinToken,
) -> impl Future<Output = Answer<JoinToken>> + Send + 'static {
    send("POST", format!("/operator/nodes/{node}/join-token"), input, None)
}

/// Revokes all certificates of a node.
pub fn revoke(node: NodeId) -> impl Future<Output = Answer<Node>> + Send + 'static {
    send("POST", format!("/operator/nodes/{node}/revoke"), &(), None)
}

/// Declares a node lost.
pub fn declare_lost(node: NodeId) -> impl Future<Output = Answer<Node>> + Send + 'static {
    send("POST", format!("/operator/nodes/{node}/lost"), &(), None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::nodes::NodeState;

    #[test]
    fn a_filter_of_nodes_is_a_query() {
        assert_eq!(filter_query(&NodeFilter::default()), "");
        let filter =
            NodeFilter { state: Some(NodeState::Draining), model: None, name: Some("pier & 1".to_owned()) };
        assert_eq!(filter_query(&filter), "state=draining&name=pier%20%26%201");
    }
}
