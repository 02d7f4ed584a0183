//! The life of a shim.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};

use berth_isolation::cgroups::MemoryWatch;
use berth_isolation::sandbox::{MAX_STARTS, SandboxFiles, open_files};
use berth_isolation::secret_files;
use berth_system::clock::{boot_id, boottime_ms};
use berth_system::files::find_json;
use berth_system::processes::stat;
use berth_system::reaping::end_all;
use berth_system::spawn::{self, Child, Program};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, setpgid, setsid};

use super::daemon_record::is_given_up;
use super::exit_record;
use super::launch::{Container, LAUNCH, LOG, Launch, Limits};
use super::log_redaction::{JobOutput, RedactionThread};
use super::records::{CommandExit, CommandStart, Recorder};
use super::resource_limits::apply_limits;
use super::secret_pipe::ShimSecrets;
use super::supervision::Supervision;
use crate::model::{JobFailure, job_failure};

/// The exit code of a container engine that cannot run a container.
const NOT_RUN: i32 = 125;
/// The exit code of bubblewrap without a complete sandbox, and of many commands.
const INCOMPLETE: i32 = 1;

fn log_line(log: &mut File, text: &str) {
    // The log is the only place for this text; without it the exit code remains.
    let _ = writeln!(log, "berth: {text}");
}

/// The signals of a shim as a file, blocked from now on.
fn block_signals() -> Result<SignalFd, String> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGCHLD] {
        signals.add(signal);
    }
    signals.thread_block().map_err(|e| e.to_string())?;
    SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map_err(|e| e.to_string())
}

/// Reads the launch of an attempt that may start now.
fn read_launch(dir: &Path) -> Result<(Launch, ShimSecrets), String> {
    if is_given_up(dir) {
        return Err(format!("{}: the attempt was given up before its start", dir.display()));
    }
    let launch: Launch =
        find_json(&dir.join(LAUNCH)).ok_or_else(|| format!("{}: no {LAUNCH}", dir.display()))?;
    let secrets = if launch.has_secrets { ShimSecrets::receive()? } else { ShimSecrets::default() };
    // The portal may have given the attempt to another node by now.
    if launch.lease.clone().is_some_and(|mut lease| lease.remaining(boottime_ms()).ends_in_ms <= 0) {
        return Err(format!("{}: the lease ended before the start", dir.display()));
    }
    Ok((launch, secrets))
}

/// Runs the attempt in `dir` to its end.
pub fn run(dir: &Path) -> Result<(), String> {
    let with_dir = |error: io::Error| format!("{}: {error}", dir.display());
    // An error means that the process leads its group already.
    let _ = setsid();
    let recorder = Recorder::lock(dir).map_err(|e| format!("{}: another shim runs: {e}", dir.display()))?;
    if !recorder.record_shim(dir, std::process::id().cast_signed()).map_err(with_dir)? {
        return Err(format!("{}: the attempt was already started", dir.display()));
    }
    let (launch, secrets) = read_launch(dir)?;
    let mut log = OpenOptions::new().append(true).create(true).open(dir.join(LOG)).map_err(with_dir)?;

    // Orphans of the command become children of this process, which ends them.
    prctl::set_child_subreaper(true).map_err(|e| e.to_string())?;
    let signals = block_signals()?;

    // Registered before the first process of the container.
    let memory = launch.limits.nested.then(|| launch.limits.group.watch_memory()).flatten();
    let (exit, redaction) = run_command(dir, &recorder, &launch, &secrets, &mut log, &signals);
    let not_run =
        launch.container.as_ref().filter(|_| exit.code == NOT_RUN).and_then(|c| not_run_failure(c, &launch));
    end_all();
    if let Some(Err(error)) = launch.secrets.as_deref().map(secret_files::remove) {
        // The daemon tries again, and the attempt is not clean before that.
        log_line(&mut log, &format!("files with secrets cannot be removed yet: {error}"));
    }
    if let Some(redaction) = redaction {
        redaction.end();
    }
    let failure =
        exit.failure.clone().or(not_run).or_else(|| memory_failure(&exit, &launch.limits, memory.as_ref()));
    let log_bytes = log.metadata().map_err(with_dir)?.len();
    exit_record::record(&recorder, &CommandExit { failure, log_bytes, ..exit }).map_err(with_dir)
}

