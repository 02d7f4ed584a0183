//! What is recorded of a run: the number of its shim, the start and the end of its command. Each is a line of the file
//! that is the shim's lock too, added when it is so and never changed. Must not decide what follows from it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::Flock;
use serde::{Deserialize, Serialize};

use super::lock::lock_soon;
use super::{Exit, LOCK, Start};
use crate::files::find_json;

/// Where shims of earlier builds write start and end, each put there whole; their lock holds only their number.
pub const EARLIER: [&str; 2] = ["start.json", "exit.json"];

/// What is recorded so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Records {
    /// The shim's process; there is a later one of that number when nobody holds the lock.
    pub shim: Option<i32>,
    pub start: Option<Start>,
    pub exit: Option<Exit>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Shim(i32),
    Start(Start),
    Exit(Exit),
}

impl Records {
    /// Those of the attempt in this directory. What cannot be read is as good as not there.
    pub fn read(dir: &Path) -> Self {
        let mut records = Self::default();
        let text = std::fs::read(dir.join(LOCK)).unwrap_or_default();
        if let Some(pid) = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok()) {
            let [start, exit] = EARLIER.map(|name| dir.join(name));
            return Self { shim: Some(pid), start: find_json(&start), exit: find_json(&exit) };
        }
        // What follows the last end of a line is still being written.
        let whole = text.iter().rposition(|byte| *byte == b'\n').and_then(|end| text.get(..end));
        for line in whole.unwrap_or_default().split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match serde_json::from_slice(line) {
                Ok(Line::Shim(pid)) => records.shim = Some(pid),
                Ok(Line::Start(start)) => records.start = Some(start),
                Ok(Line::Exit(exit)) => records.exit = Some(exit),
                Err(error) => tracing::warn!(dir = %dir.display(), %error, "a record cannot be read"),
            }
        }
        records
    }
}

/// Makes the file, for the worker's own user alone. What is recorded there then survives a power cut if its
/// directory is synced after this.
pub fn make(dir: &Path) -> io::Result<()> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(dir.join(LOCK)).map(|_| ())
}

/// The lock of a shim, where it records.
pub(super) struct Recorder(Flock<File>);

impl Recorder {
    /// An error while another shim holds it.
    pub fn take(dir: &Path) -> io::Result<Self> {
        lock_soon(dir).map(Self)
    }

    /// Says who holds it, in place of one that did before and started nothing; `false` when that one did. From here on
    /// there is room for the end, which is written into the same block of the disk.
    pub fn begin(&self, dir: &Path, pid: i32) -> io::Result<bool> {
        if self.0.metadata()?.len() > 0 {
            let known = Records::read(dir);
            if known.start.is_some() || known.exit.is_some() {
                return Ok(false);
            }
            self.0.set_len(0)?;
        }
        self.add(&Line::Shim(pid)).map(|()| true)
    }

    /// Survives a power cut once this returns, as does the next.
    pub fn start(&self, start: &Start) -> io::Result<()> {
        self.add(&Line::Start(start.clone()))?;
        self.0.sync_data()
    }

    pub fn exit(&self, exit: &Exit) -> io::Result<()> {
        self.add(&Line::Exit(exit.clone()))?;
        self.0.sync_data()
    }

    fn add(&self, line: &Line) -> io::Result<()> {
        // Begun anew, in case half of another could not be taken back.
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

    fn start() -> Start {
        Start { pid: 7, start_ticks: 8, boot_id: "b".to_owned(), boottime_ms: 9 }
    }

    fn exit(failure: &str) -> Exit {
        Exit {
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
        assert_eq!(Records::read(dir.path()), Records::default());
        make(dir.path()).unwrap();
        assert_eq!(Records::read(dir.path()), Records::default());
        // One that was killed before it began leaves nothing to the next but its number.
        assert!(Recorder::take(dir.path()).unwrap().begin(dir.path(), 1_000_000).unwrap());
        let recorder = Recorder::take(dir.path()).unwrap();
        assert!(recorder.begin(dir.path(), 12).unwrap());
        make(dir.path()).unwrap();
        let mut known = Records { shim: Some(12), ..Records::default() };
        assert_eq!(Records::read(dir.path()), known);
        recorder.start(&start()).unwrap();
        known.start = Some(start());
        assert_eq!(Records::read(dir.path()), known);
        recorder.exit(&exit("two\nlines")).unwrap();
        known.exit = Some(exit("two\nlines"));
        assert_eq!(Records::read(dir.path()), known);
        assert!(!recorder.begin(dir.path(), 13).unwrap(), "it was started");
        assert_eq!(Records::read(dir.path()), known);
    }

    #[test]
    fn a_shim_of_an_earlier_build_is_understood() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        put(LOCK, "12");
        let mut known = Records { shim: Some(12), ..Records::default() };
        assert_eq!(Records::read(dir.path()), known);
        // Room it took for its end.
        put("exit.part", &"\n".repeat(512));
        put("start.json", &serde_json::to_string(&start()).unwrap());
        known.start = Some(start());
        assert_eq!(Records::read(dir.path()), known);
        assert!(!Recorder::take(dir.path()).unwrap().begin(dir.path(), 13).unwrap(), "it was started");
        // A power cut can leave a name without its text.
        put("exit.json", "");
        assert_eq!(Records::read(dir.path()), known);
        put("exit.json", &serde_json::to_string(&exit("")).unwrap());
        known.exit = Some(exit(""));
        assert_eq!(Records::read(dir.path()), known);
    }

    #[test]
    fn half_a_line_is_none_and_spoils_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let recorder = Recorder::take(dir.path()).unwrap();
        recorder.begin(dir.path(), 12).unwrap();
        let mut beside = File::options().append(true).open(dir.path().join(LOCK)).unwrap();
        let whole = serde_json::to_string(&Line::Start(start())).unwrap();
        let half = whole.split_at(whole.len() - 1).0;
        for part in [half, "}"] {
            beside.write_all(part.as_bytes()).unwrap();
            assert_eq!(Records::read(dir.path()).start, None, "{part}");
        }
        beside.write_all(b"\n{\"start\":").unwrap();
        recorder.exit(&exit("")).unwrap();
        let known = Records { shim: Some(12), start: Some(start()), exit: Some(exit("")) };
        assert_eq!(Records::read(dir.path()), known);
        std::fs::write(dir.path().join(LOCK), [0xff, b'\n', b'\n', b'3', b'\n']).unwrap();
        assert_eq!(Records::read(dir.path()), Records::default());
    }
}
