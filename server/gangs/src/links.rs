//! The measured links of a rank in a report of its worker: good ones are kept for later comparisons, and the nodes of bad
//! ones are set aside, so that the next attempt avoids them.

use std::collections::BTreeSet;

use berth_core::gang_links::{ASIDE_S, ASIDE_UNSURE_S, LINK_FAILURES, Suspects, link_count, suspects};
use berth_core::jobs::StopCause;
use berth_foundation::Context;
use berth_store::attempts::StoredAttempt;
use berth_store::gangs::StoredRankPlace;
use berth_store::jobs::StoredJob;
use berth_store::node_links::LinkMeasurement;
use berth_store::{self as store, StoreError, Tx};
use berth_types::ids::{JobId, NodeId};
use berth_types::jobs::Failure;
use berth_types::time::Timestamp;

/// The figures of a link between two ranks, none of them negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkFigures {
    /// The median of the round trips in microseconds.
    pub rtt_us: i64,
    /// The throughput of the slower direction in MiB a second.
    pub mib_per_s: i64,
}

/// The link to another rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportedLink {
    pub rank: i64,
    /// Absent if the ranks did not connect.
    pub figures: Option<LinkFigures>,
}

/// A link that is slow or absent.
struct BadLink {
    peer: NodeId,
    /// A sentence for operators.
    text: String,
    /// The seconds for which its nodes are set aside.
    aside_s: i64,
}

/// The expectation of the link between two nodes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expectation {
    /// The least throughput in MiB a second.
    pub mib_per_s: i64,
    /// True beside another job on several nodes. Its packets take a part of the throughput, so the figures say little
    /// about the link: they are neither compared with former ones nor kept.
    shared: bool,
}

/// The expectation of the link between two nodes, by RDMA or in the network of the gang, for the ranks of a job.
///
/// # Errors
/// The database cannot be read.
pub(crate) async fn expect(
    tx: &mut Tx<'_>,
    context: &Context,
    job: JobId,
    nodes: (NodeId, NodeId),
    rdma: bool,
) -> Result<Expectation, StoreError> {
    let shared = store::gangs::is_shared(tx, nodes, job).await?;
    let former =
        if shared { Vec::new() } else { store::node_links::list_throughputs(tx, nodes, rdma).await? };
    let mib_per_s = context.settings.gang_minimum.expected_mib_per_s(&former);
    Ok(Expectation { mib_per_s, shared })
}

fn is_link_failure(failure: Option<&Failure>) -> bool {
    failure.is_some_and(|failure| LINK_FAILURES.contains(&failure.code.as_str()))
}

/// True if a rank took part in the check, so that an absent link to it says something about its node: its worker has the
/// attempt, and the rank has not ended for another reason.
fn took_part(rank: &StoredAttempt) -> bool {
    let end = rank.outcome.as_ref();
    rank.known && end.is_none_or(|end| is_link_failure(end.failure.as_ref()))
}

/// The sentence about a bad link. `None` for a good link.
fn bad_text(
    own: &StoredRankPlace,
    peer: &StoredRankPlace,
    link: &ReportedLink,
    expected: i64,
    rdma: bool,
) -> Option<String> {
    let (a, b) = (&own.node_name, &peer.node_name);
    match link.figures {
        None if rdma => {
            Some(format!("The nodes {a} and {b} do not connect by RDMA, or by TCP at the ports 288 to 352."))
        }
        None => Some(format!("The nodes {a} and {b} do not connect in the network of jobs.")),
        Some(figures) if figures.mib_per_s < expected => Some(format!(
            "The {} between the nodes {a} and {b} reaches {} MiB/s; at least {expected} are expected.",
            if rdma { "RDMA link" } else { "link" },
            figures.mib_per_s
        )),
        Some(_) => None,
    }
}

