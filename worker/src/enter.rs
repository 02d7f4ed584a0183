//! The process that brings somebody into a running attempt: `berth-worker enter DIR`.
//!
//! It joins the attempt's cgroups and namespaces and there opens a terminal with a shell, or a connection to
//! a port, and hands it to the daemon through its standard input, a socket. What it starts has no more rights
//! than the attempt itself: its user, no capability, the same filter of system calls. It must not pass bytes
//! on itself, and leaves with the daemon, the shell or the attempt, whichever is first.

#![expect(unsafe_code, reason = "what happens between fork and exec can only be said in an unsafe hook")]

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Gid, Pid, Uid, setgroups, setresgid, setresuid, setsid};
use rustix::process::PidfdFlags;
use rustix::thread::CapabilitySet;

use crate::files::find_json;
use crate::processes;
use crate::pty::{self, Size};
use crate::shim::{self, Container, Launch, Start};
use crate::{attempts, reaping, seccomp};

/// Between a shell's notice to leave and its end.
const GRACE: Duration = Duration::from_secs(2);
/// For a port to answer; the daemon waits a little longer.
const PATIENCE: Duration = Duration::from_secs(8);
const ENDED: &str = "The job has ended.";
const NOT_READY: &str = "The job is still starting; try again in a moment.";
const NO_INIT: &str = "This node has no init program for containers (such as catatonit), so there is no terminal into a job in an image.";
/// Namespaces as `/proc` calls them.
const NAMESPACES: [(&str, CloneFlags); 7] = [
    ("user", CloneFlags::CLONE_NEWUSER),
    ("mnt", CloneFlags::CLONE_NEWNS),
    ("pid", CloneFlags::CLONE_NEWPID),
    ("ipc", CloneFlags::CLONE_NEWIPC),
    ("uts", CloneFlags::CLONE_NEWUTS),
    ("net", CloneFlags::CLONE_NEWNET),
    ("cgroup", CloneFlags::CLONE_NEWCGROUP),
];

/// What somebody wants inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    Shell(Size),
    /// A connection to a TCP port on which the attempt listens.
    Port(u16),
}

/// Says that somebody is inside, for as long as it is held.
fn lock_of(dir: &Path, pid: u32) -> PathBuf {
    dir.join(format!("enter-{pid}.lock"))
}

/// The processes that stand at the door of the attempt in this directory, with their locks.
fn doors(dir: &Path) -> Vec<(i32, PathBuf)> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let door = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        let pid = name.to_str()?.strip_prefix("enter-")?.strip_suffix(".lock")?.parse().ok()?;
        Some((pid, entry.path()))
    };
    entries.flatten().filter_map(door).collect()
}

/// The lock of a door when nobody holds it.
fn free(path: &Path) -> io::Result<Option<Flock<File>>> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    Ok(Flock::lock(file, FlockArg::LockExclusiveNonblock).ok())
}

/// The processes below which people are inside the attempt of this directory.
pub fn inside(dir: &Path) -> Vec<i32> {
    let held = doors(dir).into_iter().filter(|(_, path)| matches!(free(path), Ok(None)));
    held.map(|(pid, _)| pid).collect()
}

/// Every process of people who are inside the attempt of this directory.
pub fn processes(dir: &Path) -> Vec<u32> {
    let below = inside(dir).into_iter().flat_map(processes::descendants);
    below.filter_map(|(pid, _)| u32::try_from(pid).ok()).collect()
}

/// Ends everybody who is still inside, and waits until they are gone. Called when the attempt has ended: who
/// comes later sees that, and goes by itself.
pub fn turn_out(dir: &Path) -> io::Result<()> {
    for (pid, path) in doors(dir) {
        if free(&path)?.is_none() {
            // The lock is held, so the number is still that process's.
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
            let file = OpenOptions::new().read(true).write(true).open(&path)?;
            Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| io::Error::from(errno))?;
        }
    }
    Ok(())
}

/// Does what was wished for, until it is over; gives the exit code. The daemon hears of failures.
pub fn run(dir: &Path, wish: Wish) -> Result<i32, String> {
    let control = io::stdin().as_fd().try_clone_to_owned().map_err(|e| e.to_string())?;
    let result = match wish {
        Wish::Shell(size) => shell(dir, control.as_fd(), size),
        Wish::Port(port) => connect(dir, control.as_fd(), port),
    };
    result.inspect_err(|why| {
        // A daemon that is gone needs no words.
        let _ = pty::apologise(control.as_fd(), why);
    })
}

/// An attempt from within.
struct Inside {
    launch: Launch,
    uid: Option<u32>,
    isolated: bool,
    _lock: Flock<File>,
}

