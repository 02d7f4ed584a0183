//! Nodes, join tokens and the cluster map.

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, patch, post};
use axum::{Json as Answer, Router};
use berth_types::Page;
use berth_types::ids::{NodeId, OrgId};
use berth_types::nodes::{JoinToken, NewJoinToken, Node, PatchNode};

use super::extract::{Failed, Json, Path, Signed};
use crate::portal::Portal;

pub fn routes() -> Router<Portal> {
    Router::new()
        .route("/orgs/{org}/nodes", get(list))
        .route("/operator/nodes", get(list_all))
        .route("/operator/nodes/{node}", patch(change))
        .route("/operator/nodes/{node}/join-token", post(create_node_join_token))
        .route("/operator/nodes/{node}/revoke", post(revoke))
        .route("/operator/nodes/{node}/lost", post(declare_lost))
        .route("/operator/join-tokens", post(create_join_token))
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
) -> Result<(StatusCode, Answer<JoinToken>), Failed> {
    Ok((StatusCode::CREATED, Answer(portal.enrolment.create_join_token(&caller, None, body.value).await?)))
}

async fn create_node_join_token(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(node): Path<NodeId>,
    body: Json<NewJoinToken>,
) -> Result<(StatusCode, Answer<JoinToken>), Failed> {
    let made = portal.enrolment.create_join_token(&caller, Some(node), body.value).await?;
    Ok((StatusCode::CREATED, Answer(made)))
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
