//! The programs of the host that change its network.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// The directories with programs of the system.
const DIRS: [&str; 6] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/local/bin"];
/// The lines of an error output that a message has.
const MOST_LINES: usize = 3;
/// The longest run of a program. They change the kernel's tables and wait for locks of other programs only.
const LONGEST: Duration = Duration::from_secs(30);

pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    DIRS.iter().map(|dir| Path::new(dir).join(name)).find(|path| path.exists())
}

/// Runs a program with this text as its input. Returns its output.
///
/// # Errors
/// The begin of the program's error output, or the reason why it cannot be run. A program that runs for longer than
/// 30 seconds is ended.
pub(crate) fn run(program: &Path, args: &[&str], input: &str) -> Result<String, String> {
    run_within(program, args, input, LONGEST)
}

fn run_within(program: &Path, args: &[&str], input: &str, longest: Duration) -> Result<String, String> {
    let failed = |error: io::Error| format!("{} cannot be run: {error}", program.display());
    let mut child = Command::new(program)
        .args(args)
        .env_clear()
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    let group = i32::try_from(child.id()).ok();
    let pipe = child.stdin.take();
    let input = input.to_owned();
    let (sender, receiver) = mpsc::channel();
    let work = move || {
        // A program that fails early does not read its input.
        let written = pipe.map_or(Ok(()), |mut pipe| pipe.write_all(input.as_bytes()));
        // The caller may have given up.
        let _ = sender.send((written, child.wait_with_output()));
    };
    thread::Builder::new().name("network program".to_owned()).spawn(work).map_err(failed)?;
    let Ok((written, output)) = receiver.recv_timeout(longest) else {
        if let Some(group) = group {
            // It has a group of its own, and nothing has reaped it.
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        return Err(format!("{} did not end within {} seconds", program.display(), longest.as_secs()));
    };
    let output = output.map_err(failed)?;
    if output.status.success() {
        return written.map(|()| String::from_utf8_lossy(&output.stdout).into_owned()).map_err(failed);
    }
    Err(format!("{}: {}", program.display(), first_errors(&output)))
}

/// The begin of the error output.
fn first_errors(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    let lines = errors.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines: Vec<&str> = lines.take(MOST_LINES).collect();
    lines.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_gets_its_input_and_fails_with_its_own_words() {
        assert_eq!(run(Path::new("/bin/cat"), &[], "text"), Ok("text".to_owned()));
        let failed = run(Path::new("/bin/sh"), &["-c", "echo one >&2; echo two >&2; exit 3"], "");
        assert_eq!(failed, Err("/bin/sh: one two".to_owned()));
        assert!(run(Path::new("/not/there"), &[], "").unwrap_err().contains("cannot be run"));
    }

    #[test]
    fn a_program_that_hangs_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let why = run_within(Path::new("/bin/cat"), &[pipe.to_str().unwrap()], "", Duration::from_millis(50));
        assert!(why.unwrap_err().contains("did not end"));
    }
}
