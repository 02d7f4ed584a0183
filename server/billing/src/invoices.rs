//! Monthly invoices. An organization with charges gets one invoice a month, or a credit note if more was
//! given back than charged. Numbers have no gaps, and documents are final.

mod details;
mod monthly;
mod pdf;
pub mod routes;
mod statement;

use std::sync::Arc;

use berth_core::admission::check_name;
use berth_types::Page;
use berth_types::change_requests::{ChangeAction, Outcome};
use berth_types::ids::{ChangeRequestId, InvoiceId, OrgId};
use berth_types::invoices::{
    BillingDetails, BillingSettings, Invoice, InvoiceDocument, InvoiceKind, InvoiceLine, InvoiceState,
    TaxLine,
};
use berth_types::ledger::TransferKind;
use berth_types::lists::ListOptions;
use berth_types::money::money_text;
use berth_types::operators::OperatorRight;
use berth_types::problems::{FieldError, Problem};
use berth_types::time::Timestamp;
use futures::FutureExt;

use berth_foundation::days::month_of;
use berth_foundation::fault;
use berth_foundation::{Caller, Right, Scope, idempotency};
use berth_foundation::{Context, Gate, OperatorAct};
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

/// The details of the customer on a document. `name` is the name of the organization.
fn buyer(details: BillingDetails, name: &str) -> BillingDetails {
    if details.name.is_empty() { BillingDetails { name: name.to_owned(), ..details } } else { details }
}

