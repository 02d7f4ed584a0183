//! Forks shims: `berth-worker forker`, a small process that the daemon starts before anything else.
//!
//! A program that is started is loaded and linked anew each time, which costs more than all that the shim of a
//! short job does; a fork of one that is warm does not. The daemon has threads and cannot fork itself. The two
//! speak by packets over a pair of sockets, of which the forker has its end as standard input. It must not
//! start a thread, know what a job is, read what a shim is told, or outlive its daemon; nothing of a shim
//! depends on it.

#![expect(unsafe_code, reason = "who forks promises that there is no other thread")]

mod client;

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{ForkResult, dup2_stdin, fork};
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use rustix::process::WaitOptions;

pub use self::client::{Ended, Forker};
use crate::{seccomp, shim};

/// The longest path that the kernel takes.
const LONGEST_PATH: usize = 4_096;
/// A request is a number and a path, an answer a number, a letter and a pid or an `errno`.
const REQUEST: usize = size_of::<u64>() + LONGEST_PATH;
const ANSWER: usize = size_of::<u64>() + 1 + size_of::<i32>();
/// What of an attempt's name `ps` has room for, after the word.
const NAME: usize = 10;

/// Asks for a shim in this directory, which is known by this number from then on.
fn request(number: u64, dir: &Path) -> io::Result<Vec<u8>> {
    let path = dir.as_os_str().as_bytes();
    if path.len() > LONGEST_PATH {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut packet = number.to_le_bytes().to_vec();
    packet.extend(path);
    Ok(packet)
}

fn read_request(packet: &[u8]) -> Option<(u64, &Path)> {
    let (number, path) = packet.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*number), Path::new(OsStr::from_bytes(path))))
}

/// What the daemon is told of a shim that it asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum News {
    /// It is this process.
    Started(i32),
    /// There is none; the kernel's `errno` says why.
    Failed(i32),
    /// It is gone and collected.
    Ended,
}

impl News {
    fn of(self, number: u64) -> Vec<u8> {
        let (letter, number_of) = match self {
            Self::Started(pid) => (b's', pid),
            Self::Failed(errno) => (b'f', errno),
            Self::Ended => (b'e', 0),
        };
        let mut packet = number.to_le_bytes().to_vec();
        packet.push(letter);
        packet.extend(number_of.to_le_bytes());
        packet
    }

    fn read(packet: &[u8]) -> Option<(u64, Self)> {
        let (number, rest) = packet.split_first_chunk::<8>()?;
        let (letter, number_of) = rest.split_first()?;
        let number_of = i32::from_le_bytes(number_of.try_into().ok()?);
        let news = match letter {
            b's' => Self::Started(number_of),
            b'f' => Self::Failed(number_of),
            b'e' => Self::Ended,
            _ => return None,
        };
        Some((u64::from_le_bytes(*number), news))
    }
}

