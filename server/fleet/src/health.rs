//! Boards that fail: out of service by what their workers say, and back by a check or an operator.
//!
//! Which fault is one, the worker says; that it is acted on once, and who may put a board back, is said
//! here. What runs on a board that failed is ended by its worker.

use std::collections::HashSet;

use berth_proto as proto;
use berth_types::Page;
use berth_types::health::{GpuFacts, GpuHealth, GpuTask, GpuTaskKind, PatchGpuMode, Quarantine};
use berth_types::ids::{AuditEventId, NodeId};
use berth_types::problems::Problem;
use berth_types::quotas::AuditEvent;
use berth_types::time::Timestamp;
use futures::FutureExt;

use berth_foundation::{Caller, idempotency};
use berth_foundation::{Change, Context};
use berth_store::health::{HealthRow, NewQuarantine};
use berth_store::{self as store, StoreError, Tx};

/// Why a board is out of service whose MIG mode is being changed.
const MODE: &str = "gpu.mode";
/// No word of a worker's is longer.
const MOST_CHARS: usize = 500;

fn short(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MOST_CHARS).collect()
}

/// What a worker read of a board, as it is kept.
fn facts(read: &proto::BoardFacts) -> GpuFacts {
    let text = |text: &Option<String>| text.as_deref().map(short).filter(|t| !t.is_empty());
    GpuFacts {
        serial: text(&read.serial),
        vbios: text(&read.vbios),
        pci_bus_id: text(&read.pci_bus_id),
        compute_capability: text(&read.compute_capability),
        power_limit_watts: read.power_limit_watts,
        ecc: read.ecc,
        ecc_pending: read.ecc_pending,
        mig: read.mig,
        mig_pending: read.mig_pending,
        nvlinks: read.nvlinks,
        ecc_corrected: read.ecc_corrected,
        ecc_uncorrected: read.ecc_uncorrected,
        rows_corrected: read.rows_corrected,
        rows_uncorrected: read.rows_uncorrected,
        replacement_pending: read.replacement_pending,
        replacement_failed: read.replacement_failed,
        recovery: read.recovery,
    }
}

/// A record of what the portal itself does.
fn own_event(context: &Context, action: &str, gpu_uuid: &str, detail: String, at: Timestamp) -> AuditEvent {
    AuditEvent {
        id: context.new_id::<AuditEventId>(at),
        at,
        actor: "The portal".to_owned(),
        action: action.to_owned(),
        subject: gpu_uuid.to_owned(),
        detail,
    }
}

/// Applies how one board is; says whether that touches where things may be placed.
async fn apply(
    tx: &mut Tx<'_>,
    context: &Context,
    row: &HealthRow,
    board: &proto::BoardHealth,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let mut touched = false;
    let silent = board.silent.as_deref().map(short);
    if silent != row.silent {
        store::health::set_silent(tx, &row.uuid, silent.as_deref()).await?;
        touched = true;
    }
    if let Some(read) = &board.facts {
        let mig = read.mig.unwrap_or(false);
        let text = serde_json::to_string(&facts(read)).unwrap_or_else(|_| "{}".to_owned());
        if text != row.facts || mig != row.mig_enabled {
            store::health::set_facts(tx, &row.uuid, &text, mig).await?;
            touched |= mig != row.mig_enabled;
        }
    }
    // The task before the fault: what went wrong after a check that was passed still counts.
    if let Some(done) = &board.done
        && let Ok(number) = i64::try_from(done.number)
    {
        let words = short(&done.words);
        if store::health::finish_task(tx, &row.uuid, number, done.good, &words).await? {
            if !done.good {
                // Nothing waits for the mode any more.
                store::health::reword(tx, &row.uuid, MODE, &words).await?;
            } else if store::health::lift(tx, &row.uuid).await? {
                let event = own_event(context, "gpu.cleared", &row.uuid, words, now);
                store::quotas::insert_audit(tx, None, &event).await?;
            }
            touched = true;
        }
    }
    if let Some(fault) = &board.fault
        && let Ok(serial) = i64::try_from(fault.serial)
    {
        let why = NewQuarantine { code: short(&fault.code), reason: short(&fault.detail), at: now };
        if store::health::quarantine_for(tx, &row.uuid, serial, &why).await? {
            tracing::warn!(gpu = row.uuid, code = why.code, reason = why.reason, "a board is out of service");
            let event = own_event(context, "gpu.quarantined", &row.uuid, why.reason, now);
            store::quotas::insert_audit(tx, None, &event).await?;
            touched = true;
        }
    }
    Ok(touched)
}

/// Why the mode of a board may not be changed now.
fn refuse_mode(row: &HealthRow) -> Option<Problem> {
    let read: GpuFacts = serde_json::from_str(&row.facts).unwrap_or_default();
    if row.quarantined.is_some() {
        let detail = "Check the board or release it first: a change would hide why it is out of service.";
        return Some(Problem::conflict("gpu.quarantined", "The board is out of service", detail));
    }
    if row.silent.is_some() || !row.present {
        let detail = "Its mode cannot be changed before it answers its worker again.";
        return Some(Problem::conflict("gpu.silent", "The board does not answer", detail));
    }
    if read.mig.is_none() {
        let detail = "The driver says that this board cannot be cut into slices.";
        return Some(Problem::conflict("gpu.no_mig", "The board has no MIG", detail));
    }
    None
}

