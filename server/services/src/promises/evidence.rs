//! The evidence of a window, from the counts of gateways, the wakes and the ledger.

use berth_autoscaling::promise::{Cases, Promise, WindowEvidence};
use berth_autoscaling::rollout::BOUNDS_MS;
use berth_service_types::promises::{PromiseCases, PromiseEvidence};
use berth_store::ledger::org_account;
use berth_store::services::promise_evidence as rows;
use berth_store::services::promises::StoredChoice;
use berth_store::{StoreError, Tx};
use berth_types::time::Timestamp;

/// The evidence of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    pub evidence: WindowEvidence,
    /// Credits for lost time beyond all charges, in micro-units. They reduce the charges of the next window.
    pub carry_micros: i64,
}

fn cases((all, bad): (i64, i64)) -> Cases {
    let count = |number: i64| u64::try_from(number).unwrap_or(0);
    Cases { all: count(all), bad: count(bad) }
}

/// The requests with the faults of the platform: those without a replica are in no count of a replica.
const fn requests(at_replicas: i64, (refused, lost): (i64, i64)) -> (i64, i64) {
    (at_replicas.saturating_add(refused), lost.saturating_add(refused))
}

/// The charges for tokens in micro-units: at most the part of the posted charges of the organization that this service has.
/// The counts come from gateways, and the posted charges are money.
fn token_micros((own_nanos, all_nanos): (i64, i64), posted_micros: i64) -> i64 {
    let (own, all) = (i128::from(own_nanos.max(0)), i128::from(all_nanos.max(own_nanos).max(1)));
    let part = own * i128::from(posted_micros.max(0)) / all;
    i64::try_from(part.min(own / 1_000)).unwrap_or(i64::MAX)
}

/// The charges that count, and what they leave of credits for lost time.
fn charged((jobs, tokens): (i64, i64), carry_micros: i64) -> (u64, i64) {
    let rest = jobs.saturating_add(tokens).saturating_sub(carry_micros);
    (u64::try_from(rest).unwrap_or(0), rest.min(0).saturating_neg())
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

/// Reads the evidence of a choice between two times. A wake without an end counts as late after its promised time.
pub async fn read(
    tx: &mut Tx<'_>,
    choice: &StoredChoice,
    promise: &Promise,
    within: (Timestamp, Timestamp),
    now: Timestamp,
) -> Result<Found, StoreError> {
    let (org, service) = (choice.org_id, choice.service_id);
    let mut evidence = WindowEvidence::default();
    if promise.availability.is_some() {
        let at_replicas = rows::count_requests(tx, service, within).await?;
        evidence.requests = cases(requests(at_replicas, rows::count_faults(tx, service, within).await?));
    }
    if promise.first_token.is_some() {
        let within_ms = promise.first_token_ms;
        let sum = move |sum: Cases, counts: &[u64]| add(sum, counts, within_ms);
        evidence.first_tokens = rows::fold_first_bytes(tx, service, within, Cases::default(), sum).await?;
    }
    if promise.wake.is_some() {
        let wake_ms = i64::from(promise.wake_ms);
        let counts = rows::count_wakes(tx, service, within, wake_ms, now.plus_millis(-wake_ms)).await?;
        evidence.wakes = cases(counts);
    }
    let nanos = rows::sum_token_nanos(tx, (org, service), within).await?;
    let posted = rows::sum_block_micros(tx, &org_account(org), within).await?;
    // Replicas from before the choice do not pay its price.
    let surcharge = i64::from(choice.terms.0.surcharge_basis_points);
    let jobs = rows::sum_job_micros(tx, (service, surcharge), within).await?;
    let (micros, carry_micros) = charged((jobs, token_micros(nanos, posted)), choice.carry_micros);
    evidence.charged_micros = micros;
    Ok(Found { evidence, carry_micros })
}

/// The wire form of evidence.
pub fn wire(evidence: &WindowEvidence) -> PromiseEvidence {
    let cases = |cases: Cases| PromiseCases { all: cases.all, bad: cases.bad };
    PromiseEvidence {
        requests: cases(evidence.requests),
        first_tokens: cases(evidence.first_tokens),
        wakes: cases(evidence.wakes),
        charged_micros: Some(i64::try_from(evidence.charged_micros).unwrap_or(i64::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_for_tokens_are_bounded_by_posted_money() {
        for (own, all, posted, expected) in [
            (0, 0, 5, 0),
            (5_000, 5_000, 5, 5),
            (5_000, 5_000, 9, 5),
            (5_000, 5_000, 0, 0),
            // Another service has three quarters of the tokens, so of the money.
            (5_000, 20_000, 8, 2),
            (i64::MAX, i64::MAX, i64::MAX, i64::MAX / 1_000),
            (i64::MAX, 0, 7, 7),
        ] {
            assert_eq!(token_micros((own, all), posted), expected, "{own} {all} {posted}");
        }
    }

    #[test]
    fn credits_for_lost_time_reduce_the_charges_of_later_windows() {
        let mut carry = 0;
        let mut counted = Vec::new();
        for (jobs, tokens) in [(10, 2), (-9, 4), (3, 0), (7, 0)] {
            let (micros, rest) = charged((jobs, tokens), carry);
            counted.push((micros, rest));
            carry = rest;
        }
        assert_eq!(counted, [(12, 0), (0, 5), (0, 2), (5, 0)]);
    }

    #[test]
    fn requests_without_a_replica_are_cases_of_their_own() {
        assert_eq!(requests(90, (10, 3)), (100, 13));
        assert_eq!(requests(0, (20, 0)), (20, 20));
    }

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
