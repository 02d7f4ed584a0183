//! The process that stands over one attempt: a copy of the `forker`, or `berth-worker shim DIR`.
//!
//! It lives in its own session and outlives the daemon. It starts the command, appends its output to
//! a file, ends it at its limit, when its lease ends, when it outgrows its disk or when told (SIGTERM;
//! SIGUSR1 says that the limit changed), kills whatever the command leaves behind, and records the end. It
//! must not speak to anyone: files and signals are its whole interface.

mod end;
mod lock;
mod records;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::{Duration, Instant};

use berth_proto::LOG_LIMIT;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::timerfd::{self, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, setpgid, setsid};
use serde::{Deserialize, Serialize};

use crate::attempts;
use crate::cgroups::{Controller, Group};
use crate::disk;
use crate::files::find_json;
use crate::lease::{self, Leased, Remains};
use crate::mask::{Masking, Output};
use crate::processes::{Stat, Tenant, Word, stat};
use crate::reaping::{end_all, reap_strays};
use crate::sandbox::open_filters;
use crate::secrets::{self, Given};
use crate::spawning::{self, Child, Program};
pub use lock::{among, lock, processes, roots, shim_pid, tell, wait_gone};
use records::Recorder;
pub use records::{EARLIER, Records, make};

pub const LAUNCH: &str = "launch.json";
pub const LIMIT: &str = "limit.json";
pub const NOTICE: &str = "notice.json";
/// What a shim holds as long as it is there, and its [`Records`].
pub const LOCK: &str = "shim.lock";
pub const LOG: &str = "rank-0.log";

/// What to run, as the daemon writes it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Launch {
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub cwd: PathBuf,
    pub limit_ms: i64,
    /// Between SIGTERM and SIGKILL.
    pub grace_ms: i64,
    /// How many of the outermost processes are the sandbox's own and are not signalled.
    pub sandbox_depth: u32,
    #[serde(default)]
    pub limits: Limits,
    /// It is told secrets on its standard input.
    #[serde(default)]
    pub told: bool,
    /// Where files with secrets lie until its end.
    #[serde(default)]
    pub secrets: Option<PathBuf>,
    /// Absent: it goes on however long the portal is silent.
    #[serde(default)]
    pub lease: Option<Leased>,
    /// The command only holds on to a container, which others start.
    #[serde(default)]
    pub container: Option<Container>,
}

/// A container as its shim must know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// A file with the number of the process that stands over it.
    pub supervisor: PathBuf,
    /// Prints how the container stands, by the environment of the command.
    pub inspect: Vec<String>,
}

/// What it may use at most.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Where the kernel limits it; empty where it cannot.
    pub group: Group,
    /// 0: what the jobs of this host may have together.
    pub memory_mib: u64,
    /// Processes and threads together; 0: any number.
    pub pids: u64,
    /// The job's directory, and what it may hold.
    pub disk: Option<(PathBuf, u64)>,
    /// Directories that count with it.
    #[serde(default)]
    pub volumes: Vec<PathBuf>,
    /// Whoever makes the container puts its processes into the group; the command stays outside.
    #[serde(default)]
    pub nested: bool,
}

/// How it is to be stopped, when not by SIGTERM and the usual grace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// The number of the signal.
    pub signal: i32,
    pub grace_ms: i64,
}

/// Written by the command's process itself, before it becomes the command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    pub pid: i32,
    /// Field 22 of `/proc/PID/stat`: tells this process from a later one with its number.
    pub start_ticks: u64,
    pub boot_id: String,
    /// `CLOCK_BOOTTIME` at the start.
    pub boottime_ms: i64,
}

/// Written when nothing of the attempt is left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The exit code; 128 + n for signal n.
    pub code: i32,
    pub timed_out: bool,
    /// From start to the end of the command, at most the limit.
    pub metered_ms: i64,
    pub log_bytes: u64,
    /// It was stopped because its log outgrew the limit.
    #[serde(default)]
    pub log_full: bool,
    /// `CLOCK_BOOTTIME` when the end of the command was seen; absent from older shims.
    #[serde(default)]
    pub boottime_ms: Option<i64>,
    /// It outgrew another limit: code and sentence.
    #[serde(default)]
    pub failure: Option<(String, String)>,
}

/// Milliseconds of `CLOCK_BOOTTIME`, which counts suspended time too and is never set.
pub fn boottime_ms() -> i64 {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |t| t.tv_sec() * 1_000 + t.tv_nsec() / 1_000_000)
}

/// Tells this start of the host from others.
pub fn boot_id() -> &'static str {
    static HERE: LazyLock<String> = LazyLock::new(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        text.trim().to_owned()
    });
    &HERE
}

