//! Monthly invoices. An organization with charges gets one invoice a month, or a credit note if more was
//! given back than charged. Numbers have no gaps, and documents are final.

mod monthly;
mod pdf;
pub mod routes;
mod statement;

use std::sync::Arc;

use berth_core::admission::check_name;
use berth_types::Page;
use berth_types::ids::{InvoiceId, OrgId};
use berth_types::invoices::{
    BillingSettings, Invoice, InvoiceDocument, InvoiceKind, InvoiceLine, InvoiceState, TaxLine,
};
use berth_types::ledger::TransferKind;
use berth_types::lists::ListOptions;
use berth_types::problems::{FieldError, Problem};
use berth_types::time::Timestamp;
use futures::FutureExt;

use berth_foundation::Context;
use berth_foundation::days::month_of;
use berth_foundation::fault;
use berth_foundation::{Caller, Right, Scope, idempotency};
use berth_store::invoices::StoredInvoice;
use berth_store::ledger::Posting;
use berth_store::{self as store, StoreError, Tx};

/// The name of the setting with the operator's billing settings.
const SETTINGS: &str = "billing";
/// Tax rates of all invoices.
const MAX_TAXES: usize = 5;

/// The begin of a month such as `2026-11`.
fn begin_of(month: &str) -> Option<Timestamp> {
    (month.len() == 7).then(|| format!("{month}-01T00:00:00Z").parse().ok())?
}

/// The begin of the next month, from the begin of a month.
fn next_month(begin: Timestamp) -> Option<Timestamp> {
    begin_of(&month_of(begin.plus_seconds(32 * 86_400)))
}

async fn settings(tx: &mut Tx<'_>) -> Result<BillingSettings, StoreError> {
    let text = store::accounts::find_setting(tx, SETTINGS).await?;
    text.map_or(Ok(BillingSettings::default()), |text| {
        serde_json::from_str(&text).map_err(|e| StoreError::corrupt("settings", SETTINGS, "value", e))
    })
}

/// The document of an invoice: lines, taxes of their sum and the total. Each tax is truncated to a micro.
/// Amounts that are given back reduce the taxes too.
fn document(
    settings: &BillingSettings,
    buyer: &str,
    lines: Vec<InvoiceLine>,
    currency: &str,
) -> InvoiceDocument {
    let subtotal: i64 = lines.iter().map(|l| l.amount_micros).fold(0, i64::saturating_add);
    let tax = |rate: &berth_types::invoices::TaxRate| {
        let amount = i128::from(subtotal) * i128::from(rate.basis_points) / 10_000;
        TaxLine {
            name: rate.name.clone(),
            basis_points: rate.basis_points,
            amount_micros: i64::try_from(amount).unwrap_or(i64::MAX),
        }
    };
    let taxes: Vec<TaxLine> = settings.taxes.iter().map(tax).collect();
    InvoiceDocument {
        seller: settings.seller.clone(),
        buyer: buyer.to_owned(),
        subtotal_micros: subtotal,
        total_micros: taxes.iter().map(|t| t.amount_micros).fold(subtotal, i64::saturating_add),
        lines,
        taxes,
        currency: currency.to_owned(),
    }
}

/// The kind and state of a document, and a sentence about its payment. `pays_later` is true for an
/// organization with a credit limit.
fn closing(document: &InvoiceDocument, pays_later: bool) -> (InvoiceKind, InvoiceState, &'static str) {
    let (invoice, paid) = (InvoiceKind::Invoice, InvoiceState::Paid);
    match document.total_micros {
        total if total < 0 => (InvoiceKind::CreditNote, paid, "Credited at the time of the return."),
        total if total > 0 && pays_later => (invoice, InvoiceState::Open, "Payment is due."),
        _ => (invoice, paid, "Paid from the balance."),
    }
}

