//! The entry process of a running attempt: `berth-worker enter DIR`.
//!
//! It joins the cgroups and namespaces of the attempt, opens a terminal with a shell or a connection to a port there,
//! and passes the open file to the daemon through its standard input, a socket. The shell has no more rights than the
//! attempt: its user, no capability, the same filter of system calls. The process passes no bytes itself, and ends
//! with the daemon, the shell or the attempt.

#![expect(unsafe_code, reason = "the steps between fork and exec need an unsafe hook")]

use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use berth_isolation::seccomp;
use berth_shim::{CommandStart, Container, Launch, ShimRecords};
use berth_system::files::find_json;
use berth_system::{processes, reaping};
use nix::fcntl::Flock;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, Pid, Uid, setgroups, setresgid, setresuid, setsid};
use rustix::process::PidfdFlags;
use rustix::thread::CapabilitySet;

use super::{attempt_processes, entries};
use berth_system::listeners::{LOOPBACKS, has_listener, is_owned_by};
use berth_system::pty::{self, TerminalSize};

/// The time between the hang-up of a shell and its end.
const GRACE: Duration = Duration::from_secs(2);
/// The time limit for the answer of a port. The daemon waits a little longer.
const PATIENCE: Duration = Duration::from_secs(8);
const ENDED: &str = "The job has ended.";
const NOT_READY: &str = "The job is still starting. Try again in a moment.";
const NO_INIT: &str = "This node has no init program for containers (such as catatonit). A terminal in a job with an image needs one.";
/// The names of namespaces in `/proc`.
const NAMESPACES: [(&str, CloneFlags); 7] = [
    ("user", CloneFlags::CLONE_NEWUSER),
    ("mnt", CloneFlags::CLONE_NEWNS),
    ("pid", CloneFlags::CLONE_NEWPID),
    ("ipc", CloneFlags::CLONE_NEWIPC),
    ("uts", CloneFlags::CLONE_NEWUTS),
    ("net", CloneFlags::CLONE_NEWNET),
    ("cgroup", CloneFlags::CLONE_NEWCGROUP),
];

/// The purpose of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryTarget {
    Shell(TerminalSize),
    /// A connection to a TCP port on which the attempt listens.
    Port(u16),
}

/// Enters an attempt and stays until the end. Returns the exit code; the daemon gets the text of a failure.
pub fn run(dir: &Path, target: EntryTarget) -> Result<i32, String> {
    let control = io::stdin().as_fd().try_clone_to_owned().map_err(|e| e.to_string())?;
    let result = match target {
        EntryTarget::Shell(size) => run_shell(dir, control.as_fd(), size),
        EntryTarget::Port(port) => connect(dir, control.as_fd(), port),
    };
    result.inspect_err(|why| {
        // The daemon may be gone.
        let _ = pty::send_error(control.as_fd(), why);
    })
}

/// An entered attempt.
pub(super) struct EnteredAttempt {
    launch: Launch,
    uid: Option<u32>,
    isolated: bool,
    /// The attempt has a network of its own: all that listens there belongs to it.
    own_network: bool,
    _lock: Flock<File>,
}

impl EnteredAttempt {
    /// The processes of the attempt in this directory, by their names in `/proc`.
    fn processes(&self, dir: &Path) -> Result<Vec<String>, String> {
        if !self.isolated {
            return Ok(attempt_processes::all(dir).into_iter().map(|pid| pid.to_string()).collect());
        }
        // The /proc of the sandbox shows only processes of the job.
        let listing = std::fs::read_dir("/proc").map_err(failed("The job's processes cannot be read"))?;
        let names = listing.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        Ok(names.filter(|name| name.bytes().all(|b| b.is_ascii_digit())).collect())
    }

