//! The measurement of one pair of ranks over their connection: round trips, then the bytes in each direction.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::LinkFigures;
use super::meeting::{left_until, limit};

/// The number of round trips.
const ROUND_TRIPS: usize = 20;
/// The bytes of a message of a round trip, and of a number.
const NUMBER_BYTES: usize = 8;
/// The longest sending in one direction, and the most bytes.
const SEND_FOR: Duration = Duration::from_millis(500);
const MOST_BYTES: u64 = 32 << 20;
/// The bytes of one write. The receiver accepts no longer ones.
const CHUNK_BYTES: usize = 128 << 10;
/// The longest wait for the bytes of one direction: those on the way come after the sending.
const RECEIVE_WITHIN: Duration = Duration::from_secs(8);

/// One end of a pair. Each read and each write ends at the deadline.
struct End<'a> {
    stream: &'a mut TcpStream,
    deadline: Instant,
}

impl End<'_> {
    fn limit(&self, until: Instant) -> io::Result<()> {
        let left = left_until(until.min(self.deadline)).ok_or(io::ErrorKind::TimedOut)?;
        limit(self.stream, left)
    }

    fn send_number(&mut self, number: u64) -> io::Result<()> {
        self.limit(self.deadline)?;
        self.stream.write_all(&number.to_be_bytes())
    }

    fn receive_number(&mut self) -> io::Result<u64> {
        self.limit(self.deadline)?;
        let mut bytes = [0; NUMBER_BYTES];
        self.stream.read_exact(&mut bytes)?;
        Ok(u64::from_be_bytes(bytes))
    }

    /// The median of the round trips in microseconds. The first round trip, which waits for the peer, does not count.
    fn measure_round_trips(&mut self) -> io::Result<u64> {
        let mut micros = Vec::with_capacity(ROUND_TRIPS);
        for number in 0..=ROUND_TRIPS as u64 {
            let began = Instant::now();
            self.send_number(number)?;
            if self.receive_number()? != number {
                return Err(io::ErrorKind::InvalidData.into());
            }
            micros.push(u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX));
        }
        let mut counted: Vec<u64> = micros.into_iter().skip(1).collect();
        counted.sort_unstable();
        Ok(counted.get(counted.len() / 2).copied().unwrap_or(0))
    }

    fn answer_round_trips(&mut self) -> io::Result<()> {
        for _ in 0..=ROUND_TRIPS {
            let number = self.receive_number()?;
            self.send_number(number)?;
        }
        Ok(())
    }

    /// Sends bytes for half a second, with an end mark.
    fn send_bytes(&mut self) -> io::Result<()> {
        let began = Instant::now();
        let chunk = vec![0x5a; CHUNK_BYTES];
        let mut sent = 0;
        while began.elapsed() < SEND_FOR && sent < MOST_BYTES {
            self.send_number(CHUNK_BYTES as u64)?;
            self.stream.write_all(&chunk)?;
            sent += CHUNK_BYTES as u64;
        }
        self.send_number(0)
    }

    /// Receives bytes until their end mark. Returns the MiB in a second.
    fn receive_bytes(&mut self) -> io::Result<u64> {
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut length = self.receive_number()?;
        let began = Instant::now();
        let mut received: u64 = 0;
        while length > 0 {
            let place = usize::try_from(length).ok().and_then(|length| chunk.get_mut(..length));
            self.limit(began + RECEIVE_WITHIN)?;
            self.stream.read_exact(place.ok_or(io::ErrorKind::InvalidData)?)?;
            received = received.saturating_add(length);
            length = self.receive_number()?;
        }
        let micros = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX).max(1);
        Ok((received.saturating_mul(1_000_000) / micros) >> 20)
    }
}

/// Measures a pair. Both ranks have the same result: the throughput is that of the slower direction.
///
/// # Errors
/// The connection ended, the peer broke the protocol, or the deadline passed.
pub(super) fn measure(stream: &mut TcpStream, is_lower: bool, deadline: Instant) -> io::Result<LinkFigures> {
    let mut end = End { stream, deadline };
    if is_lower {
        end.answer_round_trips()?;
        let received = end.receive_bytes()?;
        end.send_bytes()?;
        end.send_number(received)?;
        let rtt_us = end.receive_number()?;
        let mib_per_s = end.receive_number()?;
        return Ok(LinkFigures { rtt_us, mib_per_s });
    }
    let rtt_us = end.measure_round_trips()?;
    end.send_bytes()?;
    let received = end.receive_bytes()?;
    let mib_per_s = end.receive_number()?.min(received);
    end.send_number(rtt_us)?;
    end.send_number(mib_per_s)?;
    Ok(LinkFigures { rtt_us, mib_per_s })
}
