//! The measured links of a rank of a gang to other ranks, and their judgement before the start.

use berth_network::preflight;
use berth_proto as proto;
use berth_shim::model::{JobFailure, start_failure};
use serde::{Deserialize, Serialize};

/// The most links in a message of a failure.
const MOST_NAMED: usize = 4;

/// The measured link to another rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredLink {
    pub rank: u32,
    /// False if the ranks did not connect, or lost their connection. Then there are no figures.
    pub connected: bool,
    /// In microseconds.
    pub rtt_us: u64,
    /// In MiB a second, of the slower direction.
    pub mib_per_s: u64,
}

impl MeasuredLink {
    pub(super) fn new(link: &preflight::Link) -> Self {
        let (rtt_us, mib_per_s) = link.figures.map_or((0, 0), |figures| (figures.rtt_us, figures.mib_per_s));
        Self { rank: link.peer, connected: link.figures.is_some(), rtt_us, mib_per_s }
    }

    pub fn to_message(self) -> proto::LinkMeasurement {
        let Self { rank, connected, rtt_us, mib_per_s } = self;
        proto::LinkMeasurement { rank, connected, rtt_us, mib_per_s }
    }
}

/// The first names, and the number of the others.
fn join(mut texts: Vec<String>) -> String {
    let others = texts.len().saturating_sub(MOST_NAMED);
    texts.truncate(MOST_NAMED);
    if others > 0 { format!("{} and {others} more", texts.join(", ")) } else { texts.join(", ") }
}

/// # Errors
/// The failure of a rank with an absent or slow link, with the figures.
pub(super) fn judge(links: &[MeasuredLink], gang: &proto::GangNetwork) -> Result<(), JobFailure> {
    let absent = links.iter().filter(|link| !link.connected);
    let absent: Vec<String> = absent.map(|link| format!("rank {}", link.rank)).collect();
    if !absent.is_empty() {
        let cause = format!("Rank {} does not reach {} in the network of the job", gang.rank, join(absent));
        return Err(start_failure("gang.unreachable", cause));
    }
    let slow = links.iter().filter_map(|link| {
        let expected = gang.peers.iter().find(|peer| peer.rank == link.rank)?.min_mib_per_s;
        (link.mib_per_s < expected).then(|| {
            format!("to rank {} {} MiB/s, at least {expected} are expected", link.rank, link.mib_per_s)
        })
    });
    let slow: Vec<String> = slow.collect();
    if slow.is_empty() {
        return Ok(());
    }
    let cause = format!("The network between the nodes is slow: from rank {} {}", gang.rank, join(slow));
    Err(start_failure("gang.link_slow", cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gang(minima: &[(u32, u64)]) -> proto::GangNetwork {
        let peer = |(rank, min_mib_per_s): &(u32, u64)| proto::GangPeer {
            rank: *rank,
            min_mib_per_s: *min_mib_per_s,
            ..proto::GangPeer::default()
        };
        let peers = minima.iter().map(peer).collect();
        proto::GangNetwork { rank: 7, check_token: vec![5; 32], peers, ..proto::GangNetwork::default() }
    }

    fn link(rank: u32, mib_per_s: Option<u64>) -> MeasuredLink {
        let connected = mib_per_s.is_some();
        MeasuredLink { rank, connected, rtt_us: 90, mib_per_s: mib_per_s.unwrap_or(0) }
    }

    #[test]
    fn an_absent_link_counts_before_a_slow_one_and_the_minimum_itself_suffices() {
        let gang = gang(&[(0, 0), (1, 470)]);
        let code = |links: &[MeasuredLink]| judge(links, &gang).err().map(|(code, _)| code);
        for (first, second, expected) in [
            (Some(0), Some(470), None),
            (Some(1), Some(469), Some("gang.link_slow")),
            (None, Some(9_000), Some("gang.unreachable")),
            (None, Some(1), Some("gang.unreachable")),
        ] {
            assert_eq!(code(&[link(0, first), link(1, second)]).as_deref(), expected);
        }
        let (_, detail) = judge(&[link(1, Some(12))], &gang).unwrap_err();
        assert_eq!(
            detail,
            "The network between the nodes is slow: from rank 7 to rank 1 12 MiB/s, at least 470 are expected. \
             The job was not started."
        );
        let links: Vec<MeasuredLink> = (10..18).map(|rank| link(rank, None)).collect();
        let (_, detail) = judge(&links, &gang).unwrap_err();
        assert_eq!(
            detail,
            "Rank 7 does not reach rank 10, rank 11, rank 12, rank 13 and 4 more in the network of the job. \
             The job was not started."
        );
    }
}
