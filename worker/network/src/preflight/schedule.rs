//! The pairs of ranks that a preflight measures, and their order.

use std::collections::BTreeMap;

/// The most ranks whose pairs are all measured.
const MOST_MESHED: u32 = 9;
/// In a larger gang each rank measures so many neighbours in each direction of the ring of ranks.
const RING_REACH: u32 = 4;

/// True if the two ranks are a pair.
fn is_pair(low: u32, high: u32, ranks: u32) -> bool {
    let forward = high - low;
    ranks <= MOST_MESHED || forward.min(ranks - forward) <= RING_REACH
}

/// The peers of a rank by the round of their measurement, at most eight. All ranks compute the same rounds, and a rank
/// has one pair in each, so two pairs do not share a rank.
pub(super) fn peers_by_round(rank: u32, ranks: u32) -> BTreeMap<u32, u32> {
    // The rounds in which a rank has a pair, as bits. Two ranks with eight pairs each leave one of 16 rounds free.
    let mut busy: BTreeMap<u32, u64> = BTreeMap::new();
    let mut own: BTreeMap<u32, u32> = BTreeMap::new();
    for low in 0..ranks {
        for high in (low + 1..ranks).filter(|high| is_pair(low, *high, ranks)) {
            let rounds = |of: &u32| busy.get(of).copied().unwrap_or(0);
            let round = (rounds(&low) | rounds(&high)).trailing_ones();
            for one in [low, high] {
                *busy.entry(one).or_default() |= 1u64 << round;
            }
            if rank == low || rank == high {
                own.insert(round, if rank == low { high } else { low });
            }
        }
    }
    own
}

/// The peers of a rank in the order of their measurement.
pub(super) fn peers_in_order(rank: u32, ranks: u32) -> Vec<u32> {
    peers_by_round(rank, ranks).into_values().collect()
}

/// The number of rounds of all ranks.
pub(super) fn rounds(ranks: u32) -> u32 {
    let last = |rank| peers_by_round(rank, ranks).into_keys().next_back();
    (0..ranks).filter_map(last).max().map_or(1, |round| round + 1)
}

/// The number of exchanges after which a word of one rank has reached all ranks over the pairs.
pub(super) fn exchanges(ranks: u32) -> u32 {
    if ranks <= MOST_MESHED { 1 } else { (ranks / 2).div_ceil(RING_REACH) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ranks_of_a_pair_measure_it_and_no_order_waits_for_itself() {
        for ranks in 2..=64 {
            let mut left: Vec<Vec<u32>> = (0..ranks).map(|rank| peers_in_order(rank, ranks)).collect();
            for peers in &mut left {
                assert_eq!(peers.len(), usize::try_from((ranks - 1).min(8)).unwrap(), "{ranks} ranks");
                peers.reverse();
            }
            // Each step measures all pairs that are next for both ranks.
            let mut steps = 0;
            while left.iter().any(|peers| !peers.is_empty()) {
                let next: Vec<Option<u32>> = left.iter().map(|peers| peers.last().copied()).collect();
                let mut progress = false;
                for (rank, peer) in (0u32..).zip(&next) {
                    let Some(peer) = peer else { continue };
                    if next[*peer as usize] == Some(rank) {
                        left[rank as usize].pop();
                        progress = true;
                    }
                }
                assert!(progress, "{ranks} ranks wait for each other: {left:?}");
                steps += 1;
            }
            assert!(steps <= 16, "{steps} rounds for {ranks} ranks");
        }
    }

    #[test]
    fn a_word_reaches_all_ranks() {
        for ranks in 2..=64 {
            let mut reached = vec![0];
            for _ in 0..exchanges(ranks) {
                let next: Vec<u32> = reached.iter().flat_map(|rank| peers_in_order(*rank, ranks)).collect();
                reached.extend(next);
                reached.sort_unstable();
                reached.dedup();
            }
            assert_eq!(reached, (0..ranks).collect::<Vec<u32>>());
        }
    }

    #[test]
    fn small_gangs_measure_all_pairs() {
        assert_eq!(peers_in_order(0, 2), [1]);
        let mut peers = peers_in_order(4, 9);
        peers.sort_unstable();
        assert_eq!(peers, [0, 1, 2, 3, 5, 6, 7, 8]);
        let mut peers = peers_in_order(0, 64);
        peers.sort_unstable();
        assert_eq!(peers, [1, 2, 3, 4, 60, 61, 62, 63]);
        assert!(peers_in_order(0, 1).is_empty());
    }
}
