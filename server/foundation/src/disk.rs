//! The free space of the data directory. Below a mark the portal refuses uploads, and below half of it also
//! submissions and files of workers. Ends of jobs, charges and logs are recorded until the disk is full.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use berth_types::overview::{DiskSpace, DiskState};
use berth_types::problems::Problem;

/// The shortest time between two reads of the free space.
const READ_EVERY: Duration = Duration::from_secs(1);
/// Seconds before the next attempt of a refused request.
const RETRY_AFTER_S: u64 = 60;

/// Returns the bytes of a file system that are free for this user.
///
/// # Errors
/// The file system of `path` cannot be read.
pub fn free_bytes(path: &Path) -> std::io::Result<u64> {
    let found = nix::sys::statvfs::statvfs(path).map_err(std::io::Error::from)?;
    let (blocks, size) = (u128::from(found.blocks_available()), u128::from(found.fragment_size()));
    Ok(u64::try_from(blocks * size).unwrap_or(u64::MAX))
}

/// The state of `free_bytes` against the mark.
fn state(free_bytes: u64, min_free_bytes: u64) -> DiskState {
    if free_bytes >= min_free_bytes {
        DiskState::Enough
    } else if free_bytes >= min_free_bytes / 2 {
        DiskState::NoUploads
    } else {
        DiskState::NoSubmissions
    }
}

/// The last read: its time and its bytes, `None` after a failure.
type LastRead = (Instant, Option<u64>);

/// The free space of one directory, read at most once a second.
#[derive(Debug)]
pub struct Disk {
    dir: PathBuf,
    /// 0: no mark.
    min_free_bytes: u64,
    last: Mutex<Option<LastRead>>,
}

impl Disk {
    pub fn new(dir: &Path, min_free_bytes: u64) -> Self {
        Self { dir: dir.to_owned(), min_free_bytes, last: Mutex::default() }
    }

    /// The free bytes; `None` if they cannot be read.
    fn free(&self) -> Option<u64> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, bytes)) = last.as_ref().filter(|(at, _)| at.elapsed() < READ_EVERY) {
            return *bytes;
        }
        let read = free_bytes(&self.dir);
        if let Err(error) = &read {
            tracing::warn!(%error, dir = %self.dir.display(), "the free space cannot be read");
        }
        let bytes = read.ok();
        *last = Some((Instant::now(), bytes));
        bytes
    }

    /// The free space and the mark; `None` if the space cannot be read.
    pub fn space(&self) -> Option<DiskSpace> {
        let free_bytes = self.free()?;
        let min_free_bytes = self.min_free_bytes;
        Some(DiskSpace { free_bytes, min_free_bytes, state: state(free_bytes, min_free_bytes) })
    }

    fn state(&self) -> DiskState {
        match self.min_free_bytes {
            0 => DiskState::Enough,
            _ => self.space().map_or(DiskState::Enough, |space| space.state),
        }
    }

    /// Refuses uploads below the mark.
    ///
    /// # Errors
    /// 503 with the time of the next attempt.
    pub fn check_upload(&self) -> Result<(), Problem> {
        let detail = "The disk of the portal is almost full, so it takes no uploads now. Nothing was changed or charged, and running jobs continue. Try again later, or tell the operator.";
        match self.state() {
            DiskState::Enough => Ok(()),
            DiskState::NoUploads | DiskState::NoSubmissions => {
                Err(Problem::unavailable(detail, RETRY_AFTER_S))
            }
        }
    }

    /// Refuses submissions of jobs below half of the mark.
    ///
    /// # Errors
    /// 503 with the time of the next attempt.
    pub fn check_submission(&self) -> Result<(), Problem> {
        let detail = "The disk of the portal is almost full, so it takes no new jobs now. Nothing was submitted or charged, and running jobs continue. Try again later, or tell the operator.";
        match self.state() {
            DiskState::Enough | DiskState::NoUploads => Ok(()),
            DiskState::NoSubmissions => Err(Problem::unavailable(detail, RETRY_AFTER_S)),
        }
    }

    /// Refuses files of workers below half of the mark. A worker keeps such a file and sends it again.
    ///
    /// # Errors
    /// 503 with the time of the next attempt.
    pub fn check_hand_over(&self) -> Result<(), Problem> {
        let detail = "The disk of the portal is almost full. The worker keeps the file.";
        match self.state() {
            DiskState::Enough | DiskState::NoUploads => Ok(()),
            DiskState::NoSubmissions => Err(Problem::unavailable(detail, RETRY_AFTER_S)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uploads_are_refused_before_submissions() {
        use DiskState::{Enough, NoSubmissions, NoUploads};
        let states: Vec<DiskState> = [10, 9, 5, 4, 0].into_iter().map(|free| state(free, 10)).collect();
        assert_eq!(states, [Enough, NoUploads, NoUploads, NoSubmissions, NoSubmissions]);
        assert_eq!(state(0, 0), Enough, "0 is no mark");
    }

    #[test]
    fn a_mark_beyond_the_disk_refuses_and_no_mark_refuses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let full = Disk::new(dir.path(), u64::MAX);
        assert_eq!(full.space().unwrap().state, DiskState::NoSubmissions);
        for refused in [full.check_upload(), full.check_submission(), full.check_hand_over()] {
            let problem = refused.unwrap_err();
            assert_eq!((problem.status, problem.retry_after_s), (503, Some(RETRY_AFTER_S)));
        }
        let off = Disk::new(dir.path(), 0);
        assert!(off.check_upload().is_ok() && off.check_submission().is_ok());
        assert!(free_bytes(&dir.path().join("absent")).is_err());
        // A directory that cannot be read refuses nothing.
        assert!(Disk::new(&dir.path().join("absent"), u64::MAX).check_upload().is_ok());
    }
}
