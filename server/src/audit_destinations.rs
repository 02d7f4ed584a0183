//! The list of the destinations of the audit log.

use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::Json as Answer;
use axum::extract::State;
use berth_foundation::AuditPush;
use berth_rest::lists::{ListQuery, page_in_memory};
use berth_rest::operations::doc;
use berth_rest::{Failed, Query, Signed};
use berth_types::Page;
use berth_types::operations::AuditDestination;
use berth_types::scopes::ApiScope;

pub fn routes() -> ApiRouter<AuditPush> {
    let summary = "Lists the destinations of the audit log with their delivered parts.";
    ApiRouter::new().api_route(
        "/operator/audit-destinations",
        get_with(list_destinations, doc(ApiScope::FleetRead, summary)),
    )
}

async fn list_destinations(
    State(audit_push): State<AuditPush>,
    Signed(caller): Signed,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<AuditDestination>>, Failed> {
    let options = query.by_name()?;
    let destinations = audit_push.list(&caller).await?;
    Ok(Answer(page_in_memory(destinations, &options, |one| one.name.name().to_owned())))
}
