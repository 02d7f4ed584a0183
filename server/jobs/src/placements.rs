//! The commit of the engine's starts: each is checked once more and recorded with its devices.
//!
//! A start is left out if its job has changed meanwhile or its devices are not free any more.

use std::collections::{HashMap, HashSet};

use berth_core::jobs::MachineEvent;
use berth_placement::assignment::{self, Assignment};
use berth_placement::cluster::Slot;
use berth_placement::pools::Work;
use berth_types::events::JobEvent;
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::time::Timestamp;
use futures::FutureExt;

use crate::leases;
use crate::planner::assigned_devices;
use crate::transitions::advance;
use berth_fleet::cluster;
use berth_foundation::telemetry::Telemetry;
use berth_foundation::{Change, Context};
use berth_storage::VolumeUses;
use berth_storage::files::AwaitedHandOvers;
use berth_storage::volumes::uses;
use berth_store::attempts::StoredAllocation;
use berth_store::jobs::StoredJob;
use berth_store::{self as store, StoreError, Tx};
use std::sync::Arc;

/// A decided start: job, generation, attempt, and the slots on each node.
type Start = (JobId, i64, u32, Vec<(NodeId, Vec<Slot>)>);

/// The commit of the engine's starts.
#[derive(Clone)]
pub struct Placements {
    context: Context,
    volumes: VolumeUses,
    telemetry: Arc<Telemetry>,
}

impl Placements {
    pub fn new(context: Context, volumes: VolumeUses, telemetry: Arc<Telemetry>) -> Self {
        Self { context, volumes, telemetry }
    }

    /// Records the decided starts, and returns the number of recorded ones. The engine reads the state of all
    /// these jobs again.
    ///
    /// # Errors
    /// The database cannot be read or written; then no start is recorded.
    pub(crate) async fn commit(&self, starts: Vec<Start>) -> Result<usize, StoreError> {
        let now = self.context.now();
        let awaited = self.volumes.awaited();
        let context = self.context.clone();
        let jobs: Vec<JobId> = starts.iter().map(|(job, ..)| *job).collect();
        let done = self
            .context
            .db
            .write(move |tx| {
                let (context, starts, awaited) = (context.clone(), starts.clone(), awaited.clone());
                async move {
                    let mut boards = cluster::boards(tx, &awaited.connected).await?;
                    let mut done: Vec<(OrgId, Vec<NodeId>, JobEvent)> = Vec::new();
                    let own_only: HashSet<OrgId> =
                        store::dedicated::list_own_only(tx).await?.into_iter().collect();
                    let jobs: Vec<JobId> = starts.iter().map(|(job, ..)| *job).collect();
                    let rows = store::jobs::list_any(tx, &jobs).await?;
                    let mut rows: HashMap<JobId, StoredJob> =
                        rows.into_iter().map(|row| (row.id, row)).collect();
                    for start in starts {
                        let Some(row) = rows.remove(&start.0) else { continue };
                        let assignment = assignment_of(&row, start, own_only.contains(&row.org_id));
                        if !assignment::still_fits(&boards, &assignment) {
                            continue;
                        }
                        if let Some((org, event)) =
                            assign(tx, &context, row, &assignment, (now, &awaited)).await?
                        {
                            assignment::occupy(&mut boards, &assignment);
                            done.push((org, assignment.ranks.iter().map(|(n, _)| *n).collect(), event));
                        }
                    }
                    Ok(done)
                }
                .boxed()
            })
            .await;
        // With or without success the engine reads the stored state of these jobs.
        jobs.into_iter().for_each(|job| self.context.publish(Change::JobDevices(job)));
        let done = done?;
        for (org, nodes, event) in &done {
            nodes.iter().for_each(|node| self.context.publish(Change::Assignments(*node)));
            self.telemetry.observe_placement(event.job, event.attempt, now);
            self.context.publish(Change::Job { org: *org, job: event.job, event: Some(event.clone()) });
        }
        Ok(done.len())
    }
}

/// The assignment of a start, the form for the check and the database.
fn assignment_of(row: &StoredJob, start: Start, own_nodes_only: bool) -> Assignment {
    let (job, generation, attempt, ranks) = start;
    let devices = |(node, slots): (NodeId, Vec<Slot>)| (node, assigned_devices(&row.gpu_model, &slots));
    let ranks = ranks.into_iter().map(devices).collect();
    // A reservation has its boards in any pool.
    let work = Work::new(row.replica, row.preemptible || row.reservation_id.is_some());
    Assignment { job, org: row.org_id, own_nodes_only, work, generation, attempt, ranks }
}

async fn assign(
    tx: &mut Tx<'_>,
    context: &Context,
    mut row: StoredJob,
    assignment: &Assignment,
    (now, awaited): (Timestamp, &AwaitedHandOvers),
) -> Result<Option<(OrgId, JobEvent)>, StoreError> {
    let number = assignment.attempt;
    if row.generation != assignment.generation || i64::from(number) != row.attempt + 1 {
        return Ok(None);
    }
    // Another start of the same pass may have become the writer of a volume to which this job would write.
    let Some(volumes) = uses::find_available(tx, &row, now, awaited).await? else { return Ok(None) };
    let org = row.org_id;
    let detail = "Devices assigned; waiting for the worker.".to_owned();
    let event = MachineEvent::Assign { attempt: number };
    let Some(event) = advance(tx, context, &mut row, event, detail, now).await? else { return Ok(None) };
    let lease_ms = leases::lease_ms(&row, context.settings.lease_ms);
    let mut idx = 0..;
    for (rank, (node, slots)) in (0..).zip(&assignment.ranks) {
        store::attempts::insert(tx, assignment.job, (number, rank), org, *node, lease_ms, now).await?;
        for (slot, idx) in slots.iter().zip(&mut idx) {
            let row = StoredAllocation {
                job_id: row.id,
                attempt: i64::from(number),
                idx,
                org_id: org,
                node_id: *node,
                gpu_uuid: slot.gpu_uuid.clone(),
                profile_id: slot.instance.map(|i| i64::from(i.profile_id)),
                start: slot.instance.map_or(0, |i| i64::from(i.start)),
                size: i64::from(slot.size),
                share_milli: slot.share_milli.map(i64::from),
                mig_uuid: None,
                unclean: None,
            };
            store::attempts::insert_allocation(tx, &row).await?;
        }
    }
    let nodes: Vec<NodeId> = assignment.ranks.iter().map(|(node, _)| *node).collect();
    berth_gangs::networks::reserve(tx, context, &row.spec, (org, row.id, i64::from(number)), &nodes).await?;
    uses::assign_versions(tx, row.id, row.attempt, volumes).await?;
    Ok(Some((org, event)))
}
