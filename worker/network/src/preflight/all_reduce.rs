//! A small all-reduce of all ranks on the ring of ranks: a network with good pairs can still fail with all of them at
//! the same time.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpStream;
use std::time::Instant;

use super::stream::{read_all, write_all};

/// The words of one part. Each rank has as many parts as there are ranks.
const PART_WORDS: usize = 4 << 10;
/// The bytes of a word.
const WORD_BYTES: usize = size_of::<u64>();

/// The factor of the rank in a word.
const RANK_FACTOR: u64 = 1_000_003;

/// The part of a word that all ranks share. Another part or place has another value, so a part at a wrong place changes
/// the sum.
const fn common(part: u64, index: u64) -> u64 {
    part * 8_191 + index * 31
}

/// All parts of words by the value at a part and an index.
fn parts(ranks: u32, word: impl Fn(u64, u64) -> u64) -> Vec<Vec<u64>> {
    let word = &word;
    let part = |part| (0..PART_WORDS as u64).map(|index| word(part, index)).collect();
    (0..u64::from(ranks)).map(part).collect()
}

/// The words that a rank brings.
fn own_words(rank: u32, ranks: u32) -> Vec<Vec<u64>> {
    parts(ranks, |part, index| (u64::from(rank) + 1) * RANK_FACTOR + common(part, index))
}

/// The sums of the words of all ranks.
fn expected_sums(ranks: u32) -> Vec<Vec<u64>> {
    let count = u64::from(ranks);
    parts(ranks, |part, index| count * (count + 1) / 2 * RANK_FACTOR + count * common(part, index))
}

fn add(sum: &mut [u64], words: &[u64]) {
    for (sum, word) in sum.iter_mut().zip(words) {
        *sum = sum.wrapping_add(*word);
    }
}

/// The neighbours of a rank on the ring. Two ranks are each other's only neighbour.
struct Ring<'a> {
    met: &'a mut BTreeMap<u32, TcpStream>,
    rank: u32,
    ranks: u32,
    deadline: Instant,
}

impl Ring<'_> {
    fn stream(&mut self, peer: u32) -> io::Result<&mut TcpStream> {
        self.met.get_mut(&peer).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn send(&mut self, words: &[u64]) -> io::Result<()> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        let (next, deadline) = ((self.rank + 1) % self.ranks, self.deadline);
        write_all(self.stream(next)?, &bytes, deadline)
    }

    fn receive(&mut self) -> io::Result<Vec<u64>> {
        let mut bytes = vec![0; PART_WORDS * WORD_BYTES];
        let (previous, deadline) = ((self.rank + self.ranks - 1) % self.ranks, self.deadline);
        read_all(self.stream(previous)?, &mut bytes, deadline)?;
        let (words, _) = bytes.as_chunks::<WORD_BYTES>();
        Ok(words.iter().map(|word| u64::from_be_bytes(*word)).collect())
    }

    /// Sends words to the next rank and receives those of the previous one.
    fn exchange(&mut self, words: &[u64]) -> io::Result<Vec<u64>> {
        // Odd ranks receive first, so no circle of ranks waits in a send.
        if self.rank.is_multiple_of(2) {
            self.send(words)?;
            self.receive()
        } else {
            let received = self.receive()?;
            self.send(words)?;
            Ok(received)
        }
    }

    /// The part that this rank sends in a step: each step, the part that it received in the step before.
    fn part(&self, step: u32) -> usize {
        ((self.rank + self.ranks - step % self.ranks) % self.ranks) as usize
    }

    /// Sends a part, and passes the received part to `store`.
    fn step(
        &mut self,
        parts: &mut [Vec<u64>],
        step: u32,
        store: impl FnOnce(&mut Vec<u64>, Vec<u64>),
    ) -> io::Result<()> {
        let lost = || io::Error::from(io::ErrorKind::InvalidData);
        let sent = parts.get(self.part(step)).ok_or_else(lost)?.clone();
        let received = self.exchange(&sent)?;
        store(parts.get_mut(self.part(step + 1)).ok_or_else(lost)?, received);
        Ok(())
    }
}

/// Sums the words of all ranks, as NCCL and gloo do on a ring: each part collects its sum on the way through all ranks,
/// then each rank passes the sums on.
///
/// # Errors
/// A neighbour is not connected or ended, the deadline passed, or a sum is wrong.
pub(super) fn all_reduce(
    met: &mut BTreeMap<u32, TcpStream>,
    (rank, ranks): (u32, u32),
    deadline: Instant,
) -> io::Result<()> {
    let mut ring = Ring { met, rank, ranks, deadline };
    let mut parts = own_words(rank, ranks);
    for step in 0..ranks - 1 {
        ring.step(&mut parts, step, |part, received| add(part, &received))?;
    }
    for step in ranks - 1..2 * (ranks - 1) {
        ring.step(&mut parts, step, |part, received| *part = received)?;
    }
    if parts == expected_sums(ranks) { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// The streams of each rank to its neighbours on the ring.
    fn ring(ranks: u32) -> Vec<BTreeMap<u32, TcpStream>> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut streams: Vec<BTreeMap<u32, TcpStream>> = (0..ranks).map(|_| BTreeMap::new()).collect();
        // Two ranks have one connection.
        for low in 0..if ranks == 2 { 1 } else { ranks } {
            let high = (low + 1) % ranks;
            let connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            streams[low as usize].insert(high, connected);
            streams[high as usize].insert(low, listener.accept().unwrap().0);
        }
        streams
    }

    fn run(streams: Vec<BTreeMap<u32, TcpStream>>, deadline: Instant) -> Vec<bool> {
        let ranks = u32::try_from(streams.len()).unwrap();
        let ranks = (0..).zip(streams).map(|(rank, mut met)| {
            thread::spawn(move || all_reduce(&mut met, (rank, ranks), deadline).is_ok())
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    }

    #[test]
    fn all_ranks_have_the_sum_on_each_size_of_the_ring() {
        for ranks in (2..=9).chain([16, 33, 64]) {
            let deadline = Instant::now() + Duration::from_secs(60);
            assert_eq!(run(ring(ranks), deadline), vec![true; ranks as usize], "{ranks} ranks");
        }
    }

    #[test]
    fn each_expected_word_is_the_sum_of_the_words_of_all_ranks() {
        for ranks in 2..=9 {
            let mut sums = own_words(0, ranks);
            for rank in 1..ranks {
                for (sum, words) in sums.iter_mut().zip(own_words(rank, ranks)) {
                    add(sum, &words);
                }
            }
            assert!(sums == expected_sums(ranks), "{ranks} ranks");
        }
    }

    #[test]
    fn a_silent_rank_fails_its_neighbours_at_the_deadline() {
        let mut streams = ring(3);
        // Its connections stay open.
        let _silent = streams.pop();
        let handles = (0..).zip(streams).map(|(rank, mut met)| {
            let deadline = Instant::now() + Duration::from_millis(300);
            thread::spawn(move || all_reduce(&mut met, (rank, 3), deadline).is_ok())
        });
        let handles: Vec<_> = handles.collect();
        assert!(handles.into_iter().all(|rank| !rank.join().unwrap()));
    }
}
