//! The list of the portal's loops.

use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::Json as Answer;
use axum::extract::State;
use berth_foundation::loops::Loops;
use berth_rest::lists::{ListQuery, page_in_memory};
use berth_rest::operations::doc;
use berth_rest::{Failed, Query, Signed};
use berth_types::Page;
use berth_types::operations::PortalLoop;
use berth_types::scopes::ApiScope;

pub fn routes() -> ApiRouter<Loops> {
    ApiRouter::new().api_route(
        "/operator/loops",
        get_with(list_loops, doc(ApiScope::FleetRead, "Lists the loops of the portal.")),
    )
}

async fn list_loops(
    State(loops): State<Loops>,
    Signed(caller): Signed,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<PortalLoop>>, Failed> {
    let options = query.by_name()?;
    Ok(Answer(page_in_memory(loops.list(&caller).await?, &options, |one| one.name.clone())))
}
