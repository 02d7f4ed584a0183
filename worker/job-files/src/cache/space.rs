//! The free space of the file system of the cache.

use std::path::Path;

use nix::sys::statvfs::statvfs;

const GIB: u64 = 1 << 30;
/// The part of the file system that the cache takes by default, and its limit.
const DEFAULT_PART: u64 = 10;
const DEFAULT_MOST_BYTES: u64 = 100 * GIB;
/// The part of the file system that the cache leaves free, and its limit.
const FREE_PART: u64 = 20;
const FREE_MOST_BYTES: u64 = 20 * GIB;

/// The space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DiskSpace {
    pub total_bytes: u64,
    pub free_bytes: u64,
}

impl DiskSpace {
    /// `None`: it cannot be read.
    pub fn read(path: &Path) -> Option<Self> {
        let disk = statvfs(path).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(disk.fragment_size());
        Some(Self { total_bytes: bytes(disk.blocks()), free_bytes: bytes(disk.blocks_available()) })
    }

    /// The bytes to free, so that after another file of `bytes` the free-space mark is kept. `mark` is the operator's.
    pub fn missing_bytes(self, bytes: u64, mark: Option<u64>) -> u64 {
        let mark = mark.unwrap_or((self.total_bytes / FREE_PART).min(FREE_MOST_BYTES));
        bytes.saturating_add(mark).saturating_sub(self.free_bytes)
    }
}

/// The limit of a cache without a setting: a tenth of the file system of `path`, at most 100 GiB.
pub fn default_bytes(path: &Path) -> u64 {
    DiskSpace::read(path).map_or(0, |space| (space.total_bytes / DEFAULT_PART).min(DEFAULT_MOST_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_disk_stays_free() {
        let space = |total_gib: u64, free_gib: u64| DiskSpace {
            total_bytes: total_gib * GIB,
            free_bytes: free_gib * GIB,
        };
        assert_eq!(space(100, 10).missing_bytes(5 * GIB, None), 0);
        assert_eq!(space(100, 10).missing_bytes(6 * GIB, None), GIB);
        assert_eq!(space(10_000, 20).missing_bytes(0, None), 0);
        assert_eq!(space(10_000, 19).missing_bytes(0, None), GIB);
        assert_eq!(space(100, 1).missing_bytes(GIB, Some(0)), 0);
        assert_eq!(space(100, 1).missing_bytes(GIB, Some(2 * GIB)), 2 * GIB);
        assert!(DiskSpace::read(Path::new("/")).unwrap().total_bytes > 0);
        assert_eq!(default_bytes(Path::new("/not/there")), 0);
    }
}