    /// The loopback at which the attempt alone listens on a port, with its addresses in tables of sockets.
    pub(super) fn loopback_of(&self, dir: &Path, port: u16) -> Result<Option<Loopback>, String> {
        let known = self.processes(dir)?;
        // The search for the owner reads all open files of all processes.
        let listens = if self.own_network { has_listener } else { is_owned_by };
        let found = LOOPBACKS.into_iter().find(|(_, addresses)| listens(&known, port, addresses));
        let Some((address, addresses)) = found else { return Ok(None) };
        let address = address.parse::<IpAddr>().map_err(|e| e.to_string())?;
        Ok(Some(Loopback { address, addresses }))
    }

    /// True if no process outside the attempt listens in its network.
    pub(super) const fn has_own_network(&self) -> bool {
        self.own_network
    }

    /// True if the attempt alone still listens there. Another listener may have taken the port, and a connection to it,
    /// since `loopback_of`.
    pub(super) fn listens_still(&self, dir: &Path, port: u16, at: Loopback) -> Result<bool, String> {
        Ok(self.own_network || is_owned_by(&self.processes(dir)?, port, at.addresses))
    }
}

/// A loopback of an attempt.
#[derive(Clone, Copy)]
pub(super) struct Loopback {
    pub(super) address: IpAddr,
    addresses: &'static [&'static str],
}

fn failed(action: &'static str) -> impl Fn(io::Error) -> String {
    move |error| format!("{action}: {error}.")
}

/// Enters the attempt. This process sees the same system as the attempt afterwards; only its children are in the
/// attempt's PID namespace. With `joins` it takes over the limits too.
pub(super) fn enter(dir: &Path, joins: bool) -> Result<EnteredAttempt, String> {
    let lock = entries::lock_own(dir).map_err(failed("The directory of the job is not writable"))?;
    let lock = lock.ok_or(NOT_READY)?;
    // Read after the lock: a cleanup that begins later waits for the lock.
    let known = ShimRecords::read(dir);
    if known.exit.is_some() || berth_shim::is_given_up(dir) {
        return Err(ENDED.to_owned());
    }
    let launch: Launch = find_json(&dir.join(berth_shim::LAUNCH)).ok_or(NOT_READY)?;
    let start = known.start.ok_or(NOT_READY)?;
    if !start.is_running() {
        return Err(ENDED.to_owned());
    }
    let uid = berth_shim::job_user(dir);
    let sandbox = match (&launch.container, launch.sandbox_depth) {
        (None, 0) => None,
        (None, depth) => Some(find_sandbox(&start, start.pid, depth)?),
        // With an init, the command below it proves that the container is set up. Without one the first process may
        // still be the runtime's, which sees the host.
        (Some(_), 0 | 1) => return Err(NO_INIT.to_owned()),
        (Some(container), depth) => Some(find_sandbox(&start, find_supervisor(dir, container)?, depth)?),
    };
    // From here on the tenant is near and must not inspect this process.
    prctl::set_dumpable(false).map_err(|e| e.to_string())?;
    prctl::set_child_subreaper(true).map_err(|e| e.to_string())?;
    if joins {
        let limits = &launch.limits;
        berth_shim::apply_limits(limits).map_err(failed("The limits of the job cannot be applied"))?;
        if let Some(sandbox) = sandbox.as_ref().filter(|_| limits.nested) {
            let joined = limits.group.join_beside(sandbox.first);
            joined.map_err(failed("The limits of the job cannot be applied"))?;
        }
    }
    if let Some(sandbox) = &sandbox {
        setns(&sandbox.process, sandbox.kinds)
            .map_err(|errno| format!("The job's sandbox cannot be entered: {}.", io::Error::from(errno)))?;
    }
    let own_network = sandbox.as_ref().is_some_and(|found| found.kinds.contains(CloneFlags::CLONE_NEWNET));
    Ok(EnteredAttempt { launch, uid, isolated: sandbox.is_some(), own_network, _lock: lock })
}

/// The supervisor of a container.
fn find_supervisor(dir: &Path, container: &Container) -> Result<i32, String> {
    let text = std::fs::read_to_string(&container.supervisor).map_err(|_| NOT_READY.to_owned())?;
    let pid = text.trim().parse::<i32>().map_err(|_| NOT_READY.to_owned())?;
    let shim = berth_shim::shim_pid(dir).ok_or(ENDED)?;
    // The number may belong to another process by now.
    let ours = processes::descendants(shim).iter().any(|(other, _)| *other == pid);
    ours.then_some(pid).ok_or_else(|| NOT_READY.to_owned())
}

