//! The bound of a worker's meter: the portal's own clock. No worker can charge for time that has not passed.

use berth_types::ids::AuditEventId;
use berth_types::quotas::{AuditContext, AuditEvent};
use berth_types::time::{Timestamp, duration_text};

use crate::reports::AttemptReport;
use berth_foundation::Context;
use berth_store::attempts::StoredAttempt;
use berth_store::{self as store, StoreError, Tx};

/// The lead of a worker's clock that the portal accepts, in milliseconds.
const SLACK_MS: i64 = 10_000;

/// The longest metered time of a rank that was placed at this time.
fn longest_ms(placed_at: Timestamp, now: Timestamp) -> i64 {
    now.millis_since(placed_at).max(0).saturating_add(SLACK_MS)
}

/// The report with a metered time of at most the time since the placement of its rank. The excess at the end of a
/// rank goes to the audit log.
pub(crate) async fn bound(
    tx: &mut Tx<'_>,
    context: &Context,
    attempt: &StoredAttempt,
    report: &AttemptReport,
    now: Timestamp,
) -> Result<AttemptReport, StoreError> {
    let longest_ms = longest_ms(attempt.created_at, now);
    if report.metered_ms <= longest_ms {
        return Ok(report.clone());
    }
    let (job, metered_ms) = (report.job, report.metered_ms);
    if report.phase.has_ended() && !attempt.ended {
        // Each report of a wrong meter is ahead, so only the first one of the end is logged.
        tracing::warn!(node = %attempt.node_id, %job, metered_ms, longest_ms, "the meter of a worker is ahead");
        let event = AuditEvent {
            id: context.new_id::<AuditEventId>(now),
            at: now,
            actor: "The portal".to_owned(),
            action: "attempt.meter_refused".to_owned(),
            subject: job.to_string(),
            detail: format!(
                "The node {} reported {} of use for attempt {}. At most {} are possible since its placement. The rest is not charged.",
                attempt.node_id,
                duration_text(metered_ms),
                attempt.number,
                duration_text(longest_ms)
            ),
            context: AuditContext::default(),
        };
        store::quotas::insert_audit(tx, Some(attempt.org_id), &event).await?;
    }
    Ok(AttemptReport { metered_ms: longest_ms, ..report.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meter_is_bounded_by_the_time_since_the_placement() {
        let at = |s: i64| Timestamp::from_micros(s * 1_000_000);
        for (placed, now, expected_ms) in
            [(0, 0, 10_000), (0, 3, 13_000), (100, 3_700, 3_610_000), (5, 0, 10_000)]
        {
            assert_eq!(longest_ms(at(placed), at(now)), expected_ms, "{placed} {now}");
        }
    }
}
