//! Limits, requests for more, and the record of what was done.

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json as Answer, Router};
use berth_types::Page;
use berth_types::ids::{OrgId, QuotaRequestId};
use berth_types::quotas::{AuditEvent, DecideQuotaRequest, Limits, NewQuotaRequest, Quota, QuotaRequest};
use serde::Deserialize;

use super::extract::{Failed, Json, Path, Query, Signed, cursor, limit};
use crate::portal::Portal;

pub fn routes() -> Router<Portal> {
    Router::new()
        .route("/orgs/{org}/quota", get(show))
        .route("/orgs/{org}/quota-requests", get(list_requests).post(request))
        .route("/orgs/{org}/audit-events", get(list_audit))
        .route("/operator/quota", get(show_default).put(set_default))
        .route("/operator/orgs/{org}/quota", get(show_any).put(set).delete(clear))
        .route("/operator/quota-requests", get(list_all_requests))
        .route("/operator/quota-requests/{id}", post(decide))
        .route("/operator/audit-events", get(list_all_audit))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    limit: Option<u32>,
    cursor: Option<String>,
}

async fn show(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Answer<Quota>, Failed> {
    Ok(Answer(portal.quotas.quota(&caller, org).await?))
}

async fn show_any(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Answer<Quota>, Failed> {
    Ok(Answer(portal.quotas.any_quota(&caller, org).await?))
}

async fn set(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<Limits>,
) -> Result<Answer<Quota>, Failed> {
    portal.quotas.set_limits(&caller, Some(org), body.value).await?;
    Ok(Answer(portal.quotas.any_quota(&caller, org).await?))
}

async fn clear(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Answer<Quota>, Failed> {
    portal.quotas.clear_limits(&caller, org).await?;
    Ok(Answer(portal.quotas.any_quota(&caller, org).await?))
}

async fn show_default(
    State(portal): State<Portal>,
    Signed(caller): Signed,
) -> Result<Answer<Limits>, Failed> {
    Ok(Answer(portal.quotas.default_limits(&caller).await?))
}

async fn set_default(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    body: Json<Limits>,
) -> Result<Answer<Limits>, Failed> {
    portal.quotas.set_limits(&caller, None, body.value).await?;
    Ok(Answer(portal.quotas.default_limits(&caller).await?))
}

async fn request(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<NewQuotaRequest>,
) -> Result<(StatusCode, Answer<QuotaRequest>), Failed> {
    Ok((StatusCode::CREATED, Answer(portal.quotas.request_quota(&caller, org, body.value).await?)))
}

async fn list_requests(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<List>,
) -> Result<Answer<Page<QuotaRequest>>, Failed> {
    Ok(Answer(portal.quotas.list_quota_requests(&caller, Some(org), limit(query.limit)?).await?))
}

async fn list_all_requests(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Query(query): Query<List>,
) -> Result<Answer<Page<QuotaRequest>>, Failed> {
    Ok(Answer(portal.quotas.list_quota_requests(&caller, None, limit(query.limit)?).await?))
}

async fn decide(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(id): Path<QuotaRequestId>,
    body: Json<DecideQuotaRequest>,
) -> Result<Answer<QuotaRequest>, Failed> {
    Ok(Answer(portal.quotas.decide_quota_request(&caller, id, body.value).await?))
}

async fn list_audit(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<List>,
) -> Result<Answer<Page<AuditEvent>>, Failed> {
    let page =
        portal.quotas.list_audit_events(&caller, Some(org), cursor(query.cursor)?, limit(query.limit)?);
    Ok(Answer(page.await?))
}

async fn list_all_audit(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Query(query): Query<List>,
) -> Result<Answer<Page<AuditEvent>>, Failed> {
    let page = portal.quotas.list_audit_events(&caller, None, cursor(query.cursor)?, limit(query.limit)?);
    Ok(Answer(page.await?))
}
