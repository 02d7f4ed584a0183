//! Operations on all nodes and jobs, for operators.

use std::future::Future;

use berth_types::Page;
use berth_types::accounts::OrgSummary;
use berth_types::ids::NodeId;
use berth_types::jobs::JobState;
use berth_types::nodes::Node;
use berth_types::operations::{
    AuditDestination, Drain, InventoryHost, JobFilter, NewDrain, OperatedJob, PortalLoop, PutRack, Rack,
    StopJobs, StoppedJobs, Stuck,
};
use berth_types::overview::OperatorOverview;
use serde::{Deserialize, Serialize};

use super::escape::escaped;
use super::transport::Sender;
use super::{Answer, get, list_all, send};

/// Returns a filter as a query without `?`; empty without conditions.
pub fn filter_query(filter: &JobFilter) -> String {
    let parts = [
        filter.org.map(|id| format!("org={id}")),
        filter.node.map(|id| format!("node={id}")),
        filter.state.map(|state| format!("state={}", JobState::name(state))),
        filter.offering.as_ref().map(|slug| format!("offering={}", escaped(slug))),
        filter.label.as_ref().map(|label| format!("label={}", escaped(label))),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("&")
}

/// Lists the jobs of all organizations by a filter query, newest first.
pub fn jobs(
    query: String,
    cursor: Option<String>,
) -> impl Future<Output = Answer<Page<OperatedJob>>> + Send + 'static {
    let cursor = cursor.map_or_else(String::new, |c| format!("&cursor={c}"));
    get(format!("/operator/jobs?limit=50&{query}{cursor}"))
}

/// The texts of a filter of jobs that name an object: its id, the slug of an organization, the name of a node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct JobSubjects {
    pub org: String,
    pub node: String,
}

/// The first page of jobs with the filter of its texts. Absent if a text names no object.
pub type FoundJobs = Option<(JobFilter, Page<OperatedJob>)>;

/// Finds the organization and the node of texts, and lists the jobs of the filter, newest first.
pub fn find_jobs(
    subjects: JobSubjects,
    mut filter: JobFilter,
) -> impl Future<Output = Answer<FoundJobs>> + Send + 'static {
    let sender = Sender::capture();
    async move {
        let JobSubjects { org, node } = subjects;
        filter.org = match org.parse() {
            Ok(id) => Some(id),
            Err(_) if org.is_empty() => None,
            Err(_) => {
                let path = format!("/operator/orgs?slug={}", escaped(&org));
                let page: Page<OrgSummary> = sender.clone().get(&path).await?;
                let Some(known) = page.items.into_iter().next() else { return Ok(None) };
                Some(known.org.id)
            }
        };
        filter.node = match node.parse() {
            Ok(id) => Some(id),
            Err(_) if node.is_empty() => None,
            Err(_) => {
                let path = format!("/operator/nodes?limit=200&name={}", escaped(&node));
                let page: Page<Node> = sender.clone().get(&path).await?;
                let Some(known) = page.items.into_iter().find(|known| known.name == node) else {
                    return Ok(None);
                };
                Some(known.id)
            }
        };
        let page = sender.get(&format!("/operator/jobs?limit=50&{}", filter_query(&filter))).await?;
        Ok(Some((filter, page)))
    }
}

/// Returns the address of the list as CSV.
pub fn jobs_csv(filter: &JobFilter) -> String {
    format!("/api/v1/operator/jobs.csv?{}", filter_query(filter))
}

/// Gets the effect of a stop of jobs without stopping them.
pub fn preview_stop(order: &StopJobs) -> impl Future<Output = Answer<StoppedJobs>> + Send + 'static {
    send("POST", "/operator/jobs/stop?preview=true", order, None)
}

/// Stops jobs. Repeated requests with the same key stop no further jobs.
pub fn stop(
    order: &StopJobs,
    key: Option<String>,
) -> impl Future<Output = Answer<StoppedJobs>> + Send + 'static {
    send("POST", "/operator/jobs/stop", order, key)
}

/// Lists the drains.
pub fn drains() -> impl Future<Output = Answer<Page<Drain>>> + Send + 'static {
    list_all("/operator/drains".to_owned())
}

/// Starts the drain of a node, or changes it.
pub fn drain(node: NodeId, input: &NewDrain) -> impl Future<Output = Answer<Drain>> + Send + 'static {
    send("PUT", format!("/operator/nodes/{node}/drain"), input, None)
}

/// Cancels the drain of a node.
pub fn cancel_drain(node: NodeId) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", format!("/operator/nodes/{node}/drain"), &(), None)
}

/// Lists the loops of the portal.
pub fn loops() -> impl Future<Output = Answer<Page<PortalLoop>>> + Send + 'static {
    list_all("/operator/loops".to_owned())
}

/// Lists the destinations of the audit log.
pub fn audit_destinations() -> impl Future<Output = Answer<Page<AuditDestination>>> + Send + 'static {
    list_all("/operator/audit-destinations".to_owned())
}

/// Gets the state of the whole portal.
pub fn overview() -> impl Future<Output = Answer<OperatorOverview>> + Send + 'static {
    get("/operator/overview")
}

/// Lists a page of the stuck jobs and other findings that need attention, oldest first.
pub fn stuck(
    cursor: Option<String>,
    limit: u32,
) -> impl Future<Output = Answer<Page<Stuck>>> + Send + 'static {
    let cursor = cursor.map_or_else(String::new, |c| format!("&cursor={c}"));
    get(format!("/operator/stuck?limit={limit}{cursor}"))
}

/// Lists a page of the hosts with their differences, by name.
pub fn inventory(
    cursor: Option<String>,
    limit: u32,
) -> impl Future<Output = Answer<Page<InventoryHost>>> + Send + 'static {
    let cursor = cursor.map_or_else(String::new, |c| format!("&cursor={c}"));
    get(format!("/operator/inventory?limit={limit}{cursor}"))
}

/// Lists the racks with their power draw.
pub fn racks() -> impl Future<Output = Answer<Page<Rack>>> + Send + 'static {
    list_all("/operator/racks".to_owned())
}

/// Sets the power budget of a rack.
pub fn set_rack(rack: &str, input: &PutRack) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("PUT", format!("/operator/racks/{}", escaped(rack)), input, None)
}

/// Removes the power budget of a rack.
pub fn unset_rack(rack: &str) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", format!("/operator/racks/{}", escaped(rack)), &(), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_a_query() {
        assert_eq!(filter_query(&JobFilter::default()), "");
        let filter = JobFilter {
            state: Some(JobState::Running),
            label: Some("team=a&b".to_owned()),
            ..JobFilter::default()
        };
        assert_eq!(filter_query(&filter), "state=running&label=team%3Da%26b");
    }
}
