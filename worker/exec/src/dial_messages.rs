//! The messages between the daemon and the dialer of a replica, on a socket that keeps their limits.
//!
//! A request is a number and a port. Its answer is one byte of state and the number, with the open connection if there
//! is one. A dialer that cannot enter its attempt sends one error (`berth_system::pty::send_error`) and ends.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

const CONNECTED: u8 = 0;
const NO_LISTENER: u8 = 1;
const NO_ANSWER: u8 = 2;
/// The start of an error of the whole dialer.
const ERROR: u8 = b'-';

/// The reason for a missing connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DialRefusal {
    /// The attempt does not listen on the port, or somebody else does.
    NoListener,
    /// The port does not accept the connection in time.
    NoAnswer,
}

impl DialRefusal {
    /// The reason as a sentence.
    pub(super) fn text(self, port: u16) -> String {
        match self {
            Self::NoListener => format!("No process of the job listens on port {port} yet."),
            Self::NoAnswer => format!("Port {port} of the job does not answer."),
        }
    }
}

/// A message of the dialer.
#[derive(Debug)]
pub(super) enum DialerMessage {
    /// The answer to the request with this number.
    Answer(u32, Result<OwnedFd, DialRefusal>),
    /// The dialer cannot work.
    Failed(String),
    /// A message of no known form.
    Unknown,
}

/// Sends a request to the dialer.
pub(super) fn send_request(socket: BorrowedFd<'_>, number: u32, port: u16) -> io::Result<()> {
    let (number, port) = (number.to_be_bytes(), port.to_be_bytes());
    let parts = [IoSlice::new(&number), IoSlice::new(&port)];
    rustix::net::sendmsg(socket, &parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The number and the port of the next request. `None`: the daemon is gone.
pub(super) fn receive_request(socket: BorrowedFd<'_>) -> io::Result<Option<(u32, u16)>> {
    let mut message = [0u8; 7];
    match (nix::unistd::read(socket, &mut message)?, message) {
        (0, _) => Ok(None),
        (6, [a, b, c, d, high, low, _]) => {
            Ok(Some((u32::from_be_bytes([a, b, c, d]), u16::from_be_bytes([high, low]))))
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Sends the answer to a request.
pub(super) fn send_answer(
    socket: BorrowedFd<'_>,
    number: u32,
    result: Result<BorrowedFd<'_>, DialRefusal>,
) -> io::Result<()> {
    let state = match result {
        Ok(_) => CONNECTED,
        Err(DialRefusal::NoListener) => NO_LISTENER,
        Err(DialRefusal::NoAnswer) => NO_ANSWER,
    };
    let files: Vec<BorrowedFd<'_>> = result.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let (state, number) = ([state], number.to_be_bytes());
    let parts = [IoSlice::new(&state), IoSlice::new(&number)];
    rustix::net::sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The next message of the dialer. `None`: it has ended.
pub(super) fn receive_answer(socket: BorrowedFd<'_>) -> io::Result<Option<DialerMessage>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut message = [0u8; 512];
    let mut parts = [IoSliceMut::new(&mut message)];
    let received = rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    let message = message.get(..received.bytes).unwrap_or_default();
    Ok(match (message, file) {
        ([], None) => None,
        ([ERROR, text @ ..], None) => Some(DialerMessage::Failed(String::from_utf8_lossy(text).into_owned())),
        ([state, a, b, c, d], file) => {
            let result = match (*state, file) {
                (CONNECTED, Some(file)) => Ok(file),
                (NO_LISTENER, _) => Err(DialRefusal::NoListener),
                (_, _) => Err(DialRefusal::NoAnswer),
            };
            Some(DialerMessage::Answer(u32::from_be_bytes([*a, *b, *c, *d]), result))
        }
        _ => Some(DialerMessage::Unknown),
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use berth_system::pty;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn requests_keep_their_limits() {
        let (daemon, dialer) = pair();
        let all = [(0, 1), (1, 80), (u32::MAX, u16::MAX), (0x2d00_0000, 0x2d00)];
        for (number, port) in all {
            send_request(daemon.as_fd(), number, port).unwrap();
        }
        for request in all {
            assert_eq!(receive_request(dialer.as_fd()).unwrap(), Some(request));
        }
        for length in [1, 5, 7, 100] {
            rustix::net::send(&daemon, &vec![1u8; length], SendFlags::empty()).unwrap();
            assert!(receive_request(dialer.as_fd()).is_err(), "{length} bytes are no request");
        }
        drop(daemon);
        assert_eq!(receive_request(dialer.as_fd()).unwrap(), None);
    }

    #[test]
    fn each_answer_has_its_number_and_its_file() {
        let (daemon, dialer) = pair();
        let (mut mine, theirs) = UnixStream::pair().unwrap();
        // The first byte of the second number is that of an error.
        for number in [7, 0x2d2d_2d2d] {
            send_answer(dialer.as_fd(), number, Err(DialRefusal::NoListener)).unwrap();
            send_answer(dialer.as_fd(), number, Ok(theirs.as_fd())).unwrap();
            send_answer(dialer.as_fd(), number, Err(DialRefusal::NoAnswer)).unwrap();
            for expected in [Some(DialRefusal::NoListener), None, Some(DialRefusal::NoAnswer)] {
                let Some(DialerMessage::Answer(known, result)) = receive_answer(daemon.as_fd()).unwrap()
                else {
                    panic!("no answer")
                };
                assert_eq!((known, result.as_ref().err().copied()), (number, expected));
                if let Ok(file) = result {
                    UnixStream::from(file).write_all(b"x").unwrap();
                    let mut byte = [0];
                    mine.read_exact(&mut byte).unwrap();
                    assert_eq!(&byte, b"x");
                }
            }
        }
    }

    #[test]
    fn an_error_is_no_answer() {
        let (daemon, dialer) = pair();
        pty::send_error(dialer.as_fd(), "none").unwrap();
        rustix::net::send(&dialer, b"123", SendFlags::empty()).unwrap();
        // A state of a connection without one.
        rustix::net::send(&dialer, &[0, 0, 0, 0, 9], SendFlags::empty()).unwrap();
        drop(dialer);
        let next = || receive_answer(daemon.as_fd()).unwrap();
        assert!(matches!(next(), Some(DialerMessage::Failed(text)) if text == "none"));
        assert!(matches!(next(), Some(DialerMessage::Unknown)));
        assert!(matches!(next(), Some(DialerMessage::Answer(9, Err(DialRefusal::NoAnswer)))));
        assert!(next().is_none(), "it has ended");
    }
}
