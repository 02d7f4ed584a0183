//! Payments by card, and events of Stripe.

use super::Payments;
use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, post_with, put_with};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::{Extension, Json as Answer};
use berth_rest::answers::{Created, NotKept};
use berth_rest::extract::RawBody;
use berth_rest::lists::ListQuery;
use berth_rest::operations::{answers, doc, empty};
use berth_rest::scopes::ANY;
use berth_rest::{Failed, Json, Path, Query, Signed};
use berth_types::Page;
use berth_types::ids::{InvoiceId, OrgId};
use berth_types::payments::{AutoRecharge, NewTopUp, PayHere, Payment, PaymentSettings};
use berth_types::scopes::ApiScope;
use serde::Serialize;

pub fn routes() -> ApiRouter<Payments> {
    ApiRouter::new()
        .api_route(
            "/orgs/{org}/payment-settings",
            get_with(settings, doc(ApiScope::BillingRead, "Gives the means of payment of an organization.")),
        )
        .api_route(
            "/orgs/{org}/auto-recharge",
            put_with(set_recharge, doc(ApiScope::BillingWrite, "Sets the automatic recharge.")),
        )
        .api_route(
            "/orgs/{org}/top-ups",
            get_with(list, doc(ApiScope::BillingRead, "Lists the payments of an organization."))
                .post_with(top_up, doc(ApiScope::BillingWrite, "Begins a payment by card.")),
        )
        .api_route(
            "/orgs/{org}/invoices/{id}/pay",
            post_with(pay_invoice, doc(ApiScope::BillingWrite, "Begins the payment of an invoice by card.")),
        )
        .api_route(
            "/orgs/{org}/billing-portal",
            post_with(
                billing_portal,
                answers::<201, BillingPortal>(
                    ApiScope::BillingWrite,
                    "Opens Stripe's page for cards and receipts.",
                ),
            ),
        )
        .api_route(
            "/stripe/events",
            post_with(
                receive_event,
                empty::<200>(ANY, "Receives an event of Stripe, authenticated by its signature."),
            ),
        )
}

async fn settings(
    State(payments): State<Payments>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Answer<PaymentSettings>, Failed> {
    Ok(Answer(payments.payment_settings(&caller, org).await?))
}

async fn set_recharge(
    State(payments): State<Payments>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<AutoRecharge>,
) -> Result<Answer<PaymentSettings>, Failed> {
    Ok(Answer(payments.set_auto_recharge(&caller, org, body.value).await?))
}

async fn top_up(
    State(payments): State<Payments>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<NewTopUp>,
) -> Result<Created<PayHere>, Failed> {
    Ok(Created(payments.top_up(&caller, org, body.value).await?))
}

async fn pay_invoice(
    State(payments): State<Payments>,
    Signed(caller): Signed,
    Path((org, id)): Path<(OrgId, InvoiceId)>,
) -> Result<Created<PayHere>, Failed> {
    Ok(Created(payments.pay_invoice_by_card(&caller, org, id).await?))
}

/// The address of Stripe's page for one customer.
#[derive(Serialize, schemars::JsonSchema)]
struct BillingPortal {
    /// The address of Stripe's page.
    url: String,
}

async fn billing_portal(
    State(payments): State<Payments>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<(StatusCode, Extension<NotKept>, Answer<BillingPortal>), Failed> {
    let url = payments.billing_portal(&caller, org).await?;
    Ok((StatusCode::CREATED, Extension(NotKept), Answer(BillingPortal { url })))
}

async fn list(
    State(payments): State<Payments>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<Payment>>, Failed> {
    Ok(Answer(payments.list_payments(&caller, org, &query.by_creation()?).await?))
}

/// The webhook of Stripe. The signature is its only credential.
async fn receive_event(
    State(payments): State<Payments>,
    headers: HeaderMap,
    RawBody(body): RawBody,
) -> Result<StatusCode, Failed> {
    let signature = headers.get("stripe-signature").and_then(|v| v.to_str().ok()).unwrap_or_default();
    payments.receive_stripe_event(signature, &body).await?;
    Ok(StatusCode::OK)
}