fn invoice(row: StoredInvoice) -> Result<Invoice, StoreError> {
    let document = serde_json::from_str(&row.document)
        .map_err(|e| StoreError::corrupt("invoices", row.id, "document", e))?;
    Ok(Invoice {
        id: row.id,
        number: row.number,
        kind: row.kind,
        org: row.org_id,
        state: row.state,
        document,
        issued_at: row.issued_at,
        due_at: row.due_at,
        paid_at: row.paid_at,
        corrects: row.corrects,
        month: row.month,
    })
}

/// Monthly invoices.
#[derive(Clone)]
pub struct Invoices {
    context: Context,
    pdf_queue: Arc<pdf::PdfQueue>,
}

impl Invoices {
    pub fn new(context: Context) -> Self {
        Self { context, pdf_queue: Arc::default() }
    }

    /// Bills a past month, as an operator. Existing documents of that month stay.
    ///
    /// # Errors
    /// The month is not over.
    pub async fn bill_month(&self, caller: &Caller, month: &str) -> Result<usize, Problem> {
        self.context.authorise_operator(caller)?;
        // A charge of the month may be recorded a little after its end.
        let end = begin_of(month).and_then(next_month).map(|end| end.plus_seconds(monthly::SETTLE_S));
        if end.is_none_or(|end| end > self.context.now()) {
            let detail = "Enter a month that ended more than an hour ago, such as 2026-10.";
            return Err(Problem::invalid_field("/month", detail));
        }
        Ok(self.bill(month).await?)
    }

    /// A page of the invoices of a scope.
    pub async fn list_invoices(
        &self,
        caller: &Caller,
        scope: Scope,
        state: Option<InvoiceState>,
        options: &ListOptions<i64>,
    ) -> Result<Page<Invoice>, Problem> {
        let org = self.context.authorise_scope(caller, scope, Right::ViewMoney).await?;
        let mut conn = self.context.db.read().await?;
        let rows = store::invoices::list(&mut conn.tx(), org, state, options).await?;
        Ok(options.page(rows, |row| row.number).try_map(invoice)?)
    }

    pub async fn get_invoice(&self, caller: &Caller, org: OrgId, id: InvoiceId) -> Result<Invoice, Problem> {
        self.context.authorise(caller, org, Right::ViewMoney).await?;
        let mut conn = self.context.db.read().await?;
        let row = store::invoices::find_any(&mut conn.tx(), id).await?;
        let row = row.filter(|r| r.org_id == org).ok_or_else(Problem::not_found)?;
        Ok(invoice(row)?)
    }

    /// Records the payment of an open invoice, as an operator, and credits its amount.
    ///
    /// # Errors
    /// The invoice is not open.
    pub async fn pay_invoice(&self, caller: &Caller, id: InvoiceId) -> Result<Invoice, Problem> {
        self.context.authorise_operator(caller)?;
        self.close_invoice(caller, id, InvoiceState::Paid).await
    }

    /// Voids an open invoice, as an operator, by a credit note with its own number.
    ///
    /// # Errors
    /// The invoice is not open.
    pub async fn void_invoice(&self, caller: &Caller, id: InvoiceId) -> Result<Invoice, Problem> {
        self.context.authorise_operator(caller)?;
        self.close_invoice(caller, id, InvoiceState::Void).await
    }

