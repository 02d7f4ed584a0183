//! Health of boards: quarantine after a fault, and return to service by a check or an operator.
//!
//! The worker decides about faults and ends the jobs on a failed board. This module acts once on each fault
//! and decides about the return to service.

mod groups;
mod reset;
pub mod routes;

use std::collections::HashSet;
use std::sync::Arc;

use berth_types::board_samples::{BoardJob, BoardSamples, MAX_BOARD_JOBS};
use berth_types::health::{FabricState, GpuFacts, GpuHealth, GpuTask, GpuTaskKind, PatchGpuMode, Quarantine};
use berth_types::ids::{AuditEventId, NodeId};
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use berth_types::quotas::{AuditContext, AuditEvent};
use berth_types::time::Timestamp;
use futures::FutureExt;

use self::groups::reset_group;
use self::reset::{check_refusal, open_change, release_group};
use crate::board_history::{BoardHistories, BoardValues, KEPT_S};
use crate::mig_differences;
use crate::offerings::Offerings;
use crate::reports::{BOARD_RESET, BoardReport, GpuTaskOrder, MODE_CHANGE, UNKNOWN_FAULT};
use berth_foundation::{Caller, idempotency};
use berth_foundation::{Change, Context};
use berth_store::health::{NewQuarantine, StoredHealth};
use berth_store::{self as store, StoreError, Tx};

/// The audit event of an act of the portal on a board.
fn portal_event(
    context: &Context,
    action: &str,
    gpu_uuid: &str,
    detail: String,
    at: Timestamp,
) -> AuditEvent {
    AuditEvent {
        id: context.new_id::<AuditEventId>(at),
        at,
        actor: "The portal".to_owned(),
        action: action.to_owned(),
        subject: gpu_uuid.to_owned(),
        detail,
        context: AuditContext::default(),
    }
}

/// The reason against work on a whole board without its NVLink fabric; `None` for a ready board.
fn fabric_reason(facts: &GpuFacts) -> Option<String> {
    let fabric = facts.fabric.as_ref().filter(|_| facts.awaits_fabric())?;
    let state = match fabric.state {
        FabricState::NotStarted => "it has not started".to_owned(),
        FabricState::InProgress => "it is in progress".to_owned(),
        FabricState::Completed => format!("it failed with error {} of NVML", fabric.status),
    };
    Some(format!(
        "The registration of the board with the NVLink fabric is not complete: {state}. CUDA does not start on the whole board before it."
    ))
}

/// Applies the report of one board. Returns true if placements can change.
async fn apply(
    tx: &mut Tx<'_>,
    context: &Context,
    row: &StoredHealth,
    board: &BoardReport,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let mut placement_changed = false;
    let silent = board.silent.clone().or_else(|| fabric_reason(board.facts.as_ref()?));
    if silent != row.silent {
        store::health::set_silent(tx, &row.uuid, silent.as_deref()).await?;
        placement_changed = true;
    }
    if let Some(facts) = &board.facts {
        let mig = facts.mig.unwrap_or(false);
        let mig_differences = if board.mig_profiles.is_empty() {
            // The driver names its profiles in MIG mode only.
            row.facts.mig_differences.clone()
        } else {
            mig_differences::list(&row.model, &board.mig_profiles)
        };
        let facts = GpuFacts { mig_differences, ..facts.clone() };
        if facts != *row.facts || mig != row.mig_enabled {
            store::health::set_facts(tx, &row.uuid, &facts, mig).await?;
            placement_changed |= mig != row.mig_enabled;
        }
    }
    // The task comes before the fault: a fault after a passed check still counts.
    if let Some(done) = &board.done
        && store::health::finish_task(tx, &row.uuid, done.number, done.good, &done.message).await?
    {
        if !done.good {
            // After a failed change of the mode or a failed reset the quarantine shows the failure.
            for code in [MODE_CHANGE, BOARD_RESET] {
                store::health::set_quarantine_reason(tx, &row.uuid, code, &done.message).await?;
            }
        } else if store::health::lift_quarantine(tx, &row.uuid).await? {
            let event = portal_event(context, "gpu.cleared", &row.uuid, done.message.clone(), now);
            store::quotas::insert_audit(tx, None, &event).await?;
        }
        placement_changed = true;
    }
    if let Some(fault) = &board.fault {
        let why = NewQuarantine { code: fault.code.clone(), reason: fault.detail.clone(), at: now };
        if store::health::quarantine_for_fault(tx, &row.uuid, fault.serial, &why).await? {
            if row.task_done >= row.task_number {
                // An earlier result is no statement about the new fault.
                store::health::forget_result(tx, &row.uuid).await?;
            }
            tracing::warn!(gpu = row.uuid, code = why.code, reason = why.reason, "a board is out of service");
            let event = portal_event(context, "gpu.quarantined", &row.uuid, why.reason, now);
            store::quotas::insert_audit(tx, None, &event).await?;
            placement_changed = true;
        }
    }
    Ok(placement_changed)
}

