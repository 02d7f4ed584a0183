//! `podman pull` with progress and limits: of time, of size, and by the end of the attempt. Blocking.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use berth_isolation::disk::{self, DiskUsage};
use berth_shim::model::{JobFailure, job_failure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// The time between two reports of progress.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// The kept end of the output.
const KEPT_OUTPUT: usize = 16 << 10;
/// The most characters of an error.
const ERROR_CHARS: usize = 400;

/// One pull with its limits. Without `Debug`, because of the secret.
#[derive(Clone)]
pub struct PullSpec<'a> {
    /// The name for messages.
    pub image: &'a str,
    /// The directory of downloaded layers.
    pub scratch: &'a Path,
    pub longest: Duration,
    pub most_mib: u64,
    /// A text that no message may have.
    pub secret: Option<&'a str>,
}

/// The progress of a pull.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PullProgress {
    /// The layers so far, including present ones.
    pub layers: u32,
    /// The layers that need no download.
    pub present: u32,
    /// All layers are present.
    pub fetched: bool,
}

impl PullProgress {
    /// Parses the output of podman without a terminal.
    pub fn parse(output: &str) -> Self {
        let mut progress = Self::default();
        let mut seen: Vec<&str> = Vec::new();
        for line in output.lines() {
            if let Some(rest) = line.strip_prefix("Copying blob ") {
                let name = rest.split_whitespace().next().unwrap_or_default();
                if !seen.contains(&name) {
                    seen.push(name);
                    progress.layers += 1;
                    progress.present += u32::from(rest.contains("skipped: already exists"));
                }
            }
            progress.fetched |= line.starts_with("Copying config ");
        }
        progress
    }

    /// The progress as a sentence. `bytes` are downloaded and not unpacked yet.
    pub fn sentence(&self, image: &str, bytes: u64) -> String {
        let mut text = format!("Pulling {image}");
        match self {
            Self { layers: 0, .. } => text.push_str(": waiting for the registry"),
            Self { layers, present: 0, .. } => text.push_str(&format!(": {layers} layers")),
            Self { layers, present, .. } => {
                text.push_str(&format!(": {layers} layers, {present} of them present"));
            }
        }
        if self.fetched {
            text.push_str(", unpacking");
        } else if bytes > 0 {
            text.push_str(&format!(", {} MB", bytes / 1_000_000));
        }
        text.push('.');
        text
    }
}

/// The last error of podman, in one line, without the secret.
pub(super) fn last_error(output: &str, secret: Option<&str>) -> String {
    let error = output.lines().rev().find(|l| l.starts_with("Error:"));
    let line =
        error.or_else(|| output.lines().rev().find(|l| !l.trim().is_empty())).unwrap_or("no error message");
    let line = line.trim_start_matches("Error:").trim();
    let line = match secret.filter(|s| !s.is_empty()) {
        Some(secret) => line.replace(secret, "…"),
        None => line.to_owned(),
    };
    line.chars().filter(|c| !c.is_control()).take(ERROR_CHARS).collect()
}

fn downloaded_bytes(scratch: &Path, most: u64) -> u64 {
    match disk::measure(scratch, most) {
        Ok(DiskUsage::Bytes(bytes)) => bytes,
        // podman's directory is never so deep; an unreadable one is measured again later.
        Ok(DiskUsage::TooDeep | DiskUsage::TooMany) | Err(_) => 0,
    }
}

/// The end of the output of a pull.
enum PullEnd {
    /// The worker gave the pull up.
    GivenUp(JobFailure),
    /// podman closed its output.
    Closed,
}

