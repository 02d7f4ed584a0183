//! The operator's limits of a job. They grow with its boards.

use std::path::Path;

use super::launch::Limits;
use super::resource_limits::LimitCeilings;

/// The kernel's limit of processes and threads.
const MOST_PIDS: u64 = 4_194_304;

/// The limits of a job for each of its boards on a host. A job without a board counts as one with a board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BoardLimits {
    /// Processes and threads together.
    pub pids: u64,
    /// Open files of each process.
    pub open_files: u64,
    /// The job's directory with its volumes.
    pub disk_mib: u64,
    pub ceilings: LimitCeilings,
}

/// The limits of one attempt on a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptLimits {
    pub pids: u64,
    pub open_files: u64,
    pub disk_mib: u64,
    /// Locked memory is unlimited.
    pub locked_memory: bool,
}

impl AttemptLimits {
    /// The same limits for the shim, with the job's directory.
    pub fn for_shim(&self, work: &Path) -> Limits {
        Limits {
            pids: self.pids,
            open_files: self.open_files,
            locked_memory: self.locked_memory,
            disk: Some((work.to_owned(), self.disk_mib)),
            ..Limits::default()
        }
    }
}

impl BoardLimits {
    /// The limits of an attempt on this many boards. `whole`: it has each of them alone.
    pub fn scale(&self, boards: usize, whole: bool) -> AttemptLimits {
        let count = u64::try_from(boards).unwrap_or(u64::MAX).max(1);
        AttemptLimits {
            pids: self.pids.saturating_mul(count).min(MOST_PIDS),
            open_files: self.open_files.saturating_mul(count).min(self.ceilings.open_files),
            disk_mib: self.disk_mib.saturating_mul(count),
            // Slices and shares leave most of the host to other jobs.
            locked_memory: self.ceilings.locked_memory && whole && boards > 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: BoardLimits = BoardLimits {
        pids: 4_096,
        open_files: 65_536,
        disk_mib: 20_480,
        ceilings: LimitCeilings { open_files: 1 << 20, locked_memory: true },
    };

    #[test]
    fn limits_grow_with_the_boards() {
        let one = LIMITS.scale(1, true);
        let expected =
            AttemptLimits { pids: 4_096, open_files: 65_536, disk_mib: 20_480, locked_memory: true };
        assert_eq!(one, expected);
        let eight = AttemptLimits { pids: 32_768, open_files: 524_288, disk_mib: 163_840, ..expected };
        assert_eq!(LIMITS.scale(8, true), eight);
        let slice = AttemptLimits { locked_memory: false, ..expected };
        assert_eq!((LIMITS.scale(1, false), LIMITS.scale(0, true)), (slice, slice));
    }

    #[test]
    fn no_limit_exceeds_the_hosts() {
        let ceilings = LimitCeilings { open_files: 4_096, locked_memory: false };
        let most = BoardLimits { pids: u64::MAX, open_files: u64::MAX, disk_mib: u64::MAX, ceilings };
        let attempt = most.scale(8, true);
        assert_eq!((attempt.pids, attempt.open_files), (MOST_PIDS, 4_096));
        assert_eq!((attempt.disk_mib, attempt.locked_memory), (u64::MAX, false));
    }
}
