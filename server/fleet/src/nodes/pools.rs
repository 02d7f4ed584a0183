//! The pool of a node: the work that an operator means it for.

use berth_store::{self as store, StoreError, Tx};
use berth_types::ids::NodeId;
use berth_types::node_pools::NodePool;
use berth_types::nodes::PatchNode;
use berth_types::quotas::AuditEvent;

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
