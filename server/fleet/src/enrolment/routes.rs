//! The routes of join tokens and of the revocation of nodes.

use super::Enrolment;
use aide::axum::ApiRouter;
use aide::axum::routing::post_with;
use axum::Json as Answer;
use axum::extract::State;
use berth_rest::answers::Created;
use berth_rest::operations::doc;
use berth_rest::{Failed, Json, Path, Signed};
use berth_types::ids::NodeId;
use berth_types::nodes::{JoinToken, NewJoinToken, Node};
use berth_types::scopes::ApiScope;

pub fn routes() -> ApiRouter<Enrolment> {
    ApiRouter::new()
        .api_route(
            "/operator/nodes/{node}/join-token",
            post_with(
                create_node_join_token,
                doc(ApiScope::FleetWrite, "Creates a join token for a known node."),
            ),
        )
        .api_route(
            "/operator/nodes/{node}/revoke",
            post_with(revoke, doc(ApiScope::FleetWrite, "Revokes the certificates of a node.")),
        )
        .api_route(
            "/operator/join-tokens",
            post_with(create_join_token, doc(ApiScope::FleetWrite, "Creates a join token for a new node.")),
        )
}

async fn create_join_token(
    State(enrolment): State<Enrolment>,
    Signed(caller): Signed,
    body: Json<NewJoinToken>,
) -> Result<Created<JoinToken>, Failed> {
    Ok(Created(enrolment.create_join_token(&caller, None, body.value).await?))
}

async fn create_node_join_token(
    State(enrolment): State<Enrolment>,
    Signed(caller): Signed,
    Path(node): Path<NodeId>,
    body: Json<NewJoinToken>,
) -> Result<Created<JoinToken>, Failed> {
    let made = enrolment.create_join_token(&caller, Some(node), body.value).await?;
    Ok(Created(made))
}

async fn revoke(
    State(enrolment): State<Enrolment>,
    Signed(caller): Signed,
    Path(node): Path<NodeId>,
) -> Result<Answer<Node>, Failed> {
    Ok(Answer(enrolment.revoke_node(&caller, node).await?))
}