/// The health of boards.
#[derive(Clone)]
pub struct Health {
    context: Context,
}

impl Health {
    pub const fn new(context: Context) -> Self {
        Self { context }
    }

    /// Applies how a worker's boards are. Durable when it returns.
    pub async fn apply_health(&self, node: NodeId, health: proto::Health) -> Result<(), StoreError> {
        let now = self.context.now();
        let context = self.context.clone();
        let touched = self
            .context
            .db
            .write(move |tx| {
                let (context, health) = (context.clone(), health.clone());
                async move {
                    let rows = store::health::list(tx, node).await?;
                    let mut touched = false;
                    for board in &health.boards {
                        // It speaks of its own boards only.
                        let Some(row) = rows.iter().find(|row| row.uuid == board.gpu_uuid) else { continue };
                        touched |= apply(tx, &context, row, board, now).await?;
                    }
                    Ok(touched)
                }
                .boxed()
            })
            .await?;
        if touched {
            self.context.publish(Change::Boards);
            self.context.publish(Change::Assignments(node));
        }
        Ok(())
    }

    /// The boards of a node: its worker speaks of no other.
    pub async fn own_boards(&self, node: NodeId) -> Result<HashSet<String>, StoreError> {
        let mut conn = self.context.db.read().await?;
        let rows = store::health::list(&mut conn.tx(), node).await?;
        Ok(rows.into_iter().map(|row| row.uuid).collect())
    }

    /// What is to be done with the boards of a node.
    pub async fn board_tasks(&self, node: NodeId) -> Result<Vec<proto::BoardTask>, StoreError> {
        let mut conn = self.context.db.read().await?;
        let rows = store::health::list_tasks(&mut conn.tx(), node).await?;
        let task = |row: store::health::TaskRow| {
            let kind = match GpuTaskKind::parse(row.task_kind.as_deref()?)? {
                GpuTaskKind::Check => proto::TaskKind::Check,
                GpuTaskKind::MigOn => proto::TaskKind::MigOn,
                GpuTaskKind::MigOff => proto::TaskKind::MigOff,
            };
            let number = u64::try_from(row.task_number).ok()?;
            Some(proto::BoardTask { gpu_uuid: row.uuid, number, kind: kind.into() })
        };
        Ok(rows.into_iter().filter_map(task).collect())
    }

    /// The boards of a node, for its operator.
    pub async fn list_gpu_health(&self, caller: &Caller, node: NodeId) -> Result<Page<GpuHealth>, Problem> {
        self.context.authorise_operator(caller)?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        store::certificates::find_instance(&mut tx, node).await?.ok_or_else(Problem::not_found)?;
        let rows = store::health::list(&mut tx, node).await?;
        let boards = rows.into_iter().map(|row| self.gpu_health(row, node)).collect();
        Ok(Page::whole(boards))
    }

    fn gpu_health(&self, row: HealthRow, node: NodeId) -> GpuHealth {
        let kind = row.task_kind.as_deref().and_then(GpuTaskKind::parse);
        let over = row.task_done >= row.task_number;
        GpuHealth {
            node,
            index: u32::try_from(row.idx).unwrap_or(0),
            model: row.model,
            memory_mib: row.memory_mib,
            present: row.present,
            mig_enabled: row.mig_enabled,
            quarantine: row.quarantined.map(|reason| Quarantine {
                code: row.quarantine_code.unwrap_or_else(|| "device.unavailable".to_owned()),
                reason,
                since: row.quarantined_at.map(Timestamp::from_micros),
            }),
            silent: row.silent,
            facts: serde_json::from_str(&row.facts).unwrap_or_default(),
            reading: self.context.live.whole_reading(&row.uuid),
            task: kind.map(|kind| GpuTask {
                kind,
                good: row.task_good.filter(|_| over),
                words: row.task_words.filter(|_| over),
            }),
            uuid: row.uuid,
        }
    }

    /// The board that an operator speaks of, and its node.
    async fn operated_gpu(&self, caller: &Caller, gpu_uuid: &str) -> Result<(HealthRow, NodeId), Problem> {
        self.context.authorise_operator(caller)?;
        let mut conn = self.context.db.read().await?;
        let row = store::health::find(&mut conn.tx(), gpu_uuid).await?.ok_or_else(Problem::not_found)?;
        let node: NodeId = row.node_id.parse().map_err(|_| StoreError::Corrupt(row.node_id.clone()))?;
        Ok((row, node))
    }

