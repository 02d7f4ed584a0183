//! The charges of jobs: postings for metered use, with the sums by day in the same transaction.

use berth_types::ids::{JobId, OrgId, TransferId};
use berth_types::ledger::TransferKind;
use berth_types::time::Timestamp;

use berth_foundation::Context;
use berth_foundation::days::day_of;
use berth_store::jobs::StoredJob;
use berth_store::ledger::Posting;
use berth_store::usage::{Charge, UsageMode};
use berth_store::{self as store, StoreError, Tx};

/// The transfer that holds the worst case of a job. It is read from the job's row: a read of the ledger, to
/// which every charge adds, would make charges of different jobs conflict on neighbouring entries of an
/// index.
pub(crate) async fn find_hold(tx: &mut Tx<'_>, row: &StoredJob) -> Result<Option<TransferId>, StoreError> {
    match row.hold_id {
        Some(id) => Ok(Some(id)),
        // A job that cost nothing at its submission has no hold in its row, but an extension may have made
        // one.
        None => store::ledger::find_hold(tx, "job", &row.id.to_string()).await,
    }
}

/// Charges the metered use since the last charge.
pub(crate) async fn charge(
    tx: &mut Tx<'_>,
    context: &Context,
    row: &mut StoredJob,
    now: Timestamp,
) -> Result<(), StoreError> {
    let due = row.cost_micros - row.posted_micros;
    if due > 0 {
        let pending = find_hold(tx, row).await?;
        let posting = Posting {
            kind: TransferKind::Usage,
            pending,
            seq: row.metered_ms,
            ..hold_posting(context.new_id(now), row.org_id, row.id, due, row.name.clone(), now)
        };
        store::ledger::post(tx, &posting).await?;
        row.posted_micros = row.cost_micros;
        row.held_micros -= due;
    }
    let ms = row.metered_ms - row.posted_ms;
    if (ms <= 0 && due <= 0) || row.reservation_id.is_some() {
        return Ok(());
    }
    let charged = Charge {
        org: row.org_id,
        day: day_of(now),
        offering: &row.offering_id.to_string(),
        mode: if row.preemptible { UsageMode::Preemptible } else { UsageMode::OnDemand },
        member: &row.created_by,
        price_version: row.price_version,
        surcharge_basis_points: row.surcharge_basis_points,
        labels: row.labels.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
        device_milli_ms: ms.saturating_mul(row.device_milli),
        cost_micros: due.max(0),
    };
    store::usage::add_charge(tx, &charged).await?;
    row.posted_ms = row.metered_ms;
    Ok(())
}

/// A hold for a job. Its other postings are made from this one with another kind.
pub(crate) fn hold_posting(
    id: TransferId,
    org: OrgId,
    job: JobId,
    amount_micros: i64,
    memo: String,
    at: Timestamp,
) -> Posting {
    let kind = TransferKind::Hold;
    Posting {
        id,
        org,
        kind,
        amount_micros,
        pending: None,
        source: "job",
        source_id: job.to_string(),
        seq: 1,
        memo,
        at,
    }
}