/// Sends a packet, with an open file if there is one to hand on.
fn send(socket: BorrowedFd<'_>, packet: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if file.is_some() && !control.push(SendAncillaryMessage::ScmRights(file.as_slice())) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let parts = [IoSlice::new(packet)];
    retry_on_intr(|| rustix::net::sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Takes the next packet: its length, which is 0 when nobody is at the other end any more, and the open file
/// that came with it.
fn receive(socket: BorrowedFd<'_>, packet: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(packet)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let came = retry_on_intr(|| rustix::net::recvmsg(socket, &mut parts, &mut control, flags))?;
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    Ok((came.bytes, file))
}

/// Forks what it is asked for, for as long as there is somebody to ask.
pub fn run() -> io::Result<()> {
    // A signal to the daemon's group or terminal is meant for the daemon, whose end the socket tells.
    let deaf = [Signal::SIGCHLD, Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
    SigSet::from_iter(deaf).thread_set_mask()?;
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let ends = SignalFd::with_flags(&SigSet::from(Signal::SIGCHLD), flags)?;
    let nothing = File::open("/dev/null")?;
    // What each shim would find out anew; those that need it say it when it cannot be had.
    shim::boot_id();
    let _ = seccomp::filters();
    let socket = io::stdin();
    let mut packet = vec![0; REQUEST];
    // The shims that are there, by pid.
    let mut forked: HashMap<i32, u64> = HashMap::new();
    loop {
        let mut fds =
            [PollFd::new(socket.as_fd(), PollFlags::POLLIN), PollFd::new(ends.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            result => result?,
        };
        let [asked, ended] = fds.map(|fd| fd.any() != Some(false));
        if ended {
            collect(&ends, socket.as_fd(), &mut forked)?;
        }
        if asked {
            let (length, told) = receive(socket.as_fd(), &mut packet)?;
            let Some((number, dir)) = packet.get(..length).and_then(read_request) else { return Ok(()) };
            let news = match fork_shim(dir, told, &nothing) {
                Ok(pid) => {
                    forked.insert(pid, number);
                    News::Started(pid)
                }
                Err(errno) => News::Failed(errno as i32),
            };
            send(socket.as_fd(), &news.of(number), None)?;
        }
    }
}

/// Collects the shims that ended, and says so.
fn collect(ends: &SignalFd, socket: BorrowedFd<'_>, forked: &mut HashMap<i32, u64>) -> io::Result<()> {
    // One signal may stand for several ends, so their number says nothing.
    while let Ok(Some(_)) = ends.read_signal() {}
    while let Ok(Some((pid, _))) = rustix::process::wait(WaitOptions::NOHANG) {
        if let Some(number) = forked.remove(&pid.as_raw_pid()) {
            send(socket, &News::Ended.of(number), None)?;
        }
    }
    Ok(())
}

/// Gives the pid of a new shim, and does not return in the shim.
fn fork_shim(dir: &Path, told: Option<OwnedFd>, nothing: &File) -> Result<i32, Errno> {
    // SAFETY: this process has one thread, which goes on in the copy; so nothing there is held by another, and
    // the copy may do whatever this process could.
    if let ForkResult::Parent { child } = unsafe { fork() }? {
        return Ok(child.as_raw());
    }
    let input = told.as_ref().map_or(nothing.as_fd(), |pipe| pipe.as_fd());
    let stood = begin(dir, input).map_err(|e| e.to_string()).and_then(|()| shim::run(dir));
    // Returning would go on as a forker. What a program does before it ends has nothing to do in a copy of one.
    // SAFETY: nothing is left to be written.
    unsafe { libc::_exit(i32::from(stood.is_err())) }
}

/// Makes a copy of the forker what a program is that was just started.
fn begin(dir: &Path, input: BorrowedFd<'_>) -> io::Result<()> {
    // In the place of the socket: whoever holds that would hide the forker's end. What else is open no program
    // inherits that is started.
    dup2_stdin(input)?;
    let name = dir.file_name().unwrap_or_default().as_bytes();
    // Ids of one time begin alike; what tells them apart is at the end.
    let end = name.get(name.len().saturating_sub(NAME)..).unwrap_or_default();
    let name = CString::new([b"shim ".as_slice(), end].concat())?;
    prctl::set_name(&name)?;
    SigSet::empty().thread_set_mask()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let packet = request(u64::MAX, Path::new("/data/attempts/job_x-1")).unwrap();
        assert_eq!(read_request(&packet), Some((u64::MAX, Path::new("/data/attempts/job_x-1"))));
        assert_eq!(read_request(&packet[..7]), None);
        assert!(request(1, Path::new(&"x".repeat(LONGEST_PATH))).unwrap().len() <= REQUEST);
        assert!(request(1, Path::new(&"x".repeat(LONGEST_PATH + 1))).is_err());
        for news in [News::Started(7), News::Failed(Errno::EAGAIN as i32), News::Ended] {
            let packet = news.of(7);
            assert_eq!((News::read(&packet), packet.len()), (Some((7, news)), ANSWER));
            assert_eq!(News::read(&packet[..ANSWER - 1]), None);
        }
        assert_eq!(News::read(&[]), None);
        assert_eq!(News::read(&[b'?'; ANSWER]), None);
    }

    #[test]
    fn a_packet_is_whole_and_may_bring_a_file() {
        let (here, there) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let (mut from, mut to) = io::pipe().unwrap();
        send(here.as_fd(), b"one", None).unwrap();
        send(here.as_fd(), b"two", Some(from.as_fd())).unwrap();
        let mut packet = [0; 16];
        let (length, file) = receive(there.as_fd(), &mut packet).unwrap();
        assert_eq!((&packet[..length], file.is_some()), (b"one".as_slice(), false));
        let (length, file) = receive(there.as_fd(), &mut packet).unwrap();
        assert_eq!(&packet[..length], b"two");
        to.write_all(b"x").unwrap();
        let mut byte = [0];
        File::from(file.unwrap()).read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x", "it is the same pipe");
        drop((here, to));
        assert_eq!(receive(there.as_fd(), &mut packet).unwrap().0, 0);
        assert_eq!(from.read(&mut byte).unwrap(), 0);
    }
}