/// Whether the process that began so is still there.
pub fn exists(start: &Start) -> bool {
    // 0: it could not be read at the start.
    let same = |stat: Stat| !stat.dead && (start.start_ticks == 0 || stat.started == start.start_ticks);
    start.boot_id == boot_id() && stat(start.pid).is_some_and(same)
}

/// Between two looks at the size of the log.
const LOOK_MS: i64 = 1_000;
/// Beyond its grace, for whoever stands over a container to tell its end.
const PATIENCE_MS: i64 = 5_000;
/// What the program for containers ends with when it cannot run one.
const NOT_RUN: i32 = 125;

fn say(log: &mut File, text: &str) {
    // The log is the only place to say it; when that fails too the exit code still tells.
    let _ = writeln!(log, "berth: {text}");
}

fn limit_ms(dir: &Path, launch: &Launch) -> i64 {
    find_json::<i64>(&dir.join(LIMIT)).unwrap_or(launch.limit_ms)
}

/// Runs the attempt in `dir` to its end.
pub fn run(dir: &Path) -> Result<(), String> {
    let what = |error: io::Error| format!("{}: {error}", dir.display());
    // Fails only for a process that leads its group already, which then is what is wanted.
    let _ = setsid();
    let recorder =
        Recorder::take(dir).map_err(|e| format!("{}: another shim is at work: {e}", dir.display()))?;
    if !recorder.begin(dir, std::process::id().cast_signed()).map_err(what)? {
        return Err(format!("{}: was started before", dir.display()));
    }
    if attempts::given_up(dir) {
        return Err(format!("{}: was given up before it started", dir.display()));
    }
    let launch: Launch =
        find_json(&dir.join(LAUNCH)).ok_or_else(|| format!("{}: no {LAUNCH}", dir.display()))?;
    let given = if launch.told { Given::hear()? } else { Given::default() };
    // Its place may have been given to another by now.
    if launch.lease.clone().is_some_and(|mut lease| lease.look(boottime_ms()).ends_in_ms <= 0) {
        return Err(format!("{}: its lease ended before it started", dir.display()));
    }
    let mut log = OpenOptions::new().append(true).create(true).open(dir.join(LOG)).map_err(what)?;

    // Whatever the command leaves behind becomes a child of this process, which can then end it.
    prctl::set_child_subreaper(true).map_err(|e| e.to_string())?;
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGCHLD] {
        signals.add(signal);
    }
    signals.thread_block().map_err(|e| e.to_string())?;
    let told = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(|e| e.to_string())?;

    // Heard from before anything can run out of it.
    let memory = launch.limits.nested.then(|| launch.limits.group.watch_memory()).flatten();
    let mut masking = None;
    let exit = match spawn(&recorder, &launch, &given, &log) {
        Ok((child, began_ms, masks)) => {
            masking = masks;
            watch(dir, &launch, child, &told, instant(began_ms), &log)
        }
        Err(error) => {
            say(&mut log, &format!("the command could not be started: {error}"));
            end::not_started(&error)
        }
    };
    let never =
        launch.container.as_ref().filter(|_| exit.code == NOT_RUN).and_then(|c| never_ran(c, &launch));
    end_all();
    if let Some(Err(error)) = launch.secrets.as_deref().map(secrets::remove) {
        // The daemon tries again, and nothing is clean before.
        say(&mut log, &format!("files with secrets cannot be removed yet: {error}"));
    }
    if let Some(masking) = masking {
        masking.end();
    }
    // Without a limit of its own it may have been somebody else who was killed.
    let ran_out = memory.is_some_and(|watch| watch.ran_out())
        && (launch.limits.memory_mib > 0 || exit.code == 128 + Signal::SIGKILL as i32);
    let failure = exit.failure.clone().or(never).or_else(|| out_of_memory(&exit, &launch.limits, ran_out));
    let exit = Exit { failure, ..exit };
    let log_bytes = log.metadata().map_err(what)?.len();
    end::record(&recorder, &Exit { log_bytes, ..exit }).map_err(what)
}

/// Why it ended, when that was for want of memory. A job that goes on without a process that was killed
/// may end as it likes.
fn out_of_memory(exit: &Exit, limits: &Limits, ran_out: bool) -> Option<(String, String)> {
    if exit.code == 0 || exit.timed_out || exit.log_full {
        return None;
    }
    let memory = limits.group.memory().filter(|m| ran_out || m.kills > 0)?;
    let peak = memory.peak_mib.map_or_else(String::new, |mib| format!(" at {mib} MiB"));
    let detail = match limits.memory_mib {
        0 => format!(
            "The memory that this node has for jobs ran out, and it was killed{peak}; ask for memory_mib, so that room is kept for it."
        ),
        limit => format!(
            "It needed more than its {limit} MiB of memory and was killed{peak}; ask for more with memory_mib."
        ),
    };
    Some(("memory.exceeded".to_owned(), detail))
}

