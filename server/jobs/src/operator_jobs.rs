//! The jobs of all organizations for operators: lists, and the stop of many jobs at once.
//!
//! Operators see the organizations, states and costs of jobs, but not their programs.

pub mod routes;

mod summary;

use std::collections::{BTreeMap, HashMap};

use berth_core::admission::MAX_SLUG_BYTES;
use berth_core::jobs::MachineEvent;
use berth_types::Page;
use berth_types::events::JobEvent;
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::{Failure, OrgJobFilter};
use berth_types::lists::ListOptions;
use berth_types::operations::{JobFilter, JobsOfOrg, OperatedJob, StopJobs, StoppedJobs};
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use futures::FutureExt;

use crate::drains::with_full_stop;
use crate::job_filter::{job_search, stored_label};
use crate::transitions::advance;
use berth_foundation::{Caller, Right, idempotency};
use berth_foundation::{Change, Context};
use berth_store::jobs::{JobSearch, StoredJob};
use berth_store::operations::{JobQuery, StoredOperatorJob};
use berth_store::{self as store, StoreError, Tx};

/// The most jobs that one order stops, in one transaction.
const MAX_STOPS: i64 = 500;

/// Characters of the reason of a stop.
const MAX_REASON_CHARS: usize = 200;

/// The query of the store for a filter.
///
/// # Errors
/// The name of the offering is too long, or the label is no label.
fn job_query(filter: &JobFilter) -> Result<JobQuery, Problem> {
    if filter.offering.as_ref().is_some_and(|slug| slug.len() > MAX_SLUG_BYTES) {
        return Err(Problem::invalid_field("/filter/offering", "Use at most 100 bytes."));
    }
    let label = match &filter.label {
        None => String::new(),
        Some(text) => {
            let detail = "Enter a label as key=value, with at most 127 printable characters.";
            stored_label(text).ok_or_else(|| Problem::invalid_field("/filter/label", detail))?
        }
    };
    Ok(JobQuery {
        org: filter.org,
        node: filter.node,
        offering: filter.offering.clone().unwrap_or_default(),
        search: JobSearch { state: filter.state, label, ..JobSearch::default() },
    })
}

fn operated_job(row: StoredOperatorJob, currency: &str) -> OperatedJob {
    let number = |n: i64| u32::try_from(n).unwrap_or(0);
    OperatedJob {
        id: row.id,
        org: row.org_id,
        state: row.state,
        labels: row.labels.0,
        org_name: row.org_name,
        name: row.name,
        attempt: number(row.attempt),
        offering: row.slug,
        count: number(row.device_count),
        nodes: number(row.nodes),
        node_name: row.node_name,
        created_by: row.created_by,
        created_at: row.created_at,
        started_at: row.started_at,
        ended_at: row.ended_at,
        exit_code: row.exit_code.and_then(|c| i32::try_from(c).ok()),
        failure: row
            .failure_code
            .map(|code| Failure { code, detail: row.failure_detail.unwrap_or_default() }),
        metered_ms: row.metered_ms,
        cost_micros: row.cost_micros,
        currency: currency.to_owned(),
    }
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

fn no_reason() -> Problem {
    let detail = "Enter a reason of 1 to 200 characters on one line. Members with stopped jobs see it.";
    Problem::invalid_field("/reason", detail)
}

fn check_reason(reason: &str) -> Result<String, Problem> {
    let is_long = reason.chars().count() > MAX_REASON_CHARS;
    if reason.trim().is_empty() || is_long || reason.chars().any(char::is_control) {
        return Err(no_reason());
    }
    Ok(reason.trim().to_owned())
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
    query: &JobQuery,
    detail: &str,
    now: Timestamp,
) -> Result<Vec<StoppedJob>, StoreError> {
    let jobs = store::operations::list_stoppable(tx, query, MAX_STOPS).await?;
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
            advance(tx, context, &mut row, MachineEvent::Halt, detail.to_owned(), now).await?
        {
            let nodes = nodes.remove(&job).unwrap_or_default();
            stopped.push(StoppedJob { org: row.org_id, event, nodes });
        }
    }
    Ok(stopped)
}

/// The jobs of all organizations, for operators.
#[derive(Clone)]
pub struct OperatorJobs {
    context: Context,
}

impl OperatorJobs {
    pub fn new(context: Context) -> Self {
        Self { context }
    }

