//! The reports of workers about attempts, as domain values.
//!
//! The session of a worker parses its messages into these types. The parse bounds all values and texts.

pub use berth_gangs::links::{LinkFigures, ReportedLink};
use berth_types::evidence::MemoryClearing;
use berth_types::ids::JobId;
use berth_types::jobs::Failure;

/// The phase of an attempt on its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptPhase {
    /// This portal does not know the phase. The report moves neither the job nor its meter.
    Unknown,
    /// The worker prepares devices and directory.
    Preparing,
    /// The process runs.
    Running,
    /// The process has ended or was never started.
    Ended,
    /// The check of the devices after the end is over; [`AttemptReport::unclean`] has a bad result.
    Clean,
}

impl AttemptPhase {
    pub const fn has_ended(self) -> bool {
        matches!(self, Self::Ended | Self::Clean)
    }
}

/// A loss of a device, by the age of the process. The end is after the begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceLoss {
    pub from_ms: i64,
    pub until_ms: i64,
}

/// The evidence of one rank in cumulative milliseconds, none of them negative.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportedEvidence {
    /// With the first process of the rank alive.
    pub process_ms: i64,
    /// With an answer from all devices of the rank.
    pub device_ms: i64,
    /// Without an answer from a queried device of the rank.
    pub lost_ms: i64,
    /// With a compute process on a device of the rank; absent without such data from the driver.
    pub busy_ms: Option<i64>,
    /// The times of the losses, limited in number.
    pub losses: Vec<DeviceLoss>,
    /// The clearing of the memory of the devices of the rank before the start.
    pub memory_clearing: Option<MemoryClearing>,
}

/// A report about the rank of an attempt on the reporting node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptReport {
    pub job: JobId,
    /// The number of the attempt.
    pub attempt: u32,
    pub phase: AttemptPhase,
    /// The meter in milliseconds, not negative.
    pub metered_ms: i64,
    /// The UUIDs of the slices, in the order of the assigned devices; empty without slices.
    pub mig_uuids: Vec<String>,
    pub exit_code: Option<i32>,
    /// The worker stopped the process at its time limit.
    pub timed_out: bool,
    pub failure: Option<Failure>,
    /// The final length of the log in bytes.
    pub log_bytes: Option<u64>,
    /// The reason for devices without a proof that they are clean.
    pub unclean: Option<String>,
    pub evidence: Option<ReportedEvidence>,
    /// The worker has files for the portal.
    pub saving: bool,
    /// The progress of the preparation, as a sentence.
    pub progress: Option<String>,
    /// The SHA-256 digest of the image.
    pub image_digest: Option<String>,
    /// The worker has started the process, or has tried to.
    pub began: bool,
    /// The links to other ranks before the start, limited in number.
    pub links: Vec<ReportedLink>,
    /// The replica of a service answers at its readiness path.
    pub ready: bool,
}

impl AttemptReport {
    /// A report of a phase without further values.
    pub const fn new(job: JobId, attempt: u32, phase: AttemptPhase) -> Self {
        Self {
            job,
            attempt,
            phase,
            metered_ms: 0,
            mig_uuids: Vec::new(),
            exit_code: None,
            timed_out: false,
            failure: None,
            log_bytes: None,
            unclean: None,
            evidence: None,
            saving: false,
            progress: None,
            image_digest: None,
            began: false,
            links: Vec::new(),
            ready: false,
        }
    }
}
