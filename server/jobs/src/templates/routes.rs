//! The route of the templates.

use super::Templates;
use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use berth_rest::answers::if_changed;
use berth_rest::{Failed, Signed, operations};
use berth_types::scopes::ApiScope;
use berth_types::templates::JobTemplates;

pub fn routes() -> ApiRouter<Templates> {
    ApiRouter::new().api_route(
        "/templates",
        get_with(
            list,
            operations::if_changed::<JobTemplates>(ApiScope::JobsRead, "Gives the templates of jobs."),
        ),
    )
}

async fn list(
    State(templates): State<Templates>,
    Signed(_): Signed,
    headers: HeaderMap,
) -> Result<Response, Failed> {
    let all = templates.list();
    if_changed(&headers, &*all)
}
