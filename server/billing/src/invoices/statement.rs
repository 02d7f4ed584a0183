//! The statement of a month: its charges, and the other money that moved the balance.

use berth_types::ids::OrgId;
use berth_types::invoices::{InvoiceLine, MonthStatement, StatementEntry};
use berth_types::ledger::TransferKind;
use berth_types::problems::Problem;

use super::{Invoices, begin_of, monthly, next_month};
use berth_foundation::days::{day_of, month_of};
use berth_foundation::{Caller, Right};
use berth_store as store;
use berth_store::invoices::StoredEntry;

/// An entry with the sign of its effect on the balance.
fn entry(row: StoredEntry) -> StatementEntry {
    let sign = if row.kind == TransferKind::Credit { 1 } else { -1 };
    StatementEntry {
        kind: row.kind,
        source: row.source,
        count: row.transfers,
        amount_micros: sign * row.amount_micros,
    }
}

/// The sum of charges less the sum of the returned amounts.
fn charged(lines: &[InvoiceLine]) -> i64 {
    lines.iter().map(|line| line.amount_micros).fold(0, i64::saturating_add)
}

impl Invoices {
    /// The statement of an organization for a month such as `2026-11`, or (`None`) for the present month. The
    /// statement of the present month is incomplete.
    ///
    /// # Errors
    /// The text is no month, or the month has not begun.
    pub async fn statement(
        &self,
        caller: &Caller,
        org: OrgId,
        month: Option<&str>,
    ) -> Result<MonthStatement, Problem> {
        self.context.authorise(caller, org, Right::ViewMoney).await?;
        let now = self.context.now();
        let month = month.map_or_else(|| month_of(now), str::to_owned);
        let span = begin_of(&month).and_then(|begin| Some((begin, next_month(begin)?)));
        let Some((begin, end)) = span.filter(|(begin, _)| *begin <= now) else {
            let detail = "`month` is a month in UTC that has begun, such as 2026-11.";
            return Err(Problem::malformed(detail));
        };
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let days = (day_of(begin), day_of(end) - 1);
        let mut charges = monthly::list_charges(&mut tx, &[org], days, (begin, end)).await?;
        let lines = charges.remove(&org).unwrap_or_default().lines;
        let entries = store::invoices::list_entries(&mut tx, org, (begin, end)).await?;
        let entries: Vec<StatementEntry> = entries.into_iter().map(entry).collect();
        let charged_micros = charged(&lines);
        let moved = entries.iter().map(|entry| entry.amount_micros).fold(0, i64::saturating_add);
        Ok(MonthStatement {
            month,
            complete: end.plus_seconds(monthly::SETTLE_S) <= now,
            currency: self.context.settings.currency.clone(),
            lines,
            charged_micros,
            entries,
            change_micros: moved.saturating_sub(charged_micros),
        })
    }
}
