//! The dependencies between jobs: the ended jobs, and the waiting jobs that depend on others.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use berth_types::ids::JobId;
use berth_types::jobs::{Condition, DependsOn};

/// The number of kept job ends, beyond which the ends without dependent jobs are dropped.
const MAX_OUTCOMES: usize = 1 << 17;

#[derive(Debug, Clone, Default)]
pub(super) struct Dependencies {
    /// The ended jobs: true if the job succeeded.
    outcomes: HashMap<JobId, bool>,
    /// The waiting jobs by the jobs on which they depend.
    dependents: BTreeMap<JobId, BTreeSet<JobId>>,
}

impl Dependencies {
    /// Records the dependencies of a waiting job.
    pub(super) fn insert(&mut self, id: JobId, depends_on: &[DependsOn]) {
        for dependency in depends_on {
            self.dependents.entry(dependency.job).or_default().insert(id);
        }
    }

    /// Removes the dependencies of a job that does not wait any more.
    pub(super) fn remove(&mut self, id: JobId, depends_on: &[DependsOn]) {
        for dependency in depends_on {
            if let Some(waiting) = self.dependents.get_mut(&dependency.job) {
                waiting.remove(&id);
                if waiting.is_empty() {
                    self.dependents.remove(&dependency.job);
                }
            }
        }
    }

    /// Records the end of a job. Returns the waiting jobs that depend on it.
    pub(super) fn put_outcome(&mut self, job: JobId, succeeded: bool) -> BTreeSet<JobId> {
        if self.outcomes.len() > MAX_OUTCOMES {
            self.outcomes.retain(|job, _| self.dependents.contains_key(job));
        }
        // Kept without a dependent job too: its fact may come later.
        self.outcomes.insert(job, succeeded);
        self.dependents.get(&job).cloned().unwrap_or_default()
    }

    /// True if a job has ended in the required way.
    pub(super) fn is_met(&self, dependency: &DependsOn) -> bool {
        match (self.outcomes.get(&dependency.job), dependency.condition) {
            (Some(succeeded), Condition::Succeeded) => *succeeded,
            (Some(_), Condition::Finished) => true,
            (None, _) => false,
        }
    }

    /// The jobs that ended without success, each with the waiting jobs that depend on it.
    pub(super) fn failed(&self) -> impl Iterator<Item = (JobId, &BTreeSet<JobId>)> {
        let failed = self.dependents.iter().filter(|(on, _)| self.outcomes.get(*on) == Some(&false));
        failed.map(|(on, waiting)| (*on, waiting))
    }
}
