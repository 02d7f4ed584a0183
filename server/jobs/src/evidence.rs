//! Keeps what workers saw of processes and devices beside each rank of an attempt, and gives back what of
//! its charge that does not bear out.
//!
//! The charge itself stays as it was metered; what comes back is a posting of its own.

use crate::evidence_rules::{Uncovered, credit_micros, newest, together_ms, uncovered};
use berth_core::rating::charge_micros;
use berth_proto as proto;
use berth_types::evidence::Evidence;
use berth_types::ids::TransferId;
use berth_types::ledger::TransferKind;
use berth_types::time::{Timestamp, duration_text};
use serde::{Deserialize, Serialize};

use berth_foundation::Context;
use berth_store::attempts::AttemptRow;
use berth_store::jobs::JobRow;
use berth_store::ledger::{EVIDENCE, Posting};
use berth_store::{self as store, StoreError, Tx};

/// Of one rank it is kept when a device was lost for so many times.
const MOST_LOSSES: usize = 64;

/// What is kept of one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    #[serde(flatten)]
    seen: Evidence,
    /// When its process began, by the portal's clock, in milliseconds since 1970. A report says so later
    /// than it is, by the time that it was on its way, so the earliest of them stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    began_ms: Option<i64>,
    /// When one of its devices was lost, by the age of its process in milliseconds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    lost: Vec<(i64, i64)>,
}

impl Kept {
    /// When one of its devices was lost, by the portal's clock, which is the same for all ranks.
    fn lost_at(&self) -> impl Iterator<Item = (i64, i64)> {
        let at = |began: i64, (from, until): &(i64, i64)| {
            (began.saturating_add(*from), began.saturating_add(*until))
        };
        self.began_ms.into_iter().flat_map(move |began| self.lost.iter().map(move |ages| at(began, ages)))
    }
}

fn read(row: &AttemptRow) -> Result<Option<Kept>, StoreError> {
    let parse = |text: &String| {
        serde_json::from_str(text).map_err(|_| StoreError::Corrupt(format!("evidence of {}", row.job_id)))
    };
    row.evidence.as_ref().map(parse).transpose()
}

/// Takes in what a report says. What came with the end stands.
pub(super) fn keep(
    row: &mut AttemptRow,
    status: &proto::Status,
    ends_now: bool,
    at: Timestamp,
) -> Result<(), StoreError> {
    if row.ended {
        return Ok(());
    }
    let Some(told) = &status.evidence else {
        if ends_now && status.metered_ms > 0 {
            // What was seen on the way says nothing about an end that was metered. Of one that nobody saw,
            // as after a power cut, the meter is 0: then it is all there is, and bears out what was charged.
            row.evidence = None;
        }
        return Ok(());
    };
    let now = Evidence {
        rank: u32::try_from(row.rank).unwrap_or(0),
        process_ms: told.process_ms.max(0),
        device_ms: told.device_ms.max(0),
        lost_ms: told.lost_ms.max(0),
        busy_ms: told.busy_ms.map(|ms| ms.max(0)),
    };
    let ages = told.lost.iter().take(MOST_LOSSES).map(|lost| (lost.from_ms.max(0), lost.until_ms));
    let mut lost: Vec<(i64, i64)> = ages.filter(|(from, until)| from < until).collect();
    let mut began_ms = (now.process_ms > 0).then(|| at.millis().saturating_sub(now.process_ms));
    let before = read(row)?;
    if let Some(before) = &before {
        began_ms = began_ms.into_iter().chain(before.began_ms).min();
        // All of them are told each time, so the less is the older.
        if together_ms(before.lost.clone()) > together_ms(lost.clone()) {
            lost.clone_from(&before.lost);
        }
    }
    let all = Kept { seen: newest(before.map(|kept| kept.seen), now), began_ms, lost };
    row.evidence = Some(serde_json::to_string(&all).map_err(|e| StoreError::Corrupt(e.to_string()))?);
    Ok(())
}

/// What is known of the ranks of an attempt.
pub(super) async fn of_attempt(tx: &mut Tx<'_>, job: &str, number: i64) -> Result<Vec<Evidence>, StoreError> {
    let ranks = store::attempts::list_ranks(tx, job, number).await?;
    ranks.iter().filter_map(|row| read(row).map(|kept| kept.map(|kept| kept.seen)).transpose()).collect()
}

