//! The routes of gateways. They are no part of the API of tenants and operators, so its description omits them.

use std::convert::Infallible;
use std::time::Duration;

use aide::axum::ApiRouter;
use axum::Json as Answer;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use berth_autoscaling::credit::{ToGateway, ToPortal};
use berth_rest::authentication::bearer_token;
use berth_rest::extract::RawBody;
use berth_rest::{Disconnect, Failed, Query, Sender};
use berth_serving::reports::{GatewayReport, ReportAnswer};
use berth_types::problems::Problem;
use futures::stream;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{CallingGateway, GatewaySync};

pub fn routes() -> ApiRouter<GatewaySync> {
    ApiRouter::new()
        .route("/gateway/snapshot", get(snapshot))
        .route("/gateway/reports", post(report))
        .route("/gateway/credit", post(credit))
}

impl FromRequestParts<GatewaySync> for CallingGateway {
    type Rejection = Failed;
    async fn from_request_parts(parts: &mut Parts, sync: &GatewaySync) -> Result<Self, Failed> {
        let Sender(sender) = parts.extensions.get::<Sender>().copied().unwrap_or_default();
        Ok(sync.admit(bearer_token(&parts.headers).flatten(), sender).await?)
    }
}

/// The query of a poll.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Poll {
    /// The number of the last received snapshot; 0 without one.
    #[serde(default)]
    after: u64,
    /// Seconds, at most 20; 20 when absent.
    wait_s: Option<u64>,
}

async fn snapshot(
    State(sync): State<GatewaySync>,
    gateway: CallingGateway,
    Query(query): Query<Poll>,
    disconnect: Disconnect,
) -> Result<Response, Failed> {
    let wait = query.wait_s.map_or(super::snapshots::MAX_WAIT, Duration::from_secs);
    let Some(found) = sync.poll(&gateway, (query.after, wait), &disconnect).await? else {
        return Ok(StatusCode::NO_CONTENT.into_response());
    };
    let number = gateway.number();
    let begin = Bytes::from(format!("{{\"gateway_number\":{number},"));
    let parts = stream::iter([Ok::<_, Infallible>(begin), Ok(found.rest)]);
    let fields =
        [("content-type", "application/json".to_owned()), ("berth-gateway-number", number.to_string())];
    Ok((fields, Body::from_stream(parts)).into_response())
}

/// Reads the body of a gateway.
fn read<T: DeserializeOwned>(body: &Bytes) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| {
        // The text of the error may quote the body.
        let (kind, line, column) = (error.classify(), error.line(), error.column());
        Problem::malformed(format!("The body is not readable at line {line}, column {column}: {kind:?}."))
    })
}

async fn report(
    State(sync): State<GatewaySync>,
    gateway: CallingGateway,
    RawBody(body): RawBody,
) -> Result<Answer<ReportAnswer>, Failed> {
    let report: GatewayReport = read(&body)?;
    Ok(Answer(sync.count_report(&gateway, report).await?))
}

async fn credit(
    State(sync): State<GatewaySync>,
    gateway: CallingGateway,
    RawBody(body): RawBody,
) -> Result<Answer<Vec<ToGateway>>, Failed> {
    let messages: Vec<ToPortal> = read(&body)?;
    Ok(Answer(sync.exchange_credit(&gateway, messages).await?))
}
