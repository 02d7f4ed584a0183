//! Reporting and cordoning of nodes.

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
use berth_store::nodes::{NodeReport, OtherRow};
use berth_store::{self as store, StoreError, Tx};
use std::sync::Arc;

/// Why a board that a node reports stays with the one that has it; `None` when it moves.
fn stays(gpu_uuid: &str, other: &OtherRow, heard: bool) -> Option<String> {
    let why = match (other.held, other.present && heard) {
        (true, _) => "still has work on it",
        (false, true) => "is connected and has reported it",
        (false, false) => return None,
    };
    Some(format!("{gpu_uuid} stays with {}, which {why}.", other.node_name))
}

/// Reports of nodes, and cordons.
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

    /// Records a host as its worker sees it, and puts its boards on offer. A UUID is only said, not proved: it
    /// takes no board from a node that is connected, nor from under what runs.
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
                        let why = nodes.why_left_out(tx, node, &board.uuid).await?;
                        match why {
                            Some(why) => left_out.push(why),
                            None => report.boards.push(board),
                        }
                    }
                    let words = left_out.join(" ");
                    store::nodes::report(tx, node, &report, now).await?;
                    if store::nodes::set_left_out(tx, node, &words).await? && !words.is_empty() {
                        let event = node_audit(&nodes.context, node, "node.boards_left_out", &words);
                        store::quotas::insert_audit(tx, None, &event).await?;
                    }
                    Ok(words)
                }
                .boxed()
            })
            .await?;
        if !left_out.is_empty() {
            tracing::warn!(%node, left_out, "boards that a worker reports belong to another node");
        }
        Ok(())
    }

    /// Why a board of a node's report is left out, if it is.
    async fn why_left_out(
        &self,
        tx: &mut Tx<'_>,
        node: NodeId,
        gpu_uuid: &str,
    ) -> Result<Option<String>, StoreError> {
        let Some(other) = store::nodes::find_other(tx, gpu_uuid, node).await? else { return Ok(None) };
        let id: NodeId = other.node_id.parse().map_err(|_| StoreError::Corrupt(other.node_id.clone()))?;
        Ok(stays(gpu_uuid, &other, self.leases.is_heard(id)))
    }

    pub async fn note_seen(&self, node: NodeId) -> Result<(), StoreError> {
        let now = self.context.now();
        self.context.db.write(move |tx| async move { store::nodes::touch(tx, node, now).await }.boxed()).await
    }

    /// A cordoned node keeps what it runs and takes nothing new. One that takes new work is not emptied.
    pub async fn patch_node(&self, caller: &Caller, node: NodeId, patch: PatchNode) -> Result<Node, Problem> {
        self.context.authorise_operator(caller)?;
        let cordoned = patch.cordoned;
        let found = self
            .context
            .db
            .write(move |tx| {
                async move {
                    if !cordoned {
                        store::operations::delete_drain(tx, node).await?;
                    }
                    store::nodes::set_cordoned(tx, node, cordoned).await
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
        let other = |present, held| OtherRow {
            node_id: "node_1".to_owned(),
            node_name: "alpha".to_owned(),
            present,
            held,
        };
        for (present, held, heard, why) in [
            (true, false, true, Some("is connected")),
            (true, true, true, Some("still has work")),
            (true, true, false, Some("still has work")),
            (false, true, true, Some("still has work")),
            (true, false, false, None),
            (false, false, true, None),
            (false, false, false, None),
        ] {
            let said = stays("GPU-1", &other(present, held), heard);
            let told = |why: &str| said.as_deref().is_some_and(|said| said.contains(why));
            assert!(why.map_or(said.is_none(), told), "{present} {held} {heard}: {said:?}");
        }
    }
}
