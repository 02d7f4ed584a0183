//! Tickets to ports of running jobs. `berth_access` serves the ports under a host name of their own.

use super::Ports;
use aide::axum::ApiRouter;
use aide::axum::routing::post_with;
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json as Answer};
use berth_rest::answers::NotKept;
use berth_rest::operations::answers;
use berth_rest::{Failed, Json, Path, Signed};
use berth_types::ids::{JobId, OrgId};
use berth_types::ports::{NewPortTicket, PortTicket};
use berth_types::scopes::ApiScope;

pub fn routes() -> ApiRouter<Ports> {
    ApiRouter::new().api_route(
        "/orgs/{org}/jobs/{job}/ports/{port}/tickets",
        post_with(
            ticket,
            answers::<201, PortTicket>(ApiScope::JobsWrite, "Creates a ticket for a port of a running job."),
        ),
    )
}

async fn ticket(
    State(ports): State<Ports>,
    Signed(caller): Signed,
    Path((org, job, port)): Path<(OrgId, JobId, u16)>,
    body: Json<NewPortTicket>,
) -> Result<(StatusCode, Extension<NotKept>, Answer<PortTicket>), Failed> {
    let ticket = ports.port_ticket(&caller, org, job, port, body.value).await?;
    // An answer that grants access is never stored.
    Ok((StatusCode::CREATED, Extension(NotKept), Answer(ticket)))
}