fn told(what: &'static str) -> impl Fn(io::Error) -> String {
    move |error| format!("{what}: {error}.")
}

/// Goes into the attempt. Afterwards this process sees what the attempt sees; only what it starts is among
/// the attempt's processes.
fn step_in(dir: &Path, joins: bool) -> Result<Inside, String> {
    let path = lock_of(dir, std::process::id());
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    let file = file.map_err(told("The job's directory cannot be written"))?;
    let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| NOT_READY.to_owned())?;
    // After the lock: whoever cleans up afterwards waits for it.
    let known = shim::Records::read(dir);
    if known.exit.is_some() || attempts::given_up(dir) {
        return Err(ENDED.to_owned());
    }
    let launch: Launch = find_json(&dir.join(shim::LAUNCH)).ok_or(NOT_READY)?;
    let start = known.start.ok_or(NOT_READY)?;
    if !shim::exists(&start) {
        return Err(ENDED.to_owned());
    }
    let uid = attempts::user_of(dir);
    let sandbox = match (&launch.container, launch.sandbox_depth) {
        (None, 0) => None,
        (None, depth) => Some(sandbox_of(&start, start.pid, depth)?),
        // Below an init of its own the command proves that the container stands; without one the first process
        // may still be the runtime's, which sees the host.
        (Some(_), 0 | 1) => return Err(NO_INIT.to_owned()),
        (Some(container), depth) => Some(sandbox_of(&start, supervisor_of(dir, container)?, depth)?),
    };
    // From here on it is near the tenant, who must not look into it.
    prctl::set_dumpable(false).map_err(|e| e.to_string())?;
    prctl::set_child_subreaper(true).map_err(|e| e.to_string())?;
    if joins {
        let limits = &launch.limits;
        shim::limit(limits).map_err(told("The job's limits cannot be taken over"))?;
        if let Some(sandbox) = sandbox.as_ref().filter(|_| limits.nested) {
            limits.group.join_beside(sandbox.first).map_err(told("The job's limits cannot be taken over"))?;
        }
    }
    if let Some(sandbox) = &sandbox {
        setns(&sandbox.process, sandbox.kinds)
            .map_err(|errno| format!("The job's sandbox cannot be entered: {}.", io::Error::from(errno)))?;
    }
    Ok(Inside { launch, uid, isolated: sandbox.is_some(), _lock: lock })
}

/// The process that stands over a container.
fn supervisor_of(dir: &Path, container: &Container) -> Result<i32, String> {
    let text = std::fs::read_to_string(&container.supervisor).map_err(|_| NOT_READY.to_owned())?;
    let pid = text.trim().parse::<i32>().map_err(|_| NOT_READY.to_owned())?;
    let shim = shim::shim_pid(dir).ok_or(ENDED)?;
    // The number may be another process's by now.
    let ours = processes::descendants(shim).iter().any(|(other, _)| *other == pid);
    ours.then_some(pid).ok_or_else(|| NOT_READY.to_owned())
}

/// A sandbox by its first process.
struct Entrance {
    first: i32,
    process: OwnedFd,
    /// Which of its namespaces are others than this process's.
    kinds: CloneFlags,
}

/// The way into a sandbox. `over` is what its first process is a child of.
fn sandbox_of(start: &Start, over: i32, depth: u32) -> Result<Entrance, String> {
    let below = processes::descendants(over);
    // The command itself is only there when the sandbox stands.
    if !below.iter().any(|(_, at)| *at >= depth) {
        return Err(NOT_READY.to_owned());
    }
    let first = below.iter().find(|(_, at)| *at == 1).map(|(pid, _)| *pid).ok_or(NOT_READY)?;
    let before = processes::stat(first).ok_or(ENDED)?;
    let number = rustix::process::Pid::from_raw(first).ok_or(ENDED)?;
    let process = rustix::process::pidfd_open(number, PidfdFlags::empty())
        .map_err(|e| format!("The job's sandbox cannot be found: {}.", io::Error::from(e)))?;
    let mut kinds = CloneFlags::empty();
    for (name, kind) in NAMESPACES {
        let of = |who: &str| std::fs::metadata(format!("/proc/{who}/ns/{name}")).map(|m| (m.dev(), m.ino()));
        match (of(&first.to_string()), of("self")) {
            (Ok(theirs), Ok(ours)) if theirs != ours => kinds |= kind,
            (Ok(_), Ok(_)) => {}
            (Err(error), _) | (_, Err(error)) => {
                return Err(told("The job's sandbox cannot be looked at")(error));
            }
        }
    }
    // The number may have become another's meanwhile.
    let same = processes::stat(first).is_some_and(|now| now.started == before.started && now.parent == over);
    if !same || !shim::exists(start) {
        return Err(ENDED.to_owned());
    }
    if kinds.contains(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID) {
        Ok(Entrance { first, process, kinds })
    } else {
        Err(NOT_READY.to_owned())
    }
}

