//! The lists of nodes.

use super::Cluster;
use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::Json as Answer;
use axum::extract::State;
use berth_rest::operations::doc;
use berth_rest::{Failed, Path, Signed};
use berth_types::Page;
use berth_types::ids::OrgId;
use berth_types::nodes::Node;

pub fn routes() -> ApiRouter<Cluster> {
    ApiRouter::new()
        .api_route("/orgs/{org}/nodes", get_with(list, doc("Lists the nodes as a tenant sees them.")))
        .api_route("/operator/nodes", get_with(list_all, doc("Lists all nodes.")))
}

async fn list(
    State(cluster): State<Cluster>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Answer<Page<Node>>, Failed> {
    Ok(Answer(cluster.list_nodes(&caller, org).await?))
}

async fn list_all(
    State(cluster): State<Cluster>,
    Signed(caller): Signed,
) -> Result<Answer<Page<Node>>, Failed> {
    Ok(Answer(cluster.list_all_nodes(&caller).await?))
}
