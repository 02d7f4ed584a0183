//! The records of a shim: its pid, the start and the end of its command. Each is a line of the lock file, added once
//! and never changed.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use berth_system::clock::boot_id;
use berth_system::files::find_json;
use berth_system::processes::{ProcessStat, stat};
use nix::fcntl::Flock;
use serde::{Deserialize, Serialize};

use super::lock::{LOCK, lock_with_retries};
use crate::model::JobFailure;

/// The files for start and end of shims of earlier builds, whose lock file has only the pid.
pub const LEGACY_RECORDS: [&str; 2] = ["start.json", "exit.json"];

/// The start of a command, recorded by its process before it is the command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandStart {
    pub pid: i32,
    /// Field 22 of `/proc/PID/stat`, which differs for a later process with the same number. 0: unknown.
    pub start_ticks: u64,
    pub boot_id: String,
    /// `CLOCK_BOOTTIME` at the start.
    pub boottime_ms: i64,
}

/// The end of a command, recorded when no process of the attempt is left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandExit {
    /// The exit code; 128 + n for signal n.
    pub code: i32,
    pub timed_out: bool,
    /// The time from the start to the end of the command, at most the limit.
    pub metered_ms: i64,
    pub log_bytes: u64,
    /// The shim stopped the command because its log exceeded the limit.
    #[serde(default)]
    pub log_full: bool,
    /// `CLOCK_BOOTTIME` at the end of the command; absent in records of older shims.
    #[serde(default)]
    pub boottime_ms: Option<i64>,
    /// The failure if the command exceeded another limit.
    #[serde(default)]
    pub failure: Option<JobFailure>,
}

impl CommandStart {
    /// True if the process of this start still runs.
    pub fn is_running(&self) -> bool {
        let same =
            |stat: ProcessStat| !stat.dead && (self.start_ticks == 0 || stat.started == self.start_ticks);
        self.boot_id == boot_id() && stat(self.pid).is_some_and(same)
    }
}

/// The records so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShimRecords {
    /// The pid of the shim. If nobody holds the lock, the number may belong to another process.
    pub shim: Option<i32>,
    pub start: Option<CommandStart>,
    pub exit: Option<CommandExit>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RecordLine {
    Shim(i32),
    Start(CommandStart),
    Exit(CommandExit),
}

impl ShimRecords {
    /// The records of the attempt in this directory. An unreadable record counts as absent.
    pub fn read(dir: &Path) -> Self {
        let mut records = Self::default();
        let text = std::fs::read(dir.join(LOCK)).unwrap_or_default();
        if let Some(pid) = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok()) {
            let [start, exit] = LEGACY_RECORDS.map(|name| dir.join(name));
            return Self { shim: Some(pid), start: find_json(&start), exit: find_json(&exit) };
        }
        // The text after the last line break is incomplete.
        let whole = text.iter().rposition(|byte| *byte == b'\n').and_then(|end| text.get(..end));
        for line in whole.unwrap_or_default().split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match serde_json::from_slice(line) {
                Ok(RecordLine::Shim(pid)) => records.shim = Some(pid),
                Ok(RecordLine::Start(start)) => records.start = Some(start),
                Ok(RecordLine::Exit(exit)) => records.exit = Some(exit),
                Err(error) => tracing::warn!(dir = %dir.display(), %error, "a record is not readable"),
            }
        }
        records
    }
}

/// Creates the file, for the worker's own user only. Later records survive a power cut if the caller syncs the
/// directory after this.
pub fn create_record_file(dir: &Path) -> io::Result<()> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(dir.join(LOCK)).map(|_| ())
}

/// The lock of a shim, which writes its records.
pub(super) struct Recorder(Flock<File>);

impl Recorder {
    /// # Errors
    /// Another shim holds the lock.
    pub fn lock(dir: &Path) -> io::Result<Self> {
        lock_with_retries(dir).map(Self)
    }

    /// Records the pid of the shim, in place of an earlier shim that started nothing. `false`: the earlier shim
    /// started its command. From now on the record of the end has space: it fits into the same block of the disk.
    pub fn record_shim(&self, dir: &Path, pid: i32) -> io::Result<bool> {
        if self.0.metadata()?.len() > 0 {
            let known = ShimRecords::read(dir);
            if known.start.is_some() || known.exit.is_some() {
                return Ok(false);
            }
            self.0.set_len(0)?;
        }
        self.add(&RecordLine::Shim(pid)).map(|()| true)
    }

