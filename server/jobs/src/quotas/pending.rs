//! Pending requests of all organizations, for the overview of operators, the rights to decide them, and repeated
//! decisions.

use berth_foundation::{Caller, Gate};
use berth_store as store;
use berth_types::change_requests::Outcome;
use berth_types::ids::QuotaRequestId;
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use berth_types::quotas::{DecideQuotaRequest, Limits, QuotaRequest};

use super::Quotas;

/// The rights for the decision of a request: credit is money, and limits are not.
fn needed_rights(request: &QuotaRequest, input: &DecideQuotaRequest) -> Vec<OperatorRight> {
    let money = request.credit_micros.is_some() || input.credit_micros.is_some();
    let limits = input.limits.as_ref().unwrap_or(&request.limits);
    let has_limits = *limits != Limits::default() || request.limits != Limits::default();
    let mut rights = Vec::new();
    if money {
        rights.push(OperatorRight::ManageMoney);
    }
    if has_limits || !money {
        rights.push(OperatorRight::ManageOrgs);
    }
    rights
}

impl Quotas {
    /// Checks the rights of an operator to decide a request. An unknown request needs none.
    ///
    /// # Errors
    /// 403 for a role without a right that the request needs.
    pub(super) async fn authorise_decision(
        &self,
        caller: &Caller,
        id: QuotaRequestId,
        input: &DecideQuotaRequest,
    ) -> Result<(), Problem> {
        let mut conn = self.context.db.read().await?;
        let request = store::quotas::find_request(&mut conn.tx(), id).await?;
        drop(conn);
        for right in request.iter().flat_map(|request| needed_rights(request, input)) {
            self.context.authorise_operator(caller, right).await?;
        }
        Ok(())
    }

    /// The answer to a repeated decision whose first answer was lost.
    pub(super) async fn repeated_decision(
        &self,
        caller: &Caller,
        id: QuotaRequestId,
    ) -> Result<Outcome<QuotaRequest>, Problem> {
        if let Some(request) = Gate::find_requested(&self.context, caller).await? {
            return Ok(Outcome::Requested(request));
        }
        let mut conn = self.context.db.read().await?;
        let found = store::quotas::find_request(&mut conn.tx(), id).await?;
        found.map(Outcome::Done).ok_or_else(Problem::not_found)
    }

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
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let pending = store::quotas::count_pending(&mut tx).await?;
        let first = store::quotas::list_pending(&mut tx, i64::try_from(limit).unwrap_or(i64::MAX)).await?;
        Ok((u64::try_from(pending).unwrap_or(0), first))
    }
}
