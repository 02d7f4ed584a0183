//! Expected hand-overs: a hand-over with recent progress is awaited, one without progress is not.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use berth_types::ids::{JobId, NodeId};
use berth_types::time::Timestamp;

use berth_store::attempts::StoredAttempt;

/// Seconds since the last progress of a hand-over during which the next attempt waits for it: with the node
/// connected, and with the node disconnected.
const WAIT_S: i64 = 600;
const WAIT_LOST_S: i64 = 60;

/// A rank of an attempt: job, number and node.
type Rank = (JobId, i64, NodeId);

/// The time of the last progress of each rank's hand-over, in memory. After a start of the portal each
/// hand-over has its full time again.
pub struct HandOvers {
    started_at: Timestamp,
    progress_at: Mutex<HashMap<Rank, Timestamp>>,
}

impl HandOvers {
    pub fn new(started_at: Timestamp) -> Self {
        Self { started_at, progress_at: Mutex::default() }
    }

    /// Records the arrival of new bytes from a rank.
    pub fn record_progress(&self, job: JobId, attempt: u32, node: NodeId, now: Timestamp) {
        let mut progress_at = self.progress_at.lock().unwrap_or_else(PoisonError::into_inner);
        // Hand-overs without recent progress are not awaited any more.
        progress_at.retain(|_, at| now.micros() - at.micros() < WAIT_S * 1_000_000);
        progress_at.insert((job, i64::from(attempt), node), now);
    }

    /// The awaited hand-overs, given the connected nodes.
    pub fn awaited(&self, connected: HashSet<NodeId>) -> AwaitedHandOvers {
        let progress_at = self.progress_at.lock().unwrap_or_else(PoisonError::into_inner).clone();
        AwaitedHandOvers { connected, started_at: self.started_at, progress_at }
    }
}

/// A snapshot of the connected nodes and the progress of hand-overs.
#[derive(Debug, Clone)]
pub struct AwaitedHandOvers {
    pub connected: HashSet<NodeId>,
    started_at: Timestamp,
    progress_at: HashMap<Rank, Timestamp>,
}

impl AwaitedHandOvers {
    /// Returns true if the hand-over of one of these ranks is awaited.
    pub fn includes_any(&self, saving: &[StoredAttempt], now: Timestamp) -> bool {
        saving.iter().any(|rank| {
            let is_connected = self.connected.contains(&rank.node_id);
            let wait_s = if is_connected { WAIT_S } else { WAIT_LOST_S };
            let key = (rank.job_id, rank.number, rank.node_id);
            let progress_at = *self.progress_at.get(&key).unwrap_or(&self.started_at);
            let last_at = progress_at.max(rank.ended_at.unwrap_or_default());
            now.micros() - last_at.micros() < wait_s * 1_000_000
        })
    }
}

#[cfg(test)]
mod tests {
    use berth_types::ids::OrgId;

    use super::*;

    fn rank(node: NodeId, job: JobId) -> StoredAttempt {
        StoredAttempt {
            job_id: job,
            number: 1,
            rank: 0,
            org_id: OrgId::from_uuid(uuid::Uuid::nil()),
            node_id: node,
            known: true,
            running: true,
            ended: true,
            outcome: None,
            ended_at: Some(Timestamp::default()),
            clean: true,
            log_bytes: None,
            is_open: true,
            evidence: None,
            saving: true,
            progress: String::new(),
            image_digest: None,
            created_at: Timestamp::default(),
        }
    }

    #[test]
    fn an_attempt_waits_for_the_one_before_while_that_moves() {
        let node = NodeId::from_uuid(uuid::Uuid::from_u128(1));
        let job = JobId::from_uuid(uuid::Uuid::from_u128(2));
        let at = |s: i64| Timestamp::from_micros(s * 1_000_000);
        let handovers = HandOvers::new(at(-5_000));
        let awaited = |connected: &[NodeId]| AwaitedHandOvers {
            connected: connected.iter().copied().collect(),
            started_at: handovers.started_at,
            progress_at: handovers.progress_at.lock().unwrap().clone(),
        };
        let ranks = [rank(node, job)];
        assert!(!awaited(&[node]).includes_any(&[], at(0)));
        assert!(
            awaited(&[node]).includes_any(&ranks, at(599)) && !awaited(&[node]).includes_any(&ranks, at(600))
        );
        assert!(awaited(&[]).includes_any(&ranks, at(59)) && !awaited(&[]).includes_any(&ranks, at(60)));
        // Each chunk extends the time.
        for s in (0..5_000).step_by(500) {
            assert!(awaited(&[node]).includes_any(&ranks, at(s + 499)), "{s}");
            handovers.record_progress(job, 1, node, at(s + 499));
        }
        assert!(
            awaited(&[node]).includes_any(&ranks, at(4_999 + 599))
                && !awaited(&[node]).includes_any(&ranks, at(4_999 + 600))
        );
        assert!(
            awaited(&[]).includes_any(&ranks, at(4_999 + 59))
                && !awaited(&[]).includes_any(&ranks, at(4_999 + 60))
        );
        let other = [rank(NodeId::from_uuid(uuid::Uuid::from_u128(3)), job)];
        assert!(!awaited(&[node]).includes_any(&other, at(5_000)), "another rank did not move");
        // Hand-overs without progress are forgotten.
        handovers.record_progress(JobId::from_uuid(uuid::Uuid::from_u128(4)), 1, node, at(9_000));
        assert_eq!(handovers.progress_at.lock().unwrap().len(), 1);
        // A restarted portal does not know the earlier progress.
        let restarted =
            AwaitedHandOvers { connected: [node].into(), started_at: at(9_000), progress_at: HashMap::new() };
        assert!(restarted.includes_any(&ranks, at(9_599)) && !restarted.includes_any(&ranks, at(9_600)));
    }
}
