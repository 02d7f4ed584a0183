//! The measured links of a rank of a gang to other ranks, and their judgement before the start.

use berth_network::preflight::{self, Preflight};
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

/// Judges the links of a rank. `fault` is the first error of a measurement by RDMA.
///
/// # Errors
/// The failure of a rank with an absent or slow link, with the figures.
pub(super) fn judge(links: &[MeasuredLink], plan: &Preflight, fault: Option<&str>) -> Result<(), JobFailure> {
    let by_rdma = plan.rdma.is_some();
    let absent = links.iter().filter(|link| !link.connected);
    let absent: Vec<String> = absent.map(|link| format!("rank {}", link.rank)).collect();
    if !absent.is_empty() {
        let place = if by_rdma { "by RDMA" } else { "in the network of the job" };
        let why = fault.map(|fault| format!(" ({fault})")).unwrap_or_default();
        let cause = format!("Rank {} does not reach {} {place}{why}", plan.rank, join(absent));
        return Err(start_failure("gang.unreachable", cause));
    }
    let slow = links.iter().filter_map(|link| {
        let expected = plan.minimum(link.rank);
        (link.mib_per_s < expected).then(|| {
            format!("to rank {} {} MiB/s, at least {expected} are expected", link.rank, link.mib_per_s)
        })
    });
    let slow: Vec<String> = slow.collect();
    if slow.is_empty() {
        return Ok(());
    }
    let place = if by_rdma { "RDMA between the nodes" } else { "The network between the nodes" };
    let cause = format!("{place} is slow: from rank {} {}", plan.rank, join(slow));
    Err(start_failure("gang.link_slow", cause))
}

#[cfg(test)]
mod tests {
    use berth_network::preflight::RdmaPlan;

    use super::*;

    fn plan(minima: &[u64]) -> Preflight {
        Preflight { rank: 7, ranks: 8, token: [5; 32], minima: minima.to_vec(), rdma: None }
    }

    fn link(rank: u32, mib_per_s: Option<u64>) -> MeasuredLink {
        let connected = mib_per_s.is_some();
        MeasuredLink { rank, connected, rtt_us: 90, mib_per_s: mib_per_s.unwrap_or(0) }
    }

    #[test]
    fn an_absent_link_counts_before_a_slow_one_and_the_minimum_itself_suffices() {
        let plan = plan(&[0, 470]);
        let code = |links: &[MeasuredLink]| judge(links, &plan, None).err().map(|(code, _)| code);
        for (first, second, expected) in [
            (Some(0), Some(470), None),
            (Some(1), Some(469), Some("gang.link_slow")),
            (None, Some(9_000), Some("gang.unreachable")),
            (None, Some(1), Some("gang.unreachable")),
        ] {
            assert_eq!(code(&[link(0, first), link(1, second)]).as_deref(), expected);
        }
        let (_, detail) = judge(&[link(1, Some(12))], &plan, None).unwrap_err();
        assert_eq!(
            detail,
            "The network between the nodes is slow: from rank 7 to rank 1 12 MiB/s, at least 470 are expected. \
             The job was not started."
        );
        let links: Vec<MeasuredLink> = (10..18).map(|rank| link(rank, None)).collect();
        let (_, detail) = judge(&links, &plan, None).unwrap_err();
        assert_eq!(
            detail,
            "Rank 7 does not reach rank 10, rank 11, rank 12, rank 13 and 4 more in the network of the job. \
             The job was not started."
        );
        let rdma =
            RdmaPlan { program: "/usr/bin/ib_write_bw".into(), ports: Vec::new(), addresses: Vec::new() };
        let plan = Preflight { rdma: Some(rdma), ..plan };
        let (_, detail) = judge(&[link(1, Some(12))], &plan, None).unwrap_err();
        assert_eq!(
            detail,
            "RDMA between the nodes is slow: from rank 7 to rank 1 12 MiB/s, at least 470 are expected. \
             The job was not started."
        );
        let fault = Some("ib_write_bw: Failed to modify QP to RTR");
        let (_, detail) = judge(&[link(1, None)], &plan, fault).unwrap_err();
        assert_eq!(
            detail,
            "Rank 7 does not reach rank 1 by RDMA (ib_write_bw: Failed to modify QP to RTR). \
             The job was not started."
        );
    }
}
