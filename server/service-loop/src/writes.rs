//! The writes of a plan: the rows of one service in one transaction.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_autoscaling::scaling::Decision;
use berth_foundation::Context;
use berth_store::services::replicas::{self, LoopRevision, LoopService};
use berth_store::{StoreError, Tx};
use berth_types::ids::{JobId, RevisionId, ServiceId};
use berth_types::time::Timestamp;
use futures::FutureExt;

use super::memory::decision_text;
use super::plan::{Inputs, Named, Plan, plan};
use super::rollout;
use super::wakes::Moment;
use super::world::{Rows, Terms, World};

/// The stored end of a wait that lasts.
const LASTS: Timestamp = Timestamp::from_micros(i64::MAX);

/// The inputs of the plan of a service besides its rows.
#[derive(Debug)]
pub struct Basis {
    pub terms: BTreeMap<RevisionId, Terms>,
    pub inputs: Inputs,
    /// The decision about the number of replicas; absent for a stopped service.
    pub decision: Option<Decision>,
    /// The replicas wait for the organization itself.
    pub own_wait: bool,
}

/// The end of the last wait for the organization itself after a plan.
fn own_wait_until(before: Option<Timestamp>, basis: &Basis) -> Option<Timestamp> {
    if basis.own_wait {
        return Some(LASTS);
    }
    before.map(|until| until.min(basis.inputs.now))
}

/// A plan with its rows.
#[derive(Debug, Clone)]
pub struct Planned {
    pub rows: Rows,
    pub plan: Plan,
    service: LoopService,
    revisions: Vec<LoopRevision>,
    /// The replicas that the transaction added.
    pub created: Vec<Named>,
    /// The transaction changed rows.
    pub changed: bool,
}

impl Planned {
    /// The plan for these rows. `None` if the basis lacks one of their revisions.
    pub fn new(rows: Rows, basis: &Basis) -> Option<Self> {
        let plan = plan(&World::from_rows(&rows, &basis.terms)?, &basis.inputs);
        let mut service =
            LoopService { state: plan.state, detail: plan.detail.clone(), ..rows.service.clone() };
        if let Some(decision) = &basis.decision {
            service.decision = decision_text(&service.decision, decision, basis.inputs.now);
        }
        service.own_wait_until = own_wait_until(service.own_wait_until, basis);
        let after = |row: &LoopRevision| {
            let detail = rollout::number(row).and_then(|number| plan.details.get(&number));
            rollout::store(&plan.rollout, row, detail.map(String::as_str))
        };
        let revisions: Vec<LoopRevision> = rows
            .revisions
            .iter()
            .map(|row| (row, after(row)))
            .filter(|(row, new)| *row != new)
            .map(|(_, new)| new)
            .collect();
        let replicas = plan.ended.len() + plan.late.len() + plan.drained.len() + plan.created.len();
        let changed = replicas > 0 || !revisions.is_empty() || service != rows.service;
        Some(Self { rows, plan, service, revisions, created: Vec::new(), changed })
    }

    /// The service before and after the plan, for its wakes. `world` is that of the plan.
    pub fn moment(&self, world: &World, basis: &Basis, waiting: bool) -> Moment {
        Moment {
            halted: world.halted,
            before: self.rows.service.state,
            after: self.plan.state,
            waiting,
            refused: basis.own_wait || !basis.inputs.refused.is_empty(),
            placed: self.rows.has_devices(),
        }
    }

    /// Writes the plan. `ids` has the ids of the new replicas' jobs.
    async fn write(
        &mut self,
        tx: &mut Tx<'_>,
        ids: impl Iterator<Item = JobId>,
        basis: &Basis,
    ) -> Result<(), StoreError> {
        let now = basis.inputs.now;
        for (named, failed) in &self.plan.ended {
            replicas::end(tx, *named, *failed, now).await?;
        }
        for job in &self.plan.late {
            replicas::drain(tx, *job, true, now).await?;
        }
        for job in &self.plan.drained {
            replicas::drain(tx, *job, false, now).await?;
        }
        self.created = ids.zip(self.plan.created.iter().copied()).collect();
        for (job, revision) in &self.created {
            replicas::insert(tx, *job, &self.service, *revision, now).await?;
        }
        for row in &self.revisions {
            replicas::update_revision(tx, row).await?;
        }
        if self.service != self.rows.service {
            replicas::update_service(tx, &self.service).await?;
        }
        Ok(())
    }
}

/// Plans again from the rows of this moment, and writes the plan. `None` if the service is gone, or if the basis lacks a
/// new revision.
///
/// # Errors
/// The database cannot be read or written.
pub async fn write(
    context: &Context,
    service: ServiceId,
    basis: Arc<Basis>,
) -> Result<Option<Planned>, StoreError> {
    let own = context.clone();
    let done = context.db.write(move |tx| {
        let (context, basis) = (own.clone(), basis.clone());
        async move {
            let Some(rows) = Rows::group(replicas::read_world(tx, &[service]).await?).pop() else {
                return Ok(None);
            };
            let Some(mut planned) = Planned::new(rows, &basis) else { return Ok(None) };
            let new_id = |_: &RevisionId| context.new_id::<JobId>(basis.inputs.now);
            let ids: Vec<JobId> = planned.plan.created.iter().map(new_id).collect();
            planned.write(tx, ids.into_iter(), &basis).await?;
            Ok(Some(planned))
        }
        .boxed()
    });
    done.await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_for_the_organization_lasts_until_the_first_plan_without_it() {
        let mut until = None;
        let mut stored = Vec::new();
        for (second, own_wait) in [(1, false), (2, true), (3, true), (4, false), (5, false), (6, true)] {
            let now = Timestamp::from_micros(0).plus_seconds(second);
            let inputs = Inputs { now, ..Inputs::default() };
            let basis = Basis { terms: BTreeMap::new(), inputs, decision: None, own_wait };
            until = own_wait_until(until, &basis);
            stored.push(until.map(Timestamp::micros));
        }
        let (lasts, ended) = (Some(i64::MAX), Some(4_000_000));
        assert_eq!(stored, [None, lasts, lasts, ended, ended, lasts]);
    }
}