    async fn fresh_gpu(&self, gpu_uuid: &str, node: NodeId) -> Result<GpuHealth, Problem> {
        self.context.publish(Change::Boards);
        self.context.publish(Change::Assignments(node));
        let mut conn = self.context.db.read().await?;
        let row = store::health::find(&mut conn.tx(), gpu_uuid).await?.ok_or_else(Problem::not_found)?;
        Ok(self.gpu_health(row, node))
    }

    /// Has the worker prove a board fit for work; when it is, it is back in service.
    pub async fn check_gpu(&self, caller: &Caller, gpu_uuid: &str) -> Result<GpuHealth, Problem> {
        let (row, node) = self.operated_gpu(caller, gpu_uuid).await?;
        if caller.done_before().is_some() {
            return Ok(self.gpu_health(row, node));
        }
        let (now, once, gpu) = (self.context.now(), caller.once.clone(), row.uuid);
        let event = self.context.audit_event(caller, "gpu.check_asked", gpu.clone(), String::new());
        self.context
            .db
            .write(move |tx| {
                let (once, gpu, event) = (once.clone(), gpu.clone(), event.clone());
                async move {
                    idempotency::claim(tx, once.as_ref(), &gpu, now).await?;
                    store::health::want(tx, &gpu, GpuTaskKind::Check.name(), now).await?;
                    store::quotas::insert_audit(tx, None, &event).await
                }
                .boxed()
            })
            .await?;
        self.fresh_gpu(gpu_uuid, node).await
    }

    /// Puts a board back into service as it is, on the operator's word.
    pub async fn release_gpu(&self, caller: &Caller, gpu_uuid: &str) -> Result<GpuHealth, Problem> {
        let (row, node) = self.operated_gpu(caller, gpu_uuid).await?;
        if caller.done_before().is_some() {
            return Ok(self.gpu_health(row, node));
        }
        let (now, once, gpu) = (self.context.now(), caller.once.clone(), row.uuid);
        let event = self.context.audit_event(
            caller,
            "gpu.released",
            gpu.clone(),
            row.quarantined.unwrap_or_default(),
        );
        let lifted = self
            .context
            .db
            .write(move |tx| {
                let (once, gpu, event) = (once.clone(), gpu.clone(), event.clone());
                async move {
                    if !store::health::lift(tx, &gpu).await? {
                        return Ok(false);
                    }
                    idempotency::claim(tx, once.as_ref(), &gpu, now).await?;
                    // A change of its mode that still waits would take it by surprise.
                    store::health::call_off(tx, &gpu).await?;
                    store::quotas::insert_audit(tx, None, &event).await?;
                    Ok(true)
                }
                .boxed()
            })
            .await?;
        if !lifted {
            let detail = "It is in service, or it only does not answer; then it is back as soon as it does.";
            return Err(Problem::conflict("gpu.not_quarantined", "There is nothing to release", detail));
        }
        self.fresh_gpu(gpu_uuid, node).await
    }

    /// Changes a board's MIG mode: nothing new is placed on it, what runs there ends by itself, then its
    /// worker changes the mode and the board is back in service.
    pub async fn set_gpu_mode(
        &self,
        caller: &Caller,
        gpu_uuid: &str,
        wanted: PatchGpuMode,
    ) -> Result<GpuHealth, Problem> {
        let (row, node) = self.operated_gpu(caller, gpu_uuid).await?;
        if caller.done_before().is_some() {
            return Ok(self.gpu_health(row, node));
        }
        if let Some(problem) = refuse_mode(&row) {
            return Err(problem);
        }
        let kind = if wanted.mig { GpuTaskKind::MigOn } else { GpuTaskKind::MigOff };
        let (now, once, gpu) = (self.context.now(), caller.once.clone(), row.uuid);
        let detail = format!("MIG {}", if wanted.mig { "on" } else { "off" });
        let event = self.context.audit_event(caller, "gpu.mode_asked", gpu.clone(), detail);
        let why = NewQuarantine {
            code: MODE.to_owned(),
            reason: "Its MIG mode is being changed, once what runs on it has ended.".to_owned(),
            at: now,
        };
        let set = self
            .context
            .db
            .write(move |tx| {
                let (once, gpu, event, why) = (once.clone(), gpu.clone(), event.clone(), why.clone());
                async move {
                    // It may have failed since it was looked at.
                    let current = store::health::find(tx, &gpu).await?;
                    if current.is_none_or(|row| row.quarantined.is_some()) {
                        return Ok(false);
                    }
                    idempotency::claim(tx, once.as_ref(), &gpu, now).await?;
                    store::health::set_aside(tx, &gpu, &why).await?;
                    store::health::want(tx, &gpu, kind.name(), now).await?;
                    store::quotas::insert_audit(tx, None, &event).await?;
                    Ok(true)
                }
                .boxed()
            })
            .await?;
        if !set {
            let detail = "It was taken out of service a moment ago. Look at it again.";
            return Err(Problem::conflict("gpu.quarantined", "The board is out of service", detail));
        }
        self.fresh_gpu(gpu_uuid, node).await
    }
}
