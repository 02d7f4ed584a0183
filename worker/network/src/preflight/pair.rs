//! The measurement of one pair of ranks over their connection: round trips, then the bytes in each direction, by TCP or
//! by RDMA.

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::LinkFigures;
use super::rdma::{RdmaPair, RdmaSize};
use super::stream::{left_until, read_all, write_all};

/// The number of round trips.
const ROUND_TRIPS: usize = 20;
/// The bytes of a message of a round trip, and of a number.
const NUMBER_BYTES: usize = 8;
/// The longest sending in one direction, and the most bytes.
const SEND_FOR: Duration = Duration::from_millis(500);
const MOST_BYTES: u64 = 512 << 20;
/// The bytes of one write. The receiver accepts no longer ones.
const CHUNK_BYTES: usize = 128 << 10;
/// The most passes over a pair. A busy node makes a good link slow for a moment.
const MOST_PASSES: u32 = 3;
/// The time until the deadline of the pair that another pass needs.
const LEAVE: Duration = Duration::from_secs(3);
/// The longest wait for the bytes of one direction: those on the way come after the sending.
const RECEIVE_WITHIN: Duration = Duration::from_secs(8);
/// The longest pass after the first answer of the peer, which can be busy with another pair before it.
const PASS_WITHIN: Duration = Duration::from_secs(20);

/// The word for a direction that could not be measured.
const FAILED: u64 = u64::MAX;

/// One end of a pair. Each read and each write ends at the deadline.
struct End<'a> {
    stream: &'a mut TcpStream,
    deadline: Instant,
}

impl End<'_> {
    fn send_number(&mut self, number: u64) -> io::Result<()> {
        write_all(self.stream, &number.to_be_bytes(), self.deadline)
    }

    fn receive_number(&mut self) -> io::Result<u64> {
        let mut bytes = [0; NUMBER_BYTES];
        read_all(self.stream, &mut bytes, self.deadline)?;
        Ok(u64::from_be_bytes(bytes))
    }

    /// Limits the rest of a pass once the peer has begun it.
    fn begin_pass(&mut self) {
        self.deadline = self.deadline.min(Instant::now() + PASS_WITHIN);
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
            if number == 0 {
                self.begin_pass();
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
            if number == 0 {
                self.begin_pass();
            }
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
            write_all(self.stream, &chunk, self.deadline)?;
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
            let until = self.deadline.min(began + RECEIVE_WITHIN);
            read_all(self.stream, place.ok_or(io::ErrorKind::InvalidData)?, until)?;
            received = received.saturating_add(length);
            length = self.receive_number()?;
        }
        let micros = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX).max(1);
        Ok((received.saturating_mul(1_000_000) / micros) >> 20)
    }
}

impl End<'_> {
    /// Serves one direction of RDMA. Returns the MiB in a second, which the peer measured.
    fn serve_rdma(&mut self, rdma: &RdmaPair<'_>, size: RdmaSize) -> io::Result<u64> {
        let servers = rdma.serve(size, self.deadline);
        self.send_number(u64::from(servers.is_ok()))?;
        // The servers end with this value.
        let _servers = servers?;
        let mib_per_s = self.receive_number()?;
        if mib_per_s == FAILED {
            Err(io::Error::other("the peer cannot send by RDMA"))
        } else {
            Ok(mib_per_s)
        }
    }

    /// Sends in one direction of RDMA. Returns the MiB in a second.
    fn send_by_rdma(&mut self, rdma: &RdmaPair<'_>, size: RdmaSize) -> io::Result<u64> {
        if self.receive_number()? == 0 {
            return Err(io::Error::other("the peer cannot receive by RDMA"));
        }
        let measured = rdma.send(size, self.deadline);
        self.send_number(*measured.as_ref().unwrap_or(&FAILED))?;
        measured
    }

    /// The smaller measurement of both ranks.
    fn agree_on_size(&mut self, rdma: &RdmaPair<'_>) -> io::Result<RdmaSize> {
        let own = rdma.size();
        self.send_number(own.ports)?;
        self.send_number(own.messages)?;
        let (ports, messages) = (self.receive_number()?, self.receive_number()?);
        let size = RdmaSize { ports: own.ports.min(ports), messages: own.messages.min(messages) };
        if size.ports == 0 { Err(io::Error::other("a node has no active port")) } else { Ok(size) }
    }

    /// One pass of the lower rank.
    fn answer(&mut self, rdma: Option<&RdmaPair<'_>>) -> io::Result<LinkFigures> {
        self.answer_round_trips()?;
        let received = if let Some(rdma) = rdma {
            let size = self.agree_on_size(rdma)?;
            let received = self.serve_rdma(rdma, size)?;
            self.send_by_rdma(rdma, size)?.min(received)
        } else {
            let received = self.receive_bytes()?;
            self.send_bytes()?;
            self.send_number(received)?;
            received
        };
        let rtt_us = self.receive_number()?;
        let mib_per_s = self.receive_number()?.min(received);
        Ok(LinkFigures { rtt_us, mib_per_s })
    }

    /// One pass of the higher rank.
    fn lead(&mut self, rdma: Option<&RdmaPair<'_>>) -> io::Result<LinkFigures> {
        let rtt_us = self.measure_round_trips()?;
        let mib_per_s = if let Some(rdma) = rdma {
            let size = self.agree_on_size(rdma)?;
            let sent = self.send_by_rdma(rdma, size)?;
            self.serve_rdma(rdma, size)?.min(sent)
        } else {
            self.send_bytes()?;
            let received = self.receive_bytes()?;
            self.receive_number()?.min(received)
        };
        self.send_number(rtt_us)?;
        self.send_number(mib_per_s)?;
        Ok(LinkFigures { rtt_us, mib_per_s })
    }

    /// True if one of the ranks wants another pass and both have the time for it.
    fn agree(&mut self, wanted: bool) -> io::Result<bool> {
        let possible = left_until(self.deadline).is_some_and(|left| left > LEAVE);
        self.send_number(u64::from(wanted) | u64::from(possible) << 1)?;
        let peer = self.receive_number()?;
        Ok((wanted || peer & 1 == 1) && possible && peer & 2 == 2)
    }
}

/// Measures a pair. Both ranks have the same result: the throughput is that of the slower direction. A link below
/// `minimum` MiB a second of one of them is measured again, and its best pass counts. With `rdma` its ports are measured
/// in place of the connection.
///
/// # Errors
/// The connection ended, the peer broke the protocol, the deadline passed, or a measurement by RDMA failed.
pub(super) fn measure(
    stream: &mut TcpStream,
    is_lower: bool,
    minimum: u64,
    deadline: Instant,
    rdma: Option<&RdmaPair<'_>>,
) -> io::Result<LinkFigures> {
    let mut best = LinkFigures { rtt_us: u64::MAX, mib_per_s: 0 };
    for _ in 0..MOST_PASSES {
        let mut end = End { stream, deadline };
        let pass = if is_lower { end.answer(rdma)? } else { end.lead(rdma)? };
        best.rtt_us = best.rtt_us.min(pass.rtt_us);
        best.mib_per_s = best.mib_per_s.max(pass.mib_per_s);
        end.deadline = deadline;
        if !end.agree(best.mib_per_s < minimum)? {
            break;
        }
    }
    Ok(best)
}
