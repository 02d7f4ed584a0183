//! The ranks of an attempt: the end of each, the end of the attempt, and the environment of its processes.

use berth_core::jobs::{MachineEvent, Outcome, StopCause, idle_text, is_retried};
use berth_types::ids::NodeId;
use berth_types::jobs::{Checkpoint, CheckpointSignal, Failure, Retry};
use serde::{Deserialize, Serialize};

use crate::assignments::StopSignal;
use crate::reports::AttemptReport;
use berth_store::attempts::{AttemptRow, OpenRankRow};
use berth_store::jobs::JobRow;
use berth_store::{self as store, StoreError, Tx};

/// The end of a rank, as stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankEnd {
    code: i32,
    timed_out: bool,
    failure: Option<Failure>,
    /// The rank counts as lost, and its worker has reported about it since.
    #[serde(default)]
    late: bool,
}

impl RankEnd {
    pub fn from_report(report: &AttemptReport) -> Self {
        Self {
            code: report.exit_code.unwrap_or(255),
            timed_out: report.timed_out,
            failure: report.failure.clone(),
            late: false,
        }
    }

    /// Marks a lost rank as reported late. `None` if the rank is not lost or is already marked.
    pub fn mark_late(self) -> Option<Self> {
        (self.is_lost() && !self.late).then_some(Self { late: true, ..self })
    }

    pub fn is_success(&self) -> bool {
        self.failure.is_none() && !self.timed_out && self.code == 0
    }

    /// Returns true if the rank ended because its node counts as lost.
    pub fn is_lost(&self) -> bool {
        self.failure.as_ref().is_some_and(|failure| failure.code == "node.lost")
    }

    pub fn outcome(&self) -> Outcome {
        match &self.failure {
            Some(failure) => Outcome::Failed(failure.clone()),
            None if self.timed_out => Outcome::TimedOut { code: self.code },
            None => Outcome::Exited { code: self.code },
        }
    }

    pub fn detail(&self) -> String {
        match &self.failure {
            Some(failure) => failure.detail.clone(),
            None if self.timed_out => {
                format!("Time limit reached: stopped with exit code {}.", self.code)
            }
            None => format!("The process ended with exit code {}.", self.code),
        }
    }
}

/// The end of an attempt: the first bad end of a rank, or else the first end. The number of the rank comes
/// with it if there are several ranks.
fn deciding_end(ranks: &[AttemptRow]) -> Option<(Option<i64>, RankEnd)> {
    let rank_end = |row: &AttemptRow| {
        let end: RankEnd = serde_json::from_str(row.outcome.as_deref()?).ok()?;
        Some((end.is_success(), row.ended_at, row.rank, end))
    };
    let (.., rank, end) =
        ranks.iter().filter_map(rank_end).min_by_key(|(good, at, rank, _)| (*good, *at, *rank))?;
    Some(((ranks.len() > 1).then_some(rank), end))
}

/// The retry policy in a submission. The other fields, above all the files, are skipped.
#[derive(Deserialize)]
struct RetryPolicy {
    #[serde(default)]
    retry: Option<Retry>,
}

/// The event of a job, with its text, that follows from the end of a rank.
pub fn ended_event(
    job: &JobRow,
    number: u32,
    ranks: &[AttemptRow],
    ended: &AttemptRow,
) -> Result<Option<(MachineEvent, String)>, StoreError> {
    let Some((rank, end)) = deciding_end(ranks) else { return Ok(None) };
    let with_rank = |text: String| rank.map_or(text.clone(), |rank| format!("Rank {rank}: {text}"));
    if !ranks.iter().all(|r| r.ended) {
        // After a good end of one rank the attempt waits for the others.
        return Ok((rank == Some(ended.rank) && !end.is_success()).then(|| {
            let detail = format!("{} The other ranks are stopped.", with_rank(end.detail()));
            (MachineEvent::RankFailed { attempt: number }, detail)
        }));
    }
    let RetryPolicy { retry } =
        serde_json::from_str(&job.spec).map_err(|_| StoreError::Corrupt(job.id.to_string()))?;
    let (outcome, mut detail) = (end.outcome(), with_rank(end.detail()));
    let stop = job.stop_cause();
    let time_left = job.metered_ms < job.max_duration_s.saturating_mul(1_000);
    let retries = u32::try_from(job.retries).unwrap_or(u32::MAX);
    let again = time_left && is_retried(retry.as_ref(), retries, stop, &outcome);
    let is_stopped = matches!(
        stop,
        Some(StopCause::Cancelled | StopCause::TimedOut | StopCause::Halted | StopCause::Idle { .. })
    );
    if let Some(StopCause::Idle { percent, for_s }) = stop {
        detail = format!("{} {detail}", idle_text(percent, for_s));
    }
    let is_displaced = matches!(stop, Some(StopCause::Preempted { .. } | StopCause::Drained { .. }));
    if let Some(retry) = retry.filter(|_| again && !is_stopped && !is_displaced) {
        detail = format!("{detail} Retry {} of {} follows.", retries + 1, retry.max);
    }
    Ok(Some((MachineEvent::End { attempt: number, outcome, again }, detail)))
}

/// The checkpoint policy in a submission. The other fields, above all the files, are skipped.
#[derive(Deserialize)]
struct CheckpointPolicy {
    #[serde(default)]
    checkpoint: Option<Checkpoint>,
}

/// The stop signal of an attempt; `None` selects the worker's defaults. A preempted or drained attempt may
/// save its state first. Every other attempt gets the defaults.
///
/// # Errors
/// The stored submission does not parse.
pub fn stop_signal(row: &OpenRankRow) -> Result<Option<StopSignal>, StoreError> {
    let checkpoint = || row.submission::<CheckpointPolicy>().map(|policy| policy.checkpoint);
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

/// The environment variables for torchrun and similar launchers: the address of rank 0 and the number of
/// ranks.
pub async fn environment(tx: &mut Tx<'_>, row: &OpenRankRow) -> Result<Vec<(String, String)>, StoreError> {
    let mut master = "127.0.0.1".to_owned();
    if row.nodes > 1 {
        let ranks = store::attempts::list_ranks(tx, row.job_id, row.number).await?;
        let first = ranks.first().map(|r| r.node_id);
        let node = store::nodes::list(tx).await?.into_iter().find(|node| Some(node.id) == first);
        if let Some(node) = node.filter(|node| !node.address.is_empty()) {
            master = node.address;
        }
    }
    let world = row.nodes.saturating_mul(row.device_count);
    Ok([
        ("MASTER_ADDR", master),
        ("MASTER_PORT", master_port(&row.job_id.to_string(), row.number).to_string()),
        ("NNODES", row.nodes.to_string()),
        ("NODE_RANK", row.rank.to_string()),
        ("NPROC_PER_NODE", row.device_count.to_string()),
        ("WORLD_SIZE", world.to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into())
}

/// The nodes of these ranks.
pub fn node_ids(ranks: &[AttemptRow]) -> Vec<NodeId> {
    ranks.iter().map(|rank| rank.node_id).collect()
}
