//! The leases of attempts, and late reports about lost attempts.

use berth_core::lease::LeaseLimits;
use berth_foundation::Context;
use berth_store::attempts::StoredAttempt;
use berth_store::jobs::StoredJob;
use berth_store::types::JsonColumn;
use berth_store::{self as store, StoreError};
use berth_types::ids::{AuditEventId, NodeId};
use berth_types::quotas::{AuditContext, AuditEvent};
use berth_types::time::Timestamp;

use crate::reports::AttemptReport;

/// The length of the lease of a job's attempts in milliseconds: the choice of its submission, or
/// `default_ms`.
pub(crate) fn lease_ms(job: &StoredJob, default_ms: i64) -> i64 {
    job.spec.lease_s.map_or(default_ms, |s| i64::from(s) * 1_000)
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
    attempt: &mut StoredAttempt,
    report: &AttemptReport,
    now: Timestamp,
) -> Result<(), StoreError> {
    // The portal made this report itself.
    if !attempt.ended || report.failure.as_ref().is_some_and(|f| f.code == "node.lost") {
        return Ok(());
    }
    let Some(JsonColumn(end)) = attempt.outcome.as_mut().filter(|end| end.is_lost() && !end.late) else {
        return Ok(());
    };
    end.late = true;
    let name = store::leases::find_node(tx, node).await?.map_or_else(|| node.to_string(), |row| row.name);
    let phase = if report.phase.has_ended() { "has ended" } else { "still runs" };
    let event = AuditEvent {
        id: context.new_id::<AuditEventId>(now),
        at: now,
        actor: "The portal".to_owned(),
        action: "attempt.late".to_owned(),
        subject: attempt.job_id.to_string(),
        detail: format!(
            "The node {name} reports that attempt {} {phase}. The attempt already counted as lost. The report changes nothing.",
            attempt.number
        ),
        context: AuditContext::default(),
    };
    store::quotas::insert_audit(tx, Some(attempt.org_id), &event).await
}
