//! Logs and readings of jobs, as files in the data directory.
//!
//! A log file has the bytes of the log, so an offset in the log is an offset in the file. A second file has the times of
//! these bytes (`log_file`). The readings of an
//! attempt are a file of frames (`codec`). Each frame is appended at once, so no reading waits in memory.
//! From time to time the file is compacted: old readings are averaged over longer steps (`tiers`). All calls
//! block, so do not call them on async threads.

mod codec;
mod files;
mod log_file;
mod series;
mod tiers;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use berth_types::ids::JobId;
use berth_types::metrics::{Sample, Series};
use berth_types::time::Timestamp;

use codec::{Block, Row};
use files::RecordingFiles;
pub use log_file::{LogFile, LogTime};
pub use tiers::{Retention, is_timely};

/// The maximum number of times in one part of a log.
pub const MAX_TIMES: usize = 4_096;

/// A part of a log with the times of its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPart {
    pub bytes: Vec<u8>,
    /// At most [`MAX_TIMES`], in ascending order. The first one is at the first byte, unless that byte has no time.
    pub times: Vec<LogTime>,
    /// True if the log may have more bytes now.
    pub more: bool,
}

/// The logs and readings below one directory.
#[derive(Debug, Clone)]
pub struct Recordings {
    root: PathBuf,
    retention: Retention,
    files: Arc<RecordingFiles>,
}

/// A reading with the total memory of its device.
#[derive(Debug, Clone, Copy)]
pub struct Recorded {
    pub sample: Sample,
    pub memory_total_mib: f64,
}

impl Recorded {
    fn block(&self) -> Block {
        let s = &self.sample;
        let values = [s.utilization_percent, s.memory_used_mib, s.power_watts, s.temperature_celsius];
        let row = Row { at_s: s.at.micros().div_euclid(1_000_000), values };
        let (rank, device, memory_total_mib) = (s.rank, s.device, self.memory_total_mib);
        Block { rank, device, step_s: 1, memory_total_mib, rows: vec![row] }
    }
}

impl Recordings {
    pub fn new(root: &Path) -> Self {
        Self::with_retention(root, Retention::default())
    }

    pub fn with_retention(root: &Path, retention: Retention) -> Self {
        Self { root: root.to_owned(), retention, files: Arc::default() }
    }

    /// The directory of a job's logs.
    fn logs(&self, job: JobId) -> PathBuf {
        self.root.join("logs").join(job.to_string())
    }

    /// The path of a log.
    pub fn log(&self, job: JobId, attempt: u32, rank: u32) -> PathBuf {
        self.logs(job).join(format!("{attempt}-{rank}.log"))
    }

    /// The bytes of all logs of a job; 0 without a log.
    pub fn log_bytes(&self, job: JobId) -> io::Result<u64> {
        files::total_bytes(&self.logs(job))
    }

    /// Removes the logs and readings of an ended job. A repeated call changes nothing.
    pub fn remove_job(&self, job: JobId) -> io::Result<()> {
        files::remove_dir(&self.logs(job))?;
        self.files.remove(&self.root, job)
    }

    /// The length of a log in bytes; 0 without a file.
    pub fn log_length(&self, job: JobId, attempt: u32, rank: u32) -> u64 {
        std::fs::metadata(self.log(job, attempt, rank)).map_or(0, |m| m.len())
    }