/// A sandbox by its first process.
struct SandboxHandle {
    first: i32,
    process: OwnedFd,
    /// The namespaces that differ from those of this process.
    kinds: CloneFlags,
}

/// Finds a sandbox by the parent of its first process.
fn find_sandbox(start: &CommandStart, parent: i32, depth: u32) -> Result<SandboxHandle, String> {
    let below = processes::descendants(parent);
    // The command itself exists only in a complete sandbox.
    if !below.iter().any(|(_, at)| *at >= depth) {
        return Err(NOT_READY.to_owned());
    }
    let first = below.iter().find(|(_, at)| *at == 1).map(|(pid, _)| *pid).ok_or(NOT_READY)?;
    let before = processes::stat(first).ok_or(ENDED)?;
    let number = rustix::process::Pid::from_raw(first).ok_or(ENDED)?;
    let process = rustix::process::pidfd_open(number, PidfdFlags::empty())
        .map_err(|e| format!("The sandbox of the job cannot be found: {}.", io::Error::from(e)))?;
    let mut kinds = CloneFlags::empty();
    for (name, kind) in NAMESPACES {
        let id = |process: &str| {
            std::fs::metadata(format!("/proc/{process}/ns/{name}")).map(|m| (m.dev(), m.ino()))
        };
        match (id(&first.to_string()), id("self")) {
            (Ok(theirs), Ok(ours)) if theirs != ours => kinds |= kind,
            (Ok(_), Ok(_)) => {}
            (Err(error), _) | (_, Err(error)) => {
                return Err(failed("The sandbox of the job cannot be read")(error));
            }
        }
    }
    // The number may have passed to another process meanwhile.
    let same = |now: processes::ProcessStat| now.started == before.started && now.parent == parent;
    if !processes::stat(first).is_some_and(same) || !start.is_running() {
        return Err(ENDED.to_owned());
    }
    if kinds.contains(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID) {
        Ok(SandboxHandle { first, process, kinds })
    } else {
        Err(NOT_READY.to_owned())
    }
}

fn run_shell(dir: &Path, control: BorrowedFd<'_>, size: TerminalSize) -> Result<i32, String> {
    let entered = enter(dir, true)?;
    let (ours, theirs) = pty::open(size).map_err(failed("No terminal can be opened"))?;
    if let Some(uid) = entered.uid {
        std::os::unix::fs::fchown(&theirs, Some(uid), Some(uid))
            .map_err(failed("The owner of the terminal cannot be set"))?;
    }
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGCHLD] {
        signals.add(signal);
    }
    signals.thread_block().map_err(|e| e.to_string())?;
    let signal_fd = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(|e| e.to_string())?;
    let child = spawn_shell(&entered, theirs, signals).map_err(failed("No shell can be started"))?;
    pty::send_file(control, ours.as_fd()).map_err(|e| e.to_string())?;
    // Only the daemon holds the terminal now: its close hangs the shell up.
    drop(ours);
    let code = wait_for_shell(child, &signal_fd, control).map_err(|e| e.to_string())?;
    if !entered.isolated {
        // Without a PID namespace only this process finds the remaining processes.
        reaping::end_all();
    }
    Ok(code)
}

