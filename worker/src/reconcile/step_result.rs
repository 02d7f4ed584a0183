//! The results of steps that run beside the loop.

use std::io;

use berth_gpu::board_tasks::TaskEnd;
use berth_gpu::kernel_log::LogRead;
use berth_gpu::{BoardCondition, BoardEvent};
use berth_proto::{Assignment, Diagnosis};
use berth_shim::model::AttemptKey;
use tokio::sync::mpsc;

use super::hello::{ListedBoards, OwnSlices};
use crate::attempt::Attempt;
use crate::telemetry::HostSample;

/// Sends results to the loop. The receiver lives as long as the process, so errors are ignored.
pub(super) type ResultSender = mpsc::UnboundedSender<StepResult>;

pub(super) enum StepResult {
    /// The record of a new attempt was saved or not.
    Recorded(AttemptKey, Result<(), (Box<Assignment>, String)>),
    Prepared(Box<Attempt>),
    /// The progress of a preparation, as a sentence.
    Progress(AttemptKey, String),
    ShimGone(AttemptKey),
    /// The readiness of a replica changed.
    Readiness(AttemptKey, bool),
    Cleaned(AttemptKey, Result<(), String>),
    Sampled(HostSample),
    BoardsListed(BoardListing),
    Board(BoardResult),
    /// The checks of the host.
    Examined(Diagnosis),
    /// A hand-over ended; `true`: it was the last one of an ended attempt.
    OutputsHandedOver(AttemptKey, bool, Result<(), String>),
    /// The files of the job are removed.
    FilesRemoved(AttemptKey),
    /// The directory of the attempt is removed, or cannot be.
    Forgotten(AttemptKey, io::Result<()>),
}

/// A list of the boards for the hello of a connection.
pub(super) struct BoardListing {
    pub connection: i64,
    pub listed: ListedBoards,
    /// The slices of this worker before the listing.
    pub ours: OwnSlices,
}

pub(super) enum BoardResult {
    Event(BoardEvent),
    /// The conditions of all boards, and the new XIDs of the kernel's log. `None`: the log cannot be read.
    Conditions(Vec<(String, BoardCondition)>, Option<LogRead>),
    TasksDone(Vec<TaskEnd>),
}
