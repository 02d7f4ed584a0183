//! The stop of many jobs with one order: of all organizations by operators, or of one by its members.

use std::collections::{BTreeMap, HashMap};

use berth_core::jobs::MachineEvent;
use berth_types::events::JobEvent;
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::operations::{JobsOfOrg, StoppedJobs};
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use futures::FutureExt;

use crate::transitions::advance;
use berth_foundation::{Caller, idempotency};
use berth_foundation::{Change, Context};
use berth_store::jobs::StoredJob;
use berth_store::operations::JobQuery;
use berth_store::{self as store, StoreError, Tx, WriteError};

/// The most jobs that one order stops, in one transaction.
const MAX_STOPS: i64 = 500;

/// An order for the stop of all jobs that match.
#[derive(Clone)]
pub(crate) struct StopOrder {
    pub query: JobQuery,
    /// The number of jobs in the preview.
    pub expected: Option<u64>,
    /// The event of each job.
    pub event: MachineEvent,
    /// The text of each event.
    pub detail: String,
    /// The text of the audit event after the number of jobs.
    pub note: String,
}

/// The number of jobs that an order would stop, in all and by organization.
async fn count_matched(tx: &mut Tx<'_>, query: &JobQuery) -> Result<StoppedJobs, StoreError> {
    let jobs_of_org = |(org, org_name, jobs): (OrgId, String, i64)| {
        let jobs = u64::try_from(jobs).unwrap_or(0);
        JobsOfOrg { org, org_name, jobs }
    };
    let rows = store::operations::count_stoppable(tx, query).await?;
    let orgs: Vec<JobsOfOrg> = rows.into_iter().map(jobs_of_org).collect();
    let matched = orgs.iter().map(|o| o.jobs).sum();
    Ok(StoppedJobs { matched, orgs, stopped: 0, left: matched })
}

fn more_than_expected(matched: u64, expected: u64) -> Problem {
    let detail = format!(
        "{matched} jobs match now, and the preview had {expected}. Nothing was stopped. Check the new number, then send the request again."
    );
    Problem::conflict("jobs.more", "More jobs match than in the preview", detail)
}

/// A job that was stopped, with the nodes of its attempt.
struct StoppedJob {
    org: OrgId,
    event: JobEvent,
    nodes: Vec<NodeId>,
}

/// Stops the oldest jobs that match.
async fn stop_matched(
    tx: &mut Tx<'_>,
    context: &Context,
    order: &StopOrder,
    now: Timestamp,
) -> Result<Vec<StoppedJob>, StoreError> {
    let jobs = store::operations::list_stoppable(tx, &order.query, MAX_STOPS).await?;
    let rows = store::jobs::list_any(tx, &jobs).await?;
    let mut rows: HashMap<JobId, StoredJob> = rows.into_iter().map(|row| (row.id, row)).collect();
    let mut nodes: HashMap<JobId, Vec<NodeId>> = HashMap::new();
    for slot in store::attempts::list_latest_allocations(tx, &jobs).await? {
        nodes.entry(slot.job_id).or_default().push(slot.node_id);
    }
    let mut stopped = Vec::new();
    for job in jobs {
        let Some(mut row) = rows.remove(&job) else { continue };
        // A job that stops for good already rejects the event.
        if let Some(event) =
            advance(tx, context, &mut row, order.event.clone(), order.detail.clone(), now).await?
        {
            let nodes = nodes.remove(&job).unwrap_or_default();
            stopped.push(StoppedJob { org: row.org_id, event, nodes });
        }
    }
    Ok(stopped)
}

/// Stops the jobs of an order in a transaction, with an audit event for each organization.
async fn carry_out(
    tx: &mut Tx<'_>,
    context: &Context,
    caller: &Caller,
    order: &StopOrder,
    expected: u64,
    now: Timestamp,
) -> Result<(StoppedJobs, Vec<StoppedJob>), WriteError> {
    let mut answer = count_matched(tx, &order.query).await?;
    if answer.matched > expected {
        return Err(more_than_expected(answer.matched, expected).into());
    }
    let stopped = stop_matched(tx, context, order, now).await?;
    let mut by_org: BTreeMap<OrgId, usize> = BTreeMap::new();
    for job in &stopped {
        *by_org.entry(job.org).or_default() += 1;
    }
    for (org, jobs) in by_org {
        let detail = format!("{jobs} {}: {}", if jobs == 1 { "job" } else { "jobs" }, order.note);
        let event = context.audit_event(caller, "jobs.stopped", org.to_string(), detail);
        store::quotas::insert_audit(tx, Some(org), &event).await?;
    }
    answer.stopped = u64::try_from(stopped.len()).unwrap_or(u64::MAX);
    answer.left = answer.matched.saturating_sub(answer.stopped);
    let text = serde_json::to_string(&answer).map_err(|e| StoreError::Corrupt(e.to_string()))?;
    idempotency::claim(tx, caller.idempotency_key.as_ref(), &text, now).await?;
    Ok((answer, stopped))
}

/// Counts the jobs that an order with this query would stop. The caller's right is checked before.
pub(crate) async fn preview(context: &Context, query: &JobQuery) -> Result<StoppedJobs, Problem> {
    let mut conn = context.db.read().await?;
    Ok(count_matched(&mut conn.tx(), query).await?)
}

/// Stops the jobs that match, at most `MAX_STOPS` with one order. The caller's right is checked before.
///
/// # Errors
/// More jobs match than the caller expects, or the order has no expected number.
pub(crate) async fn stop(
    context: &Context,
    caller: &Caller,
    order: StopOrder,
) -> Result<StoppedJobs, Problem> {
    if let Some(answer) = caller.already_created() {
        return serde_json::from_str(answer).map_err(|_| Problem::internal());
    }
    let Some(expected) = order.expected else {
        let detail = "Enter the number of matching jobs. `?preview=true` returns it.";
        return Err(Problem::invalid_field("/expected", detail));
    };
    let (writer, by, now) = (context.clone(), caller.clone(), context.now());
    let done = context.db.try_write(move |tx| {
        let (context, caller, order) = (writer.clone(), by.clone(), order.clone());
        async move { carry_out(tx, &context, &caller, &order, expected, now).await }.boxed()
    });
    let (answer, stopped) = done.await?;
    for StoppedJob { org, event, nodes } in stopped {
        for node in nodes {
            context.publish(Change::Assignments(node));
        }
        let job = event.job;
        context.publish(Change::Job { org, job, event: Some(event) });
    }
    Ok(answer)
}
