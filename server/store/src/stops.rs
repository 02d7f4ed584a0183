//! The stop of a job, in the columns of the job's row.

use std::error::Error;

use berth_core::jobs::StopCause;
use berth_types::ids::JobId;
use berth_types::jobs::JobState;
use sqlx::{ColumnIndex, Decode, FromRow, Row, Type};

/// The stop of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    pub cause: StopCause,
    /// The reason of the operator, for a job that is halted or drained, or of the budget that is spent.
    pub reason: Option<String>,
}

/// The state of a job, with its stop while it is being stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phase {
    pub state: JobState,
    pub stop: Option<Stop>,
}

/// The columns of a stop.
#[derive(Debug, Default)]
pub(crate) struct StopColumns {
    pub stop_cause: Option<&'static str>,
    pub stop_reason: Option<String>,
    pub stop_for_job: Option<JobId>,
    pub stop_requeues: Option<bool>,
    pub stop_seconds: Option<i64>,
    pub stop_percent: Option<i64>,
}

impl StopColumns {
    pub(crate) fn new(stop: Option<&Stop>) -> Self {
        let Some(stop) = stop else { return Self::default() };
        let named =
            |name| Self { stop_cause: Some(name), stop_reason: stop.reason.clone(), ..Self::default() };
        match stop.cause {
            StopCause::Cancelled => Self { stop_reason: None, ..named("cancelled") },
            StopCause::TimedOut => named("timed_out"),
            StopCause::RankFailed => named("rank_failed"),
            StopCause::Halted => named("halted"),
            // The column knows no name for it; only this stop of a cancelled job has a reason.
            StopCause::Spent => {
                Self { stop_reason: Some(stop.reason.clone().unwrap_or_default()), ..named("cancelled") }
            }
            // The column needs a value for this cause.
            StopCause::Preempted { for_job } => {
                Self { stop_for_job: Some(for_job.unwrap_or(JobId::NONE)), ..named("preempted") }
            }
            StopCause::Idle { percent, for_s } => Self {
                stop_seconds: Some(i64::from(for_s)),
                stop_percent: Some(i64::from(percent)),
                ..named("idle")
            },
            StopCause::Drained { again, grace_s } => Self {
                stop_requeues: Some(again),
                stop_seconds: Some(i64::from(grace_s)),
                ..named("drained")
            },
        }
    }
}

/// Parses the columns of a stop; returns `None` if they contradict each other.
fn parse(
    cause: &str,
    reason: Option<&str>,
    for_job: Option<JobId>,
    requeues: Option<bool>,
    seconds: Option<i64>,
    percent: Option<i64>,
) -> Option<StopCause> {
    let seconds = seconds.map(u32::try_from).transpose().ok()?;
    Some(match cause {
        "cancelled" if reason.is_some() => StopCause::Spent,
        "cancelled" => StopCause::Cancelled,
        "timed_out" => StopCause::TimedOut,
        "rank_failed" => StopCause::RankFailed,
        "halted" => StopCause::Halted,
        "preempted" => StopCause::Preempted { for_job: Some(for_job?).filter(|job| *job != JobId::NONE) },
        "idle" => StopCause::Idle { percent: u8::try_from(percent?).ok()?, for_s: seconds? },
        "drained" => StopCause::Drained { again: requeues?, grace_s: seconds? },
        _ => return None,
    })
}

impl<'r, R: Row> FromRow<'r, R> for Phase
where
    for<'n> &'n str: ColumnIndex<R>,
    Option<String>: Decode<'r, R::Database> + Type<R::Database>,
    JobState: Decode<'r, R::Database> + Type<R::Database>,
    Option<JobId>: Decode<'r, R::Database> + Type<R::Database>,
    Option<bool>: Decode<'r, R::Database> + Type<R::Database>,
    Option<i64>: Decode<'r, R::Database> + Type<R::Database>,
{
    fn from_row(row: &'r R) -> Result<Self, sqlx::Error> {
        let state = row.try_get("state")?;
        let Some(cause): Option<String> = row.try_get("stop_cause")? else {
            return Ok(Self { state, stop: None });
        };
        let reason: Option<String> = row.try_get("stop_reason")?;
        let cause = parse(
            &cause,
            reason.as_deref(),
            row.try_get("stop_for_job")?,
            row.try_get("stop_requeues")?,
            row.try_get("stop_seconds")?,
            row.try_get("stop_percent")?,
        )
        .ok_or_else(|| {
            let source: Box<dyn Error + Send + Sync> = format!("{cause:?} in stop_cause").into();
            sqlx::Error::ColumnDecode { index: "stop_cause".to_owned(), source }
        })?;
        Ok(Self { state, stop: Some(Stop { cause, reason }) })
    }
}
