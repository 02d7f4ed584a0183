//! Terminals, and open files on their way from one process to another.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;

use nix::libc;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

/// The message with an open file.
const FILE: &[u8] = b"+";
/// The start of a message with an error.
const ERROR: &[u8] = b"-";

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    pub cols: u16,
    pub rows: u16,
}

impl TerminalSize {
    /// The requested size within the limits of a terminal.
    pub fn clamped(cols: u32, rows: u32) -> Self {
        let fit = |n: u32| u16::try_from(n.clamp(1, 1_000)).unwrap_or(1);
        Self { cols: fit(cols), rows: fit(rows) }
    }
}

/// A new terminal in the file system of this process: the controlling side, and the shell's side.
pub fn open(size: TerminalSize) -> io::Result<(OwnedFd, File)> {
    let ours = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::pty::unlockpt(&ours)?;
    let name = rustix::pty::ptsname(&ours, Vec::new())?;
    let path = std::path::Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
    let theirs = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOCTTY).open(path)?;
    resize(ours.as_fd(), size)?;
    Ok((ours, theirs))
}

/// Changes the size of a terminal. The kernel notifies the processes there.
pub fn resize(terminal: BorrowedFd<'_>, size: TerminalSize) -> io::Result<()> {
    let size = Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(rustix::termios::tcsetwinsize(terminal, size)?)
}

/// Sends an open file to the process at the other end of a socket.
pub fn send_file(socket: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<()> {
    let files = [file];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(FILE)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Sends the reason for a missing file to the process at the other end.
pub fn send_error(socket: BorrowedFd<'_>, why: &str) -> io::Result<()> {
    let parts = [IoSlice::new(ERROR), IoSlice::new(why.as_bytes())];
    rustix::net::sendmsg(socket, &parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives an open file within the time limit of the socket.
///
/// # Errors
/// The reason of the other end for a missing file.
pub fn receive_file(socket: BorrowedFd<'_>) -> Result<OwnedFd, String> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut message = [0u8; 512];
    let mut parts = [IoSliceMut::new(&mut message)];
    let received = rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
        .map_err(|e| format!("no file received: {}", io::Error::from(e)))?;
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    file.ok_or_else(|| {
        let text =
            message.get(..received.bytes).and_then(|text| text.strip_prefix(ERROR)).unwrap_or_default();
        if text.is_empty() {
            "the process ended at once".to_owned()
        } else {
            String::from_utf8_lossy(text).into_owned()
        }
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_file_is_handed_from_one_to_another() {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut mine, theirs) = UnixStream::pair().unwrap();
        send_file(here.as_fd(), theirs.as_fd()).unwrap();
        drop(theirs);
        let mut received = UnixStream::from(receive_file(there.as_fd()).unwrap());
        mine.write_all(b"x").unwrap();
        let mut byte = [0];
        received.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
        send_error(here.as_fd(), "the port is closed").unwrap();
        assert_eq!(receive_file(there.as_fd()).unwrap_err(), "the port is closed");
        drop(here);
        assert_eq!(receive_file(there.as_fd()).unwrap_err(), "the process ended at once");
    }

    #[test]
    fn a_terminal_has_a_size_that_can_change() {
        let (ours, theirs) = open(TerminalSize { cols: 80, rows: 24 }).unwrap();
        let size = || rustix::termios::tcgetwinsize(&theirs).map(|s| (s.ws_col, s.ws_row)).unwrap();
        assert_eq!(size(), (80, 24));
        resize(ours.as_fd(), TerminalSize { cols: 132, rows: 50 }).unwrap();
        assert_eq!(size(), (132, 50));
    }

    #[test]
    fn no_size_is_impossible() {
        assert_eq!(TerminalSize::clamped(0, u32::MAX), TerminalSize { cols: 1, rows: 1_000 });
        assert_eq!(TerminalSize::clamped(80, 24), TerminalSize { cols: 80, rows: 24 });
    }
}
