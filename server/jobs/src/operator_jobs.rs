//! The jobs of all organizations for operators: lists, and the stop of many jobs at once, also of one
//! organization by its members.
//!
//! Operators see the organizations, states and costs of jobs, but not their programs.

pub mod routes;

mod summary;

use berth_core::admission::MAX_SLUG_BYTES;
use berth_core::jobs::MachineEvent;
use berth_types::Page;
use berth_types::ids::{JobId, OrgId};
use berth_types::jobs::{Failure, OrgJobFilter, StopOrgJobs};
use berth_types::lists::ListOptions;
use berth_types::operations::{JobFilter, OperatedJob, StopJobs, StoppedJobs};
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;

use crate::bulk_stops::{self, StopOrder};
use crate::drains::with_full_stop;
use crate::job_filter::{job_search, org_query, stored_label};
use berth_foundation::Context;
use berth_foundation::{Caller, Right};
use berth_store as store;
use berth_store::jobs::JobSearch;
use berth_store::operations::{JobQuery, StoredOperatorJob};

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
        self.context.authorise_operator(caller, OperatorRight::View).await?;
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
        self.context.authorise_operator(caller, OperatorRight::ManageWork).await?;
        if order.reason.chars().count() > MAX_REASON_CHARS {
            return Err(no_reason());
        }
        bulk_stops::preview(&self.context, &job_query(&order.filter)?).await
    }

    /// Stops the jobs that match, a limited number with one order. Their organizations see the operator and the
    /// reason.
    ///
    /// # Errors
    /// More jobs match than the operator expects, or the reason is invalid.
    pub async fn stop_jobs(&self, caller: &Caller, order: StopJobs) -> Result<StoppedJobs, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageWork).await?;
        let reason = check_reason(&order.reason)?;
        let detail = with_full_stop(&format!("Stopped by the operator ({}): {reason}", caller.user.name));
        let order = StopOrder {
            query: job_query(&order.filter)?,
            expected: order.expected,
            event: MachineEvent::Halt,
            detail,
            note: reason,
        };
        bulk_stops::stop(&self.context, caller, order).await
    }

    /// Counts the jobs of an organization that a member's order would stop. Changes nothing.
    ///
    /// # Errors
    /// The filter is invalid.
    pub async fn preview_own_stop(
        &self,
        caller: &Caller,
        org: OrgId,
        order: &StopOrgJobs,
    ) -> Result<StoppedJobs, Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        bulk_stops::preview(&self.context, &org_query(org, &order.filter)?).await
    }

    /// Stops the jobs of an organization that match, a limited number with one order. They end like jobs that
    /// a member stops one by one.
    ///
    /// # Errors
    /// More jobs match than the member expects, or the filter is invalid.
    pub async fn stop_own_jobs(
        &self,
        caller: &Caller,
        org: OrgId,
        order: &StopOrgJobs,
    ) -> Result<StoppedJobs, Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        let conditions = order.filter.text();
        let order = StopOrder {
            query: org_query(org, &order.filter)?,
            expected: order.expected,
            event: MachineEvent::Cancel,
            detail: format!("Stopped by {}.", caller.user.name),
            note: if conditions.is_empty() { "no filter".to_owned() } else { conditions },
        };
        bulk_stops::stop(&self.context, caller, order).await
    }
}