fn shell(dir: &Path, control: BorrowedFd<'_>, size: Size) -> Result<i32, String> {
    let inside = step_in(dir, true)?;
    let (ours, theirs) = pty::open(size).map_err(told("No terminal can be opened"))?;
    if let Some(uid) = inside.uid {
        std::os::unix::fs::fchown(&theirs, Some(uid), Some(uid))
            .map_err(told("The terminal cannot be given away"))?;
    }
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGCHLD] {
        signals.add(signal);
    }
    signals.thread_block().map_err(|e| e.to_string())?;
    let heard = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(|e| e.to_string())?;
    let child = spawn(&inside, theirs, signals).map_err(told("No shell can be started"))?;
    pty::hand_over(control, ours.as_fd()).map_err(|e| e.to_string())?;
    // Held by the daemon alone: when it lets go, whoever works there is told.
    drop(ours);
    let code = stay(child, &heard, control).map_err(|e| e.to_string())?;
    if !inside.isolated {
        // Nothing else would find what was left behind here.
        reaping::end_all();
    }
    Ok(code)
}

fn spawn(inside: &Inside, terminal: File, blocked: SigSet) -> io::Result<Child> {
    let shell = ["/bin/bash", "/bin/sh"].into_iter().find(|p| Path::new(p).exists()).unwrap_or("/bin/sh");
    // Of a job in an image this would be podman's own.
    let env = if inside.launch.container.is_some() { &[][..] } else { &inside.launch.env[..] };
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
    let (uid, isolated) = (inside.uid, inside.isolated);
    let hook = move || {
        setsid()?;
        rustix::process::ioctl_tiocsctty(io::stdin())?;
        if isolated {
            give_up_rights(uid)?;
        }
        // Set last: a change of the user forgets it.
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

/// What the sandbox gave up when it began: capabilities, now and for ever, and a user that is not the job's.
fn give_up_rights(uid: Option<u32>) -> io::Result<()> {
    for number in 0..64 {
        let one = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::remove_capability_from_bounding_set(one) {
            Ok(()) => {}
            // Beyond the last that this kernel knows.
            Err(rustix::io::Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    if let Some(uid) = uid {
        setgroups(&[])?;
        let group = Gid::from_raw(uid);
        setresgid(group, group, group)?;
        let user = Uid::from_raw(uid);
        setresuid(user, user, user)?;
    }
    // What is held in a user namespace is lost by the exec: its user there is not root.
    Ok(())
}

/// Waits for the shell; ends it when the daemon lets go, or when told.
fn stay(mut child: Child, heard: &SignalFd, control: BorrowedFd<'_>) -> io::Result<i32> {
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
        let mut events = vec![PollFd::new(heard.as_fd(), PollFlags::POLLIN)];
        if end_by.is_none() {
            events.push(PollFd::new(control, PollFlags::POLLIN));
        }
        match poll(&mut events, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        // The daemon never writes: whatever it is, it is the end.
        let mut leave = events.get(1).is_some_and(|event| event.any().unwrap_or(true));
        while let Some(signal) = heard.read_signal()? {
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

/// Where what is sent to 127.0.0.1, or to ::1, may arrive: local addresses as the tables of `/proc/PID/net` write
/// them. An unspecified address of version 6 takes both.
const LOOPBACKS: [(&str, &[&str]); 2] = [
    ("127.0.0.1", &["00000000", "0100007F", ANY_V6, "0000000000000000FFFF00000100007F"]),
    ("::1", &[ANY_V6, "00000000000000000000000001000000"]),
];
const ANY_V6: &str = "00000000000000000000000000000000";

/// The sockets that listen on a port at one of these addresses, from such a table.
fn listeners(table: &str, port: u16, addresses: &[&str]) -> Vec<u64> {
    const LISTEN: &str = "0A";
    let socket = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (address, number) = fields.get(1)?.rsplit_once(':')?;
        let here = u16::from_str_radix(number, 16).ok()? == port && *fields.get(3)? == LISTEN;
        (here && addresses.contains(&address)).then(|| fields.get(9)?.parse().ok()).flatten()
    };
    table.lines().skip(1).filter_map(socket).collect()
}

/// Whether these processes, and they alone, listen on the port at these addresses: on a host's own network
/// others listen too, and two may have one port at different addresses.
fn is_theirs(processes: &[String], port: u16, addresses: &[&str]) -> bool {
    let table = |name: &str| {
        let read = |process: &String| std::fs::read_to_string(format!("/proc/{process}/net/{name}")).ok();
        // All of them have the same network; one may have ended meanwhile.
        processes.iter().find_map(read).map_or_else(Vec::new, |text| listeners(&text, port, addresses))
    };
    let sockets: HashSet<String> =
        table("tcp").into_iter().chain(table("tcp6")).map(|inode| format!("socket:[{inode}]")).collect();
    let files = |process: &String| {
        let files = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        files.filter_map(|file| std::fs::read_link(file.path()).ok()?.into_os_string().into_string().ok())
    };
    let held: HashSet<String> =
        processes.iter().flat_map(files).filter(|file| sockets.contains(file)).collect();
    !sockets.is_empty() && held.len() == sockets.len()
}

fn connect(dir: &Path, control: BorrowedFd<'_>, port: u16) -> Result<i32, String> {
    let inside = step_in(dir, false)?;
    let processes = || -> Result<Vec<String>, String> {
        if !inside.isolated {
            return Ok(shim::processes(dir).into_iter().map(|pid| pid.to_string()).collect());
        }
        // What is mounted there shows the job's processes and nobody else's.
        let entries = std::fs::read_dir("/proc").map_err(told("The job's processes cannot be seen"))?;
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        Ok(names.filter(|name| name.bytes().all(|b| b.is_ascii_digit())).collect())
    };
    let known = processes()?;
    let found = LOOPBACKS.into_iter().find(|(_, addresses)| is_theirs(&known, port, addresses));
    let nothing = || format!("Nothing of the job listens on port {port} yet.");
    let (address, addresses) = found.ok_or_else(nothing)?;
    // Who lets callers wait in vain must not keep this process for minutes.
    let at = address.parse::<IpAddr>().map_err(|e| e.to_string())?;
    let stream = TcpStream::connect_timeout(&SocketAddr::new(at, port), PATIENCE)
        .map_err(|e| format!("Port {port} of the job does not answer: {e}."))?;
    // Whoever came in its place in between would have taken the connection.
    if !is_theirs(&processes()?, port, addresses) {
        return Err(nothing());
    }
    pty::hand_over(control, stream.as_fd()).map_err(|e| e.to_string())?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
         0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 100 0 0 10 0\n   \
         1: 0100007F:1F90 0100007F:A0B1 01 00000000:00000000 00:00000000 00000000  1000        0 4712 1 0 20 4 30 10 -1\n   \
         2: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 9 1 0 100 0 0 10 0\n   \
         3: 0200007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 4713 1 0 100 0 0 10 0\n   garbage\n";

    #[test]
    fn only_who_listens_there_counts() {
        let [(_, four), (_, six)] = LOOPBACKS;
        assert_eq!(listeners(TABLE, 8_080, four), [4_711], "and nobody at another address");
        assert_eq!(listeners(TABLE, 22, four), [9]);
        assert_eq!(listeners(TABLE, 8_080, six), [0u64; 0]);
        assert_eq!(listeners(TABLE, 41_137, four), [0u64; 0]);
        assert_eq!(listeners("", 22, four), [0u64; 0]);
    }

    #[test]
    fn a_port_is_its_listeners_own() {
        let [(_, four), (_, six)] = LOOPBACKS;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let me = vec![std::process::id().to_string()];
        assert!(is_theirs(&me, port, four) && !is_theirs(&me, port, six));
        // The first process has the same network, and not this socket.
        assert!(!is_theirs(&["1".to_owned()], port, four));
        drop(listener);
        assert!(!is_theirs(&me, port, four));
    }

    #[test]
    fn whoever_is_inside_is_known_by_a_lock() {
        let dir = tempfile::tempdir().unwrap();
        assert!(doors(dir.path()).is_empty());
        std::fs::write(dir.path().join("enter-x.lock"), "").unwrap();
        let path = lock_of(dir.path(), std::process::id());
        std::fs::write(&path, "").unwrap();
        assert_eq!(doors(dir.path()), [(std::process::id().cast_signed(), path.clone())]);
        // Left by one that was killed: nobody is there, and nothing is waited for.
        turn_out(dir.path()).unwrap();
        assert!(processes(dir.path()).is_empty());
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let held = free(&path).unwrap().unwrap();
        assert!(processes(dir.path()).contains(&child.id()), "what this process started");
        assert_eq!(shim::among(&[1, child.id()], dir.path()), [child.id()]);
        drop(held);
        assert!(shim::among(&[child.id()], dir.path()).is_empty(), "nobody is inside any more");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
