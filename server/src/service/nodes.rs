//! Reporting and cordoning of nodes.

use berth_mig::board_by_name;
use berth_types::ids::NodeId;
use berth_types::nodes::{Node, PatchNode};
use berth_types::problems::Problem;
use futures::FutureExt;

use super::Caller;
use crate::portal::Portal;
use crate::store::nodes::NodeReport;
use crate::store::{self, StoreError};

impl Portal {
    /// Records a host as its worker sees it, and puts its boards on offer.
    pub async fn report_node(&self, node: NodeId, report: NodeReport) -> Result<(), StoreError> {
        let mut models: Vec<&str> = report.boards.iter().map(|b| b.model.as_str()).collect();
        models.sort_unstable();
        models.dedup();
        for board in models.into_iter().filter_map(board_by_name) {
            self.offer_board(board, report.simulated).await?;
        }
        let now = self.now();
        self.db
            .write(move |tx| {
                let report = report.clone();
                async move { store::nodes::report(tx, node, &report, now).await }.boxed()
            })
            .await
    }

    pub async fn touch_node(&self, node: NodeId) -> Result<(), StoreError> {
        let now = self.now();
        self.db.write(move |tx| async move { store::nodes::touch(tx, node, now).await }.boxed()).await
    }

    /// A cordoned node keeps what it runs and takes nothing new. One that takes new work is not emptied.
    pub async fn patch_node(&self, caller: &Caller, node: NodeId, patch: PatchNode) -> Result<Node, Problem> {
        self.authorise_operator(caller)?;
        let cordoned = patch.cordoned;
        let found = self
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
        self.touch_boards();
        let known = if found { self.nodes(None).await?.into_iter().find(|n| n.id == node) } else { None };
        known.ok_or_else(Problem::not_found)
    }
}
