//! Reconciliation: an hourly check of the ledger against its sums. Operators and a metric show the result.

pub mod routes;

use berth_types::ledger::Reconciliation;
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use futures::FutureExt;

use berth_foundation::Caller;
use berth_foundation::Context;
use berth_store::{self as store, StoreError};

/// The name of the setting with the last result.
const RESULT: &str = "reconciliation";
/// Days since the end of a checked job. Earlier checks covered older jobs.
const MAX_AGE_DAYS: i64 = 8;

/// Checks of the ledger against its sums.
#[derive(Clone)]
pub struct Reconciliations {
    context: Context,
}

impl Reconciliations {
    pub const fn new(context: Context) -> Self {
        Self { context }
    }

    /// Checks the ledger and stores the result.
    pub async fn reconcile(&self) -> Result<Reconciliation, StoreError> {
        let at = self.context.now();
        let began = std::time::Instant::now();
        let (mismatches, transfers) = {
            let mut conn = self.context.db.read().await?;
            let mut tx = conn.tx();
            let mut mismatches = store::ledger::mismatches(&mut tx).await?;
            mismatches.extend(
                store::ledger::cross_mismatches(&mut tx, at.plus_seconds(-MAX_AGE_DAYS * 86_400)).await?,
            );
            (mismatches, store::ledger::count(&mut tx).await?)
        };
        let took_ms = i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX);
        let result = Reconciliation { at, mismatches, transfers, took_ms };
        let text = serde_json::to_string(&result).map_err(|e| StoreError::Corrupt(e.to_string()))?;
        self.context
            .db
            .write(move |tx| {
                let text = text.clone();
                async move { store::accounts::put_setting(tx, RESULT, &text).await }.boxed()
            })
            .await?;
        Ok(result)
    }

    /// The last result, for an operator. With `now` the ledger is checked again.
    pub async fn reconciliation(&self, caller: &Caller, now: bool) -> Result<Reconciliation, Problem> {
        let right = if now { OperatorRight::ManageMoney } else { OperatorRight::View };
        self.context.authorise_operator(caller, right).await?;
        if !now && let Some(last) = self.last_reconciliation().await? {
            return Ok(last);
        }
        Ok(self.reconcile().await?)
    }

    pub async fn last_reconciliation(&self) -> Result<Option<Reconciliation>, StoreError> {
        let mut conn = self.context.db.read().await?;
        let text = store::accounts::find_setting(&mut conn.tx(), RESULT).await?;
        let parse = |text: String| serde_json::from_str(&text);
        text.map(parse).transpose().map_err(|e| StoreError::corrupt("settings", RESULT, "value", e))
    }
}
