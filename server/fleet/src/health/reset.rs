//! The reset of a board: a task of an operator for its worker.

use berth_types::health::{GpuHealth, GpuTaskKind};
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use futures::FutureExt;

use super::Health;
use crate::reports::{BOARD_RESET, MODE_CHANGE};
use berth_foundation::{Caller, idempotency};
use berth_store as store;
use berth_store::health::{NewQuarantine, StoredHealth};

/// The refusal of a reset of a board.
fn reset_refusal(row: &StoredHealth) -> Option<Problem> {
    if !row.present {
        let detail =
            "The worker of the node does not report the board, so it cannot reset it. Nothing was changed.";
        return Some(Problem::conflict("gpu.silent", "The board does not answer", detail));
    }
    if row.task_kind == Some(GpuTaskKind::Reset) && row.task_number > row.task_done {
        let detail = "A reset of the board is requested already. Nothing was changed. The page of the board shows its state.";
        return Some(Problem::conflict("gpu.resetting", "The board is reset", detail));
    }
    None
}

impl Health {
    /// Resets a board. The board gets no new jobs. After the end of its present jobs the worker resets it, and a board
    /// without a fault returns to service.
    ///
    /// # Errors
    /// The worker does not report the board, or its reset is requested already.
    pub async fn reset_gpu(&self, caller: &Caller, gpu_uuid: &str) -> Result<GpuHealth, Problem> {
        let row = self.get_gpu(caller, gpu_uuid, OperatorRight::ManageFleet).await?;
        if caller.already_created().is_some() {
            return Ok(self.gpu_health(row));
        }
        let (now, key, gpu) = (self.context.now(), caller.idempotency_key.clone(), row.uuid);
        let event = self.context.audit_event(caller, "gpu.reset_asked", gpu.clone(), String::new());
        let why = NewQuarantine {
            code: BOARD_RESET.to_owned(),
            reason: "The board is reset after the end of the present jobs.".to_owned(),
            at: now,
        };
        let refused = self
            .context
            .db
            .write(move |tx| {
                let (key, gpu, event, why) = (key.clone(), gpu.clone(), event.clone(), why.clone());
                async move {
                    let Some(current) = store::health::find(tx, &gpu).await? else {
                        return Ok(Some(Problem::not_found()));
                    };
                    if let Some(problem) = reset_refusal(&current) {
                        return Ok(Some(problem));
                    }
                    idempotency::claim(tx, key.as_ref(), &gpu, now).await?;
                    // The reason of a fault stays until the reset has ended it. A change of the mode waits for a reset.
                    if current.quarantine_code.as_deref().is_none_or(|code| code == MODE_CHANGE) {
                        store::health::quarantine(tx, &gpu, &why).await?;
                    }
                    store::health::set_task(tx, &gpu, GpuTaskKind::Reset, now).await?;
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
}