/// The failure of a command that ended for lack of memory. A job that goes on after a kill of one process may end in
/// any way.
fn memory_failure(exit: &CommandExit, limits: &Limits, watch: Option<&MemoryWatch>) -> Option<JobFailure> {
    // Without an own limit another job may have been the victim.
    let ran_out = watch.is_some_and(MemoryWatch::ran_out)
        && (limits.memory_mib > 0 || exit.code == 128 + Signal::SIGKILL as i32);
    if exit.code == 0 || exit.timed_out || exit.log_full {
        return None;
    }
    let memory = limits.group.memory().filter(|m| ran_out || m.kills > 0)?;
    let peak = memory.peak_mib.map_or_else(String::new, |mib| format!(" at {mib} MiB"));
    let detail = match limits.memory_mib {
        0 => format!(
            "The memory for jobs on this node was exhausted, and the job was killed{peak}. Set memory_mib to reserve memory for the job."
        ),
        limit => format!(
            "The job exceeded its {limit} MiB of memory and was killed{peak}. Request more with memory_mib."
        ),
    };
    Some(job_failure("memory.exceeded", detail))
}

/// The failure of a container that the engine could not run. `None`: the container ran and ended with the same code.
fn not_run_failure(container: &Container, launch: &Launch) -> Option<JobFailure> {
    let (program, args) = container.inspect.split_first()?;
    let output = Command::new(program)
        .args(args)
        .env_clear()
        .envs(launch.env.iter().map(|(k, v)| (k, v)))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let ran = matches!(String::from_utf8_lossy(&output.stdout).trim(), "exited" | "stopped");
    let detail = "The image cannot be started on this node. The end of the log has the reason.";
    (!ran).then(|| job_failure("image.not_started", detail))
}

/// Runs the command to its end. Its log may still have a thread.
fn run_command(
    dir: &Path,
    recorder: &Recorder,
    launch: &Launch,
    secrets: &ShimSecrets,
    log: &mut File,
    signals: &SignalFd,
) -> (CommandExit, Option<RedactionThread>) {
    let mut starts = 0;
    loop {
        let started = match start_command(recorder, launch, secrets, log) {
            Ok(started) => started,
            Err(error) => {
                log_line(log, &format!("the command cannot be started: {error}"));
                return (exit_record::not_started(&error), None);
            }
        };
        starts += 1;
        let end = Supervision::new(dir, launch, started.child, signals, started.began_ms, log).run();
        if !has_incomplete_sandbox(&end.exit, &started.files) {
            return (end.exit, started.redaction);
        }
        if starts == MAX_STARTS || end.is_stopped {
            let detail =
                "The sandbox of the job cannot be set up on this node. The end of the log has the reason.";
            let failure = Some(job_failure("worker.isolation", detail));
            return (CommandExit { metered_ms: 0, failure, ..end.exit }, started.redaction);
        }
        if let Some(redaction) = started.redaction {
            redaction.end();
        }
        log_line(log, "the sandbox is incomplete, and the worker starts the command again");
    }
}

/// True if the sandbox of an ended command was never complete, so that the command never ran.
fn has_incomplete_sandbox(exit: &CommandExit, files: &SandboxFiles) -> bool {
    let is_other = exit.code != INCOMPLETE || exit.timed_out || exit.log_full || exit.failure.is_some();
    !is_other && files.is_incomplete()
}

/// A started command.
struct StartedCommand {
    child: Child,
    /// The begin by `CLOCK_BOOTTIME`.
    began_ms: i64,
    /// The thread that writes the log of a job with secrets.
    redaction: Option<RedactionThread>,
    files: SandboxFiles,
}

/// Starts the command.
fn start_command(
    recorder: &Recorder,
    launch: &Launch,
    secrets: &ShimSecrets,
    log: &File,
) -> io::Result<StartedCommand> {
    let output = JobOutput::open(log, &secrets.redacted)?;
    let (argv, files) = match launch.sandbox_depth {
        0 => (launch.argv.clone(), SandboxFiles::default()),
        _ => open_files(&launch.argv)?,
    };
    let null = File::open("/dev/null")?;
    let env = launch.env.iter().chain(&secrets.env).map(|(k, v)| (k.as_str(), v.as_str()));
    let program = Program {
        argv: &argv,
        env: env.collect(),
        cwd: &launch.cwd,
        stdin: null.as_fd(),
        stdout: output.job_end(),
    };
    // The child shares this memory until it is the command, and writes the value.
    let mut began_ms = boottime_ms();
    let before = || {
        let pid = Pid::this().as_raw();
        setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        apply_limits(&launch.limits)?;
        let start_ticks = stat(pid).map_or(0, |s| s.started);
        let boot_id = boot_id().to_owned();
        began_ms = boottime_ms();
        recorder.record_start(&CommandStart { pid, start_ticks, boot_id, boottime_ms: began_ms })
    };
    let child = spawn::spawn(&program, before)?;
    Ok(StartedCommand { child, began_ms, redaction: output.begin(), files })
}
