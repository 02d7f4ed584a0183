//! The evidence of a window, from the counts of gateways, the wakes and the ledger.

use berth_autoscaling::promise::{Cases, Promise, WindowEvidence};
use berth_autoscaling::rollout::BOUNDS_MS;
use berth_service_types::promises::{PromiseCases, PromiseEvidence};
use berth_store::services::promise_evidence as rows;
use berth_store::{StoreError, Tx};
use berth_types::ids::ServiceId;
use berth_types::time::Timestamp;

fn cases((all, bad): (i64, i64)) -> Cases {
    let count = |number: i64| u64::try_from(number).unwrap_or(0);
    Cases { all: count(all), bad: count(bad) }
}

/// Adds the counts of a row to the cases: those above the bound are bad.
fn add(sum: Cases, counts: &[u64], within_ms: u32) -> Cases {
    let good = BOUNDS_MS.partition_point(|bound| *bound <= within_ms);
    let total = |counts: &[u64]| counts.iter().fold(0_u64, |sum, count| sum.saturating_add(*count));
    Cases {
        all: sum.all.saturating_add(total(counts)),
        bad: sum.bad.saturating_add(total(counts.get(good..).unwrap_or_default())),
    }
}

/// Reads the evidence of a service between two times. A wake without an end counts as late after its promised time.
pub async fn read(
    tx: &mut Tx<'_>,
    service: ServiceId,
    promise: &Promise,
    within: (Timestamp, Timestamp),
    now: Timestamp,
) -> Result<WindowEvidence, StoreError> {
    let mut evidence = WindowEvidence::default();
    if promise.availability.is_some() {
        evidence.requests = cases(rows::count_requests(tx, service, within).await?);
    }
    if promise.first_token.is_some() {
        let counts = rows::list_first_bytes(tx, service, within).await?;
        let sum = |sum: Cases, counts: &Vec<u64>| add(sum, counts, promise.first_token_ms);
        evidence.first_tokens = counts.iter().fold(Cases::default(), sum);
    }
    if promise.wake.is_some() {
        let wake_ms = i64::from(promise.wake_ms);
        let counts = rows::count_wakes(tx, service, within, wake_ms, now.plus_millis(-wake_ms)).await?;
        evidence.wakes = cases(counts);
    }
    let tokens = rows::sum_token_nanos(tx, service, within).await? / 1_000;
    // Credits for the time before the window can exceed the charges of the window.
    let charged = rows::sum_job_micros(tx, service, within).await?.max(0).saturating_add(tokens);
    evidence.charged_micros = u64::try_from(charged).unwrap_or(0);
    Ok(evidence)
}

/// The wire form of evidence.
pub fn wire(evidence: &WindowEvidence) -> PromiseEvidence {
    let cases = |cases: Cases| PromiseCases { all: cases.all, bad: cases.bad };
    PromiseEvidence {
        requests: cases(evidence.requests),
        first_tokens: cases(evidence.first_tokens),
        wakes: cases(evidence.wakes),
        charged_micros: i64::try_from(evidence.charged_micros).unwrap_or(i64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_above_the_bound_are_bad() {
        let counts: Vec<u64> = (0..=BOUNDS_MS.len()).map(|bucket| 1_u64 << bucket).collect();
        let all: u64 = counts.iter().sum();
        for (bucket, bound) in BOUNDS_MS.iter().enumerate() {
            let good: u64 = counts.iter().take(bucket + 1).sum();
            let expected = Cases { all: all + 1, bad: all - good };
            assert_eq!(add(Cases { all: 1, bad: 0 }, &counts, *bound), expected, "{bound}");
        }
        assert_eq!(add(Cases::default(), &[], 1), Cases::default());
        assert_eq!(add(Cases::default(), &[u64::MAX, 1], 1), Cases { all: u64::MAX, bad: 1 });
    }
}
