//! The money of a block: its hold in the ledger, the release of its returned part, and its charge at the end.

use berth_autoscaling::credit::{BlockId, Lent};
use berth_foundation::Context;
use berth_foundation::days::{day_of, hour_of};
use berth_store::ledger::{CREDIT_BLOCK, Posting};
use berth_store::services::credit::{self, PayingKey, StoredBlock};
use berth_store::usage::{Charge, UsageMode};
use berth_store::{self as store, StoreError, Tx};
use berth_types::ids::TransferId;
use berth_types::ledger::TransferKind;
use berth_types::time::Timestamp;

/// Nano-units of a micro-unit.
pub(super) const NANOS: u64 = 1_000;
/// The place of the charges in the usage by offering.
const OFFERING: &str = "tokens";

/// An amount of the lender as a column, and back.
pub(super) fn to_column(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

pub(super) fn from_column(amount: i64) -> u64 {
    u64::try_from(amount).unwrap_or(0)
}

/// The micro-units that hold an amount of nano-units.
fn hold_micros(nanos: i64) -> i64 {
    to_column(from_column(nanos).div_ceil(NANOS))
}

/// The id of a stored block.
pub(super) fn block_id(row: &StoredBlock) -> BlockId {
    BlockId {
        gateway: berth_autoscaling::GatewayId(from_column(row.gateway_number)),
        life: from_column(row.life),
        number: from_column(row.number),
    }
}

/// A posting of a block; variants of it change single fields.
fn posting(
    context: &Context,
    row: &StoredBlock,
    (kind, amount_micros, seq): (TransferKind, i64, i64),
    at: Timestamp,
) -> Posting {
    Posting {
        id: context.new_id::<TransferId>(at),
        org: row.org_id,
        kind,
        amount_micros,
        pending: Some(row.hold_id),
        source: CREDIT_BLOCK,
        source_id: row.hold_id.to_string(),
        seq,
        // Names of keys can be equal, and a revoked key is in no list.
        memo: format!("Tokens of services, key {} …{}", row.key_name, row.key_hint),
        at,
    }
}

/// Stores a lent block with its hold.
///
/// # Errors
/// [`StoreError::Refused`] if the available money is less.
pub(super) async fn lend(
    tx: &mut Tx<'_>,
    context: &Context,
    (id, lent): (BlockId, &Lent),
    key: &PayingKey,
    now: Timestamp,
) -> Result<StoredBlock, StoreError> {
    let size_nanos = to_column(lent.size);
    let row = StoredBlock {
        gateway_number: to_column(id.gateway.0),
        life: to_column(id.life),
        number: to_column(id.number),
        org_id: key.org_id,
        key_number: key.number,
        key_name: key.name.clone(),
        key_hint: key.hint.clone(),
        size_nanos,
        spent_nanos: 0,
        lent_at: lent.at,
        until_at: lent.until,
        ending: false,
        void: false,
        closed: false,
        hold_id: context.new_id(now),
        held_micros: hold_micros(size_nanos),
        posted_micros: 0,
    };
    let hold = posting(context, &row, (TransferKind::Hold, row.held_micros, 1), now);
    store::ledger::post(tx, &Posting { id: row.hold_id, pending: None, ..hold }).await?;
    credit::insert(tx, &row).await?;
    Ok(row)
}

/// Stores the new state of a block. Its returned part is released at once; at its end its spent part is charged and
/// the rest is released. Returns true if it was charged.
pub(super) async fn settle(
    tx: &mut Tx<'_>,
    context: &Context,
    row: &mut StoredBlock,
    lent: &Lent,
    now: Timestamp,
) -> Result<bool, StoreError> {
    (row.size_nanos, row.spent_nanos) = (to_column(lent.size), to_column(lent.spent));
    (row.ending, row.void) = (lent.ending, lent.void);
    row.closed = row.void || (row.ending && row.size_nanos == row.spent_nanos);
    let left = if row.closed { 0 } else { hold_micros(row.size_nanos) };
    if row.closed {
        // The one rounding: less than a micro-unit of a block is not charged.
        row.posted_micros = to_column(lent.spent / NANOS);
        credit::add_day(tx, row.key_number, day_of(row.lent_at), row.spent_nanos).await?;
        if row.spent_nanos > 0 {
            let of = (row.gateway_number, row.org_id);
            credit::add_gateway_hour(tx, of, hour_of(now), row.spent_nanos).await?;
        }
    }
    if row.posted_micros > 0 {
        charge(tx, context, row, now).await?;
    }
    let release = row.held_micros - row.posted_micros - left;
    if release > 0 {
        // Sizes only fall, so the size and the end are a unique number for it.
        let seq = row.size_nanos.saturating_mul(2).saturating_add(i64::from(row.closed));
        let posting = posting(context, row, (TransferKind::Release, release, seq), now);
        store::ledger::post(tx, &posting).await?;
    }
    row.held_micros = left;
    credit::update(tx, row).await?;
    Ok(row.posted_micros > 0)
}

/// Posts the charge of a block at its end, with its day of usage.
async fn charge(
    tx: &mut Tx<'_>,
    context: &Context,
    row: &StoredBlock,
    now: Timestamp,
) -> Result<(), StoreError> {
    let usage = posting(context, row, (TransferKind::Usage, row.posted_micros, 1), now);
    store::ledger::post(tx, &usage).await?;
    let charged = Charge {
        org: row.org_id,
        day: day_of(now),
        offering: OFFERING,
        mode: UsageMode::OnDemand,
        member: &format!("key {}", row.key_name),
        price_version: 0,
        surcharge_basis_points: 0,
        labels: Vec::new(),
        device_milli_ms: 0,
        cost_micros: row.posted_micros,
    };
    store::usage::add_charge(tx, &charged).await
}
