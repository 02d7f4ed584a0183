//! Programs of the host, within limits of time and output.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// The longest run of a program.
const LONGEST: Duration = Duration::from_secs(2);
/// The most bytes of an output. The rest is not read.
const MAX_OUTPUT_BYTES: usize = 64 << 10;
/// The pause between two looks at a program that has closed its output.
const PAUSE: Duration = Duration::from_millis(5);

/// The reason for a missing answer of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandError {
    /// The program is in no directory of programs.
    Missing,
    /// The program gave no answer in time.
    TimedOut,
    /// The program could not be started, or failed. The reason is a part of a sentence.
    Failed(String),
}

impl std::fmt::Display for CommandError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing => f.write_str("it is not installed"),
            Self::TimedOut => f.write_str("it does not answer"),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

/// The programs of a host. Tests replace this edge only.
pub trait Commands: Send + Sync {
    /// Runs a program without input. Returns its output, cut to 64 KiB.
    ///
    /// # Errors
    /// The program does not start, fails, or runs longer than two seconds.
    fn run(&self, program: &Path, args: &[&str]) -> Result<String, CommandError>;
}

/// The programs of this host.
#[derive(Debug, Clone, Copy)]
pub struct HostCommands {
    longest: Duration,
}

impl Default for HostCommands {
    fn default() -> Self {
        Self { longest: LONGEST }
    }
}

/// Kills a program with its children. A process in a call of a driver may stay for long, so nothing waits for it.
fn end(mut child: Child) {
    if let Ok(pid) = i32::try_from(child.id()) {
        // It has a group of its own, and nothing has reaped it.
        let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
    }
    let _ = thread::Builder::new().name("doctor end".to_owned()).spawn(move || child.wait());
}

/// Reads an output beside the caller.
fn read_output(output: impl Read + Send + 'static) -> std::io::Result<mpsc::Receiver<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new().name("doctor output".to_owned()).spawn(move || {
        let mut bytes = Vec::new();
        let limit = u64::try_from(MAX_OUTPUT_BYTES).unwrap_or(u64::MAX);
        if output.take(limit).read_to_end(&mut bytes).is_ok() {
            // The caller may have given up.
            let _ = sender.send(bytes);
        }
    })?;
    Ok(receiver)
}

/// The error of a failed start.
fn not_started(error: &std::io::Error) -> CommandError {
    CommandError::Failed(format!("it does not start: {error}"))
}

impl Commands for HostCommands {
    fn run(&self, program: &Path, args: &[&str]) -> Result<String, CommandError> {
        let by = Instant::now() + self.longest;
        // The environment of the worker can have a join token, so the program gets none of it.
        let mut child = Command::new(program)
            .args(args)
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", "/")
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|error| not_started(&error))?;
        let Some(output) = child.stdout.take() else {
            end(child);
            return Err(CommandError::Failed("it has no output".to_owned()));
        };
        let receiver = match read_output(output) {
            Ok(receiver) => receiver,
            Err(error) => {
                end(child);
                return Err(not_started(&error));
            }
        };
        let Ok(bytes) = receiver.recv_timeout(self.longest) else {
            end(child);
            return Err(CommandError::TimedOut);
        };
        loop {
            match child.try_wait() {
                // Output beyond the limit ends a program by a signal.
                Ok(Some(status)) if status.success() || bytes.len() >= MAX_OUTPUT_BYTES => {
                    return Ok(String::from_utf8_lossy(&bytes).into_owned());
                }
                Ok(Some(status)) => return Err(CommandError::Failed(format!("it fails: {status}"))),
                Ok(None) if Instant::now() < by => thread::sleep(PAUSE),
                Ok(None) => {
                    end(child);
                    return Err(CommandError::TimedOut);
                }
                Err(error) => return Err(not_started(&error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(longest: Duration, script: &str) -> Result<String, CommandError> {
        HostCommands { longest }.run(Path::new("/bin/sh"), &["-c", script])
    }

    #[test]
    fn a_program_has_a_bounded_time_and_output() {
        let patient = Duration::from_secs(60);
        assert_eq!(shell(patient, "echo good; echo bad >&2").as_deref(), Ok("good\n"));
        assert!(matches!(shell(patient, "exit 3"), Err(CommandError::Failed(_))));
        for script in ["sleep 60", "exec >&-; sleep 60", "sleep 60 & wait"] {
            let began = Instant::now();
            assert_eq!(shell(Duration::from_millis(200), script), Err(CommandError::TimedOut), "{script}");
            assert!(began.elapsed() < Duration::from_secs(30), "{script}");
        }
        let long = shell(patient, "while :; do echo 0123456789012345678901234567890123456789; done");
        assert_eq!(long.map(|text| text.len()), Ok(MAX_OUTPUT_BYTES));
        let absent = HostCommands::default().run(Path::new("/nowhere/program"), &[]);
        assert!(matches!(absent, Err(CommandError::Failed(_))), "{absent:?}");
    }

    #[test]
    fn a_program_has_nothing_of_the_environment() {
        let text = shell(Duration::from_secs(60), "env").unwrap();
        assert!(text.contains("LC_ALL=C") && !text.contains("CARGO"), "{text}");
    }
}
