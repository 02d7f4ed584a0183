//! Reports of hosts, approvals, labels, cordons and the dedication of nodes.

pub(crate) mod approval;
mod dedication;
mod diagnoses;
mod labels;
mod pools;
mod rdma;
mod release;
pub mod routes;

use berth_types::ids::NodeId;
use berth_types::nodes::{Node, PatchNode};
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use futures::FutureExt;

use self::approval::Recorded;
use self::diagnoses::Diagnoses;
use self::labels::LabelChange;
use crate::cluster::Cluster;
use crate::leases::{Leases, node_audit};
use crate::offerings::Offerings;
use berth_foundation::Caller;
use berth_foundation::repeated::MINUTE_MS;
use berth_foundation::{Change, Context};
use berth_store::nodes::{BoardOwner, NodeReport};
use berth_store::{self as store, StoreError, Tx};
use std::sync::Arc;

/// The reason why a reported board stays with its present node. `None` if it moves to the reporting node. A node
/// without an approval takes no board from an approved node, and keeps none from it.
fn stay_reason(
    gpu_uuid: &str,
    other: &BoardOwner,
    has_session: bool,
    is_reporter_approved: bool,
) -> Option<String> {
    if is_reporter_approved && !other.approved {
        return None;
    }
    let why = match (other.held, other.present && has_session) {
        (true, _) => "still has work on it",
        (false, true) => "is connected and has reported it",
        (false, false) if other.approved && !is_reporter_approved => "is approved, unlike this node",
        (false, false) => return None,
    };
    Some(format!("Board {gpu_uuid} remains with node {}, which {why}.", other.node_name))
}

/// Records reports of hosts, and approves, labels, cordons and dedicates nodes.
#[derive(Clone)]
pub struct Nodes {
    context: Context,
    offerings: Offerings,
    cluster: Cluster,
    leases: Arc<Leases>,
    diagnoses: Arc<Diagnoses>,
}

impl Nodes {
    pub fn new(context: Context, offerings: Offerings, cluster: Cluster, leases: Arc<Leases>) -> Self {
        Self { context, offerings, cluster, leases, diagnoses: Arc::default() }
    }

    /// Records the report of a host. An approved node adds the offerings of its approved boards.
    ///
    /// The UUID of a board is a claim without proof. It takes no board from a connected node and no board
    /// with work on it.
    pub async fn report_node(&self, node: NodeId, report: NodeReport) -> Result<(), StoreError> {
        let (nodes, now) = (self.clone(), self.context.now());
        let Recorded { left_out, has_new_left_out, is_approved } = self
            .context
            .db
            .write(move |tx| {
                let (nodes, report) = (nodes.clone(), report.clone());
                async move { nodes.record(tx, node, report, now).await }.boxed()
            })
            .await?;
        if !left_out.is_empty() {
            tracing::warn!(%node, left_out, "a worker reports boards of another node");
        }
        if has_new_left_out {
            // A host without an approval can alternate its reports at any rate.
            let event = node_audit(&self.context, node, "node.boards_left_out", &left_out);
            self.context.record_repeated(&format!("left out {node}"), MINUTE_MS, None, event).await;
        }
        if is_approved {
            self.offerings.offer_boards_of(node).await?;
        }
        Ok(())
    }

    /// The reason why a board of a report is left out. `None` if it is recorded.
    async fn left_out_reason(
        &self,
        tx: &mut Tx<'_>,
        node: NodeId,
        is_approved: bool,
        gpu_uuid: &str,
    ) -> Result<Option<String>, StoreError> {
        let Some(other) = store::nodes::find_other_owner(tx, gpu_uuid, node).await? else { return Ok(None) };
        Ok(stay_reason(gpu_uuid, &other, self.leases.has_session(other.node_id), is_approved))
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

    /// Changes the cordon, the labels and the pool of a node. A cordoned node continues its jobs and gets no new ones.
    /// Removal of the cordon also ends a drain.
    ///
    /// # Errors
    /// The node does not exist, the labels are invalid, or the node has others than those that the operator saw.
    pub async fn patch_node(&self, caller: &Caller, node: NodeId, patch: PatchNode) -> Result<Node, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageFleet).await?;
        let event = self.context.audit_event(caller, "node.labels_set", node.to_string(), String::new());
        let labels = LabelChange::from_patch(&patch, event)?;
        let PatchNode { cordoned, pool, .. } = patch;
        let cordon_event = cordoned.map(|cordoned| {
            let action = if cordoned { "node.cordoned" } else { "node.uncordoned" };
            self.context.audit_event(caller, action, node.to_string(), String::new())
        });
        let pool = pool.map(|pool| {
            (pool, self.context.audit_event(caller, "node.pool_set", node.to_string(), String::new()))
        });
        let refusal = self
            .context
            .db
            .write(move |tx| {
                let (labels, cordon_event, pool) = (labels.clone(), cordon_event.clone(), pool.clone());
                async move {
                    if store::approvals::find(tx, node).await?.is_none() {
                        return Ok(Some(Problem::not_found()));
                    }
                    if let Some(conflict) = labels.find_conflict(tx, node).await? {
                        return Ok(Some(conflict));
                    }
                    if cordoned == Some(false) {
                        store::operations::delete_drain(tx, node).await?;
                    }
                    if let Some(cordoned) = cordoned {
                        store::nodes::set_cordoned(tx, node, cordoned).await?;
                    }
                    if let Some(event) = &cordon_event {
                        store::quotas::insert_audit(tx, None, event).await?;
                    }
                    labels.apply(tx, node).await?;
                    if let Some((pool, event)) = &pool {
                        pools::set_pool(tx, node, *pool, event).await?;
                    }
                    Ok(None)
                }
                .boxed()
            })
            .await?;
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        self.context.publish(Change::Boards);
        let known = self.cluster.nodes(None).await?.into_iter().find(|n| n.id == node);
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
            approved: true,
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
            let reason = stay_reason("GPU-1", &other(present, held), has_session, true);
            let matches = |text: &str| reason.as_deref().is_some_and(|reason| reason.contains(text));
            assert!(expected.map_or(reason.is_none(), matches), "{present} {held} {has_session}: {reason:?}");
        }
    }

    #[test]
    fn a_node_without_an_approval_takes_and_keeps_no_board_of_an_approved_node() {
        let reason = |approved, present, is_reporter_approved| {
            let other = BoardOwner {
                node_id: NodeId::from_uuid(uuid::Uuid::from_u128(1)),
                node_name: "alpha".to_owned(),
                present,
                held: false,
                approved,
            };
            stay_reason("GPU-1", &other, true, is_reporter_approved)
        };
        let text = "Board GPU-1 remains with node alpha, which is approved, unlike this node.";
        assert_eq!(reason(true, false, false).as_deref(), Some(text));
        assert_eq!(reason(false, true, true), None, "the claim of a stranger does not count");
        assert!(reason(false, true, false).is_some(), "of two strangers the first keeps it");
        assert_eq!(reason(false, false, false), None);
    }
}
