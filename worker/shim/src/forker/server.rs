//! The forker process.

#![expect(unsafe_code, reason = "the caller of fork promises that there is no other thread")]

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use berth_isolation::seccomp;
use berth_system::clock::boot_id;
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{ForkResult, dup2_stdin, fork};
use rustix::process::WaitOptions;

use super::protocol::{REQUEST, ShimEvent, decode_request, receive, send};
use crate::run::run as run_shim;

/// The length of an attempt's name in the process name, after the word `shim`.
const NAME: usize = 10;

/// Forks shims on request until the daemon ends.
pub fn run() -> io::Result<()> {
    // A signal to the daemon's group or terminal is for the daemon, and the socket reports its end.
    let blocked = [Signal::SIGCHLD, Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
    SigSet::from_iter(blocked).thread_set_mask()?;
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let ends = SignalFd::with_flags(&SigSet::from(Signal::SIGCHLD), flags)?;
    let null = File::open("/dev/null")?;
    // Computed once for all forks. A shim that needs the filters reports an error.
    boot_id();
    let _ = seccomp::filters();
    let socket = io::stdin();
    let mut packet = vec![0; REQUEST];
    // The numbers of running shims, by pid.
    let mut forked: HashMap<i32, u64> = HashMap::new();
    loop {
        let mut fds =
            [PollFd::new(socket.as_fd(), PollFlags::POLLIN), PollFd::new(ends.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            result => result?,
        };
        let [requested, ended] = fds.map(|fd| fd.any() != Some(false));
        if ended {
            collect(&ends, socket.as_fd(), &mut forked)?;
        }
        if requested {
            let (length, secrets) = receive(socket.as_fd(), &mut packet)?;
            let Some((number, dir)) = packet.get(..length).and_then(decode_request) else { return Ok(()) };
            let event = match fork_shim(dir, secrets, &null) {
                Ok(pid) => {
                    forked.insert(pid, number);
                    ShimEvent::Started(pid)
                }
                Err(errno) => ShimEvent::Failed(errno as i32),
            };
            send(socket.as_fd(), &event.encode(number), None)?;
        }
    }
}

/// Collects ended shims and reports them.
fn collect(ends: &SignalFd, socket: BorrowedFd<'_>, forked: &mut HashMap<i32, u64>) -> io::Result<()> {
    // One signal may stand for several ends.
    while let Ok(Some(_)) = ends.read_signal() {}
    while let Ok(Some((pid, _))) = rustix::process::wait(WaitOptions::NOHANG) {
        if let Some(number) = forked.remove(&pid.as_raw_pid()) {
            send(socket, &ShimEvent::Ended.encode(number), None)?;
        }
    }
    Ok(())
}

/// Forks a shim and returns its pid. In the shim it does not return.
fn fork_shim(dir: &Path, secrets: Option<OwnedFd>, null: &File) -> Result<i32, Errno> {
    // SAFETY: this process has one thread, which goes on in the fork; so no other thread holds a lock there, and the
    // fork may call anything.
    if let ForkResult::Parent { child } = unsafe { fork() }? {
        return Ok(child.as_raw());
    }
    let input = secrets.as_ref().map_or(null.as_fd(), |pipe| pipe.as_fd());
    let result = become_shim(dir, input).map_err(|e| e.to_string()).and_then(|()| run_shim(dir));
    // A return would go on as a forker, and exit handlers of the forker must not run in a fork.
    // SAFETY: no buffered output is left.
    unsafe { libc::_exit(i32::from(result.is_err())) }
}

/// Gives a fork the state of a new program.
fn become_shim(dir: &Path, input: BorrowedFd<'_>) -> io::Result<()> {
    // The input replaces the socket: a copy of that would hide the forker's end from the daemon. All other files
    // have the close-on-exec flag.
    dup2_stdin(input)?;
    let name = dir.file_name().unwrap_or_default().as_bytes();
    // Ids of the same time differ only at the end.
    let end = name.get(name.len().saturating_sub(NAME)..).unwrap_or_default();
    let name = CString::new([b"shim ".as_slice(), end].concat())?;
    prctl::set_name(&name)?;
    SigSet::empty().thread_set_mask()?;
    Ok(())
}
