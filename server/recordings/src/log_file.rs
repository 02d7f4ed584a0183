//! The log of a rank as two files: its bytes, and beside them the times of its bytes.
//!
//! An entry of the second file has 16 bytes: an offset in the log and microseconds since 1970-01-01T00:00:00Z, both in
//! little endian. Both ascend. The time of an entry holds up to the offset of the next entry. The distance between two
//! entries grows with their number, so a slow and endless log has few of them too. A log from an earlier portal has no
//! times.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use berth_types::time::Timestamp;

use super::open_write;

/// The bytes of an entry.
const ENTRY: u64 = 16;
/// The number of entries at each distance.
const PER_DISTANCE: u64 = 1 << 16;
/// The maximum number of entries of a log.
const MAX_ENTRIES: u64 = 1 << 20;

/// The time of the bytes from an offset on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogTime {
    /// In bytes from the start of the log.
    pub offset: u64,
    pub at: Timestamp,
}

/// The path of the times of a log.
fn times_path(log: &Path) -> PathBuf {
    log.with_extension("times")
}

/// The least milliseconds between an entry and the next one, by the number of entries.
const fn distance_ms(count: u64) -> i64 {
    match count / PER_DISTANCE {
        0 => 100,
        1 => 1_000,
        _ => 10_000,
    }
}

fn parse(entry: &[u8]) -> Option<LogTime> {
    let offset = u64::from_le_bytes(*entry.first_chunk()?);
    let at = Timestamp::from_micros(i64::from_le_bytes(*entry.last_chunk()?));
    Some(LogTime { offset, at })
}

/// The entries of a file.
struct Entries {
    file: File,
    count: u64,
}

impl Entries {
    /// Opens the times of a log. `None`: the log has no times.
    fn open(path: &Path) -> io::Result<Option<Self>> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let count = file.metadata()?.len() / ENTRY;
        Ok(Some(Self { file, count }))
    }

    /// Reads at most `limit` entries from the one with the number `first` on.
    fn read(&self, first: u64, limit: usize) -> io::Result<Vec<LogTime>> {
        let count = usize::try_from(self.count.saturating_sub(first)).unwrap_or(limit).min(limit);
        let mut bytes = vec![0; count * ENTRY as usize];
        let read = self.file.read_at(&mut bytes, first * ENTRY)?;
        bytes.truncate(read);
        Ok(bytes.chunks_exact(ENTRY as usize).filter_map(parse).collect())
    }

    /// The number of entries with an offset below `limit`.
    fn count_below(&self, limit: u64) -> io::Result<u64> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.read(middle, 1)?.first() {
                Some(entry) if entry.offset < limit => low = middle + 1,
                _ => high = middle,
            }
        }
        Ok(low)
    }
}

/// Reads the times of the bytes of a log from `from` to `to`, at most `limit` of them. The first one is at `from`,
/// unless the bytes there have no time.
pub fn read_times(log: &Path, from: u64, to: u64, limit: usize) -> io::Result<Vec<LogTime>> {
    if from >= to {
        return Ok(Vec::new());
    }
    let Some(entries) = Entries::open(&times_path(log))? else { return Ok(Vec::new()) };
    let first = entries.count_below(from.saturating_add(1))?.saturating_sub(1);
    let mut times = entries.read(first, limit)?;
    times.retain(|time| time.offset < to);
    times.iter_mut().for_each(|time| time.offset = time.offset.max(from));
    Ok(times)
}

/// A log that is open for appending.
#[derive(Debug)]
pub struct LogFile {
    file: File,
    length: u64,
    times: PathBuf,
    /// The number of entries.
    count: u64,
    last: Option<LogTime>,
}

