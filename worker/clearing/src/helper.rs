//! The daemon's side of the helper process. Blocking.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rustix::process::{self, PidfdFlags, pidfd_open};

use super::messages::{Cleared, Message, Progress};

/// The time limit of a clearing: this, and a second for each 4 GiB of a device, of 1 TiB at most. The driver may need
/// many seconds for boards without the persistence mode.
const LEAST: Duration = Duration::from_secs(30);
const BYTES_A_SECOND: u64 = 4 << 30;
const MAX_BYTES: u64 = 1 << 40;
/// The most bytes of the helper's output. The rest is not read.
const MAX_OUTPUT_BYTES: u64 = 64 << 10;
/// The time between two checks for a reason to give up.
const CHECK_EVERY: Duration = Duration::from_millis(100);
/// The most characters of a reason.
const MAX_REASON_CHARS: usize = 300;

/// The reason for a missing proof.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HelperError {
    /// The clearing is not wanted any more.
    GivenUp,
    /// The reason, as a part of a sentence.
    Failed(String),
}

/// The program of the helper process.
#[derive(Debug, Clone)]
pub struct ClearingHelper {
    /// The program of this worker.
    pub program: PathBuf,
    /// The CUDA library of simulated boards. `None`: the driver's.
    pub library: Option<PathBuf>,
    /// Further variables of the process, for simulated boards.
    pub variables: Vec<(String, String)>,
}

/// The further time for a device with this memory.
fn further_time(total_bytes: u64) -> Duration {
    Duration::from_secs(total_bytes.min(MAX_BYTES).div_ceil(BYTES_A_SECOND))
}

/// Kills the helper. A process in a call of the driver may stay for long, so nothing waits for it.
fn end(mut child: Child) {
    if let Ok(pid) = i32::try_from(child.id()) {
        // It has a group of its own, and nothing has reaped it.
        let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
    }
    let _ = thread::Builder::new().name("clearing end".to_owned()).spawn(move || child.wait());
}

/// Reads the messages of the helper beside the caller. A line that is no message ends them.
fn read_messages(output: impl Read + Send + 'static) -> std::io::Result<mpsc::Receiver<Message>> {
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new().name("clearing".to_owned()).spawn(move || {
        for line in BufReader::new(output.take(MAX_OUTPUT_BYTES)).lines() {
            let message = line.ok().and_then(|line| serde_json::from_str(&line).ok());
            let Some(message) = message else { return };
            if sender.send(message).is_err() {
                return;
            }
        }
    })?;
    Ok(receiver)
}

impl ClearingHelper {
    /// Checks that the CUDA library can be loaded.
    ///
    /// # Errors
    /// The reason, as a part of a sentence.
    pub fn check(&self) -> Result<(), String> {
        match self.run(None, LEAST, &|| false, &|_| ()) {
            Ok(Message::Ready) => Ok(()),
            Ok(_) => Err("the helper process gives a wrong answer".to_owned()),
            Err(HelperError::Failed(why)) => Err(why),
            Err(HelperError::GivenUp) => Err("the helper process was stopped".to_owned()),
        }
    }

    /// Overwrites the memory of a device with this UUID.
    ///
    /// # Errors
    /// The memory is not proved overwritten.
    pub fn clear(
        &self,
        device: &str,
        given_up: &dyn Fn() -> bool,
        progress: &dyn Fn(Progress),
    ) -> Result<Cleared, HelperError> {
        match self.run(Some(device), LEAST, given_up, progress)? {
            Message::Cleared(cleared) => Ok(cleared),
            _ => Err(HelperError::Failed("the helper process gives a wrong answer".to_owned())),
        }
    }

