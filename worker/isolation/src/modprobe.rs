//! NVIDIA's helper that makes device nodes, with a time limit and a pause after a failure. Blocking.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use berth_system::sync::lock;

/// The places of the helper on a host.
const PROGRAMS: [&str; 3] =
    ["/usr/bin/nvidia-modprobe", "/usr/sbin/nvidia-modprobe", "/usr/local/bin/nvidia-modprobe"];
/// The time limit of one run.
const LIMIT: Duration = Duration::from_secs(5);
/// The pause after a failure.
const PAUSE: Duration = Duration::from_secs(60);
/// The distance between two looks at a run.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The key of a run without an end in time, which pauses all requests.
const ALL: &str = "";

/// The helper program.
#[derive(Debug)]
pub struct Modprobe {
    program: PathBuf,
    limit: Duration,
    /// The time of the last failure of each request.
    failures: Mutex<HashMap<String, Instant>>,
}

impl Modprobe {
    pub fn new(program: PathBuf) -> Self {
        Self { program, limit: LIMIT, failures: Mutex::default() }
    }

    /// The helper of this host.
    pub fn find() -> Option<Self> {
        PROGRAMS.map(PathBuf::from).into_iter().find(|program| program.exists()).map(Self::new)
    }

    /// Asks for a missing node by `args`. One run is at work at a time. A request without success pauses for a
    /// minute, a run without an end in time pauses all requests.
    pub fn make(&self, node: &Path, args: &[String], now: Instant) {
        let request = args.join(" ");
        let mut failures = lock(&self.failures);
        // A caller before this one may have made it.
        if node.exists() {
            return;
        }
        failures.retain(|_, failed| now.saturating_duration_since(*failed) < PAUSE);
        if failures.contains_key(&request) || failures.contains_key(ALL) {
            return;
        }
        let run = run(&self.program, args, self.limit);
        if node.exists() {
            return;
        }
        let (failed, reason) = match run {
            Ok(Some(status)) => (request.as_str(), format!("it ended with {status}")),
            Ok(None) => (ALL, format!("it did not end within {} seconds", self.limit.as_secs())),
            Err(error) => (request.as_str(), format!("it cannot be started: {error}")),
        };
        tracing::warn!(node = %node.display(), request, reason, "nvidia-modprobe made no device node");
        failures.insert(failed.to_owned(), now);
    }
}

/// Runs a program to its end. `None`: it was killed at its limit.
fn run(program: &Path, args: &[String], limit: Duration) -> io::Result<Option<ExitStatus>> {
    let mut command = Command::new(program);
    command.args(args).env_clear().current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let until = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= until {
            break;
        }
        thread::sleep(LOOK_EVERY);
    }
    // It may have ended meanwhile.
    let _ = child.kill();
    // A process that loads a module may not end for a long time, so a thread waits for it.
    thread::spawn(move || child.wait());
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use berth_test_programs::write_program;

    use super::*;

    /// A helper that writes its arguments into the file `asked` and then does `text`.
    fn helper(dir: &Path, text: &str) -> Modprobe {
        let program = dir.join("nvidia-modprobe");
        let script = format!("#!/bin/sh\necho \"$@\" >> {}/asked\n{text}\n", dir.display());
        write_program(&program, &script).unwrap();
        Modprobe::new(program)
    }

    fn asked(dir: &Path) -> String {
        fs::read_to_string(dir.join("asked")).unwrap_or_default()
    }

    fn args(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn a_present_node_is_not_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let node = dir.path().join("nvidia0");
        let helper = helper(dir.path(), &format!(": > {}", node.display()));
        helper.make(&node, &args("-c 0"), Instant::now());
        assert!(node.exists());
        helper.make(&node, &args("-c 0"), Instant::now());
        assert_eq!(asked(dir.path()), "-c 0\n");
    }

    #[test]
    fn a_failed_request_pauses_for_a_minute_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let helper = helper(dir.path(), "exit 1");
        let (node, other) = (dir.path().join("nvidia0"), dir.path().join("nvidia1"));
        let start = Instant::now();
        let at = |s: u64| start + Duration::from_secs(s);
        helper.make(&node, &args("-c 0"), at(0));
        helper.make(&node, &args("-c 0"), at(59));
        assert_eq!(asked(dir.path()), "-c 0\n");
        helper.make(&other, &args("-c 1"), at(59));
        assert_eq!(asked(dir.path()), "-c 0\n-c 1\n");
        helper.make(&node, &args("-c 0"), at(60));
        assert_eq!(asked(dir.path()), "-c 0\n-c 1\n-c 0\n");
    }

    #[test]
    fn a_helper_without_an_end_is_killed_and_pauses_all_requests() {
        let dir = tempfile::tempdir().unwrap();
        let helper = Modprobe { limit: Duration::from_secs(1), ..helper(dir.path(), "exec sleep 600") };
        let (node, other) = (dir.path().join("nvidia0"), dir.path().join("nvidia1"));
        let began = Instant::now();
        helper.make(&node, &args("-c 0"), began);
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        helper.make(&other, &args("-c 1"), began + Duration::from_secs(2));
        assert_eq!(asked(dir.path()), "-c 0\n");
        assert!(!node.exists() && !other.exists());
    }

    #[test]
    fn an_absent_helper_makes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let node = dir.path().join("nvidia0");
        Modprobe::new(dir.path().join("none")).make(&node, &args("-c 0"), Instant::now());
        assert!(!node.exists());
    }
}