/// Runs the `podman pull` in `command` to its end.
pub fn run(
    mut command: Command,
    spec: &PullSpec<'_>,
    given_up: &dyn Fn() -> Option<JobFailure>,
    progress: &dyn Fn(String),
) -> Result<(), JobFailure> {
    let broken = |e: io::Error| job_failure("worker.io", format!("The image cannot be pulled: {e}."));
    // A process group of its own, so its helpers end with it.
    let started = command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = started.spawn().map_err(broken)?;
    let mut output = String::new();
    let end = read_output(&mut child, spec, given_up, progress, &mut output).map_err(broken);
    if !matches!(end, Ok(PullEnd::Closed))
        && let Ok(group) = i32::try_from(child.id())
    {
        // The group may have ended meanwhile.
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
    let status = child.wait().map_err(broken)?;
    match end? {
        PullEnd::GivenUp(failure) => Err(failure),
        PullEnd::Closed if status.success() => Ok(()),
        PullEnd::Closed => {
            let why = last_error(&output, spec.secret);
            Err(job_failure("image.pull_failed", format!("The image {} cannot be pulled: {why}", spec.image)))
        }
    }
}

fn read_output(
    child: &mut Child,
    spec: &PullSpec<'_>,
    given_up: &dyn Fn() -> Option<JobFailure>,
    progress: &dyn Fn(String),
    output: &mut String,
) -> io::Result<PullEnd> {
    let Some(mut lines) = child.stderr.take() else { return Ok(PullEnd::Closed) };
    let began = Instant::now();
    let most = spec.most_mib.saturating_mul(1 << 20);
    let mut reported: Option<Instant> = None;
    let mut buffer = [0u8; 4_096];
    loop {
        if let Some(failure) = given_up() {
            return Ok(PullEnd::GivenUp(failure));
        }
        if began.elapsed() >= spec.longest {
            let s = spec.longest.as_secs();
            let detail =
                format!("The image {} was not pulled within {s} s. Nothing was charged.", spec.image);
            return Ok(PullEnd::GivenUp(job_failure("image.pull_timeout", detail)));
        }
        if reported.is_none_or(|at| at.elapsed() >= REPORT_EVERY) {
            reported = Some(Instant::now());
            let bytes = downloaded_bytes(spec.scratch, most);
            if bytes > most {
                let (image, mib) = (spec.image, spec.most_mib);
                let detail =
                    format!("The image {image} exceeds the {mib} MiB of this node. Nothing was charged.");
                return Ok(PullEnd::GivenUp(job_failure("image.too_large", detail)));
            }
            progress(PullProgress::parse(output).sentence(spec.image, bytes));
        }
        let mut fds = [PollFd::new(lines.as_fd(), PollFlags::POLLIN)];
        // An interrupted wait is no error.
        if !matches!(poll(&mut fds, PollTimeout::from(1_000u16)), Ok(n) if n > 0) {
            continue;
        }
        let read = match lines.read(&mut buffer) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        if read == 0 {
            return Ok(PullEnd::Closed);
        }
        output.push_str(&String::from_utf8_lossy(buffer.get(..read).unwrap_or_default()));
        if output.len() > KEPT_OUTPUT {
            let from = output.char_indices().map(|(at, _)| at).find(|at| output.len() - at <= KEPT_OUTPUT);
            output.drain(..from.unwrap_or(0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "Trying to pull docker.io/library/x:1...\nGetting image source signatures\n\
        Copying blob sha256:aaa\nCopying blob sha256:bbb skipped: already exists  \nCopying blob sha256:ccc\n\
        Copying blob sha256:aaa\n";

    #[test]
    fn lines_become_a_sentence() {
        let progress = PullProgress::parse(SAID);
        assert_eq!(progress, PullProgress { layers: 3, present: 1, fetched: false });
        assert_eq!(
            progress.sentence("x:1", 120_400_000),
            "Pulling x:1: 3 layers, 1 of them present, 120 MB."
        );
        let done = PullProgress::parse(&format!("{SAID}Copying config sha256:ddd\nWriting manifest\n"));
        assert!(done.fetched && done.sentence("x:1", 5).ends_with("present, unpacking."));
        assert_eq!(PullProgress::parse("").sentence("x:1", 0), "Pulling x:1: waiting for the registry.");
        assert_eq!(PullProgress::parse("nonsense\n\0").layers, 0);
    }

    #[test]
    fn secrets_are_not_repeated() {
        let said = "Trying\nError: initializing source: password hunter2 refused\n";
        assert_eq!(last_error(said, Some("hunter2")), "initializing source: password … refused");
        assert_eq!(last_error("\n\n", None), "no error message");
        assert_eq!(last_error(&"x".repeat(9_000), None).len(), ERROR_CHARS);
    }

    fn play(
        script: &str,
        longest: Duration,
        most_mib: u64,
        cancelled: bool,
    ) -> (Result<(), JobFailure>, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let spec = PullSpec { image: "x:1", scratch: dir.path(), longest, most_mib, secret: None };
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).current_dir(dir.path());
        let told = std::cell::RefCell::new(Vec::new());
        let given_up = || cancelled.then(|| job_failure("attempt.not_started", "It is not wanted."));
        let done = run(command, &spec, &given_up, &|text: String| told.borrow_mut().push(text));
        (done, told.into_inner())
    }

    #[test]
    fn each_end_has_its_code() {
        let minute = Duration::from_secs(60);
        let (done, told) = play("echo 'Copying blob sha256:a' >&2; exit 0", minute, 10, false);
        assert_eq!(done, Ok(()));
        assert!(told.first().is_some_and(|t| t == "Pulling x:1: waiting for the registry."), "{told:?}");
        let code = |done: Result<(), JobFailure>| done.unwrap_err().0;
        let (done, _) = play("echo 'Error: manifest unknown' >&2; exit 125", minute, 10, false);
        let (failure, detail) = done.unwrap_err();
        assert_eq!(
            (failure.as_str(), detail.as_str()),
            ("image.pull_failed", "The image x:1 cannot be pulled: manifest unknown")
        );
        // An endless pull is ended with its helpers.
        assert_eq!(code(play("sleep 600 & sleep 600", Duration::ZERO, 10, false).0), "image.pull_timeout");
        assert_eq!(code(play("sleep 600", minute, 10, true).0), "attempt.not_started");
        let large = "head -c 3000000 /dev/zero > blob; exec sleep 600";
        assert_eq!(code(play(large, minute, 1, false).0), "image.too_large");
    }
}