    async fn close_invoice(
        &self,
        caller: &Caller,
        id: InvoiceId,
        to: InvoiceState,
    ) -> Result<Invoice, Problem> {
        if caller.already_created().is_some() {
            let mut conn = self.context.db.read().await?;
            let row = store::invoices::find_any(&mut conn.tx(), id).await?;
            return Ok(invoice(row.ok_or_else(Problem::not_found)?)?);
        }
        let now = self.context.now();
        let (context, key) = (self.context.clone(), caller.idempotency_key.clone());
        let action = if to == InvoiceState::Paid { "invoice.paid" } else { "invoice.voided" };
        let event = self.context.audit_event(caller, action, id.to_string(), String::new());
        let done = self.context.db.try_write(move |tx| {
            let (context, event, key) = (context.clone(), event.clone(), key.clone());
            async move {
                let Some(row) = store::invoices::find_any(tx, id).await? else {
                    return Err(Problem::not_found().into());
                };
                let paid_at = (to == InvoiceState::Paid).then_some(now);
                let states = (InvoiceState::Open, to);
                if row.kind != InvoiceKind::Invoice
                    || !store::invoices::set_state(tx, id, states, paid_at).await?
                {
                    let state = row.state.name();
                    let detail = format!("The invoice is {state}. Only an open invoice can be paid or voided. Nothing was changed.");
                    return Err(Problem::conflict("invoice.closed", "Invoice not open", detail).into());
                }
                let org = row.org_id;
                let document: InvoiceDocument = serde_json::from_str(&row.document)
                    .map_err(|e| StoreError::corrupt("invoices", row.id, "document", e))?;
                // The ledger has the charges without tax, so the credit is without tax too.
                let amount_micros = document.subtotal_micros;
                if amount_micros > 0 {
                    let verb = if to == InvoiceState::Paid { "was paid" } else { "was voided" };
                    let posting = Posting {
                        id: context.new_id(now),
                        org,
                        kind: TransferKind::Credit,
                        amount_micros,
                        pending: None,
                        source: "invoice",
                        source_id: row.id.to_string(),
                        seq: 1,
                        memo: format!("Invoice {} {verb}", row.number),
                        at: now,
                    };
                    store::ledger::post(tx, &posting).await?;
                }
                if to == InvoiceState::Void {
                    let note = credit_note(&context, tx, &row, &document, now).await?;
                    store::invoices::insert(tx, &note).await?;
                }
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                idempotency::claim(tx, key.as_ref(), "", now).await?;
                let row = store::invoices::find_any(tx, id).await?;
                fault::point("invoice.pay.recording");
                Ok(row.ok_or_else(Problem::not_found)?)
            }
            .boxed()
        });
        let row = done.await?;
        fault::point("invoice.pay.recorded");
        Ok(invoice(row)?)
    }

    pub async fn billing_settings(&self, caller: &Caller) -> Result<BillingSettings, Problem> {
        self.context.authorise_operator(caller)?;
        let mut conn = self.context.db.read().await?;
        Ok(settings(&mut conn.tx()).await?)
    }

    /// Sets the seller, taxes and due days of future invoices. Issued invoices stay unchanged.
    pub async fn set_billing_settings(
        &self,
        caller: &Caller,
        input: BillingSettings,
    ) -> Result<BillingSettings, Problem> {
        self.context.authorise_operator(caller)?;
        let mut errors = Vec::new();
        if input.seller.chars().count() > 500 {
            errors.push(FieldError::new("/seller", "Use at most 500 characters."));
        }
        if input.taxes.len() > MAX_TAXES {
            errors.push(FieldError::new("/taxes", "Enter at most five rates."));
        }
        for (index, tax) in input.taxes.iter().take(MAX_TAXES).enumerate() {
            let pointer = format!("/taxes/{index}");
            check_name(&pointer, &tax.name, &mut errors);
            if !(0..=10_000).contains(&tax.basis_points) {
                errors.push(FieldError::new(pointer, "A rate has 0 to 10000 hundredths of a percent."));
            }
        }
        if !(0..=365).contains(&input.due_days) {
            errors.push(FieldError::new("/due_days", "Enter 0 to 365 days."));
        }
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let text = serde_json::to_string(&input).map_err(|_| Problem::internal())?;
        let event =
            self.context.audit_event(caller, "billing_settings.set", "default".to_owned(), text.clone());
        self.context
            .db
            .write(move |tx| {
                let (text, event) = (text.clone(), event.clone());
                async move {
                    let before = store::accounts::find_setting(tx, SETTINGS).await?;
                    store::accounts::put_setting(tx, SETTINGS, &text).await?;
                    store::quotas::insert_audit(tx, None, &event.with_change(before, Some(text))).await
                }
                .boxed()
            })
            .await?;
        Ok(input)
    }
}

