//! The release of nodes that a check of links has set aside for jobs on several nodes.

use berth_foundation::{Caller, Change};
use berth_store as store;
use berth_types::ids::NodeId;
use berth_types::nodes::Node;
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use futures::FutureExt;

use super::Nodes;

impl Nodes {
    /// Releases a node for jobs on several nodes, and forgets the measurements of its links.
    ///
    /// # Errors
    /// The node does not exist.
    pub async fn release_node(&self, caller: &Caller, node: NodeId) -> Result<Node, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageFleet).await?;
        let event = self.context.audit_event(caller, "node.released", node.to_string(), String::new());
        let done = self.context.db.try_write(move |tx| {
            let event = event.clone();
            async move {
                if !store::node_links::release(tx, node).await? {
                    return Err(Problem::not_found().into());
                }
                store::quotas::insert_audit(tx, None, &event).await?;
                Ok(())
            }
            .boxed()
        });
        done.await?;
        self.context.publish(Change::Boards);
        self.get_node(caller, node).await
    }
}
