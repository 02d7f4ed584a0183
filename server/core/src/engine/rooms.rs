//! The room that runs make: which runs are stopped for a job.

use std::collections::{BTreeMap, BTreeSet};

use berth_types::ids::JobId;

use super::Claim;
use crate::cluster::Owner;

/// For each job the runs that are stopped for it.
#[derive(Debug, Clone, Default)]
pub(super) struct Rooms(BTreeMap<JobId, BTreeSet<Owner>>);

impl Rooms {
    pub(super) fn iter(&self) -> impl Iterator<Item = (JobId, &BTreeSet<Owner>)> {
        self.0.iter().map(|(job, by)| (*job, by))
    }

    pub(super) fn insert(&mut self, claim: &Claim) {
        if let Some(job) = claim.stopped_for {
            self.0.entry(job).or_default().insert(claim.owner);
        }
    }

    pub(super) fn remove(&mut self, claim: &Claim) {
        let Some(job) = claim.stopped_for else { return };
        if let Some(by) = self.0.get_mut(&job) {
            by.remove(&claim.owner);
            if by.is_empty() {
                self.0.remove(&job);
            }
        }
    }
}
