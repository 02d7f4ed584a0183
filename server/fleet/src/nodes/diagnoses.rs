//! The latest checks of the hosts by their workers, in memory.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use berth_types::diagnosis::{Finding, MAX_FINDINGS, NodeDiagnosis};
use berth_types::ids::NodeId;
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;

use super::Nodes;
use berth_foundation::Caller;
use berth_store as store;

/// The most nodes with a diagnosis. Further nodes have none.
const MAX_NODES: usize = 10_000;

/// The latest diagnosis of each node.
#[derive(Debug, Default)]
pub(super) struct Diagnoses {
    by_node: Mutex<HashMap<NodeId, NodeDiagnosis>>,
}

impl Diagnoses {
    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, NodeDiagnosis>> {
        self.by_node.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, node: NodeId, mut findings: Vec<Finding>, now: Timestamp) {
        findings.truncate(MAX_FINDINGS);
        let mut by_node = self.lock();
        if by_node.len() < MAX_NODES || by_node.contains_key(&node) {
            by_node.insert(node, NodeDiagnosis { reported_at: Some(now), findings });
        }
    }

    fn find(&self, node: NodeId) -> Option<NodeDiagnosis> {
        self.lock().get(&node).cloned()
    }

    pub(super) fn remove(&self, node: NodeId) {
        self.lock().remove(&node);
    }
}

impl Nodes {
    /// Records the checks of a host in place of the earlier ones, at most [`MAX_FINDINGS`].
    pub fn record_diagnosis(&self, node: NodeId, findings: Vec<Finding>) {
        self.diagnoses.record(node, findings, self.context.now());
    }

    /// The latest checks of a host, for an operator.
    ///
    /// # Errors
    /// The node does not exist.
    pub async fn get_diagnosis(&self, caller: &Caller, node: NodeId) -> Result<NodeDiagnosis, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let known = store::approvals::find(&mut tx, node).await?;
        known.ok_or_else(Problem::not_found)?;
        Ok(self.diagnoses.find(node).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::diagnosis::FindingState;

    #[test]
    fn the_number_of_findings_and_of_nodes_is_limited() {
        let finding = |n: usize| Finding {
            code: format!("driver.{n}"),
            state: FindingState::Ok,
            found: String::new(),
            next: None,
        };
        let node = |n: usize| NodeId::from_uuid(uuid::Uuid::from_u128(n as u128));
        let (all, now) = (Diagnoses::default(), Timestamp::from_micros(1));
        all.record(node(0), (0..MAX_FINDINGS + 1).map(finding).collect(), now);
        assert_eq!(all.find(node(0)).map(|found| found.findings.len()), Some(MAX_FINDINGS));
        for n in 1..=MAX_NODES {
            all.record(node(n), Vec::new(), now);
        }
        assert_eq!(all.lock().len(), MAX_NODES);
        assert_eq!(all.find(node(MAX_NODES)), None);
        // A known node has its newer report.
        all.record(node(0), vec![finding(7)], Timestamp::from_micros(2));
        let newest = all.find(node(0)).unwrap();
        assert_eq!((newest.reported_at, newest.findings.len()), (Some(Timestamp::from_micros(2)), 1));
        all.remove(node(0));
        assert_eq!(all.find(node(0)), None);
    }
}