/// Why a container whose command says that it could not be run ended without having run; `None` when it ran,
/// and ended with that code itself.
fn never_ran(container: &Container, launch: &Launch) -> Option<(String, String)> {
    let (program, args) = container.inspect.split_first()?;
    let said = Command::new(program)
        .args(args)
        .env_clear()
        .envs(launch.env.iter().map(|(k, v)| (k, v)))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let ran = matches!(String::from_utf8_lossy(&said.stdout).trim(), "exited" | "stopped");
    let detail = "The image could not be started on this node; the end of its log says why.";
    (!ran).then(|| ("image.not_started".to_owned(), detail.to_owned()))
}

/// What every process of the command inherits. Called by its first process before it is the command.
pub(crate) fn limit(limits: &Limits) -> io::Result<()> {
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    let lower = |resource, most: u64| {
        let (_, hard) = getrlimit(resource)?;
        setrlimit(resource, most.min(hard), most.min(hard))
    };
    if limits.pids > 0 && !limits.nested && !limits.group.limits(Controller::Pids) {
        lower(Resource::RLIMIT_NPROC, limits.pids)?;
    }
    if let Some((_, most_mib)) = &limits.disk {
        // The log is written by the command too, and has its own end.
        lower(Resource::RLIMIT_FSIZE, most_mib.saturating_mul(1 << 20).max(2 * LOG_LIMIT))?;
    }
    if limits.nested { Ok(()) } else { limits.group.join() }
}

/// Starts the command: its process, and when it began by `CLOCK_BOOTTIME`. A job that is given secrets writes into a
/// pipe, and what masks them writes the log.
fn spawn(
    recorder: &Recorder,
    launch: &Launch,
    given: &Given,
    log: &File,
) -> io::Result<(Child, i64, Option<Masking>)> {
    let output = Output::of(log, &given.mask)?;
    // Open until it has started: the command inherits them.
    let (argv, _filters) = match launch.sandbox_depth {
        0 => (launch.argv.clone(), Vec::new()),
        _ => open_filters(&launch.argv)?,
    };
    let nothing = File::open("/dev/null")?;
    let env = launch.env.iter().chain(&given.env).map(|(k, v)| (k.as_str(), v.as_str()));
    let program = Program {
        argv: &argv,
        env: env.collect(),
        cwd: &launch.cwd,
        stdin: nothing.as_fd(),
        stdout: output.of_job(),
    };
    // Set by the child, whose memory this is until it is the command.
    let mut began_ms = boottime_ms();
    let before = || {
        let pid = Pid::this().as_raw();
        setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        limit(&launch.limits)?;
        let start_ticks = stat(pid).map_or(0, |s| s.started);
        let boot_id = boot_id().to_owned();
        began_ms = boottime_ms();
        recorder.start(&Start { pid, start_ticks, boot_id, boottime_ms: began_ms })
    };
    let child = spawning::spawn(&program, before)?;
    Ok((child, began_ms, output.begin()))
}

/// A time of `CLOCK_BOOTTIME` that was not long ago.
fn instant(at_ms: i64) -> Instant {
    let now = Instant::now();
    let ago = Duration::from_millis(u64::try_from(boottime_ms() - at_ms).unwrap_or(0));
    now.checked_sub(ago).unwrap_or(now)
}

/// Wakes the shim when a lease ends: by the clock that goes on while the host sleeps, unlike `poll`'s own.
/// Where there is none, the next look finds out.
struct Alarm(Option<TimerFd>);

impl Alarm {
    fn new() -> Self {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        Self(TimerFd::new(timerfd::ClockId::CLOCK_BOOTTIME, flags).ok())
    }

    /// Rings once, so many milliseconds from now; never for what is past or far.
    fn set(&self, in_ms: i64) {
        let Some(timer) = &self.0 else { return };
        let soon = u64::try_from(in_ms).ok().filter(|ms| (1..=86_400_000).contains(ms));
        // Set again by the next look.
        let _ = match soon {
            Some(ms) => {
                let once = Expiration::OneShot(Duration::from_millis(ms).into());
                timer.set(once, TimerSetTimeFlags::empty())
            }
            None => timer.unset(),
        };
    }
}

/// What was told since it was last asked, without waiting.
fn signals(told: &SignalFd) -> impl Iterator<Item = Signal> {
    let read = || told.read_signal().ok().flatten();
    std::iter::from_fn(read).filter_map(|info| Signal::try_from(i32::try_from(info.ssi_signo).ok()?).ok())
}

/// Whether the command is to end.
const fn is_end(signal: Signal) -> bool {
    matches!(signal, Signal::SIGTERM | Signal::SIGINT | Signal::SIGHUP)
}

