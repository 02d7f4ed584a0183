//! The bills of a month, one document for each organization with charges.

use std::collections::HashMap;

use berth_core::rating::surcharged_rate;
use berth_types::ids::OrgId;
use berth_types::invoices::{BillingDetails, InvoiceDocument, InvoiceKind, InvoiceLine, InvoiceState};
use berth_types::ledger::TransferKind;
use berth_types::money::money_text;
use berth_types::time::Timestamp;
use futures::FutureExt;

use super::{Invoices, begin_of, buyer, closing, document, next_month, settings};
use berth_foundation::days::{day_of, month_of};
use berth_foundation::{Context, fault};
use berth_store::invoices::StoredInvoice;
use berth_store::ledger::Posting;
use berth_store::{self as store, StoreError, Tx};

/// The organizations with charges in one read.
const ORGS_AT_ONCE: usize = 100;
/// Seconds after the end of a month during which its charges can arrive.
pub(super) const SETTLE_S: i64 = 3_600;

/// The sources of credits that give charges back, each with its text on an invoice. Grants and payments are
/// on no invoice.
const GIVEN_BACK: [(&str, &str); 3] = [
    ("reservation", "Given back for devices that were out of order"),
    (store::ledger::EVIDENCE, "Given back for time that device evidence does not bear out"),
    (store::ledger::PROMISE, "Given back for missed promises of services"),
];

/// The charges of an organization for the document of a month.
#[derive(Default)]
pub(super) struct MonthCharges {
    pub(super) lines: Vec<InvoiceLine>,
    /// True if it has a credit limit.
    pays_later: bool,
}

/// The charges of these organizations on some days, and the charges that were given back within some times.
/// Organizations without any are absent.
pub(super) async fn list_charges(
    tx: &mut Tx<'_>,
    orgs: &[OrgId],
    days: (i64, i64),
    within: (Timestamp, Timestamp),
) -> Result<HashMap<OrgId, MonthCharges>, StoreError> {
    let mut out: HashMap<OrgId, MonthCharges> = HashMap::new();
    for row in store::invoices::list_lines(tx, orgs, days).await? {
        out.entry(row.org_id).or_default().lines.push(InvoiceLine {
            item: row.item,
            mode: row.mode,
            device_ms: row.device_milli_ms / 1_000,
            unit_nano_per_second: row
                .unit_nano_per_second
                .and_then(|unit| surcharged_rate(unit, row.surcharge_basis_points)),
            surcharge_basis_points: u32::try_from(row.surcharge_basis_points).unwrap_or(0),
            amount_micros: row.amount_micros,
        });
    }
    let given_back = store::invoices::list_given_back(tx, orgs, within).await?;
    for (source, item) in GIVEN_BACK {
        for (org, _, micros) in given_back.iter().filter(|(_, from, _)| from == source) {
            let line = InvoiceLine {
                item: item.to_owned(),
                mode: String::new(),
                device_ms: 0,
                unit_nano_per_second: None,
                surcharge_basis_points: 0,
                amount_micros: -micros,
            };
            out.entry(*org).or_default().lines.push(line);
        }
    }
    for org in store::ledger::list_with_credit_limit(tx, orgs).await? {
        out.entry(org).or_default().pays_later = true;
    }
    Ok(out)
}

/// Takes the taxes of a document from the balance, or returns them: the ledger has the net only, which moved with each
/// charge.
async fn post_taxes(
    tx: &mut Tx<'_>,
    context: &Context,
    (row, title): (&StoredInvoice, &str),
    taxes_micros: i64,
    now: Timestamp,
) -> Result<(), StoreError> {
    let kind = match taxes_micros.signum() {
        1 => TransferKind::Debit,
        -1 => TransferKind::Credit,
        _ => return Ok(()),
    };
    let posting = Posting {
        id: context.new_id(now),
        org: row.org_id,
        kind,
        amount_micros: taxes_micros.saturating_abs(),
        pending: None,
        source: store::ledger::TAX,
        source_id: row.id.to_string(),
        seq: 1,
        memo: format!("Taxes of {} {}", title.to_lowercase(), row.number),
        at: now,
    };
    // The use of the month is over, so its taxes are owed beyond the available money too.
    match kind {
        TransferKind::Debit => store::ledger::post_forced(tx, &posting).await,
        _ => store::ledger::post(tx, &posting).await,
    }
}

