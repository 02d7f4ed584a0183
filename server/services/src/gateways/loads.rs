//! The reader of the loads and of the evidence in reports.

use berth_serving::reports::{ServiceLoad, Use};
use berth_serving::snapshot::ReplicaId;
use berth_types::time::Timestamp;

use crate::loads::LoadBoard;

/// The reader of reports. Each report comes once, and names only services and replicas that the portal knows. A gateway
/// is named by its number.
pub trait Loads: Send + Sync {
    /// The gateway uses the snapshot with this number; 0 for none.
    fn seen(&self, gateway: u64, snapshot: u64, at: Timestamp);
    /// The requests of a service at the gateway now.
    fn report(&self, gateway: u64, load: ServiceLoad, at: Timestamp);
    /// A draining replica has no request of the gateway.
    fn drained(&self, gateway: u64, replica: ReplicaId, at: Timestamp);
    /// The counted use of a revision since the last report.
    fn evidence(&self, used: &Use);
}

impl Loads for LoadBoard {
    fn seen(&self, gateway: u64, snapshot: u64, at: Timestamp) {
        self.seen(gateway, snapshot, at);
    }

    fn report(&self, gateway: u64, load: ServiceLoad, at: Timestamp) {
        self.report(gateway, load, at);
    }

    fn drained(&self, gateway: u64, replica: ReplicaId, at: Timestamp) {
        self.drained(gateway, replica, at);
    }

    fn evidence(&self, used: &Use) {
        self.evidence(used);
    }
}
