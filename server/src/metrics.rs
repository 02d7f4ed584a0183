//! The metrics for Prometheus: the state of the portal, and the last readings of the nodes' boards under the
//! names of NVIDIA's DCGM exporter.
//!
//! The metrics name organizations and jobs, so only operators and their monitoring may read them.

pub mod routes;
mod samples;

mod tokens;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use berth_contract::exposition::Exposition;
use berth_proto::device_metrics::{DEVICE_FAMILIES, Device, add_device};
use berth_proto::{BoardSample, SliceSample};
use berth_types::ids::{NodeId, TransferId};
use berth_types::jobs::JobState;
use berth_types::ledger::TransferKind;
use berth_types::nodes::{Node, NodeState};
use berth_types::operations::PortalLoop;
use berth_types::problems::Problem;
use berth_types::reservations::ReservationState;

use berth_accounts::Accounts;
use berth_billing::Reconciliations;
use berth_fleet::Cluster;
use berth_foundation::loops::Loops;
use berth_foundation::telemetry::{self, PostingCounts, Telemetry, first_transfer};
use berth_foundation::{AuditPush, Context};
use berth_store::attempts::HeldAllocation;
use berth_store::{self as store, StoreError, Tx};
use std::sync::Arc;

use samples::LatestSamples;

/// Seconds from the creation of a transfer's id to its storage. A later transaction has failed.
const STORED_S: i64 = 120;

/// The owner of a device: its job, if there is exactly one, and its organization.
type Owner = (Option<String>, String);

/// The owners of boards (without a start) and of slices, by the UUID of the board and the start of the slice.
struct Owners<'a>(HashMap<(&'a str, Option<i64>), Owner>);

impl<'a> Owners<'a> {
    fn from_held(held: &'a [HeldAllocation]) -> Self {
        let mut owners: HashMap<(&str, Option<i64>), Owner> = HashMap::new();
        for row in held {
            let a = &row.allocation;
            let place = (a.gpu_uuid.as_str(), a.profile_id.map(|_| a.start));
            owners
                .entry(place)
                // Jobs that share a board are of one organization.
                .and_modify(|owner| owner.0 = None)
                .or_insert_with(|| (Some(a.job_id.to_string()), a.org_id.to_string()));
        }
        Self(owners)
    }

    fn at<'s>(&'s self, gpu_uuid: &'s str, start: Option<u32>) -> Option<(Option<&'s str>, &'s str)> {
        let (job, org) = self.0.get(&(gpu_uuid, start.map(i64::from)))?;
        Some((job.as_deref(), org.as_str()))
    }
}

fn write_loops(out: &mut Exposition, loops: &[PortalLoop]) {
    use telemetry::{
        LOOP_FAILURES, LOOP_LAST_FAILED, LOOP_LAST_RUN, LOOP_LAST_SECONDS, LOOP_PERIOD, LOOP_RUNS,
    };
    [LOOP_RUNS, LOOP_FAILURES, LOOP_LAST_RUN, LOOP_PERIOD, LOOP_LAST_SECONDS, LOOP_LAST_FAILED]
        .into_iter()
        .for_each(|family| out.declare(family));
    for run in loops {
        let labels = [("loop", run.name.as_str())];
        out.add(LOOP_RUNS, &labels, run.runs as f64);
        out.add(LOOP_FAILURES, &labels, run.failures as f64);
        out.add(LOOP_PERIOD, &labels, run.period_ms as f64 / 1e3);
        if let Some(at) = run.last_run_at {
            out.add(LOOP_LAST_RUN, &labels, (at.micros() / 1_000_000) as f64);
            out.add(LOOP_LAST_SECONDS, &labels, run.last_took_ms as f64 / 1e3);
            out.add(LOOP_LAST_FAILED, &labels, f64::from(u8::from(run.last_failed)));
        }
    }
}

/// The metrics for Prometheus.
#[derive(Clone)]
pub struct Metrics {
    context: Context,
    accounts: Accounts,
    reconciliations: Reconciliations,
    cluster: Cluster,
    telemetry: Arc<Telemetry>,
    samples: Arc<LatestSamples>,
    loops: Loops,
    audit_push: AuditPush,
}

impl Metrics {
    pub fn new(
        (context, accounts): (Context, Accounts),
        (reconciliations, cluster): (Reconciliations, Cluster),
        (telemetry, loops, audit_push): (Arc<Telemetry>, Loops, AuditPush),
    ) -> Self {
        let samples = Arc::default();
        Self { context, accounts, reconciliations, cluster, telemetry, samples, loops, audit_push }
    }

    /// Replaces the samples of a node.
    pub fn put_samples(&self, node: NodeId, boards: Vec<BoardSample>, slices: Vec<SliceSample>) {
        self.samples.put(node, boards, slices);
    }

