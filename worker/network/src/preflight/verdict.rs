//! The common verdict of all ranks: without it a rank with good links would start its program although another rank fails.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use super::meeting::{left_until, limit};

/// The word of a rank that knows of no bad link, and of one that does.
const GOOD: [u8; 1] = *b"g";
const BAD: [u8; 1] = *b"b";

fn send(stream: &mut TcpStream, is_good: bool, deadline: Instant) -> io::Result<()> {
    limit(stream, left_until(deadline).ok_or(io::ErrorKind::TimedOut)?)?;
    stream.write_all(if is_good { &GOOD } else { &BAD })
}

fn receive(stream: &mut TcpStream, deadline: Instant) -> io::Result<bool> {
    limit(stream, left_until(deadline).ok_or(io::ErrorKind::TimedOut)?)?;
    let mut word = [0; 1];
    stream.read_exact(&mut word)?;
    Ok(word == GOOD)
}

/// Exchanges the verdicts with all peers in each round. Returns true if no rank within reach knows of a bad link. A
/// connection that ends counts as a bad link.
pub(super) fn exchange(
    met: &mut BTreeMap<u32, TcpStream>,
    mut is_good: bool,
    rounds: u32,
    deadline: Instant,
) -> bool {
    for _ in 0..rounds {
        let mut next = is_good;
        for stream in met.values_mut() {
            next &= send(stream, is_good, deadline).is_ok();
        }
        for stream in met.values_mut() {
            next &= receive(stream, deadline).unwrap_or(false);
        }
        is_good = next;
    }
    is_good
}
