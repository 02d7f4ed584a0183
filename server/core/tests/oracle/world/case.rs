//! A case: the hosts of a small world, and the steps in it.

use std::sync::Arc;

use berth_core::cluster::BookingId;
use berth_core::request::{Request, Topology, Wanted};
use berth_mig::{Board, board_by_name};
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::Priority;
use berth_types::time::Timestamp;
use uuid::Uuid;

pub const GRACE_S: i64 = 60;
pub const LATE_S: i64 = 1;
pub const SOON_S: i64 = 30;
/// Past use counts half after a week.
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
pub enum What {
    Board,
    Share(u16),
    /// A profile by its place in the model's table.
    Slice(usize),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Job {
    pub org: u8,
    pub class: u8,
    pub preemptible: bool,
    pub models: &'static [&'static str],
    pub what: What,
    pub count: u32,
    pub nodes: u32,
    pub seconds: i64,
    /// Between the word to make room and the end.
    pub grace_s: i64,
    /// A reservation by its place among those that were made.
    pub inside: Option<usize>,
    /// All nodes in one rack.
    pub near: bool,
    pub cpus: i64,
    /// It waits for the success of an earlier job.
    pub after: Option<usize>,
}

/// One board of an H100 host for 300 s.
pub const JOB: Job = Job {
    org: 0,
    class: 1,
    preemptible: false,
    models: &["H100-80GB"],
    what: What::Board,
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
    /// A reservation of an organization for what a job would ask, from now + `from_s`, for `seconds`.
    Book {
        job: Job,
        from_s: i64,
        maintenance: bool,
    },
    Unbook(usize),
    /// A run is stopped within its grace and queued again, as by a drain.
    Drain(usize),
    /// To the next time at which something ends or begins.
    Next,
    Sleep(i64),
    End {
        job: usize,
        succeeded: bool,
    },
    /// A run ends within its grace.
    Cancel(usize),
    Extend {
        job: usize,
        seconds: i64,
    },
    /// It ends so many seconds after it should have, and nobody knows that.
    Late {
        job: usize,
        seconds: i64,
    },
    /// Nobody knows when it ends.
    Unclean(usize),
    Open {
        host: usize,
        open: bool,
    },
    Healthy {
        host: usize,
        healthy: bool,
    },
    /// The boards that an organization may hold at once.
    Quota {
        org: u8,
        boards: Option<i64>,
    },
    Guarantee {
        org: u8,
        boards: i64,
    },
    /// Watts of each rack.
    Budget(Option<i64>),
    /// The engine is built anew from the newest facts.
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

pub fn rank(class: u8) -> Priority {
    [Priority::Low, Priority::Normal, Priority::High][usize::from(class)]
}

pub fn table(model: &str) -> Option<&'static Board> {
    board_by_name(model)
}

/// Boards of which only a reset changes the MIG mode, and that are in it.
pub fn keeps_mig(host: &Host) -> bool {
    host.mig && table(host.model).is_some_and(|b| !b.live_toggle)
}

pub fn milli(job: &Job) -> i64 {
    let each = match job.what {
        What::Board => 1_000,
        What::Share(milli) => i64::from(milli),
        What::Slice(index) => {
            let board = table(job.models[0]).expect("a board with slices");
            i64::from(board.profiles[index].size * 1_000 / board.memory_slices)
        }
    };
    each * i64::from(job.count) * i64::from(job.nodes)
}

pub fn request(job: &Job) -> Request {
    let wanted = match job.what {
        What::Board => Wanted::Board,
        What::Share(milli) => Wanted::Share(milli),
        What::Slice(index) => Wanted::Slice(
            table(job.models[0]).expect("a board with slices").profiles[index].name.as_str().into(),
        ),
    };
    Request {
        wanted,
        count: job.count,
        nodes: job.nodes,
        models: job.models.iter().map(|m| (*m).into()).collect(),
        cpu_milli: job.cpus,
        memory_mib: 0,
        topology: if job.near { Topology::SameRack } else { Topology::Any },
        nvlink: false,
        images: false,
        offering: None,
        nano_per_second: 0,
    }
}

pub fn devices(job: &Job) -> i64 {
    match job.what {
        What::Share(milli) => i64::from(milli),
        _ => i64::from(job.count) * i64::from(job.nodes) * 1_000,
    }
}

pub fn booking_id(n: usize) -> BookingId {
    BookingId(Uuid::from_u128(1_000 + n as u128))
}