impl Invoices {
    /// Bills the last month, after the time for its late charges.
    pub async fn bill_last_month(&self) -> Result<usize, StoreError> {
        let now = self.context.now();
        let Some(this_month) = begin_of(&month_of(now)) else { return Ok(0) };
        if now < this_month.plus_seconds(SETTLE_S) {
            return Ok(0);
        }
        self.bill(&month_of(this_month.plus_seconds(-1))).await
    }

    /// Bills a past month and returns the number of new documents. An organization gets one document a month.
    pub(super) async fn bill(&self, month: &str) -> Result<usize, StoreError> {
        let (Some(begin), now) = (begin_of(month), self.context.now()) else { return Ok(0) };
        let Some(end) = next_month(begin) else { return Ok(0) };
        let days = (day_of(begin), day_of(end) - 1);
        let times = (begin, end);
        let orgs = {
            let mut conn = self.context.db.read().await?;
            store::invoices::list_to_bill(&mut conn.tx(), month, days, times).await?
        };
        let mut documents = 0;
        for orgs in orgs.chunks(ORGS_AT_ONCE) {
            let ids: Vec<OrgId> = orgs.iter().map(|(org, _)| *org).collect();
            let (settings, mut charges, mut details) = {
                let mut conn = self.context.db.read().await?;
                let mut tx = conn.tx();
                let details = store::billing_details::list(&mut tx, &ids).await?;
                let details: HashMap<OrgId, BillingDetails> = details.into_iter().collect();
                (settings(&mut tx).await?, list_charges(&mut tx, &ids, days, times).await?, details)
            };
            for (org, name) in orgs {
                let MonthCharges { lines, pays_later } = charges.remove(org).unwrap_or_default();
                let buyer = buyer(details.remove(org).unwrap_or_default(), name);
                let document = document(&settings, buyer, lines, &self.context.settings.currency);
                let due_at = pays_later.then(|| now.plus_seconds(settings.due_days * 86_400));
                if self.issue(*org, month, document, due_at, now).await? {
                    fault::point("invoice.bill.recorded");
                    documents += 1;
                }
            }
        }
        Ok(documents)
    }

    /// Issues the document of an organization for a month. `due_at` is the time of its payment if the
    /// organization has a credit limit. Returns false if another portal has billed the organization meanwhile.
    async fn issue(
        &self,
        org: OrgId,
        month: &str,
        document: InvoiceDocument,
        due_at: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let (context, month) = (self.context.clone(), month.to_owned());
        let done = self.context.db.write(move |tx| {
            let (context, month, document) = (context.clone(), month.clone(), document.clone());
            async move {
                let (kind, state, payment_text) = closing(&document, due_at.is_some());
                let open = state == InvoiceState::Open;
                let taxes_micros = document.total_micros.saturating_sub(document.subtotal_micros);
                let row = StoredInvoice {
                    id: context.new_id(now),
                    number: store::invoices::next_number(tx).await?,
                    kind,
                    org_id: org,
                    month: month.clone(),
                    state,
                    document: serde_json::to_string(&document).map_err(|e| StoreError::Corrupt(e.to_string()))?,
                    total_micros: document.total_micros,
                    issued_at: now,
                    due_at: due_at.filter(|_| open),
                    paid_at: (!open).then_some(now),
                    corrects: None,
                };
                store::invoices::insert(tx, &row).await?;
                fault::point("invoice.bill.numbered");
                let title = if kind == InvoiceKind::Invoice { "Invoice" } else { "Credit note" };
                if !open {
                    post_taxes(tx, &context, (&row, title), taxes_micros, now).await?;
                }
                let subject = format!("{title} {} for {month}", row.number);
                let total = money_text(document.total_micros, &document.currency);
                let detail = format!("{total} for {month}. {payment_text}");
                let data = serde_json::json!({
                    "invoice": row.id, "number": row.number, "month": month, "total_micros": document.total_micros,
                });
                let notice = context.notice(org, "invoice.issued", subject, detail, &data);
                store::budgets::insert_notice(tx, &notice).await
            }
            .boxed()
        });
        match done.await {
            Ok(()) => Ok(true),
            Err(StoreError::Duplicate) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
