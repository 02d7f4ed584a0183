//! Whether the books are right: looked at every hour, shown to the operator, and as a metric. What is
//! of no use any more is forgotten in the same hour.

use std::time::Duration;

use berth_types::ledger::Reconciliation;
use berth_types::problems::Problem;
use futures::FutureExt;

use super::Caller;
use crate::portal::Portal;
use crate::store::{self, StoreError};

/// Where the last result is kept.
const RESULT: &str = "reconciliation";
const EVERY: Duration = Duration::from_secs(3_600);
/// Jobs that ended longer ago were looked at before.
const DAYS: i64 = 8;

/// Runs for as long as the portal does.
pub async fn run(portal: Portal) {
    loop {
        match portal.reconcile().await {
            Ok(result) if result.mismatches.is_empty() => {}
            Ok(result) => tracing::error!(mismatches = ?result.mismatches, "the books do not add up"),
            Err(error) => tracing::error!(%error, "the books could not be looked at"),
        }
        if let Err(error) = portal.forget_old().await {
            tracing::error!(%error, "what is of no use any more could not be forgotten");
        }
        tokio::time::sleep(EVERY).await;
    }
}

impl Portal {
    /// Looks whether everything adds up, and keeps the result.
    pub async fn reconcile(&self) -> Result<Reconciliation, StoreError> {
        let at = self.now();
        let began = std::time::Instant::now();
        let (mismatches, transfers) = {
            let mut conn = self.db.read().await?;
            let mut tx = conn.tx();
            let mut found = store::ledger::mismatches(&mut tx).await?;
            found.extend(store::ledger::cross_mismatches(&mut tx, at.plus_seconds(-DAYS * 86_400)).await?);
            (found, store::ledger::count(&mut tx).await?)
        };
        let took_ms = i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX);
        let result = Reconciliation { at, mismatches, transfers, took_ms };
        let text = serde_json::to_string(&result).map_err(|e| StoreError::Corrupt(e.to_string()))?;
        self.db
            .write(move |tx| {
                let text = text.clone();
                async move { store::accounts::put_setting(tx, RESULT, &text).await }.boxed()
            })
            .await?;
        Ok(result)
    }

    /// The last result, for the operator; `now`: looked at anew.
    pub async fn reconciliation(&self, caller: &Caller, now: bool) -> Result<Reconciliation, Problem> {
        self.authorise_operator(caller)?;
        if !now && let Some(last) = self.last_reconciliation().await? {
            return Ok(last);
        }
        Ok(self.reconcile().await?)
    }

    pub(crate) async fn last_reconciliation(&self) -> Result<Option<Reconciliation>, StoreError> {
        let mut conn = self.db.read().await?;
        let text = store::accounts::find_setting(&mut conn.tx(), RESULT).await?;
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
    }
}
