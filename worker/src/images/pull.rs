//! Fetches an image with `podman pull`, tells how far it is, and gives up when it takes too long, grows too
//! large or will not be started any more. Blocking.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::{Failure, failed};
use crate::disk::{self, Found};

/// Between two looks at how far it is.
const LOOK: Duration = Duration::from_secs(1);
/// Of what it says, only the end is kept.
const KEPT: usize = 16 << 10;
/// Of what it says last, so much is told.
const TOLD: usize = 400;

/// What a pull may take. It is never printed, for its secret.
#[derive(Clone)]
pub struct Terms<'a> {
    /// For sentences.
    pub image: &'a str,
    /// Where it puts what it has fetched so far.
    pub scratch: &'a Path,
    pub longest: Duration,
    pub most_mib: u64,
    /// What must not be repeated to anybody.
    pub secret: Option<&'a str>,
}

/// What was said so far of the layers of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Layers that were begun, those that are there already included.
    pub layers: u32,
    /// Layers that need not be fetched.
    pub present: u32,
    /// All layers are there.
    pub fetched: bool,
}

impl Progress {
    /// From the lines that podman writes where there is no terminal.
    pub fn read(said: &str) -> Self {
        let mut progress = Self::default();
        let mut seen: Vec<&str> = Vec::new();
        for line in said.lines() {
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

    /// `bytes` were fetched and wait to be unpacked.
    pub fn words(&self, image: &str, bytes: u64) -> String {
        let mut words = format!("Pulling {image}");
        match self {
            Self { layers: 0, .. } => words.push_str(": asking its registry"),
            Self { layers, present: 0, .. } => words.push_str(&format!(": {layers} layers")),
            Self { layers, present, .. } => {
                words.push_str(&format!(": {layers} layers, {present} of them here already"));
            }
        }
        if self.fetched {
            words.push_str(", unpacking");
        } else if bytes > 0 {
            words.push_str(&format!(", {} MB", bytes / 1_000_000));
        }
        words.push('.');
        words
    }
}

/// What podman said last, in one line, without a secret.
pub(super) fn last_words(said: &str, secret: Option<&str>) -> String {
    let error = said.lines().rev().find(|l| l.starts_with("Error:"));
    let line =
        error.or_else(|| said.lines().rev().find(|l| !l.trim().is_empty())).unwrap_or("it said nothing");
    let line = line.trim_start_matches("Error:").trim();
    let line = match secret.filter(|s| !s.is_empty()) {
        Some(secret) => line.replace(secret, "…"),
        None => line.to_owned(),
    };
    line.chars().filter(|c| !c.is_control()).take(TOLD).collect()
}

fn fetched(scratch: &Path, most: u64) -> u64 {
    match disk::measure(scratch, most) {
        Ok(Found::Bytes(bytes)) => bytes,
        // It is podman's own, never so deep; what cannot be looked at now is looked at again.
        Ok(Found::TooDeep | Found::TooMany) | Err(_) => 0,
    }
}

/// Why a pull was ended from here.
enum Given {
    Up(Failure),
    End,
}

/// Runs `command`, which is `podman pull`, to its end.
pub fn run(
    mut command: Command,
    terms: &Terms<'_>,
    given_up: &dyn Fn() -> Option<Failure>,
    tell: &dyn Fn(String),
) -> Result<(), Failure> {
    let broken = |e: io::Error| failed("worker.io", format!("The image cannot be pulled: {e}."));
    // Of its own group, so that its helpers end with it.
    let started = command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = started.spawn().map_err(broken)?;
    let mut said = String::new();
    let given = listen(&mut child, terms, given_up, tell, &mut said).map_err(broken);
    if !matches!(given, Ok(Given::End))
        && let Ok(group) = i32::try_from(child.id())
    {
        // It may have ended by itself meanwhile.
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
    let status = child.wait().map_err(broken)?;
    match given? {
        Given::Up(failure) => Err(failure),
        Given::End if status.success() => Ok(()),
        Given::End => {
            let why = last_words(&said, terms.secret);
            Err(failed("image.pull_failed", format!("{} could not be pulled: {why}", terms.image)))
        }
    }
}

fn listen(
    child: &mut Child,
    terms: &Terms<'_>,
    given_up: &dyn Fn() -> Option<Failure>,
    tell: &dyn Fn(String),
    said: &mut String,
) -> io::Result<Given> {
    let Some(mut lines) = child.stderr.take() else { return Ok(Given::End) };
    let began = Instant::now();
    let most = terms.most_mib.saturating_mul(1 << 20);
    let mut looked: Option<Instant> = None;
    let mut buffer = [0u8; 4_096];
    loop {
        if let Some(failure) = given_up() {
            return Ok(Given::Up(failure));
        }
        if began.elapsed() >= terms.longest {
            let s = terms.longest.as_secs();
            let detail = format!("{} was not pulled within {s} s; nothing was charged.", terms.image);
            return Ok(Given::Up(failed("image.pull_timeout", detail)));
        }
        if looked.is_none_or(|at| at.elapsed() >= LOOK) {
            looked = Some(Instant::now());
            let bytes = fetched(terms.scratch, most);
            if bytes > most {
                let detail = format!(
                    "{} is larger than the {} MiB that this node takes.",
                    terms.image, terms.most_mib
                );
                return Ok(Given::Up(failed("image.too_large", detail)));
            }
            tell(Progress::read(said).words(terms.image, bytes));
        }
        let mut fds = [PollFd::new(lines.as_fd(), PollFlags::POLLIN)];
        // An interrupted wait is as good as one that ended.
        if !matches!(poll(&mut fds, PollTimeout::from(1_000u16)), Ok(n) if n > 0) {
            continue;
        }
        let read = match lines.read(&mut buffer) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        if read == 0 {
            return Ok(Given::End);
        }
        said.push_str(&String::from_utf8_lossy(buffer.get(..read).unwrap_or_default()));
        if said.len() > KEPT {
            let from = said.char_indices().map(|(at, _)| at).find(|at| said.len() - at <= KEPT);
            said.drain(..from.unwrap_or(0));
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
    fn lines_become_words() {
        let progress = Progress::read(SAID);
        assert_eq!(progress, Progress { layers: 3, present: 1, fetched: false });
        assert_eq!(
            progress.words("x:1", 120_400_000),
            "Pulling x:1: 3 layers, 1 of them here already, 120 MB."
        );
        let done = Progress::read(&format!("{SAID}Copying config sha256:ddd\nWriting manifest\n"));
        assert!(done.fetched && done.words("x:1", 5).ends_with("already, unpacking."));
        assert_eq!(Progress::read("").words("x:1", 0), "Pulling x:1: asking its registry.");
        assert_eq!(Progress::read("nonsense\n\0").layers, 0);
    }

    #[test]
    fn secrets_are_not_repeated() {
        let said = "Trying\nError: initializing source: password hunter2 refused\n";
        assert_eq!(last_words(said, Some("hunter2")), "initializing source: password … refused");
        assert_eq!(last_words("\n\n", None), "it said nothing");
        assert_eq!(last_words(&"x".repeat(9_000), None).len(), TOLD);
    }

    fn play(
        script: &str,
        longest: Duration,
        most_mib: u64,
        cancelled: bool,
    ) -> (Result<(), Failure>, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let terms = Terms { image: "x:1", scratch: dir.path(), longest, most_mib, secret: None };
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).current_dir(dir.path());
        let told = std::cell::RefCell::new(Vec::new());
        let given_up = || cancelled.then(|| failed("attempt.not_started", "It is not wanted."));
        let done = run(command, &terms, &given_up, &|text: String| told.borrow_mut().push(text));
        (done, told.into_inner())
    }

    #[test]
    fn each_end_has_its_code() {
        let minute = Duration::from_secs(60);
        let (done, told) = play("echo 'Copying blob sha256:a' >&2; exit 0", minute, 10, false);
        assert_eq!(done, Ok(()));
        assert!(told.first().is_some_and(|t| t == "Pulling x:1: asking its registry."), "{told:?}");
        let code = |done: Result<(), Failure>| done.unwrap_err().0;
        let (done, _) = play("echo 'Error: manifest unknown' >&2; exit 125", minute, 10, false);
        let (failure, detail) = done.unwrap_err();
        assert_eq!(
            (failure.as_str(), detail.as_str()),
            ("image.pull_failed", "x:1 could not be pulled: manifest unknown")
        );
        // What would go on for ever is ended, helpers included.
        assert_eq!(code(play("sleep 600 & sleep 600", Duration::ZERO, 10, false).0), "image.pull_timeout");
        assert_eq!(code(play("sleep 600", minute, 10, true).0), "attempt.not_started");
        let large = "head -c 3000000 /dev/zero > blob; exec sleep 600";
        assert_eq!(code(play(large, minute, 1, false).0), "image.too_large");
    }
}
