//! The nodes of a cluster that are not for all work.

use berth_types::node_pools::NodePool;

use super::Cluster;
use crate::pools::Work;

/// The number of nodes that are not for all work.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PooledNodes(u32);

impl PooledNodes {
    /// Counts a node whose pool changes.
    pub(super) fn replace(&mut self, before: NodePool, after: NodePool) {
        self.0 = self.0 + u32::from(!after.is_both()) - u32::from(!before.is_both());
    }
}

/// True if some node is not for all work.
pub fn has_pools(cluster: &Cluster) -> bool {
    cluster.pooled.0 > 0
}

/// The kind of work of a request. Without any pool it has no effect, and all requests have one kind in common.
pub fn present_work(cluster: &Cluster, work: Work) -> Work {
    if has_pools(cluster) { work } else { Work::Training }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_nodes_with_a_pool_follows_each_change() {
        let mut nodes = PooledNodes::default();
        nodes.replace(NodePool::Both, NodePool::Inference);
        nodes.replace(NodePool::Both, NodePool::Training);
        nodes.replace(NodePool::Inference, NodePool::Training);
        assert_eq!(nodes.0, 2);
        nodes.replace(NodePool::Training, NodePool::Both);
        nodes.replace(NodePool::Training, NodePool::Both);
        nodes.replace(NodePool::Both, NodePool::Both);
        assert_eq!(nodes.0, 0);
    }
}
