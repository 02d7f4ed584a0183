//! The leases of attempts, and reports about attempts that count as lost.

use berth_core::lease::Terms;
use berth_foundation::Context;
use berth_proto as proto;
use berth_store::attempts::AttemptRow;
use berth_store::jobs::JobRow;
use berth_store::{self as store, StoreError};
use berth_types::ids::{AuditEventId, NodeId};
use berth_types::quotas::AuditEvent;
use berth_types::time::Timestamp;
use serde::Deserialize;

use crate::ranks::RankEnd;

/// What a submission says of its lease; the rest of it, files above all, is passed over.
#[derive(Deserialize)]
struct Chosen {
    #[serde(default)]
    lease_s: Option<u32>,
}

/// How long the lease of a job's attempts is: what it chose, or else `usual_ms`.
pub(crate) fn length_ms(job: &JobRow, usual_ms: i64) -> Result<i64, StoreError> {
    let chosen: Chosen = serde_json::from_str(&job.spec).map_err(|_| StoreError::Corrupt(job.id.clone()))?;
    Ok(chosen.lease_s.map_or(usual_ms, |s| i64::from(s) * 1_000))
}

/// Puts an attempt's lease into what its worker is told.
pub(crate) fn impose(assignment: &mut proto::Assignment, lease_ms: i64) {
    if lease_ms > 0 {
        let terms = Terms::new(lease_ms);
        assignment.lease_ms = terms.lease_ms;
        assignment.lease_answer_ms = terms.answer_ms;
        assignment.lease_grace_ms = terms.grace_ms;
    }
}

/// Records, once for each attempt, that a worker speaks of one that counts as lost: its words are about what
/// may run elsewhere by now, and change neither job nor charge.
pub(crate) async fn note_late(
    tx: &mut store::Tx<'_>,
    context: &Context,
    node: NodeId,
    attempt: &mut AttemptRow,
    status: &proto::Status,
    now: Timestamp,
) -> Result<(), StoreError> {
    // Those words are the portal's own.
    if !attempt.ended || status.failure.as_ref().is_some_and(|f| f.code == "node.lost") {
        return Ok(());
    }
    let end = attempt.outcome.as_deref().and_then(|text| serde_json::from_str::<RankEnd>(text).ok());
    let Some(end) = end.and_then(RankEnd::heard_late) else { return Ok(()) };
    attempt.outcome = serde_json::to_string(&end).ok();
    let name = store::leases::find_node(tx, node).await?.map_or_else(|| node.to_string(), |row| row.name);
    let over = matches!(status.phase(), proto::Phase::Ended | proto::Phase::Clean);
    let phase = if over { "has ended" } else { "still runs" };
    let org = attempt.org_id.parse().map_err(|_| StoreError::Corrupt(attempt.org_id.clone()))?;
    let event = AuditEvent {
        id: context.new_id::<AuditEventId>(now),
        at: now,
        actor: "The portal".to_owned(),
        action: "attempt.late".to_owned(),
        subject: attempt.job_id.clone(),
        detail: format!(
            "The node {name} says that attempt {} {phase}, which had counted as lost. That changes nothing.",
            attempt.number
        ),
    };
    store::quotas::insert_audit(tx, Some(org), &event).await
}
