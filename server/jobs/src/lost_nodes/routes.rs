//! The route by which an operator declares a node lost.

use super::LostNodes;
use aide::axum::ApiRouter;
use aide::axum::routing::post_with;
use axum::Json as Answer;
use axum::extract::State;
use berth_rest::operations::doc;
use berth_rest::{Failed, Path, Signed};
use berth_types::ids::NodeId;
use berth_types::nodes::Node;
use berth_types::scopes::ApiScope;

pub fn routes() -> ApiRouter<LostNodes> {
    ApiRouter::new().api_route(
        "/operator/nodes/{node}/lost",
        post_with(declare_lost, doc(ApiScope::FleetWrite, "Declares a silent node lost.")),
    )
}

async fn declare_lost(
    State(lost_nodes): State<LostNodes>,
    Signed(caller): Signed,
    Path(node): Path<NodeId>,
) -> Result<Answer<Node>, Failed> {
    Ok(Answer(lost_nodes.declare_lost(&caller, node).await?))
}
