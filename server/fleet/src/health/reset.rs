//! The reset of a board, or of boards that the driver resets only together: a task of an operator for the worker.

use berth_types::health::{GpuHealth, GpuTaskKind};
use berth_types::ids::{AuditEventId, NodeId};
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use berth_types::quotas::AuditEvent;
use futures::FutureExt;

use super::Health;
use super::groups::{WAITING, awaits_reset, find_group, find_open_group};
use crate::reports::{BOARD_RESET, MODE_CHANGE};
use berth_foundation::callers::IdempotencyKey;
use berth_foundation::{Caller, Context, idempotency};
use berth_store::health::{NewQuarantine, StoredHealth};
use berth_store::{self as store, StoreError, Tx};

/// The refusal of a reset of a board with its group.
fn reset_refusal(row: &StoredHealth, group: &[&StoredHealth]) -> Option<Problem> {
    let conflict = |detail: String| Problem::conflict("gpu.resetting", "The board is reset", detail);
    if !row.present {
        let detail =
            "The worker of the node does not report the board, so it cannot reset it. Nothing was changed.";
        return Some(Problem::conflict("gpu.silent", "The board does not answer", detail));
    }
    if awaits_reset(row) {
        let detail = "A reset of the board is requested already. Nothing was changed. The page of the board shows its state.";
        return Some(conflict(detail.to_owned()));
    }
    let other = group.iter().find(|other| awaits_reset(other))?;
    Some(conflict(format!(
        "The driver resets the board only together with GPU {}, and a reset of that board is requested already. Nothing was changed.",
        other.idx
    )))
}

/// The requested reset or change of the MIG mode of a board, as the title and the text of a refusal. `None` without one.
pub(super) fn open_change(row: &StoredHealth) -> Option<(&'static str, &'static str)> {
    match row.task_kind.filter(|_| row.task_number > row.task_done)? {
        GpuTaskKind::Check => None,
        GpuTaskKind::Reset if row.task_group.is_some() => Some((
            "The board is reset",
            "A reset of the board together with others is requested. Nothing was changed. Release the board to cancel the reset of all of them.",
        )),
        GpuTaskKind::Reset => Some((
            "The board is reset",
            "A reset of the board is requested. Nothing was changed. Release the board to cancel it.",
        )),
        GpuTaskKind::MigOn | GpuTaskKind::MigOff => Some((
            "The MIG mode changes",
            "A change of the MIG mode is requested already. Nothing was changed. Release the board to cancel it.",
        )),
    }
}

/// The refusal of a check of a board that waits for a reset or for a change of its MIG mode.
pub(super) fn check_refusal(row: &StoredHealth) -> Option<Problem> {
    let (title, detail) = open_change(row)?;
    Some(Problem::conflict("gpu.resetting", title, detail))
}

/// The audit event of an act for one board of a group.
fn member_event(context: &Context, event: &AuditEvent, gpu_uuid: &str, detail: String) -> AuditEvent {
    AuditEvent {
        id: context.new_id::<AuditEventId>(event.at),
        subject: gpu_uuid.to_owned(),
        detail,
        ..event.clone()
    }
}

/// The other boards of a reset as text; empty for a board alone.
fn companions(row: &StoredHealth, group: &[&StoredHealth]) -> String {
    let others = group.iter().filter(|other| other.uuid != row.uuid);
    let names: Vec<String> = others.map(|other| format!("GPU {}", other.idx)).collect();
    if names.is_empty() { String::new() } else { format!("Together with {}.", names.join(", ")) }
}

/// Requests the reset of a board and of all boards that the driver resets only together with it. `event` is the audit
/// event of the request for the board.
async fn request_reset(
    tx: &mut Tx<'_>,
    context: &Context,
    (node, event): (NodeId, &AuditEvent),
    key: Option<&IdempotencyKey>,
) -> Result<Option<Problem>, StoreError> {
    let rows = store::health::list(tx, node).await?;
    let Some(current) = rows.iter().find(|row| row.uuid == event.subject) else {
        return Ok(Some(Problem::not_found()));
    };
    let group = find_group(&rows, &current.uuid);
    if let Some(problem) = reset_refusal(current, &group) {
        return Ok(Some(problem));
    }
    idempotency::claim(tx, key, &current.uuid, event.at).await?;
    let why = NewQuarantine { code: BOARD_RESET.to_owned(), reason: WAITING.to_owned(), at: event.at };
    let of_group = (group.len() > 1).then_some(current.uuid.as_str());
    for row in &group {
        // The reason of a fault stays until the reset has ended it. A change of the mode waits for a reset.
        if row.quarantine_code.as_deref().is_none_or(|code| code == MODE_CHANGE) {
            store::health::quarantine(tx, &row.uuid, &why).await?;
        }
        store::health::set_task(tx, &row.uuid, GpuTaskKind::Reset, of_group, event.at).await?;
        let own = member_event(context, event, &row.uuid, companions(row, &group));
        store::quotas::insert_audit(tx, None, &own).await?;
    }
    Ok(None)
}

/// Cancels the requested reset of the boards that are reset together with a released board. Boards that are out of
/// service for this reset alone return to service. `rows` are from before the release, and `event` is its audit event.
pub(super) async fn release_group(
    tx: &mut Tx<'_>,
    context: &Context,
    event: &AuditEvent,
    rows: &[StoredHealth],
) -> Result<(), StoreError> {
    let group = find_open_group(rows, &event.subject);
    for row in group.into_iter().filter(|row| row.uuid != event.subject) {
        store::health::cancel_task(tx, &row.uuid).await?;
        if row.quarantined.as_deref() == Some(WAITING) {
            store::health::lift_quarantine(tx, &row.uuid).await?;
            let own = member_event(context, event, &row.uuid, WAITING.to_owned());
            store::quotas::insert_audit(tx, None, &own).await?;
        }
    }
    Ok(())
}

impl Health {
    /// Resets a board, with all boards that the driver resets only together with it. The boards get no new jobs. After
    /// the end of their present jobs the worker resets them, and each board without a fault returns to service.
    ///
    /// # Errors
    /// The worker does not report the board, or a reset of it or of its group is requested already.
    pub async fn reset_gpu(&self, caller: &Caller, gpu_uuid: &str) -> Result<GpuHealth, Problem> {
        let row = self.get_gpu(caller, gpu_uuid, OperatorRight::ManageFleet).await?;
        let node = row.node_id;
        if caller.already_created().is_some() {
            return self.read_gpu(gpu_uuid, node).await;
        }
        let (context, key) = (self.context.clone(), caller.idempotency_key.clone());
        let event = self.context.audit_event(caller, "gpu.reset_asked", row.uuid, String::new());
        let refused = self
            .context
            .db
            .write(move |tx| {
                let (context, key, event) = (context.clone(), key.clone(), event.clone());
                async move { request_reset(tx, &context, (node, &event), key.as_ref()).await }.boxed()
            })
            .await?;
        if let Some(problem) = refused {
            return Err(problem);
        }
        self.publish_gpu(gpu_uuid, node).await
    }
}
