//! Reports of hosts and cordons of nodes.

pub mod routes;

use berth_mig::board_by_name;
use berth_types::ids::NodeId;
use berth_types::nodes::{Node, PatchNode};
use berth_types::problems::Problem;
use futures::FutureExt;

use crate::cluster::Cluster;
use crate::leases::{Leases, node_audit};
use crate::offerings::Offerings;
use berth_foundation::Caller;
use berth_foundation::{Change, Context};
use berth_store::nodes::{BoardOwner, NodeReport};
use berth_store::{self as store, StoreError, Tx};
use std::sync::Arc;

/// The reason why a reported board stays with its present node. `None` if it moves to the reporting node.
fn stay_reason(gpu_uuid: &str, other: &BoardOwner, has_session: bool) -> Option<String> {
    let why = match (other.held, other.present && has_session) {
        (true, _) => "still has work on it",
        (false, true) => "is connected and has reported it",
        (false, false) => return None,
    };
    Some(format!("Board {gpu_uuid} remains with node {}, which {why}.", other.node_name))
}

/// Records reports of hosts and cordons nodes.
#[derive(Clone)]
pub struct Nodes {
    context: Context,
    offerings: Offerings,
    cluster: Cluster,
    leases: Arc<Leases>,
}

impl Nodes {
    pub const fn new(context: Context, offerings: Offerings, cluster: Cluster, leases: Arc<Leases>) -> Self {
        Self { context, offerings, cluster, leases }
    }

    /// Records the report of a host and adds offerings for its boards.
    ///
    /// The UUID of a board is a claim without proof. It takes no board from a connected node and no board
    /// with work on it.
    pub async fn report_node(&self, node: NodeId, report: NodeReport) -> Result<(), StoreError> {
        let mut models: Vec<&str> = report.boards.iter().map(|b| b.model.as_str()).collect();
        models.sort_unstable();
        models.dedup();
        for board in models.into_iter().filter_map(board_by_name) {
            self.offerings.offer_board(board, report.simulated).await?;
        }
        let (nodes, now) = (self.clone(), self.context.now());
        let left_out = self
            .context
            .db
            .write(move |tx| {
                let (nodes, mut report) = (nodes.clone(), report.clone());
                async move {
                    let mut left_out = Vec::new();
                    for board in std::mem::take(&mut report.boards) {
                        let reason = nodes.left_out_reason(tx, node, &board.uuid).await?;
                        match reason {
                            Some(reason) => left_out.push(reason),
                            None => report.boards.push(board),
                        }
                    }
                    let reasons = left_out.join(" ");
                    store::nodes::record_report(tx, node, &report, now).await?;
                    if store::nodes::set_gpus_left_out(tx, node, &reasons).await? && !reasons.is_empty() {
                        let event = node_audit(&nodes.context, node, "node.boards_left_out", &reasons);
                        store::quotas::insert_audit(tx, None, &event).await?;
                    }
                    Ok(reasons)
                }
                .boxed()
            })
            .await?;
        if !left_out.is_empty() {
            tracing::warn!(%node, left_out, "a worker reports boards of another node");
        }
        Ok(())
    }

    /// The reason why a board of a report is left out. `None` if it is recorded.
    async fn left_out_reason(
        &self,
        tx: &mut Tx<'_>,
        node: NodeId,
        gpu_uuid: &str,
    ) -> Result<Option<String>, StoreError> {
        let Some(other) = store::nodes::find_other_owner(tx, gpu_uuid, node).await? else { return Ok(None) };
        Ok(stay_reason(gpu_uuid, &other, self.leases.has_session(other.node_id)))
    }

    /// Records the time of a node's last message.
    pub async fn mark_seen(&self, node: NodeId) -> Result<(), StoreError> {
        let now = self.context.now();
        self.context.db.write(move |tx| async move { store::nodes::touch(tx, node, now).await }.boxed()).await
    }

    /// A node with its boards, for an operator.
    ///
    /// # Errors
    /// The node does not exist.
    pub async fn get_node(&self, caller: &Caller, node: NodeId) -> Result<Node, Problem> {
        self.cluster.get_node(caller, node).await
    }

    /// Sets or removes the cordon of a node. A cordoned node continues its jobs and gets no new ones. Removal
    /// of the cordon also ends a drain.
    pub async fn patch_node(&self, caller: &Caller, node: NodeId, patch: PatchNode) -> Result<Node, Problem> {
        self.context.authorise_operator(caller)?;
        let cordoned = patch.cordoned;
        let action = if cordoned { "node.cordoned" } else { "node.uncordoned" };
        let event = self.context.audit_event(caller, action, node.to_string(), String::new());
        let found = self
            .context
            .db
            .write(move |tx| {
                let event = event.clone();
                async move {
                    if !cordoned {
                        store::operations::delete_drain(tx, node).await?;
                    }
                    let found = store::nodes::set_cordoned(tx, node, cordoned).await?;
                    if found {
                        store::quotas::insert_audit(tx, None, &event).await?;
                    }
                    Ok(found)
                }
                .boxed()
            })
            .await?;
        self.context.publish(Change::Boards);
        let known =
            if found { self.cluster.nodes(None).await?.into_iter().find(|n| n.id == node) } else { None };
        known.ok_or_else(Problem::not_found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_moves_only_from_a_node_that_is_gone_or_named_it_no_more() {
        let other = |present, held| BoardOwner {
            node_id: NodeId::from_uuid(uuid::Uuid::from_u128(1)),
            node_name: "alpha".to_owned(),
            present,
            held,
        };
        for (present, held, has_session, expected) in [
            (true, false, true, Some("is connected")),
            (true, true, true, Some("still has work")),
            (true, true, false, Some("still has work")),
            (false, true, true, Some("still has work")),
            (true, false, false, None),
            (false, false, true, None),
            (false, false, false, None),
        ] {
            let reason = stay_reason("GPU-1", &other(present, held), has_session);
            let matches = |text: &str| reason.as_deref().is_some_and(|reason| reason.contains(text));
            assert!(expected.map_or(reason.is_none(), matches), "{present} {held} {has_session}: {reason:?}");
        }
    }
}
