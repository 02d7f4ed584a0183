//! The packets between the daemon and the forker.

use std::ffi::OsStr;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

/// The longest path of the kernel.
const LONGEST_PATH: usize = 4_096;
/// The longest request: a number and a path.
pub(super) const REQUEST: usize = size_of::<u64>() + LONGEST_PATH;
/// The length of an event: a number, a letter, and a pid or an `errno`.
pub(super) const EVENT: usize = size_of::<u64>() + 1 + size_of::<i32>();

/// A request for a shim in this directory. Events name the shim by the number.
pub(super) fn encode_request(number: u64, dir: &Path) -> io::Result<Vec<u8>> {
    let path = dir.as_os_str().as_bytes();
    if path.len() > LONGEST_PATH {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut packet = number.to_le_bytes().to_vec();
    packet.extend(path);
    Ok(packet)
}

pub(super) fn decode_request(packet: &[u8]) -> Option<(u64, &Path)> {
    let (number, path) = packet.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*number), Path::new(OsStr::from_bytes(path))))
}

/// An event of a requested shim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShimEvent {
    /// The shim has this pid.
    Started(i32),
    /// The fork failed with this `errno`.
    Failed(i32),
    /// The shim has ended and is collected.
    Ended,
}

impl ShimEvent {
    pub fn encode(self, number: u64) -> Vec<u8> {
        let (letter, value) = match self {
            Self::Started(pid) => (b's', pid),
            Self::Failed(errno) => (b'f', errno),
            Self::Ended => (b'e', 0),
        };
        let mut packet = number.to_le_bytes().to_vec();
        packet.push(letter);
        packet.extend(value.to_le_bytes());
        packet
    }

    pub fn decode(packet: &[u8]) -> Option<(u64, Self)> {
        let (number, rest) = packet.split_first_chunk::<8>()?;
        let (letter, value) = rest.split_first()?;
        let value = i32::from_le_bytes(value.try_into().ok()?);
        let event = match letter {
            b's' => Self::Started(value),
            b'f' => Self::Failed(value),
            b'e' => Self::Ended,
            _ => return None,
        };
        Some((u64::from_le_bytes(*number), event))
    }
}

/// Sends a packet, with an open file if there is one.
pub(super) fn send(socket: BorrowedFd<'_>, packet: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if file.is_some() && !control.push(SendAncillaryMessage::ScmRights(file.as_slice())) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let parts = [IoSlice::new(packet)];
    retry_on_intr(|| rustix::net::sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Receives a packet: its length, which is 0 after the end of the other side, and its open file.
pub(super) fn receive(socket: BorrowedFd<'_>, packet: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(packet)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = retry_on_intr(|| rustix::net::recvmsg(socket, &mut parts, &mut control, flags))?;
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    Ok((received.bytes, file))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    use nix::errno::Errno;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn requests_and_events_are_decoded() {
        let packet = encode_request(u64::MAX, Path::new("/data/attempts/job_x-1")).unwrap();
        assert_eq!(decode_request(&packet), Some((u64::MAX, Path::new("/data/attempts/job_x-1"))));
        assert_eq!(decode_request(&packet[..7]), None);
        assert!(encode_request(1, Path::new(&"x".repeat(LONGEST_PATH))).unwrap().len() <= REQUEST);
        assert!(encode_request(1, Path::new(&"x".repeat(LONGEST_PATH + 1))).is_err());
        for event in [ShimEvent::Started(7), ShimEvent::Failed(Errno::EAGAIN as i32), ShimEvent::Ended] {
            let packet = event.encode(7);
            assert_eq!((ShimEvent::decode(&packet), packet.len()), (Some((7, event)), EVENT));
            assert_eq!(ShimEvent::decode(&packet[..EVENT - 1]), None);
        }
        assert_eq!(ShimEvent::decode(&[]), None);
        assert_eq!(ShimEvent::decode(&[b'?'; EVENT]), None);
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
