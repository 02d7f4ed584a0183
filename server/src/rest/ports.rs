//! Tickets to ports of running jobs. The ports themselves are seen under a host name of their own.

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Extension, Json as Answer, Router};
use berth_types::ids::{JobId, OrgId};
use berth_types::ports::{NewPortTicket, PortTicket};

use super::extract::{Failed, Json, Path, Signed};
use super::once::NotKept;
use crate::portal::Portal;

pub fn routes() -> Router<Portal> {
    Router::new().route("/orgs/{org}/jobs/{job}/ports/{port}/tickets", post(ticket))
}

async fn ticket(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path((org, job, port)): Path<(OrgId, JobId, u16)>,
    body: Json<NewPortTicket>,
) -> Result<(StatusCode, Extension<NotKept>, Answer<PortTicket>), Failed> {
    let ticket = portal.ports.port_ticket(&caller, org, job, port, body.value).await?;
    // An answer that opens a door is never kept.
    Ok((StatusCode::CREATED, Extension(NotKept), Answer(ticket)))
}