/// The credit note of an invoice: the same lines with negative amounts.
async fn credit_note(
    context: &Context,
    tx: &mut Tx<'_>,
    row: &StoredInvoice,
    document: &InvoiceDocument,
    now: Timestamp,
) -> Result<StoredInvoice, StoreError> {
    let negated = |line: &InvoiceLine| InvoiceLine { amount_micros: -line.amount_micros, ..line.clone() };
    let note = InvoiceDocument {
        lines: document.lines.iter().map(negated).collect(),
        subtotal_micros: -document.subtotal_micros,
        taxes: document
            .taxes
            .iter()
            .map(|t| TaxLine { amount_micros: -t.amount_micros, ..t.clone() })
            .collect(),
        total_micros: -document.total_micros,
        ..document.clone()
    };
    Ok(StoredInvoice {
        id: context.new_id(now),
        number: store::invoices::next_number(tx).await?,
        kind: InvoiceKind::CreditNote,
        state: InvoiceState::Paid,
        document: serde_json::to_string(&note).map_err(|e| StoreError::Corrupt(e.to_string()))?,
        total_micros: note.total_micros,
        issued_at: now,
        due_at: None,
        paid_at: Some(now),
        corrects: Some(row.id),
        ..row.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::invoices::TaxRate;

    #[test]
    fn a_month_is_closed_by_what_it_comes_to() {
        let bill = |amount_micros| {
            let line = InvoiceLine { item: "x".into(), mode: String::new(), device_ms: 0, amount_micros };
            document(&BillingSettings::default(), "lab", vec![line], "USD")
        };
        for (amount_micros, pays_later, kind, state) in [
            (1, true, InvoiceKind::Invoice, InvoiceState::Open),
            (1, false, InvoiceKind::Invoice, InvoiceState::Paid),
            (0, true, InvoiceKind::Invoice, InvoiceState::Paid),
            (-1, true, InvoiceKind::CreditNote, InvoiceState::Paid),
            (-1, false, InvoiceKind::CreditNote, InvoiceState::Paid),
        ] {
            let (found, closed, _) = closing(&bill(amount_micros), pays_later);
            assert_eq!((found, closed), (kind, state), "{amount_micros} {pays_later}");
        }
    }

    #[test]
    fn months_follow_each_other() {
        let begin = begin_of("2027-12").unwrap();
        assert_eq!(next_month(begin).map(month_of), Some("2028-01".to_owned()));
        assert_eq!(begin_of("2028-02").and_then(next_month).map(month_of), Some("2028-03".to_owned()));
        assert_eq!((begin_of("2026-13"), begin_of("soon")), (None, None));
    }

    #[test]
    fn taxes_are_of_the_sum_and_rounded_down() {
        let settings = BillingSettings {
            taxes: vec![TaxRate { name: "VAT".into(), basis_points: 1_900 }],
            ..BillingSettings::default()
        };
        let line = |amount_micros| InvoiceLine {
            item: "x".into(),
            mode: String::new(),
            device_ms: 0,
            amount_micros,
        };
        let bill = document(&settings, "lab", vec![line(1_000_003), line(-3)], "USD");
        assert_eq!(
            (bill.subtotal_micros, bill.taxes[0].amount_micros, bill.total_micros),
            (1_000_000, 190_000, 1_190_000)
        );
        assert_eq!(document(&settings, "lab", vec![line(5)], "USD").total_micros, 5);
        assert_eq!(document(&settings, "lab", vec![line(-5)], "USD").taxes[0].amount_micros, 0);
        let back = document(&settings, "lab", vec![line(3), line(-1_000_003)], "USD");
        assert_eq!((back.taxes[0].amount_micros, back.total_micros), (-190_000, -1_190_000));
    }
}