    /// Records the start. The record survives a power cut after the return.
    pub fn record_start(&self, start: &CommandStart) -> io::Result<()> {
        self.add(&RecordLine::Start(start.clone()))?;
        self.0.sync_data()
    }

    /// Records the end. The record survives a power cut after the return.
    pub fn record_exit(&self, exit: &CommandExit) -> io::Result<()> {
        self.add(&RecordLine::Exit(exit.clone()))?;
        self.0.sync_data()
    }

    fn add(&self, line: &RecordLine) -> io::Result<()> {
        // A line break first: the rest of a failed line may precede.
        let mut text = b"\n".to_vec();
        serde_json::to_writer(&mut text, line)?;
        text.write_all(b"\n")?;
        let length = self.0.metadata()?.len();
        let added = self.0.write_all_at(&text, length);
        if added.is_err() {
            let _ = self.0.set_len(length);
        }
        added
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn start() -> CommandStart {
        CommandStart { pid: 7, start_ticks: 8, boot_id: "b".to_owned(), boottime_ms: 9 }
    }

    fn exit(failure: &str) -> CommandExit {
        CommandExit {
            code: 3,
            timed_out: false,
            metered_ms: 5,
            log_bytes: 6,
            log_full: false,
            boottime_ms: Some(10),
            failure: Some(("disk".to_owned(), failure.to_owned())),
        }
    }

    #[test]
    fn what_is_recorded_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(ShimRecords::read(dir.path()), ShimRecords::default());
        create_record_file(dir.path()).unwrap();
        assert_eq!(ShimRecords::read(dir.path()), ShimRecords::default());
        // A shim that was killed before its start leaves only its pid.
        assert!(Recorder::lock(dir.path()).unwrap().record_shim(dir.path(), 1_000_000).unwrap());
        let recorder = Recorder::lock(dir.path()).unwrap();
        assert!(recorder.record_shim(dir.path(), 12).unwrap());
        create_record_file(dir.path()).unwrap();
        let mut known = ShimRecords { shim: Some(12), ..ShimRecords::default() };
        assert_eq!(ShimRecords::read(dir.path()), known);
        recorder.record_start(&start()).unwrap();
        known.start = Some(start());
        assert_eq!(ShimRecords::read(dir.path()), known);
        recorder.record_exit(&exit("two\nlines")).unwrap();
        known.exit = Some(exit("two\nlines"));
        assert_eq!(ShimRecords::read(dir.path()), known);
        assert!(!recorder.record_shim(dir.path(), 13).unwrap(), "it was started");
        assert_eq!(ShimRecords::read(dir.path()), known);
    }

    #[test]
    fn a_shim_of_an_earlier_build_is_understood() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        put(LOCK, "12");
        let mut known = ShimRecords { shim: Some(12), ..ShimRecords::default() };
        assert_eq!(ShimRecords::read(dir.path()), known);
        // The reserved space for its end.
        put("exit.part", &"\n".repeat(512));
        put("start.json", &serde_json::to_string(&start()).unwrap());
        known.start = Some(start());
        assert_eq!(ShimRecords::read(dir.path()), known);
        assert!(!Recorder::lock(dir.path()).unwrap().record_shim(dir.path(), 13).unwrap(), "it was started");
        // A power cut may leave an empty file.
        put("exit.json", "");
        assert_eq!(ShimRecords::read(dir.path()), known);
        put("exit.json", &serde_json::to_string(&exit("")).unwrap());
        known.exit = Some(exit(""));
        assert_eq!(ShimRecords::read(dir.path()), known);
    }

    #[test]
    fn half_a_line_is_none_and_spoils_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let recorder = Recorder::lock(dir.path()).unwrap();
        recorder.record_shim(dir.path(), 12).unwrap();
        let mut beside = File::options().append(true).open(dir.path().join(LOCK)).unwrap();
        let whole = serde_json::to_string(&RecordLine::Start(start())).unwrap();
        let half = whole.split_at(whole.len() - 1).0;
        for part in [half, "}"] {
            beside.write_all(part.as_bytes()).unwrap();
            assert_eq!(ShimRecords::read(dir.path()).start, None, "{part}");
        }
        beside.write_all(b"\n{\"start\":").unwrap();
        recorder.record_exit(&exit("")).unwrap();
        let known = ShimRecords { shim: Some(12), start: Some(start()), exit: Some(exit("")) };
        assert_eq!(ShimRecords::read(dir.path()), known);
        std::fs::write(dir.path().join(LOCK), [0xff, b'\n', b'\n', b'3', b'\n']).unwrap();
        assert_eq!(ShimRecords::read(dir.path()), ShimRecords::default());
    }
}