/// Keeps the good links of a rank, and sets nodes with bad ones aside. Returns true if a node was set aside. `ranks` are
/// those of the attempt, and `attempt` is the reporting one, with its failure if it has ended.
///
/// # Errors
/// The database cannot be read or written.
pub async fn record(
    tx: &mut Tx<'_>,
    context: &Context,
    row: &StoredJob,
    (attempt, ranks): (&StoredAttempt, &[StoredAttempt]),
    (links, failure): (&[ReportedLink], Option<&Failure>),
    now: Timestamp,
) -> Result<bool, StoreError> {
    if links.is_empty() || ranks.len() < 2 {
        return Ok(false);
    }
    let places = store::gangs::list_places(tx, attempt.job_id, attempt.number).await?;
    let Some(own) = places.iter().find(|place| place.rank == attempt.rank) else { return Ok(false) };
    let (mut bad, mut named) = (Vec::new(), BTreeSet::new());
    let rdma = row.spec.rdma;
    // Beside an absent rank nobody measures, and a report leaves out the links that were connected.
    let mut count = link_count(places.len());
    for link in links {
        let is_peer = |place: &&StoredRankPlace| place.rank == link.rank && place.rank != own.rank;
        // A rank that a worker names twice would change the number of its links.
        let Some(peer) = places.iter().find(is_peer).filter(|peer| named.insert(peer.rank)) else { continue };
        let nodes = (own.node_id, peer.node_id);
        let expectation = expect(tx, context, attempt.job_id, nodes, rdma).await?;
        let peer_took_part = ranks.iter().any(|rank| rank.rank == link.rank && took_part(rank));
        match bad_text(own, peer, link, expectation.mib_per_s, rdma) {
            None if expectation.shared => {}
            None => keep(tx, attempt, nodes, (link, rdma), now).await?,
            Some(text) if peer_took_part => {
                let is_sure = link.figures.is_some() && !expectation.shared;
                let aside_s = if is_sure { ASIDE_S } else { ASIDE_UNSURE_S };
                bad.push(BadLink { peer: peer.node_id, text, aside_s });
            }
            // The peer did not take part, so its link says nothing.
            Some(_) => count = count.saturating_sub(1),
        }
    }
    // The check of a job that was stopped meanwhile ended early.
    let is_stopped = row.stop_cause().is_some_and(|cause| cause != StopCause::RankFailed);
    if is_stopped || !is_link_failure(failure) {
        return Ok(false);
    }
    set_aside(tx, own.node_id, &bad, count, now).await?;
    Ok(!bad.is_empty())
}

/// Keeps the figures of a good link for later comparisons.
async fn keep(
    tx: &mut Tx<'_>,
    attempt: &StoredAttempt,
    nodes: (NodeId, NodeId),
    (link, rdma): (&ReportedLink, bool),
    now: Timestamp,
) -> Result<(), StoreError> {
    let Some(LinkFigures { rtt_us, mib_per_s }) = link.figures else { return Ok(()) };
    let (job, attempt) = (attempt.job_id, attempt.number);
    store::node_links::insert(tx, &LinkMeasurement { nodes, job, attempt, rdma, rtt_us, mib_per_s }, now)
        .await
}

/// Sets the suspects of the bad ones of `count` links aside.
async fn set_aside(
    tx: &mut Tx<'_>,
    own: NodeId,
    bad: &[BadLink],
    count: usize,
    now: Timestamp,
) -> Result<(), StoreError> {
    let (with_own, with_peers) = match suspects(bad.len(), count) {
        Suspects::Nobody => (false, false),
        Suspects::Own => (true, false),
        Suspects::Peers => (false, true),
        Suspects::Both => (true, true),
    };
    if let Some(first) = bad.first().filter(|_| with_own) {
        tracing::warn!(node = %own, reason = first.text, "a node is set aside for jobs on several nodes");
        store::node_links::set_aside(tx, own, now.plus_seconds(first.aside_s), &first.text).await?;
    }
    for link in bad.iter().filter(|_| with_peers) {
        tracing::warn!(node = %link.peer, reason = link.text, "a node is set aside for jobs on several nodes");
        store::node_links::set_aside(tx, link.peer, now.plus_seconds(link.aside_s), &link.text).await?;
    }
    Ok(())
}
