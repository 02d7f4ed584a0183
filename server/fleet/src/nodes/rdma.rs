//! The grants of RDMA to organizations. Jobs read the grant at their submission and at each start.

use berth_foundation::{Caller, Right};
use berth_store::{self as store, Tx};
use berth_types::ids::OrgId;
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use berth_types::rdma::RdmaGrant;
use futures::FutureExt;

use super::Nodes;

/// The state of a grant for the audit log.
fn grant_state(granted: bool) -> Option<String> {
    serde_json::to_string(&RdmaGrant { granted }).ok()
}

async fn read_grant(tx: &mut Tx<'_>, org: OrgId) -> Result<RdmaGrant, Problem> {
    let granted = store::rdma::find_grant(tx, org).await?.ok_or_else(Problem::not_found)?;
    Ok(RdmaGrant { granted })
}

impl Nodes {
    /// The grant of an organization, for a member.
    ///
    /// # Errors
    /// The caller may not view the organization.
    pub async fn own_rdma_grant(&self, caller: &Caller, org: OrgId) -> Result<RdmaGrant, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        let mut conn = self.context.db.read().await?;
        read_grant(&mut conn.tx(), org).await
    }

    /// The grant of an organization, for an operator.
    ///
    /// # Errors
    /// The organization does not exist.
    pub async fn rdma_grant(&self, caller: &Caller, org: OrgId) -> Result<RdmaGrant, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        let mut conn = self.context.db.read().await?;
        read_grant(&mut conn.tx(), org).await
    }

    /// Grants RDMA to an organization, or revokes it. Running jobs continue; an attempt that starts later without the
    /// grant fails.
    ///
    /// # Errors
    /// The proof of identity is not fresh, or the organization does not exist.
    pub async fn set_rdma_grant(
        &self,
        caller: &Caller,
        org: OrgId,
        input: RdmaGrant,
    ) -> Result<RdmaGrant, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageFleet).await?;
        self.context.check_proof(caller)?;
        let granted = input.granted;
        let detail = if granted { "granted" } else { "revoked" };
        let event = self.context.audit_event(caller, "org.rdma_set", org.to_string(), detail.to_owned());
        let done = self.context.db.try_write(move |tx| {
            let event = event.clone();
            async move {
                let before = store::rdma::find_grant(tx, org).await?.ok_or_else(Problem::not_found)?;
                if before == granted {
                    return Ok(());
                }
                store::rdma::set_grant(tx, org, granted).await?;
                let event = event.with_change(grant_state(before), grant_state(granted));
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok(())
            }
            .boxed()
        });
        done.await?;
        Ok(RdmaGrant { granted })
    }
}
