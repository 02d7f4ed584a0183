//! The lists of nodes.

use super::Cluster;
use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::Json as Answer;
use axum::extract::State;
use berth_rest::lists::{ListQuery, name_and_id, page_in_memory};
use berth_rest::operations::doc;
use berth_rest::{Failed, Path, Query, Signed};
use berth_types::Page;
use berth_types::ids::OrgId;
use berth_types::nodes::Node;

pub fn routes() -> ApiRouter<Cluster> {
    ApiRouter::new()
        .api_route("/orgs/{org}/nodes", get_with(list, doc("Lists the nodes as a tenant sees them.")))
        .api_route("/operator/nodes", get_with(list_all, doc("Lists all nodes.")))
}

fn node_key(node: &Node) -> String {
    name_and_id(&node.name, node.id)
}

async fn list(
    State(cluster): State<Cluster>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<Node>>, Failed> {
    let options = query.by_name()?;
    Ok(Answer(page_in_memory(cluster.list_nodes(&caller, org).await?, &options, node_key)))
}

async fn list_all(
    State(cluster): State<Cluster>,
    Signed(caller): Signed,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<Node>>, Failed> {
    let options = query.by_name()?;
    Ok(Answer(page_in_memory(cluster.list_all_nodes(&caller).await?, &options, node_key)))
}
