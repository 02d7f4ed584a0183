//! Jobs of everyone for their operator: lists, and stopping many at once.
//!
//! Operators see whose jobs there are and what became of them, not what they run.

use std::collections::BTreeMap;

use berth_core::jobs::Event;
use berth_types::Page;
use berth_types::events::JobEvent;
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::{Failure, JobState};
use berth_types::operations::{JobFilter, JobsOfOrg, OperatedJob, StopJobs, StoppedJobs};
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use futures::FutureExt;

use crate::drains::sentence;
use crate::transitions::advance;
use berth_foundation::{Caller, Right, idempotency};
use berth_foundation::{Change, Context};
use berth_store::operations::{Meant, OperatedRow};
use berth_store::{self as store, StoreError, Tx};

/// As many jobs are told to stop by one order, in one transaction.
const AT_ONCE: i64 = 500;

/// A filter in the store's terms.
fn meant(filter: &JobFilter) -> Result<Meant, Problem> {
    let label = match &filter.label {
        None => String::new(),
        Some(text) => {
            let refuse = || Problem::invalid_field("/filter/label", "Give a label as key=value.");
            let (key, value) = text.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(refuse)?;
            let json = |text: &str| serde_json::to_string(text).map_err(|_| Problem::internal());
            format!("{}:{}", json(key)?, json(value)?)
        }
    };
    Ok(Meant {
        org: filter.org.map_or_else(String::new, |id| id.to_string()),
        node: filter.node.map_or_else(String::new, |id| id.to_string()),
        state: filter.state.map_or("", JobState::name).to_owned(),
        offering: filter.offering.clone().unwrap_or_default(),
        label,
    })
}

fn shown(row: OperatedRow, currency: &str) -> Result<OperatedJob, StoreError> {
    let corrupt = |what: &str| StoreError::Corrupt(format!("job {}: {what}", row.id));
    let number = |n: i64| u32::try_from(n).unwrap_or(0);
    Ok(OperatedJob {
        id: row.id.parse().map_err(|_| corrupt("id"))?,
        org: row.org_id.parse().map_err(|_| corrupt("org"))?,
        state: JobState::parse(&row.state).ok_or_else(|| corrupt("state"))?,
        labels: serde_json::from_str(&row.labels).map_err(|_| corrupt("labels"))?,
        org_name: row.org_name,
        name: row.name,
        attempt: number(row.attempt),
        offering: row.slug,
        count: number(row.device_count),
        nodes: number(row.nodes),
        node_name: row.node_name,
        created_by: row.created_by,
        created_at: Timestamp::from_micros(row.created_at),
        started_at: row.started_at.map(Timestamp::from_micros),
        ended_at: row.ended_at.map(Timestamp::from_micros),
        exit_code: row.exit_code.and_then(|c| i32::try_from(c).ok()),
        failure: row
            .failure_code
            .map(|code| Failure { code, detail: row.failure_detail.unwrap_or_default() }),
        metered_ms: row.metered_ms,
        cost_micros: row.cost_micros,
        currency: currency.to_owned(),
    })
}

/// What an order means: how many jobs of whom.
async fn matched(tx: &mut Tx<'_>, meant: &Meant) -> Result<StoppedJobs, StoreError> {
    let of = |(org, org_name, jobs): (String, String, i64)| {
        let jobs = u64::try_from(jobs).unwrap_or(0);
        Ok(JobsOfOrg { org: org.parse().map_err(|_| StoreError::Corrupt(org.clone()))?, org_name, jobs })
    };
    let rows = store::operations::count_stoppable(tx, meant).await?;
    let orgs: Vec<JobsOfOrg> = rows.into_iter().map(of).collect::<Result<_, StoreError>>()?;
    let matched = orgs.iter().map(|o| o.jobs).sum();
    Ok(StoppedJobs { matched, orgs, stopped: 0, left: matched })
}

fn grown(matched: u64, expected: u64) -> Problem {
    let detail = format!(
        "{matched} jobs are meant by now, and you were shown {expected}. Nothing was stopped; look at the new number and order it again."
    );
    Problem::conflict("jobs.more", "More jobs are meant than you were shown", detail)
}

fn check_reason(reason: &str) -> Result<String, Problem> {
    let reason = reason.trim();
    if !(1..=200).contains(&reason.chars().count()) || reason.chars().any(char::is_control) {
        let detail = "Say in 1 to 200 characters on one line why: those whose jobs are stopped see it.";
        return Err(Problem::invalid_field("/reason", detail));
    }
    Ok(reason.to_owned())
}

/// A job that was told to stop, with where it ran.
struct Told {
    org: OrgId,
    event: JobEvent,
    nodes: Vec<NodeId>,
}

