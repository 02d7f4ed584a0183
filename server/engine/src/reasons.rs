//! The types of wait reasons: blockers, changes of a request and their sum.

use std::sync::Arc;

use berth_types::ids::JobId;
use berth_types::time::Timestamp;

use super::facts::HeldVolume;
use berth_placement::cluster::BookingId;
use berth_placement::quotas::Exceeded;
use berth_placement::request::InvalidRequest;

/// One reason for which a job waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Blocker {
    /// No cluster could ever meet the request.
    InvalidRequest(InvalidRequest),
    /// Dependencies that have not ended, or that ended without the required success.
    Dependency(Vec<JobId>),
    /// Another job writes to a volume to which this job would write.
    Volume(HeldVolume),
    /// Its reservation does not admit the job now.
    Booking(BookingId, ReservationBlocker),
    /// The cloud has no such boards, or too few together: at most `count` devices a node and `nodes` nodes.
    None { count: u32, nodes: u32 },
    /// These boards would suit in the other MIG mode, which only a reset changes; on too few nodes with `most_nodes`.
    Mode { boards: u32, most_nodes: Option<u32> },
    /// These suitable nodes have no free place now.
    Busy { nodes: u32 },
    /// These nodes have boards, but too few processors or too little memory: at this time (`temporary`) or in
    /// total.
    Host { nodes: u32, temporary: bool },
    /// These nodes would suit, but run no images.
    Images { nodes: u32 },
    /// These nodes would suit, but have no active RDMA port or more boards than the request.
    Rdma { nodes: u32 },
    /// These nodes would suit, but their workers do not give the needed network, or not the one between ranks of others.
    Network { nodes: u32 },
    /// These nodes would suit, but do not have this storage class of a volume.
    Storage { nodes: u32, class: Arc<str> },
    /// The organization uses only nodes that are dedicated to it: `busy` suitable ones have no free place now. Zero
    /// if too few of them could ever hold the request, although other nodes could.
    OwnNodes { busy: u32 },
    /// Boards that would suit now on open nodes of a pool that does not take the job; zero if too few nodes of its own
    /// pool could ever hold the request, although others could. `replica` is true for a replica of a service.
    Pool { boards: u32, replica: bool },
    /// The free boards on nodes for inference are the reserve for bursts: so many boards of each model.
    BurstReserve { boards: u32 },
    /// These suitable nodes accept no work.
    Away { nodes: u32 },
    /// These suitable nodes are set aside: they take no rank of a job on several nodes.
    SetAside { nodes: u32 },
    /// A rack has too little power left.
    Power(PowerShortage),
    /// These suitable boards are in quarantine.
    Quarantined { boards: u32 },
    /// The job could still run at the begin of a reservation, maintenance or held start.
    Promised { begins: Timestamp },
    /// These jobs have earlier turns.
    Ahead { jobs: u32 },
    /// Its organization would exceed a limit.
    Quota(Exceeded),
}

/// The reason for which a reservation does not admit a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReservationBlocker {
    NotBegun {
        begins: Timestamp,
    },
    Over,
    /// The longest run of the job would end after the reservation.
    TooShort {
        left_s: i64,
    },
    /// The reservation belongs to another organization.
    Foreign,
    /// Its boards could not hold the job even if they were empty.
    TooSmall,
}

/// The lack of power in a rack, in watts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PowerShortage {
    pub rack: Arc<str>,
    pub left: i64,
    pub budget: i64,
    pub need: i64,
}

/// A change of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SuggestedChange {
    /// Limit the run to these seconds.
    Seconds(i64),
    /// Ask for this number of devices a node.
    Count(u32),
    /// Ask for this number of nodes.
    Nodes(u32),
    /// Accept any nodes.
    Anywhere,
    /// Accept devices without NVLink.
    WithoutNvlink,
}

/// The reasons of a waiting job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitReasons {
    pub blockers: Vec<Blocker>,
    /// Sets of changes, each with which the job would start now; the changes of one set are needed together.
    pub changes: Vec<Vec<SuggestedChange>>,
    /// The expected start, if it is known.
    pub earliest: Option<Timestamp>,
    /// True if the job fits now and the next pass starts it.
    pub fits: bool,
}
