//! Who is still expected to hand something over: one that moves is waited for, one that stands is not.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use berth_types::ids::{JobId, NodeId};
use berth_types::time::Timestamp;

use berth_store::attempts::AttemptRow;

/// How long an attempt waits for what the one before still has to hand over, in seconds since anything of it came:
/// while that one's node is there, and when it is not.
const WAIT_S: i64 = 600;
const WAIT_LOST_S: i64 = 60;

/// A rank of an attempt: job, number and node.
type Rank = (String, i64, String);

/// When something last came of what ranks hand over. In memory: after a start of the portal each is given its
/// time again.
pub struct HandOvers {
    began: Timestamp,
    moved: Mutex<HashMap<Rank, Timestamp>>,
}

impl HandOvers {
    pub fn since(began: Timestamp) -> Self {
        Self { began, moved: Mutex::default() }
    }

    /// Something came that was not here before.
    pub fn note(&self, job: JobId, attempt: u32, node: NodeId, now: Timestamp) {
        let mut moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        // Of the others nothing is expected any more.
        moved.retain(|_, at| now.micros() - at.micros() < WAIT_S * 1_000_000);
        moved.insert((job.to_string(), i64::from(attempt), node.to_string()), now);
    }

    /// The hand-overs that are still expected, while these nodes are connected.
    pub fn awaited(&self, connected: HashSet<NodeId>) -> Awaited {
        let moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Awaited { connected, began: self.began, moved }
    }
}

/// What is known now of nodes and what they hand over.
#[derive(Debug, Clone)]
pub struct Awaited {
    pub connected: HashSet<NodeId>,
    began: Timestamp,
    moved: HashMap<Rank, Timestamp>,
}

impl Awaited {
    /// Whether one of these ranks is still expected to hand something over.
    pub fn any(&self, saving: &[AttemptRow], now: Timestamp) -> bool {
        saving.iter().any(|rank| {
            let there = rank.node_id.parse::<NodeId>().is_ok_and(|node| self.connected.contains(&node));
            let wait_s = if there { WAIT_S } else { WAIT_LOST_S };
            let key = (rank.job_id.clone(), rank.number, rank.node_id.clone());
            let moved = self.moved.get(&key).unwrap_or(&self.began).micros();
            now.micros() - moved.max(rank.ended_at.unwrap_or(0)) < wait_s * 1_000_000
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(node: NodeId, job: JobId) -> AttemptRow {
        AttemptRow {
            job_id: job.to_string(),
            number: 1,
            rank: 0,
            org_id: String::new(),
            node_id: node.to_string(),
            known: true,
            running: true,
            ended: true,
            outcome: None,
            ended_at: Some(0),
            clean: true,
            log_bytes: None,
            is_open: true,
            evidence: None,
            saving: true,
            progress: String::new(),
            image_digest: None,
        }
    }

    #[test]
    fn an_attempt_waits_for_the_one_before_while_that_moves() {
        let node = NodeId::from_uuid(uuid::Uuid::from_u128(1));
        let job = JobId::from_uuid(uuid::Uuid::from_u128(2));
        let at = |s: i64| Timestamp::from_micros(s * 1_000_000);
        let handovers = HandOvers::since(at(-5_000));
        let awaited = |connected: &[NodeId]| Awaited {
            connected: connected.iter().copied().collect(),
            began: handovers.began,
            moved: handovers.moved.lock().unwrap().clone(),
        };
        let ranks = [rank(node, job)];
        assert!(!awaited(&[node]).any(&[], at(0)));
        assert!(awaited(&[node]).any(&ranks, at(599)) && !awaited(&[node]).any(&ranks, at(600)));
        assert!(awaited(&[]).any(&ranks, at(59)) && !awaited(&[]).any(&ranks, at(60)));
        // Each piece that comes extends the time.
        for s in (0..5_000).step_by(500) {
            assert!(awaited(&[node]).any(&ranks, at(s + 499)), "{s}");
            handovers.note(job, 1, node, at(s + 499));
        }
        assert!(
            awaited(&[node]).any(&ranks, at(4_999 + 599)) && !awaited(&[node]).any(&ranks, at(4_999 + 600))
        );
        assert!(awaited(&[]).any(&ranks, at(4_999 + 59)) && !awaited(&[]).any(&ranks, at(4_999 + 60)));
        let other = [rank(NodeId::from_uuid(uuid::Uuid::from_u128(3)), job)];
        assert!(!awaited(&[node]).any(&other, at(5_000)), "another rank did not move");
        // What stands is forgotten.
        handovers.note(JobId::from_uuid(uuid::Uuid::from_u128(4)), 1, node, at(9_000));
        assert_eq!(handovers.moved.lock().unwrap().len(), 1);
        // A portal that was started meanwhile cannot know.
        let anew = Awaited { connected: [node].into(), began: at(9_000), moved: HashMap::new() };
        assert!(anew.any(&ranks, at(9_599)) && !anew.any(&ranks, at(9_600)));
    }
}
