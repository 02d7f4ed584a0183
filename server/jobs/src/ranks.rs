//! The ranks of an attempt: how each ended, how all of them did, and what each is told of the others.

use berth_core::jobs::{Event, Outcome, StopCause, idle_text, tries_again};
use berth_proto as proto;
use berth_types::ids::NodeId;
use berth_types::jobs::{Checkpoint, CheckpointSignal, Failure, Retry};
use serde::{Deserialize, Serialize};

use berth_store::attempts::{AttemptRow, OpenRow};
use berth_store::jobs::JobRow;
use berth_store::{self as store, StoreError, Tx};

/// How a rank ended, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankEnd {
    code: i32,
    timed_out: bool,
    failure: Option<Failure>,
    /// It counts as lost, and its worker spoke of it since.
    #[serde(default)]
    late: bool,
}

impl RankEnd {
    pub fn of(status: &proto::Status) -> Self {
        let failure = status.failure.as_ref();
        Self {
            code: status.exit_code.unwrap_or(255),
            timed_out: status.timed_out,
            failure: failure.map(|f| Failure { code: f.code.clone(), detail: f.detail.clone() }),
            late: false,
        }
    }

    /// The same, once its worker spoke of it after it had counted as lost; `None` where that is nothing new.
    pub fn heard_late(self) -> Option<Self> {
        (self.is_lost() && !self.late).then_some(Self { late: true, ..self })
    }

    pub fn is_success(&self) -> bool {
        self.failure.is_none() && !self.timed_out && self.code == 0
    }

    /// It ended because its node counts as lost.
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
                format!("It reached its limit and was stopped; exit code {}.", self.code)
            }
            None => format!("The process ended with exit code {}.", self.code),
        }
    }
}

/// How an attempt ended: as the first of its ranks that ended badly, or well when none did. The rank,
/// when there are several.
pub fn first_end(ranks: &[AttemptRow]) -> Option<(Option<i64>, RankEnd)> {
    let read = |row: &AttemptRow| {
        let end: RankEnd = serde_json::from_str(row.outcome.as_deref()?).ok()?;
        Some((end.is_success(), row.ended_at, row.rank, end))
    };
    let (.., rank, end) =
        ranks.iter().filter_map(read).min_by_key(|(good, at, rank, _)| (*good, *at, *rank))?;
    Some(((ranks.len() > 1).then_some(rank), end))
}

/// What a submission says of further tries; the rest of it, files above all, is passed over.
#[derive(Deserialize)]
struct Policy {
    #[serde(default)]
    retry: Option<Retry>,
}

/// What the end of a rank means for its job.
pub fn ended_event(
    job: &JobRow,
    number: u32,
    ranks: &[AttemptRow],
    ended: &AttemptRow,
) -> Result<Option<(Event, String)>, StoreError> {
    let Some((rank, end)) = first_end(ranks) else { return Ok(None) };
    let of_rank = |text: String| rank.map_or(text.clone(), |rank| format!("Rank {rank}: {text}"));
    if !ranks.iter().all(|r| r.ended) {
        // Ranks that end well before the others are waited for.
        return Ok((rank == Some(ended.rank) && !end.is_success()).then(|| {
            let detail = format!("{} The other ranks are stopped.", of_rank(end.detail()));
            (Event::RankFailed { attempt: number }, detail)
        }));
    }
    let Policy { retry } =
        serde_json::from_str(&job.spec).map_err(|_| StoreError::Corrupt(job.id.clone()))?;
    let (outcome, mut detail) = (end.outcome(), of_rank(end.detail()));
    let stop = job.stop_cause();
    let time_left = job.metered_ms < job.max_duration_s.saturating_mul(1_000);
    let retries = u32::try_from(job.retries).unwrap_or(u32::MAX);
    let again = time_left && tries_again(retry.as_ref(), retries, stop, &outcome);
    let wanted = !matches!(
        stop,
        Some(StopCause::Cancelled | StopCause::TimedOut | StopCause::Halted | StopCause::Idle { .. })
    );
    if let Some(StopCause::Idle { percent, for_s }) = stop {
        detail = format!("{} {detail}", idle_text(percent, for_s));
    }
    let made_room = matches!(stop, Some(StopCause::Preempted { .. } | StopCause::Drained { .. }));
    if let Some(retry) = retry.filter(|_| again && wanted && !made_room) {
        detail = format!("{detail} It is tried again: {} of {}.", retries + 1, retry.max);
    }
    Ok(Some((Event::End { attempt: number, outcome, again }, detail)))
}

/// What a submission says of how its job makes room.
#[derive(Deserialize)]
struct Saving {
    #[serde(default)]
    checkpoint: Option<Checkpoint>,
}

/// The signal by which an attempt is told to stop, and milliseconds until it is killed; zeros: as its
/// worker does it. Who makes room may save its state first; who is cancelled or late just ends.
pub fn notice(row: &OpenRow) -> Result<(i32, i64), StoreError> {
    let own = || row.submission::<Saving>().map(|saving| saving.checkpoint);
    Ok(match row.phase.stop.as_ref().map(|stop| stop.cause) {
        Some(StopCause::Preempted { .. }) => {
            own()?.map_or((0, 0), |c| (c.signal.number(), i64::from(c.grace_s) * 1_000))
        }
        // Its grace was chosen when it was told to go.
        Some(StopCause::Drained { grace_s, .. }) if grace_s > 0 => {
            (own()?.map_or_else(CheckpointSignal::default, |c| c.signal).number(), i64::from(grace_s) * 1_000)
        }
        _ => (0, 0),
    })
}

/// A port for the ranks of an attempt to meet at, the same for all of them.
fn port(job: &str, number: i64) -> u32 {
    let hash = job
        .bytes()
        .chain(number.to_le_bytes())
        .fold(2_166_136_261u32, |h, b| (h ^ u32::from(b)).wrapping_mul(16_777_619));
    20_000 + hash % 20_000
}

/// What torchrun and its like want to know: where rank 0 is, and how many there are.
pub async fn environment(tx: &mut Tx<'_>, row: &OpenRow) -> Result<Vec<(String, String)>, StoreError> {
    let mut master = "127.0.0.1".to_owned();
    if row.nodes > 1 {
        let ranks = store::attempts::list_ranks(tx, &row.job_id, row.number).await?;
        let first = ranks.first().map(|r| r.node_id.clone()).unwrap_or_default();
        let nodes = store::nodes::list(tx).await?;
        if let Some(node) = nodes.into_iter().find(|n| n.id == first).filter(|n| !n.address.is_empty()) {
            master = node.address;
        }
    }
    let world = row.nodes.saturating_mul(row.device_count);
    Ok([
        ("MASTER_ADDR", master),
        ("MASTER_PORT", port(&row.job_id, row.number).to_string()),
        ("NNODES", row.nodes.to_string()),
        ("NODE_RANK", row.rank.to_string()),
        ("NPROC_PER_NODE", row.device_count.to_string()),
        ("WORLD_SIZE", world.to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into())
}

/// The nodes of these ranks.
pub fn nodes(ranks: &[AttemptRow]) -> Vec<NodeId> {
    ranks.iter().filter_map(|r| r.node_id.parse().ok()).collect()
}
