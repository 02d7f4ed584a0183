//! The routes of drains.

use super::Drains;
use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, put_with};
use axum::Json as Answer;
use axum::extract::State;
use axum::response::NoContent;
use berth_rest::lists::{ListQuery, name_and_id, page_in_memory};
use berth_rest::operations::doc;
use berth_rest::{Failed, Json, Path, Query, Signed};
use berth_types::Page;
use berth_types::ids::NodeId;
use berth_types::operations::{Drain, NewDrain};
use berth_types::scopes::ApiScope;

pub fn routes() -> ApiRouter<Drains> {
    ApiRouter::new()
        .api_route(
            "/operator/drains",
            get_with(list_drains, doc(ApiScope::FleetRead, "Lists the nodes that are being drained.")),
        )
        .api_route(
            "/operator/nodes/{node}/drain",
            put_with(drain, doc(ApiScope::FleetWrite, "Drains a node."))
                .delete_with(call_off, doc(ApiScope::FleetWrite, "Cancels the drain of a node.")),
        )
}

async fn list_drains(
    State(drains): State<Drains>,
    Signed(caller): Signed,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<Drain>>, Failed> {
    let options = query.by_name()?;
    let all = drains.list_drains(&caller).await?;
    Ok(Answer(page_in_memory(all, &options, |drain| name_and_id(&drain.node_name, drain.node))))
}

async fn drain(
    State(drains): State<Drains>,
    Signed(caller): Signed,
    Path(node): Path<NodeId>,
    body: Json<NewDrain>,
) -> Result<Answer<Drain>, Failed> {
    Ok(Answer(drains.drain_node(&caller, node, body.value).await?))
}

async fn call_off(
    State(drains): State<Drains>,
    Signed(caller): Signed,
    Path(node): Path<NodeId>,
) -> Result<NoContent, Failed> {
    drains.cancel_drain(&caller, node).await?;
    Ok(NoContent)
}
