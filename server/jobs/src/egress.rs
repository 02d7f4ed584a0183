//! The network of a rank at its start, under the present egress policy of its organization.

use berth_core::egress::{JobEgress, check_gang_rdma, job_egress};
use berth_store::{self as store, StoreError, Tx};
use berth_types::ids::{NodeId, OrgId};
use berth_types::jobs::{Failure, NewJob};

fn refusal(detail: String) -> Failure {
    Failure { code: "network.not_allowed".to_owned(), detail }
}

/// The addresses that a rank on a node may reach. The inner error ends the attempt without a start: the policy has
/// changed since the submission, or since the choice of the node.
///
/// # Errors
/// The database cannot be read.
pub(crate) async fn find_egress(
    tx: &mut Tx<'_>,
    org: OrgId,
    node: NodeId,
    submission: &NewJob,
) -> Result<Result<JobEgress, Failure>, StoreError> {
    let Some(policy) = store::egress::find_policy(tx, org).await? else {
        return Ok(Err(refusal("The organization does not exist any more.".to_owned())));
    };
    let allowed = job_egress(submission.network, &policy)
        .and_then(|egress| check_gang_rdma(submission, &egress).map(|()| egress));
    let egress = match allowed {
        Ok(egress) => egress,
        Err(why) => return Ok(Err(refusal(format!("{why} The program was not started.")))),
    };
    if egress.is_default() {
        return Ok(Ok(egress));
    }
    let (keeps_policies, gives_host) =
        store::egress::find_node_networks(tx, node).await?.unwrap_or((false, false));
    let suits = if egress.host_network { gives_host } else { keeps_policies };
    let detail = "The network of the job is not possible on its node since a change of the policy. The program was not started. Submit the job again.";
    Ok(if suits { Ok(egress) } else { Err(refusal(detail.to_owned())) })
}
