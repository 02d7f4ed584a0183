//! The record of an attempt's end, which must be made whatever has become of the disk.

use std::io;
use std::time::Duration;

use nix::errno::Errno;

use super::records::Recorder;
use super::{Exit, boottime_ms};

/// Between two tries to write it down, and how many.
const TRIES: (Duration, u32) = (Duration::from_millis(500), 60);

/// Writes it down. Nothing tells when a disk can be written again, so it is tried for half a minute.
pub fn record(recorder: &Recorder, exit: &Exit) -> io::Result<()> {
    for _ in 1..TRIES.1 {
        if recorder.exit(exit).is_ok() {
            return Ok(());
        }
        std::thread::sleep(TRIES.0);
    }
    recorder.exit(exit)
}

/// Whether the host's disk is why something could not be done.
fn is_disk(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem)
        || error.raw_os_error() == Some(Errno::EIO as i32)
}

/// The end of a command that could not be started.
pub fn not_started(error: &io::Error) -> Exit {
    let failure = is_disk(error)
        .then(|| ("worker.io".to_owned(), format!("The worker cannot write the job's files: {error}.")));
    Exit {
        // As a shell tells them apart.
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
