//! The record of a command's end, also on a disk with errors.

use std::io;
use std::time::Duration;

use berth_system::clock::boottime_ms;
use nix::errno::Errno;

use super::records::{CommandExit, Recorder};
use crate::model::job_failure;

/// The time between two tries to write the record, and the number of tries.
const TRIES: (Duration, u32) = (Duration::from_millis(500), 60);

/// Writes the record. A disk has no event for its recovery, so the tries go on for half a minute.
pub fn record(recorder: &Recorder, exit: &CommandExit) -> io::Result<()> {
    for _ in 1..TRIES.1 {
        if recorder.record_exit(exit).is_ok() {
            return Ok(());
        }
        std::thread::sleep(TRIES.0);
    }
    recorder.record_exit(exit)
}

/// True if the host's disk caused an error.
fn is_disk_error(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem)
        || error.raw_os_error() == Some(Errno::EIO as i32)
}

/// The end of a command that did not start.
pub fn not_started(error: &io::Error) -> CommandExit {
    let detail = || format!("The worker cannot write the files of the job: {error}.");
    let failure = is_disk_error(error).then(|| job_failure("worker.io", detail()));
    CommandExit {
        // The codes of a shell.
        code: if error.kind() == io::ErrorKind::PermissionDenied { 126 } else { 127 },
        timed_out: false,
        metered_ms: 0,
        log_bytes: 0,
        log_full: false,
        boottime_ms: Some(boottime_ms()),
        failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_disk_is_the_workers_fault() {
        for (errno, failed) in [
            (Errno::ENOSPC, true),
            (Errno::EDQUOT, true),
            (Errno::EROFS, true),
            (Errno::EIO, true),
            (Errno::ENOENT, false),
            (Errno::EAGAIN, false),
        ] {
            let exit = not_started(&io::Error::from(errno));
            assert_eq!(exit.failure.is_some_and(|(code, _)| code == "worker.io"), failed, "{errno}");
            assert_eq!(exit.code, 127);
        }
        assert_eq!(not_started(&io::Error::from(Errno::EACCES)).code, 126);
    }
}
