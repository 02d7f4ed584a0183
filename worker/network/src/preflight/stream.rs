//! Reads and writes of a connection with a deadline for all of their bytes, and the detection of a dead peer.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use socket2::SockRef;

/// A silent peer is probed after this time, so often, and at this distance in seconds.
const PROBE_AFTER_S: u32 = 5;
const PROBE_EVERY_S: u32 = 2;
const PROBES: u32 = 5;
/// The longest time without an acknowledgement of sent bytes in milliseconds.
const UNACKNOWLEDGED_MS: u32 = 15_000;
/// The most bytes that wait in the kernel to be sent. With megabytes a slow link needs many seconds after the last write.
const WAITING_BYTES: u32 = 256 << 10;

/// The time until a deadline. `None`: it has passed.
pub(super) fn left_until(deadline: Instant) -> Option<Duration> {
    Some(deadline.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
}

/// Makes a connection fail within seconds after its peer or the path to it is gone, and sends each write at once.
pub(super) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &PROBE_AFTER_S)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &PROBE_EVERY_S)?;
    setsockopt(stream, sockopt::TcpKeepCount, &PROBES)?;
    setsockopt(stream, sockopt::TcpUserTimeout, &UNACKNOWLEDGED_MS)?;
    SockRef::from(stream).set_tcp_notsent_lowat(WAITING_BYTES)
}

/// The time for one call until the deadline. A limit of zero is an error, so the shortest is a millisecond.
fn call_limit(deadline: Instant) -> io::Result<Option<Duration>> {
    let left = left_until(deadline).ok_or(ErrorKind::TimedOut)?;
    Ok(Some(left.max(Duration::from_millis(1))))
}

/// Fills `bytes` until the deadline. A peer that sends single bytes gets no longer time than another.
pub(super) fn read_all(stream: &mut TcpStream, mut bytes: &mut [u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_read_timeout(call_limit(deadline)?)?;
        match stream.read(bytes) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => bytes = bytes.get_mut(count..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes `bytes` until the deadline.
pub(super) fn write_all(stream: &mut TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(call_limit(deadline)?)?;
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (connected, listener.accept().unwrap().0)
    }

    #[test]
    fn single_bytes_do_not_extend_the_deadline() {
        let (mut reader, mut writer) = pair();
        let (limit, pause) = (Duration::from_millis(400), Duration::from_millis(100));
        let drip = thread::spawn(move || {
            for _ in 0..40 {
                thread::sleep(pause);
                if writer.write_all(b"x").is_err() {
                    break;
                }
            }
        });
        let error = read_all(&mut reader, &mut [0; 40], Instant::now() + limit).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock), "{error:?}");
        drop(reader);
        drip.join().unwrap();
    }

    #[test]
    fn a_peer_that_reads_nothing_ends_a_write_at_the_deadline() {
        let (mut writer, _reader) = pair();
        let began = Instant::now();
        let error =
            write_all(&mut writer, &vec![0; 64 << 20], began + Duration::from_millis(300)).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock), "{error:?}");
    }

    #[test]
    fn all_bytes_arrive() {
        let (mut writer, mut reader) = pair();
        let deadline = Instant::now() + Duration::from_secs(30);
        let sent: Vec<u8> = (0..3_000_000u32).map(|number| (number % 251) as u8).collect();
        let bytes = sent.clone();
        let write = thread::spawn(move || write_all(&mut writer, &bytes, deadline));
        let mut received = vec![0; sent.len()];
        read_all(&mut reader, &mut received, deadline).unwrap();
        assert!(received == sent);
        write.join().unwrap().unwrap();
        assert_eq!(
            read_all(&mut reader, &mut [0; 1], deadline).unwrap_err().kind(),
            ErrorKind::UnexpectedEof,
            "the writer has gone"
        );
    }
}