/// The refusal of a change of a board's MIG mode.
fn mode_refusal(row: &StoredHealth) -> Option<Problem> {
    if let Some((title, detail)) = open_change(row) {
        return Some(Problem::conflict("gpu.quarantined", title, detail));
    }
    if row.quarantined.is_some() {
        let detail = "Check or release the board first: a change of its mode would remove the reason of its quarantine.";
        return Some(Problem::conflict("gpu.quarantined", "The board is quarantined", detail));
    }
    // A board that waits for its fabric answers, and its slices need no fabric.
    if (row.silent.is_some() && !row.facts.awaits_fabric()) || !row.present {
        let detail = "The MIG mode can be changed only while the board answers its worker.";
        return Some(Problem::conflict("gpu.silent", "The board does not answer", detail));
    }
    if row.facts.mig.is_none() {
        let detail = "The driver reports no MIG for this board.";
        return Some(Problem::conflict("gpu.no_mig", "The board has no MIG", detail));
    }
    None
}

/// Applies reports about boards and commands of operators.
#[derive(Clone)]
pub struct Health {
    context: Context,
    offerings: Offerings,
    history: Arc<BoardHistories>,
}

impl Health {
    pub fn new(context: Context, offerings: Offerings) -> Self {
        Self { context, offerings, history: Arc::default() }
    }

    /// Keeps a reading of a board.
    pub fn add_reading(&self, gpu_uuid: &str, values: BoardValues) {
        self.history.add(gpu_uuid, self.context.now(), values);
    }

    /// The kept readings of a board and its jobs between two times, for an operator. The default is the last
    /// day.
    ///
    /// # Errors
    /// 404 for a board of another node; 400 if `from` is later than `to`; 500 if the database cannot be read.
    pub async fn board_samples(
        &self,
        caller: &Caller,
        (node, gpu_uuid): (NodeId, &str),
        (from, to): (Option<Timestamp>, Option<Timestamp>),
    ) -> Result<BoardSamples, Problem> {
        let row = self.get_gpu(caller, gpu_uuid, OperatorRight::View).await?;
        if row.node_id != node {
            return Err(Problem::not_found());
        }
        let to = to.unwrap_or_else(|| self.context.now());
        let from = from.unwrap_or_else(|| to.plus_seconds(-KEPT_S));
        if from > to {
            return Err(Problem::malformed("`from` is later than `to`."));
        }
        let limit = i64::try_from(MAX_BOARD_JOBS).unwrap_or(i64::MAX);
        let mut conn = self.context.db.read().await?;
        let jobs = store::attempts::list_board_jobs(&mut conn.tx(), &row.uuid, (from, to), limit).await?;
        let job = |row: store::attempts::StoredBoardJob| BoardJob {
            job: row.job_id,
            attempt: u32::try_from(row.number).unwrap_or(0),
            job_name: row.job_name,
            org: row.org_id,
            org_name: row.org_name,
            from: row.created_at,
            to: row.ended_at,
        };
        let jobs = jobs.into_iter().map(job).collect();
        Ok(BoardSamples { jobs, ..self.history.samples(&row.uuid, from, to) })
    }

