//! The program `nvidia-smi` for the reset of a board, with limits on its time and its output. Blocking.

use std::io::{self, PipeReader, Read};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// The places of the program on a host.
const PROGRAMS: [&str; 3] = ["/usr/bin/nvidia-smi", "/usr/sbin/nvidia-smi", "/usr/local/bin/nvidia-smi"];
/// The time limit of one run.
const LIMIT: Duration = Duration::from_secs(120);
/// The distance between two looks at a run.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The wait for the rest of the output of an ended run.
const OUTPUT_WAIT: Duration = Duration::from_secs(1);
/// The kept part of the output.
const MOST_OUTPUT_BYTES: u64 = 16 << 10;
/// The part of the output in a result.
const MOST_CHARS: usize = 300;

/// The program that resets boards.
#[derive(Debug, Clone)]
pub struct ResetProgram {
    path: PathBuf,
    /// The arguments before those of the reset.
    first_args: Vec<String>,
    env: Vec<(String, String)>,
    limit: Duration,
}

/// The begin of an output. The rest is read too, so that the program can end.
fn read_begin(mut pipe: PipeReader) -> Vec<u8> {
    let mut text = Vec::new();
    // A broken pipe leaves a shorter text.
    let _ = pipe.by_ref().take(MOST_OUTPUT_BYTES).read_to_end(&mut text);
    let _ = io::copy(&mut pipe, &mut io::sink());
    text
}

/// The reason for a refused reset, as sentences.
fn refusal(output: &[u8], status: ExitStatus) -> String {
    let output = String::from_utf8_lossy(output);
    let lines: Vec<&str> = output.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let text: String = lines.join(" ").chars().filter(|c| !c.is_control()).take(MOST_CHARS).collect();
    if text.is_empty() {
        format!("nvidia-smi refused the reset without a text ({status}).")
    } else {
        format!("nvidia-smi refused the reset: {text}")
    }
}

impl ResetProgram {
    /// The program at this path, with the time limit of a reset.
    pub fn new(path: PathBuf) -> Self {
        Self { path, first_args: Vec::new(), env: Vec::new(), limit: LIMIT }
    }

    /// The program of this host.
    pub fn find() -> Option<Self> {
        PROGRAMS.map(PathBuf::from).into_iter().find(|path| path.exists()).map(Self::new)
    }

    /// The same program with arguments before those of the reset, and with variables.
    #[must_use]
    pub(super) fn with_context(self, first_args: Vec<String>, env: Vec<(String, String)>) -> Self {
        Self { first_args, env, ..self }
    }

    /// Resets boards by one call.
    ///
    /// # Errors
    /// The reason, as sentences.
    pub(super) fn run(&self, gpu_uuids: &[&str]) -> Result<(), String> {
        let failed = |error: io::Error| format!("{} cannot be run: {error}.", self.path.display());
        let (reader, writer) = io::pipe().map_err(failed)?;
        let (sender, output) = mpsc::channel();
        let read = move || sender.send(read_begin(reader));
        thread::Builder::new().name("gpu reset".to_owned()).spawn(read).map_err(failed)?;
        let mut command = Command::new(&self.path);
        command.args(&self.first_args).args(["--gpu-reset", "-i", &gpu_uuids.join(",")]);
        command.env_clear().env("LC_ALL", "C").envs(self.env.clone()).current_dir("/");
        command.stdin(Stdio::null()).stdout(writer.try_clone().map_err(failed)?).stderr(writer);
        let spawned = command.spawn();
        // The command holds the end of the pipe for the output.
        drop(command);
        let mut child = spawned.map_err(failed)?;
        let until = Instant::now() + self.limit;
        let status = loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                break status;
            }
            if Instant::now() >= until {
                // It may have ended meanwhile.
                let _ = child.kill();
                // A process in the driver may not end for a long time, so a thread waits for it.
                let _ = thread::Builder::new().name("gpu reset end".to_owned()).spawn(move || child.wait());
                return Err(format!("nvidia-smi did not end within {} seconds.", self.limit.as_secs()));
            }
            thread::sleep(LOOK_EVERY);
        };
        if status.success() {
            return Ok(());
        }
        Err(refusal(&output.recv_timeout(OUTPUT_WAIT).unwrap_or_default(), status))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use berth_test_programs::write_program;

    use super::*;

    /// A program that does `text`.
    fn program(dir: &Path, text: &str) -> ResetProgram {
        let path = dir.join("nvidia-smi");
        write_program(&path, &format!("#!/bin/sh\n{text}\n")).unwrap();
        ResetProgram::new(path)
    }

    #[test]
    fn a_refused_reset_has_the_text_of_the_program() {
        let dir = tempfile::tempdir().unwrap();
        let args = dir.path().join("args");
        assert_eq!(program(dir.path(), &format!("echo \"$@\" > {}", args.display())).run(&["GPU-1"]), Ok(()));
        assert_eq!(fs::read_to_string(&args).unwrap(), "--gpu-reset -i GPU-1\n");
        let group =
            program(dir.path(), &format!("echo \"$@\" > {}", args.display())).run(&["GPU-1", "GPU-2"]);
        assert_eq!(group, Ok(()));
        assert_eq!(fs::read_to_string(args).unwrap(), "--gpu-reset -i GPU-1,GPU-2\n");
        let refused = program(dir.path(), "echo 'GPU 1 is in use'; echo 'Unable to reset.' >&2; exit 3")
            .run(&["GPU-1"]);
        assert_eq!(refused, Err("nvidia-smi refused the reset: GPU 1 is in use Unable to reset.".to_owned()));
        let long = program(dir.path(), "head -c 300000 /dev/zero | tr '\\0' x; exit 1").run(&["GPU-1"]);
        assert_eq!(long.unwrap_err().chars().filter(|c| *c == 'x').count(), MOST_CHARS);
        assert!(program(dir.path(), "exit 1").run(&["GPU-1"]).unwrap_err().contains("without a text"));
        assert!(
            ResetProgram::new(dir.path().join("none")).run(&["GPU-1"]).unwrap_err().contains("cannot be run")
        );
    }

    #[test]
    fn a_reset_without_an_end_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let program = ResetProgram { limit: Duration::ZERO, ..program(dir.path(), "exec sleep 600") };
        assert!(program.run(&["GPU-1"]).unwrap_err().contains("did not end within 0 seconds"));
    }
}
