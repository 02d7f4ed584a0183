//! Jobs.

use std::future::Future;

use berth_types::events::JobEvent;
use berth_types::files::JobFile;
use berth_types::ids::{JobId, OrgId};
use berth_types::jobs::{
    Explanation, ExtendJob, Job, JobPlan, JobState, NewJob, OrgJobFilter, StopOrgJobs, SubmissionChange,
    Topology,
};
use berth_types::metrics::Metrics;
use berth_types::operations::StoppedJobs;
use berth_types::overview::JobCounts;
use berth_types::ports::{NewPortTicket, PortTicket};
use berth_types::templates::JobTemplates;
use berth_types::{Page, Sort};

use super::escape::escaped;
use super::{Answer, send};

/// Bytes of the longest slug of an offering.
const MAX_SLUG_BYTES: usize = 100;

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

/// Gets the templates of jobs.
pub fn templates() -> impl Future<Output = Answer<JobTemplates>> + Send + 'static {
    super::get("/templates")
}

/// Gets the numbers of an organization's jobs.
pub fn counts(org: OrgId) -> impl Future<Output = Answer<JobCounts>> + Send + 'static {
    super::get(format!("/orgs/{org}/job-counts"))
}

/// Returns a filter as a query without `?`; empty without conditions.
pub fn filter_query(filter: &OrgJobFilter) -> String {
    let text =
        |name: &str, value: &Option<String>| value.as_ref().map(|value| format!("{name}={}", escaped(value)));
    let parts = [
        filter.state.map(|state| format!("state={}", state.name())),
        filter.ended.map(|ended| format!("ended={ended}")),
        text("name", &filter.name),
        text("created_by", &filter.created_by),
        text("label", &filter.label),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("&")
}

/// Returns a change of a submission as a query without `?`, for the address of the launch form.
pub fn change_query(change: &SubmissionChange) -> String {
    let parts = [
        change.offering.as_ref().map(|slug| format!("offering={}", escaped(slug))),
        change.count.map(|count| format!("count={count}")),
        change.nodes.map(|nodes| format!("nodes={nodes}")),
        change.max_duration_s.map(|seconds| format!("max_duration_s={seconds}")),
        change.topology.map(|topology| format!("topology={}", topology.name())),
        change.preemptible.map(|preemptible| format!("preemptible={preemptible}")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("&")
}

/// Parses the change of a submission from the values of a query. A value of another form counts as absent.
pub fn parse_change(value: impl Fn(&str) -> Option<String>) -> SubmissionChange {
    SubmissionChange {
        offering: value("offering").filter(|slug| (1..=MAX_SLUG_BYTES).contains(&slug.len())),
        count: value("count").and_then(|text| text.parse().ok()),
        nodes: value("nodes").and_then(|text| text.parse().ok()),
        max_duration_s: value("max_duration_s").and_then(|text| text.parse().ok()),
        topology: value("topology").and_then(|text| Topology::parse(&text)),
        preemptible: value("preemptible").and_then(|text| text.parse().ok()),
    }
}

/// Lists the jobs of a filter in the order of their creation.
pub fn search(
    org: OrgId,
    filter: &OrgJobFilter,
    sort: Sort,
    cursor: Option<String>,
    limit: u32,
) -> impl Future<Output = Answer<Page<Job>>> + Send + 'static + use<> {
    let sort = if sort == Sort::Asc { "&sort=asc" } else { "" };
    let cursor = cursor.map_or_else(String::new, |c| format!("&cursor={c}"));
    super::get(format!("/orgs/{org}/jobs?limit={limit}{sort}{cursor}&{}", filter_query(filter)))
}

/// Returns the path of the list of a filter and an order below `/api/v1`.
pub fn search_path(org: OrgId, filter: &OrgJobFilter, sort: Sort) -> String {
    let sort = if sort == Sort::Asc { "asc" } else { "desc" };
    let filter = filter_query(filter);
    let separator = if filter.is_empty() { "" } else { "&" };
    format!("/orgs/{org}/jobs?sort={sort}{separator}{filter}")
}

/// Returns the address of all jobs of a filter as CSV.
pub fn csv_path(org: OrgId, filter: &OrgJobFilter) -> String {
    format!("/api/v1/orgs/{org}/jobs.csv?{}", filter_query(filter))
}

/// Gets a job.
pub fn get(org: OrgId, job: JobId) -> impl Future<Output = Answer<Job>> + Send + 'static {
    super::get(format!("/orgs/{org}/jobs/{job}"))
}

/// Gets the submission of a job. Only for members who can run jobs.
pub fn submission(org: OrgId, job: JobId) -> impl Future<Output = Answer<NewJob>> + Send + 'static {
    super::get(format!("/orgs/{org}/jobs/{job}/submission"))
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

/// Gets the number of jobs that a bulk stop would stop.
pub fn preview_stop(
    org: OrgId,
    order: &StopOrgJobs,
) -> impl Future<Output = Answer<StoppedJobs>> + Send + 'static {
    send("POST", format!("/orgs/{org}/jobs/stop?preview=true"), order, None)
}

/// Stops the jobs that match. Repeated requests with the same key stop no further jobs.
pub fn stop(
    org: OrgId,
    order: &StopOrgJobs,
    key: Option<String>,
) -> impl Future<Output = Answer<StoppedJobs>> + Send + 'static {
    send("POST", format!("/orgs/{org}/jobs/stop"), order, key)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_survives_its_query() {
        assert_eq!(change_query(&SubmissionChange::default()), "");
        let change = SubmissionChange {
            offering: Some("a30-24gb.2g.12gb".to_owned()),
            count: Some(1),
            nodes: Some(2),
            max_duration_s: Some(5_400),
            topology: Some(Topology::Any),
            preemptible: Some(true),
        };
        let query = change_query(&change);
        let expected =
            "offering=a30-24gb.2g.12gb&count=1&nodes=2&max_duration_s=5400&topology=any&preemptible=true";
        assert_eq!(query, expected);
        let value = |query: &str, name: &str| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
        };
        assert_eq!(parse_change(|name| value(&query, name)), change);
        let wrong = format!("offering={}&count=-1&topology=near&preemptible=maybe", "x".repeat(101));
        assert_eq!(parse_change(|name| value(&wrong, name)), SubmissionChange::default());
    }

    #[test]
    fn a_filter_is_a_query() {
        assert_eq!(filter_query(&OrgJobFilter::default()), "");
        let filter = OrgJobFilter {
            state: Some(JobState::TimedOut),
            ended: Some(true),
            name: Some("a&b".to_owned()),
            created_by: None,
            label: Some("team=a, b".to_owned()),
        };
        let query = "state=timed_out&ended=true&name=a%26b&label=team%3Da%2C%20b";
        assert_eq!(filter_query(&filter), query);
    }
}