impl LogFile {
    /// Opens a log, and creates its file and directory.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = open_write(path)?;
        let length = file.metadata()?.len();
        let mut log = Self { file, length, times: times_path(path), count: 0, last: None };
        if let Some(entries) = Entries::open(&log.times)? {
            log.count = entries.count_below(length)?;
            if let Some(last) = log.count.checked_sub(1) {
                log.last = entries.read(last, 1)?.first().copied();
            }
            // A portal that died between the two writes leaves an entry without bytes.
            let bytes = log.count * ENTRY;
            if std::fs::metadata(&log.times)?.len() != bytes {
                open_write(&log.times)?.set_len(bytes)?;
            }
        }
        Ok(log)
    }

    /// The length of the log in bytes.
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Appends bytes of the time `at`. A time before the last one counts as the last one.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn append(&mut self, bytes: &[u8], at: Timestamp) -> io::Result<()> {
        // The time comes first, so that a reader of the bytes finds it.
        self.append_time(at)?;
        // A write at an offset is safe to repeat, because the bytes at an offset never change.
        self.file.write_all_at(bytes, self.length)?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    fn append_time(&mut self, at: Timestamp) -> io::Result<()> {
        let is_near = |last: LogTime| at.millis_since(last.at) < distance_ms(self.count);
        if self.count >= MAX_ENTRIES || self.last.is_some_and(is_near) {
            return Ok(());
        }
        let entry = [self.length.to_le_bytes(), at.micros().to_le_bytes()].concat();
        // A file that stays open would double the descriptors of the portal.
        open_write(&self.times)?.write_all_at(&entry, self.count * ENTRY)?;
        self.count += 1;
        self.last = Some(LogTime { offset: self.length, at });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START_MS: i64 = 1_795_000_000_000;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_micros((START_MS + ms) * 1_000)
    }

    /// Creates a log of parts with their milliseconds.
    fn log(path: &Path, parts: &[(&str, i64)]) -> LogFile {
        let mut log = LogFile::open(path).unwrap();
        for (text, ms) in parts {
            log.append(text.as_bytes(), at(*ms)).unwrap();
        }
        log
    }

    /// The offsets and milliseconds of the bytes from `from` to `to`.
    fn times(path: &Path, from: u64, to: u64, limit: usize) -> Vec<(u64, i64)> {
        let times = read_times(path, from, to, limit).unwrap();
        times.into_iter().map(|time| (time.offset, time.at.millis() - START_MS)).collect()
    }

    #[test]
    fn each_byte_has_the_time_of_the_last_entry_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs/1-0.log");
        assert!(times(&path, 0, 9, 9).is_empty());
        // The second and the fourth part are less than 100 ms later, and the fifth is earlier.
        log(&path, &[("ab", 0), ("c", 99), ("de", 100), ("f", 150), ("g", 20), ("hi", 5_000)]);
        assert_eq!(std::fs::read(&path).unwrap(), b"abcdefghi");
        for (from, to, expected) in [
            (0, 9, vec![(0, 0), (3, 100), (7, 5_000)]),
            (0, 3, vec![(0, 0)]),
            (0, 4, vec![(0, 0), (3, 100)]),
            (1, 7, vec![(1, 0), (3, 100)]),
            (3, 7, vec![(3, 100)]),
            (6, 8, vec![(6, 100), (7, 5_000)]),
            (8, 9, vec![(8, 5_000)]),
            (9, 9, vec![]),
        ] {
            assert_eq!(times(&path, from, to, 9), expected, "{from} to {to}");
        }
        assert_eq!(times(&path, 0, 9, 2), [(0, 0), (3, 100)]);
        assert_eq!(times(&path, 4, 9, 1), [(4, 100)]);
    }

    #[test]
    fn a_log_continues_after_a_restart_and_an_entry_without_bytes_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1-0.log");
        drop(log(&path, &[("ab", 0), ("cd", 500)]));
        let again = log(&path, &[("e", 550), ("f", 700)]);
        assert_eq!(again.length(), 6);
        assert_eq!(times(&path, 0, 6, 9), [(0, 0), (2, 500), (5, 700)]);
        // The portal died after the write of the entry, and in the middle of the next one.
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(5).unwrap();
        let entries = times_path(&path);
        File::options().write(true).open(&entries).unwrap().set_len(3 * ENTRY + 7).unwrap();
        let mut again = LogFile::open(&path).unwrap();
        assert_eq!(std::fs::metadata(&entries).unwrap().len(), 2 * ENTRY);
        again.append(b"xyz", at(900)).unwrap();
        assert_eq!(times(&path, 0, 8, 9), [(0, 0), (2, 500), (5, 900)]);
    }

    /// The bytes of entries in any order, and a part of an entry.
    fn entries() -> impl Strategy<Value = Vec<u8>> {
        let offset = prop_oneof![3 => 0u64..14, 1 => any::<u64>()];
        let entry = (offset, any::<i64>())
            .prop_map(|(offset, micros)| [offset.to_le_bytes(), micros.to_le_bytes()].concat());
        let torn = prop::collection::vec(any::<u8>(), 0..16);
        (prop::collection::vec(entry, 0..12), torn)
            .prop_map(|(entries, torn)| [entries.concat(), torn].concat())
    }

    proptest! {
        #[test]
        fn damaged_times_are_few_and_inside_and_the_log_continues(
            bytes in entries(),
            from in prop_oneof![0u64..12, any::<u64>()],
            to in prop_oneof![0u64..12, any::<u64>()],
            limit in 0usize..8,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("1-0.log");
            std::fs::write(&path, b"0123456789").unwrap();
            std::fs::write(times_path(&path), &bytes).unwrap();
            let found = read_times(&path, from, to, limit).unwrap();
            prop_assert!(found.len() <= limit, "{found:?}");
            prop_assert!(found.iter().all(|time| (from..to).contains(&time.offset)), "{found:?}");
            let mut log = LogFile::open(&path).unwrap();
            log.append(b"x", at(0)).unwrap();
            prop_assert_eq!(log.length(), 11);
            prop_assert_eq!(std::fs::read(&path).unwrap(), b"0123456789x");
        }
    }

    #[test]
    fn bytes_of_an_earlier_portal_have_no_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1-0.log");
        std::fs::write(&path, b"old").unwrap();
        assert!(times(&path, 0, 3, 9).is_empty());
        log(&path, &[("new", 0)]);
        assert_eq!(times(&path, 0, 6, 9), [(3, 0)]);
        assert_eq!(times(&path, 4, 6, 9), [(4, 0)]);
    }

    #[test]
    fn the_distance_of_entries_grows_with_their_number() {
        for (count, ms) in [
            (0, 100),
            (PER_DISTANCE - 1, 100),
            (PER_DISTANCE, 1_000),
            (2 * PER_DISTANCE - 1, 1_000),
            (2 * PER_DISTANCE, 10_000),
            (u64::MAX, 10_000),
        ] {
            assert_eq!(distance_ms(count), ms, "{count}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1-0.log");
        let mut log = log(&path, &[("a", 0)]);
        log.count = MAX_ENTRIES;
        log.append(b"b", at(60_000)).unwrap();
        assert_eq!((log.length(), log.count), (2, MAX_ENTRIES));
    }
}