    /// The text of `/metrics`.
    ///
    /// # Errors
    /// 401 or 403 without a token for metrics; 500 if the database cannot be read.
    pub async fn metrics(&self, secret: Option<&str>, sender: Option<IpAddr>) -> Result<String, Problem> {
        self.authorise_metrics(secret, sender).await?;
        let nodes = self.cluster.nodes(None).await?;
        let last = self.reconciliations.last_reconciliation().await?;
        let mut out = Exposition::default();
        out.add(telemetry::BUILD, &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
        {
            let mut conn = self.context.db.read().await?;
            let mut tx = conn.tx();
            self.write_queue(&mut tx, &mut out).await?;
            self.write_postings(&mut tx, &mut out).await?;
            let reservations = store::reservations::list_holding(&mut tx).await?;
            let active = reservations.iter().filter(|r| r.state == ReservationState::Active).count();
            out.add(telemetry::RESERVATIONS, &[], active as f64);
            write_nodes(&mut out, &nodes);
            let held = store::attempts::list_held(&mut tx).await?;
            self.write_devices(&mut out, &nodes, &Owners::from_held(&held));
            out.declare(telemetry::AUDIT_BEHIND);
            for destination in self.audit_push.states(&mut tx).await? {
                let labels = [("destination", destination.name.name())];
                out.add(telemetry::AUDIT_BEHIND, &labels, destination.events_behind as f64);
            }
        }
        out.declare(telemetry::MISMATCHES);
        out.declare(telemetry::RECONCILED);
        if let Some(last) = last {
            out.add(telemetry::MISMATCHES, &[], last.mismatches.len() as f64);
            out.add(telemetry::RECONCILED, &[], (last.at.micros() / 1_000_000) as f64);
        }
        write_loops(&mut out, &self.loops.all());
        self.telemetry.write(&mut out);
        Ok(out.text())
    }

    async fn write_queue(&self, tx: &mut Tx<'_>, out: &mut Exposition) -> Result<(), StoreError> {
        let counted: BTreeMap<JobState, i64> = store::jobs::count_by_state(tx).await?.into_iter().collect();
        for state in JobState::ALL.into_iter().filter(|state| !state.ended()) {
            let count = counted.get(&state).copied().unwrap_or(0);
            out.add(telemetry::JOBS, &[("state", state.name())], count as f64);
        }
        let oldest = store::jobs::find_oldest_queued_at(tx).await?;
        let waits_us = oldest.map_or(0, |at| self.context.now().micros().saturating_sub(at.micros()).max(0));
        out.add(telemetry::QUEUE_OLDEST, &[], waits_us as f64 / 1e6);
        Ok(())
    }

    /// Adds the new transfers to the last count, so that a long ledger is not read each time.
    async fn write_postings(&self, tx: &mut Tx<'_>, out: &mut Exposition) -> Result<(), StoreError> {
        let before = self.telemetry.posting_counts();
        let settled = first_transfer(self.context.now().plus_seconds(-STORED_S)).max(before.until);
        let last = TransferId::from_uuid(uuid::Uuid::from_u128(u128::MAX));
        let mut by_kind = before.by_kind.clone();
        add(&mut by_kind, store::ledger::count_between(tx, before.until, settled).await?);
        self.telemetry
            .set_posting_counts(&before, PostingCounts { until: settled, by_kind: by_kind.clone() });
        add(&mut by_kind, store::ledger::count_between(tx, settled, last).await?);
        out.declare(telemetry::POSTINGS);
        for (kind, count) in by_kind {
            out.add(telemetry::POSTINGS, &[("kind", kind)], count as f64);
        }
        Ok(())
    }

    /// Writes the last readings of the connected nodes. Readings of other nodes' boards are ignored.
    fn write_devices(&self, out: &mut Exposition, nodes: &[Node], owners: &Owners<'_>) {
        DEVICE_FAMILIES.into_iter().for_each(|family| out.declare(family));
        let names: HashMap<NodeId, &Node> = nodes.iter().map(|node| (node.id, node)).collect();
        for (id, samples) in self.samples.list(&self.context.live.connected()) {
            let Some(node) = names.get(&id) else { continue };
            for board in &samples.boards {
                let own = node.gpus.iter().any(|gpu| gpu.uuid == board.gpu_uuid);
                let Some(reading) = board.reading.as_ref().filter(|_| own) else { continue };
                let owner = owners.at(&board.gpu_uuid, None);
                let device = Device {
                    gpu: board.index,
                    uuid: &board.gpu_uuid,
                    model: &board.name,
                    host: &node.name,
                    instance: None,
                    job: owner.and_then(|(job, _)| job),
                    organization: owner.map(|(_, organization)| organization),
                };
                add_device(out, &device, reading);
                for slice in samples.slices.iter().filter(|slice| slice.gpu_uuid == board.gpu_uuid) {
                    let Some(reading) = &slice.reading else { continue };
                    let owner = owners.at(&slice.gpu_uuid, Some(slice.start));
                    let device = Device {
                        instance: Some((slice.instance, slice.profile.as_str())),
                        job: owner.and_then(|(job, _)| job),
                        organization: owner.map(|(_, organization)| organization),
                        ..device
                    };
                    add_device(out, &device, reading);
                }
            }
        }
    }
}

fn add(by_kind: &mut BTreeMap<&'static str, i64>, counted: Vec<(TransferKind, i64)>) {
    for (kind, count) in counted {
        *by_kind.entry(kind.name()).or_default() += count;
    }
}

fn write_nodes(out: &mut Exposition, nodes: &[Node]) {
    for state in NodeState::ALL {
        let count = nodes.iter().filter(|node| node.state == state).count();
        out.add(telemetry::NODES, &[("state", state.name())], count as f64);
    }
    // The boards of a node without an approval are only a claim.
    let approved = nodes.iter().filter(|node| node.awaiting_approval.is_none());
    let gpus = || approved.clone().flat_map(|node| &node.gpus);
    out.add(telemetry::GPUS, &[], gpus().count() as f64);
    let quarantined = gpus().filter(|gpu| gpu.quarantined.is_some()).count();
    out.add(telemetry::GPUS_QUARANTINED, &[], quarantined as f64);
}