    /// Reads at most `limit` bytes of a log from `offset`. A log without a file is empty.
    pub fn read_log(
        &self,
        job: JobId,
        attempt: u32,
        rank: u32,
        offset: u64,
        limit: usize,
    ) -> io::Result<Vec<u8>> {
        let file = match File::open(self.log(job, attempt, rank)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut buffer = vec![0; limit];
        let read = file.read_at(&mut buffer, offset)?;
        buffer.truncate(read);
        Ok(buffer)
    }

    /// Reads at most `limit` bytes of a log from `offset`, with their times. A part with many times is shorter.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn read_log_part(
        &self,
        job: JobId,
        attempt: u32,
        rank: u32,
        offset: u64,
        limit: usize,
    ) -> io::Result<LogPart> {
        let mut bytes = self.read_log(job, attempt, rank, offset, limit)?;
        let mut more = bytes.len() == limit;
        // After the bytes, because their time is written first.
        let end = offset.saturating_add(bytes.len() as u64);
        // Without readable times a log still has its bytes.
        let mut times = log_file::read_times(&self.log(job, attempt, rank), offset, end, MAX_TIMES + 1)
            .unwrap_or_default();
        if times.len() > MAX_TIMES
            && let Some(next) = times.pop()
            // An empty part would be the end of the log.
            && let Some(length) = next.offset.checked_sub(offset).filter(|length| *length > 0)
        {
            bytes.truncate(usize::try_from(length).unwrap_or(limit));
            more = true;
        }
        Ok(LogPart { bytes, times, more })
    }

    /// Appends readings to the file of an attempt.
    pub fn append_readings(&self, job: JobId, attempt: u32, rows: &[Recorded]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(rows.len() * 48);
        rows.iter().for_each(|row| codec::encode(&mut bytes, &row.block()));
        let first_s = rows.iter().map(|row| row.sample.at.micros().div_euclid(1_000_000)).min();
        let Some(first_s) = first_s else { return Ok(()) };
        self.files.append(&self.root, (job, attempt), &bytes, self.retention.first_due_s(first_s))
    }

    /// The readings from `from` to `to`, averaged over steps of `step_s` seconds (0: a step that fits the
    /// time span), and the step of the result. Readings that are kept at a longer step come at that step.
    pub fn series(
        &self,
        job: JobId,
        attempt: u32,
        from: Option<Timestamp>,
        to: Option<Timestamp>,
        step_s: u64,
    ) -> io::Result<(u64, Vec<Series>)> {
        let bytes = match std::fs::read(files::readings(&self.root, (job, attempt))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            other => other?,
        };
        let seconds = |t: Timestamp| t.micros() as f64 / 1e6;
        Ok(series::collect(codec::decode(&bytes), from.map(seconds), to.map(seconds), step_s))
    }

    /// Compacts the files of readings that are due: averages old readings over longer steps, and removes
    /// those beyond their retention. Call it about once a minute.
    pub fn compact(&self, now: Timestamp) -> io::Result<()> {
        self.files.compact(&self.root, self.retention, now.micros().div_euclid(1_000_000))
    }
}

/// Opens a file for writing at any offset, and creates its directory.
fn open_write(path: &Path) -> io::Result<File> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    File::options().write(true).create(true).truncate(false).open(path)
}

