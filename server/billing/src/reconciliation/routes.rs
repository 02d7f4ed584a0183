//! The routes of the reconciliation.

use super::Reconciliations;
use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::Json as Answer;
use axum::extract::State;
use berth_rest::operations::doc;
use berth_rest::{Failed, Signed};
use berth_types::ledger::Reconciliation;
use berth_types::scopes::ApiScope;

pub fn routes() -> ApiRouter<Reconciliations> {
    ApiRouter::new().api_route(
        "/operator/reconciliation",
        get_with(reconciliation, doc(ApiScope::BillingRead, "Gives the last reconciliation of the ledger."))
            .post_with(reconcile, doc(ApiScope::BillingWrite, "Reconciles the ledger now.")),
    )
}

async fn reconciliation(
    State(reconciliations): State<Reconciliations>,
    Signed(caller): Signed,
) -> Result<Answer<Reconciliation>, Failed> {
    Ok(Answer(reconciliations.reconciliation(&caller, false).await?))
}

async fn reconcile(
    State(reconciliations): State<Reconciliations>,
    Signed(caller): Signed,
) -> Result<Answer<Reconciliation>, Failed> {
    Ok(Answer(reconciliations.reconciliation(&caller, true).await?))
}
