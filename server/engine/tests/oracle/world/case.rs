//! A case: the hosts of a small world, and its steps.

use std::sync::Arc;

use berth_mig::{Board, board_by_name};
use berth_placement::cluster::BookingId;
use berth_placement::networks::NetworkNeed;
use berth_placement::pools::Work;
use berth_placement::request::{DeviceRequest, Nearness, Request};
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::Priority;
use berth_types::node_pools::NodePool;
use berth_types::time::Timestamp;
use uuid::Uuid;

pub const GRACE_S: i64 = 60;
pub const LATE_S: i64 = 1;
pub const SOON_S: i64 = 30;
/// Past use has half its weight after a week.
pub const HALF_LIFE_S: f64 = 7.0 * 86_400.0;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Host {
    pub model: &'static str,
    pub boards: usize,
    pub mig: bool,
    pub rack: u8,
    pub cpus: i64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DeviceKind {
    Board,
    Share(u16),
    /// A profile by its index in the model's table.
    Slice(usize),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Job {
    pub org: u8,
    pub class: u8,
    pub preemptible: bool,
    /// True for a replica of a service.
    pub replica: bool,
    pub models: &'static [&'static str],
    pub device: DeviceKind,
    pub count: u32,
    pub nodes: u32,
    pub seconds: i64,
    /// Between the stop signal of a preemption and the end of the run.
    pub grace_s: i64,
    /// The reservation of the job, by its index among all reservations.
    pub inside: Option<usize>,
    /// True if all nodes must be in one rack.
    pub near: bool,
    pub cpus: i64,
    /// An earlier job whose success the job waits for.
    pub after: Option<usize>,
}

/// One board of an H100 host for 300 s.
pub const JOB: Job = Job {
    org: 0,
    class: 1,
    preemptible: false,
    replica: false,
    models: &["H100-80GB"],
    device: DeviceKind::Board,
    count: 1,
    nodes: 1,
    seconds: 300,
    grace_s: GRACE_S,
    inside: None,
    near: false,
    cpus: 0,
    after: None,
};

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Step {
    Submit(Job),
    /// Makes a reservation with the request of `job`, from `from_s` seconds after now, for the `seconds` of
    /// the job.
    Book {
        job: Job,
        from_s: i64,
        maintenance: bool,
    },
    Unbook(usize),
    /// Stops a run within its grace and queues it again, as a drain does.
    Drain(usize),
    /// Moves the time to the next begin or end.
    Next,
    Sleep(i64),
    End {
        job: usize,
        succeeded: bool,
    },
    /// Cancels a job; a run ends within its grace.
    Cancel(usize),
    Extend {
        job: usize,
        seconds: i64,
    },
    /// Lets a run end so many seconds after its limit, without a fact for the engine.
    Late {
        job: usize,
        seconds: i64,
    },
    /// Makes the end of a run unknown.
    Unclean(usize),
    Open {
        host: usize,
        open: bool,
    },
    Healthy {
        host: usize,
        healthy: bool,
    },
    /// Sets the greatest number of boards that an organization may use at once.
    Quota {
        org: u8,
        boards: Option<i64>,
    },
    Guarantee {
        org: u8,
        boards: i64,
    },
    /// Dedicates a host to an organization, or to none.
    Dedicate {
        host: usize,
        org: Option<u8>,
    },
    /// Sets the work that a host is for.
    Pool {
        host: usize,
        pool: NodePool,
    },
    /// Sets the restriction of an organization's work to its dedicated hosts.
    OwnOnly {
        org: u8,
        own_only: bool,
    },
    /// Sets the reserve for bursts: boards of each model on hosts for inference.
    Reserve(u32),
    /// Sets the power budget of each rack in watts.
    Budget(Option<i64>),
    /// Builds the engine again from the present facts.
    Restart,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    pub hosts: Vec<Host>,
    pub steps: Vec<Step>,
}

pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(1_800_000_000_000_000).plus_seconds(seconds)
}

pub fn seconds(at: Timestamp) -> i64 {
    (at.micros() - 1_800_000_000_000_000).div_euclid(1_000_000)
}

pub fn job_id(n: usize) -> JobId {
    JobId::from_uuid(Uuid::from_u128(n as u128 + 1))
}

pub fn org_id(org: u8) -> OrgId {
    OrgId::from_uuid(Uuid::from_u128(u128::from(org) + 1))
}

pub fn node_id(host: usize) -> NodeId {
    NodeId::from_uuid(Uuid::from_u128(host as u128 + 1))
}

pub fn uuid(host: usize, board: usize) -> Arc<str> {
    format!("GPU-{host}-{board}").into()
}

pub fn priority(class: u8) -> Priority {
    [Priority::Low, Priority::Normal, Priority::High][usize::from(class)]
}

pub fn table(model: &str) -> Option<&'static Board> {
    board_by_name(model)
}

/// True if the boards of a host are in MIG mode and change it by a reset only.
pub fn keeps_mig(host: &Host) -> bool {
    host.mig && table(host.model).is_some_and(|b| !b.live_toggle)
}

pub fn milli(job: &Job) -> i64 {
    let each = match job.device {
        DeviceKind::Board => 1_000,
        DeviceKind::Share(milli) => i64::from(milli),
        DeviceKind::Slice(index) => {
            let board = table(job.models[0]).expect("a board with slices");
            i64::from(board.profiles[index].size * 1_000 / board.memory_slices)
        }
    };
    each * i64::from(job.count) * i64::from(job.nodes)
}

pub fn request(job: &Job) -> Request {
    let device = match job.device {
        DeviceKind::Board => DeviceRequest::Board,
        DeviceKind::Share(milli) => DeviceRequest::Share(milli),
        DeviceKind::Slice(index) => DeviceRequest::Slice(
            table(job.models[0]).expect("a board with slices").profiles[index].name.as_str().into(),
        ),
    };
    Request {
        device,
        count: job.count,
        nodes: job.nodes,
        models: job.models.iter().map(|m| (*m).into()).collect(),
        cpu_milli: job.cpus,
        memory_mib: 0,
        topology: if job.near { Nearness::SameRack } else { Nearness::Any },
        nvlink: false,
        images: false,
        rdma: false,
        network: NetworkNeed::Any,
        storage: Vec::new(),
        work: match (job.replica, job.preemptible) {
            (true, _) => Work::Replica,
            (false, true) => Work::Preemptible,
            (false, false) => Work::Training,
        },
        offering: None,
        nano_per_second: 0,
    }
}

pub fn devices(job: &Job) -> i64 {
    match job.device {
        DeviceKind::Share(milli) => i64::from(milli),
        _ => i64::from(job.count) * i64::from(job.nodes) * 1_000,
    }
}

pub fn booking_id(n: usize) -> BookingId {
    BookingId(Uuid::from_u128(1_000 + n as u128))
}
