//! The recorded events of jobs.

use berth_types::events::JobEvent;
use berth_types::ids::{JobId, OrgId};
use berth_types::jobs::JobState;
use berth_types::time::Timestamp;

use crate::{StoreError, Tx};

/// Lists the events of all jobs of an organization since a time, oldest first.
pub async fn list_org_events(
    tx: &mut Tx<'_>,
    org: OrgId,
    since: Timestamp,
    limit: i64,
) -> Result<Vec<JobEvent>, StoreError> {
    let sql = "SELECT job_id, seq, at, state, attempt, detail FROM job_events WHERE org_id = $1 AND at >= $2 \
               ORDER BY at, job_id, seq LIMIT $3";
    let rows = list!(tx, (JobId, i64, Timestamp, JobState, i64, String), sql, org, since, limit)?;
    let event = |(job, seq, at, state, attempt, detail)| event(job, (seq, at, state, attempt, detail));
    Ok(rows.into_iter().map(event).collect())
}

fn event(job: JobId, (seq, at, state, attempt, detail): (i64, Timestamp, JobState, i64, String)) -> JobEvent {
    JobEvent { job, seq, at, state, attempt: u32::try_from(attempt).unwrap_or(0), detail }
}

pub async fn insert_event(tx: &mut Tx<'_>, org: OrgId, event: &JobEvent) -> Result<(), StoreError> {
    exec!(
        tx,
        "INSERT INTO job_events (job_id, seq, org_id, at, state, attempt, detail) VALUES ($1, $2, $3, $4, $5, $6, $7)",
        event.job,
        event.seq,
        org,
        event.at,
        event.state,
        i64::from(event.attempt),
        &event.detail
    )
    .map(|_| ())
}

/// Finds the start of the last attempt of a job that ran.
pub async fn find_last_start(tx: &mut Tx<'_>, job: JobId) -> Result<Option<Timestamp>, StoreError> {
    let sql = "SELECT MIN(at) FROM job_events WHERE job_id = $1 AND state = $2 AND attempt = \
               (SELECT MAX(attempt) FROM job_events WHERE job_id = $1 AND state = $2)";
    Ok(find!(tx, (Option<Timestamp>,), sql, job, JobState::Running)?.and_then(|(at,)| at))
}

/// Lists the events of a job after the number `after`, in order.
pub async fn list_events(tx: &mut Tx<'_>, job: JobId, after: i64) -> Result<Vec<JobEvent>, StoreError> {
    let sql = "SELECT seq, at, state, attempt, detail, job_id AS row_id FROM job_events WHERE job_id = $1 AND seq > $2 ORDER BY seq";
    let rows = list!(tx, (i64, Timestamp, JobState, i64, String), sql, job, after)?;
    Ok(rows.into_iter().map(|row| event(job, row)).collect())
}
