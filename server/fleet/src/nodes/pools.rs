//! The pool of a node, the work that an operator means it for, and the settings of the pool for inference.

use berth_foundation::{Caller, Change};
use berth_store::{self as store, StoreError, Tx};
use berth_types::ids::NodeId;
use berth_types::node_pools::{InferencePool, NodePool};
use berth_types::nodes::PatchNode;
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use berth_types::quotas::AuditEvent;
use futures::FutureExt;

use super::Nodes;

/// The largest reserve for bursts in boards.
const MAX_RESERVE: i64 = 10_000;

/// The settings of the pool for inference for the audit log.
fn inference_pool_state(pool: InferencePool) -> Option<String> {
    serde_json::to_string(&pool).ok()
}

impl Nodes {
    /// The settings of the pool for inference, for an operator.
    ///
    /// # Errors
    /// 404 for callers who are no operators.
    pub async fn inference_pool(&self, caller: &Caller) -> Result<InferencePool, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        let mut conn = self.context.db.read().await?;
        Ok(InferencePool { reserve_boards: store::node_pools::burst_reserve(&mut conn.tx()).await? })
    }

    /// Replaces the settings of the pool for inference. Waiting jobs follow at once, and borrowing runs stop for a larger
    /// reserve.
    ///
    /// # Errors
    /// 404 for callers who are no operators. 422 for an invalid reserve.
    pub async fn set_inference_pool(
        &self,
        caller: &Caller,
        input: InferencePool,
    ) -> Result<InferencePool, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageFleet).await?;
        if !(0..=MAX_RESERVE).contains(&input.reserve_boards) {
            let detail = "Enter a number of boards from 0 to 10000.";
            return Err(Problem::invalid_field("/reserve_boards", detail));
        }
        let event = self.context.audit_event(caller, "inference_pool.set", String::new(), String::new());
        let done = self.context.db.write(move |tx| {
            let event = event.clone();
            async move {
                let before = store::node_pools::burst_reserve(tx).await?;
                if before == input.reserve_boards {
                    return Ok(());
                }
                store::node_pools::put_burst_reserve(tx, input.reserve_boards).await?;
                let old = InferencePool { reserve_boards: before };
                let mut event = event.with_change(inference_pool_state(old), inference_pool_state(input));
                event.detail = format!("reserve in boards: {} instead of {before}", input.reserve_boards);
                store::quotas::insert_audit(tx, None, &event).await
            }
            .boxed()
        });
        done.await?;
        self.context.publish(Change::Boards);
        Ok(input)
    }
}

/// The state of a pool for the audit log.
fn pool_state(pool: NodePool) -> Option<String> {
    serde_json::to_string(&PatchNode { pool: Some(pool), ..PatchNode::default() }).ok()
}

/// Sets the pool of a node, with `event` if it changes. Runs that do not suit go on; waiting jobs follow at once.
pub(super) async fn set_pool(
    tx: &mut Tx<'_>,
    node: NodeId,
    pool: NodePool,
    event: &AuditEvent,
) -> Result<(), StoreError> {
    let Some((name, before)) = store::node_pools::find(tx, node).await? else { return Ok(()) };
    if before == pool {
        return Ok(());
    }
    store::node_pools::set(tx, node, pool).await?;
    let mut event = event.clone().with_change(pool_state(before), pool_state(pool));
    event.detail = format!("{name}: {} instead of {}", pool.name(), before.name());
    store::quotas::insert_audit(tx, None, &event).await
}