    /// Applies a worker's reports about its boards. The result is durable on return.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn apply_health(&self, node: NodeId, boards: Vec<BoardReport>) -> Result<(), StoreError> {
        let now = self.context.now();
        let context = self.context.clone();
        let placement_changed = self
            .context
            .db
            .write(move |tx| {
                let (context, boards) = (context.clone(), boards.clone());
                async move {
                    let rows = store::health::list(tx, node).await?;
                    let mut placement_changed = false;
                    for board in &boards {
                        // A worker may report its own boards only.
                        let Some(row) = rows.iter().find(|row| row.uuid == board.gpu_uuid) else { continue };
                        placement_changed |= apply(tx, &context, row, board, now).await?;
                    }
                    Ok(placement_changed)
                }
                .boxed()
            })
            .await?;
        if placement_changed {
            self.context.publish(Change::Boards);
            self.context.publish(Change::Assignments(node));
        }
        Ok(())
    }

    /// The UUIDs of a node's boards. Its worker may report no others.
    pub async fn own_boards(&self, node: NodeId) -> Result<HashSet<String>, StoreError> {
        let mut conn = self.context.db.read().await?;
        let rows = store::health::list(&mut conn.tx(), node).await?;
        Ok(rows.into_iter().map(|row| row.uuid).collect())
    }

    /// The open tasks for the boards of a node.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn board_tasks(&self, node: NodeId) -> Result<Vec<GpuTaskOrder>, StoreError> {
        let mut conn = self.context.db.read().await?;
        let rows = store::health::list_tasks(&mut conn.tx(), node).await?;
        let task = |row: &store::health::StoredTask| {
            let kind = row.task_kind?;
            let is_together = |other: &&store::health::StoredTask| {
                row.task_group.is_some() && other.task_group == row.task_group
            };
            let group = rows.iter().filter(is_together).map(|other| other.uuid.clone()).collect();
            Some(GpuTaskOrder { gpu_uuid: row.uuid.clone(), number: row.task_number, kind, group })
        };
        Ok(rows.iter().filter_map(task).collect())
    }

    /// The health of a node's boards, for an operator.
    pub async fn list_gpu_health(&self, caller: &Caller, node: NodeId) -> Result<Vec<GpuHealth>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        store::certificates::find_instance(&mut tx, node).await?.ok_or_else(Problem::not_found)?;
        let rows = store::health::list(&mut tx, node).await?;
        Ok(rows.iter().map(|row| self.gpu_health(row.clone(), &rows)).collect())
    }

    /// The health of a board; `rows` are all boards of its node.
    fn gpu_health(&self, row: StoredHealth, rows: &[StoredHealth]) -> GpuHealth {
        let reset_group = reset_group(rows, &row.uuid);
        let over = row.task_done >= row.task_number;
        let reading = self.context.live.reading(&row.uuid);
        GpuHealth {
            node: row.node_id,
            index: u32::try_from(row.idx).unwrap_or(0),
            model: row.model,
            memory_mib: row.memory_mib,
            present: row.present,
            mig_enabled: row.mig_enabled,
            quarantine: row.quarantined.map(|reason| Quarantine {
                code: row.quarantine_code.unwrap_or_else(|| UNKNOWN_FAULT.to_owned()),
                reason,
                since: row.quarantined_at,
            }),
            silent: row.silent,
            awaits_approval: row.awaits_approval,
            facts: row.facts.0,
            reading: self.context.live.gpu_reading(&row.uuid),
            power_watts: reading.power_watts,
            temperature_celsius: reading.temperature_celsius,
            utilization_percent: reading.utilization_percent,
            held: u32::try_from(row.held).unwrap_or(0),
            reset_group,
            task: row.task_kind.map(|kind| GpuTask {
                kind,
                good: row.task_succeeded.filter(|_| over),
                words: row.task_detail.filter(|_| over),
            }),
            uuid: row.uuid,
        }
    }

    /// The board of a request of an operator with `right`.
    async fn get_gpu(
        &self,
        caller: &Caller,
        gpu_uuid: &str,
        right: OperatorRight,
    ) -> Result<StoredHealth, Problem> {
        self.context.authorise_operator(caller, right).await?;
        let mut conn = self.context.db.read().await?;
        store::health::find(&mut conn.tx(), gpu_uuid).await?.ok_or_else(Problem::not_found)
    }

    /// Publishes a change of a board and returns its new state.
    async fn publish_gpu(&self, gpu_uuid: &str, node: NodeId) -> Result<GpuHealth, Problem> {
        self.context.publish(Change::Boards);
        self.context.publish(Change::Assignments(node));
        self.read_gpu(gpu_uuid, node).await
    }

    /// Returns the state of a board of a node.
    async fn read_gpu(&self, gpu_uuid: &str, node: NodeId) -> Result<GpuHealth, Problem> {
        let mut conn = self.context.db.read().await?;
        let rows = store::health::list(&mut conn.tx(), node).await?;
        let row = rows.iter().find(|row| row.uuid == gpu_uuid).cloned().ok_or_else(Problem::not_found)?;
        Ok(self.gpu_health(row, &rows))
    }

    /// Asks the worker to check a board. A passed check returns the board to service.
    ///
    /// # Errors
    /// The board waits for a reset or for a change of its MIG mode.
    pub async fn check_gpu(&self, caller: &Caller, gpu_uuid: &str) -> Result<GpuHealth, Problem> {
        let row = self.get_gpu(caller, gpu_uuid, OperatorRight::ManageFleet).await?;
        if caller.already_created().is_some() {
            return self.read_gpu(gpu_uuid, row.node_id).await;
        }
        let (now, key, gpu) = (self.context.now(), caller.idempotency_key.clone(), row.uuid);
        let event = self.context.audit_event(caller, "gpu.check_asked", gpu.clone(), String::new());
        let refused = self
            .context
            .db
            .write(move |tx| {
                let (key, gpu, event) = (key.clone(), gpu.clone(), event.clone());
                async move {
                    let current = store::health::find(tx, &gpu).await?;
                    if let Some(problem) = current.as_ref().and_then(check_refusal) {
                        return Ok(Some(problem));
                    }
                    idempotency::claim(tx, key.as_ref(), &gpu, now).await?;
                    store::health::set_task(tx, &gpu, GpuTaskKind::Check, None, now).await?;
                    store::quotas::insert_audit(tx, None, &event).await?;
                    Ok(None)
                }
                .boxed()
            })
            .await?;
        if let Some(problem) = refused {
            return Err(problem);
        }
        self.publish_gpu(gpu_uuid, row.node_id).await
    }

    /// Approves a board that its node reported after the approval of the node.
    ///
    /// # Errors
    /// The proof of identity is not fresh, or the board does not wait for an approval.
    pub async fn approve_gpu(&self, caller: &Caller, gpu_uuid: &str) -> Result<GpuHealth, Problem> {
        let row = self.get_gpu(caller, gpu_uuid, OperatorRight::ManageFleet).await?;
        self.context.check_proof(caller)?;
        if caller.already_created().is_some() {
            return self.read_gpu(gpu_uuid, row.node_id).await;
        }
        let (now, key, gpu) = (self.context.now(), caller.idempotency_key.clone(), row.uuid);
        let event = self.context.audit_event(caller, "gpu.approved", gpu.clone(), row.model);
        let approved = self
            .context
            .db
            .write(move |tx| {
                let (key, gpu, event) = (key.clone(), gpu.clone(), event.clone());
                async move {
                    let current = store::health::find(tx, &gpu).await?;
                    if current.is_none_or(|row| !row.awaits_approval) {
                        return Ok(false);
                    }
                    idempotency::claim(tx, key.as_ref(), &gpu, now).await?;
                    store::approvals::set_awaits_approval(tx, &gpu, false).await?;
                    store::quotas::insert_audit(tx, None, &event).await?;
                    Ok(true)
                }
                .boxed()
            })
            .await?;
        if !approved {
            let detail = "The board waits for no approval. Nothing was changed.";
            return Err(Problem::conflict("gpu.approved", "The board is approved", detail));
        }
        self.offerings.offer_boards_of(row.node_id).await?;
        self.publish_gpu(gpu_uuid, row.node_id).await
    }

    /// Returns a board to service without a check, by decision of the operator. A requested reset of the board is
    /// cancelled, also for the boards that are reset together with it.
    ///
    /// # Errors
    /// The board is not in quarantine.
    pub async fn release_gpu(&self, caller: &Caller, gpu_uuid: &str) -> Result<GpuHealth, Problem> {
        let row = self.get_gpu(caller, gpu_uuid, OperatorRight::ManageFleet).await?;
        if caller.already_created().is_some() {
            return self.read_gpu(gpu_uuid, row.node_id).await;
        }
        let (now, key, gpu) = (self.context.now(), caller.idempotency_key.clone(), row.uuid);
        let event = self.context.audit_event(
            caller,
            "gpu.released",
            gpu.clone(),
            row.quarantined.unwrap_or_default(),
        );
        let (context, node) = (self.context.clone(), row.node_id);
        let lifted = self
            .context
            .db
            .write(move |tx| {
                let (context, key, gpu, event) = (context.clone(), key.clone(), gpu.clone(), event.clone());
                async move {
                    let rows = store::health::list(tx, node).await?;
                    if !store::health::lift_quarantine(tx, &gpu).await? {
                        return Ok(false);
                    }
                    idempotency::claim(tx, key.as_ref(), &gpu, now).await?;
                    // A waiting change of the mode would take the board out of service again.
                    store::health::cancel_task(tx, &gpu).await?;
                    store::quotas::insert_audit(tx, None, &event).await?;
                    release_group(tx, &context, &event, &rows).await?;
                    Ok(true)
                }
                .boxed()
            })
            .await?;
        if !lifted {
            let detail = "The board is not quarantined. A board without an answer returns to service with its next answer.";
            return Err(Problem::conflict("gpu.not_quarantined", "The board is not quarantined", detail));
        }
        self.publish_gpu(gpu_uuid, row.node_id).await
    }

    /// Changes the MIG mode of a board. The board gets no new jobs. After the end of its present jobs the
    /// worker changes the mode, and the board returns to service.
    ///
    /// # Errors
    /// The board is in quarantine, does not answer or has no MIG.
    pub async fn set_gpu_mode(
        &self,
        caller: &Caller,
        gpu_uuid: &str,
        mode: PatchGpuMode,
    ) -> Result<GpuHealth, Problem> {
        let row = self.get_gpu(caller, gpu_uuid, OperatorRight::ManageFleet).await?;
        if caller.already_created().is_some() {
            return self.read_gpu(gpu_uuid, row.node_id).await;
        }
        if let Some(problem) = mode_refusal(&row) {
            return Err(problem);
        }
        let kind = if mode.mig { GpuTaskKind::MigOn } else { GpuTaskKind::MigOff };
        let (now, key, gpu) = (self.context.now(), caller.idempotency_key.clone(), row.uuid);
        let detail = format!("MIG {}", if mode.mig { "on" } else { "off" });
        let event = self.context.audit_event(caller, "gpu.mode_asked", gpu.clone(), detail);
        let why = NewQuarantine {
            code: MODE_CHANGE.to_owned(),
            reason: "The MIG mode changes after the end of the present jobs.".to_owned(),
            at: now,
        };
        let set = self
            .context
            .db
            .write(move |tx| {
                let (key, gpu, event, why) = (key.clone(), gpu.clone(), event.clone(), why.clone());
                async move {
                    // The board may have failed since the check above.
                    let current = store::health::find(tx, &gpu).await?;
                    if current.is_none_or(|row| row.quarantined.is_some()) {
                        return Ok(false);
                    }
                    idempotency::claim(tx, key.as_ref(), &gpu, now).await?;
                    store::health::quarantine(tx, &gpu, &why).await?;
                    store::health::set_task(tx, &gpu, kind, None, now).await?;
                    store::quotas::insert_audit(tx, None, &event).await?;
                    Ok(true)
                }
                .boxed()
            })
            .await?;
        if !set {
            let detail =
                "The board was quarantined in the meantime. Nothing was changed. Load the board again.";
            return Err(Problem::conflict("gpu.quarantined", "The board is quarantined", detail));
        }
        self.publish_gpu(gpu_uuid, row.node_id).await
    }
}
