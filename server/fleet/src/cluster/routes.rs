//! The lists of nodes.

use super::Cluster;
use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::Json as Answer;
use axum::extract::State;
use berth_rest::lists::{ListQuery, name_and_id, page_in_memory};
use berth_rest::operations::doc;
use berth_rest::{Failed, Path, Query, Signed};
use berth_types::ids::OrgId;
use berth_types::nodes::{Node, NodeFilter, NodeState};
use berth_types::{Page, Sort};
use serde::Deserialize;

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

/// The query of all nodes.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct NodeQuery {
    /// Only nodes in this state.
    state: Option<NodeState>,
    /// Only nodes with a reported board of this model: a part of its name in any case, at most 100 bytes.
    #[schemars(length(max = 100))]
    model: Option<String>,
    /// Only nodes with this text in their name, in any case: at most 100 bytes.
    #[schemars(length(max = 100))]
    name: Option<String>,
    /// The most items of a page, 1 to 200; 50 when absent.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[schemars(length(min = 1, max = 4_096))]
    cursor: Option<String>,
    /// The order of the list. When absent, `desc` for lists by creation and `asc` for all other lists.
    sort: Option<Sort>,
}

async fn list_all(
    State(cluster): State<Cluster>,
    Signed(caller): Signed,
    Query(query): Query<NodeQuery>,
) -> Result<Answer<Page<Node>>, Failed> {
    let options = ListQuery { limit: query.limit, cursor: query.cursor, sort: query.sort }.by_name()?;
    let filter = NodeFilter { state: query.state, model: query.model, name: query.name };
    Ok(Answer(cluster.list_matching_nodes(&caller, &filter, &options).await?))
}
