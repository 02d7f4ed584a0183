//! The common verdict of all ranks: without it a rank with good links would start its program although another rank fails.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpStream;
use std::time::Instant;

use super::stream::{read_all, write_all};

/// The word of a rank that knows of no bad link, and of one that does.
const GOOD: [u8; 1] = *b"g";
const BAD: [u8; 1] = *b"b";

fn send(stream: &mut TcpStream, is_good: bool, deadline: Instant) -> io::Result<()> {
    write_all(stream, if is_good { &GOOD } else { &BAD }, deadline)
}

fn receive(stream: &mut TcpStream, deadline: Instant) -> io::Result<bool> {
    let mut word = [0; 1];
    read_all(stream, &mut word, deadline)?;
    Ok(word == GOOD)
}

/// Exchanges the verdicts with all peers in each round. Returns true if no rank within reach knows of a bad link. A
/// connection that ends counts as a bad link. A rank that knows of a bad link waits for nobody: its peers get its words
/// of all rounds at once.
pub(super) fn exchange(
    met: &mut BTreeMap<u32, TcpStream>,
    mut is_good: bool,
    rounds: u32,
    deadline: Instant,
) -> bool {
    for round in 0..rounds {
        let words = if is_good { 1 } else { rounds - round };
        let mut next = is_good;
        for _ in 0..words {
            for stream in met.values_mut() {
                next &= send(stream, is_good, deadline).is_ok();
            }
        }
        if !is_good {
            return false;
        }
        for stream in met.values_mut() {
            next &= receive(stream, deadline).unwrap_or(false);
        }
        is_good = next;
    }
    is_good
}