/// Waits for the command; ends it when told, at its limit, or when its lease ends.
fn watch(dir: &Path, launch: &Launch, child: Child, told: &SignalFd, began: Instant, log: &File) -> Exit {
    let pid = child.pid();
    let elapsed_ms = || i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX);
    let mut limit = limit_ms(dir, launch);
    let (mut timed_out, mut log_full, mut failure) = (false, false, None);
    // Begun when it is due: most short jobs end before, and need no second thread.
    let mut disk: Option<Arc<OnceLock<(String, String)>>> = None;
    let disk_after_ms = i64::try_from(disk::LOOK.as_millis()).unwrap_or(i64::MAX);
    let tenant = Tenant {
        command: pid,
        depth: launch.sandbox_depth,
        supervisor: launch.container.as_ref().map(|c| c.supervisor.clone()),
    };
    let mut asked_at: Option<i64> = None;
    let mut unheard: Option<Word> = None;
    let mut grace_ms = launch.grace_ms;
    let (mut lease, alarm) = (launch.lease.clone(), Alarm::new());
    loop {
        // Taken before the look, so that what the look takes is nobody's use.
        let now = elapsed_ms();
        reap_strays(pid);
        let ended = match child.try_wait() {
            Ok(code) => code,
            Err(_) => Some(255),
        };
        if let Some(code) = ended {
            let (metered_ms, boottime_ms) = (now.min(limit), Some(boottime_ms()));
            // A host that goes down tells everybody at once, and the command may be the first to heed it.
            if asked_at.is_none() && signals(told).any(is_end) {
                failure = attempts::told_by_host(dir);
            }
            return Exit { code, timed_out, metered_ms, log_bytes: 0, log_full, boottime_ms, failure };
        }
        if disk.is_none() && now >= disk_after_ms {
            // Where there is no thread to be had now, it is tried again.
            disk = disk::watch(launch.limits.disk.clone(), launch.limits.volumes.clone()).ok();
        }
        if asked_at.is_none() && now >= limit {
            timed_out = true;
            (asked_at, unheard) = (Some(now), Some(Word::End));
        }
        if asked_at.is_none() && log.metadata().is_ok_and(|m| m.len() > LOG_LIMIT) {
            log_full = true;
            (asked_at, unheard) = (Some(now), Some(Word::End));
        }
        if asked_at.is_none()
            && let Some(found) = disk.as_ref().and_then(|found| found.get())
        {
            failure = Some(found.clone());
            (asked_at, unheard) = (Some(now), Some(Word::End));
        }
        let lease = lease.as_mut().map_or(Remains::EVER, |lease| lease.look(boottime_ms()));
        if asked_at.is_none() && lease.ends_in_ms <= 0 {
            failure = launch.lease.as_ref().map(|lease| lease::ended(&lease.term));
            grace_ms = lease.killed_in_ms.saturating_sub(lease.ends_in_ms);
            (asked_at, unheard) = (Some(now), Some(Word::End));
        }
        // Who is not there yet hears it as soon as it is.
        unheard = unheard.filter(|word| !tenant.tell(*word));
        let next = match asked_at {
            Some(at) if now >= at.saturating_add(grace_ms) || lease.killed_in_ms <= 0 => {
                let patient = now < at.saturating_add(grace_ms).saturating_add(PATIENCE_MS)
                    && lease.killed_in_ms > -PATIENCE_MS;
                tenant.kill(!patient);
                now + 200
            }
            Some(_) if unheard.is_some() => now + 50,
            Some(at) => at.saturating_add(grace_ms),
            None => limit,
        };
        alarm.set(if asked_at.is_some() { lease.killed_in_ms } else { lease.ends_in_ms });
        let wait = u16::try_from((next - now).clamp(1, LOOK_MS)).unwrap_or(1_000);
        let mut fds = vec![PollFd::new(told.as_fd(), PollFlags::POLLIN)];
        fds.extend(alarm.0.as_ref().map(|timer| PollFd::new(timer.as_fd(), PollFlags::POLLIN)));
        // An interrupted wait is as good as one that ended: the loop looks at everything again.
        let _ = poll(&mut fds, PollTimeout::from(wait));
        for signal in signals(told) {
            match signal {
                Signal::SIGUSR1 => limit = limit_ms(dir, launch),
                _ if is_end(signal) && asked_at.is_none() => {
                    asked_at = Some(elapsed_ms());
                    failure = attempts::told_by_host(dir);
                    let notice = find_json::<Notice>(&dir.join(NOTICE));
                    grace_ms = notice.map_or(launch.grace_ms, |n| n.grace_ms);
                    let signal = notice.and_then(|n| Signal::try_from(n.signal).ok());
                    unheard = Some(signal.map_or(Word::End, Word::Notice));
                }
                _ => {}
            }
        }
    }
}
