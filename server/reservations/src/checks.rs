//! The checks of limits, credit and budgets of a reservation. They come before a booking in the engine and again
//! with the record, because credit and limits may change meanwhile.

use std::collections::BTreeMap;

use berth_billing::budgets;
use berth_core::rating::worst_case_micros;
use berth_foundation::Context;
use berth_store::offerings::StoredOffering;
use berth_store::reservations::StoredReservation;
use berth_store::{self as store, StoreError, Tx, WriteError};
use berth_types::ids::OrgId;
use berth_types::money::money_text;
use berth_types::problems::Problem;
use berth_types::reservations::{Quote, Window};
use berth_types::time::Timestamp;

use crate::{board_milli, check_limit};

pub(crate) fn quote_used() -> Problem {
    Problem::conflict("quote.used", "Quote used", "The quote already has a reservation. Nothing was changed.")
}

/// Checks that a quote is unused, and that the organization may have its windows and can pay for them. `costs`
/// has the begin and the micros of each window, `board_milli` counts thousandths of boards.
pub(crate) async fn check_confirmation(
    tx: &mut Tx<'_>,
    context: &Context,
    org: OrgId,
    quote: &Quote,
    (board_milli, costs): (i64, &[(Timestamp, i64)]),
    now: Timestamp,
) -> Result<(), WriteError> {
    if store::reservations::find_quote(tx, org, quote.id).await?.is_some_and(|(_, used)| used.is_some()) {
        return Err(quote_used().into());
    }
    if let Some(detail) = check_limit(tx, org, board_milli, &quote.windows).await? {
        let title = "Limit of the organization reached";
        return Err(Problem::new(403, "quota.exceeded", title, detail).into());
    }
    let total: i64 = costs.iter().map(|(_, micros)| *micros).fold(0, i64::saturating_add);
    let available = store::ledger::available(tx, org).await?;
    let currency = &context.settings.currency;
    if total > available {
        let detail = format!(
            "The reservation costs {}, which is {} more than the available credit. Nothing was reserved. Add credit, or reserve less.",
            money_text(total, currency),
            money_text(total - available, currency)
        );
        let title = "Not enough credit";
        return Err(Problem::new(402, "funds.insufficient", title, detail).into());
    }
    for (begins, total) in budgets::by_month(costs.iter().copied()) {
        budgets::check_cost(tx, org, &BTreeMap::new(), total, currency, (now, begins)).await?;
    }
    Ok(())
}

/// The worst-case micros of a window at a rate.
pub(crate) fn window_cost(window: &Window, nano_per_second: i64) -> i64 {
    let seconds = u64::try_from(window.ends_at.millis_since(window.starts_at) / 1_000).unwrap_or(0);
    worst_case_micros(nano_per_second, seconds).unwrap_or(i64::MAX)
}

/// [`check_confirmation`] before the booking, outside of a transaction.
pub(crate) async fn check_before_booking(
    context: &Context,
    org: OrgId,
    (quote, offering): (&Quote, &StoredOffering),
    windows: &[Window],
    now: Timestamp,
) -> Result<(), Problem> {
    let milli = board_milli(offering, quote.nodes, quote.gpus_per_node);
    let costs: Vec<(Timestamp, i64)> =
        windows.iter().map(|w| (w.starts_at, window_cost(w, quote.nano_per_second))).collect();
    let mut conn = context.db.read().await?;
    Ok(check_confirmation(&mut conn.tx(), context, org, quote, (milli, &costs), now).await?)
}

/// Checks that the organization may have a longer reservation and can pay for it. Returns the organization and
/// the additional micros.
pub(crate) async fn check_extension(
    tx: &mut Tx<'_>,
    context: &Context,
    row: &StoredReservation,
    ends_at: Timestamp,
    now: Timestamp,
) -> Result<(OrgId, i64), WriteError> {
    let seconds = u64::try_from(ends_at.millis_since(row.starts_at) / 1_000).unwrap_or(0);
    let Some(total) = worst_case_micros(row.nano_per_second, seconds) else {
        let detail = "The price exceeds every possible balance. Choose an earlier end.";
        return Err(Problem::invalid_field("/ends_at", detail).into());
    };
    let more = total - row.total_micros;
    let org = row.org_id.ok_or_else(|| StoreError::Corrupt(row.id.to_string()))?;
    let available = store::ledger::available(tx, org).await?;
    let currency = &context.settings.currency;
    if more > available {
        let detail = format!(
            "The longer time costs {} more, and {} is available. Nothing was changed. Add credit, or choose an earlier end.",
            money_text(more, currency),
            money_text(available, currency)
        );
        let title = "Not enough credit";
        return Err(Problem::new(402, "funds.insufficient", title, detail).into());
    }
    let longer = Window { starts_at: row.ends_at, ends_at };
    if let Some(detail) = check_limit(tx, org, row.board_milli, &[longer]).await? {
        let title = "Limit of the organization reached";
        return Err(Problem::new(403, "quota.exceeded", title, detail).into());
    }
    budgets::check_cost(tx, org, &BTreeMap::new(), more, currency, (now, row.starts_at)).await?;
    Ok((org, more))
}
