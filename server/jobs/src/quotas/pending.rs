//! Pending requests of all organizations, for the overview of operators.

use berth_foundation::Caller;
use berth_store as store;
use berth_types::problems::Problem;
use berth_types::quotas::QuotaRequest;

use super::Quotas;

impl Quotas {
    /// The number of pending requests of all organizations, and at most `limit` of them, the oldest first, for
    /// an operator.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn list_pending_requests(
        &self,
        caller: &Caller,
        limit: usize,
    ) -> Result<(u64, Vec<QuotaRequest>), Problem> {
        self.context.authorise_operator(caller)?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let pending = store::quotas::count_pending(&mut tx).await?;
        let first = store::quotas::list_pending(&mut tx, i64::try_from(limit).unwrap_or(i64::MAX)).await?;
        Ok((u64::try_from(pending).unwrap_or(0), first))
    }
}
