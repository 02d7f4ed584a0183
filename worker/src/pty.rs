//! A terminal for a shell, and how an open file is handed from one process to another.
//!
//! Small and close to the kernel: nothing here knows an attempt.

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

/// What comes with an open file.
const HERE: &[u8] = b"+";
/// Begins the words of whoever could not open it.
const SORRY: &[u8] = b"-";

/// How large a terminal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub cols: u16,
    pub rows: u16,
}

impl Size {
    /// What somebody asked for, brought to what a terminal can be.
    pub fn clamped(cols: u32, rows: u32) -> Self {
        let fit = |n: u32| u16::try_from(n.clamp(1, 1_000)).unwrap_or(1);
        Self { cols: fit(cols), rows: fit(rows) }
    }
}

/// A new terminal of the file system that this process sees: the side of whoever looks, and the shell's.
pub fn open(size: Size) -> io::Result<(OwnedFd, File)> {
    let ours = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::pty::unlockpt(&ours)?;
    let name = rustix::pty::ptsname(&ours, Vec::new())?;
    let path = std::path::Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
    let theirs = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOCTTY).open(path)?;
    resize(ours.as_fd(), size)?;
    Ok((ours, theirs))
}

/// Gives a terminal another size; who works in it is told by the kernel.
pub fn resize(terminal: BorrowedFd<'_>, size: Size) -> io::Result<()> {
    let size = Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(rustix::termios::tcsetwinsize(terminal, size)?)
}

/// Gives an open file to the process at the other end of a socket.
pub fn hand_over(socket: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<()> {
    let files = [file];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(HERE)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Says to the process at the other end why there is no file for it.
pub fn apologise(socket: BorrowedFd<'_>, why: &str) -> io::Result<()> {
    let parts = [IoSlice::new(SORRY), IoSlice::new(why.as_bytes())];
    rustix::net::sendmsg(socket, &parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The open file that the other end gives, or its words why not. Waits for as long as the socket's own limit.
pub fn receive(socket: BorrowedFd<'_>) -> Result<OwnedFd, String> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut said = [0u8; 512];
    let mut parts = [IoSliceMut::new(&mut said)];
    let came = rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
        .map_err(|e| format!("nothing came: {}", io::Error::from(e)))?;
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    file.ok_or_else(|| {
        let words = said.get(..came.bytes).and_then(|said| said.strip_prefix(SORRY)).unwrap_or_default();
        if words.is_empty() {
            "it ended at once".to_owned()
        } else {
            String::from_utf8_lossy(words).into_owned()
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
        hand_over(here.as_fd(), theirs.as_fd()).unwrap();
        drop(theirs);
        let mut received = UnixStream::from(receive(there.as_fd()).unwrap());
        mine.write_all(b"x").unwrap();
        let mut byte = [0];
        received.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
        apologise(here.as_fd(), "the port is closed").unwrap();
        assert_eq!(receive(there.as_fd()).unwrap_err(), "the port is closed");
        drop(here);
        assert_eq!(receive(there.as_fd()).unwrap_err(), "it ended at once");
    }

    #[test]
    fn a_terminal_has_a_size_that_can_change() {
        let (ours, theirs) = open(Size { cols: 80, rows: 24 }).unwrap();
        let size = || rustix::termios::tcgetwinsize(&theirs).map(|s| (s.ws_col, s.ws_row)).unwrap();
        assert_eq!(size(), (80, 24));
        resize(ours.as_fd(), Size { cols: 132, rows: 50 }).unwrap();
        assert_eq!(size(), (132, 50));
    }

    #[test]
    fn no_size_is_impossible() {
        assert_eq!(Size::clamped(0, u32::MAX), Size { cols: 1, rows: 1_000 });
        assert_eq!(Size::clamped(80, 24), Size { cols: 80, rows: 24 });
    }
}
