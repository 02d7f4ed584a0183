//! The routes of single nodes.

use super::Nodes;
use aide::axum::ApiRouter;
use aide::axum::routing::patch_with;
use axum::Json as Answer;
use axum::extract::State;
use berth_rest::operations::doc;
use berth_rest::{Failed, Json, Path, Signed};
use berth_types::ids::NodeId;
use berth_types::nodes::{Node, PatchNode};

pub fn routes() -> ApiRouter<Nodes> {
    ApiRouter::new()
        .api_route("/operator/nodes/{node}", patch_with(change, doc("Cordons or uncordons a node.")))
}

async fn change(
    State(nodes): State<Nodes>,
    Signed(caller): Signed,
    Path(node): Path<NodeId>,
    body: Json<PatchNode>,
) -> Result<Answer<Node>, Failed> {
    Ok(Answer(nodes.patch_node(&caller, node, body.value).await?))
}
