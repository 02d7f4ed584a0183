//! One hand-over.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use berth_shim::model::AttemptKey;

use super::plan::OutputPlan;
use crate::transfer::{tree, unreadable};

/// The hand-over of one attempt's outputs.
#[derive(Debug, Clone)]
pub struct OutputTask {
    pub key: AttemptKey,
    /// The attempt's directory, with that of the job in it.
    pub dir: PathBuf,
    pub plan: OutputPlan,
    /// Only files of this user belong to the job.
    pub uid: Option<u32>,
    /// No process of the attempt runs any more.
    pub over: bool,
    /// The largest checkpoint.
    pub most_bytes: u64,
}

impl OutputTask {
    /// Opens the job's directory. `None`: all outputs were handed over, and it was removed.
    pub(super) fn open_work(&self) -> Result<Option<OwnedFd>, String> {
        match tree::open_root(&self.dir.join("work")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other.map(Some).map_err(|e| unreadable(&e)),
        }
    }
}
