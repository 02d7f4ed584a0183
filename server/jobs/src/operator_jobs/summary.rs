//! The summary of open jobs for the operators' overview.

use berth_core::work_summary::work_summary;
use berth_types::operators::OperatorRight;
use berth_types::overview::WorkSummary;
use berth_types::problems::Problem;

use super::OperatorJobs;
use berth_foundation::Caller;
use berth_store as store;

impl OperatorJobs {
    /// The numbers of the open jobs of all organizations and of the queue, for an operator.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn work_summary(&self, caller: &Caller) -> Result<WorkSummary, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let open = store::jobs::count_open(&mut tx).await?;
        Ok(work_summary(&open, store::jobs::count_queue(&mut tx).await?))
    }
}
