//! Tickets to ports of running jobs. `berth_access` serves the ports under a host name of their own.

use super::Ports;
use aide::axum::ApiRouter;
use aide::axum::routing::post_with;
use axum::Extension;
use axum::extract::State;
use berth_rest::answers::{MayWait, NotKept};
use berth_rest::operations::answers_either;
use berth_rest::{Failed, Json, Path, Signed};
use berth_types::change_requests::ChangeRequest;
use berth_types::ids::{JobId, OrgId};
use berth_types::ports::{NewPortTicket, PortTicket};
use berth_types::scopes::ApiScope;

pub fn routes() -> ApiRouter<Ports> {
    ApiRouter::new().api_route(
        "/orgs/{org}/jobs/{job}/ports/{port}/tickets",
        post_with(
            ticket,
            answers_either::<201, PortTicket, 202, ChangeRequest>(
                ApiScope::JobsWrite,
                "Creates a ticket for a port of a running job.",
            ),
        ),
    )
}

async fn ticket(
    State(ports): State<Ports>,
    Signed(caller): Signed,
    Path((org, job, port)): Path<(OrgId, JobId, u16)>,
    body: Json<NewPortTicket>,
) -> Result<(Extension<NotKept>, MayWait<201, PortTicket>), Failed> {
    let ticket = ports.port_ticket(&caller, org, job, port, body.value).await?;
    // An answer that grants access is never stored.
    Ok((Extension(NotKept), MayWait(ticket)))
}
