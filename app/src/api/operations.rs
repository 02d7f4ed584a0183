//! What operators do with nodes and jobs of everyone.

use std::future::Future;

use berth_types::Page;
use berth_types::ids::{JobId, NodeId};
use berth_types::jobs::JobState;
use berth_types::operations::{
    Drain, InventoryHost, JobFilter, NewDrain, OperatedJob, PortalLoop, PutRack, Rack, StopJobs, StoppedJobs,
    Stuck,
};

use super::escape::escaped;
use super::{Answer, get, list_all, send};

/// A filter as the query of an address, without `?`; empty where nothing is chosen.
pub fn query_of(filter: &JobFilter) -> String {
    let parts = [
        filter.org.map(|id| format!("org={id}")),
        filter.node.map(|id| format!("node={id}")),
        filter.state.map(|state| format!("state={}", JobState::name(state))),
        filter.offering.as_ref().map(|slug| format!("offering={}", escaped(slug))),
        filter.label.as_ref().map(|label| format!("label={}", escaped(label))),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("&")
}

/// Jobs of everyone by [`query_of`] a filter, newest first.
pub fn jobs(
    query: String,
    cursor: Option<JobId>,
) -> impl Future<Output = Answer<Page<OperatedJob>>> + Send + 'static {
    let cursor = cursor.map_or_else(String::new, |c| format!("&cursor={c}"));
    get(format!("/operator/jobs?limit=50&{query}{cursor}"))
}

/// Where the same can be downloaded.
pub fn jobs_csv(filter: &JobFilter) -> String {
    format!("/api/v1/operator/jobs.csv?{}", query_of(filter))
}

/// What an order to stop jobs would mean; changes nothing.
pub fn preview_stop(order: &StopJobs) -> impl Future<Output = Answer<StoppedJobs>> + Send + 'static {
    send("POST", "/operator/jobs/stop?preview=true", order, None)
}

/// Stops jobs; the same key never stops others.
pub fn stop(
    order: &StopJobs,
    key: Option<String>,
) -> impl Future<Output = Answer<StoppedJobs>> + Send + 'static {
    send("POST", "/operator/jobs/stop", order, key)
}

/// Nodes that are emptied.
pub fn drains() -> impl Future<Output = Answer<Page<Drain>>> + Send + 'static {
    list_all("/operator/drains".to_owned())
}

/// Begins to empty a node, or says otherwise how.
pub fn drain(node: NodeId, input: &NewDrain) -> impl Future<Output = Answer<Drain>> + Send + 'static {
    send("PUT", format!("/operator/nodes/{node}/drain"), input, None)
}

/// Calls it off.
pub fn call_off(node: NodeId) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", format!("/operator/nodes/{node}/drain"), &(), None)
}

/// The loops of the portal.
pub fn loops() -> impl Future<Output = Answer<Page<PortalLoop>>> + Send + 'static {
    list_all("/operator/loops".to_owned())
}

/// What does not go on by itself.
pub fn stuck() -> impl Future<Output = Answer<Page<Stuck>>> + Send + 'static {
    list_all("/operator/stuck".to_owned())
}

/// Every host with what is odd about it.
pub fn inventory() -> impl Future<Output = Answer<Page<InventoryHost>>> + Send + 'static {
    list_all("/operator/inventory".to_owned())
}

/// Racks with what they draw.
pub fn racks() -> impl Future<Output = Answer<Page<Rack>>> + Send + 'static {
    list_all("/operator/racks".to_owned())
}

/// Says what a rack feeds.
pub fn set_rack(rack: &str, input: &PutRack) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("PUT", format!("/operator/racks/{}", escaped(rack)), input, None)
}

/// Lets it feed whatever stands in it.
pub fn unset_rack(rack: &str) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", format!("/operator/racks/{}", escaped(rack)), &(), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_a_query() {
        assert_eq!(query_of(&JobFilter::default()), "");
        let filter = JobFilter {
            state: Some(JobState::Running),
            label: Some("team=a&b".to_owned()),
            ..JobFilter::default()
        };
        assert_eq!(query_of(&filter), "state=running&label=team%3Da%26b");
    }
}
