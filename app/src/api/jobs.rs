//! Jobs.

use std::future::Future;

use berth_types::Page;
use berth_types::events::JobEvent;
use berth_types::files::JobFile;
use berth_types::ids::{JobId, OrgId};
use berth_types::jobs::{Explanation, ExtendJob, Job, JobPlan, JobState, NewJob};
use berth_types::metrics::Metrics;
use berth_types::ports::{NewPortTicket, PortTicket};

use super::{Answer, send};

/// Newest first, of one state or of all.
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

/// Where the same, all of it, can be downloaded.
pub fn csv_path(org: OrgId, state: Option<JobState>) -> String {
    let state = state.map_or_else(String::new, |s| format!("?state={}", s.name()));
    format!("/api/v1/orgs/{org}/jobs.csv{state}")
}

/// One job.
pub fn get(org: OrgId, job: JobId) -> impl Future<Output = Answer<Job>> + Send + 'static {
    super::get(format!("/orgs/{org}/jobs/{job}"))
}

/// Submits a job; the same key never submits twice.
pub fn submit(
    org: OrgId,
    job: &NewJob,
    key: Option<String>,
) -> impl Future<Output = Answer<Job>> + Send + 'static {
    send("POST", format!("/orgs/{org}/jobs"), job, key)
}

/// What a submission would cost and where it would go; changes nothing.
pub fn plan(org: OrgId, job: &NewJob) -> impl Future<Output = Answer<JobPlan>> + Send + 'static {
    send("POST", format!("/orgs/{org}/jobs?dry_run=true"), job, None)
}

/// Asks a job to end; the same key is answered once.
pub fn cancel(
    org: OrgId,
    job: JobId,
    key: Option<String>,
) -> impl Future<Output = Answer<Job>> + Send + 'static {
    send("POST", format!("/orgs/{org}/jobs/{job}/cancel"), &(), key)
}

/// Gives a job a later limit; the same key never does it twice.
pub fn extend(
    org: OrgId,
    job: JobId,
    input: &ExtendJob,
    key: Option<String>,
) -> impl Future<Output = Answer<Job>> + Send + 'static {
    send("POST", format!("/orgs/{org}/jobs/{job}/extend"), input, key)
}

/// Why a job waits.
pub fn explanation(org: OrgId, job: JobId) -> impl Future<Output = Answer<Explanation>> + Send + 'static {
    super::get(format!("/orgs/{org}/jobs/{job}/explanation"))
}

/// What happened to a job, oldest first.
pub fn events(org: OrgId, job: JobId) -> impl Future<Output = Answer<Page<JobEvent>>> + Send + 'static {
    super::get(format!("/orgs/{org}/jobs/{job}/events"))
}

/// The newest files that a job left.
pub fn files(org: OrgId, job: JobId) -> impl Future<Output = Answer<Page<JobFile>>> + Send + 'static {
    super::get(format!("/orgs/{org}/jobs/{job}/files?limit=200"))
}

/// A job's readings over its whole life.
pub fn metrics(org: OrgId, job: JobId) -> impl Future<Output = Answer<Metrics>> + Send + 'static {
    super::get(format!("/orgs/{org}/jobs/{job}/metrics"))
}

/// Lets somebody into a port of a job, once.
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