/// Tells the oldest of those that are meant to stop.
async fn tell_all(
    tx: &mut Tx<'_>,
    context: &Context,
    meant: &Meant,
    detail: &str,
    now: Timestamp,
) -> Result<Vec<Told>, StoreError> {
    let mut told = Vec::new();
    for id in store::operations::list_stoppable(tx, meant, AT_ONCE).await? {
        let job: JobId = id.parse().map_err(|_| StoreError::Corrupt(id.clone()))?;
        let Some(mut row) = store::jobs::find_any(tx, job).await? else { continue };
        let org: OrgId = row.org_id.parse().map_err(|_| StoreError::Corrupt(row.org_id.clone()))?;
        let slots = store::attempts::list_allocations(tx, &row.id, row.attempt).await?;
        let nodes: Vec<NodeId> = slots.iter().filter_map(|s| s.node_id.parse().ok()).collect();
        // What stops for good already needs no second word.
        if let Ok(event) = advance(tx, context, &mut row, Event::Halt, detail.to_owned(), now).await? {
            told.push(Told { org, event, nodes });
        }
    }
    Ok(told)
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

    /// Jobs of everyone that are meant, newest first.
    pub async fn list_all_jobs(
        &self,
        caller: &Caller,
        filter: &JobFilter,
        cursor: Option<JobId>,
        limit: u32,
    ) -> Result<Page<OperatedJob>, Problem> {
        self.context.authorise_operator(caller)?;
        self.operated(&meant(filter)?, cursor, limit).await
    }

    /// The same of one organization, for those who are in it.
    pub async fn list_own_jobs(
        &self,
        caller: &Caller,
        org: OrgId,
        state: Option<JobState>,
        cursor: Option<JobId>,
        limit: u32,
    ) -> Result<Page<OperatedJob>, Problem> {
        self.context.authorise(caller, org, Right::Look).await?;
        let filter = JobFilter { org: Some(org), state, ..JobFilter::default() };
        self.operated(&meant(&filter)?, cursor, limit).await
    }

    async fn operated(
        &self,
        meant: &Meant,
        cursor: Option<JobId>,
        limit: u32,
    ) -> Result<Page<OperatedJob>, Problem> {
        let before = cursor.map_or_else(String::new, |c| c.to_string());
        let mut conn = self.context.db.read().await?;
        let rows = store::operations::list_jobs(&mut conn.tx(), meant, &before, i64::from(limit)).await?;
        let full = u32::try_from(rows.len()).is_ok_and(|n| n == limit);
        let currency = &self.context.settings.currency;
        let items: Vec<OperatedJob> =
            rows.into_iter().map(|row| shown(row, currency)).collect::<Result<_, StoreError>>()?;
        let next_cursor = items.last().filter(|_| full).map(|j| j.id.to_string());
        Ok(Page { items, next_cursor })
    }

    /// What an order to stop jobs would mean. Changes nothing.
    pub async fn preview_stop(&self, caller: &Caller, order: &StopJobs) -> Result<StoppedJobs, Problem> {
        self.context.authorise_operator(caller)?;
        let meant = meant(&order.filter)?;
        let mut conn = self.context.db.read().await?;
        Ok(matched(&mut conn.tx(), &meant).await?)
    }

    /// Tells jobs to stop, so many at once at most, if no more are meant than the operator was shown. Their
    /// organizations see who did that and why.
    pub async fn stop_jobs(&self, caller: &Caller, order: StopJobs) -> Result<StoppedJobs, Problem> {
        self.context.authorise_operator(caller)?;
        if let Some(made) = caller.done_before() {
            return serde_json::from_str(made).map_err(|_| Problem::internal());
        }
        let reason = check_reason(&order.reason)?;
        let Some(expected) = order.expected else {
            let detail = "Say how many jobs you mean to stop; `?preview=true` tells how many there are.";
            return Err(Problem::invalid_field("/expected", detail));
        };
        let meant = meant(&order.filter)?;
        let now = self.context.now();
        let detail = sentence(&format!("Stopped by the operator ({}): {reason}", caller.user.name));
        let (context, caller) = (self.context.clone(), caller.clone());
        let done = self.context.db.write(move |tx| {
            let (context, caller, meant) = (context.clone(), caller.clone(), meant.clone());
            let (detail, reason) = (detail.clone(), reason.clone());
            async move {
                let mut answer = matched(tx, &meant).await?;
                if answer.matched > expected {
                    return Ok(Err(grown(answer.matched, expected)));
                }
                let told = tell_all(tx, &context, &meant, &detail, now).await?;
                let mut by_org: BTreeMap<OrgId, usize> = BTreeMap::new();
                for one in &told {
                    *by_org.entry(one.org).or_default() += 1;
                }
                for (org, jobs) in by_org {
                    let what = format!("{jobs} {}: {reason}", if jobs == 1 { "job" } else { "jobs" });
                    let event = context.audit_event(&caller, "jobs.stopped", org.to_string(), what);
                    store::quotas::insert_audit(tx, Some(org), &event).await?;
                }
                answer.stopped = u64::try_from(told.len()).unwrap_or(u64::MAX);
                answer.left = answer.matched.saturating_sub(answer.stopped);
                let made = serde_json::to_string(&answer).map_err(|e| StoreError::Corrupt(e.to_string()))?;
                idempotency::claim(tx, caller.once.as_ref(), &made, now).await?;
                Ok(Ok((answer, told)))
            }
            .boxed()
        });
        let (answer, told) = done.await??;
        for Told { org, event, nodes } in told {
            for node in nodes {
                self.context.publish(Change::Assignments(node));
            }
            let job = event.job;
            self.context.publish(Change::Job { org, job, event: Some(event) });
        }
        Ok(answer)
    }
}
