//! Pools of nodes, as a hard rule: a node for inference takes replicas, a node for training takes all other jobs.
//!
//! A preemptible job that is no replica borrows nodes for inference: it runs there until a replica needs the devices.

use berth_types::node_pools::NodePool;

/// The kind of a job for pools of nodes. A reservation counts as training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Work {
    /// No replica, and no job that may be preempted. Without any pool all jobs count as such.
    #[default]
    Training,
    /// No replica, but preemptible, or with the boards of a reservation: all pools take it.
    Preemptible,
    /// A replica of a service.
    Replica,
}

impl Work {
    pub const fn new(is_replica: bool, suits_all: bool) -> Self {
        match (is_replica, suits_all) {
            (true, _) => Self::Replica,
            (false, true) => Self::Preemptible,
            (false, false) => Self::Training,
        }
    }
}

/// True if a node of a pool takes a kind of work.
pub const fn takes(pool: NodePool, work: Work) -> bool {
    match pool {
        NodePool::Both => true,
        NodePool::Inference => matches!(work, Work::Preemptible | Work::Replica),
        NodePool::Training => matches!(work, Work::Preemptible | Work::Training),
    }
}

/// True if work goes to the nodes of a pool before all others that take it.
pub const fn prefers(work: Work, pool: NodePool) -> bool {
    match work {
        Work::Training => matches!(pool, NodePool::Training),
        Work::Preemptible => !matches!(pool, NodePool::Inference),
        Work::Replica => matches!(pool, NodePool::Inference),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pool_takes_its_work_and_preemptible_jobs() {
        let table = [
            (NodePool::Both, [true, true, true]),
            (NodePool::Inference, [false, true, true]),
            (NodePool::Training, [true, true, false]),
        ];
        for (pool, expected) in table {
            let taken = [Work::Training, Work::Preemptible, Work::Replica].map(|work| takes(pool, work));
            assert_eq!(taken, expected, "{pool:?}");
        }
    }

    #[test]
    fn a_replica_is_a_replica_even_if_it_is_preemptible() {
        let kinds = [(false, false), (false, true), (true, false), (true, true)];
        let kinds = kinds.map(|(is_replica, suits_all)| Work::new(is_replica, suits_all));
        assert_eq!(kinds, [Work::Training, Work::Preemptible, Work::Replica, Work::Replica]);
    }

    #[test]
    fn work_goes_to_its_own_nodes_first() {
        for work in [Work::Training, Work::Preemptible, Work::Replica] {
            let own: Vec<NodePool> = NodePool::ALL.into_iter().filter(|pool| prefers(work, *pool)).collect();
            assert!(!own.is_empty() && own.iter().all(|pool| takes(*pool, work)), "{work:?}");
        }
        assert!(!prefers(Work::Preemptible, NodePool::Inference), "borrowing comes last");
    }
}