    fn spawn(&self, device: Option<&str>) -> std::io::Result<Child> {
        let mut command = Command::new(&self.program);
        command.arg("clear-memory");
        if let Some(library) = &self.library {
            command.arg("--library").arg(library);
        }
        // The environment of the worker can have a join token, so the process gets none of it.
        command.env_clear().current_dir("/").process_group(0);
        for (name, value) in &self.variables {
            command.env(name, value);
        }
        if let Some(device) = device {
            command.arg("--device").arg(device).env("CUDA_VISIBLE_DEVICES", device);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
    }

    /// Runs the helper to its last message and its end.
    fn run(
        &self,
        device: Option<&str>,
        limit: Duration,
        given_up: &dyn Fn() -> bool,
        progress: &dyn Fn(Progress),
    ) -> Result<Message, HelperError> {
        let not_started = |error: std::io::Error| {
            HelperError::Failed(format!("the helper process does not start: {error}"))
        };
        let mut until = Instant::now() + limit;
        let mut child = self.spawn(device).map_err(not_started)?;
        // Its end ends the helper, also after the end of the daemon.
        let input = child.stdin.take();
        let receiver = match child.stdout.take().map(read_messages) {
            Some(Ok(receiver)) => receiver,
            Some(Err(error)) => {
                end(child);
                return Err(not_started(error));
            }
            None => {
                end(child);
                return Err(HelperError::Failed("the helper process has no output".to_owned()));
            }
        };
        let result = wait_for_result(&receiver, &mut until, given_up, progress);
        // With its context the process holds the device until its end.
        let ended = result.is_ok() && has_ended(&mut child, until);
        if !ended {
            end(child);
        }
        drop(input);
        if ended || result.is_err() {
            return result;
        }
        Err(HelperError::Failed("the helper process does not end".to_owned()))
    }
}

/// Waits for the end of a process. `false`: it did not end in time.
fn has_ended(child: &mut Child, until: Instant) -> bool {
    let left = until.saturating_duration_since(Instant::now());
    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
    let Ok(helper) = pidfd_open(process::Pid::from_child(child), PidfdFlags::empty()) else { return false };
    // An end before this call ends the wait at once, because nothing has reaped the process.
    let _ = poll(&mut [PollFd::new(helper.as_fd(), PollFlags::POLLIN)], timeout);
    matches!(child.try_wait(), Ok(Some(_)))
}

/// The last message of the helper. An open device moves the end of the time.
fn wait_for_result(
    receiver: &mpsc::Receiver<Message>,
    until: &mut Instant,
    given_up: &dyn Fn() -> bool,
    progress: &dyn Fn(Progress),
) -> Result<Message, HelperError> {
    loop {
        let rest = until.saturating_duration_since(Instant::now());
        match receiver.recv_timeout(rest.min(CHECK_EVERY)) {
            Ok(Message::Opened(total_bytes)) => *until += further_time(total_bytes),
            Ok(Message::Progress(step)) => progress(step),
            Ok(Message::Failed(why)) => {
                return Err(HelperError::Failed(why.chars().take(MAX_REASON_CHARS).collect()));
            }
            Ok(message @ (Message::Cleared(_) | Message::Ready)) => return Ok(message),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(HelperError::Failed("the helper process ended without an answer".to_owned()));
            }
            Err(RecvTimeoutError::Timeout) if rest.is_zero() => {
                return Err(HelperError::Failed("the helper process did not end in time".to_owned()));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if given_up() {
            return Err(HelperError::GivenUp);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fs;
    use std::path::Path;

    use berth_test_programs::write_program;

    use super::*;

    /// A helper that is a shell script.
    fn helper(dir: &Path, script: &str) -> ClearingHelper {
        let program = dir.join("helper");
        write_program(&program, &format!("#!/bin/sh\n{script}\n")).unwrap();
        ClearingHelper { program, library: None, variables: vec![("A".to_owned(), "b".to_owned())] }
    }

    const CLEARED: &str = r#"{"cleared":{"cleared_bytes":5,"total_bytes":6,"samples":7,"took_ms":8}}"#;

    fn clear(script: &str) -> Result<Cleared, HelperError> {
        let dir = tempfile::tempdir().unwrap();
        helper(dir.path(), script).clear("GPU-1", &|| false, &|_| ())
    }

    fn reason(script: &str) -> String {
        match clear(script) {
            Err(HelperError::Failed(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_proof_is_the_last_message() {
        let dir = tempfile::tempdir().unwrap();
        let progress = r#"{"progress":{"cleared_bytes":1,"total_bytes":2}}"#;
        let seen = RefCell::new(Vec::new());
        let helper = helper(dir.path(), &format!("echo '{progress}'; echo '{CLEARED}'"));
        let push = |step: Progress| seen.borrow_mut().push(step.cleared_bytes);
        let cleared = helper.clear("GPU-1", &|| false, &push).unwrap();
        assert_eq!(cleared, Cleared { cleared_bytes: 5, total_bytes: 6, samples: 7, took_ms: 8 });
        assert_eq!(seen.into_inner(), [1]);
    }

    #[test]
    fn the_process_has_only_its_own_variables() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("seen");
        let script = format!("echo \"$*\" > {0}; env >> {0}; echo '{CLEARED}'", file.display());
        helper(dir.path(), &script).clear("GPU-1", &|| false, &|_| ()).unwrap();
        let seen = fs::read_to_string(file).unwrap();
        assert!(seen.starts_with("clear-memory --device GPU-1\n"), "{seen}");
        assert!(seen.contains("CUDA_VISIBLE_DEVICES=GPU-1\n") && seen.contains("A=b\n"), "{seen}");
        assert!(!seen.contains("CARGO"), "{seen}");
    }

    #[test]
    fn the_input_of_the_process_stays_open_during_its_run() {
        // A process that reads until the end of an open input has to be ended.
        let script = format!("timeout 0.3 cat; [ $? = 124 ] && echo '{CLEARED}'");
        assert!(clear(&script).is_ok());
    }

    #[test]
    fn without_a_proof_there_is_a_reason() {
        let failed = r#"echo '{"failed":"cuInit fails with CUDA_ERROR_NO_DEVICE"}'; exit 1"#;
        assert_eq!(reason(failed), "cuInit fails with CUDA_ERROR_NO_DEVICE");
        assert_eq!(reason("exit 0"), "the helper process ended without an answer");
        assert_eq!(reason("kill -9 $$"), "the helper process ended without an answer");
        assert_eq!(reason("echo nonsense; sleep 60"), "the helper process ended without an answer");
        assert_eq!(reason(r#"echo '"ready"'"#), "the helper process gives a wrong answer");
    }

    #[test]
    fn a_clearing_that_is_not_wanted_ends() {
        let dir = tempfile::tempdir().unwrap();
        let began = Instant::now();
        let result = helper(dir.path(), "exec sleep 60").clear("GPU-1", &|| true, &|_| ());
        assert_eq!(result, Err(HelperError::GivenUp));
        assert!(began.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_helper_without_an_end_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let helper = helper(dir.path(), "exec sleep 60");
        let short = Duration::from_millis(200);
        let result = helper.run(Some("GPU-1"), short, &|| false, &|_| ());
        assert_eq!(result, Err(HelperError::Failed("the helper process did not end in time".to_owned())));
    }

    #[test]
    fn the_limit_follows_the_memory() {
        assert_eq!(further_time(81_559 << 20), Duration::from_secs(20));
        assert_eq!(further_time(u64::MAX), Duration::from_secs(256));
        let opened = format!(r#"echo '{{"opened":17179869184}}'; sleep 1; echo '{CLEARED}'"#);
        let dir = tempfile::tempdir().unwrap();
        let short = Duration::from_millis(800);
        let result = helper(dir.path(), &opened).run(Some("GPU-1"), short, &|| false, &|_| ());
        assert!(matches!(result, Ok(Message::Cleared(_))), "{result:?}");
    }
}