    /// A page of the jobs of all organizations that match a filter.
    pub async fn list_all_jobs(
        &self,
        caller: &Caller,
        filter: &JobFilter,
        options: &ListOptions<JobId>,
    ) -> Result<Page<OperatedJob>, Problem> {
        self.context.authorise_operator(caller)?;
        self.list_jobs(&job_query(filter)?, options).await
    }

    /// A page of the jobs of one organization in the form for operators, for its members.
    pub async fn list_own_jobs(
        &self,
        caller: &Caller,
        org: OrgId,
        filter: &OrgJobFilter,
        options: &ListOptions<JobId>,
    ) -> Result<Page<OperatedJob>, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        let query = JobQuery { org: Some(org), search: job_search(filter)?, ..JobQuery::default() };
        self.list_jobs(&query, options).await
    }

    async fn list_jobs(
        &self,
        query: &JobQuery,
        options: &ListOptions<JobId>,
    ) -> Result<Page<OperatedJob>, Problem> {
        let mut conn = self.context.db.read().await?;
        let rows = store::operations::list_jobs(&mut conn.tx(), query, options).await?;
        let currency = &self.context.settings.currency;
        Ok(options.page(rows, |row| row.id).map(|row| operated_job(row, currency)))
    }

    /// Counts the jobs that an order would stop. Changes nothing.
    pub async fn preview_stop(&self, caller: &Caller, order: &StopJobs) -> Result<StoppedJobs, Problem> {
        self.context.authorise_operator(caller)?;
        if order.reason.chars().count() > MAX_REASON_CHARS {
            return Err(no_reason());
        }
        let query = job_query(&order.filter)?;
        let mut conn = self.context.db.read().await?;
        Ok(count_matched(&mut conn.tx(), &query).await?)
    }

    /// Stops the jobs that match, at most `MAX_STOPS` with one order. Their organizations see the operator
    /// and the reason.
    ///
    /// # Errors
    /// More jobs match than the operator expects, or the reason is invalid.
    pub async fn stop_jobs(&self, caller: &Caller, order: StopJobs) -> Result<StoppedJobs, Problem> {
        self.context.authorise_operator(caller)?;
        if let Some(answer) = caller.already_created() {
            return serde_json::from_str(answer).map_err(|_| Problem::internal());
        }
        let reason = check_reason(&order.reason)?;
        let Some(expected) = order.expected else {
            let detail = "Enter the number of matching jobs. `?preview=true` returns it.";
            return Err(Problem::invalid_field("/expected", detail));
        };
        let query = job_query(&order.filter)?;
        let now = self.context.now();
        let detail = with_full_stop(&format!("Stopped by the operator ({}): {reason}", caller.user.name));
        let (context, caller) = (self.context.clone(), caller.clone());
        let done = self.context.db.try_write(move |tx| {
            let (context, caller, query) = (context.clone(), caller.clone(), query.clone());
            let (detail, reason) = (detail.clone(), reason.clone());
            async move {
                let mut answer = count_matched(tx, &query).await?;
                if answer.matched > expected {
                    return Err(more_than_expected(answer.matched, expected).into());
                }
                let stopped = stop_matched(tx, &context, &query, &detail, now).await?;
                let mut by_org: BTreeMap<OrgId, usize> = BTreeMap::new();
                for job in &stopped {
                    *by_org.entry(job.org).or_default() += 1;
                }
                for (org, jobs) in by_org {
                    let detail = format!("{jobs} {}: {reason}", if jobs == 1 { "job" } else { "jobs" });
                    let event = context.audit_event(&caller, "jobs.stopped", org.to_string(), detail);
                    store::quotas::insert_audit(tx, Some(org), &event).await?;
                }
                answer.stopped = u64::try_from(stopped.len()).unwrap_or(u64::MAX);
                answer.left = answer.matched.saturating_sub(answer.stopped);
                let text = serde_json::to_string(&answer).map_err(|e| StoreError::Corrupt(e.to_string()))?;
                idempotency::claim(tx, caller.idempotency_key.as_ref(), &text, now).await?;
                Ok((answer, stopped))
            }
            .boxed()
        });
        let (answer, stopped) = done.await?;
        for StoppedJob { org, event, nodes } in stopped {
            for node in nodes {
                self.context.publish(Change::Assignments(node));
            }
            let job = event.job;
            self.context.publish(Change::Job { org, job, event: Some(event) });
        }
        Ok(answer)
    }
}