/// Opens a file for appending, and creates its directory.
pub fn open_append(path: &Path) -> io::Result<File> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    File::options().append(true).create(true).open(path)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn recorded(second: i64, device: u32, utilization: Option<f64>) -> Recorded {
        let sample = Sample {
            at: Timestamp::from_micros(second * 1_000_000),
            rank: 0,
            device,
            utilization_percent: utilization,
            memory_used_mib: Some(second as f64),
            power_watts: None,
            temperature_celsius: None,
        };
        Recorded { sample, memory_total_mib: 100.0 }
    }

    #[test]
    fn readings_come_back_averaged_and_absent_stays_absent() {
        let dir = tempfile::tempdir().unwrap();
        let r = Recordings::new(dir.path());
        let job = JobId::from_uuid(uuid::Uuid::from_u128(1));
        assert_eq!(r.series(job, 1, None, None, 0).unwrap(), (1, vec![]));
        for second in 100..104 {
            let busy = (second != 101).then_some((second - 100) as f64 * 10.0);
            r.append_readings(job, 1, &[recorded(second, 0, busy), recorded(second, 1, None)]).unwrap();
        }
        let (step, series) = r.series(job, 1, None, None, 2).unwrap();
        assert_eq!((step, series.len()), (2, 2));
        assert_eq!(series[0].at_s, [100.0, 102.0]);
        assert_eq!(series[0].utilization_percent, [Some(0.0), Some(25.0)]);
        assert_eq!(series[0].memory_used_mib, [Some(100.5), Some(102.5)]);
        assert_eq!(series[1].utilization_percent, [None, None]);
        let late = Some(Timestamp::from_micros(102_500_000));
        assert_eq!(r.series(job, 1, late, None, 1).unwrap().1[0].at_s, [103.0]);
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_micros(second * 1_000_000)
    }

    #[test]
    fn readings_grow_coarse_with_age_and_outlive_the_portal_until_they_are_too_old() {
        let dir = tempfile::tempdir().unwrap();
        let job = JobId::from_uuid(uuid::Uuid::from_u128(1));
        let size = || std::fs::metadata(files::readings(dir.path(), (job, 1))).map_or(0, |m| m.len());
        let r = Recordings::new(dir.path());
        let start = 1_800_000_000;
        for second in 0..1_800 {
            let busy = Some(90.0 + (second % 10) as f64);
            r.append_readings(job, 1, &[recorded(start + second, 0, busy)]).unwrap();
        }
        let loose = size();
        let end = start + 1_800;
        r.compact(at(end)).unwrap();
        assert!(size() * 4 < loose, "{} of {loose}", size());
        let points = |r: &Recordings, from: i64, to: i64| {
            let found = r.series(job, 1, Some(at(from)), Some(at(to)), 1).unwrap().1;
            found.into_iter().next().map_or_else(Vec::new, |s| s.at_s)
        };
        assert_eq!(
            points(&r, start, start + 59),
            [0.0, 10.0, 20.0, 30.0, 40.0, 50.0].map(|s| s + start as f64)
        );
        assert_eq!(points(&r, end - 60, end).len(), 60);
        // Another portal on the same data, a day later. It finds the file, although nothing is appended any
        // more.
        let day = 86_400;
        let r = Recordings::new(dir.path());
        r.compact(at(end + day + 9_000)).unwrap();
        assert_eq!(points(&r, start, end).len(), 30, "a minute each");
        let (_, series) = r.series(job, 1, None, None, 60).unwrap();
        assert!(series[0].utilization_percent.iter().all(|v| *v == Some(94.5)), "{series:?}");
        r.compact(at(end + 89 * day)).unwrap();
        assert_eq!(points(&r, start, end).len(), 30);
        r.compact(at(end + 92 * day)).unwrap();
        assert_eq!((points(&r, start, end).len(), size()), (0, 0));
        assert!(!dir.path().join("readings").join(job.to_string()).exists(), "no empty directory stays");
    }

    #[test]
    fn what_was_torn_off_in_the_middle_costs_one_reading() {
        let dir = tempfile::tempdir().unwrap();
        let job = JobId::from_uuid(uuid::Uuid::from_u128(2));
        let r = Recordings::new(dir.path());
        let path = files::readings(dir.path(), (job, 1));
        r.append_readings(job, 1, &[recorded(100, 0, Some(1.0)), recorded(101, 0, Some(2.0))]).unwrap();
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 3]).unwrap();
        r.append_readings(job, 1, &[recorded(102, 0, Some(3.0))]).unwrap();
        assert_eq!(r.series(job, 1, None, None, 1).unwrap().1[0].at_s, [100.0, 102.0]);
        // A draft of a portal that died is no file of readings.
        std::fs::write(path.with_extension("new"), b"half").unwrap();
        let again = Recordings::new(dir.path());
        again.compact(at(103)).unwrap();
        assert_eq!(again.series(job, 1, None, None, 1).unwrap().1[0].at_s, [100.0, 102.0]);
    }

    #[test]
    fn what_cannot_be_read_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let job = JobId::from_uuid(uuid::Uuid::from_u128(3));
        let path = files::readings(dir.path(), (job, 1));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, b"of another version").unwrap();
        let r = Recordings::new(dir.path());
        assert_eq!(r.series(job, 1, None, None, 0).unwrap(), (1, vec![]));
        r.compact(at(i64::MAX / 2_000_000)).unwrap();
        r.append_readings(job, 1, &[recorded(100, 0, None)]).unwrap();
        assert_eq!(r.series(job, 1, None, None, 0).unwrap().1.len(), 1);
        assert!(std::fs::read(&path).unwrap().starts_with(b"of another version"));
    }

    #[test]
    fn a_part_of_a_log_ends_before_it_has_too_many_times() {
        let dir = tempfile::tempdir().unwrap();
        let r = Recordings::new(dir.path());
        let job = JobId::from_uuid(uuid::Uuid::from_u128(1));
        let mut log = LogFile::open(&r.log(job, 1, 0)).unwrap();
        let count = MAX_TIMES as i64 + 10;
        for second in 0..count {
            log.append(b"ab", at(second)).unwrap();
        }
        let part = r.read_log_part(job, 1, 0, 0, 1 << 20).unwrap();
        assert_eq!((part.bytes.len(), part.times.len(), part.more), (2 * MAX_TIMES, MAX_TIMES, true));
        let rest = r.read_log_part(job, 1, 0, part.bytes.len() as u64, 1 << 20).unwrap();
        assert_eq!((rest.bytes.len(), rest.times.len(), rest.more), (20, 10, false));
        assert_eq!(rest.times.first().map(|time| time.at), Some(at(count - 10)));
        let short = r.read_log_part(job, 1, 0, 1, 2).unwrap();
        assert_eq!((short.bytes.as_slice(), short.times.len(), short.more), (&b"ba"[..], 2, true));
        assert_eq!(short.times.first(), Some(&LogTime { offset: 1, at: at(0) }));
        let none = r.read_log_part(job, 2, 0, 0, 9).unwrap();
        assert_eq!(none, LogPart { bytes: Vec::new(), times: Vec::new(), more: false });
    }

    #[test]
    fn a_log_is_read_from_any_byte() {
        let dir = tempfile::tempdir().unwrap();
        let r = Recordings::new(dir.path());
        let job = JobId::from_uuid(uuid::Uuid::from_u128(1));
        assert_eq!(r.read_log(job, 1, 0, 5, 9).unwrap(), b"");
        open_append(&r.log(job, 1, 0)).unwrap().write_all(b"0123456789").unwrap();
        assert_eq!((r.log_length(job, 1, 0), r.read_log(job, 1, 0, 7, 9).unwrap()), (10, b"789".to_vec()));
        assert_eq!(r.read_log(job, 1, 0, 70, 9).unwrap(), b"");
    }

    #[test]
    fn a_removed_job_has_no_log_and_no_readings() {
        let dir = tempfile::tempdir().unwrap();
        let r = Recordings::new(dir.path());
        let [job, other] = [1, 2].map(|n| JobId::from_uuid(uuid::Uuid::from_u128(n)));
        for (attempt, rank) in [(1, 0), (1, 1), (2, 0)] {
            open_append(&r.log(job, attempt, rank)).unwrap().write_all(b"0123456789").unwrap();
        }
        r.append_readings(job, 2, &[recorded(100, 0, Some(1.0))]).unwrap();
        r.append_readings(other, 1, &[recorded(100, 0, Some(1.0))]).unwrap();
        assert_eq!((r.log_bytes(job).unwrap(), r.log_bytes(other).unwrap()), (30, 0));
        r.remove_job(job).unwrap();
        r.remove_job(job).unwrap();
        assert_eq!((r.log_bytes(job).unwrap(), r.log_length(job, 1, 0)), (0, 0));
        assert_eq!(r.series(job, 2, None, None, 1).unwrap().1.len(), 0);
        assert_eq!(r.series(other, 1, None, None, 1).unwrap().1.len(), 1);
        r.compact(at(100 + 86_400)).unwrap();
        assert_eq!(r.series(other, 1, None, None, 1).unwrap().1.len(), 1, "the compaction misses no file");
    }
}
