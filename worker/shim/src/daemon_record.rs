//! The part of the daemon's record of an attempt that a shim and an entered process read.

use std::path::Path;

use berth_system::files::find_json;
use serde::Deserialize;

use crate::model::{JobFailure, job_failure};

/// The daemon's record, in the attempt's directory.
pub const ATTEMPT_RECORD: &str = "attempt.json";

#[derive(Deserialize)]
struct DaemonRecord {
    failure: Option<JobFailure>,
    stop_asked: bool,
    uid: Option<u32>,
}

fn find(dir: &Path) -> Option<DaemonRecord> {
    find_json(&dir.join(ATTEMPT_RECORD))
}

/// True if the daemon has recorded a failure of this attempt, so nothing may start any more.
pub fn is_given_up(dir: &Path) -> bool {
    find(dir).is_some_and(|record| record.failure.is_some())
}

/// The failure of an attempt that got a stop signal from another sender than the daemon, which records its stops
/// first: the init of a host sends one to every process at a shutdown.
pub fn host_shutdown_failure(dir: &Path) -> Option<JobFailure> {
    let by_daemon = find(dir).is_none_or(|record| record.stop_asked);
    let detail = "The host was shut down, or a user of the host stopped the job.";
    (!by_daemon).then(|| job_failure("node.shutdown", detail))
}

/// The user of the attempt's processes. `None`: the worker's own user.
pub fn job_user(dir: &Path) -> Option<u32> {
    find(dir).and_then(|record| record.uid)
}
