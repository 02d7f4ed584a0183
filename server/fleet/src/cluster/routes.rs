//! The lists of nodes and boards.

use super::Cluster;
use super::map::model_name;
use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::Json as Answer;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use berth_rest::answers::if_changed;
use berth_rest::lists::{ListQuery, name_and_id, page_in_memory};
use berth_rest::operations::{self, doc};
use berth_rest::{Failed, Path, Query, Signed};
use berth_types::cluster::{Board, BoardFilter, BoardState, ClusterMap, RACK_LABEL};
use berth_types::ids::OrgId;
use berth_types::nodes::{Node, NodeFilter, NodeState};
use berth_types::problems::Problem;
use berth_types::scopes::ApiScope;
use berth_types::{Page, Sort};
use serde::Deserialize;

/// Bytes of the longest text of a filter: a label as `key=value`.
const MAX_FILTER_BYTES: usize = 127;

pub fn routes() -> ApiRouter<Cluster> {
    ApiRouter::new()
        .api_route(
            "/orgs/{org}/nodes",
            get_with(list, doc(ApiScope::FleetRead, "Lists the nodes as a tenant sees them.")),
        )
        .api_route("/operator/nodes", get_with(list_all, doc(ApiScope::FleetRead, "Lists all nodes.")))
        .api_route(
            "/orgs/{org}/cluster",
            get_with(
                map,
                operations::if_changed::<ClusterMap>(
                    ApiScope::FleetRead,
                    "Gives all boards in a short form.",
                ),
            ),
        )
        .api_route(
            "/orgs/{org}/boards",
            get_with(list_boards, doc(ApiScope::FleetRead, "Lists the boards by node and number.")),
        )
        .api_route("/orgs/{org}/boards/{gpu}", get_with(board, doc(ApiScope::FleetRead, "Gives a board.")))
}

fn node_key(node: &Node) -> String {
    name_and_id(&node.name, node.id)
}

fn board_key(board: &Board) -> String {
    let node = name_and_id(&board.node_name, board.node);
    format!("{node}\u{1f}{:05}\u{1f}{}", board.gpu.index, board.uuid)
}

/// Checks the length of the texts of a filter.
fn check_texts(texts: &[(&str, &Option<String>)]) -> Result<(), Failed> {
    let bad =
        |text: &Option<String>| text.as_ref().is_some_and(|t| !(1..=MAX_FILTER_BYTES).contains(&t.len()));
    match texts.iter().find(|(_, text)| bad(text)) {
        None => Ok(()),
        Some((name, _)) => {
            let detail = format!("`{name}` has 1 to {MAX_FILTER_BYTES} bytes.");
            Err(Failed(Problem::malformed(detail)))
        }
    }
}

/// The query of the nodes of a tenant.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct TenantNodeQuery {
    /// Only nodes with a board of this model, as in `gpu_model` of offerings: at most 127 bytes.
    #[schemars(length(min = 1, max = 127))]
    model: Option<String>,
    /// Only nodes of this rack: at most 127 bytes.
    #[schemars(length(min = 1, max = 127))]
    rack: Option<String>,
    /// Only nodes in this state.
    state: Option<NodeState>,
    /// The most items of a page, 1 to 200; 50 when absent.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[schemars(length(min = 1, max = 4_096))]
    cursor: Option<String>,
    /// The order of the list. When absent, `desc` for lists by creation and `asc` for all other lists.
    sort: Option<Sort>,
}

async fn list(
    State(cluster): State<Cluster>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<TenantNodeQuery>,
) -> Result<Answer<Page<Node>>, Failed> {
    let TenantNodeQuery { model, rack, state, limit, cursor, sort } = query;
    let options = ListQuery { limit, cursor, sort }.by_name_with(&(&model, &rack, state))?;
    check_texts(&[("model", &model), ("rack", &rack)])?;
    let mut nodes = cluster.list_nodes(&caller, org).await?;
    nodes.retain(|node| {
        let has_model = |model: &str| node.gpus.iter().any(|gpu| model_name(&gpu.model) == model);
        let in_rack = |rack: &str| node.labels.get(RACK_LABEL).is_some_and(|known| known == rack);
        model.as_deref().is_none_or(has_model)
            && rack.as_deref().is_none_or(in_rack)
            && state.is_none_or(|state| state == node.state)
    });
    Ok(Answer(page_in_memory(nodes, &options, node_key)))
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
    let filter = NodeFilter { state: query.state, model: query.model, name: query.name };
    let options =
        ListQuery { limit: query.limit, cursor: query.cursor, sort: query.sort }.by_name_with(&filter)?;
    Ok(Answer(cluster.list_matching_nodes(&caller, &filter, &options).await?))
}

async fn map(
    State(cluster): State<Cluster>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    headers: HeaderMap,
) -> Result<Response, Failed> {
    if_changed(&headers, &cluster.get_map(&caller, org).await?)
}

/// The query of the boards.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct BoardQuery {
    /// Only boards of this model, as in `gpu_model` of offerings: at most 127 bytes.
    #[schemars(length(min = 1, max = 127))]
    model: Option<String>,
    /// Only boards of this rack: at most 127 bytes.
    #[schemars(length(min = 1, max = 127))]
    rack: Option<String>,
    /// Only boards of nodes with this label as `key=value`: at most 127 bytes.
    #[schemars(length(min = 1, max = 127))]
    label: Option<String>,
    /// Only boards in this state.
    state: Option<BoardState>,
    /// Only boards with this device free: a MIG profile, or `board` for a whole board: at most 127 bytes.
    #[schemars(length(min = 1, max = 127))]
    fits: Option<String>,
    /// True for boards with jobs of the organization only.
    #[serde(default)]
    own: bool,
    /// True for boards of nodes that are dedicated to the organization only.
    #[serde(default)]
    dedicated: bool,
    /// The most items of a page, 1 to 200; 50 when absent.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[schemars(length(min = 1, max = 4_096))]
    cursor: Option<String>,
    /// The order of the list. When absent, `desc` for lists by creation and `asc` for all other lists.
    sort: Option<Sort>,
}

async fn list_boards(
    State(cluster): State<Cluster>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<BoardQuery>,
) -> Result<Answer<Page<Board>>, Failed> {
    let BoardQuery { model, rack, label, state, fits, own, dedicated, limit, cursor, sort } = query;
    check_texts(&[("model", &model), ("rack", &rack), ("label", &label), ("fits", &fits)])?;
    let filter = BoardFilter { model, rack, label, state, fits, own, dedicated };
    let options = ListQuery { limit, cursor, sort }.by_name_with(&filter)?;
    Ok(Answer(page_in_memory(cluster.list_boards(&caller, org, &filter).await?, &options, board_key)))
}

async fn board(
    State(cluster): State<Cluster>,
    Signed(caller): Signed,
    Path((org, gpu)): Path<(OrgId, String)>,
) -> Result<Answer<Board>, Failed> {
    Ok(Answer(cluster.get_board(&caller, org, &gpu).await?))
}
