//! The stored evidence of each rank of an attempt, and the credit for charged time without evidence.
//!
//! The charge itself stays as metered; the credit is a posting of its own.

use berth_core::evidence::{Uncovered, credit_micros, merge, uncovered, union_ms};
use berth_core::rating::charge_micros;
use berth_types::evidence::Evidence;
use berth_types::ids::TransferId;
use berth_types::ledger::TransferKind;
use berth_types::time::{Timestamp, duration_text};

use crate::reports::AttemptReport;
use berth_foundation::Context;
use berth_store::attempts::StoredAttempt;
use berth_store::jobs::StoredJob;
use berth_store::ledger::{EVIDENCE, Posting};
use berth_store::types::{JsonColumn, StoredEvidence};
use berth_store::{self as store, StoreError, Tx};

/// The losses of devices of a rank, from and until, by the portal's clock, which all ranks share.
fn losses(stored: &StoredEvidence) -> impl Iterator<Item = (i64, i64)> {
    let at =
        |began: i64, (from, until): &(i64, i64)| (began.saturating_add(*from), began.saturating_add(*until));
    stored.began_ms.into_iter().flat_map(move |began| stored.lost.iter().map(move |ages| at(began, ages)))
}

/// Brings the evidence of a rank up to a report. The evidence of the end is final.
pub(super) fn update_evidence(
    row: &mut StoredAttempt,
    report: &AttemptReport,
    ends_now: bool,
    at: Timestamp,
) {
    if row.ended {
        return;
    }
    let Some(reported) = &report.evidence else {
        if ends_now && report.metered_ms > 0 {
            // Evidence from before the end says nothing about a metered end. An end without observation, as
            // after a power cut, has a meter of 0: then the earlier evidence is all there is and covers the
            // charge.
            row.evidence = None;
        }
        return;
    };
    let evidence = Evidence {
        rank: u32::try_from(row.rank).unwrap_or(0),
        process_ms: reported.process_ms,
        device_ms: reported.device_ms,
        lost_ms: reported.lost_ms,
        busy_ms: reported.busy_ms,
        memory_clearing: reported.memory_clearing,
    };
    let mut lost: Vec<(i64, i64)> =
        reported.losses.iter().map(|loss| (loss.from_ms, loss.until_ms)).collect();
    let mut began_ms = (evidence.process_ms > 0).then(|| at.millis().saturating_sub(evidence.process_ms));
    let stored = row.evidence.as_deref();
    if let Some(stored) = stored {
        began_ms = began_ms.into_iter().chain(stored.began_ms).min();
        // Each report lists all losses so far, so the report with less lost time is the older one.
        if union_ms(stored.lost.clone()) > union_ms(lost.clone()) {
            lost.clone_from(&stored.lost);
        }
    }
    let evidence = merge(stored.map(|stored| stored.evidence), evidence);
    let merged = StoredEvidence { evidence, began_ms, lost };
    row.evidence = Some(JsonColumn(merged));
}

/// The evidence of those ranks that have some.
pub(super) fn rank_evidence(ranks: &[StoredAttempt]) -> Vec<Evidence> {
    ranks.iter().filter_map(|row| row.evidence.as_ref().map(|stored| stored.evidence)).collect()
}

/// Credits the part of an ended attempt's charge that has no evidence. The transaction of the end calls it
/// once. `before_ms` is the metered time of the earlier attempts.
pub(super) async fn credit_uncovered(
    tx: &mut Tx<'_>,
    context: &Context,
    job: &StoredJob,
    before_ms: i64,
    ranks: &[StoredAttempt],
    now: Timestamp,
) -> Result<(), StoreError> {
    // A job in a reservation pays nothing: the reservation gets the credit for failed boards.
    let (Some(first), None) = (ranks.first(), job.reservation_id) else { return Ok(()) };
    let stored: Vec<Option<&StoredEvidence>> = ranks.iter().map(|row| row.evidence.as_deref()).collect();
    let evidence: Vec<Option<Evidence>> =
        stored.iter().map(|stored| stored.map(|stored| stored.evidence)).collect();
    let lost_union_ms = union_ms(stored.iter().copied().flatten().flat_map(losses).collect());
    let missing = uncovered(job.metered_ms.saturating_sub(before_ms), &evidence, lost_union_ms);
    let earlier = charge_micros(job.nano_per_second, before_ms).unwrap_or(job.cost_micros);
    let charged = job.cost_micros.saturating_sub(earlier);
    let amount_micros = credit_micros(job.nano_per_second, missing.total_ms(), charged);
    if amount_micros <= 0 {
        return Ok(());
    }
    let by_loss = |(_, evidence): &(&StoredAttempt, &Option<Evidence>)| evidence.map_or(0, |e| e.lost_ms);
    let node = ranks.iter().zip(&evidence).max_by_key(by_loss).map(|(row, _)| row.node_id);
    let several = evidence.iter().flatten().filter(|e| e.lost_ms > 0).count() > 1;
    let slots = store::attempts::list_allocations(tx, job.id, first.number).await?;
    let suspects = slots.into_iter().filter(|slot| several || Some(slot.node_id) == node);
    let boards: Vec<String> = suspects.map(|slot| slot.gpu_uuid).collect();
    let posting = Posting {
        id: context.new_id::<TransferId>(now),
        org: job.org_id,
        kind: TransferKind::Credit,
        amount_micros,
        pending: None,
        source: EVIDENCE,
        source_id: job.id.to_string(),
        seq: first.number,
        memo: memo(missing, &boards, first.number),
        at: now,
    };
    tracing::warn!(
        job = %job.id,
        attempt = first.number,
        amount_micros,
        memo = posting.memo,
        "a charge has no evidence"
    );
    store::ledger::post(tx, &posting).await
}

/// The reason of the credit, for the statement. `boards` are those of the rank with a loss, or of all ranks
/// after losses of several.
fn memo(missing: Uncovered, boards: &[String], attempt: i64) -> String {
    let device = match boards {
        [one] => one.clone(),
        many => format!("one of {} devices", many.len()),
    };
    let why = match (missing.lost_ms > 0, missing.beyond_ms > 0) {
        (true, false) => format!("without an answer of {device}"),
        (true, true) => format!("without an answer of {device} or after the end of the process"),
        (false, _) => "after the end of the process".to_owned(),
    };
    format!("Credit for {} {why} (attempt {attempt})", duration_text(missing.total_ms()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memo_gives_the_reason_of_the_credit() {
        let (one, two) = (["GPU-1".to_owned()], ["GPU-1".to_owned(), "GPU-2".to_owned()]);
        let missing = |lost_ms: i64, beyond_ms: i64| Uncovered { lost_ms, beyond_ms };
        assert_eq!(
            memo(missing(42_000, 0), &one, 1),
            "Credit for 42 s without an answer of GPU-1 (attempt 1)"
        );
        assert_eq!(
            memo(missing(42_000, 8_000), &two, 3),
            "Credit for 50 s without an answer of one of 2 devices or after the end of the process (attempt 3)"
        );
        assert_eq!(
            memo(missing(0, 2_000), &one, 1),
            "Credit for 2 s after the end of the process (attempt 1)"
        );
    }
}
