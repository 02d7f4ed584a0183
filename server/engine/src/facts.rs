//! The facts of the engine.

use std::collections::HashMap;
use std::sync::Arc;

use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::{DependsOn, Priority};
use berth_types::time::Timestamp;

use berth_placement::calendar::Booking;
use berth_placement::cluster::{BookingId, NodeFacts, Owner, Slot};
use berth_placement::quotas::EngineLimits;
use berth_placement::request::Request;

/// The facts of a waiting job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFacts {
    pub id: JobId,
    pub generation: i64,
    /// The number of its last attempt; 0 before the first attempt.
    pub attempt: u32,
    pub org: OrgId,
    pub request: Request,
    pub priority: Priority,
    /// The time limit of a further run, in seconds.
    pub max_duration_s: i64,
    pub preemptible: bool,
    /// The seconds between its stop signal and SIGKILL, for saving its state.
    pub grace_s: i64,
    /// The longest time so far between a stop for another job or a drain and the end of the run; `None` before the first.
    pub gives_back_ms: Option<i64>,
    pub queued_at: Timestamp,
    pub depends_on: Vec<DependsOn>,
    /// The only booking inside which it may run.
    pub inside: Option<BookingId>,
    /// A volume to which the job would write and another job writes now.
    pub volume: Option<HeldVolume>,
}

/// A volume with its writing job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldVolume {
    pub name: String,
    pub job: JobId,
    /// True if the attempt has ended and its files are being handed over.
    pub saving: bool,
}

/// The devices, processors and memory of an attempt on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRank {
    pub node: NodeId,
    pub slots: Vec<Slot>,
    pub cpu_milli: i64,
    pub memory_mib: i64,
}

/// The claim of an attempt on devices, until they are proved clean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub owner: Owner,
    pub org: OrgId,
    pub ranks: Vec<ClaimRank>,
    /// Thousandths of boards on all nodes.
    pub milli: i64,
    pub since: Timestamp,
    /// Its latest end; `None` if that is unknown (its node is silent, or its devices are unclean).
    pub ends_by: Option<Timestamp>,
    pub priority: Priority,
    /// True if the attempt was stopped, or has ended and is being cleaned up.
    pub stops: bool,
    /// The job for which the attempt was preempted, set until the devices are proved clean, whatever ends the
    /// attempt.
    pub stopped_for: Option<JobId>,
    /// True if its job returns to the queue after its end.
    pub requeues: bool,
    /// The accepted board models of its job.
    pub models: Vec<Arc<str>>,
    /// The grace in seconds of a running attempt that may be preempted.
    pub preemptible: Option<i64>,
    /// The longest time so far between such a stop and the end of the run.
    pub gives_back_ms: Option<i64>,
    /// True for a replica of a service.
    pub replica: bool,
    /// The time up to which its work is saved.
    pub saved_at: Option<Timestamp>,
    /// The booking inside which it runs.
    pub inside: Option<BookingId>,
    pub bill: ClaimBill,
}

/// The use of a claim against limits, besides boards.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClaimBill {
    pub offering: Option<Arc<str>>,
    /// Thousandths of devices.
    pub devices_milli: i64,
    pub nano_per_second: i64,
}

/// The facts of an organization.
#[derive(Debug, Clone, PartialEq)]
pub struct OrgFacts {
    pub org: OrgId,
    /// The weight for fair share; 1 by default.
    pub weight: f64,
    /// The use so far in thousandths of a board × seconds; `None` keeps the present value.
    pub used: Option<f64>,
    /// While fewer thousandths of boards run, its use counts as zero.
    pub guaranteed_milli: i64,
    /// True if its jobs and reservations use only nodes that are dedicated to it.
    pub own_nodes_only: bool,
    /// True if its egress policy differs from the default one.
    pub egress_policy: bool,
    pub limits: EngineLimits,
}

/// The state of one item. A greater version is newer.
#[derive(Debug, Clone, PartialEq)]
pub enum Fact {
    Node {
        version: i64,
        facts: NodeFacts,
    },
    /// A job waits.
    Waits {
        version: i64,
        facts: JobFacts,
    },
    /// A job does not wait: it runs or has ended.
    Left {
        version: i64,
        job: JobId,
    },
    /// A job has ended.
    Ended {
        job: JobId,
        succeeded: bool,
    },
    Claim {
        version: i64,
        claim: Claim,
    },
    /// The claim of an attempt has ended.
    Freed {
        version: i64,
        owner: Owner,
    },
    Booked {
        version: i64,
        booking: Booking,
    },
    Unbooked {
        version: i64,
        id: BookingId,
    },
    Org(OrgFacts),
}

/// The item of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum VersionedItem {
    Node(NodeId),
    Job(JobId),
    Claim(Owner),
    Booking(BookingId),
}

/// The largest number of kept versions; beyond it all versions are dropped.
const MAX_VERSIONS: usize = 1 << 20;

/// The versions of the newest facts.
#[derive(Debug, Clone, Default)]
pub(super) struct Versions(HashMap<VersionedItem, i64>);

impl Versions {
    /// Returns true if a version is not older than the known version of an item, and records it.
    pub(super) fn is_newer(&mut self, item: VersionedItem, version: i64) -> bool {
        if self.0.len() > MAX_VERSIONS {
            self.0.clear();
        }
        match self.0.get_mut(&item) {
            Some(known) if *known > version => false,
            Some(known) => {
                *known = version;
                true
            }
            None => {
                self.0.insert(item, version);
                true
            }
        }
    }
}
