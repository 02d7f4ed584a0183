//! The measurement of one pair of ranks over their connection: round trips, then the bytes in each direction, by TCP or
//! by RDMA.

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::LinkFigures;
use super::rdma::{Offer, RdmaPair};
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
/// The same by RDMA, whose programs need seconds for their start.
const LEAVE_FOR_RDMA: Duration = Duration::from_secs(8);
/// The longest wait for the bytes of one direction: those on the way come after the sending.
const RECEIVE_WITHIN: Duration = Duration::from_secs(8);
/// The longest pass after the first answer of the peer, which can be busy with another pair before it.
const PASS_WITHIN: Duration = Duration::from_secs(20);

/// The most bytes of an offer.
const MOST_OFFER_BYTES: usize = 16 << 10;
/// The word for a throughput that could not be measured.
const FAILED: u64 = u64::MAX;

/// The figures of a pass, or the reason why it has none.
type Pass = Result<LinkFigures, String>;

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
    /// Sends a number to the peer, which does the same, and returns that of the peer.
    fn exchange(&mut self, number: u64) -> io::Result<u64> {
        self.send_number(number)?;
        self.receive_number()
    }

    /// The same with the offers of a measurement by RDMA.
    fn exchange_offers(&mut self, own: &Offer) -> io::Result<Offer> {
        let bytes = serde_json::to_vec(own)?;
        let length = usize::try_from(self.exchange(bytes.len() as u64)?).ok();
        let length = length.filter(|length| *length <= MOST_OFFER_BYTES).ok_or(io::ErrorKind::InvalidData)?;
        write_all(self.stream, &bytes, self.deadline)?;
        let mut other = vec![0; length];
        read_all(self.stream, &mut other, self.deadline)?;
        Ok(serde_json::from_slice(&other)?)
    }

    /// Measures both directions by RDMA at the same time. Returns the MiB in a second of the slower one, or the reason why
    /// there is none. Both ranks do the same, and the connection stays usable after a reason.
    fn measure_rdma(&mut self, rdma: &RdmaPair<'_>) -> io::Result<Result<u64, String>> {
        let other = self.exchange_offers(&rdma.offer())?;
        let Some(measurement) = rdma.agree(&other) else {
            return Ok(Err("a node has no active RDMA port".to_owned()));
        };
        let servers = rdma.serve(&measurement, self.deadline).map_err(|error| error.to_string());
        let peer_serves = self.exchange(u64::from(servers.is_ok()))? == 1;
        let sent = match &servers {
            Err(why) => Err(why.clone()),
            Ok(_) if !peer_serves => Err("the peer cannot receive by RDMA".to_owned()),
            Ok(_) => rdma.send(&measurement, self.deadline).map_err(|error| error.to_string()),
        };
        let received = self.exchange(*sent.as_ref().unwrap_or(&FAILED))?;
        // The peer has sent all.
        drop(servers);
        Ok(match sent {
            Ok(_) if received == FAILED => Err("the peer cannot send by RDMA".to_owned()),
            sent => sent.map(|sent| sent.min(received)),
        })
    }

    /// One pass of the lower rank.
    fn answer(&mut self, rdma: Option<&RdmaPair<'_>>) -> io::Result<Pass> {
        self.answer_round_trips()?;
        let own = if let Some(rdma) = rdma {
            self.measure_rdma(rdma)?
        } else {
            let received = self.receive_bytes()?;
            self.send_bytes()?;
            self.send_number(received)?;
            Ok(received)
        };
        let rtt_us = self.receive_number()?;
        let mib_per_s = self.receive_number()?;
        Ok(own.map(|own| LinkFigures { rtt_us, mib_per_s: mib_per_s.min(own) }))
    }

    /// One pass of the higher rank.
    fn lead(&mut self, rdma: Option<&RdmaPair<'_>>) -> io::Result<Pass> {
        let rtt_us = self.measure_round_trips()?;
        let own = if let Some(rdma) = rdma {
            self.measure_rdma(rdma)?
        } else {
            self.send_bytes()?;
            let received = self.receive_bytes()?;
            Ok(self.receive_number()?.min(received))
        };
        self.send_number(rtt_us)?;
        self.send_number(*own.as_ref().unwrap_or(&FAILED))?;
        Ok(own.map(|mib_per_s| LinkFigures { rtt_us, mib_per_s }))
    }

    /// True if one of the ranks wants another pass and both have the time for it.
    fn agree(&mut self, wanted: bool, leave: Duration) -> io::Result<bool> {
        let possible = left_until(self.deadline).is_some_and(|left| left > leave);
        self.send_number(u64::from(wanted) | u64::from(possible) << 1)?;
        let peer = self.receive_number()?;
        Ok((wanted || peer & 1 == 1) && possible && peer & 2 == 2)
    }
}

impl LinkFigures {
    /// The better figures of two passes.
    fn with(self, other: Self) -> Self {
        Self { rtt_us: self.rtt_us.min(other.rtt_us), mib_per_s: self.mib_per_s.max(other.mib_per_s) }
    }
}

/// Measures a pair. Both ranks have the same result: the throughput is that of the slower direction. A link below
/// `minimum` MiB a second of one of them is measured again, and its best pass counts. With `rdma` its ports are measured
/// in place of the connection.
///
/// # Errors
/// The connection ended, the peer broke the protocol, the deadline passed, or no pass by RDMA had a result.
pub(super) fn measure(
    stream: &mut TcpStream,
    is_lower: bool,
    minimum: u64,
    deadline: Instant,
    rdma: Option<&RdmaPair<'_>>,
) -> io::Result<LinkFigures> {
    let leave = if rdma.is_some() { LEAVE_FOR_RDMA } else { LEAVE };
    let (mut best, mut fault): (Option<LinkFigures>, _) = (None, String::new());
    for _ in 0..MOST_PASSES {
        let mut end = End { stream, deadline };
        match if is_lower { end.answer(rdma)? } else { end.lead(rdma)? } {
            Ok(pass) => best = Some(best.map_or(pass, |best| best.with(pass))),
            Err(why) => fault = why,
        }
        end.deadline = deadline;
        if !end.agree(best.is_none_or(|best| best.mib_per_s < minimum), leave)? {
            break;
        }
    }
    best.ok_or_else(|| io::Error::other(fault))
}
