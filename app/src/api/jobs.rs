//! Jobs.

use std::future::Future;

use berth_types::Page;
use berth_types::events::JobEvent;
use berth_types::files::JobFile;
use berth_types::ids::{JobId, OrgId};
use berth_types::jobs::{Explanation, ExtendJob, Job, JobPlan, JobState, NewJob};
use berth_types::metrics::Metrics;
use berth_types::overview::JobCounts;
use berth_types::ports::{NewPortTicket, PortTicket};

use super::{Answer, send};

/// Lists jobs in one state or in all states, newest first.
pub fn list(
    org: OrgId,
    state: Option<JobState>,
    cursor: Option<String>,
    limit: u32,
) -> impl Future<Output = Answer<Page<Job>>> + Send + 'static {
    let state = state.map_or_else(String::new, |s| format!("&state={}", s.name()));
    let cursor = cursor.map_or_else(String::new, |c| format!("&cursor={c}"));
    super::get(format!("/orgs/{org}/jobs?limit={limit}{state}{cursor}"))
}

/// Gets the numbers of an organization's jobs.
pub fn counts(org: OrgId) -> impl Future<Output = Answer<JobCounts>> + Send + 'static {
    super::get(format!("/orgs/{org}/job-counts"))
}

/// Returns the address of the whole list as CSV.
pub fn csv_path(org: OrgId, state: Option<JobState>) -> String {
    let state = state.map_or_else(String::new, |s| format!("?state={}", s.name()));
    format!("/api/v1/orgs/{org}/jobs.csv{state}")
}

/// Gets a job.
pub fn get(org: OrgId, job: JobId) -> impl Future<Output = Answer<Job>> + Send + 'static {
    super::get(format!("/orgs/{org}/jobs/{job}"))
}

/// Submits a job. Repeated requests with the same key submit one job.
pub fn submit(
    org: OrgId,
    job: &NewJob,
    key: Option<String>,
) -> impl Future<Output = Answer<Job>> + Send + 'static {
    send("POST", format!("/orgs/{org}/jobs"), job, key)
}

/// Gets price and placement of a job without submitting it.
pub fn plan(org: OrgId, job: &NewJob) -> impl Future<Output = Answer<JobPlan>> + Send + 'static {
    send("POST", format!("/orgs/{org}/jobs?dry_run=true"), job, None)
}

/// Cancels or stops a job. Repeated requests with the same key do it once.
pub fn cancel(
    org: OrgId,
    job: JobId,
    key: Option<String>,
) -> impl Future<Output = Answer<Job>> + Send + 'static {
    send("POST", format!("/orgs/{org}/jobs/{job}/cancel"), &(), key)
}

/// Extends the time limit of a job. Repeated requests with the same key do it once.
pub fn extend(
    org: OrgId,
    job: JobId,
    input: &ExtendJob,
    key: Option<String>,
) -> impl Future<Output = Answer<Job>> + Send + 'static {
    send("POST", format!("/orgs/{org}/jobs/{job}/extend"), input, key)
}

/// Gets the blockers of a waiting job.
pub fn explanation(org: OrgId, job: JobId) -> impl Future<Output = Answer<Explanation>> + Send + 'static {
    super::get(format!("/orgs/{org}/jobs/{job}/explanation"))
}

/// Lists the events of a job, oldest first.
pub fn events(org: OrgId, job: JobId) -> impl Future<Output = Answer<Page<JobEvent>>> + Send + 'static {
    super::get(format!("/orgs/{org}/jobs/{job}/events"))
}

/// Lists the newest 200 files of a job.
pub fn files(org: OrgId, job: JobId) -> impl Future<Output = Answer<Page<JobFile>>> + Send + 'static {
    super::get(format!("/orgs/{org}/jobs/{job}/files?limit=200"))
}

/// Gets the metrics of a job over its whole run.
pub fn metrics(org: OrgId, job: JobId) -> impl Future<Output = Answer<Metrics>> + Send + 'static {
    super::get(format!("/orgs/{org}/jobs/{job}/metrics"))
}

/// Creates a single-use ticket for a port of a job.
pub fn port_ticket(
    org: OrgId,
    job: JobId,
    port: u32,
    rank: u32,
) -> impl Future<Output = Answer<PortTicket>> + Send + 'static {
    let (path, input) =
        (format!("/orgs/{org}/jobs/{job}/ports/{port}/tickets"), NewPortTicket { rank, reason: None });
    async move { send("POST", path, &input, None).await }
}
