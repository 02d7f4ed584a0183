//! The ranks of an attempt: the end of each, the end of the attempt, and the environment of its processes.

use berth_core::jobs::{MachineEvent, Outcome, StopCause, idle_text, is_of_rank, is_retried, with_rank};
use berth_types::gangs::{GANG_INTERFACE, rank_address};
use berth_types::ids::NodeId;
use berth_types::jobs::{CheckpointSignal, Failure};

use crate::assignments::StopSignal;
use crate::reports::AttemptReport;
use berth_store::attempts::{StoredAttempt, StoredOpenRank};
use berth_store::jobs::StoredJob;
use berth_store::types::RankEnd;
use berth_store::{self as store, StoreError, Tx};

/// The end of a rank by the report of its worker.
pub fn reported_end(report: &AttemptReport) -> RankEnd {
    RankEnd {
        code: report.exit_code.unwrap_or(255),
        timed_out: report.timed_out,
        failure: report.failure.clone(),
        late: false,
    }
}

fn end_outcome(end: &RankEnd) -> Outcome {
    match &end.failure {
        Some(failure) => Outcome::Failed(failure.clone()),
        None if end.timed_out => Outcome::TimedOut { code: end.code },
        None => Outcome::Exited { code: end.code },
    }
}

/// The end of a rank as a sentence.
fn end_detail(end: &RankEnd) -> String {
    match &end.failure {
        Some(failure) => failure.detail.clone(),
        None if end.timed_out => format!("Time limit reached: stopped with exit code {}.", end.code),
        None => format!("The process ended with exit code {}.", end.code),
    }
}

/// The end of an attempt: the first bad end of a rank, or else the first end. The number of the rank comes
/// with it if there are several ranks.
fn deciding_end(ranks: &[StoredAttempt]) -> Option<(Option<u32>, &RankEnd)> {
    let ends = ranks.iter().filter_map(|row| Some((row, row.outcome.as_deref()?)));
    let (row, end) = ends.min_by_key(|(row, end)| (end.is_success(), row.ended_at, row.rank))?;
    let rank = u32::try_from(row.rank).ok();
    Some((rank.filter(|_| ranks.len() > 1), end))
}

/// The rank whose end is the failure of its job; `None` for a job on one node and for a failure of another cause.
pub fn failed_rank(failure: Option<&Failure>, ranks: &[StoredAttempt]) -> Option<u32> {
    let (rank, _) = deciding_end(ranks)?;
    rank.filter(|rank| failure.is_some_and(|failure| is_of_rank(failure, *rank)))
}

/// The event of a job, with its text, that follows from the end of a rank.
pub fn ended_event(
    job: &StoredJob,
    number: u32,
    ranks: &[StoredAttempt],
    ended: &StoredAttempt,
) -> Option<(MachineEvent, String)> {
    let (rank, end) = deciding_end(ranks)?;
    if !ranks.iter().all(|r| r.ended) {
        // After a good end of one rank the attempt waits for the others.
        return (rank.map(i64::from) == Some(ended.rank) && !end.is_success()).then(|| {
            let detail = format!("{} The other ranks are stopped.", with_rank(rank, end_detail(end)));
            (MachineEvent::RankFailed { attempt: number }, detail)
        });
    }
    let retry = job.spec.retry.as_ref();
    let (outcome, mut detail) = (end_outcome(end), with_rank(rank, end_detail(end)));
    let stop = job.stop_cause();
    let time_left = job.metered_ms < job.max_duration_s.saturating_mul(1_000);
    let retries = u32::try_from(job.retries).unwrap_or(u32::MAX);
    let again = time_left && is_retried(retry, retries, stop, &outcome);
    let is_stopped = stop.is_some_and(StopCause::is_final);
    if let Some(StopCause::Idle { percent, for_s }) = stop {
        detail = format!("{} {detail}", idle_text(percent, for_s));
    }
    let is_displaced = matches!(stop, Some(StopCause::Preempted { .. } | StopCause::Drained { .. }));
    if let Some(retry) = retry.filter(|_| again && !is_stopped && !is_displaced) {
        detail = format!("{detail} Retry {} of {} follows.", retries + 1, retry.max);
    } else if again && retry.is_none() && !is_stopped && !is_displaced {
        detail = format!("{detail} The attempt costs nothing, and the job is queued again for other nodes.");
    }
    Some((MachineEvent::End { attempt: number, outcome, again, rank }, detail))
}

