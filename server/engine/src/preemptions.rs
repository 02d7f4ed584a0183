//! The preemptions that are under way: the runs that are stopped for each job.

use std::collections::{BTreeMap, BTreeSet};

use berth_types::ids::JobId;

use super::facts::Claim;
use berth_placement::cluster::Owner;

/// The victims of each job: runs that are stopped for it and not proved clean yet.
#[derive(Debug, Clone, Default)]
pub(super) struct Preemptions(BTreeMap<JobId, BTreeSet<Owner>>);

impl Preemptions {
    pub(super) fn iter(&self) -> impl Iterator<Item = (JobId, &BTreeSet<Owner>)> {
        self.0.iter().map(|(job, victims)| (*job, victims))
    }

    pub(super) fn insert(&mut self, claim: &Claim) {
        if let Some(job) = claim.stopped_for {
            self.0.entry(job).or_default().insert(claim.owner);
        }
    }

    pub(super) fn remove(&mut self, claim: &Claim) {
        let Some(job) = claim.stopped_for else { return };
        if let Some(victims) = self.0.get_mut(&job) {
            victims.remove(&claim.owner);
            if victims.is_empty() {
                self.0.remove(&job);
            }
        }
    }
}
