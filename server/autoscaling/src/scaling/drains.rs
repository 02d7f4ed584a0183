//! The choice of replicas to drain, and the end of a drained replica.

use std::cmp::Reverse;

use berth_types::time::Timestamp;

use crate::ReplicaId;

/// A replica that is not drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replica {
    pub id: ReplicaId,
    pub ready: bool,
    pub created: Timestamp,
    /// The requests that it answers now, at all gateways.
    pub outstanding: u32,
}

/// Chooses the replicas to drain so that `wanted` remain, and never fewer than `floor`: those not ready first,
/// the newest of them first, then those with the fewest requests, the newest of them first.
pub fn replicas_to_drain(replicas: &[Replica], wanted: u32, floor: u32) -> Vec<ReplicaId> {
    let kept = usize::try_from(wanted.max(floor)).unwrap_or(usize::MAX);
    let mut order: Vec<&Replica> = replicas.iter().collect();
    order.sort_by_key(|replica| {
        // The requests of a replica that is not ready do not matter.
        let outstanding = if replica.ready { replica.outstanding } else { 0 };
        (replica.ready, outstanding, Reverse(replica.created), replica.id)
    });
    order.iter().take(replicas.len().saturating_sub(kept)).map(|replica| replica.id).collect()
}

/// A gateway's view of a drained replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainReport {
    /// The gateway knows of the drain, so it sends no new request to the replica.
    pub knows: bool,
    pub outstanding: u32,
}

/// The end of a drained replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainEnd {
    /// All of its requests ended.
    Finished,
    /// Its deadline passed.
    Deadline,
}

/// A replica that gets no new request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drain {
    pub deadline: Timestamp,
}

impl Drain {
    /// The end of the replica, if it may end now. `reports` has one entry for each gateway that could have sent it
    /// a request; one that is silent keeps the replica until its deadline.
    pub fn end(&self, reports: &[DrainReport], now: Timestamp) -> Option<DrainEnd> {
        if reports.iter().all(|report| report.knows && report.outstanding == 0) {
            Some(DrainEnd::Finished)
        } else {
            (now >= self.deadline).then_some(DrainEnd::Deadline)
        }
    }
}