/// The stop signal of an attempt; `None` selects the worker's defaults. A preempted or drained attempt may
/// save its state first. Every other attempt gets the defaults.
///
/// # Errors
/// The submission is absent.
pub fn stop_signal(row: &StoredOpenRank) -> Result<Option<StopSignal>, StoreError> {
    let checkpoint = || row.submission().map(|submission| submission.checkpoint.as_ref());
    Ok(match row.phase.stop.as_ref().map(|stop| stop.cause) {
        Some(StopCause::Preempted { .. }) => {
            checkpoint()?.map(|c| StopSignal { signal: c.signal, grace_ms: i64::from(c.grace_s) * 1_000 })
        }
        // The drain has chosen the grace already.
        Some(StopCause::Drained { grace_s, .. }) if grace_s > 0 => {
            let signal = checkpoint()?.map_or_else(CheckpointSignal::default, |c| c.signal);
            Some(StopSignal { signal, grace_ms: i64::from(grace_s) * 1_000 })
        }
        _ => None,
    })
}

/// The port at which the ranks of an attempt find rank 0, equal for all of them.
fn master_port(job: &str, number: i64) -> u32 {
    let hash = job
        .bytes()
        .chain(number.to_le_bytes())
        .fold(2_166_136_261u32, |h, b| (h ^ u32::from(b)).wrapping_mul(16_777_619));
    20_000 + hash % 20_000
}

/// The address of rank 0: in the network of the gang, or else that of its node.
async fn master_address(
    tx: &mut Tx<'_>,
    row: &StoredOpenRank,
    has_gang_network: bool,
) -> Result<String, StoreError> {
    if has_gang_network {
        return Ok(rank_address(0).to_string());
    }
    if row.nodes > 1 {
        let ranks = store::attempts::list_ranks(tx, row.job_id, row.number).await?;
        let first = ranks.first().map(|r| r.node_id);
        let node = store::nodes::list(tx).await?.into_iter().find(|node| Some(node.id) == first);
        if let Some(node) = node.filter(|node| !node.address.is_empty()) {
            return Ok(node.address);
        }
    }
    Ok("127.0.0.1".to_owned())
}

/// The environment variables for torchrun and similar launchers: the address of rank 0 and the number of
/// ranks. With a network of the gang, NCCL and gloo use its interface.
pub async fn environment(
    tx: &mut Tx<'_>,
    row: &StoredOpenRank,
    has_gang_network: bool,
) -> Result<Vec<(String, String)>, StoreError> {
    let master = master_address(tx, row, has_gang_network).await?;
    let world = row.nodes.saturating_mul(row.device_count);
    let interfaces =
        ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"].map(|name| (name, GANG_INTERFACE.to_owned()));
    let interfaces = interfaces.into_iter().filter(|_| has_gang_network);
    Ok([
        ("MASTER_ADDR", master),
        ("MASTER_PORT", master_port(&row.job_id.to_string(), row.number).to_string()),
        ("NNODES", row.nodes.to_string()),
        ("NODE_RANK", row.rank.to_string()),
        ("NPROC_PER_NODE", row.device_count.to_string()),
        ("WORLD_SIZE", world.to_string()),
    ]
    .into_iter()
    .chain(interfaces)
    .map(|(name, value)| (name.to_owned(), value))
    .collect())
}

/// The nodes of these ranks.
pub fn node_ids(ranks: &[StoredAttempt]) -> Vec<NodeId> {
    ranks.iter().map(|rank| rank.node_id).collect()
}