fn spawn_shell(entered: &EnteredAttempt, terminal: File, blocked: SigSet) -> io::Result<Child> {
    let shell = ["/bin/bash", "/bin/sh"].into_iter().find(|p| Path::new(p).exists()).unwrap_or("/bin/sh");
    // The environment in the launch of an image is podman's.
    let env = if entered.launch.container.is_some() { &[][..] } else { &entered.launch.env[..] };
    let home = env.iter().find(|(name, _)| name == "HOME").map_or("/", |(_, value)| value.as_str());
    let mut command = Command::new(shell);
    command
        .env_clear()
        .envs(env.iter().map(|(k, v)| (k, v)))
        .env("TERM", "xterm-256color")
        .env("SHELL", shell)
        .current_dir(home)
        .stdin(Stdio::from(terminal.try_clone()?))
        .stdout(Stdio::from(terminal.try_clone()?))
        .stderr(Stdio::from(terminal));
    let (uid, isolated) = (entered.uid, entered.isolated);
    let storage_group = entered.launch.storage_group;
    let hook = move || {
        setsid()?;
        rustix::process::ioctl_tiocsctty(io::stdin())?;
        if isolated {
            drop_rights(uid, storage_group)?;
        }
        if storage_group.is_some() {
            // As for the command: other jobs of the organization change the files by the common group.
            umask(Mode::S_IWOTH);
        }
        // Set after the change of the user, which clears it.
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        blocked.thread_unblock()?;
        if isolated {
            seccomp::apply().map_err(io::Error::other)?;
        }
        Ok(())
    };
    // SAFETY: this process has one thread, so the child between fork and exec may allocate and use files.
    unsafe { command.pre_exec(hook) };
    command.spawn()
}

/// Drops the rights that the sandbox dropped: all capabilities for ever, every user but the job's, and every group but
/// the job's and `storage_group`.
fn drop_rights(uid: Option<u32>, storage_group: Option<u32>) -> io::Result<()> {
    for number in 0..64 {
        let one = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::remove_capability_from_bounding_set(one) {
            Ok(()) => {}
            // The kernel has no further capabilities.
            Err(rustix::io::Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    if let Some(uid) = uid {
        let groups: Vec<Gid> = storage_group.map(Gid::from_raw).into_iter().collect();
        setgroups(&groups)?;
        let group = Gid::from_raw(uid);
        setresgid(group, group, group)?;
        let user = Uid::from_raw(uid);
        setresuid(user, user, user)?;
    }
    // In a user namespace the exec drops the capabilities: the user there is not root.
    Ok(())
}

/// Waits for the shell. Ends it after a close by the daemon or a signal.
fn wait_for_shell(mut child: Child, signals: &SignalFd, control: BorrowedFd<'_>) -> io::Result<i32> {
    let mut end_by: Option<Instant> = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)));
        }
        let left = end_by.map(|at| at.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            child.kill()?;
        }
        let timeout = match left {
            Some(left) => PollTimeout::try_from(left.as_millis().max(50)).unwrap_or(PollTimeout::ZERO),
            None => PollTimeout::NONE,
        };
        let mut events = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        if end_by.is_none() {
            events.push(PollFd::new(control, PollFlags::POLLIN));
        }
        match poll(&mut events, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        // The daemon never writes: any event on its socket is the end.
        let mut leave = events.get(1).is_some_and(|event| event.any().unwrap_or(true));
        while let Some(signal) = signals.read_signal()? {
            leave |= i32::try_from(signal.ssi_signo).is_ok_and(|n| n != Signal::SIGCHLD as i32);
        }
        if leave && end_by.is_none() {
            end_by = Some(Instant::now() + GRACE);
            if let Ok(pid) = i32::try_from(child.id()) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGHUP);
            }
        }
    }
}

fn connect(dir: &Path, control: BorrowedFd<'_>, port: u16) -> Result<i32, String> {
    let entered = enter(dir, false)?;
    let nothing = || format!("No process of the job listens on port {port} yet.");
    let at = entered.loopback_of(dir, port)?.ok_or_else(nothing)?;
    // A port that accepts nothing must not keep this process for minutes.
    let stream = TcpStream::connect_timeout(&SocketAddr::new(at.address, port), PATIENCE)
        .map_err(|e| format!("Port {port} of the job does not answer: {e}."))?;
    if !entered.listens_still(dir, port, at)? {
        return Err(nothing());
    }
    pty::send_file(control, stream.as_fd()).map_err(|e| e.to_string())?;
    Ok(0)
}
