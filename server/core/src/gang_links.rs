//! The judgement of measured links between the nodes of a job on several nodes.

/// The fewest former measurements of a pair that give an expectation.
const FEWEST: usize = 3;
/// The seconds for which a suspect node takes no rank of a job on several nodes.
pub const ASIDE_S: i64 = 3_600;
/// The same after a link that did not connect, or beside another job on several nodes: a late worker and the packets of
/// the other job look like a bad cable.
pub const ASIDE_UNSURE_S: i64 = 600;
/// The most starts of a job without a rule for retries that a bad link repeats.
pub const LINK_RETRIES: u32 = 2;
/// The failures of a rank for a bad link: its own one, or that of another rank.
pub const LINK_FAILURES: [&str; 3] = ["gang.link_slow", "gang.unreachable", "gang.check_failed"];

/// The least throughput of a link between two nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkMinimum {
    /// MiB a second; 0: no such limit.
    pub mib_per_s: i64,
    /// Percent of the median of the former measurements, 0 to 100; 0: no such limit.
    pub percent: i64,
}

impl Default for LinkMinimum {
    fn default() -> Self {
        Self { mib_per_s: 0, percent: 50 }
    }
}

impl LinkMinimum {
    /// The least throughput of a link with these former measurements. 0 accepts every link.
    pub fn expected_mib_per_s(self, former: &[i64]) -> i64 {
        let mut sorted = former.to_vec();
        sorted.sort_unstable();
        let median = sorted.get(sorted.len() / 2).copied().filter(|_| sorted.len() >= FEWEST).unwrap_or(0);
        // Exactly the part is accepted.
        let part = median.saturating_mul(self.percent).saturating_add(99) / 100;
        part.max(self.mib_per_s).max(0)
    }
}

/// The nodes that are suspected after the measurements of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suspects {
    Nobody,
    /// The node of the rank: all of its links are bad.
    Own,
    /// The other ends of the bad links: other links of the rank are good.
    Peers,
    /// Both nodes of the only link.
    Both,
}

/// The most links of a rank: in a large job a rank has eight neighbours.
const MOST_LINKS: usize = 8;

/// The number of links of a rank among so many ranks.
pub fn link_count(ranks: usize) -> usize {
    ranks.saturating_sub(1).min(MOST_LINKS)
}

/// The suspects after `bad` of `links` links of a rank were bad.
pub const fn suspects(bad: usize, links: usize) -> Suspects {
    match (bad, links) {
        (0, _) => Suspects::Nobody,
        (_, 1) => Suspects::Both,
        _ if bad >= links => Suspects::Own,
        _ => Suspects::Peers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_median_of_three_or_more_is_expected() {
        for (former, mib_per_s, percent, expected) in [
            (vec![], 0, 50, 0),
            (vec![], 100, 50, 100),
            (vec![900, 900], 0, 50, 0),
            (vec![900, 900, 900], 0, 50, 450),
            (vec![901, 901, 901], 0, 50, 451),
            (vec![1, 940, 2_000], 0, 50, 470),
            (vec![2_000, 940, 1], 600, 50, 600),
            (vec![900; 20], 100, 50, 450),
            (vec![900; 20], 100, 0, 100),
            (vec![900; 20], 0, 0, 0),
            (vec![900; 20], 0, 100, 900),
            (vec![901; 3], 0, 1, 10),
            (vec![0, 0, 0], -5, 50, 0),
            (vec![i64::MAX; 3], 0, 50, i64::MAX / 100),
        ] {
            let minimum = LinkMinimum { mib_per_s, percent };
            assert_eq!(minimum.expected_mib_per_s(&former), expected, "{former:?} {minimum:?}");
        }
    }

    #[test]
    fn a_rank_has_a_link_to_each_other_rank_and_at_most_eight() {
        for (ranks, links) in [(0, 0), (1, 0), (2, 1), (9, 8), (10, 8), (64, 8)] {
            assert_eq!(link_count(ranks), links, "{ranks} ranks");
        }
        assert_eq!(suspects(1, link_count(8)), Suspects::Peers, "one absent rank of eight");
        assert_eq!(suspects(2, link_count(8)), Suspects::Peers);
        assert_eq!(suspects(7, link_count(8)), Suspects::Own, "a rank that reaches nobody");
    }

    #[test]
    fn a_node_without_any_good_link_is_suspected_alone_unless_it_has_one_link_only() {
        for links in 1..=8 {
            for bad in 0..=links {
                let expected = if bad == 0 {
                    Suspects::Nobody
                } else if links == 1 {
                    Suspects::Both
                } else if bad == links {
                    Suspects::Own
                } else {
                    Suspects::Peers
                };
                assert_eq!(suspects(bad, links), expected, "{bad} of {links}");
            }
        }
    }
}
