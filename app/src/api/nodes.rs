//! Nodes and join tokens.

use std::future::Future;

use berth_types::Page;
use berth_types::ids::{NodeId, OrgId};
use berth_types::nodes::{JoinToken, NewJoinToken, Node, PatchNode};

use super::{Answer, list_all, send};

/// The cluster as an organization may see it.
pub fn list(org: OrgId) -> impl Future<Output = Answer<Page<Node>>> + Send + 'static {
    list_all(format!("/orgs/{org}/nodes"))
}

/// The cluster with every owner, for operators.
pub fn operator_list() -> impl Future<Output = Answer<Page<Node>>> + Send + 'static {
    list_all("/operator/nodes".to_owned())
}

/// Cordons or uncordons a node.
pub fn patch(node: NodeId, input: &PatchNode) -> impl Future<Output = Answer<Node>> + Send + 'static {
    send("PATCH", format!("/operator/nodes/{node}"), input, None)
}

/// Makes a one-time ticket for a worker.
pub fn join_token(input: &NewJoinToken) -> impl Future<Output = Answer<JoinToken>> + Send + 'static {
    send("POST", "/operator/join-tokens", input, None)
}

/// Makes a one-time ticket with which a node proves itself anew.
pub fn node_join_token(
    node: NodeId,
    input: &NewJoinToken,
) -> impl Future<Output = Answer<JoinToken>> + Send + 'static {
    send("POST", format!("/operator/nodes/{node}/join-token"), input, None)
}

/// Takes back every certificate of a node.
pub fn revoke(node: NodeId) -> impl Future<Output = Answer<Node>> + Send + 'static {
    send("POST", format!("/operator/nodes/{node}/revoke"), &(), None)
}

/// Says that nothing runs on a node any more.
pub fn declare_lost(node: NodeId) -> impl Future<Output = Answer<Node>> + Send + 'static {
    send("POST", format!("/operator/nodes/{node}/lost"), &(), None)
}