/// Gives back what the ranks of an attempt that has ended do not bear out of its charge. To be called
/// once, in the transaction that ends it; `before_ms` is what earlier attempts had used.
pub(super) async fn credit(
    tx: &mut Tx<'_>,
    context: &Context,
    job: &JobRow,
    before_ms: i64,
    ranks: &[AttemptRow],
    now: Timestamp,
) -> Result<(), StoreError> {
    // Inside a reservation a job pays nothing: what fails there is credited to the reservation.
    let (Some(first), None) = (ranks.first(), &job.reservation_id) else { return Ok(()) };
    let kept = ranks.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let told: Vec<Option<Evidence>> = kept.iter().map(|kept| kept.as_ref().map(|kept| kept.seen)).collect();
    let lost_together_ms = together_ms(kept.iter().flatten().flat_map(Kept::lost_at).collect());
    let missing = uncovered(job.metered_ms.saturating_sub(before_ms), &told, lost_together_ms);
    let earlier = charge_micros(job.nano_per_second, before_ms).unwrap_or(job.cost_micros);
    let charged = job.cost_micros.saturating_sub(earlier);
    let amount_micros = credit_micros(job.nano_per_second, missing.total_ms(), charged);
    if amount_micros <= 0 {
        return Ok(());
    }
    let by_loss = |(_, told): &(&AttemptRow, &Option<Evidence>)| told.map_or(0, |e| e.lost_ms);
    let node = ranks.iter().zip(&told).max_by_key(by_loss).map_or("", |(row, _)| row.node_id.as_str());
    let several = told.iter().flatten().filter(|e| e.lost_ms > 0).count() > 1;
    let slots = store::attempts::list_allocations(tx, &job.id, first.number).await?;
    let suspects = slots.into_iter().filter(|slot| several || slot.node_id == node);
    let boards: Vec<String> = suspects.map(|slot| slot.gpu_uuid).collect();
    let posting = Posting {
        id: context.new_id::<TransferId>(now),
        org: job.org_id.parse().map_err(|_| StoreError::Corrupt(job.id.clone()))?,
        kind: TransferKind::Credit,
        amount_micros,
        pending: None,
        source: EVIDENCE,
        source_id: job.id.clone(),
        seq: first.number,
        memo: memo(missing, &boards, first.number),
        at: now,
    };
    tracing::warn!(
        job = job.id,
        attempt = first.number,
        amount_micros,
        memo = posting.memo,
        "a charge is not borne out"
    );
    store::ledger::post(tx, &posting).await
}

/// Why, for the statement. `boards` are those of the rank that lost some, or of all where several did.
fn memo(missing: Uncovered, boards: &[String], attempt: i64) -> String {
    let device = match boards {
        [one] => one.clone(),
        many => format!("one of its {} devices", many.len()),
    };
    let why = match (missing.lost_ms > 0, missing.beyond_ms > 0) {
        (true, false) => format!("in which {device} did not answer"),
        (true, true) => format!("in which {device} did not answer or its process had ended"),
        (false, _) => "that were metered after its process had ended".to_owned(),
    };
    format!("Credit for {} {why} (attempt {attempt})", duration_text(missing.total_ms()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memo_says_what_was_not_borne_out() {
        let (one, two) = (["GPU-1".to_owned()], ["GPU-1".to_owned(), "GPU-2".to_owned()]);
        let missing = |lost_ms: i64, beyond_ms: i64| Uncovered { lost_ms, beyond_ms };
        assert_eq!(
            memo(missing(42_000, 0), &one, 1),
            "Credit for 42 s in which GPU-1 did not answer (attempt 1)"
        );
        assert_eq!(
            memo(missing(42_000, 8_000), &two, 3),
            "Credit for 50 s in which one of its 2 devices did not answer or its process had ended (attempt 3)"
        );
        assert_eq!(
            memo(missing(0, 2_000), &one, 1),
            "Credit for 2 s that were metered after its process had ended (attempt 1)"
        );
    }
}
