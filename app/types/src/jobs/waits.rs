//! Types of the details of a wait: the objects behind a blocker, and changes with which a job would start.

use serde::{Deserialize, Serialize};

use super::{Device, JobState, NewJob, Topology};
use crate::ids::{JobId, ReservationId};
use crate::time::Timestamp;

/// The kind of an object behind a blocker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum BlockingKind {
    /// A job of the organization.
    Job,
    /// A reservation of the organization.
    Reservation,
    /// A maintenance window of the operator.
    Maintenance,
}

/// A job or a reservation of the organization, or a maintenance window, behind a blocker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BlockingObject {
    /// The kind of the object.
    pub kind: BlockingKind,
    /// The id of the job; absent for other kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// The id of the reservation; absent for other kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<ReservationId>,
    /// The name of the job or the reservation; empty for maintenance.
    pub name: String,
    /// The state of the job; absent for other kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<JobState>,
    /// The first devices of the job's present attempt, at most 4.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Device>,
    /// The start of the reservation or the maintenance; absent for a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<Timestamp>,
    /// The latest expected end; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_by: Option<Timestamp>,
    /// True if the end of this job alone frees a place for the waiting job.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub frees_place: bool,
}

impl BlockingObject {
    /// Returns an object without id, devices and times.
    pub fn new(kind: BlockingKind, name: String) -> Self {
        let (job, reservation, state, devices) = (None, None, None, Vec::new());
        let (starts_at, ends_by, frees_place) = (None, None, false);
        Self { kind, job, reservation, name, state, devices, starts_at, ends_by, frees_place }
    }
}

/// The changed fields of a submission. An absent field has no change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SubmissionChange {
    /// The slug of another offering.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offering: Option<String>,
    /// Another number of devices on each node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// Another number of nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// Another time limit in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_duration_s: Option<u64>,
    /// Another required nearness of the devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
    /// Another permission for preemption.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptible: Option<bool>,
}

impl SubmissionChange {
    /// Returns a submission with this change.
    #[must_use]
    pub fn apply(&self, job: NewJob) -> NewJob {
        NewJob {
            offering: self.offering.clone().unwrap_or(job.offering),
            count: self.count.unwrap_or(job.count),
            nodes: self.nodes.unwrap_or(job.nodes),
            max_duration_s: self.max_duration_s.unwrap_or(job.max_duration_s),
            topology: self.topology.unwrap_or(job.topology),
            preemptible: self.preemptible.unwrap_or(job.preemptible),
            ..job
        }
    }
}

/// A change of a submission with which it would start now. The waiting job itself stays in the queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SuggestedChange {
    /// A short text, such as `2g.12gb, free now`.
    pub label: String,
    /// The changed fields.
    pub change: SubmissionChange,
    /// The rate of all devices of the changed submission in micro-units of the currency an hour.
    pub per_hour_micros: i64,
    /// The worst-case price of the changed submission in micro-units of the currency.
    pub worst_case_micros: i64,
    /// The ISO 4217 code of the currency.
    pub currency: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_replaces_its_fields_only() {
        let job = NewJob { name: "train".to_owned(), count: 2, max_duration_s: 60, ..NewJob::default() };
        let change = SubmissionChange { count: Some(1), preemptible: Some(true), ..Default::default() };
        let changed = change.apply(job.clone());
        assert_eq!(changed, NewJob { count: 1, preemptible: true, ..job.clone() });
        assert_eq!(SubmissionChange::default().apply(job.clone()), job);
    }
}
