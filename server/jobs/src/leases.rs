//! The leases of attempts, and late reports about lost attempts.

use berth_core::lease::LeaseLimits;
use berth_foundation::Context;
use berth_store::attempts::AttemptRow;
use berth_store::jobs::JobRow;
use berth_store::{self as store, StoreError};
use berth_types::ids::{AuditEventId, NodeId};
use berth_types::quotas::AuditEvent;
use berth_types::time::Timestamp;
use serde::Deserialize;

use crate::ranks::RankEnd;
use crate::reports::AttemptReport;

/// The lease in a submission. The other fields, above all the files, are skipped.
#[derive(Deserialize)]
struct LeaseChoice {
    #[serde(default)]
    lease_s: Option<u32>,
}

/// The length of the lease of a job's attempts in milliseconds: the choice of its submission, or
/// `default_ms`.
pub(crate) fn lease_ms(job: &JobRow, default_ms: i64) -> Result<i64, StoreError> {
    let choice: LeaseChoice =
        serde_json::from_str(&job.spec).map_err(|_| StoreError::Corrupt(job.id.to_string()))?;
    Ok(choice.lease_s.map_or(default_ms, |s| i64::from(s) * 1_000))
}

/// The limits of a lease of this length; a length of 0 means no lease.
pub(crate) fn lease_limits(lease_ms: i64) -> Option<LeaseLimits> {
    (lease_ms > 0).then(|| LeaseLimits::new(lease_ms))
}

/// Records the first report of a worker about an attempt that counts as lost. The job may run elsewhere by
/// now, so the report changes neither job nor charge.
pub(crate) async fn record_late_report(
    tx: &mut store::Tx<'_>,
    context: &Context,
    node: NodeId,
    attempt: &mut AttemptRow,
    report: &AttemptReport,
    now: Timestamp,
) -> Result<(), StoreError> {
    // The portal made this report itself.
    if !attempt.ended || report.failure.as_ref().is_some_and(|f| f.code == "node.lost") {
        return Ok(());
    }
    let end = attempt.outcome.as_deref().and_then(|text| serde_json::from_str::<RankEnd>(text).ok());
    let Some(end) = end.and_then(RankEnd::mark_late) else { return Ok(()) };
    attempt.outcome = serde_json::to_string(&end).ok();
    let name = store::leases::find_node(tx, node).await?.map_or_else(|| node.to_string(), |row| row.name);
    let phase = if report.phase.has_ended() { "has ended" } else { "still runs" };
    let event = AuditEvent {
        id: context.new_id::<AuditEventId>(now),
        at: now,
        actor: "The portal".to_owned(),
        action: "attempt.late".to_owned(),
        subject: attempt.job_id.to_string(),
        detail: format!(
            "The node {name} says that attempt {} {phase}, which had counted as lost. That changes nothing.",
            attempt.number
        ),
    };
    store::quotas::insert_audit(tx, Some(attempt.org_id), &event).await
}
