//! Nodes, join tokens and the cluster map.

use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, patch_with, post_with};
use axum::Json as Answer;
use axum::extract::State;
use berth_types::Page;
use berth_types::ids::{NodeId, OrgId};
use berth_types::nodes::{JoinToken, NewJoinToken, Node, PatchNode};

use super::answers::Created;
use super::extract::{Failed, Json, Path, Signed};
use super::openapi::doc;
use crate::portal::Portal;

pub fn routes() -> ApiRouter<Portal> {
    ApiRouter::new()
        .api_route("/orgs/{org}/nodes", get_with(list, doc("Lists the nodes as a tenant sees them.")))
        .api_route("/operator/nodes", get_with(list_all, doc("Lists all nodes.")))
        .api_route("/operator/nodes/{node}", patch_with(change, doc("Cordons or uncordons a node.")))
        .api_route(
            "/operator/nodes/{node}/join-token",
            post_with(create_node_join_token, doc("Creates a join token for a known node.")),
        )
        .api_route(
            "/operator/nodes/{node}/revoke",
            post_with(revoke, doc("Revokes the certificates of a node.")),
        )
        .api_route(
            "/operator/nodes/{node}/lost",
            post_with(declare_lost, doc("Declares a silent node lost.")),
        )
        .api_route(
            "/operator/join-tokens",
            post_with(create_join_token, doc("Creates a join token for a new node.")),
        )
}

async fn list(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Answer<Page<Node>>, Failed> {
    Ok(Answer(portal.cluster.list_nodes(&caller, org).await?))
}

async fn list_all(
    State(portal): State<Portal>,
    Signed(caller): Signed,
) -> Result<Answer<Page<Node>>, Failed> {
    Ok(Answer(portal.cluster.list_all_nodes(&caller).await?))
}

async fn change(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(node): Path<NodeId>,
    body: Json<PatchNode>,
) -> Result<Answer<Node>, Failed> {
    Ok(Answer(portal.nodes.patch_node(&caller, node, body.value).await?))
}

async fn create_join_token(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    body: Json<NewJoinToken>,
) -> Result<Created<JoinToken>, Failed> {
    Ok(Created(portal.enrolment.create_join_token(&caller, None, body.value).await?))
}

async fn create_node_join_token(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(node): Path<NodeId>,
    body: Json<NewJoinToken>,
) -> Result<Created<JoinToken>, Failed> {
    let made = portal.enrolment.create_join_token(&caller, Some(node), body.value).await?;
    Ok(Created(made))
}

async fn revoke(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(node): Path<NodeId>,
) -> Result<Answer<Node>, Failed> {
    Ok(Answer(portal.enrolment.revoke_node(&caller, node).await?))
}

async fn declare_lost(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(node): Path<NodeId>,
) -> Result<Answer<Node>, Failed> {
    Ok(Answer(portal.lost_nodes.declare_lost(&caller, node).await?))
}
