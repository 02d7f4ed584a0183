//! Nodes and join tokens.

use std::future::Future;

use berth_types::Page;
use berth_types::ids::{NodeId, OrgId};
use berth_types::nodes::{JoinToken, NewJoinToken, Node, PatchNode};

use super::{Answer, list_all, send};

/// Lists the nodes with the tiles visible to an organization.
pub fn list(org: OrgId) -> impl Future<Output = Answer<Page<Node>>> + Send + 'static {
    list_all(format!("/orgs/{org}/nodes"))
}

/// Lists the nodes with all owners, for operators.
pub fn operator_list() -> impl Future<Output = Answer<Page<Node>>> + Send + 'static {
    list_all("/operator/nodes".to_owned())
}

/// Cordons or uncordons a node.
pub fn patch(node: NodeId, input: &PatchNode) -> impl Future<Output = Answer<Node>> + Send + 'static {
    send("PATCH", format!("/operator/nodes/{node}"), input, None)
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
