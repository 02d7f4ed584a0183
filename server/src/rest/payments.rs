//! Paying by card, and what Stripe tells.

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use axum::{Extension, Json as Answer, Router};
use berth_types::Page;
use berth_types::ids::{InvoiceId, OrgId};
use berth_types::payments::{AutoRecharge, NewTopUp, PayHere, Payment, PaymentSettings};
use serde::{Deserialize, Serialize};

use super::extract::{Failed, Json, Path, Query, Signed, limit};
use super::once::NotKept;
use crate::portal::Portal;

pub fn routes() -> Router<Portal> {
    Router::new()
        .route("/orgs/{org}/payment-settings", get(settings))
        .route("/orgs/{org}/auto-recharge", axum::routing::put(set_recharge))
        .route("/orgs/{org}/top-ups", get(list).post(top_up))
        .route("/orgs/{org}/invoices/{id}/pay", post(pay_invoice))
        .route("/orgs/{org}/billing-portal", post(billing_portal))
        .route("/stripe/events", post(take_event))
}

async fn settings(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Answer<PaymentSettings>, Failed> {
    Ok(Answer(portal.payments.payment_settings(&caller, org).await?))
}

async fn set_recharge(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<AutoRecharge>,
) -> Result<Answer<PaymentSettings>, Failed> {
    Ok(Answer(portal.payments.set_auto_recharge(&caller, org, body.value).await?))
}

async fn top_up(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<NewTopUp>,
) -> Result<(StatusCode, Answer<PayHere>), Failed> {
    Ok((StatusCode::CREATED, Answer(portal.payments.top_up(&caller, org, body.value).await?)))
}

async fn pay_invoice(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path((org, id)): Path<(OrgId, InvoiceId)>,
) -> Result<(StatusCode, Answer<PayHere>), Failed> {
    Ok((StatusCode::CREATED, Answer(portal.payments.pay_invoice_by_card(&caller, org, id).await?)))
}

#[derive(Serialize)]
struct There {
    url: String,
}

async fn billing_portal(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<(StatusCode, Extension<NotKept>, Answer<There>), Failed> {
    let url = portal.payments.billing_portal(&caller, org).await?;
    Ok((StatusCode::CREATED, Extension(NotKept), Answer(There { url })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    limit: Option<u32>,
}

async fn list(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<List>,
) -> Result<Answer<Page<Payment>>, Failed> {
    Ok(Answer(portal.payments.list_payments(&caller, org, limit(query.limit)?).await?))
}

/// Stripe's webhook: its signature is its only credential.
async fn take_event(
    State(portal): State<Portal>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<StatusCode, Failed> {
    let signature = headers.get("stripe-signature").and_then(|v| v.to_str().ok()).unwrap_or_default();
    portal.payments.take_stripe_event(signature, &body).await?;
    Ok(StatusCode::OK)
}