/// The document of an invoice: lines, taxes of their sum and the total. Each tax is truncated to a micro.
/// Amounts that are given back reduce the taxes too.
fn document(
    settings: &BillingSettings,
    buyer: BillingDetails,
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
        seller_tax_id: settings.seller_tax_id.clone(),
        buyer: buyer.name,
        buyer_address: buyer.address,
        buyer_tax_id: buyer.tax_id,
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
        self.context.authorise_operator(caller, OperatorRight::ManageMoney).await?;
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
        let org =
            self.context.authorise_scope(caller, scope, (Right::ViewMoney, OperatorRight::View)).await?;
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

    /// Records the payment of an open invoice, as an operator, and credits its amount. `approved` is the change request
    /// that the caller approves.
    ///
    /// # Errors
    /// The invoice is not open.
    pub async fn pay_invoice(
        &self,
        caller: &Caller,
        id: InvoiceId,
        approved: Option<ChangeRequestId>,
    ) -> Result<Outcome<Invoice>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageMoney).await?;
        self.close_invoice(caller, id, InvoiceState::Paid, approved).await
    }

    /// Voids an open invoice, as an operator, by a credit note with its own number. `approved` is the change request
    /// that the caller approves.
    ///
    /// # Errors
    /// The invoice is not open.
    pub async fn void_invoice(
        &self,
        caller: &Caller,
        id: InvoiceId,
        approved: Option<ChangeRequestId>,
    ) -> Result<Outcome<Invoice>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageMoney).await?;
        self.close_invoice(caller, id, InvoiceState::Void, approved).await
    }

    /// The answer to a repeated request whose first answer was lost.
    async fn repeated_close(&self, caller: &Caller, id: InvoiceId) -> Result<Outcome<Invoice>, Problem> {
        if let Some(request) = Gate::find_requested(&self.context, caller).await? {
            return Ok(Outcome::Requested(request));
        }
        let mut conn = self.context.db.read().await?;
        let row = store::invoices::find_any(&mut conn.tx(), id).await?;
        Ok(Outcome::Done(invoice(row.ok_or_else(Problem::not_found)?)?))
    }

    async fn close_invoice(
        &self,
        caller: &Caller,
        id: InvoiceId,
        to: InvoiceState,
        approved: Option<ChangeRequestId>,
    ) -> Result<Outcome<Invoice>, Problem> {
        if caller.already_created().is_some() {
            return self.repeated_close(caller, id).await;
        }
        let gate = Gate::new(&self.context, caller, approved, &())?;
        let now = self.context.now();
        let (context, key) = (self.context.clone(), caller.idempotency_key.clone());
        let action = if to == InvoiceState::Paid { "invoice.paid" } else { "invoice.voided" };
        let event = self.context.audit_event(caller, action, id.to_string(), String::new());
        let done = self.context.db.try_write(move |tx| {
            let (context, event, key) = (context.clone(), event.clone(), key.clone());
            let gate = gate.clone();
            async move {
                let Some(row) = store::invoices::find_any(tx, id).await? else {
                    return Err(Problem::not_found().into());
                };
                // The change of the state refuses a closed invoice.
                if row.kind == InvoiceKind::Invoice
                    && row.state == InvoiceState::Open
                    && let Some(request) = gate.pass(tx, &closing_act(&row, to)?).await?
                {
                    return Ok(Outcome::Requested(request));
                }
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
                Ok(Outcome::Done(row.ok_or_else(Problem::not_found)?))
            }
            .boxed()
        });
        match done.await? {
            Outcome::Requested(request) => Ok(Outcome::Requested(request)),
            Outcome::Done(row) => {
                fault::point("invoice.pay.recorded");
                Ok(Outcome::Done(invoice(row)?))
            }
        }
    }

    pub async fn billing_settings(&self, caller: &Caller) -> Result<BillingSettings, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        let mut conn = self.context.db.read().await?;
        Ok(settings(&mut conn.tx()).await?)
    }

    /// Sets the seller, taxes and due days of future invoices. Issued invoices stay unchanged.
    pub async fn set_billing_settings(
        &self,
        caller: &Caller,
        input: BillingSettings,
    ) -> Result<BillingSettings, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageMoney).await?;
        let mut errors = Vec::new();
        if input.seller.chars().count() > 500 {
            errors.push(FieldError::new("/seller", "Use at most 500 characters."));
        }
        details::check_line("/seller_tax_id", &input.seller_tax_id, details::MAX_TAX_ID_CHARS, &mut errors);
        if input.taxes.len() > MAX_TAXES {
            errors.push(FieldError::new("/taxes", "Enter at most five rates."));
        }
        for (index, tax) in input.taxes.iter().take(MAX_TAXES).enumerate() {
            let pointer = format!("/taxes/{index}");
            check_name(&pointer, &tax.name, &mut errors);
            if input.taxes.iter().take(index).any(|other| other.name.trim() == tax.name.trim()) {
                let detail = "Another rate has this name. Invoices show the name, so enter a different one.";
                errors.push(FieldError::new(&pointer, detail));
            }
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

/// The closing of an open invoice as an act of an operator. Its amount is the credit, without taxes.
fn closing_act(row: &StoredInvoice, to: InvoiceState) -> Result<OperatorAct, StoreError> {
    let document: InvoiceDocument = serde_json::from_str(&row.document)
        .map_err(|e| StoreError::corrupt("invoices", row.id, "document", e))?;
    let is_paid = to == InvoiceState::Paid;
    let amount_micros = document.subtotal_micros;
    let amount = money_text(amount_micros, &document.currency);
    let end = if is_paid { "paid" } else { "void" };
    Ok(OperatorAct {
        action: if is_paid { ChangeAction::PayInvoice } else { ChangeAction::VoidInvoice },
        org: Some(row.org_id),
        target: row.id.to_string(),
        amount_micros: Some(amount_micros),
        reason: String::new(),
        detail: format!("Invoice {}: from open to {end}, with a credit of {amount}", row.number),
    })
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
            let line = InvoiceLine {
                item: "x".into(),
                mode: String::new(),
                device_ms: 0,
                unit_nano_per_second: None,
                surcharge_basis_points: 0,
                amount_micros,
            };
            document(&BillingSettings::default(), buyer(BillingDetails::default(), "lab"), vec![line], "USD")
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
            unit_nano_per_second: None,
            surcharge_basis_points: 0,
            amount_micros,
        };
        let document = |lines| document(&settings, buyer(BillingDetails::default(), "lab"), lines, "USD");
        let bill = document(vec![line(1_000_003), line(-3)]);
        assert_eq!(
            (bill.subtotal_micros, bill.taxes[0].amount_micros, bill.total_micros),
            (1_000_000, 190_000, 1_190_000)
        );
        assert_eq!(document(vec![line(5)]).total_micros, 5);
        assert_eq!(document(vec![line(-5)]).taxes[0].amount_micros, 0);
        let back = document(vec![line(3), line(-1_000_003)]);
        assert_eq!((back.taxes[0].amount_micros, back.total_micros), (-190_000, -1_190_000));
        // Each pair of small amounts: the parts of the document add up to its total.
        for (first, second) in (-60..60).flat_map(|first| (-60..60).map(move |second| (first, second))) {
            let bill = document(vec![line(first), line(second)]);
            let tax = (first + second) * 19 / 100;
            assert_eq!((bill.subtotal_micros, bill.taxes[0].amount_micros), (first + second, tax));
            assert_eq!(bill.total_micros, first + second + tax, "{first} {second}");
        }
    }

    #[test]
    fn the_name_of_the_organization_stands_in_for_an_absent_legal_name() {
        let details = |name: &str| BillingDetails {
            name: name.to_owned(),
            address: "Kade 4".to_owned(),
            tax_id: "DE1".to_owned(),
        };
        assert_eq!(buyer(details(""), "lab"), details("lab"));
        assert_eq!(buyer(details("Lab GmbH"), "lab"), details("Lab GmbH"));
    }
}
